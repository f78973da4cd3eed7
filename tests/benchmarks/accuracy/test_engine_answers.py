"""`benchmarks.accuracy.engine_answers`: its committed result, and a difference that it must count."""

from __future__ import annotations

import json
import pathlib

import numpy as np

import iet
from benchmarks import engine_wheels
from benchmarks.accuracy import engine_answers

RESULT = pathlib.Path(__file__).parents[3] / "benchmarks/results/foreign_marks.json"


def test_committed_result_has_every_case_and_no_difference() -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    assert result["missing"] == []
    assert result["commits"] == engine_wheels.PULLS
    assert len(result["rows"]) == len(engine_answers.CASES) + 1  # dual keys
    assert all(row["different"] == 0 and row["keys"] >= 200 for row in result["rows"])
    table = RESULT.with_suffix(".md").read_text(encoding="utf-8")
    assert table == engine_answers.markdown(result) + "\n"


def test_differences_are_counted() -> None:
    def score(ids: np.ndarray, key: int) -> np.ndarray:
        scores = iet.score_tokens(ids, iet.EngineKeys.unnamed("vllm-red-green", [key]))[:, 0].astype(float)
        scores[7] = 1 - scores[7]
        return scores

    case = engine_answers.Case("vllm-red-green", {}, "this test", score, lambda: None)
    row = engine_answers.compare(case, num_keys=3, num_tokens=20, seed=0)
    assert (row["keys"], row["scores"], row["different"], row["largest"]) == (5, 100, 5, 1.0)
