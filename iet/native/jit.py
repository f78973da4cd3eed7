"""How the loops of this package are compiled: Numba, cached on disk, without the GIL."""

from __future__ import annotations

import os
import pathlib
import stat
import tempfile
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba  # type: ignore[import-untyped, unused-ignore]

config: Any = numba.config

_F = TypeVar("_F", bound=Callable[..., Any])


def njit(function: _F) -> _F:
    """Compile a private loop on its first call; `NUMBA_DISABLE_JIT=1` leaves it plain Python.

    What was compiled is kept where Numba keeps it: in NUMBA_CACHE_DIR if that is set, beside the source, or
    in the user's cache folder. Where none of them can be written, in `private_folder`.
    """
    try:
        return cast(_F, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # no folder that can be written
        folder = private_folder()
    if folder is not None:
        usual = config.CACHE_DIR
        config.CACHE_DIR = folder  # read when a function is decorated: others keep the usual one
        try:
            return cast(_F, numba.njit(cache=True, nogil=True)(function))
        except RuntimeError:
            pass
        finally:
            config.CACHE_DIR = usual
    return cast(_F, numba.njit(nogil=True)(function))


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
