"""The benchmarks of inferred counts and of language models: small runs."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("one_thread")

from benchmarks.accuracy import counting, surrogate  # noqa: E402

CELL = counting.Cell("forty words", "apart", 1.0, 8, 100)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("counting")


def test_counts_restart_where_prompts_do(work: pathlib.Path) -> None:
    (row,) = counting.run(work, [CELL], "tuning", 2)
    assert row["texts"] == 2
    assert row["wrong_counts"][0] > 0.4
    assert row["inferred"][0] > row["whole"][0] + 0.1
    assert row["known"][0] > 0.9
    written = counting.load(work, CELL, "tuning")
    assert written is not None
    assert written.ids.shape == written.counts.shape == (2, 800)
    (again,) = counting.run(work, [CELL], "tuning", 2)  # reads the texts
    assert again == row
    assert row["null"]["corrected"] == 2
    assert row["null"]["0.01"] <= 2 * 0.01 * row["pairs"]
    assert "**Null**: 4,200 pairs" in counting.markdown([row])
    assert "| forty words | apart | 1 | 8 x 100 | 2 |" in counting.markdown([row])


def test_counts_are_those_of_the_writers_sequence(work: pathlib.Path) -> None:
    cell = counting.Cell("forty words", "log", 1.0, 4, 60)
    counting.run(work, [cell], "tuning", 1)
    written = counting.load(work, cell, "tuning")
    assert written is not None
    registry = counting.registry_of(counting.tokenizer_of(cell.writer), cell, "tuning", 0)
    whole = counting.whole_counts(written.ids[0], registry)
    # But for contexts that hold ids of the opening, and those that the opening holds.
    assert (whole == written.counts[0]).mean() > 0.8


def test_a_model_that_reads_is_compared_with_none(work: pathlib.Path, monkeypatch: Any) -> None:
    cell = counting.Cell("shipped", "apart", 0.7, 4, 60)
    counting.run(work, [cell], "tuning", 1)
    monkeypatch.setattr(counting, "CELLS", (cell,))
    monkeypatch.setattr(surrogate, "WRITTEN", (cell.name,))
    none, shipped, second = surrogate.run(work, "tuning", 1, ("none", "shipped", "second"))
    assert none["over_none"] == 1
    assert shipped["nats"][0] > second["nats"][0] > 0
    assert np.isfinite(second["tokens_per_second"][0])
    assert "| shipped | apart | 0.7 |" in surrogate.markdown([none, shipped, second], 1)
