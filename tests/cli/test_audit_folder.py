"""`iet audit` of a folder with text files and other files."""

from __future__ import annotations

import json
import pathlib

import pytest

from tests.support.commands import run

pytestmark = pytest.mark.usefixtures("no_documents")


@pytest.fixture
def folder(tmp_path: pathlib.Path, text: pathlib.Path) -> pathlib.Path:
    """Five texts (one in UTF-16), a PDF named .txt, a hidden file, and six files of other kinds."""
    papers, data = tmp_path / "papers", text.read_bytes()
    papers.mkdir()
    for name in ("a.txt", "b.md", "c.MARKDOWN", "page.html", "d.docx", "e.pdf", "f.csv", "g.json", "README"):
        (papers / name).write_bytes(data)
    (papers / "h.txt").write_bytes(data.decode().encode("utf-16"))
    (papers / "i.txt").write_bytes(b"%PDF-1.4 text only")
    (papers / "j.txt").write_bytes("it’s".encode("cp1252"))
    (papers / ".hidden").write_bytes(data)
    return papers


def test_what_is_not_read_is_said(
    team: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["audit", folder, "-r", team, "-o", out]
    assert run(*command, "--strict") == 3
    message = (
        "7 files not read: without a suffix 1, .csv 1, .docx 1, .html 1, .json 1, .pdf 1, hidden 1; convert"
    )
    assert message in capsys.readouterr().err
    assert not out.exists()
    assert run(*command) == 0
    output = capsys.readouterr()
    assert message in output.err
    assert "7 files not read" in output.out
    assert "pandoc" in output.err
    kinds = {"": 1, ".csv": 1, ".docx": 1, ".html": 1, ".json": 1, ".pdf": 1, "hidden": 1}
    assert json.loads((out / "run.json").read_text())["not_read"] == kinds
    summary = json.loads((out / "shard-1-of-1.json").read_text())
    assert (summary["documents"], summary["quarantined"], summary["not_read"]) == (4, 2, kinds)
    assert summary["attributed"] == 4
    bad = [json.loads(line) for path in out.glob("quarantine-*") for line in path.read_text().splitlines()]
    reasons = {pathlib.Path(record["file"]).name: record["reason"] for record in bad}
    assert "got a PDF file, expected text; convert it: pdftotext" in reasons["i.txt"]
    assert "byte 2 is 0x92, which is not UTF-8" in reasons["j.txt"]
    (folder / "another.xlsx").write_bytes(b"PK\x03\x04")  # a run goes on whatever else lies there
    assert run(*command, "--resume") == 0
    assert "8 files not read" in capsys.readouterr().err


def test_hidden_files_are_not_read_and_count(
    team: pathlib.Path, text: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also those in hidden folders, but not those of the run itself, which goes on under --strict."""
    inputs = tmp_path / "in"
    (inputs / ".config" / "deep").mkdir(parents=True)
    for name in ("a.txt", "_d.txt", ".b.txt", ".config/c.txt", ".config/deep/e.bin"):
        (inputs / name).write_bytes(text.read_bytes())
    (inputs / ".link").symlink_to(tmp_path)
    command = ["audit", inputs, "-r", team]
    assert run(*command, "-o", tmp_path / "out", "--strict") == 3
    assert capsys.readouterr().err == "iet: 4 files not read: hidden 4\n"
    assert run(*command, "-o", tmp_path / "out", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["documents"], summary["not_read"]) == (2, {"hidden": 4})
    for name in (".b.txt", ".config/c.txt", ".config/deep/e.bin", ".link"):
        (inputs / name).unlink()
    for more in ([], ["--resume"]):
        assert run(*command, "-o", inputs / ".config" / "out", "--strict", *more) == 0


def test_an_encoding_is_that_of_all_texts(
    team: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["audit", folder / "j.txt", folder / "a.txt", "-r", team, "-o", tmp_path / "out"]
    assert run(*command, "--encoding", "cp1252", "--json", "--strict") == 0
    assert json.loads(capsys.readouterr().out)["quarantined"] == 0
    assert run(*command, "--resume") == 3
    assert 'encoding: was "cp1252", is null' in capsys.readouterr().err
    assert run("audit", folder / "j.txt", "-r", team, "--encoding", "cp1252") == 0


def test_a_folder_without_any_text_says_what_lies_there(
    team: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.pdf").write_bytes(b"%PDF-")
    assert run("audit", tmp_path / "in", "-r", team, "-o", tmp_path / "out") == 3
    assert "expected some" in (message := capsys.readouterr().err)
    assert "1 file not read: .pdf 1" in message
