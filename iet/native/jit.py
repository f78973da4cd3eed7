"""Loops over arrays that Numba compiles, cached on disk; `iet.native.loops` has those that are called."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pathlib
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import numba  # type: ignore[import-untyped, unused-ignore]
from numba.core import event  # type: ignore[import-untyped, unused-ignore]

from iet.native.cache import Cache, ReadCache

config: Any = numba.config

_OPTIONS: Any = {"nogil": True, "no_cfunc_wrapper": True}  # no loop is called from C
_F = TypeVar("_F", bound=Callable[..., Any])


def njit(function: _F) -> _F:
    """Compile a private loop on its first call; `NUMBA_DISABLE_JIT=1` leaves it plain Python.

    What was compiled is kept where Numba keeps it: in NUMBA_CACHE_DIR if that is set, beside the source, or
    in the user's cache folder; but in none that others can write (`iet.native.cache`). Where none is left, in
    `private_folder`. Without NUMBA_CACHE_DIR what stands beside the source is read wherever others are kept.

    Compiling takes 0.1 s a function and more: the first audit on a machine waits for all that it calls. What
    runs once a text over a few segments is NumPy. What is compiled is plain loops over arrays that are given:
    slices that are set, sorting, and one loop that calls another take several times as long.
    """
    loop: Any = numba.njit(**_OPTIONS)(function)
    if loop is not function:
        cache = _cache_of(function)
        if cache is not None:
            loop._cache = cache
    return cast(_F, loop)


def _cache_of(function: Callable[..., Any]) -> Cache | None:
    usual = config.CACHE_DIR
    beside = None if usual else ReadCache.of(function)
    with contextlib.suppress(RuntimeError):  # no folder that can be written
        return Cache(function, beside)
    folder = private_folder()
    if folder is not None:
        config.CACHE_DIR = folder  # read when a cache is made: others keep the usual one
        try:
            return Cache(function, beside)
        except RuntimeError:
            pass
        finally:
            config.CACHE_DIR = usual
    return None if beside is None else beside.used()


@contextlib.contextmanager
def compiling(tell: Callable[[], object]) -> Iterator[None]:
    """Call `tell` before the first function that is compiled while the block runs, not found in the cache.

    Cycles are not collected while one is compiled, which takes a seventh of the time otherwise. Both hold for
    the whole process, so this is for a command line.
    """
    listener: Any = _Listener(tell)
    with event.install_listener("numba:compile", listener):
        yield


class _Listener(event.Listener):  # type: ignore[misc, unused-ignore]
    def __init__(self, tell: Callable[[], object]) -> None:
        self._tell, self._told, self._depth, self._collects = tell, False, 0, False

    def on_start(self, event: Any) -> None:
        if not self._told:
            self._told = True
            self._tell()
        if self._depth == 0:
            self._collects = gc.isenabled()
            gc.disable()
        self._depth += 1

    def on_end(self, event: Any) -> None:
        self._depth -= 1
        if self._depth == 0 and self._collects:
            gc.enable()


def without_blas() -> None:
    """Keep Numba from importing SciPy, where it is installed, to see whether np.dot can be compiled.

    That takes as long as an audit of a page. No loop here calls np.dot, but nothing in the process that does
    can be compiled afterwards: this too is for a command line.
    """
    if "scipy.linalg" in sys.modules or "numba.np.arraymath" in sys.modules:
        return
    hidden: Any = None
    sys.modules["scipy.linalg"] = hidden  # an import of it fails
    try:
        importlib.import_module("numba.np.arraymath")
    finally:
        del sys.modules["scipy.linalg"]


def private_folder() -> str | None:
    """Return `<temporary folder>/iet-<user id>`, made if it is missing, or None if others could write there.

    A cache is loaded as a pickle, that is, executed. So the folder must be a real one, of this user (the
    effective one, under whom files are made), of mode 0700, in a folder in which nobody else can put another
    one in its place.
    """
    if not hasattr(os, "geteuid"):
        return None
    parent = pathlib.Path(tempfile.gettempdir())
    folder = parent / f"iet-{os.geteuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found, around = folder.lstat(), parent.stat()
    except OSError:
        return None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
    safe = around.st_uid in (0, os.geteuid()) and (
        around.st_mode & stat.S_ISVTX or not around.st_mode & 0o022
    )
    return str(folder) if ours and safe else None
