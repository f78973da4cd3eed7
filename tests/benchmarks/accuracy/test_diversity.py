"""The benchmark of free tokens: its figures on given answers and on a few short texts."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import numpy as np
import pytest

import iet
from iet.generation.free import FreeTokens

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("one_thread")

from benchmarks.accuracy import diversity  # noqa: E402


def test_distinct_n_counts_n_grams_within_answers() -> None:
    answers = np.array([[1, 2, 1, 2], [1, 2, 3, 4], [1, 2, 1, 2]])
    assert diversity.distinct(answers, 1) == 4 / 12
    assert diversity.distinct(answers, 2) == 4 / 9  # 12, 21, 23, 34
    assert diversity.distinct(answers, 3) == 4 / 6  # 121, 212, 123, 234


@pytest.fixture(scope="module")
def writer() -> diversity.Writer:
    shipped = diversity.shipped()
    return dataclasses.replace(shipped, prompts=shipped.prompts[:2], answers=8, tokens=40)


def test_ln_p_by_length_is_that_of_an_audit(writer: diversity.Writer) -> None:
    registry = diversity.registry_of(writer)
    ids = diversity.answers(writer.load(), writer, 1, 1.0, FreeTokens(4, 0.1))[0]
    log_p = diversity.log_p_by_length(ids, registry, 1)
    for length in (20, 40):
        report = iet.Auditor(registry).audit(token_ids=ids[:length])
        assert log_p[length - 1] == pytest.approx(report.evidence["agent-2"], rel=1e-6)


def test_free_tokens_raise_diversity_and_lower_evidence(
    writer: diversity.Writer, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    settings = (None, FreeTokens(0, 0.0), FreeTokens(8, 0.2))
    monkeypatch.setattr(diversity, "SETTINGS", settings)
    monkeypatch.setattr(diversity, "TEMPERATURES", {"shipped": (1.0,)})
    monkeypatch.setattr(diversity, "WRITERS", {"shipped": lambda: writer})
    monkeypatch.setattr(diversity, "attribution_of", lambda *_: {"60": [0.5, 0.4, 0.6]})
    diversity.run(tmp_path, ["shipped"])
    rows = diversity.results(tmp_path, ["shipped"])
    unmarked, none, with_free = (row["figures"] for row in rows)
    assert none["distinct_3"][0] < 0.2 < 0.8 < with_free["distinct_3"][0]
    assert unmarked["distinct_3"][0] > 0.8
    assert none["log_p"] < with_free["log_p"] < np.log(0.01)
    assert rows[0]["over_3"] == 1
    # A run that was stopped goes on: what is there is not measured again.
    path = diversity.path_of(tmp_path, "shipped", 1.0, settings[1])
    path.write_text(json.dumps({**none, "log_p": -7.0}))
    diversity.run(tmp_path, ["shipped"])
    page = diversity.markdown(diversity.results(tmp_path, ["shipped"]))
    assert "| shipped | 1 | 0, 0 |" in page
    assert "| -7.0 |" in page
    assert "| 0.500 |" in page
