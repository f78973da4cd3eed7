"""Fixtures that every folder uses."""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
import sys
from collections.abc import Generator, Iterator

import pytest

from iet.native import load as native
from tests.support.conditions import ISAS

# torch reads it when it is loaded. The matrices here are so small that threads would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples at every run, and none fails because the machine is busy.
with contextlib.suppress(ImportError):
    import hypothesis

    hypothesis.settings.register_profile(
        "iet", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("iet")


class Heard(logging.Handler):
    """Keeps what is logged. A message that cannot be formatted fails the test that logs it."""

    def __init__(self) -> None:
        super().__init__()
        self.said = io.StringIO()

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=self.said)


def pytest_configure() -> None:
    """Look at every message, as pytest's own plugin for logs would, which is off: see `logged`."""
    logging.getLogger().addHandler(Heard())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while modules are loaded, nor among them later: two million objects that stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(autouse=True)
def no_registry_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore a registry that the environment names."""
    monkeypatch.delenv("IET_REGISTRY", raising=False)


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """Text of all later log records, also of loggers that do not propagate. The root's level may be changed.

    pytest's own fixture is off (`-p no:logging`): for it each of some two thousand loggers is visited six
    times a test.
    """
    root, handler = logging.getLogger(), Heard()
    level = root.level
    every = [logger for logger in root.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    heard = [root, *(logger for logger in every if not logger.propagate)]
    for logger in heard:
        logger.addHandler(handler)
    yield handler.said
    for logger in heard:
        logger.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture
def no_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be as without the extra `documents`, whatever is installed."""
    for name in ("bs4", "docx", "pypdf"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture(params=ISAS or ("reference",))
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test on one instruction set of this machine (or on the reference backend)."""
    if request.param == "reference":
        yield "reference"
        return
    previous = native.cpu.isa()
    assert native.cpu.select_isa(request.param)
    yield request.param
    native.cpu.select_isa(previous)
