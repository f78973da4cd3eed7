"""Fixtures that every folder uses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from iet.native import load as native
from tests.support.conditions import ISAS


@pytest.fixture(autouse=True)
def no_registry_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read no registry that the environment of whoever runs the tests names."""
    monkeypatch.delenv("IET_REGISTRY", raising=False)


@pytest.fixture(params=ISAS or ("reference",))
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test on one instruction set of this machine (or on the reference backend)."""
    if request.param == "reference":
        yield "reference"
        return
    before = native.cpu.isa()
    assert native.cpu.select_isa(request.param)
    yield request.param
    native.cpu.select_isa(before)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Let torch use one thread: the matrices are so small that more would wait for each other."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
