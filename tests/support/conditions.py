"""When a test can run, and on what of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import iet
from iet.native import load as native

ISAS = iet.backends().isas

posix = pytest.mark.skipif(os.name != "posix", reason="file modes, signals and terminals as POSIX has them")
needs_native = pytest.mark.skipif(not ISAS, reason="needs the compiled module")


def each_isa() -> Iterator[str]:
    """Select every instruction set of this machine in turn: for an expected answer that is slow to make.

    On the reference backend there is that alone.
    """
    if native.cpu is None:
        yield "reference"
        return
    previous = native.cpu.isa()
    for isa in ISAS:
        assert native.cpu.select_isa(isa)
        yield isa
    native.cpu.select_isa(previous)
