"""Malicious documents, through the command line; the benchmark `reliability` has more of them."""

from __future__ import annotations

import os
import pathlib

import pytest

from benchmarks.security import documents
from iet.bulk import sources as bulk_sources
from iet.bulk.sources import expand
from iet.errors import InputError
from tests.support.conditions import posix


@posix
def test_a_folder_of_them(tmp_path: pathlib.Path) -> None:
    counts = documents.audited(tmp_path / "work", 1, 9 << 20)
    assert counts["faults"] == 0
    assert counts["documents read"] > 20_000
    assert counts["records in quarantine"] > 50


def test_texts_of_all_kinds_of_letters(tmp_path: pathlib.Path) -> None:
    counts = documents.by_the_thousand(tmp_path / "work", 1, 300)
    assert counts["faults"] == 0
    assert 0 < counts["not Unicode, in quarantine"] < 100


@posix
def test_pipes_and_dangling_links_do_not_block(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("a text")
    os.mkfifo(folder / "pipe.txt")
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "nowhere.txt").symlink_to("does not exist")
    sources, skipped = expand([folder], tmp_path / "out", bulk_sources.documents())
    assert [pathlib.Path(source.path).name for source in sources] == ["a.txt"]
    assert skipped == {".jsonl (no file)": 1, ".txt (no file)": 2}
    with pytest.raises(InputError, match=r"pipe\.txt: got a pipe, socket or device, expected a file"):
        expand([folder / "pipe.txt"], tmp_path / "out", bulk_sources.documents())


def test_unprintable_characters_are_detected() -> None:
    assert documents.printable("plain, \u00fcber, \u4f60\n")
    assert not any(map(documents.printable, ("\x1b[2J", "a\u202eb", "zero\u200bwidth", "\x07")))
