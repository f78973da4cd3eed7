"""Figures of a reader on one text."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.paper.reading.scoring import FIGURES, score, true_edges, truth_of
from benchmarks.paper.transforms import assemble
from iet.errors import InputError, ShapeError
from tests.support.paper_logs import log_of


def test_truth_of_a_log_and_of_what_became_of_it(tokenizer):
    log = log_of([(0, "We have one plan. " * 9), (2, "They have another one."), (1, "It rains.")], 3)
    truth = truth_of(log, tokenizer)
    ends = tokenizer.encode(log.text).char_ends
    assert len(truth) == len(ends)
    for label, end in zip(truth, ends, strict=True):
        assert label == next(agent for start, stop, agent in log.spans if start < end <= stop)
    assert set(truth) == {0, 1, 2}
    assert (true_edges(log, 3) == log.edges).all()
    swapped = assemble([("It rains.", 1), (" We have one plan.", 0)])
    assert set(truth_of(swapped, tokenizer)) == {0, 1}
    assert true_edges(swapped, 3).tolist() == [[0, 0, 0], [1, 0, 0], [0, 0, 0]]
    assert truth_of(log_of([(0, "")], 3), tokenizer).tolist() == []


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 3)), min_size=1, max_size=40))
def test_figures_equal_their_definitions(pairs):
    truth, labels = (np.array(column) for column in zip(*pairs, strict=True))
    edges = np.eye(4, k=1)
    got = score(truth, labels, agents=4, edges=edges, found_edges=edges + edges.T, margin=0)
    assert list(got) == list(FIGURES)
    attributed = [(g, e) for g, e in pairs if e >= 0]
    changes = [{t for t in range(1, len(ids)) if ids[t] != ids[t - 1]} for ids in (truth, labels)]
    both = sum(map(len, changes))
    ious = []
    for agent in range(4):
        t, e = ({i for i, x in enumerate(column) if x == agent} for column in (truth, labels))
        if t | e:
            ious.append(len(t & e) / len(t | e))
    assert got == {
        "token_accuracy": pytest.approx(np.mean([g == e for g, e in pairs])),
        "iou": pytest.approx(np.mean(ious) if ious else 1),
        "edge_similarity": pytest.approx(math.sqrt(0.5)),
        "boundary_f1": pytest.approx(2 * len(changes[0] & changes[1]) / both if both else 1),
        "coverage": pytest.approx(len(attributed) / len(pairs)),
        "accuracy_where_attributed": (
            pytest.approx(np.mean([g == e for g, e in attributed])) if attributed else None
        ),
    }


def test_scores_readers_without_edges_and_with_spurious_keys():
    truth, labels = [0, 0, 1, 1, 2], [0, 0, 1, 5, 2]
    edges = np.array([[0, 1, 0], [0, 0, 1], [0, 0, 0]])
    assert score(truth, labels, agents=3, edges=edges)["edge_similarity"] is None
    more = np.zeros((6, 6))
    more[0, 1] = more[1, 5] = more[5, 2] = 0.7
    got = score(truth, labels, agents=3, edges=edges, found_edges=more)
    assert got["edge_similarity"] == pytest.approx(1 / math.sqrt(6))
    assert got["token_accuracy"] == 0.8
    with pytest.raises(InputError, match="truth: got 2, expected below 2 agents"):
        score(truth, labels, agents=2, edges=np.zeros((2, 2)))
    with pytest.raises(ShapeError, match="edges: got"):
        score(truth, labels, agents=3, edges=np.zeros((2, 2)), found_edges=more)
    with pytest.raises(ShapeError):
        score(truth, labels, agents=3, edges=edges, found_edges=np.zeros((2, 2)))
    with pytest.raises(ShapeError, match="found: got"):
        score(truth, labels[1:], agents=3, edges=edges)
