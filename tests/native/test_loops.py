"""The compiled module's loops over arrays against their twins in `tests/oracle`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from iet.native import load
from tests import oracle
from tests.support.conditions import each_isa

pytestmark = pytest.mark.skipif(load.cpu is None, reason="the compiled module is not in use")

Draw = np.random.Generator
TOKENS, AGENTS = 230, 5


def _scores(draw: Draw, turn: int) -> Any:
    """Both precisions, both orders, and columns of a wider array."""
    scores = draw.exponential(size=(TOKENS, 2 * AGENTS))[:, ::2].astype(("<f4", "<f8")[turn % 2])
    return (scores, np.asfortranarray(scores), np.repeat(scores, 2, axis=1)[:, ::2])[turn % 3]


def _runs(draw: Draw) -> Any:
    return np.repeat(draw.integers(-1, AGENTS, TOKENS), draw.integers(1, 12, TOKENS))[:TOKENS].astype(
        np.int32
    )


def _pairs(draw: Draw) -> Any:
    """Numbers by first occurrence, with gaps and a repeated passage."""
    numbers, chosen = {-1: -1}, draw.integers(0, 90, TOKENS)
    chosen[150:220] = chosen[10:80]
    chosen[draw.random(TOKENS) < 0.1] = -1
    return np.array([numbers.setdefault(int(n), len(numbers) - 1) for n in chosen])


def _posterior(draw: Draw) -> Any:
    sharp = draw.dirichlet(np.full(AGENTS + 1, 0.05), TOKENS).astype(np.float32)
    return sharp[:, :AGENTS], np.ascontiguousarray(sharp[:, AGENTS])


def _weights(draw: Draw) -> Any:
    return (draw.random(TOKENS) * (draw.random(TOKENS) < 0.8)).astype(np.float32)


STARTS, ENDS = np.array([0, 70, 73, 120]), np.array([70, 72, 120, 228])
FACTORS = np.array([0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F], np.uint64)


def _number_pairs(draw: Draw, turn: int) -> tuple[Any, ...]:
    scored = (draw.random(TOKENS) < 0.9) & (np.arange(TOKENS) >= 2)
    return (
        draw.integers(0, 7, TOKENS),
        scored,
        FACTORS,
        64 - 9,
        np.full(512, -1, np.int32),
        np.full(TOKENS, -1),
    )


def _number_texts(draw: Draw, turn: int) -> tuple[Any, ...]:
    scored = draw.random(TOKENS) < 0.9
    for start, end in zip(STARTS.tolist(), ENDS.tolist(), strict=True):
        scored[start : min(start + 2, end)] = False
    slots, numbers = np.empty(256, np.int32), np.full(TOKENS, -1)
    back = turn % 2
    ids = draw.integers(0, 4, TOKENS)
    return ids, scored, FACTORS[: 3 - back], back, STARTS, ENDS, slots, numbers, np.zeros(TOKENS, np.bool_)


def _merge_numbers(draw: Draw, turn: int) -> tuple[Any, ...]:
    numbers, other_numbers = np.full((2, TOKENS), -1)
    for start, end in zip(STARTS.tolist(), ENDS.tolist(), strict=True):
        for array, limit in ((numbers, 30), (other_numbers, 50)):
            first_seen = dict[int, int]()
            drawn = draw.integers(0, limit, end - start).tolist()
            array[start:end] = [first_seen.setdefault(number, len(first_seen)) for number in drawn]
    numbers[::9] = other_numbers[::9] = -1
    firsts = np.empty((2, 120), np.int64)
    return numbers, other_numbers, STARTS, ENDS, firsts, np.full(TOKENS, -1), np.zeros(TOKENS, np.bool_)


def _boundaries(draw: Draw, turn: int) -> tuple[Any, ...]:
    strengths = draw.uniform(0.1, 2, AGENTS)
    return _scores(draw, turn), _weights(draw), strengths, strengths**2 / 3, 1 + turn % 5, _runs(draw)


def _spans(draw: Draw) -> tuple[Any, Any]:
    edges = np.sort(draw.integers(0, TOKENS + 1, (9, 2)), axis=1)
    return edges[:, 0].copy(), edges[:, 1].copy()


def _share_intervals(draw: Draw, turn: int) -> tuple[Any, ...]:
    starts, ends = _spans(draw)
    return (
        *(_posterior(draw)[0], starts, ends, draw.integers(0, AGENTS, 9), 0.05),
        *(np.empty(TOKENS), np.empty((3, 65)), np.zeros(9), np.zeros(9)),
    )


def _distinct_sums(draw: Draw, turn: int) -> tuple[Any, ...]:
    starts, ends = _spans(draw)
    seen, columns = np.full(TOKENS, -1, np.int32), draw.integers(0, AGENTS, 9)
    return _scores(draw, turn), _pairs(draw), starts, ends, columns, seen, np.zeros(9), np.zeros(9, np.int64)


def _binomial(draw: Draw, turn: int) -> tuple[Any, ...]:
    trials = draw.integers(0, 3000, 40)
    return draw.integers(-2, trials + 3), trials, (0.5, 0.03)[turn % 2], np.zeros(40)


def _most_probable_labels(draw: Draw, turn: int) -> tuple[Any, ...]:
    posterior, null_posterior = np.empty((TOKENS, AGENTS), np.float32), np.empty(TOKENS, np.float32)
    return (
        *_posterior(draw),
        1 + turn % 3,
        turn % 2 == 0,
        posterior,
        null_posterior,
        np.empty(TOKENS, np.int32),
    )


def _log_ratios(draw: Draw, turn: int) -> tuple[Any, ...]:
    strengths = draw.uniform(0.1, 2, (4, AGENTS))
    ratios = np.empty((4, TOKENS, AGENTS), np.float32)
    return _scores(draw, turn), _weights(draw), strengths, strengths**2 / 3, turn % 2 == 0, ratios


def _clipped_ratios(draw: Draw, turn: int) -> tuple[Any, ...]:
    strengths = draw.uniform(0.1, 2, (4, AGENTS))
    ratios = np.empty((4, TOKENS, AGENTS + 1), np.float32)
    scores = _scores(draw, turn)
    scores[3] = np.nan
    return scores, _weights(draw), strengths, strengths**2 / 3, 0.7, ratios


def _occupancy_sums(draw: Draw, turn: int) -> tuple[Any, ...]:
    gamma, kind = _posterior(draw)[0], ("<f4", "<f8")[turn % 2]
    total, tokens = np.zeros(AGENTS), np.zeros(AGENTS)
    return gamma.astype(kind), _scores(draw, turn), _weights(draw).astype(kind), total, tokens


def _block_sums(draw: Draw, turn: int) -> tuple[Any, ...]:
    block = 4 + turn
    count = -(-TOKENS // block)
    sums, weights = np.zeros((count, AGENTS), np.float32), np.zeros(count, np.float32)
    return _scores(draw, turn), _weights(draw), block, sums, weights


def _counted_sums(draw: Draw, turn: int) -> tuple[Any, ...]:
    edges, sums = np.array([0, 5, 6, 9, 16]), np.zeros((16, AGENTS), np.float32)
    return _scores(draw, turn), draw.random(TOKENS) < 0.9, STARTS, ENDS, edges, sums


def _unweighted_sums(draw: Draw, turn: int) -> tuple[Any, ...]:
    counts = draw.poisson((0.3, 2)[turn % 2], (20, 16)).astype(np.int32)
    counts[0], counts[1, 3] = 0, 16 * (turn % 3 == 0)
    columns = 70 if turn % 3 == 1 else AGENTS  # many are interpolated
    return counts, counts @ np.arange(1, 17)[:, None] / 16 * draw.uniform(0, 4, (20, columns)) ** 2


def _times_before(draw: Draw, turn: int) -> tuple[Any, ...]:
    return _pairs(draw), STARTS, ENDS, np.zeros(TOKENS, np.int32), np.zeros(TOKENS, np.int32)


def _far_sources(draw: Draw, turn: int) -> tuple[Any, ...]:
    runs, shortest = _pairs(draw), 16 if turn % 2 else 1
    runs[: shortest - 1] = -1  # a run is named by its last token
    return runs, 100, shortest, np.full(TOKENS, -1), np.arange(TOKENS)


def _fresh_weights(draw: Draw, turn: int) -> tuple[Any, ...]:
    return _pairs(draw), 30, np.full(TOKENS + 1, -31), np.zeros(TOKENS, np.float32)


def _shared_weights(draw: Draw, turn: int) -> tuple[Any, ...]:
    pairs = _pairs(draw)
    counts, weights = np.zeros(pairs.max() + 2, np.int32), np.zeros(TOKENS, np.float32)
    return pairs, 30, np.arange(1, 60, dtype=np.float32) ** -0.75, counts, weights


def _absorb_short_runs(draw: Draw, turn: int) -> tuple[Any, ...]:
    return *_posterior(draw), 1 + 3 * turn, np.empty(TOKENS + 1, np.int64), _runs(draw)


def _gamma(draw: Draw, turn: int) -> tuple[Any, ...]:
    counts = draw.integers(0, 400, 40)
    return counts * draw.uniform(0.7, 2, 40), counts, np.zeros(40)


def _exponentials(draw: Draw, turn: int, texts: int) -> Any:
    agents = 1 + turn % 9 if turn % 4 else 1 + turn % 3 * 8  # rows that are and are not whole vectors
    ratios = np.ones((texts, TOKENS, agents + 1), np.float32)
    ratios[..., :-1] = np.exp(draw.normal(-0.2, (1, 8)[turn % 2], ratios[..., :-1].shape))
    return ratios


def _prior(draw: Draw, turn: int, agents: int) -> Any:
    prior = draw.dirichlet(np.ones(agents + 1))
    if turn % 5 == 4:  # without a null state
        prior[-1] = 0
    return prior / prior.sum()


def _posteriors(draw: Draw, turn: int) -> tuple[Any, ...]:
    (ratios,) = _exponentials(draw, turn, 1)
    agents, cuts = ratios.shape[1] - 1, np.array([0, 1, 70, TOKENS] if turn % 2 else [0, TOKENS])
    law = 1000 if turn % 4 else 50, _prior(draw, turn, agents), 1 + turn % 4, draw.uniform(0, 90)
    posterior, null_posterior = np.empty((TOKENS, agents), np.float32), np.empty(TOKENS, np.float32)
    gap = (np.nan, 30.0)[turn % 2]
    return ratios, cuts, *law, gap, posterior, null_posterior, np.zeros(len(cuts) - 1)


def _likelihoods(draw: Draw, turn: int) -> tuple[Any, ...]:
    ratios = _exponentials(draw, turn, 1 + turn % 4)
    chains = 1 + turn % 17
    priors = np.array([_prior(draw, turn, ratios.shape[2] - 1) for _ in range(chains)])
    gaps = np.where(draw.random(chains) < 0.5, np.nan, draw.uniform(1, 90, chains))
    return ratios, TOKENS, draw.uniform(0, 90, chains), gaps, priors, np.zeros((len(ratios), chains))


def _two_states(draw: Draw, turn: int) -> tuple[Any, ...]:
    ratios, edges = np.exp(draw.normal(0, 4, (TOKENS, 1 + turn))), np.array([0, 1, 9, 9, 40, TOKENS])
    return ratios, 1 + turn, edges, np.array([0.1, 0.002]), 0.92, np.zeros((5, 2, 1 + turn))


def _priors(draw: Draw, turn: int) -> tuple[Any, ...]:
    null_rates = draw.random(3) * (draw.random(3) < 0.7)
    return draw.dirichlet(np.full(AGENTS, 0.05)), null_rates, 4, np.empty((12, AGENTS + 1))


def _mean_start(draw: Draw, turn: int) -> tuple[Any, ...]:
    joint = draw.normal(0, (1, 40)[turn % 2], (1 + turn % 4, 12))
    matrix = draw.normal(size=(4, 4))
    plausible, log_strengths = matrix[0, : len(joint)], matrix[1, : len(joint)]
    return joint, plausible, *matrix[2:], np.array([0.02, 0.5, 0.98]), log_strengths, np.empty(4)


def _mean_length(draw: Draw, turn: int) -> tuple[Any, ...]:
    return draw.normal(0, 9, 5), draw.uniform(5, 900, 5), 75.0, 1.0, np.empty(2)


def _shares(draw: Draw, turn: int) -> tuple[Any, ...]:
    return *_posterior(draw), 1 + turn, draw.dirichlet(np.ones(AGENTS)), turn / 24, np.empty(AGENTS)


def _strengths(draw: Draw, turn: int) -> tuple[Any, ...]:
    tokens = draw.uniform(0, 900, AGENTS) * (draw.random(AGENTS) < turn / 12)
    grid = np.linspace(0, 4, 512)
    table = grid, grid / 2 + grid**2 / 16, 0.5 + grid / 8
    return (
        tokens * draw.uniform(-0.2, 3.5, AGENTS),
        tokens,
        turn / 6,
        30.0,
        *table,
        0.2,
        3.9,
        np.empty(AGENTS),
    )


def _windows(draw: Draw, turn: int) -> tuple[Any, ...]:
    width, step = (30, 16) if turn % 2 else (5, 7)
    count = (TOKENS - width) // step + 1
    return _scores(draw, turn), width, step, np.zeros(AGENTS), np.empty((count, AGENTS))


def _margin(draw: Draw, turn: int) -> tuple[Any, ...]:
    return _scores(draw, turn)[:, : 1 + turn % AGENTS], np.empty(TOKENS)


def _match_spelling(draw: Draw, turn: int) -> tuple[Any, ...]:
    """Tokens of 1 to 3 letters, and of none at last; one letter is another in every third text."""
    lengths = np.append(draw.integers(1, 4, 40), 0)
    starts, letters = np.cumsum(lengths) - lengths, draw.integers(97, 100, lengths.sum()).astype(np.uint8)
    ids = draw.integers(0, 41 if turn % 4 == 3 else 40, TOKENS)
    text = [letters[starts[i] : starts[i] + lengths[i]] for i in ids.tolist()]
    raw = np.concatenate([*text, *[letters[:1]] * (turn % 4 == 2)])
    if turn % 3 == 2:
        raw[200] ^= 1
    return ids, starts, lengths, letters, raw, np.full(TOKENS, -1)


def _column_summary(draw: Draw, turn: int) -> tuple[Any, ...]:
    boundaries, columns = np.sort(draw.integers(0, TOKENS + 1, 10)), draw.integers(0, AGENTS, 9)
    return _posterior(draw)[0], boundaries, columns, np.zeros(9), np.zeros(9, np.float32)


def _leads(draw: Draw, turn: int) -> tuple[Any, ...]:
    width, step, agents = 1 + turn, (16, 7, 1)[turn % 3], 1 + turn % AGENTS
    starts, ends = _spans(draw)
    ends = np.where(turn % 2, np.minimum(ends, starts + 3), ends)  # spans without a window
    sides = np.stack([starts, ends, draw.integers(0, agents, 9)], axis=1)
    f = draw.normal(size=((TOKENS - width) // step + 1, agents))
    return f, sides, width, step, 1 + turn % 9, turn % 4 < 2, np.empty(agents), np.empty(9)


def _fragments(draw: Draw, turn: int) -> tuple[Any, ...]:
    symbols, shortest = draw.integers(0, (4, 1 << 32)[turn % 2], TOKENS).astype(np.uint64), 4 << turn % 3
    count = TOKENS // shortest + 1
    return symbols, shortest, np.uint64(shortest - 1), np.zeros(count, np.int64), np.zeros(count, np.uint64)


def _count_fragments(draw: Draw, turn: int) -> tuple[Any, ...]:
    slots = 64 << turn % 3  # the smallest table cannot take all
    table = np.where(draw.random(slots) < 0.5, draw.integers(1, 300, slots), 0).astype(np.uint64)
    hashes = draw.integers(1, 300, 90).astype(np.uint64)
    return hashes, 7, table, np.zeros(slots, np.uint32), np.zeros(slots, np.int64)


DRAWN: dict[str, Callable[[Draw, int], tuple[Any, ...]]] = {
    "number_pairs": _number_pairs,
    "number_texts": _number_texts,
    "mark_repeats": lambda draw, turn: (_pairs(draw), np.zeros(TOKENS, np.bool_)),
    "times_before": _times_before,
    "merge_numbers": _merge_numbers,
    "far_sources": _far_sources,
    "fresh_weights": _fresh_weights,
    "shared_weights": _shared_weights,
    "counted_sums": _counted_sums,
    "unweighted_sums": _unweighted_sums,
    "block_sums": _block_sums,
    "log_ratios": _log_ratios,
    "clipped_ratios": _clipped_ratios,
    "occupancy_sums": _occupancy_sums,
    "most_probable_labels": _most_probable_labels,
    "place_boundaries": _boundaries,
    "absorb_short_runs": _absorb_short_runs,
    "share_intervals": _share_intervals,
    "distinct_sums": _distinct_sums,
    "binomial_tails": _binomial,
    "gamma_tails": _gamma,
    "posteriors": _posteriors,
    "log_likelihoods": _likelihoods,
    "two_states": _two_states,
    "longest_repeat": lambda draw, turn: (_pairs(draw),),
    "fill_priors": _priors,
    "mean_start": _mean_start,
    "mean_length": _mean_length,
    "set_shares": _shares,
    "set_strengths": _strengths,
    "windows": _windows,
    "margin": _margin,
    "match_spelling": _match_spelling,
    "column_summary": _column_summary,
    "leads": _leads,
    "hash_fragments": _fragments,
    "count_fragments": _count_fragments,
}


READING = ("longest_repeat",)  # they write nothing


def test_every_loop_has_a_twin_and_test_data() -> None:
    assert set(oracle.LOOPS) == set(DRAWN) == {name for name in dir(load.cpu.loops) if name[0] != "_"}


def _calls(name: str) -> Iterator[tuple[Any, ...]]:
    draw = np.random.default_rng(list(name.encode()))
    for turn in range(24):
        yield DRAWN[name](draw, turn)


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_loops_equal_their_twins(name: str) -> None:
    twin, native = oracle.LOOPS[name], getattr(load.cpu.loops, name)
    changed = 0
    for arguments in _calls(name):
        ours, theirs = copy.deepcopy(arguments), copy.deepcopy(arguments)
        with np.errstate(over="ignore"):
            assert native(*ours) == twin(*theirs)
        for actual, expected, argument in zip(ours, theirs, arguments, strict=True):
            np.testing.assert_array_equal(actual, expected, strict=True)
            changed += not np.array_equal(actual, argument)
    assert changed >= 12 or name in READING  # the draws give it something to do


@pytest.mark.parametrize("name", ["log_likelihoods", "posteriors", "two_states"])
def test_instruction_sets_agree(name: str) -> None:
    results, native = list[Any](), getattr(load.cpu.loops, name)
    for _ in each_isa():
        calls = [copy.deepcopy(call) for call in _calls(name)]
        for call in calls:
            native(*call)
        results.append(calls)
    for result in results[:-1]:
        for actual, expected in zip(result, results[-1], strict=True):
            for ours, theirs in zip(actual, expected, strict=True):
                np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_rejects_other_arrays(name: str) -> None:
    arguments, native = next(_calls(name)), getattr(load.cpu.loops, name)
    for i, value in enumerate(arguments):
        if isinstance(value, np.ndarray):
            for wrong in (np.empty(value.shape, np.float16), value[None], value.tolist()):
                with pytest.raises(TypeError):
                    native(*arguments[:i], wrong, *arguments[i + 1 :])
    if name in READING:
        return
    arguments[-1].setflags(write=False)
    with pytest.raises(TypeError):
        native(*arguments)
