"""How the loops of this package are compiled: Numba, cached on disk, without the GIL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba  # type: ignore[import-untyped, unused-ignore]

_F = TypeVar("_F", bound=Callable[..., Any])


def njit(function: _F) -> _F:
    """Compile a private loop on its first call; `NUMBA_DISABLE_JIT=1` leaves it plain Python."""
    try:
        return cast(_F, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        return cast(_F, numba.njit(nogil=True)(function))
