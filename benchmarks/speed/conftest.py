"""Hands the samples of the interleaved runs to pytest-benchmark, one benchmark for each contestant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.speed.suite import Suite, run


class _Clock:
    """A clock that shows recorded time: pytest-benchmark reads it before and after each replayed call."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


_clock = _Clock()
_measured: dict[str, dict[str, list[float]]] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="tiny sizes: whether they run, not how fast")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("python_files", "bench_*.py")
    config.addinivalue_line("python_functions", "bench_*")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "replay" in metafunc.fixturenames:
        suites = metafunc.module.suites(metafunc.config.getoption("--quick"))
        cases = [(suite, name) for suite in suites for name in suite.contestants]
        metafunc.parametrize("case", cases, ids=[f"{suite.name}: {name}" for suite, name in cases])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.benchmark(timer=_clock))


@pytest.fixture
def replay(case: tuple[Suite, str], benchmark: Any) -> Callable[[], None]:
    """Run the suite at its first contestant, then replay to pytest-benchmark what was measured."""
    suite, name = case
    if suite.name not in _measured:
        _measured[suite.name] = run(suite)[1]
    contestant, samples = suite.contestants[name], iter(_measured[suite.name][name])

    def next_sample() -> None:
        _clock.now += next(samples)

    def hand_over() -> None:
        benchmark.group = suite.name
        benchmark.extra_info.update(kind=contestant.kind, work=contestant.work, note=contestant.note)
        benchmark.pedantic(next_sample, rounds=len(_measured[suite.name][name]), iterations=1)

    return hand_over
