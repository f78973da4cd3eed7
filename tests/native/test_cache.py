"""The cache of compiled loops: read only if it is ours and whole, else compiled anew, with one warning."""

from __future__ import annotations

import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from iet.native import cache, jit
from tests.support.conditions import INTERPRETED, posix

pytestmark = pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")


def increment(x: int) -> int:
    return x + 1


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The folder in which `increment` is kept, once it was compiled."""
    monkeypatch.setattr(jit.config, "CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setattr(cache.Cache, "_told", False)
    assert used() == (0, 1, [])
    assert used() == (1, 0, [])
    [found] = (tmp_path / "kept").iterdir()
    assert str(found) in cache.folders
    return found


def used() -> tuple[int, int, list[str]]:
    """Hits and misses of the loop in what is as good as a new process, and what it warned of."""
    loop: Any = jit.njit(increment)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert loop(1) == 2
    hits, misses = (sum(count.values()) for count in (loop.stats.cache_hits, loop.stats.cache_misses))
    return hits, misses, [str(warning.message) for warning in said]


class Planted:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, path: pathlib.Path):
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.path),)


def flipped(data: bytes) -> Iterator[bytes]:
    for place in (0, 20, len(data) // 2, len(data) - 40, len(data) - 1):
        changed = bytearray(data)
        changed[place] ^= 1
        yield bytes(changed)


def damages(data: bytes) -> Iterator[bytes]:
    yield from flipped(data)
    yield from (data[:-32], data[: len(data) // 2], b"", b"\x00" * len(data), data + b".")


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_a_damaged_file_is_written_anew_with_one_warning(folder: pathlib.Path, suffix: str) -> None:
    [file] = folder.glob(f"*{suffix}")
    whole = file.read_bytes()
    for number, data in enumerate(damages(whole)):
        file.write_bytes(data)
        hits, misses, said = used()
        assert (hits, misses) == (0, 1)
        assert said == [f"cache of compiled loops: {file}: damaged; compiled anew"] * (number == 0)
        assert used() == (1, 0, [])
        if os.name == "posix":
            assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
        assert len(list(folder.iterdir())) == 2


def test_any_flipped_byte_is_found(folder: pathlib.Path) -> None:
    for file in folder.iterdir():
        data = file.read_bytes()
        for place in range(0, len(data), 1 if len(data) < 10_000 else 13):
            changed = bytearray(data)
            changed[place] ^= 1 << place % 8
            file.write_bytes(changed)
            with pytest.raises(OSError, match="damaged"):
                cache._check(str(file))


@posix
@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_a_file_that_others_can_write_is_not_loaded(
    folder: pathlib.Path, tmp_path: pathlib.Path, suffix: str
) -> None:
    [file] = folder.glob(f"*{suffix}")
    with open(file, "wb") as opened:
        hashing = cache._Hashing(opened)
        hashing.write(pickle.dumps(Planted(tmp_path / "ran")))
        opened.write(hashing.digest.digest())
    file.chmod(0o660)
    hits, misses, [said] = used()
    assert (hits, misses) == (0, 1)
    assert said == f"cache of compiled loops: {file}: mode 0660, others can write it; compiled anew"
    assert not (tmp_path / "ran").exists()
    assert file.stat().st_mode & 0o777 == 0o600
    assert used() == (1, 0, [])


@posix
def test_a_folder_that_others_can_write_is_passed_by(
    folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "package" / "loops.py"
    source.parent.mkdir()
    source.write_text("def loop(x):\n    return x + 2\n")
    scope: dict[str, Any] = {}
    exec(compile(source.read_text(), str(source), "exec"), scope)
    monkeypatch.setattr(jit.config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    shared = source.parent / "__pycache__"
    for mode, kept_in in ((0o755, shared), (0o775, tmp_path / "home"), (0o757, tmp_path / "home")):
        shared.mkdir(exist_ok=True)
        shared.chmod(mode)
        loop: Any = jit.njit(scope["loop"])
        assert loop(1) == 3
        assert pathlib.Path(loop.stats.cache_path).is_relative_to(kept_in)
        assert pathlib.Path(loop.stats.cache_path).stat().st_mode & 0o022 == 0
        assert (str(shared) in cache.refused) == (kept_in != shared)
    assert cache.refused.pop(str(shared)) == "mode 0757, others can write it"
    cache.folders.difference_update({str(shared), loop.stats.cache_path})


@posix
def test_what_belongs_to_others_is_theirs_to_write() -> None:
    def status(mode: int, user: int) -> os.stat_result:
        return os.stat_result((mode, 1, 1, 1, user, 0, 0, 0, 0, 0))

    ours = os.geteuid()
    assert cache.writable_by_others(status(0o100644, ours)) is None
    assert cache.writable_by_others(status(0o100644, 0)) is None
    assert cache.writable_by_others(status(0o100600, ours + 1)) == f"belongs to user {ours + 1}"
    assert cache.writable_by_others(status(0o100620, ours)) == "mode 0620, others can write it"


def test_a_full_disk_is_no_failure(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(folder)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("iet.native.cache.os.replace", full)
    hits, misses, [said] = used()
    assert (hits, misses) == (0, 1)
    assert said.endswith("OSError: [Errno 28] No space left on device; not kept")
    assert os.listdir(folder) == []


def test_truncated_files_need_not_be_deleted_by_hand(tmp_path: pathlib.Path) -> None:
    script = "from iet.decoding.windows import span_sums; print(span_sums([[0.5]], [0, 1]))"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_OPT": "0"}
    said = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        said.append(done.stderr)
        files = list(tmp_path.rglob("*.nbi"))
        assert files
        if len(said) == 1:
            for file in files:
                os.truncate(file, 100)
    assert said[0] == said[2] == ""
    assert len(said[1].splitlines()) == 1
    assert said[1].startswith("iet:0: RuntimeWarning: cache of compiled loops: ")
    assert said[1].endswith("damaged; compiled anew\n")
