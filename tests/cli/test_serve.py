"""`iet serve` before it listens: required packages, and rejected options."""

from __future__ import annotations

import pathlib
import re
import shlex
import socket

import pytest

from benchmarks.house import ROOT
from tests.support.commands import run
from tests.support.scripts import python
from tests.support.service import registry_file
from tests.support.teams import team

# `import iet` must not load it, and without it there is one line.
MISSING = """
import sys
sys.modules["{missing}"] = None
import iet
heavy = {{"fastapi", "uvicorn", "prometheus_client", "litellm", "pydantic"}} - {{"{missing}"}}
assert not heavy & set(sys.modules)
from iet.cli import main
raise SystemExit(main(["serve", "--no-auth", "-r", "nothing.json"]))
"""


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    team(["planner"], tmp_path / "team.json", vocab_size=1000)
    return tmp_path / "team.json"


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn", "prometheus_client"])
def test_a_missing_extra_is_named(missing: str) -> None:
    done = python(MISSING.format(missing=missing))
    assert done.returncode == 3, done.stderr
    assert re.search(rf'iet serve needs {missing}; pip install .*\[service\]"', done.stderr)
    assert "Traceback" not in done.stderr


def test_the_gateway_needs_nothing_of_the_service() -> None:
    code = """
import sys
for missing in ("fastapi", "uvicorn", "prometheus_client", "litellm", "pydantic", "starlette"):
    sys.modules[missing] = None
import iet.service.gateway
"""
    assert python(code).returncode == 0


def test_what_it_does_not_begin_with(path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("prometheus_client")
    pytest.importorskip("uvicorn")
    empty = path.with_name("empty.json")
    team([], empty, vocab_size=1000)
    (path.parent / "words").mkdir()
    words = registry_file(path.parent / "words", "planner")
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        for options, message in [
            (
                ["--no-auth", "-r", path, "--host", "0.0.0.0"],
                "host: got '0.0.0.0' and --no-auth, expected 127.0.0.1",
            ),
            (["--no-auth", "-r", path, "--host", "::"], "host: got '::' and --no-auth"),
            (["--no-auth", "-r", path, "--host", "a..b"], "host: got 'a..b', expected an address, or a name"),
            (["--no-auth", "-r", path, "--host", "a" * 70], "expected an address, or a name with 1 to 63"),
            (
                ["--no-auth", "-r", path, "--port", port],
                f"got '127.0.0.1', {port}, where this process cannot",
            ),
            (["--no-auth", "-r", path, "--port", port], "Address already in use"),
            (["--no-auth", "-r", path, "--workers", 0], "workers: got 0"),
            (["--no-auth", "-r", words, "--tokenizer", "nothing"], "nothing"),
            (["--no-auth", "-r", words, "--tokenizer", "iet:demo"], "expects"),
            (["--no-auth", "-r", path, "--limit", "per_client=0"], "per_client: got 0"),
            (["--no-auth", "-r", path, "--limit", "seconds=NaN"], "seconds: got nan"),
            (
                ["--no-auth", "-r", path, "--limit", "wait=Infinity"],
                "wait: got inf, expected a number from 0.05 to 86400",
            ),
            (["--no-auth", "-r", path, "--port", 99999], "port: got 99999, expected an int from 0 to 65535"),
            (["--no-auth", "-r", path, "--port", -1], "port: got -1, expected an int from 0 to 65535"),
            (["--no-auth", "-r", path.with_name("nothing.json")], "nothing.json: cannot be read"),
            (["--no-auth", "-r", empty], "the profile has no agents"),
            (["--no-auth", "-r", path, "--published", path.parent], "no index of published text"),
            (["--tokens", path.with_name("nothing"), "-r", path], "nothing: cannot be read"),
            (["--tokens", path, "-r", path], "line 1 is not a SHA-256"),
            (["--public", "-r", path, "--limit", "rate=0"], "rate: got 0"),
            (
                ["--public", "-r", path, "--trusted-proxy", "proxy"],
                "--trusted-proxy: got 'proxy', expected an address or a network",
            ),
        ]:
            assert run("serve", *options) == 3, message
            assert message in capsys.readouterr().err


@pytest.mark.parametrize("options", [(), ("--tokens", "t", "--no-auth"), ("--add-token", "alice")])
def test_it_wants_tokens_or_none(options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("serve", *options) == 2
    assert "--tokens FILE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--public", "--no-auth"), "--public takes no --tokens, --no-auth or --model"),
        (("--public", "--tokens", "t"), "--public takes no --tokens"),
        (("--public", "--model", "smollm2"), "--public takes no --tokens, --no-auth or --model"),
        (("--no-auth", "--trusted-proxy", "127.0.0.1"), "--trusted-proxy takes --public"),
    ],
)
def test_what_public_excludes(
    options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("serve", *options) == 2
    assert message in capsys.readouterr().err


def test_the_compose_file_names_existing_files(capsys: pytest.CaptureFixture[str]) -> None:
    yaml = pytest.importorskip("yaml")
    folder = ROOT / "examples" / "serving"
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    command = shlex.split(services["audits"]["command"])
    assert command[:2] == ["iet", "serve"]
    assert run("serve", "--help") == 0
    options = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", capsys.readouterr().out))
    assert {word for word in command if word.startswith("-")} <= options
    settings = yaml.safe_load((folder / "litellm.yaml").read_text())
    hook = (ROOT / "iet" / "service" / "litellm.py").read_text()
    assert settings["litellm_settings"]["callbacks"] == "iet.service.litellm.hook"
    assert settings["general_settings"]["custom_auth"] == "iet.service.litellm.authenticate"
    assert re.search(r"^hook = ", hook, re.MULTILINE)
    assert re.search(r"^async def authenticate\(", hook, re.MULTILINE)
