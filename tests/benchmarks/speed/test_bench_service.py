"""The benchmark of the service, tiny: whether it compares before it times, and records what it says."""

from __future__ import annotations

import json
import pathlib
import sys

import pytest

from benchmarks.speed import bench_service
from tests.support.conditions import posix

for package in ("fastapi", "prometheus_client", "uvicorn"):
    pytest.importorskip(package, reason="the extra service is not installed")


@posix
def test_it_runs_and_records(
    logs: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["bench_service", "-o", str(tmp_path / "service.json"), "--quick", "--data", str(logs)]
    monkeypatch.setattr(sys, "argv", arguments)
    for name, value in (("TOKENIZERS_PARALLELISM", "false"), ("IET_NUM_THREADS", "1")):
        monkeypatch.setenv(name, value)
    bench_service.main()
    content = json.loads((tmp_path / "service.json").read_text())
    assert (content["documents"], content["text"]) == (12, "agent logs")
    names = [bench_service.FLOOR, *bench_service.CONTESTANTS]
    assert [row["what"] for row in content["results"]] == names
    for row in content["results"]:
        assert 0 < row["p50_ms"]["median"] <= row["p99_ms"]["median"]
        assert row["processor_ms"] is None or row["processor_ms"]["median"] > 0
    page = (tmp_path / "service.md").read_text()
    assert all(f"| {name} |" in page for name in names)


def test_rates_and_percentiles_equal_those_of_the_samples() -> None:
    samples = {
        bench_service.FLOOR: [(2.0, [0.1] * 100, 1.5)],
        "service": [(4.0, [0.1] * 50 + [0.3] * 50, None)],
    }
    floor, service = bench_service.results(samples, 100)  # type: ignore[arg-type]
    assert floor["processor_ms"]["median"] == 15  # type: ignore[index]
    assert service["processor_ms"] is None
    assert floor["requests_per_second"]["median"] == 50  # type: ignore[index]
    assert service["over_floor"]["median"] == 0.5  # type: ignore[index]
    assert service["p99_ms"]["median"] == pytest.approx(300)  # type: ignore[index]
