"""Reports of many documents: `iet report` of several files, `iet audit` with --csv and --pages."""

from __future__ import annotations

import contextlib
import csv
import json
import pathlib
import re
from typing import Any

import pytest

import iet
from iet.cli import report
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


def test_report_takes_several_files(
    team: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run("report", folder, tmp_path / "papers" / "..", "-r", team, "-o", out) == 3  # a file twice
    assert "got it twice" in capsys.readouterr().err
    assert run("report", folder, "-r", team, "-o", out) == 0
    output = capsys.readouterr()
    assert output.out == f"{out / 'index.html'}\n"
    assert "1 file not read: .pdf 1" in output.err
    assert "iet: 1 of 3 texts could not be read: documents.csv says why" in output.err
    index = (out / "index.html").read_text(encoding="utf-8")
    assert links(out / "index.html") == ["pages/000001.html", "pages/000003.html"]
    assert "got a PDF file, expected text" in index
    assert "1 file not read: .pdf 1" in index
    auditor = iet.Auditor(Registry.load(team))
    for name, link in (("a.txt", "pages/000001.html"), ("deep/b.md", "pages/000003.html")):
        page, path = (out / link).read_text(encoding="utf-8"), folder / name
        read = re.search(r"read [-\d]+ [:\d]+ UTC with team.json", page)
        assert read is not None
        assert read[0] in index
        assert page == auditor.audit(path.read_text()).to_html(about=[str(path), read[0]]) + "\n"
    with open(out / "documents.csv", newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert [(pathlib.Path(row["document"]).name, row["found"]) for row in rows] == [
        ("a.txt", "critic"),
        ("c.txt", ""),
        ("b.md", ""),
    ]
    report = auditor.audit((folder / "a.txt").read_text())
    assert float(rows[0]["log_p"]) == report.log_p
    assert run("report", folder, "-r", team, "-o", out) == 3
    assert "expected an empty one" in capsys.readouterr().err


def test_a_report_of_texts_none_of_which_can_be_read_says_so(
    team: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes("ü".encode("latin-1"))
    assert run("report", tmp_path / "a.txt", tmp_path / "b.txt", "-r", team, "-o", tmp_path / "out") == 3
    assert "iet: 2 of 2 texts could not be read: documents.csv says why" in capsys.readouterr().err
    assert (tmp_path / "out" / "documents.csv").is_file()


@pytest.mark.parametrize("how", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_report_can_be_asked_for_again(
    team: pathlib.Path,
    folder: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    how: type[BaseException],
) -> None:
    read, out = report.read_text, tmp_path / "out"

    def interrupted(path: str, **options: Any) -> str:
        if path.endswith("b.md"):
            assert [path.name for path in out.rglob("*.html")] == ["000001.html"]
            raise how
        return read(path, **options)

    command = ("report", folder, "-r", team, "-o", out)
    with monkeypatch.context() as patch:
        patch.setattr(report, "read_text", interrupted)
        with contextlib.suppress(KeyboardInterrupt, MemoryError):
            assert run(*command) != 0
    assert list(out.iterdir()) == []
    (out / ".pages-unfinished").mkdir()  # as one that is killed leaves it
    (out / ".pages-unfinished" / "000009.html").touch()
    assert run(*command) == 0
    assert sorted(path.name for path in out.iterdir()) == ["documents.csv", "index.html", "pages"]
    assert len(list((out / "pages").iterdir())) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        *(["-o", "x.html"], ["-o", "out", "-o", "x"], ["-o", "out", "--name", "n"], ["-o", "out", "-"]),
        *(["-o", "out", "--messages"], ["-o", "out", "--no-text"]),
    ],
)
def test_what_goes_with_one_text_alone(
    team: pathlib.Path, folder: pathlib.Path, capsys: pytest.CaptureFixture[str], wrong: list[str]
) -> None:
    assert run("report", "-r", team, *wrong, folder, folder / "a.txt") == 3
    assert "expected one folder: -o OUT/" in capsys.readouterr().err


@pytest.mark.parametrize("way", ["a pattern", "an output with a slash", "an output that is there"])
def test_a_pattern_or_a_folder_for_the_output_is_enough(
    team: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path, way: str
) -> None:
    out = tmp_path / "out"
    if way == "an output that is there":
        out.mkdir()
    texts = folder / ("a*.txt" if way == "a pattern" else "a.txt")
    assert run("report", texts, "-r", team, "-o", f"{out}/" if way == "an output with a slash" else out) == 0
    assert links(out / "index.html") == ["pages/000001.html"]


def test_a_folder_that_holds_anything_is_refused_before_any_work(
    team: pathlib.Path,
    folder: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(iet.Auditor, "audit")
    out = tmp_path / "site"
    out.mkdir()
    (out / "index.html").write_text("a page of somebody")
    for folder_out in (out, folder / "a.txt"):
        assert run("report", folder, "-r", team, "-o", f"{folder_out}/") == 3
    said = capsys.readouterr().err
    assert f"{out}: got a folder with ['index.html'], expected an empty one" in said
    assert "a.txt: cannot be read (Not a directory), expected an empty folder" in said
    assert [path.name for path in out.iterdir()] == ["index.html"]
    assert (out / "index.html").read_text() == "a page of somebody"


def test_tables_are_not_texts(
    team: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "a"}\n')
    assert run("report", tmp_path / "in", "-r", team, "-o", tmp_path / "out") == 3
    assert "iet audit reads it: -o OUT/ --pages" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_run_is_also_csv_and_pages(
    team: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    records = [(folder / "a.txt").read_text(), (folder / "deep" / "b.md").read_text()]
    lines = [json.dumps({"text": record, "id": f"=cmd{i}<b>"}) for i, record in enumerate(records)]
    (tmp_path / "l.jsonl").write_text("\n".join(lines))
    command = ["audit", tmp_path / "l.jsonl", "-r", team, "-o", out, "--id-column", "id", "--csv", "--pages"]
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
