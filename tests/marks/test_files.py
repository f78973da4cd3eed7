"""Atomic writing of files."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import stat
from typing import Any

import pytest

from iet.errors import RegistryError
from iet.marks.files import kind_of_keys, write_file
from iet.marks.registry import Registry
from tests.support.conditions import posix


def test_write_replaces_the_whole_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / ("名" * 80)  # nearly as long as a name may be
    write_file(path, b"an older and longer content")
    write_file(path, lambda file: file.write(b"new"))
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == [path.name]


def test_failed_write_keeps_the_old_file(tmp_path: pathlib.Path) -> None:
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
def test_modes_and_write_only_folders(tmp_path: pathlib.Path) -> None:
    umask = os.umask(0o027)
    try:
        write_file(tmp_path / "shared", b"")
        write_file(tmp_path / "private", b"", mode=0o600)
        tmp_path.chmod(0o300)
        write_file(tmp_path / "dropped", b"")
    finally:
        os.umask(umask)
        tmp_path.chmod(0o700)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("shared", "private", "dropped")]
    assert modes == [0o640, 0o600, 0o640]


@posix
def test_links_and_modes_are_kept(tmp_path: pathlib.Path) -> None:
    file, link, private = (tmp_path / name for name in ("report.json", "link.json", "private.json"))
    file.write_bytes(b"old")
    file.chmod(0o640)
    link.symlink_to(file)
    write_file(link, b"new")
    assert (link.is_symlink(), file.read_bytes()) == (True, b"new")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    private.write_bytes(b"old")
    private.chmod(0o644)
    write_file(private, b"new", mode=0o600)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600


@posix
def test_pipes_are_written_in_place(tmp_path: pathlib.Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_bytes)
        write_file(pipe, b"report")
        assert read.result() == b"report"
    assert pipe.is_fifo()
    with pytest.raises(OSError, match="no file of a disk"):
        write_file(pipe, b"registry", check=lambda: None)
    assert pipe.is_fifo()


def test_rejects_overwriting_keys(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "team.json"
    Registry.create(path, vocab_size=500).add("planner")
    key = tmp_path / "key.pem"
    key.write_text("\n-----BEGIN EC PRIVATE KEY-----\n")
    for file, kind in ((path, "a registry"), (key, "a private key")):
        content = file.read_bytes()
        assert kind_of_keys(content) == kind
        with pytest.raises(RegistryError, match=f"{file.name}: it holds {kind}, which would be lost"):
            write_file(file, b"report")
        assert file.read_bytes() == content
    quoted = json.dumps({"text": path.read_text(encoding="utf-8")}).encode()  # as in a trace, say
    quotation = b'a "format": "iet.registry/1"'
    for harmless in (b"", b'{"schema": "iet.report/1"}', b"-----BEGIN PUBLIC KEY-----", quotation, quoted):
        assert kind_of_keys(harmless) is None
    write_file(path, b"new", check=lambda: None)


@pytest.mark.parametrize("prefix", [b"", b"\xef\xbb\xbf", b"\n \t\r\n"])
@pytest.mark.parametrize("options", [{}, {"sort_keys": True, "indent": 4}, {"separators": (",", ":")}])
def test_registry_is_recognised_in_any_json_layout(
    tmp_path: pathlib.Path, prefix: bytes, options: dict[str, Any]
) -> None:
    registry = Registry.create(tmp_path / "team.json", vocab_size=500)
    registry.add_many([f"agent {number}" for number in range(20)])
    path = tmp_path / "copy.json"
    path.write_bytes(prefix + json.dumps(json.loads(registry.dumps()), **options).encode())
    assert kind_of_keys(path.read_bytes()) == "a registry"
    with pytest.raises(RegistryError, match="it holds a registry"):
        write_file(path, b"report")
    path.write_bytes(prefix + b"-----BEGIN PRIVATE KEY-----")
    assert kind_of_keys(path.read_bytes()) == "a private key"
