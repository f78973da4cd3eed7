"""Templates as MAMA draws them, classification on labelled graphs, and the walk."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iet.decoding.topology import TOPOLOGIES, Match, classify, template, walk
from iet.errors import InputError, ShapeError

MAMA = {
    "chain": {4: "01 12 23", 5: "01 12 23 34", 6: "01 12 23 34 45"},
    "star_pure": {4: "01 02 03", 5: "01 02 03 04", 6: "01 02 03 04 05"},
    "tree": {4: "01 02 13", 5: "01 02 13 14", 6: "01 02 13 14 25"},
    "circle": {4: "01 12 23 03", 5: "01 12 23 34 04", 6: "01 12 23 34 45 05"},
    "star_ring": {4: "01 02 03 12 13 23", 5: "01 02 03 04 12 23 34 14", 6: "01 02 03 04 05 12 23 34 45 15"},
    "complete": {4: "01 02 03 12 13 23"},
}


@pytest.mark.parametrize(("name", "n"), [(name, n) for name, sizes in MAMA.items() for n in sizes])
def test_templates_equal_those_of_mama(name, n):
    expected = np.zeros((n, n), bool)
    for i, j in MAMA[name][n].split():
        expected[int(i), int(j)] = expected[int(j), int(i)] = True
    np.testing.assert_array_equal(template(name, n), expected)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 17])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_template_is_symmetric_without_loops_and_classified_as_itself(name, n):
    adjacency = template(name, n)
    assert (adjacency == adjacency.T).all()
    assert not adjacency.diagonal().any()
    match = classify(np.triu(adjacency) * 0.6)
    assert name in match.matches
    assert match.name == match.matches[0]
    if n >= 5:
        assert match.matches == (name,)


def test_small_templates_coincide():
    assert classify(template("complete", 2)).matches == tuple(TOPOLOGIES)
    assert classify(template("tree", 3)) == Match("star_pure", ("star_pure", "tree"))
    assert classify(template("circle", 3)).matches == ("circle", "star_ring", "complete")
    assert classify(template("complete", 4)) == Match("star_ring", ("star_ring", "complete"))


def test_labels_matter_and_other_graphs_are_other():
    order = [1, 0, 2, 3]
    assert classify(template("star_pure", 4)[np.ix_(order, order)]) == Match("other", ())
    assert classify(np.zeros((4, 4))).name == "other"
    assert classify(np.ones((1, 1))).name == classify(np.zeros((0, 0))).name == "other"
    assert classify(template("chain", 4) + 5.0 * np.eye(4)).name == "chain"


@given(st.sampled_from(list(TOPOLOGIES)), st.integers(2, 8), st.integers(0, 10**9), st.data())
def test_walk_follows_edges_and_covers_them_all(name, n, seed, data):
    adjacency = template(name, n)
    start = data.draw(st.integers(0, n - 1))
    speakers = walk(adjacency, 4 * int(adjacency.sum()) + 2, start, seed)
    steps = {frozenset(pair) for pair in itertools.pairwise(speakers)}
    assert speakers[0] == start
    assert steps == {frozenset(edge) for edge in np.argwhere(adjacency).tolist()}
    assert speakers == walk(adjacency, len(speakers), start, seed)


def test_walk_follows_directions_and_short_lengths():
    ring = np.roll(np.eye(4), 1, axis=1)
    assert walk(ring, 6) == [0, 1, 2, 3, 0, 1]
    assert walk(ring, 0) == []
    assert walk([[0]], 1) == [0]
    assert len({tuple(walk(template("complete", 6), 9, seed=s)) for s in range(9)}) > 1


def test_rejects_invalid_arguments():
    for call, error, words in [
        (lambda: template("ring", 4), InputError, "'ring'.*star_ring"),
        (lambda: template("chain", 1), InputError, "n: got 1"),
        (lambda: classify(np.zeros((2, 3))), ShapeError, r"\[2, 3\]"),
        (lambda: walk(template("chain", 3), 3, start=3), InputError, "start: got 3"),
        (lambda: walk(template("chain", 3), -1), InputError, "length: got -1"),
        (lambda: walk(np.zeros((2, 2)), 2), InputError, "follow agent 0"),
    ]:
        with pytest.raises(error, match=words):
            call()
