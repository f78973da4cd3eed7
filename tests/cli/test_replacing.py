"""No output overwrites an input file, for any option."""

from __future__ import annotations

import json
import pathlib
import shutil

import pytest

from tests.support.commands import RunIet


@pytest.fixture
def keys(tmp_path: pathlib.Path) -> pathlib.Path:
    """Keys of an engine, in a file that only the option identifies as keys."""
    path = tmp_path / "keys.json"
    path.write_text('{"planner": 42, "critic": 4711}')
    path.chmod(0o600)
    return path


def test_keys_and_tokenizer_of_an_engine(
    keys: pathlib.Path, text: pathlib.Path, tokenizer: pathlib.Path, run_iet: RunIet
) -> None:
    original = keys.read_bytes(), tokenizer.read_bytes()
    arguments = ["audit", text, "--scheme", "vllm-gumbel", "--keys", keys, "--tokenizer"]
    for source, output in ((tokenizer, keys), (tokenizer, tokenizer), (tokenizer.parent, tokenizer)):
        assert f"{output}: it is what is read, and would be lost" in run_iet(
            3, *arguments, source, "-o", output
        )
    assert (keys.read_bytes(), tokenizer.read_bytes()) == original


def test_files_beside_a_registry(
    team: pathlib.Path,
    tokenizer: pathlib.Path,
    text: pathlib.Path,
    tmp_path: pathlib.Path,
    run_iet: RunIet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sessions, trace = tmp_path / "sessions.json", tmp_path / "trace.json"
    sessions.write_text("run-7\n")
    trace.write_text(json.dumps([{"role": "assistant", "name": "planner", "content": "w1 w2"}]))
    second = shutil.copytree(tokenizer.parent, tmp_path / "other") / "tokenizer.json"
    profile = next(iter(json.loads(team.read_text(encoding="utf-8"))["profiles"]))
    files = {path: path.read_bytes() for path in (sessions, tokenizer, second)}
    monkeypatch.setenv("IET_REGISTRY", str(team))
    for arguments, output in (
        (["audit", text, "--sessions", sessions], sessions),
        (["audit", text, "--tokenizer", f"{profile}={second}"], second),
        (["audit", text], tokenizer),  # which the registry names
        (["check", trace, "--sessions", sessions], sessions),
        (["check", trace, "--tokenizer", second], second),
        (["keys", "open", "planner"], tokenizer),
    ):
        assert f"{output}: it is what is read, and would be lost" in run_iet(3, *arguments, "-o", output)
    assert "it is what is read" in run_iet(3, "keys", "open", "planner", "-o", team)
    assert {path: path.read_bytes() for path in files} == files


def test_an_empty_path_is_rejected(team: pathlib.Path, text: pathlib.Path, run_iet: RunIet) -> None:
    for texts in ([text], [text, text]):
        refusal = run_iet(2, "audit", *texts, "-r", team, "-o", "")
        assert "argument -o/--output" in refusal
        assert "got '', expected a path" in refusal


def test_a_public_key_that_goes_with_a_signer(tmp_path: pathlib.Path, run_iet: RunIet) -> None:
    report, public = tmp_path / "r.dsse.json", tmp_path / "public.pem"
    for path in (report, public):
        path.write_text("kept")
    refusal = run_iet(3, "sign", report, "--key", "hv:auditor", "--public", public, "-o", public)
    assert f"{public}: it is what is read" in refusal
    assert public.read_text() == "kept"
