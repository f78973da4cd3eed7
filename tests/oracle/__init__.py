"""Slow twins of the compiled module's loops, in Python: each says what its loop in C++ does, to the bit.

`LOOPS` has them by name. Numba compiles them, so that the comparison takes seconds. `NUMBA_DISABLE_JIT=1`
leaves them plain Python, and an index out of range then raises.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numba

LOOPS = dict[str, Callable[..., Any]]()
"""Name in the compiled module -> its twin."""


def twin(function: Callable[..., Any]) -> Any:
    """Add a function to `LOOPS` under its own name, and let Numba compile it on its first call."""
    return LOOPS.setdefault(function.__name__, numba.njit(function))


for _name in ("chain", "evidence", "fit", "pairs", "posterior", "spans", "templates"):
    importlib.import_module(f"tests.oracle.{_name}")
