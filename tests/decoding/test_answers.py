"""The beginning of an answer whose first tokens are free."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from iet.decoding import decode, posterior
from iet.decoding.answers import FREE, place_answers
from iet.generation.free import FreeTokens
from iet.marks.families import FAMILIES

LAW = FAMILIES["gumbel"]
TURN = 120


def scores_of(free: int, turns: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return drawn scores [T, 3] of turns that begin with free tokens, and the true agents [T]."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(turns) % 3, TURN)
    scores = LAW.draw(rng, (len(truth), 3), 0.0)
    marked = np.tile(np.arange(TURN) >= free, turns)
    scores[marked, truth[marked]] = LAW.draw(rng, int(marked.sum()), 0.85)
    return scores.astype(np.float32), truth


def test_readers_assume_the_free_tokens_that_engines_leave_by_default() -> None:
    assert FreeTokens().first == FREE


@pytest.mark.parametrize("allow_unattributed", [False, True])
def test_free_tokens_are_given_to_the_agent_whose_answer_they_begin(allow_unattributed: bool) -> None:
    scores, truth = scores_of(FREE, 40)
    labels = decode(scores, "posterior", "gumbel", allow_unattributed=allow_unattributed).token_agents
    at_starts = np.tile(np.arange(TURN) < FREE, 40) & (np.arange(len(truth)) >= TURN)
    assert (labels == truth)[at_starts].mean() > 0.95  # about half of them without it
    assert (labels == truth).mean() > 0.99


def test_text_without_free_tokens_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, truth = scores_of(0, 40)
    labels = decode(scores, "posterior", "gumbel").token_agents
    assert (labels == truth).mean() > 0.99
    monkeypatch.setattr(posterior, "place_answers", lambda *_: None)
    np.testing.assert_array_equal(decode(scores, "posterior", "gumbel").token_agents, labels)


def test_other_families_have_no_free_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    def called(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(posterior, "place_answers", called)
    scores = np.random.default_rng(0).normal(size=(400, 2)).astype(np.float32)
    assert len(decode(scores, "posterior", "fourier").token_agents) == 400


def moved(labels: list[int], scores: NDArray[np.float64], min_segment: int = 1) -> list[int]:
    """Return where labels change after `place_answers`, with ratios of half the scores less 0.5."""
    placed = np.array(labels, np.int32)
    half = np.full(scores.shape[1], 0.5)
    place_answers(scores, np.ones(len(labels), np.float32), half, half, min_segment, placed)
    return (np.flatnonzero(np.diff(placed)) + 1).tolist()


def test_only_boundaries_between_two_agents_move() -> None:
    scores = np.zeros((60, 2))
    scores[:25, 0] = scores[35:, 1] = 3.0
    assert moved([0] * 33 + [1] * 27, scores) == [27]  # eight free tokens before the marked ones
    assert moved([-1] * 33 + [1] * 27, scores) == [33]
    assert moved([0] * 33 + [-1] * 27, scores) == [33]
    assert moved([0] * 60, scores) == []


def test_a_segment_keeps_its_fewest_tokens() -> None:
    scores = np.zeros((60, 2))
    scores[:10, 0] = scores[34:, 1] = 3.0
    assert moved([0] * 28 + [1] * 32, scores, min_segment=2) == [26]
    assert moved([0] * 28 + [1] * 32, scores, min_segment=27) == [27]
    assert moved([0] * 5 + [1] * 55, scores, min_segment=8) == [10]
