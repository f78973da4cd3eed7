"""The formats of a report, and `iet verify`."""

from __future__ import annotations

import base64
import json
import pathlib
import re

import pytest

import iet
from iet.marks.registry import Registry
from iet.marks.scheme import canonical_json
from tests.support.commands import RunIet, run


@pytest.fixture
def signing(tmp_path: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """An auditor's private and public key, as openssl writes them."""
    pytest.importorskip("securesystemslib")
    from tests.support.signing import ed25519, write_keys

    return write_keys(tmp_path, ed25519())


def test_report_writes_what_the_names_ask_for(
    text: pathlib.Path, team: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["r.html", "r.json", "r.prov.json", "r.dot", "r.svg", "r.png"]
    outputs = [argument for name in names for argument in ("-o", str(tmp_path / name))]
    assert run("audit", text, "-r", team, "--no-text", *outputs) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / name) for name in names]
    report = iet.Auditor(Registry.load(team)).audit(text.read_text(encoding="utf-8"))
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    read = re.search(r"read \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC with team.json", page)
    assert read is not None
    assert page == report.to_html(about=[text.name, read[0]]) + "\n"
    assert f"<title>{text.name} · iet: " in page
    assert json.loads((tmp_path / "r.json").read_bytes()) == json.loads(report.to_json(text=False))
    assert json.loads((tmp_path / "r.prov.json").read_bytes()) == json.loads(report.to_prov())
    assert (tmp_path / "r.dot").read_text(encoding="utf-8") == report.transitions.to_dot() + "\n"
    assert (tmp_path / "r.svg").read_bytes().startswith(b"<?xml")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


def test_report_writes_all_or_nothing(
    team: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short.txt").write_text("\u200b")
    page = tmp_path / "r.html"
    arguments = ["audit", str(tmp_path / "short.txt"), "-r", team, "-o", page]
    assert run(*arguments, "-o", str(tmp_path / "r.svg")) == 3  # there is nothing to draw
    assert "report: got one without scores" in capsys.readouterr().err
    assert not page.exists()
    assert run(*arguments) == 0
    assert page.exists()


def test_a_signed_report_is_verified_with_what_it_speaks_of(
    text: pathlib.Path,
    team: pathlib.Path,
    tmp_path: pathlib.Path,
    signing: tuple[pathlib.Path, pathlib.Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    private, public = signing
    envelope, opening = tmp_path / "r.dsse.json", tmp_path / "planner.opening.json"
    assert run("audit", text, "-r", team, "-o", envelope, "--sign", private) == 0
    assert run("keys", "open", "planner", "-r", team, "-o", opening) == 0
    Registry.load(team).export(tmp_path / "planner.json", ["planner"])
    capsys.readouterr()
    check = ["verify", envelope, "--key", public]
    assert run(*check, "--text", text, "-r", team) == 0
    output = capsys.readouterr().out
    assert f"text {text.name!r}, sha256 " in output
    assert "agents found: critic; " in output
    assert "compared with it: text, registry" in output
    assert run(*check, "--opening", opening, "-r", str(tmp_path / "planner.json")) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert f"compared with it: opening, and its key with {tmp_path / 'planner.json'}" in output
    assert run(*check, "--opening", opening, "-r", team) == 0
    assert "compared with it: registry, opening\n" in capsys.readouterr().out
    assert run(*check, "--json") == 0
    assert json.loads(capsys.readouterr().out)["subject"][0]["name"] == text.name

    changed_text = tmp_path / "other.txt"
    changed_text.write_text(text.read_text(encoding="utf-8") + " w1", encoding="utf-8")
    for arguments, message in (
        (["--text", changed_text], "not verified: text: got sha256"),
        (["-r", str(tmp_path / "planner.json")], "not verified: registry: got digest"),
    ):
        assert run(*check, *arguments) == 1
        assert message in capsys.readouterr().err
    envelope.write_bytes(envelope.read_bytes().replace(b'"sig"', b'"Sig"'))
    assert run(*check) == 1
    assert "not verified: envelope: " in capsys.readouterr().err


def test_what_report_and_verify_refuse_before_any_work(
    text: pathlib.Path,
    team: pathlib.Path,
    tmp_path: pathlib.Path,
    signing: tuple[pathlib.Path, pathlib.Path],
    run_iet: RunIet,
) -> None:
    private, public = signing
    start = ["audit", text, "-r", team]
    good = str(tmp_path / "r.html")
    for arguments, message in (
        (["-o", good, "-o", "r.docx"], "r.docx: got an unknown suffix, expected one of .html"),
        (["-o", good, "-o", str(tmp_path / "none" / "r.html")], "its folder does not exist"),
        (["-o", good, "--sign", private], "--sign KEY and an output *.dsse.json go together"),
        (
            ["-o", good, "-o", str(tmp_path / "r.dsse.json")],
            "--sign KEY and an output *.dsse.json go together",
        ),
        (
            ["-o", good, "-o", str(tmp_path / "r.dsse.json"), "--sign", public],
            "auditor.pub.pem: got",
        ),
    ):
        assert message in run_iet(3, *start, *arguments)
        assert not pathlib.Path(good).exists()
    assert "none: cannot be read (No such file" in run_iet(
        3, "verify", str(tmp_path / "none"), "--key", public
    )
    broken = tmp_path / "opening.json"
    broken.write_text("{}")
    assert "opening.json: opening: got one that cannot be read" in run_iet(
        3, "verify", broken, "--key", public, "--opening", broken
    )
    for deep in ("[" * 100_000, '{"schema":' + "[" * 900 + "]" * 900 + "}"):
        broken.write_text(deep)
        assert f"{broken}: " in run_iet(3, "verify", broken, "--key", public, "--opening", broken)
    for arguments, message in (
        ([*start, "-o", good, "--keys", "planner=42"], "go with --scheme"),
        (
            ["audit", text, "-o", good, "--scheme", "waterfall"],
            "audit: error: --scheme takes --keys and one --tokenizer",
        ),
    ):
        assert message in run_iet(2, *arguments)
        assert not pathlib.Path(good).exists()


def test_signed_reports_of_other_programs_are_refused_or_shown(
    tmp_path: pathlib.Path,
    text: pathlib.Path,
    team: pathlib.Path,
    signing: tuple[pathlib.Path, pathlib.Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    from tests.support.signing import ed25519, enveloped

    private, public = signing
    envelope = tmp_path / "r.dsse.json"
    assert run("audit", text, "-r", team, "-o", envelope, "--sign", private) == 0
    statement = json.loads(base64.b64decode(json.loads(envelope.read_bytes())["payload"]))
    report = statement["predicate"]["report"]

    def verified() -> int:
        envelope.write_bytes(enveloped(canonical_json(statement), ed25519()))
        capsys.readouterr()
        return run("verify", envelope, "--key", public, "--json")

    for depth in range(50, 1000, 50):
        report["decoder"]["options"] = {"x": json.loads("[" * depth + "]" * depth)}
        code, output = verified(), capsys.readouterr()
        assert (code == 0 and "[[[" in "".join(output.out.split())) or (
            code == 1 and "not verified: " in output.err
        )
    report["decoder"]["options"] = {}
    assert verified() == 0
    report["evidence"]["critic"] = None
    assert verified() == 1
    assert "not verified: statement: signed, but not as iet writes it (evidence of 'critic' is None)" in (
        capsys.readouterr().err
    )
