"""Tails against exact laws, and the corrected p-value of the best segment against simulation."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy import integrate, special, stats

import iet
from iet.audit.evidence import (
    activity_log_p,
    benjamini_hochberg,
    decoy_log_p,
    holm,
    log_tail,
    log_tails,
    segment_log_p,
)
from iet.decoding import activity
from iet.errors import InputError, ShapeError
from iet.marks.derivation import usable
from iet.marks.families import FAMILIES, Family, few_values
from tests.support.teams import team

FOURIER, GUMBEL = FAMILIES["fourier"], FAMILIES["gumbel"]


def arcsine_tail(total: float, count: int) -> float:
    """P(Σ cos U_i >= s), by inverting the characteristic function J0(t)^n."""
    integral = integrate.quad(
        lambda t: special.j0(t) ** count * math.sin(t * total) / t if t else total, 0, 60, limit=2000
    )[0]
    return 0.5 - integral / math.pi


def saddlepoint_by_bisection(total: float, count: int, family: Family) -> float:
    """Robinson's formula, unsimplified, with λ by bisection of the family's own mean."""
    if total < 0:
        return math.log1p(-math.exp(saddlepoint_by_bisection(-total, count, family))) if count >= 20 else 0.0
    x = min(total / count, 1 - 1e-9)
    low, high = 0.0, 256.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if family.mean(middle) < x else (low, middle)
    log_p = count * (family.log_mgf(low) - low * x)
    if count < 20:
        return log_p
    step = 3e-5 * (1 + low)
    variance = (family.mean(low + step) - family.mean(low - step)) / (2 * step)
    u = low * math.sqrt(count * variance)
    return log_p + u * u / 2 + special.log_ndtr(-u)


@pytest.mark.parametrize("count", [1, 7, 20, 64, 1000, 200_000])
def test_table_of_the_fourier_tail_is_exact(count: int) -> None:
    shares = np.concatenate([np.linspace(-0.99, 0.99, 45), [1e-4, -1e-4, 1e-2, 0.999, 0.9999, 1 - 1e-6, 1.0]])
    actual = log_tails(shares * count, np.full(len(shares), count), FOURIER)
    for share, log_p in zip(shares.tolist(), actual.tolist(), strict=True):
        expected = min(0.0, saddlepoint_by_bisection(share * count, count, FOURIER))
        assert log_p == pytest.approx(expected, rel=1e-8, abs=1e-11 * count)
        assert log_p == log_tail(share * count, count, FOURIER)


@pytest.mark.parametrize("count", [20, 64, 200])
@pytest.mark.parametrize("deviations", [-1.0, 0.0, 0.5, 1.0, 2.0, 4.0])
def test_fourier_tail_is_that_of_the_arcsine_law(count: int, deviations: float) -> None:
    total = deviations * math.sqrt(count / 2)
    accuracy = 0.04 if count < 64 else 0.01
    actual = math.exp(log_tail(total, count, FOURIER))
    assert actual == pytest.approx(arcsine_tail(total, count), rel=accuracy)


@pytest.mark.parametrize("count", [5, 10, 19])
def test_fourier_tail_of_few_scores_is_never_too_small(count: int) -> None:
    for deviations in (0.0, 0.5, 1.0, 2.0, 3.0):
        total = deviations * math.sqrt(count / 2)
        if total < count:
            assert math.exp(log_tail(total, count, FOURIER)) >= arcsine_tail(total, count) - 1e-9


def test_tails_stay_finite_and_fall() -> None:
    for family in (FOURIER, GUMBEL):
        assert log_tail(0.0, 0, family) == 0.0
        tails = [log_tail(share * 5000, 5000, family) for share in (-1, -0.5, 0, 0.01, 0.1, 0.5, 0.9, 1)]
        assert all(-math.inf < later <= earlier <= 0 for earlier, later in itertools.pairwise(tails))


def test_rejects_a_family_without_tail() -> None:
    with pytest.raises(InputError, match="sawtooth"):
        log_tail(1.0, 1, dataclasses.replace(FOURIER, name="sawtooth"))


def test_segments_are_tested_on_a_grid_inside_with_each_pair_once() -> None:
    rng = np.random.default_rng(2)
    scores = rng.uniform(-0.5, 1, (3000, 3)).astype(np.float32)
    pairs = rng.integers(-1, 2000, 3000)
    edges = np.unique(np.concatenate([[0, 3000], rng.integers(0, 3000, 40)]))
    starts, ends, columns = edges[:-1], edges[1:], rng.integers(0, 3, len(edges) - 1)
    actual = segment_log_p(scores, pairs, starts, ends, columns, FOURIER, 7)
    for start, end, column, log_p in zip(starts, ends, columns, actual, strict=True):
        grid = 1
        while grid * 2 <= (end - start) // 8:
            grid *= 2
        low, high = math.ceil(start / grid) * grid, end // grid * grid
        firsts = dict(zip(pairs[low:high][::-1], scores[low:high, column][::-1], strict=True))
        firsts.pop(-1, None)
        tail = log_tail(sum(map(float, firsts.values())), len(firsts), FOURIER)
        choices = (15 if grid == 1 else 9) * (3000 // grid + 1) * (3000 // 8).bit_length() * 7
        assert log_p == pytest.approx(min(0.0, tail + math.log(choices)), rel=1e-9, abs=1e-9)


def test_unmarked_text_rarely_holds_any_segment_below_the_level() -> None:
    # The hardest reader there is: for each text the best of ALL segments and keys, not a decoder's choice.
    rng = np.random.default_rng(0)
    texts, tokens, keys, level = 300, 120, 3, 0.05
    ends = [(s, e) for s in range(0, tokens, 3) for e in range(s + 8, tokens + 1, 3)]
    pairs, hits = np.arange(tokens), 0
    for _ in range(texts):
        x = np.cos(rng.uniform(0, 2 * np.pi, (tokens, keys))).astype(np.float32)
        sums = np.concatenate([np.zeros((1, keys)), np.cumsum(x, axis=0, dtype=np.float64)])
        # Test only the few segments with the largest standardised sums; the others cannot be lower.
        z = np.array([(sums[e] - sums[s]) / math.sqrt(e - s) for s, e in ends])
        best = np.argsort(z, axis=None)[-25:]
        chosen, columns = np.unravel_index(best, z.shape)
        starts, stops = np.array(ends)[chosen].T
        candidates = segment_log_p(x, pairs, starts, stops, columns, FOURIER, keys)
        hits += candidates.min() <= math.log(level)
    assert hits <= stats.binom.ppf(0.999, texts, level)


# ---------------------------------------------------------------- exponential scores, keys, many findings


@pytest.mark.parametrize("count", [1, 2, 19, 300, 100_000])
def test_gumbel_tail_is_that_of_a_gamma_law(count: int) -> None:
    totals = count * np.array([0.0, 1e-3, 0.5, 0.9, 0.999, 1.0, 1.001, 1.1, 1.5, 2.0, 5.0])
    actual = log_tails(totals, np.full(len(totals), count), FAMILIES["gumbel"])
    assert actual[0] == 0
    with np.errstate(divide="ignore"):
        expected = stats.gamma.logsf(totals, count)
    seen = np.isfinite(expected) & (expected > -600)  # scipy ends there
    np.testing.assert_allclose(actual[seen], expected[seen], rtol=1e-7, atol=1e-9)
    assert (np.diff(actual) <= 1e-12).all()


def naive_log_activity(sums: np.ndarray, counts: np.ndarray, family: Family) -> np.ndarray:
    """The mean over strengths and rates of the two-state chain's likelihood ratio, in logs."""
    values = []
    for strength in family.strengths:
        log_e = strength * sums - (counts * family.log_mgf(strength))[:, None]
        for enter in activity.ENTRY_RATES:
            leave = activity.BLOCK / activity.MEAN_SEGMENT
            p = np.log([[1 - enter, enter], [leave, 1 - leave]])
            state = np.log([[leave / (enter + leave)], [enter / (enter + leave)]]) + np.zeros(sums.shape[1])
            for b in range(len(sums)):
                if b:
                    state = np.logaddexp.reduce(p[:, :, None] + state[:, None], axis=0)
                state = state + np.array([np.zeros(sums.shape[1]), log_e[b]])
            values.append(np.logaddexp.reduce(state, axis=0))
    return special.logsumexp(values, axis=0) - math.log(len(values))


@pytest.mark.parametrize("family", list(FAMILIES.values()), ids=lambda family: family.name)
def test_activity_is_the_likelihood_ratio_of_two_states(family: Family) -> None:
    rng = np.random.default_rng(3)
    counted = rng.random(900) < 0.8
    scores = family.draw(rng, (900, 300), 0.0)
    sums, counts = activity.evidence_blocks(scores.astype(np.float32), counted)
    edges = np.append(activity.block_starts(counted), 900)
    expected = np.add.reduceat(np.where(counted[:, None], scores, 0), edges[:-1], axis=0)
    np.testing.assert_allclose(sums, expected, atol=1e-4)
    assert counts.sum() == counted.sum()
    actual = activity.log_activity(sums, counts, family)
    np.testing.assert_allclose(actual, naive_log_activity(sums.astype(float), counts, family), atol=1e-6)
    assert activity.log_activity(sums[:0], counts[:0], family).tolist() == [0.0] * 300
    with pytest.raises(ShapeError, match=r"counts: got \[3\]"):
        activity.log_activity(sums, counts[:3], family)


@pytest.mark.parametrize("family", list(FAMILIES.values()), ids=lambda family: family.name)
@pytest.mark.parametrize("tokens", [70, 500, 3000])
def test_p_values_of_absent_keys_are_uniform_in_the_tail(family: Family, tokens: int) -> None:
    rng = np.random.default_rng(tokens)
    keys = 12_000_000 // tokens // 4
    counted = np.ones(tokens, bool)
    blocks = activity.evidence_blocks(family.draw(rng, (tokens, keys), 0.0).astype(np.float32), counted)
    log_p = activity_log_p(activity.log_activity(*blocks, family), tokens, family)
    for level in (0.03, 0.01, 0.003):
        hits = int((log_p <= math.log(level)).sum())
        assert stats.binom.sf(hits - 1, keys, 1.15 * level) > 1e-4, (level, hits / keys)
        assert stats.binom.cdf(hits, keys, 0.7 * level) > 1e-4, (level, hits / keys)


@pytest.mark.parametrize("tokens", [1, 4, 12, 16, 31, 32, 48, 90, 300, 700])
@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda f: f.name)
def test_p_values_of_short_texts_and_high_levels_hold(family: Family, tokens: int) -> None:
    rng = np.random.default_rng([tokens, family.code])
    keys = min(20_000, 4_000_000 // tokens)
    blocks = activity.evidence_blocks(
        family.draw(rng, (tokens, keys), 0.0).astype(np.float32), np.ones(tokens, bool)
    )
    log_p = activity_log_p(activity.log_activity(*blocks, family), tokens, family)
    for level in (0.9, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05):
        hits = int((log_p <= math.log(level)).sum())
        assert stats.binom.sf(hits - 1, keys, min(0.999, 1.15 * level)) > 1e-4, (level, hits / keys)


def test_the_p_value_of_a_key_falls_with_its_ratio() -> None:
    ratios = np.linspace(-5, 400, 3000)
    for count in (1, 10, 33, 5000, 10**7):
        log_p = activity_log_p(ratios, count, FOURIER)
        assert (np.diff(log_p) <= 0).all()
        assert log_p[-1] < -380
    assert activity_log_p(ratios, 0, FOURIER).tolist() == [0.0] * 3000


def test_decoys_rank_a_key() -> None:
    decoys = np.array([0.0, 1.0, 2.0, 3.0])
    log_p = decoy_log_p(np.array([5.0, 3.0, 0.5, -1.0]), decoys)
    np.testing.assert_allclose(np.exp(log_p), [1 / 5, 2 / 5, 4 / 5, 1.0])


def test_holm_controls_the_familywise_error_rate() -> None:
    rng = np.random.default_rng(0)
    p = rng.random((4000, 12))
    p[:, 0] *= 1e-9  # one key is in the text
    actual = np.exp([holm(np.log(row)) for row in p])
    assert (actual[:, 0] < 1e-7).all()
    false = (actual[:, 1:] <= 0.05).any(axis=1).mean()
    assert stats.binom.sf(int(false * 4000) - 1, 4000, 0.05) > 1e-4
    assert stats.binom.cdf(int(false * 4000), 4000, 0.05) > 1e-4
    np.testing.assert_allclose(actual.min(axis=1), -np.expm1(12 * np.log1p(-p.min(axis=1))), rtol=1e-9)
    # At p below the spacing of floats near 1, and at 1.
    np.testing.assert_allclose(holm(np.array([-900.0, 0.0])), [-900 + math.log(2), 0.0])


def test_benjamini_hochberg_controls_the_false_discovery_rate() -> None:
    rng = np.random.default_rng(1)
    shares = []
    for _ in range(2000):
        p = rng.random(40)
        p[:10] *= 1e-3
        actual = benjamini_hochberg(np.log(p), 0.1)
        shares.append(actual[10:].sum() / max(1, actual.sum()))
    assert np.mean(shares) < 0.1
    assert np.mean(shares) > 0.05  # 0.1 x 30 / 40
    assert benjamini_hochberg([]).tolist() == []
    with pytest.raises(InputError, match="log_p: got \\['x'\\], expected logarithms"):
        benjamini_hochberg(["x"])  # type: ignore[list-item]
    assert benjamini_hochberg(np.log([0.01, 0.5]), 0.02).tolist() == [True, False]
    assert benjamini_hochberg(np.log([0.01, 0.5]), 0.02, dependent=True).tolist() == [False, False]
    with pytest.raises(InputError, match="log_p: got"):
        benjamini_hochberg([0.5])
    with pytest.raises(InputError, match="level: got 1"):
        benjamini_hochberg([-1.0], 1.0)


# Which keys chance would speak for


@pytest.mark.parametrize(
    ("vocab_size", "k_p"), [(3000, 1000), (2, 1), (3, 1), (32000, 6400), (32000, 1000), (6300, 100)]
)
def test_marks_of_few_values_are_not_audited(
    vocab_size: int, k_p: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert few_values(vocab_size, [k_p], FOURIER).tolist() == [True]
    monkeypatch.setattr("iet.marks.profiles.check_frequency", lambda _: None)  # as a registry that is there
    registry = team(["a"], vocab_size=vocab_size, k_p=k_p)
    with pytest.raises(InputError, match=f"k_p: got {k_p} with a vocabulary.*chance does not pass.*'a'"):
        iet.Auditor(registry)


def test_marks_of_many_values_are_audited() -> None:
    for vocab_size in (500, 32000, 32003, 128256, 151936):
        assert not few_values(vocab_size, [1, 3], FOURIER).any()
    assert not few_values(6400, [100], FOURIER).any()
    assert not few_values(257, [1], FOURIER).any()
    assert not few_values(4, [1], FOURIER).any()
    assert not few_values(30, [10], FAMILIES["gumbel"]).any()


def test_no_agent_draws_a_frequency_of_few_values() -> None:
    # V = 3000 has many: a tenth of all secrets would be such.
    registry = iet.Registry.create(None, vocab_size=3000, scheme=iet.Scheme(k_p="per-agent"))
    secrets = [n.to_bytes(32, "little") for n in range(200)]
    bad = [secret for secret in secrets if not usable(registry.profile, secret)]
    assert len(bad) > 5
    for number in range(150):
        registry.add(f"agent-{number}")
    registry.rotate("agent-0")
    assert not few_values(3000, registry.scoring_keys().k_p, FOURIER).any()
    iet.Auditor(registry)
    registry.add("chosen badly", secret=bad[0])
    with pytest.raises(InputError, match=r"leave out \(known_agents=\) \['chosen badly'\]"):
        iet.Auditor(registry)
    iet.Auditor(registry, known_agents=["agent-0"])
