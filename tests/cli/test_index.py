"""`iet index`, and `iet audit --published`."""

from __future__ import annotations

import json
import pathlib

import pytest

from iet.marks.registry import Registry
from tests.support.commands import RunIet, run
from tests.support.texts import spell, write


def test_text_is_found_until_it_was_published(
    team: pathlib.Path, text: pathlib.Path, tmp_path: pathlib.Path, run_iet: RunIet
) -> None:
    index, page = tmp_path / "out.idx", tmp_path / "page.txt"
    page.write_text(spell([9]) + " " + text.read_text())
    assert "critic wrote" in run_iet(0, "audit", page, "-r", team)
    output = run_iet(0, "index", "add", index, text, "--agent", "critic", "-r", team)
    assert "critic: 1 texts added; 150 pairs are new" in output
    assert "1 existed" in run_iet(0, "index", "add", index, text, "--agent", "critic", "-r", team)
    assert "No registered agent was found" in run_iet(0, "audit", page, "-r", team, "--published", index)
    assert "critic wrote" in run_iet(0, "audit", text, "-r", team, "--published", index)
    data = json.loads(run_iet(0, "audit", page, "-r", team, "--published", index, "--json"))
    assert data["published"] == 150
    assert "critic: 1 texts, first to publish 150 pairs" in run_iet(0, "index", "show", index, "-r", team)


def test_lines_of_json_are_texts_each(team: pathlib.Path, tmp_path: pathlib.Path, run_iet: RunIet) -> None:
    registry, lines = Registry.load(team), tmp_path / "texts.jsonl"
    texts = [spell(write(registry, [("planner", 40)], i, ids=range(1, 400))) for i in range(5)]
    lines.write_text("".join(json.dumps({"text": text}) + "\n\n" for text in texts))
    index = tmp_path / "out.idx"
    add = ["index", "add", index, lines, "--agent", "planner", "-r", team]
    assert "planner: 5 texts added; " in run_iet(0, *add)
    lines.write_text('{"text": "w1 w2"}\n{"words": 3}\n')
    assert run(*add) == 3


def test_what_is_refused(
    team: pathlib.Path, text: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = tmp_path / "out.idx"
    for arguments, code, message in (
        (["index", "add", index, text, "--agent", "nobody", "-r", team], 3, "nobody"),
        (["index", "add", index, tmp_path / "gone.txt", "--agent", "critic", "-r", team], 3, "gone.txt"),
        (["index", "add", index, team, "--agent", "critic", "-r", team], 3, "expected text"),
        (["index", "add", index, text, "--agent", "critic", "-r", team, "--tokenizer", text], 3, "tokenizer"),
        (["index", "add", text, text, "--agent", "critic", "-r", team], 3, "cannot be written"),
        (["index", "show", tmp_path / "gone.idx", "-r", team], 3, "no index of published text"),
        (["audit", text, "-r", team, "--published", tmp_path], 3, "no index of published text"),
        (["index", "add", index, text, "-r", team], 2, "--agent"),
        (["audit", text, "--scheme", "waterfall", "--published", index], 2, "--published"),
    ):
        assert run(*arguments) == code
        assert message in capsys.readouterr().err
        assert not index.exists()
    lines = tmp_path / "lines.jsonl"
    for line in (b"{", b"[]", b"3", b'{"text": 3}', b"[" * 100_000, b'{"text": ' + b"9" * 5000 + b"}"):
        lines.write_bytes(b'{"text": "w1"}\n' + line)
        assert run("index", "add", index, lines, "--agent", "critic", "-r", team) == 3
        assert "lines.jsonl: line 2 is no JSON object with a text" in capsys.readouterr().err
    lines.write_bytes(b'\xef\xbb\xbf{"text": "w1 w2 w3"}\n')
    assert run("index", "add", index, lines, "--agent", "critic", "-r", team) == 0
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"caf\xe9")
    assert run("index", "add", index, latin, "--agent", "critic", "-r", team) == 3
    assert "byte 3 is 0xe9" in capsys.readouterr().err


def test_a_text_that_is_no_unicode_is_named_by_its_line(
    team: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index, lines = tmp_path / "out.idx", tmp_path / "lines.jsonl"
    lines.write_text('{"text": "w1"}\n\n{"text": "w2 \\udc00"}\n')
    assert run("index", "add", index, lines, "--agent", "critic", "-r", team) == 3
    assert (
        "lines.jsonl: line 3: character 3 of its text is the lone surrogate U+DC00" in capsys.readouterr().err
    )
