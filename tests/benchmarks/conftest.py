"""Fixtures of several benchmarks' tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread: the matrices are too small for more."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def loaded() -> Any:
    """The shipped model, as the benchmarks load it."""
    pytest.importorskip("transformers")
    from benchmarks.writing.models import load

    return load()
