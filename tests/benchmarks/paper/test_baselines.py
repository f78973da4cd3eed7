"""The paper's baselines that need no model: matching, HMM, segmenters."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from iet.audit.metrics import edge_similarity, token_accuracy
from tests.support.paper_logs import log_of, prose, words

pytest.importorskip("sklearn")
pytest.importorskip("langchain_text_splitters")
pytest.importorskip("nltk")

from benchmarks.paper.baselines import BASELINES, hmm, segmenters
from benchmarks.paper.baselines.reading import (
    best_one_to_one,
    match_segments,
    read_tokens,
    unit_bounds,
    unit_texts,
)

SEGMENTERS = {
    "recursive": segmenters.recursive,
    "semantic-bow": segmenters.semantic_bow,
    "texttiling": segmenters.text_tiling,
}


def disjoint(rng, turns, joiner="\n\n", sentences=12, agents=3):
    """A log of equally long turns without common words."""
    turn_texts = [
        (i % agents, prose(rng, words(rng, 12, chr(97 + i) + "o"), sentences)) for i in range(turns)
    ]
    return log_of(turn_texts, agents, joiner=joiner)


# Tokens and units


def test_token_belongs_to_the_turn_of_its_last_character(tokenizer):
    log = log_of([(0, "one two"), (1, "three four"), (0, "five")], 2)
    tokens = read_tokens(log, tokenizer)
    starts = np.array([span[0] for span in log.spans])
    last = tokens.char_ends - 1
    assert tokens.turns.tolist() == (np.searchsorted(starts, last, side="right") - 1).tolist()
    assert tokens.agents.tolist() == [log.turns[turn].agent for turn in tokens.turns]


@pytest.mark.parametrize("unit_tokens", [1, 5, 64])
def test_units_tile_the_text_and_cross_no_turn(tokenizer, unit_tokens):
    log = disjoint(np.random.default_rng(1), 5)
    tokens = read_tokens(log, tokenizer)
    bounds = unit_bounds(tokens, unit_tokens)
    assert bounds[0] == 0
    assert bounds[-1] == len(tokens)
    for start, end in itertools.pairwise(bounds):
        assert 0 < end - start <= unit_tokens
        assert len(set(tokens.turns[start:end])) == 1
        # Only the last chunk of a message may be shorter.
        assert end - start == unit_tokens or end == len(tokens) or tokens.turns[end] != tokens.turns[end - 1]
    assert "".join(unit_texts(log, tokens, bounds)) == log.text


# Matching


@pytest.mark.parametrize("seed", range(5))
def test_best_assignment_equals_exhaustive_search(seed):
    rng = np.random.default_rng(seed)
    labels, truth = rng.integers(0, 4, 60), rng.integers(0, 5, 60)
    truth[:5] = range(5)
    names = best_one_to_one(labels, truth)
    assert len(set(names.values())) == len(names)
    agree = sum(names[label] == true for label, true in zip(labels.tolist(), truth.tolist(), strict=True))
    kinds = sorted(set(labels.tolist()))
    assert agree == max(
        sum(dict(zip(kinds, to, strict=True))[a] == b for a, b in zip(labels.tolist(), truth, strict=True))
        for to in itertools.permutations(range(5), len(kinds))
    )


def test_segments_take_the_agents_of_their_turns():
    turns = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2])
    agents = np.array([4, 4, 4, 1, 1, 1, 4, 4, 4])
    np.testing.assert_array_equal(match_segments(turns + 10, turns, agents), agents)
    # A bound one token late costs that token.
    late = np.array([0, 0, 0, 0, 1, 1, 2, 2, 2])
    assert match_segments(late, turns, agents).tolist() == [4, 4, 4, 4, 1, 1, 4, 4, 4]
    # Two segments never share a turn: here the second takes what is left, the turn of agent 1.
    split = np.array([0, 0, 1, 2, 2, 2, 2, 2, 2])
    assert match_segments(split, np.array([0, 0, 0, 1, 2, 2, 2, 2, 2]), agents).tolist()[2] == 1


# HMM


def paths_by_force(log_emissions, stay):
    units, n = log_emissions.shape
    move = (1 - stay) / (n - 1)

    def log_p(path):
        steps = sum(np.log(stay if a == b else move) for a, b in itertools.pairwise(path))
        return steps + sum(log_emissions[u, state] for u, state in enumerate(path))

    return max(itertools.product(range(n), repeat=units), key=log_p)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("stay", [0.2, 0.7, 0.95])
def test_viterbi_equals_exhaustive_search(seed, stay):
    log_emissions = np.random.default_rng(seed).normal(size=(6, 3)) * 2
    assert tuple(hmm.viterbi(log_emissions, stay).tolist()) == paths_by_force(log_emissions, stay)


def by_vocabulary(records, agents, rng, own_words=6, common=0):
    """Logs whose agents speak words of their own and `common` shared ones."""
    shared = words(rng, common, "x")
    vocabularies = [words(rng, own_words, "eiou"[a] + "k") + shared for a in range(agents)]
    order = [*range(agents), *reversed(range(agents))]
    return [
        log_of([(a, prose(rng, vocabularies[a], 8)) for a in order], agents, record=record)
        for record in range(records)
    ]


def test_agents_with_words_of_their_own_are_named(tokenizer):
    logs = by_vocabulary(3, 4, np.random.default_rng(4))
    for log, attribution in zip(logs, hmm.read(logs, tokenizer), strict=True):
        # A unit may hold nothing but the end of a word: it goes with its neighbour before or after.
        assert token_accuracy(read_tokens(log, tokenizer).agents, attribution.labels) > 0.99
        assert edge_similarity(log.edges, attribution.edges) == pytest.approx(1)


def test_hmm_is_trained_on_other_records(tokenizer):
    """In one record agents 0 and 1 have changed their words: so they are taken for each other there."""
    logs = by_vocabulary(8, 2, np.random.default_rng(5))
    swapped = log_of([(1 - turn.agent, turn.text) for turn in logs[0].turns], 2, record=9)
    swapped_twin = log_of([(1 - turn.agent, turn.text) for turn in logs[1].turns], 2, record=9)
    attribution = hmm.read([*logs, swapped, swapped_twin], tokenizer)
    for log, attribution_of_log in zip([swapped, swapped_twin], attribution[8:], strict=True):
        assert token_accuracy(read_tokens(log, tokenizer).agents, attribution_of_log.labels) < 0.02


# Segmenters


@pytest.mark.parametrize("name", SEGMENTERS)
@pytest.mark.parametrize("segments", [1, 2, 5, 16])
def test_bounds_tile_the_text(name, segments):
    text = disjoint(np.random.default_rng(7), 5, joiner=" ").text
    bounds = SEGMENTERS[name](text, segments)
    assert bounds[0] == 0
    assert bounds[-1] == len(text)
    assert bounds == sorted(set(bounds))
    assert len(bounds) == segments + 1


@pytest.mark.parametrize("name", SEGMENTERS)
@pytest.mark.parametrize("text", ["a", "no", "?!", "\n\n\n\n", "一二三四五六七八", "word " * 40])
def test_segmenters_return_at_most_the_given_number(name, text):
    bounds = SEGMENTERS[name](text, 4)
    assert (bounds[0], bounds[-1]) == (0, len(text))
    assert bounds == sorted(set(bounds))
    assert 2 <= len(bounds) <= 5


@pytest.mark.parametrize("name", SEGMENTERS)
def test_segmenters_separate_turns_without_common_words(name, tokenizer):
    log = disjoint(np.random.default_rng(8), 6)
    (attribution,) = BASELINES[name].read([log], tokenizer, 123)
    assert token_accuracy(read_tokens(log, tokenizer).agents, attribution.labels) == 1
    assert attribution.edges is None


def test_text_tiling_is_near_without_a_joiner(tokenizer):
    """Its gaps lie every w words, here up to 20, so a bound may be that far off."""
    rng = np.random.default_rng(10)
    log = disjoint(rng, 5, joiner=" ", sentences=40)
    bounds = segmenters.text_tiling(log.text, 5)
    for bound, (start, _, _) in zip(bounds[1:-1], log.spans[1:], strict=True):
        assert len(log.text[min(bound, start) : max(bound, start)].split()) <= segmenters.SEQUENCE_WORDS
