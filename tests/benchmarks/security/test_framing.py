"""The forger of `benchmarks.security.framing`, what is measured of it, and the committed results."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from benchmarks import tables
from benchmarks.security import framing
from benchmarks.security.writing import AGENT, team
from tests.support.texts import write


def published(n_gram: int) -> list[list[int]]:
    return [
        np.random.default_rng([n_gram, i]).integers(1, 9, 150).tolist()
        for i in range(6 if n_gram == 4 else 2)
    ]


@pytest.mark.parametrize("n_gram", [2, 4])
def test_forger_writes_mostly_seen_pairs_and_copies_no_run(n_gram: int) -> None:
    texts = published(n_gram)
    forged = framing.Forger(texts, n_gram, 3).write(60)
    assert len(forged) == 60
    assert framing.Forger(texts, n_gram, 3).write(60) == forged
    runs = {tuple(text[t : t + framing.COPIED]) for text in texts for t in range(len(text))}
    assert not any(tuple(forged[t : t + framing.COPIED]) in runs for t in range(49))
    seen = {tuple(text[t : t + n_gram]) for text in texts for t in range(151 - n_gram)}
    pairs = [tuple(forged[t : t + n_gram]) for t in range(61 - n_gram)]
    assert np.mean([pair in seen for pair in pairs]) > 0.8
    assert len({pair for pair in pairs if pair in seen}) > 0.95 * sum(pair in seen for pair in pairs)


def test_tries_and_losses_of_a_small_archive() -> None:
    registry = team("fourier n=2")
    marked = np.array([write(registry, [(AGENT, 399)], seed, ids=range(3, 60)) for seed in range(6)])
    texts, later = marked[:2], marked[2:]
    rows = framing.tried(registry, texts, 800, 2)
    assert [row["without"] for row in rows] == [1, 1]
    assert [row["with"] for row in rows] == [0, 0]
    assert all(row["seen pairs"] > 0.9 for row in rows)
    honest = framing.lost(registry, texts, later, 800)
    assert 0.05 < honest["share"][0] < 0.5
    assert honest["before"][0] <= honest["after"][0] < math.inf


def test_committed_results_keep_the_promises_of_the_docs() -> None:
    rows = json.loads((tables.RESULTS / "security.json").read_text())["rows"]
    assert {row["scheme"] for row in rows} == {*framing.SCHEMES}
    files = sorted(tables.RESULTS.glob("security_million*.json"))
    million = [row for file in files for row in json.loads(file.read_text())["rows"]]
    assert {row["seen"] for row in million} == {1_000_000}
    rows += million
    assert all(row["with"][0] <= framing.LEVEL for row in rows)
    assert all(row["found after"] == row["honest texts"] for row in rows)
    assert "**The attack**" in framing.markdown(rows)
