"""Compile loops with Numba; cache the machine code only in a folder that no other user can write."""

from __future__ import annotations

import os
import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import numba  # type: ignore[import-untyped, unused-ignore]

_config: Any = numba.config


def njit(function: Callable[..., Any]) -> Any:
    """Compile a function on its first call, with Numba's cache on disk if there is a safe folder for it.

    Numba loads its cache as a pickle, which can execute any code. The folder is `$NUMBA_CACHE_DIR`, by
    default `iet/numba` in `$XDG_CACHE_HOME` (`~/.cache`). If other users can write it, a warning says so.
    Without a safe folder every process compiles the function again.
    """
    previous, home = _config.CACHE_DIR, os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = pathlib.Path(previous) if previous else pathlib.Path(home, "iet", "numba")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _config.CACHE_DIR = str(folder)  # read while the dispatcher of this function is made
        compiled: Any = numba.njit(nogil=True, cache=True)(function)
        if compiled is function or _is_safe(folder, pathlib.Path(compiled.stats.cache_path)):
            return compiled
        warnings.warn(f"Numba's cache is off: others can write {folder} (chmod -R go-w)", stacklevel=1)
    except (OSError, RuntimeError):  # the folder cannot be written; Numba says so by a RuntimeError
        pass
    finally:
        _config.CACHE_DIR = previous
    return numba.njit(nogil=True)(function)


def _is_safe(*folders: pathlib.Path) -> bool:
    """Return whether no other user can write these folders; each contains the next one."""
    for status in map(os.stat, folders if hasattr(os, "geteuid") else ()):
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
            return False
        if not status.st_mode & 0o011:  # no other user can enter it
            break
    return True
