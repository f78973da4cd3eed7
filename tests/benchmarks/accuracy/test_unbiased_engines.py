"""Engines draw as they would without family gumbel: few draws here, a million in benchmarks/results."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("scipy")
pytest.importorskip("tqdm")

from benchmarks.accuracy import engines, unbiased_engines  # noqa: E402
from iet.errors import BackendUnavailable  # noqa: E402

ROOT = pathlib.Path(__file__).parents[3]


@pytest.mark.parametrize("engine", engines.ENGINES)
def test_processor_keeps_the_engines_distribution(engine: str, tmp_path: pathlib.Path) -> None:
    why = engines.missing(engine)
    if why is not None:
        pytest.skip(why)
    # A process of its own: vLLM's V2 runner takes Triton's interpreter only before vLLM is loaded.
    out = tmp_path / "out.json"
    rows = "16" if engine == "vllm-v2" else "512"
    sizes = f"--seed 2 --draws 2048 --texts 768 --rows {rows}".split()
    command = [sys.executable, "-m", "benchmarks.accuracy.unbiased_engines", "--engine", engine]
    ran = subprocess.run(
        [*command, *sizes, "-o", str(out)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    written = json.loads(out.read_text())
    result = written["engines"][engine]
    assert written["passed"] is True
    cases = {**unbiased_engines.CASES, **unbiased_engines.OF_ONE.get(engine, {})}
    assert [row["case"] for row in result["rows"]][:-1] == list(cases)
    assert {row["draws"] for row in result["rows"]} == {2048, 768}
    assert sum(unchosen["rows"] for unchosen in result["left"]) >= 48


@pytest.mark.skipif(engines.missing("sglang") is not None, reason=str(engines.missing("sglang")))
def test_rejects_another_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engines.open_engine("sglang")
    expected = engine.expected
    warm, warmer = unbiased_engines.Asked(temperature=0.9), unbiased_engines.Asked()
    monkeypatch.setattr(
        engine, "expected", lambda logits, _, *arguments: expected(logits, warmer, *arguments)
    )
    test = unbiased_engines.tokens(engine, "sglang", "T = 0.9", warm, 4096, 1)
    assert test.p < 1e-9


def test_verdicts_name_rejected_cases() -> None:
    def rows_of(p: float, exceptions: int) -> dict[str, Any]:
        row = {"case": "T = 1", "family": "sglang", "judged": True, "p": p}
        return {"rows": [row], "left": [{"sampler": "sampler", "rows": 9, "exceptions": exceptions}]}

    assert unbiased_engines.verdicts({"sglang": rows_of(0.5, 0)}) == (1, [])
    assert unbiased_engines.verdicts({"sglang": rows_of(1e-4, 0)}) == (1, ["sglang, T = 1"])
    # Among a hundred rows the same p-value is not significant.
    many = {"sglang": {"rows": 100 * rows_of(1e-4, 0)["rows"], "left": []}}
    assert unbiased_engines.verdicts(many) == (100, [])
    assert unbiased_engines.verdicts({"sglang": rows_of(0.5, 2)}) == (1, ["sglang, sampler: 2 rows"])


def test_rows_of_other_engines_are_kept(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if engines.missing("sglang") is not None:
        pytest.skip(str(engines.missing("sglang")))
    out = tmp_path / "out.json"
    row = {"case": "T = 1", "family": "vllm-v1", "judged": True, "p": 0.5, "entropy": 1.0, "draws": 7}
    row |= {"cells": 2, "chi_square_per_freedom": 1.0, "largest_shift": 0.0}
    earlier_rows = {"command": "python -m other", "rows": [row], "left": []}
    out.write_text(json.dumps({"engines": {"vllm-v1": earlier_rows}}))
    options = ["--draws", "512", "--texts", "768", "--rows", "64"]
    monkeypatch.setattr("sys.argv", ["x", "--engine", "sglang", *options, "-o", str(out)])
    threads = torch.get_num_threads()
    unbiased_engines.main()
    torch.set_num_threads(threads)
    written = json.loads(out.read_text())["engines"]
    assert list(written) == ["vllm-v1", "sglang"]
    assert written["vllm-v1"] == earlier_rows
    assert "python -m other" in out.with_suffix(".md").read_text()


def test_missing_engine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "missing", lambda name: "it is not installed")
    with pytest.raises(BackendUnavailable, match="llama-cpp: it is not installed"):
        engines.open_engine("llama-cpp")
