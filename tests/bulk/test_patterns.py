"""Patterns as inputs: matches that are not files, and results among the matches."""

from __future__ import annotations

import os
import pathlib

import pytest

from iet.audit.auditor import Auditor
from iet.bulk.files import audit_files
from iet.bulk.sources import not_read_note
from iet.errors import InputError
from tests.support.conditions import posix


@pytest.mark.parametrize("pattern", ["**/*.jsonl", "**", "*/*.jsonl"])
def test_a_run_into_what_it_names_goes_on(auditor: Auditor, tmp_path: pathlib.Path, pattern: str) -> None:
    logs, out = tmp_path / "logs", tmp_path / "logs" / "out"
    (logs / "day").mkdir(parents=True)
    (logs / "day" / "a.jsonl").write_text('{"text": "w1 w2"}\n{broken\n')
    patterns = [str(logs / pattern)]
    summary = audit_files(auditor, patterns, out)
    assert (summary.documents, summary.quarantined) == (1, 1)
    (out / "documents-000000-000000.parquet").unlink()  # as a kill leaves it, the quarantine being there
    assert audit_files(auditor, patterns, out, resume=True) == summary
    rerun = audit_files(auditor, patterns, tmp_path / "elsewhere")
    assert (rerun.documents, set(rerun.not_read)) == (1, {"results of an audit"})


def test_inputs_that_came_and_went_are_named(auditor: Auditor, tmp_path: pathlib.Path) -> None:
    for i in range(6):
        (tmp_path / f"{i}.txt").write_text("w1 w2")
    patterns, out = [str(tmp_path / "*.txt")], tmp_path / "out"
    audit_files(auditor, patterns, out)
    for i in range(1, 6):
        (tmp_path / f"{i}.txt").unlink()
    (tmp_path / "x.txt").write_text("w1 w2")
    with pytest.raises(InputError) as caught:
        audit_files(auditor, patterns, out, resume=True)
    gone = ", ".join(repr(str(tmp_path / f"{i}.txt")) for i in (1, 2, 3))
    new = repr(str(tmp_path / "x.txt"))
    assert f"; inputs: were 6, are 2; gone: {gone} and 2 more; new: {new}" in str(caught.value)


def test_results_alone_are_nothing_to_read(auditor: Auditor, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "w1 w2"}\n{broken\n')
    audit_files(auditor, [str(tmp_path / "*.jsonl")], tmp_path / "out")
    with pytest.raises(InputError, match="1 file not read: results of an audit 1"):
        audit_files(auditor, [str(tmp_path / "out" / "*.jsonl")], tmp_path / "more")
    with pytest.raises(InputError, match="expected an empty one"):
        audit_files(auditor, [str(tmp_path / "*.jsonl")], tmp_path)


@posix
def test_what_is_no_file_is_counted(auditor: Auditor, tmp_path: pathlib.Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "in" / "out"
    (folder / "deeper").mkdir(parents=True)
    (folder / "a.txt").write_text("w1 w2")
    (folder / "gone.txt").symlink_to(folder / "nowhere")
    (folder / "link").symlink_to(folder / "deeper")
    os.mkfifo(folder / "pipe.txt")
    expected = {".txt (no file)": 2, "folders": 1, "links to folders": 1}
    with pytest.raises(InputError, match="4 files not read"):
        audit_files(auditor, [str(folder / "*")], out, strict=True)
    assert not out.exists()
    for resume in (False, True):
        summary = audit_files(auditor, [str(folder / "*")], out, resume=resume)
        assert (summary.documents, summary.not_read) == (1, expected)
    assert not_read_note({"folders": 1}) == "1 file not read: folders 1"
