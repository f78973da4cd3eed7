"""Numba's cache is used only in a folder that no other user can write."""

from __future__ import annotations

import os
import pathlib
import warnings
from typing import Any

import pytest

from iet.decoding import jit
from tests.support.conditions import posix


def increment(x: int) -> int:
    return x + 1


def _compiled(monkeypatch: pytest.MonkeyPatch, folder: object) -> tuple[Any, list[str]]:
    """Compile `increment` with this cache folder; return it, and the warnings."""
    monkeypatch.setattr(jit._config, "CACHE_DIR", str(folder))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop = jit.njit(increment)
    assert loop(1) == 2
    assert str(folder) == jit._config.CACHE_DIR
    return loop, [str(warning.message) for warning in caught]


def test_a_second_process_compiles_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for hits in (0, 1):
        loop, warnings_ = _compiled(monkeypatch, tmp_path / "cache")
        assert sum(loop.stats.cache_hits.values()) == hits
        assert warnings_ == []
    assert pathlib.Path(loop.stats.cache_path).is_relative_to(tmp_path / "cache")


@posix
def test_the_default_folder_is_private(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    loop, _ = _compiled(monkeypatch, "")
    folder = tmp_path / "iet" / "numba"
    assert pathlib.Path(loop.stats.cache_path).is_relative_to(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    # Whatever the umask made of a folder below: no other user can enter it.
    os.chmod(loop.stats.cache_path, 0o775)
    assert _compiled(monkeypatch, "")[0].stats.cache_path is not None


@posix
@pytest.mark.parametrize(("mode", "below"), [(0o775, 0o700), (0o757, 0o700), (0o755, 0o775)])
def test_a_folder_writable_by_other_users_is_not_used(
    mode: int, below: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = _compiled(monkeypatch, tmp_path / "cache")[0].stats.cache_path
    os.chmod(cached, below)
    os.chmod(tmp_path / "cache", mode)
    loop, warnings_ = _compiled(monkeypatch, tmp_path / "cache")
    assert loop.stats.cache_path is None
    assert warnings_ == [f"Numba's cache is off: others can write {tmp_path / 'cache'} (chmod -R go-w)"]


def test_without_a_writable_folder_nothing_is_cached(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    loop, warnings_ = _compiled(monkeypatch, tmp_path / "file" / "cache")
    assert loop.stats.cache_path is None
    assert warnings_ == []
