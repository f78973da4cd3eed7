"""`iet audit`: its output, files, rejected arguments and exit codes."""

from __future__ import annotations

import io
import json
import os
import pathlib
import sys
import textwrap

import pytest

import iet
from iet.marks.registry import Registry
from tests.support.commands import RunIet, run
from tests.support.conditions import posix


def test_audit_shows_who_wrote_what(
    team: pathlib.Path,
    text: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert run("audit", text, "-r", team) == 0
    output = capsys.readouterr()
    assert "1 segment · 100% attributed at level 0.01" in output.out
    assert "critic" in output.out
    assert output.err == ""


def test_audit_as_json_is_the_report(team: pathlib.Path, text: pathlib.Path, run_iet: RunIet) -> None:
    expected = iet.Auditor(Registry.load(team)).audit(text.read_text())
    assert json.loads(run_iet(0, "audit", text, "-r", team, "--json")) == json.loads(expected.to_json())
    assert json.loads(run_iet(0, "audit", text, "-r", team, "--json", "--no-text")) == json.loads(
        expected.to_json(text=False)
    )


def test_audit_writes_the_report_to_a_file(
    team: pathlib.Path,
    text: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    run_iet: RunIet,
) -> None:
    out = tmp_path / "report.json"
    assert run("audit", text, "-r", team, "-o", out, "--no-text") == 0
    assert capsys.readouterr().out == f"{out}\n"
    report = json.loads(out.read_text(encoding="utf-8"))
    assert (report["schema"], report["text"]) == ("iet.report/1", None)
    assert "nowhere" in run_iet(3, "audit", text, "-r", team, "-o", tmp_path / "nowhere" / "report.json")


def test_audit_options_reach_the_auditor(team: pathlib.Path, unmarked: pathlib.Path, run_iet: RunIet) -> None:
    arguments = ["audit", unmarked, "-r", team, "--json"]
    calls = []
    for more in ([], ["--forced"], ["--decoder", "window", "--level", "0.2"]):
        calls.append(json.loads(run_iet(0, *arguments, *more)))
    assert [report["coverage"] for report in calls[:2]] == [0.0, 1.0]
    assert calls[1]["allow_unattributed"] is False
    assert (calls[2]["decoder"]["name"], calls[2]["level"]) == ("window", 0.2)
    by_tokens = json.loads(run_iet(0, *arguments, "--attributed", "tokens"))
    assert by_tokens["decoder"]["options"] == {"attributed": "tokens"}
    assert "attributed: got 'tokens' and decoder 'cusum'" in run_iet(
        3, *arguments, "--attributed", "tokens", "--decoder", "cusum"
    )
    assert "--attributed tokens only where it is sure" in run_iet(
        2, *arguments, "--attributed", "tokens", "--forced"
    )


def test_what_cannot_work_is_refused_before_the_work(
    team: pathlib.Path,
    text: pathlib.Path,
    tmp_path: pathlib.Path,
    run_iet: RunIet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = tmp_path / "no" / "report.json"
    assert f"{missing}: its folder does not exist" in run_iet(3, "audit", text, "-r", team, "-o", missing)
    assert "nothing.txt: cannot be read" in run_iet(
        3, "audit", tmp_path / "nothing.txt", "-r", team, "--model", "no/such/model"
    )
    assert "model: got decoder 'cusum'" in run_iet(
        3, "audit", text, "-r", team, "--model", "no/such/model", "--decoder", "cusum"
    )
    assert "--level goes with --power" in run_iet(
        2, "calibrate", "--null", text, "-r", team, "--level", "0.2"
    )
    assert "go with --null" in run_iet(2, "calibrate", "--power", "--registries", "3")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("good")
    (tmp_path / "corpus" / "z.jsonl").write_text('{"text": "good"}\n{"txt": "bad"}\n')
    monkeypatch.setattr("iet.calibrate.null", lambda *_, **__: pytest.fail("the first text was audited"))
    assert "z.jsonl, line 2: got" in run_iet(3, "calibrate", "--null", tmp_path / "corpus", "-r", team)


@pytest.mark.parametrize("command", ["audit", "check"])
def test_keys_and_the_text_are_neither_written_over_nor_shown(
    team: pathlib.Path, text: pathlib.Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = text.rename(text.with_name("text.json"))
    original = team.read_bytes(), text.read_bytes()
    backup = team.with_name("backup.json")
    backup.write_bytes(team.read_bytes())
    for output, message in (
        (backup, "it holds a registry, which would be lost"),
        (team, "it is what is read"),
        (text, "it is what is read"),
    ):
        assert run(command, text, "-r", team, "-o", output) == 3
        assert f"{output}: {message}" in "".join(capsys.readouterr().err)
    assert (team.read_bytes(), text.read_bytes()) == original
    assert backup.read_bytes() == original[0]
    if command != "check":
        assert run(command, team, "-r", team, "-o", team.with_name("out.json")) == 3
        assert "got a registry, whose secrets a report would show" in capsys.readouterr().err
        assert not team.with_name("out.json").exists()
        wide = team.with_name("wide.txt")
        wide.write_bytes(team.read_text(encoding="utf-8").encode("utf-16"))
        assert run(command, wide, "-r", team, "-o", team.with_name("out.json")) == 3
        assert "wide.txt: got a registry, whose secrets" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["x.html", "x.prov.json", "x.pdf"])
def test_many_documents_go_to_no_file(
    team: pathlib.Path, text: pathlib.Path, run_iet: RunIet, name: str
) -> None:
    out = text.with_name(name)
    error = run_iet(3, "audit", text, team.with_name("other.txt"), "-r", team, "-o", out)
    assert f"{out}: got a file for many inputs, expected a folder" in error
    assert not out.exists()


def test_an_output_that_may_be_a_file_or_a_folder_is_asked_about(
    team: pathlib.Path, text: pathlib.Path, tmp_path: pathlib.Path, run_iet: RunIet
) -> None:
    new = tmp_path / "results"
    error = run_iet(3, "audit", text, "-r", team, "-o", new)
    assert "is it a file or a folder?" in error
    assert f"{new}.json" in error
    assert f"{new}/" in error
    assert not new.exists()


@pytest.mark.parametrize("name", ["x.txt", "x.md", "x.HTML", "x.docx", "x.parquet"])
def test_an_output_in_an_unknown_format_is_refused(
    team: pathlib.Path, text: pathlib.Path, tmp_path: pathlib.Path, run_iet: RunIet, name: str
) -> None:
    out = tmp_path / name
    refusal = run_iet(3, "audit", text, "-r", team, "-o", out)
    assert f"{out}: got an unknown suffix, expected one of .html" in refusal
    assert not out.exists()


def test_decoys_and_known_agents_reach_the_auditor(
    team: pathlib.Path, text: pathlib.Path, run_iet: RunIet
) -> None:
    data = json.loads(
        run_iet(0, "audit", text, "-r", team, "--decoys", "120", "--known", "planner", "--json")
    )
    registry = iet.Registry.load(team)
    same = iet.Auditor(registry, decoys=120, known_agents=["planner"]).audit(text.read_text(encoding="utf-8"))
    assert data["decoys"] == 120
    assert data["evidence"] == same.evidence
    assert "known_agents: got 'stranger'" in run_iet(3, "audit", text, "-r", team, "--known", "stranger")


def test_a_copied_text_is_read_as_it_was(
    team: pathlib.Path, text: pathlib.Path, tmp_path: pathlib.Path, run_iet: RunIet
) -> None:
    copy = tmp_path / "mail.txt"
    copy.write_text("\n".join(f"> {line}" for line in textwrap.wrap(text.read_text(), 72)))
    report = json.loads(run_iet(0, "audit", copy, "-r", team, "--as-copied", "--json"))
    assert report["restored"] == ["quoted", "wrapped"]
    assert report["text"] == copy.read_text()
    assert report["segments"][0]["agent"] == "critic"
    assert "without marks of quotation, the ends of wrapped lines" in run_iet(
        0, "audit", copy, "-r", team, "--as-copied"
    )
    assert "goes with one text" in run_iet(2, "audit", copy, "-r", team, "--as-copied", "-o", f"{tmp_path}/")
    assert "do not go with --as-copied" in run_iet(
        2, "audit", copy, "-r", team, "--as-copied", "--span", "0:5"
    )


def test_who_wrote_each_message_of_a_record(
    team: pathlib.Path, text: pathlib.Path, unmarked: pathlib.Path, tmp_path: pathlib.Path, run_iet: RunIet
) -> None:
    record = tmp_path / "chat.jsonl"
    texts = [text.read_text(), unmarked.read_text()]
    lines = [{"role": "user", "content": texts[1]}, {"role": "assistant", "name": "Bob", "content": texts[0]}]
    record.write_text("\n".join(map(json.dumps, lines)))
    report = json.loads(run_iet(0, "audit", record, "-r", team, "--messages", "--json"))
    assert report["text"] == f"{texts[1]}\n\n{texts[0]}"
    assert [segment["agent"] for segment in report["segments"]] == [None, "critic"]
    assert report["segments"][1]["char_start"] == len(texts[1]) + 2
    assert "expected JSON or JSON lines" in run_iet(3, "audit", text, "-r", team, "--messages")
    assert "does not go with --messages" in run_iet(
        2, "audit", record, "-r", team, "--messages", "--as-copied"
    )


def test_parts_of_a_text_are_read_or_left_out(
    team: pathlib.Path, text: pathlib.Path, run_iet: RunIet
) -> None:
    content, auditor = text.read_text(), iet.Auditor(Registry.load(team))
    half, end = len(content) // 2, len(content)
    for arguments, parts in (
        (["--skip", f"0:{half}"], {"skip": [(0, half)]}),
        (["--span", f"{half}:{end}"], {"spans": [(half, end)]}),
        (["--skip", "3:40", "--skip", "60:90"], {"skip": [(3, 40), (60, 90)]}),
    ):
        report = json.loads(run_iet(0, "audit", text, "-r", team, "--json", *arguments))
        assert report == json.loads(auditor.audit(content, **parts).to_json())
        assert any(segment["left_out"] for segment in report["segments"])
    assert run("audit", text, "-r", team, "--skip", f"0:{end}", "--fail-on", "unattributed") == 0
    assert "skip: got (0, 99999)" in run_iet(3, "audit", text, "-r", team, "--skip", "0:99999")
    assert "got '7-9', expected characters START:END" in run_iet(
        2, "audit", text, "-r", team, "--skip", "7-9"
    )


def test_a_registry_takes_a_second_profile_and_both_are_read(
    team: pathlib.Path,
    text: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    run_iet: RunIet,
) -> None:
    assert run("keys", "profile", "-r", team, "--tokenizer", "iet:demo", "--kappa", "1.5") == 0
    first, second = Registry.load(team).profiles
    assert f"profile {second}; iet keys add --profile {second} NAME" in capsys.readouterr().out
    assert Registry.load(team).get_profile(second).scheme.kappa == 1.5
    assert run("keys", "add", "-r", team, "--profile", second, "writer") == 0
    assert "--tokenizer, --vocab-size: got neither" in run_iet(3, "keys", "profile", "-r", team)
    report = json.loads(run_iet(0, "audit", text, "-r", team, "--json"))
    assert [profile["id"] for profile in report["profiles"]] == [first, second]
    assert {segment["agent"] for segment in report["segments"]} == {"critic"}
    moved = tmp_path / "elsewhere.json"
    (tmp_path / "tokenizer.json").rename(moved)
    assert run("audit", text, "-r", team) == 3
    capsys.readouterr()
    assert (
        json.loads(run_iet(0, "audit", text, "-r", team, "--tokenizer", f"{first}={moved}", "--json"))[
            "segments"
        ]
        == report["segments"]
    )
    assert run("audit", text, "-r", team, "--profile", first, "--tokenizer", moved) == 0
    capsys.readouterr()
    alone = run_iet(3, "audit", text, "-r", team, "--tokenizer", moved)
    assert f"--tokenizer: got '{moved}', expected PROFILE=PATH with one of ['{first}', '{second}']" in alone
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps([{"role": "assistant", "name": "critic", "content": text.read_text()}]))
    assert alone == run_iet(3, "check", trace, "-r", team, "--tokenizer", moved)
    checked = run_iet(0, "check", trace, "-r", team, "--tokenizer", f"{first}={moved}", "--json")
    assert json.loads(checked)["pieces"][0]["verdict"] == "confirmed"
    assert "expected PROFILE=PATH" in run_iet(
        3, "audit", text, "-r", team, "--tokenizer", moved, "--tokenizer", moved
    )


def test_fail_on_tells_by_the_exit_code(
    team: pathlib.Path, text: pathlib.Path, unmarked: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    short = tmp_path / "short.txt"
    short.write_text("\u200b")  # nothing that an agent could have written
    for file, attributed, unattributed in ((text, 1, 0), (unmarked, 0, 1), (short, 0, 0)):
        assert run("audit", file, "-r", team, "--fail-on", "attributed") == attributed
        assert run("audit", file, "-r", team, "--fail-on", "unattributed") == unattributed
        assert run("audit", file, "-r", team) == 0


def test_the_registry_may_come_from_the_environment(
    team: pathlib.Path, text: pathlib.Path, monkeypatch: pytest.MonkeyPatch, run_iet: RunIet
) -> None:
    assert "IET_REGISTRY" in run_iet(3, "audit", text)
    monkeypatch.setenv("IET_REGISTRY", str(team))
    assert run("audit", text) == 0
    assert run("keys", "list") == 0


class Standard:
    """A standard input of bytes."""

    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


def test_a_dash_is_the_standard_input(
    team: pathlib.Path, text: pathlib.Path, monkeypatch: pytest.MonkeyPatch, run_iet: RunIet
) -> None:
    monkeypatch.setattr(sys, "stdin", Standard(b"\xef\xbb\xbf" + text.read_bytes()))
    report = json.loads(run_iet(0, "audit", "-", "-r", team, "--json"))
    assert (report["invisible"], report["segments"][0]["agent"]) == (1, "critic")  # the byte-order mark
    monkeypatch.setattr(sys, "stdin", Standard(b"w1 \xff"))
    assert "standard input: byte 3 is 0xff, which is not UTF-8" in run_iet(3, "audit", "-", "-r", team)


def test_what_cannot_be_audited_fails_with_a_sentence_and_leaves_nothing(
    team: pathlib.Path, text: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    latin, utf16 = tmp_path / "latin.txt", tmp_path / "utf16.txt"
    latin.write_bytes("w1 naïve w2".encode("latin-1"))
    utf16.write_bytes("w1 w2".encode("utf-16-le"))
    (tmp_path / "empty.txt").write_bytes(b"")
    out = tmp_path / "report.json"
    for arguments, message in [
        ([latin, "-r", team], "latin.txt: byte 5 is 0xef, which is not UTF-8"),
        ([latin, "-r", team], "--encoding cp1252 (or convert it: iconv -f cp1252"),
        ([latin, "-r", team, "--encoding", "ascii"], "latin.txt: byte 5: not ascii"),
        ([latin, "-r", team, "--encoding", "morse"], "encoding: got 'morse'"),
        ([utf16, "-r", team], "utf16.txt: got zero bytes between letters"),
        ([tmp_path / "empty.txt", "-r", team], "empty.txt: got nothing, expected text"),
        ([tmp_path / "none.txt", "-r", team], "No such file"),
        ([tmp_path, "-r", team], "got a file for many inputs, expected a folder"),
        ([text, "-r", tmp_path / "none.json"], "none.json: cannot be read"),
        ([text, "-r", text], "expected 0600" if os.name == "posix" else "not JSON"),
        ([text, "-r", team, "--level", "2"], "level: got 2.0"),
        ([text, "-r", team, "--profile", "0123"], "profile '0123' is not in the registry"),
        ([text, "-r", team, "--tokenizer", tmp_path / "none"], "does not exist"),
        ([text, "-r", team, "--tokenizer", text], "is no tokenizer.json"),
    ]:
        assert run("audit", *arguments, "-o", out) == 3, arguments
        output = capsys.readouterr()
        assert message in output.err
        assert output.err.startswith("iet: ")
        assert output.err.count("\n") == 1
        assert output.out == ""
        assert not out.exists()


def test_damaged_registries_are_refused_and_none_of_their_content_is_shown(
    team: pathlib.Path, text: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    intact = team.read_text()
    secrets = [key.secret.hex() for key in Registry.load(team).keys("planner")]
    for damaged, message in [
        (intact[:-200], "not JSON from line"),
        (intact.replace('"critic"', '"critik"'), "its checksum does not fit"),
        (intact.replace("iet.registry/1", "iet.registry/9"), "format iet.registry/9"),
        (intact.replace("iet.registry/1", "iet.registry/0"), "format iet.registry/0, of a draft"),
        ("", "not JSON"),
        ("[]", "no registry file"),
    ]:
        team.write_text(damaged)
        assert run("audit", text, "-r", team) == 3
        output = capsys.readouterr()
        assert message in output.err
        assert not any(secret in output.err + output.out for secret in secrets)


@posix
def test_a_registry_that_others_can_read_is_refused(
    team: pathlib.Path, text: pathlib.Path, run_iet: RunIet, monkeypatch: pytest.MonkeyPatch
) -> None:
    team.chmod(0o640)
    assert "mode 0640, expected 0600; run: chmod 600" in run_iet(3, "audit", text, "-r", team)
    team.chmod(0o444)
    if os.geteuid() == 0 or not os.access(team, os.W_OK):
        monkeypatch.setenv("IET_SECRET_MOUNT", "1")
        assert run("audit", text, "-r", team) == 0


def test_another_tokenizer_is_refused(
    team: pathlib.Path, text: pathlib.Path, tokenizer: pathlib.Path, run_iet: RunIet
) -> None:
    tokenizer.write_text(tokenizer.read_text().replace('"w7"', '"x7"'))
    assert "tokenizer: got digest" in run_iet(3, "audit", text, "-r", team)
