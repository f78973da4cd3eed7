"""Commands that start an engine, checked before they run."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from iet.cli import main
from iet.demo.conversation import MODEL
from iet.errors import InputError
from iet.generation.launch import check_command
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme

VLLM = ["vllm", "serve", str(MODEL), "--logits-processors", "iet.generation.vllm:IETLogitsProcessor"]
SGLANG = ["python", "-m", "sglang.launch_server", "--model-path", str(MODEL)]
FLAGS = ["--enable-custom-logit-processor", "--disable-overlap-schedule"]


@pytest.fixture
def host(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry]:
    """What makes the registry that the environment names."""

    def made(**profile: Any) -> Registry:
        given = {"tokenizer": MODEL, "scheme": Scheme(family="gumbel"), **profile}
        registry = Registry.create(tmp_path / "host.json", overwrite=True, **given)
        registry.add("planner")
        monkeypatch.setenv("IET_REGISTRY", str(tmp_path / "host.json"))
        return registry

    return made


def failures(command: list[str]) -> dict[str, str]:
    """Name -> what is wrong."""
    return {check.name: check.says for check in check_command(command) if check.good is False}


@pytest.mark.parametrize("family", ["fourier", "square", "gumbel"])
@pytest.mark.parametrize("command", [VLLM, SGLANG + FLAGS], ids=["vllm", "sglang"])
def test_what_will_mark(host: Callable[..., Registry], command: list[str], family: str) -> None:
    registry = host(scheme=Scheme(family=family))
    found = {check.name: check for check in check_command(command)}
    assert failures(command) == {}
    assert found["registry"].good
    assert f"agents planner; profile {registry.profile.id}: {family}," in found["registry"].says
    assert found["model"].says == "4096 logits"
    assert found["tokenizer"].good


@pytest.mark.parametrize(
    ("command", "name", "says"),
    [
        (VLLM[:3], "processor", "no text is marked: add --logits-processors iet.generation.vllm:IETLogits"),
        ([*VLLM, "--logprobs-mode=processed_logits"], "family", "logprobs_mode: got processed_logits, expec"),
        ([*VLLM, "--watermark_config", "{}"], "family", "watermark_config: got vLLM's own watermark and f"),
        (["VLLM_USE_V2_MODEL_RUNNER=0", *VLLM, "-sc", "{}"], "runner", "the V1 runner takes no drafts"),
        ([*VLLM, "--return-sampling-mask"], "runner", "--return-sampling-mask goes with no processor"),
        (["IET_REGISTRY=", *VLLM], "registry", "IET_REGISTRY: got none, expected the path of a registry"),
        (["IET_REGISTRY=/no/such", *VLLM], "registry", "/no/such"),
        (["IET_PROFILE=x", *VLLM], "registry", "profile 'x' is not in the registry; known: "),
        (["IET_DEFAULT_AGENT=x", *VLLM], "registry", "IET_DEFAULT_AGENT: got 'x', expected one of ['plan"),
        (["IET_REQUIRE_AGENT=yes", *VLLM], "registry", "IET_REQUIRE_AGENT: got 'yes', expected 0 or 1"),
        (SGLANG, "processor", f"cannot mark: add {' '.join(FLAGS)}"),
        ([*SGLANG, FLAGS[0]], "processor", f"cannot mark: add {FLAGS[1]}"),
        ([*SGLANG, *FLAGS, "--speculative-algorithm", "EAGLE"], "processor", "SGLang does not call it"),
        (
            [*SGLANG, *FLAGS, "--speculative-algo=NEXTN"],
            "processor",
            "under --speculative-algo: leave that out",
        ),
        ([*SGLANG, *FLAGS, "--enable-watermark"], "processor", "under --enable-watermark: leave that out"),
        (["/opt/vllm/bin/python", *SGLANG[1:3], f"--model-path={MODEL}"], "processor", "cannot mark: add"),
        ([*SGLANG[:3], "--served-model-name=vllm", *SGLANG[3:]], "processor", "cannot mark: add"),
    ],
)
def test_what_will_not(host: Callable[..., Registry], command: list[str], name: str, says: str) -> None:
    host()
    found = failures(command)
    assert list(found) == [name]
    assert says in found[name]


@pytest.mark.parametrize(
    "before",
    [
        ["env"],
        ["/usr/bin/env", "A=1", "B=2", "C=3"],
        ["env", "-i", "-C", "/tmp"],
        ["env", "-"],
        ["env", "-iu", "A", "--unset", "B", "--"],
        ["sudo"],
        ["sudo", "-nEu", "vllm", "--group=vllm", "--chdir", "/tmp"],
        ["nohup", "nice", "-n", "5", "env"],
        ["A=1", "exec", "-a", "name", "nice", "-19", "env"],
    ],
)
def test_variables_behind_what_stands_before_the_command(
    host: Callable[..., Registry], monkeypatch: pytest.MonkeyPatch, before: list[str]
) -> None:
    host()
    path = f"IET_REGISTRY={os.environ['IET_REGISTRY']}"
    for outer in ("", "/no/such"):
        monkeypatch.setenv("IET_REGISTRY", outer)
        assert failures([*before, path, *VLLM]) == {}
        assert list(failures([*before, "IET_REGISTRY=/no/such/file", *VLLM])) == ["registry"]


@pytest.mark.parametrize(
    "emptied", ["env -i", "env -", "env -u IET_REGISTRY", "env --unset=IET_REGISTRY", "exec -cl"]
)
def test_variables_that_the_command_is_not_given(host: Callable[..., Registry], emptied: str) -> None:
    host()
    assert failures(["nohup", *VLLM]) == {}
    assert failures([*emptied.split(), *VLLM])["registry"].startswith("IET_REGISTRY: got none, expected")


@pytest.mark.parametrize("before", ["nohup", "nice -n 5", "exec"])
def test_variables_where_none_are_taken(host: Callable[..., Registry], before: str) -> None:
    host()
    with pytest.raises(InputError, match=f"command: got A= behind {before.split()[0]}, expected it before"):
        check_command([*before.split(), "A=secret", *VLLM])


def test_drafts_and_changed_log_probabilities_go_with_family_fourier(
    host: Callable[..., Registry],
) -> None:
    host(scheme=Scheme())
    assert failures([*VLLM, "--speculative-config", "{}", "--logprobs-mode", "processed_logprobs"]) == {}


@pytest.mark.parametrize("flag", FLAGS)
def test_flags_of_sglang_may_be_shortened(host: Callable[..., Registry], flag: str) -> None:
    host()
    other = next(each for each in FLAGS if each != flag)
    assert failures([*SGLANG, other, flag[: flag.rindex("-")]]) == {}
    # What other options begin with, too, and what only looks alike.
    for given in (flag[:10], f"{flag[:-1]}x", f"{flag}-too"):
        assert failures([*SGLANG, other, given]) == {"processor": f"cannot mark: add {flag}"}


def test_several_processors(host: Callable[..., Registry]) -> None:
    host()
    for other in (["another:Processor"], ["another:Processor", VLLM[3]]):
        assert failures([*VLLM[:4], *other, VLLM[4]]) == {}
        assert list(failures([*VLLM[:4], *other])) == ["processor"]


def test_a_model_that_does_not_fit(host: Callable[..., Registry], tmp_path: pathlib.Path) -> None:
    host(vocab_size=5000)
    assert failures(VLLM)["model"].startswith("the model's vocabulary: got 4096, expected at least 5000")
    host()
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"text_config": {"vocab_size": 4096}}')
    changed = json.loads((MODEL / "tokenizer.json").read_text())
    changed["added_tokens"][0]["content"] = "<begin>"
    changed["model"]["vocab"]["<begin>"] = changed["model"]["vocab"].pop("<s>")
    (other / "tokenizer.json").write_text(json.dumps(changed))
    command = [VLLM[0], "serve", str(other), *VLLM[3:]]
    assert list(failures(command)) == ["tokenizer"]
    assert "an auditor would read other ids than the model wrote" in failures(command)["tokenizer"]
    assert failures([*command, "--tokenizer", str(MODEL)]) == {}
    assert failures([*SGLANG[:4], str(other), *FLAGS, "--tokenizer-path", str(MODEL)]) == {}
    assert list(failures([*SGLANG, *FLAGS, "--tokenizer-path", str(other)])) == ["tokenizer"]
    (other / "config.json").write_text("[")
    found = {check.name: check.good for check in check_command([*command, "--tokenizer", str(tmp_path)])}
    assert (found["model"], found["tokenizer"]) == (None, None)
    hub = {check.name: check for check in check_command([*VLLM[:2], "owner/name", *VLLM[3:]])}
    assert hub["model"].good is None
    assert "owner/name: no folder of this machine" in hub["model"].says


@pytest.mark.parametrize(
    "arguments",
    [
        ["--enforce-eager", "MODEL", *VLLM[3:]],
        [*VLLM[3:], "--enable-lora", "MODEL"],
        ["--enforce-eager", "MODEL", *VLLM[3:], "--tokenizer", str(MODEL), "--generation-config", str(MODEL)],
        ["--override-generation-config", json.dumps({"a": "b" * 300}), "--enforce-eager", "MODEL", *VLLM[3:]],
    ],
)
def test_a_model_behind_an_option_without_a_value(
    host: Callable[..., Registry], tmp_path: pathlib.Path, arguments: list[str]
) -> None:
    host()
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"vocab_size": 4000}')
    command = ["vllm", "serve", *arguments]
    assert failures([str(other) if word == "MODEL" else word for word in command])["model"].startswith(
        "the model's vocabulary: got 4000, expected at least 4096"
    )
    found = {
        check.name: check
        for check in check_command([str(MODEL) if word == "MODEL" else word for word in command])
    }
    assert (found["model"].says, found["tokenizer"].good) == ("4096 logits", True)
    hub = {
        check.name: check
        for check in check_command(["owner/name" if word == "MODEL" else word for word in command])
    }
    assert hub["model"].good is None
    assert "none was recognised, so it was not compared; put it before the options" in hub["model"].says


@pytest.mark.parametrize("path", ["/no/such/model", "./no/such/model", "../no/such/model", "~/no/such/model"])
def test_a_path_that_is_not_there(
    host: Callable[..., Registry], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    host()
    monkeypatch.chdir(tmp_path)
    for home in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(home, str(tmp_path))
    for command in ([*VLLM[:2], path, *VLLM[3:]], [*SGLANG[:4], path, *FLAGS]):
        assert failures(command) == {"model": f"{path}: no such path, and no id on the Hub begins so"}
    # One file may be a model, too (GGUF).
    (tmp_path / "model.gguf").touch()
    for there in (str(tmp_path / "model.gguf"), "./model.gguf", "~/model.gguf"):
        assert failures([*VLLM[:2], there, *VLLM[3:]]) == {}


def test_of_several_folders_none_is_taken_for_the_model(
    host: Callable[..., Registry], tmp_path: pathlib.Path
) -> None:
    host()
    (tmp_path / "config.json").write_text('{"vocab_size": 4000}')
    command = ["vllm", "serve", "--enforce-eager", str(MODEL), "--adapter", str(tmp_path), *VLLM[3:]]
    found = {check.name: check for check in check_command(command)}
    assert found["model"].good is None
    assert "none was recognised" in found["model"].says


def test_the_command_line(host: Callable[..., Registry], capsys: pytest.CaptureFixture[str]) -> None:
    host()
    assert main(["doctor", "--", *VLLM, "--config", "more.yaml"]) == 0
    said = capsys.readouterr().out
    assert "options: not known: --config more.yaml is not read here" in said
    assert said.endswith("as far as can be told before the start, its texts will be marked\n")
    assert main(["doctor", "--", *VLLM[:2], "owner/name", *VLLM[3:]]) == 0
    said = capsys.readouterr().out
    assert said.endswith("will be marked, if model and tokenizer are the registry's: that was not compared\n")
    assert main(["doctor", "--json", "--", *VLLM[:3]]) == 1
    assert json.loads(capsys.readouterr().out)["marks"] is False
    assert main(["doctor", "--", "ls", "-l"]) == 3
    assert "command: got 'ls -l', expected one that starts vLLM or SGLang" in capsys.readouterr().err
    with pytest.raises(InputError):
        check_command([])
    with pytest.raises(SystemExit):
        main(["doctor", "--server", "http://localhost", "--agent", "planner", "--", *VLLM])
    assert "expected one of them" in capsys.readouterr().err


def test_it_imports_no_torch() -> None:
    code = "import sys, iet.generation.launch; sys.exit('torch' in sys.modules or 'vllm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
