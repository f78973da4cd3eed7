"""Pages and CSV of many documents: `iet audit` with --csv and --pages."""

from __future__ import annotations

import csv
import json
import pathlib
import re

import pytest

from iet.marks.registry import Registry
from tests.support.commands import run

pytestmark = pytest.mark.usefixtures("no_documents")


@pytest.fixture
def folder(tmp_path: pathlib.Path, text: pathlib.Path, unmarked: pathlib.Path) -> pathlib.Path:
    papers = tmp_path / "papers"
    (papers / "deep").mkdir(parents=True)
    (papers / "a.txt").write_bytes(text.read_bytes())
    (papers / "deep" / "b.md").write_bytes(unmarked.read_bytes())
    (papers / "c.txt").write_bytes(b"%PDF-1.4 text only")
    (papers / "d.pdf").write_bytes(b"%PDF-1.4 text only")
    return papers


def links(page: pathlib.Path) -> list[str]:
    return re.findall(r'<a href="([^"]*)">', page.read_text(encoding="utf-8"))


def test_a_run_is_also_csv_and_pages(
    team: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    records = [(folder / "a.txt").read_text(), (folder / "deep" / "b.md").read_text()]
    lines = [json.dumps({"text": record, "id": f"=cmd{i}<b>"}) for i, record in enumerate(records)]
    (tmp_path / "l.jsonl").write_text("\n".join(lines))
    command = ["audit", tmp_path / "l.jsonl", "-r", team, "-o", out, "--column", "id=id", "--csv", "--pages"]
    assert run(*command, "--shard", "1/2") == 3
    assert "csv, pages: got shard 1/2" in capsys.readouterr().err
    assert run(*command) == 0
    with open(out / "documents.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["id"], row["found"], row["row"]) for row in rows] == [
        ("'=cmd0<b>", "critic", "0"),  # no formula
        ("'=cmd1<b>", "", "1"),
    ]
    with open(out / "segments.csv", newline="", encoding="utf-8") as file:
        segments = list(csv.DictReader(file))
    assert sum(int(row["segments"]) for row in rows) == len(segments)
    assert links(out / "index.html") == ["pages/000001.html"]  # of the finding
    index = (out / "index.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;" in index
    assert "<b>" not in index
    page = (out / "pages" / "000001.html").read_text(encoding="utf-8")
    assert f"{tmp_path / 'l.jsonl'}, row 0" in page
    assert re.search(r"read [-\d]+ [:\d]+ UTC with team.json", page)
    assert re.search(r"read [-\d]+ [:\d]+ UTC with team.json", index)


def test_a_run_over_texts_lists_what_was_not_read(
    team: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "out"
    command = ["audit", folder, "-r", team, "-o", out, "--pages"]
    assert run(*command) == 0
    index = (out / "index.html").read_text(encoding="utf-8")
    assert index.index("a.txt") < index.index("c.txt") < index.index("b.md")  # found, not read, not found
    assert "got a PDF file" in index
    (out / "pages" / "000009.html").write_text("of another run")
    assert run(*command, "--resume") == 0
    assert [path.name for path in (out / "pages").iterdir()] == ["000001.html"]


def test_pages_and_csv_of_other_tables_do_not_stay(
    team: pathlib.Path, text: pathlib.Path, unmarked: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    texts, out = tmp_path / "in", tmp_path / "out"
    texts.mkdir()
    for name in ("a.txt", "b.txt"):
        (texts / name).write_text(text.read_text())
    command = ["audit", texts, "-r", team, "-o", out, "--chunk-rows", "1"]
    assert run(*command, "--csv", "--pages") == 0
    (out / "pages" / "note.txt").write_text("of somebody else")
    files = {"documents.csv", "segments.csv", "index.html"}
    assert run(*command, "--resume") == 0  # nothing has changed
    assert files <= {path.name for path in out.iterdir()}
    assert len(list((out / "pages").iterdir())) == 3
    (texts / "b.txt").write_text(unmarked.read_text())
    assert run(*command, "--resume", "--reread") == 0
    assert not files & {path.name for path in out.iterdir()}
    assert [path.name for path in (out / "pages").iterdir()] == ["note.txt"]
    assert run(*command, "--resume", "--csv", "--pages") == 0
    assert links(out / "index.html") == ["pages/000001.html"]
    (out / "pages" / "note.txt").unlink()
    (texts / "b.txt").write_text("")
    assert run(*command, "--resume", "--reread", "--csv") == 0
    assert {path.name for path in out.iterdir()} & {*files, "pages"} == {"documents.csv", "segments.csv"}


def test_pages_of_token_ids(team: pathlib.Path, text: pathlib.Path, tmp_path: pathlib.Path) -> None:
    ids = Registry.load(team).open_tokenizer().encode(text.read_text()).token_ids.tolist()
    (tmp_path / "a.jsonl").write_text(json.dumps({"token_ids": ids}) + "\n")
    assert run("audit", tmp_path / "a.jsonl", "-r", team, "-o", tmp_path / "out", "--pages") == 0
    page = (tmp_path / "out" / "pages" / "000001.html").read_text(encoding="utf-8")
    assert "Only token ids were audited" in page
