"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import pathlib
import stat

import pytest

from iet.marks.files import write_file
from tests.support.conditions import posix


def test_a_file_appears_and_is_replaced_as_a_whole(tmp_path: pathlib.Path) -> None:
    path = tmp_path / ("名" * 80)  # nearly as long as a name may be
    write_file(path, b"an older and longer content")
    write_file(path, lambda file: file.write(b"new"))
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == [path.name]


def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(b"old")

    def refuse(*_: object) -> None:
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        write_file(path, refuse)
    with pytest.raises(ValueError, match="refused"):
        write_file(path, b"new", check=refuse)
    with pytest.raises(FileNotFoundError):
        write_file(tmp_path / "none" / "report.json", b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == [path.name]


@posix
def test_modes_and_folders_for_writing_only(tmp_path: pathlib.Path) -> None:
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "shared", b"")
        write_file(tmp_path / "private", b"", mode=0o600)
        tmp_path.chmod(0o300)
        write_file(tmp_path / "dropped", b"")
    finally:
        os.umask(before)
        tmp_path.chmod(0o700)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("shared", "private", "dropped")]
    assert modes == [0o640, 0o600, 0o640]
