"""`benchmarks.security.sessions`: what a try comes to, and the committed results."""

from __future__ import annotations

import json
import pathlib

import numpy as np

from benchmarks import tables
from benchmarks.security import framing, sessions
from benchmarks.security.writing import AGENT, name_of_session, team
from tests.support.texts import write


def test_text_of_seen_sessions_passes_in_these_alone() -> None:
    registry = team("fourier n=2")
    keys = [registry.session(name_of_session(number)) for number in range(2)]
    texts = np.array([write(each, [(AGENT, 399)], seed, ids=range(3, 60)) for seed, each in enumerate(keys)])
    own = np.array([write(registry, [(AGENT, 399)], seed, ids=range(3, 60)) for seed in range(2)])
    for row in sessions.tried(registry, own, texts, 800, 2):
        assert list(row) == list(sessions.OUTCOMES)
        assert row["own keys"] == 1
        assert row["asked of one unseen"] == row["an unseen one named"] == 0


def test_the_committed_results_keep_what_the_docs_promise(tmp_path: pathlib.Path) -> None:
    rows = json.loads((tables.RESULTS / "security_sessions.json").read_text())["rows"]
    assert {row["scheme"] for row in rows} >= {"gumbel n=4", "fourier n=4"}
    assert all(row["asked of one unseen"][0] <= framing.LEVEL for row in rows)
    named = sum(row["successes"]["an unseen one named"] for row in rows)
    assert named <= framing.LEVEL * sum(row["tries"] for row in rows)
    assert "asked of one unseen" in sessions.markdown(rows)
