"""The paper's baselines that need no model: matching, HMM, segmenters."""

from __future__ import annotations

import inspect
import itertools
import sys

import numpy as np
import pytest

from iet.audit.metrics import edge_similarity, token_accuracy
from iet.errors import BackendUnavailable, InputError, ShapeError
from tests.support.paper_logs import log_of, prose, words

sklearn_text = pytest.importorskip("sklearn.feature_extraction.text")
pytest.importorskip("langchain_text_splitters")
pytest.importorskip("nltk")

from benchmarks.paper.baselines import BASELINES, hmm, segmenters  # noqa: E402 - after the skips
from benchmarks.paper.baselines.reading import (  # noqa: E402  # noqa: E402
    best_one_to_one,
    match_labels,
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
    """A log in which no two turns share a word; turns are of equal length."""
    said = [(i % agents, prose(rng, words(rng, 12, chr(97 + i) + "o"), sentences)) for i in range(turns)]
    return log_of(said, agents, joiner=joiner)


# Tokens and units


def test_a_token_belongs_to_the_turn_of_its_last_character(tokenizer):
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


def test_what_is_no_log_for_a_baseline_is_refused(tokenizer):
    with pytest.raises(InputError, match="record 7: got a text without tokens"):
        read_tokens(log_of([(0, "")], 2, record=7), tokenizer)
    with pytest.raises(InputError, match="record 7: got a turn of agent 2, expected 0 to 1"):
        read_tokens(log_of([(2, "so")], 2, record=7), tokenizer)
    with pytest.raises(InputError, match="unit_tokens: got 0"):
        unit_bounds(read_tokens(log_of([(0, "so")], 2), tokenizer), 0)


# Matching


@pytest.mark.parametrize("seed", range(5))
def test_the_best_assignment_is_the_best_of_all(seed):
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


def test_renamed_speakers_are_found_again():
    truth = np.array([2, 2, 0, 1, 1, 1, 0, 2])
    renamed = np.array([1, 2, 0])[truth]
    np.testing.assert_array_equal(match_labels(renamed, truth), truth)


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
    with pytest.raises(InputError, match="got 3 different ones, expected at most 2"):
        match_segments(np.array([0, 1, 2]), np.array([0, 1, 1]), np.array([0, 1, 1]))


def test_labels_that_cannot_be_matched_are_refused():
    with pytest.raises(ShapeError, match="labels"):
        best_one_to_one([0, 1], [0])
    with pytest.raises(InputError, match="got -1"):
        best_one_to_one([0, -1], [0, 1])


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
def test_viterbi_finds_the_likeliest_of_all_paths(seed, stay):
    log_emissions = np.random.default_rng(seed).normal(size=(6, 3)) * 2
    assert tuple(hmm.viterbi(log_emissions, stay).tolist()) == paths_by_force(log_emissions, stay)


def test_viterbi_goes_on_where_emissions_say_nothing():
    log_emissions = np.zeros((9, 4))
    log_emissions[4, 2] = 1.0
    assert set(hmm.viterbi(log_emissions, 0.9).tolist()) == {2}
    with pytest.raises(InputError, match="stay: got 1"):
        hmm.viterbi(log_emissions, 1)
    with pytest.raises(ShapeError, match="log_emissions"):
        hmm.viterbi(np.zeros((0, 4)), 0.5)


def by_vocabulary(records, agents, rng, own=6, common=0):
    """Logs whose agents speak words of their own and `common` shared ones."""
    shared = words(rng, common, "x")
    vocabularies = [words(rng, own, "eiou"[a] + "k") + shared for a in range(agents)]
    order = [*range(agents), *reversed(range(agents))]
    return [
        log_of([(a, prose(rng, vocabularies[a], 8)) for a in order], agents, record=record)
        for record in range(records)
    ]


def test_similarities_equal_scikit_learns_on_the_other_records(tokenizer):
    rng = np.random.default_rng(3)
    logs = by_vocabulary(4, 3, rng, common=20)
    logs.append(log_of([(turn.agent, turn.text + " anew") for turn in logs[0].turns], 3, record=0))
    units = [[turn.text for turn in log.turns] + ["neverseen"] for log in logs]
    for log, texts, cosines in zip(logs, units, hmm.similarities(logs, units), strict=True):
        others = [turn for other in logs if other.record != log.record for turn in other.turns]
        fitted = sklearn_text.TfidfVectorizer().fit([turn.text for turn in others])
        prototypes = fitted.transform(
            [" ".join(turn.text for turn in others if turn.agent == agent) for agent in range(3)]
        )
        expected = (fitted.transform(texts) @ prototypes.T).toarray()
        np.testing.assert_allclose(cosines, expected, atol=1e-12)


def test_similarities_in_a_log_equal_scikit_learns_on_its_other_units():
    (log,) = by_vocabulary(1, 3, np.random.default_rng(3), common=20)
    units = [turn.text for turn in log.turns] + ["neverseen"]
    truth = np.array([*(turn.agent for turn in log.turns), 0])
    for u, cosines in enumerate(hmm.own_similarities(units, truth, 3)):
        rest = [(a, text) for i, (a, text) in enumerate(zip(truth, units, strict=True)) if i != u]
        fitted = sklearn_text.TfidfVectorizer().fit([text for _, text in rest])
        prototypes = fitted.transform(
            [" ".join(text for a, text in rest if a == agent) for agent in range(3)]
        )
        expected = (fitted.transform([units[u]]) @ prototypes.T).toarray()[0]
        np.testing.assert_allclose(cosines, expected, atol=1e-12)
    assert not hmm.own_similarities(["!", "?"], np.array([0, 1]), 2).any()


@pytest.mark.parametrize("read", [hmm.read, hmm.read_own], ids=["of others", "of the log itself"])
def test_agents_with_words_of_their_own_are_named(tokenizer, read):
    logs = by_vocabulary(3, 4, np.random.default_rng(4))
    for log, found in zip(logs, read(logs, tokenizer), strict=True):
        # A unit may hold nothing but the end of a word: it goes with its neighbour before or after.
        assert token_accuracy(read_tokens(log, tokenizer).agents, found.labels) > 0.99
        assert edge_similarity(log.edges, found.edges) == pytest.approx(1)
        assert not found.matched
        assert found.failures == 0


def test_a_record_never_describes_its_own_agents(tokenizer):
    """In one record agents 0 and 1 have changed their words: so they are taken for each other there."""
    logs = by_vocabulary(8, 2, np.random.default_rng(5))
    swapped = log_of([(1 - turn.agent, turn.text) for turn in logs[0].turns], 2, record=9)
    again = log_of([(1 - turn.agent, turn.text) for turn in logs[1].turns], 2, record=9)
    found = hmm.read([*logs, swapped, again], tokenizer)
    for log, one in zip([swapped, again], found[8:], strict=True):
        assert token_accuracy(read_tokens(log, tokenizer).agents, one.labels) < 0.02


def test_the_hmm_refuses_what_it_cannot_learn_from(tokenizer):
    logs = by_vocabulary(2, 2, np.random.default_rng(6))
    with pytest.raises(InputError, match="fewer than two records"):
        hmm.read(logs[:1], tokenizer)
    with pytest.raises(InputError, match=r"got some of \[2, 3\] agents"):
        hmm.read([*logs, *by_vocabulary(1, 3, np.random.default_rng(6))], tokenizer)
    with pytest.raises(InputError, match="got no word"):
        hmm.read([log_of([(0, "!"), (1, "?")], 2, record=r) for r in range(2)], tokenizer)


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
def test_any_text_gets_at_most_the_segments_asked_for(name, text):
    bounds = SEGMENTERS[name](text, 4)
    assert (bounds[0], bounds[-1]) == (0, len(text))
    assert bounds == sorted(set(bounds))
    assert 2 <= len(bounds) <= 5


@pytest.mark.parametrize("name", SEGMENTERS)
def test_turns_without_a_word_in_common_are_told_apart(name, tokenizer):
    log = disjoint(np.random.default_rng(8), 6)
    (found,) = BASELINES[name].read([log], tokenizer, 123)
    assert token_accuracy(read_tokens(log, tokenizer).agents, found.labels) == 1
    assert found.matched
    assert found.edges is None


def test_semantic_bow_needs_no_joiner(tokenizer):
    log = disjoint(np.random.default_rng(9), 6, joiner=" ")
    (found,) = BASELINES["semantic-bow"].read([log], tokenizer, 123)
    assert token_accuracy(read_tokens(log, tokenizer).agents, found.labels) == 1


def test_text_tiling_is_near_without_a_joiner(tokenizer):
    """Its gaps lie every w words, here up to 20, so a bound may be that far off."""
    rng = np.random.default_rng(10)
    log = disjoint(rng, 5, joiner=" ", sentences=40)
    bounds = segmenters.text_tiling(log.text, 5)
    for bound, (start, _, _) in zip(bounds[1:-1], log.spans[1:], strict=True):
        assert len(log.text[min(bound, start) : max(bound, start)].split()) <= segmenters.SEQUENCE_WORDS


def test_recursive_is_blind_to_words():
    """The same lengths and separators give the same bounds."""
    a = disjoint(np.random.default_rng(11), 6, joiner=" ").text
    b = "".join("x" if c.isalpha() else c for c in a)
    assert segmenters.recursive(a, 6) == segmenters.recursive(b, 6)


@pytest.mark.parametrize("name", SEGMENTERS)
def test_segmenters_refuse_nonsense(name):
    with pytest.raises(InputError, match="text: got an empty one"):
        SEGMENTERS[name]("", 2)
    with pytest.raises(InputError, match="segments: got 0"):
        SEGMENTERS[name]("so", 0)


@pytest.mark.parametrize(
    ("name", "module"),
    [("recursive", "langchain_text_splitters"), ("texttiling", "nltk.tokenize.texttiling")],
)
def test_a_missing_package_is_named(monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BackendUnavailable, match=rf"{module} is missing: pip install .*\[paper\]"):
        SEGMENTERS[name]("some text", 2)


def test_text_tiling_refuses_what_nltk_refuses():
    with pytest.raises(InputError, match="text: got 1000001 characters"):
        segmenters.text_tiling("a" * (segmenters.MOST_CHARACTERS + 1), 2)


# The dict


def test_every_baseline_says_what_it_is():
    assert [entry.name for entry in BASELINES.values()] == [
        "ChatGPT",
        "DeepSeek",
        "Bedrock",
        "HMM / Viterbi",
        "HMM / Viterbi, of the log itself",
        "Recursive",
        "Semantic-BoW",
        "TextTiling",
        *(f"{name}, in order" for name in ("Recursive", "Semantic-BoW", "TextTiling")),
    ]
    assert [name for name, entry in BASELINES.items() if entry.edges] == ["hmm", "hmm-own"]
    for entry in BASELINES.values():
        parameters = inspect.signature(entry.read).parameters
        assert list(parameters)[:3] == ["logs", "tokenizer", "seed"]
        required = {
            name for name, p in parameters.items() if p.default is p.empty and p.kind is p.KEYWORD_ONLY
        }
        assert set(entry.needs) == required
        assert entry.source


@pytest.mark.parametrize("name", ["hmm", "hmm-own", *SEGMENTERS])
def test_readers_repeat_themselves_and_label_every_token(name, tokenizer):
    logs = by_vocabulary(2, 3, np.random.default_rng(12), common=10)
    first, second = (BASELINES[name].read(logs, tokenizer, seed) for seed in (123, 124))
    for log, a, b in zip(logs, first, second, strict=True):
        np.testing.assert_array_equal(a.labels, b.labels)
        assert a.labels.dtype == np.int64
        assert len(a.labels) == len(tokenizer.encode(log.text).token_ids)
        assert set(a.labels.tolist()) <= {0, 1, 2}
