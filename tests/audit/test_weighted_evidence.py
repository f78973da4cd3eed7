"""Evidence with weights: the null law stays, whatever the weights are."""

from __future__ import annotations

import math

import numpy as np
import pytest

import iet
from iet.audit.encode import TokenBatch
from iet.audit.evidence import activity_log_p
from iet.audit.language_model import LanguageModel
from iet.audit.score import activity_of, evidence_levels, score
from iet.decoding.activity import BLOCK, LEVELS, WeightedBlocks, evidence_blocks, log_activity
from iet.demo.conversation import converse, load_model
from iet.marks.families import FAMILIES
from iet.marks.tokenizer import Encoding
from iet.native.load import loops
from tests.support import teams

GUMBEL = FAMILIES["gumbel"]


def convolved(counts: np.ndarray, step: float = 1 / 1024) -> tuple[np.ndarray, np.ndarray]:
    """Return sums s and log P(Σ c·x >= s), from the characteristic functions on a lattice."""
    size = 1 << 17
    lattice = np.arange(size) * step
    law = np.ones(size // 2 + 1, np.complex128)
    for level in np.flatnonzero(counts):
        c = (level + 1) / LEVELS
        # Masses between neighbours, on both of them, so that the mean is exact.
        edge = np.exp(-lattice / c)
        inner = c / step * (edge * (1 - math.exp(-step / c)))
        mass = np.empty(size)
        mass[0] = 1 - inner[0]
        mass[1:] = inner[:-1] - inner[1:]
        law *= np.fft.rfft(mass) ** int(counts[level])
    masses = np.fft.irfft(law, size)
    tails = np.cumsum(masses[::-1])[::-1]
    return lattice, np.log(np.maximum(tails, 1e-300))


@pytest.mark.parametrize(
    "levels",
    [[16] * 3 + [3] * 13, [16, 12, 6, 3], [12] * 5 + [3] * 11, [*range(1, 17)], [16] * 24, [3] * 40 + [16]],
)
def test_the_tail_of_a_block_is_that_of_convolution(levels: list[int]) -> None:
    counts = np.bincount(np.array(levels) - 1, minlength=LEVELS).astype(np.int32)
    sums, log_tails = convolved(counts)
    for nats in (0.5, 2.3, 4.6, 9.2, 18.4):  # down to a tail of 1e-8
        at = int(np.searchsorted(-log_tails, nats))
        unweighted = np.array([[(sums[at] - 0.5 * (sums[1] - sums[0]))]])
        loops.unweighted_sums(counts[None], unweighted)
        actual, log_p = np.zeros(1), log_tails[at]
        loops.gamma_tails(unweighted[0], np.array([BLOCK]), actual)
        assert actual[0] == pytest.approx(log_p, abs=0.05)


def test_one_token_is_a_block_of_an_exponential_score() -> None:
    counts, scores = np.zeros((1, LEVELS), np.int32), np.array([[0.1, 1.0, 5.0, 12.0, 18.4]])
    counts[0, 5] = 1
    sums = scores * 6 / LEVELS
    loops.unweighted_sums(counts, sums)
    log_p = np.zeros(5)
    loops.gamma_tails(sums[0], np.full(5, BLOCK), log_p)
    np.testing.assert_allclose(log_p, -scores[0], atol=0.05)


@pytest.mark.parametrize("tokens", [72, 150, 700])
def test_p_values_of_unused_keys_are_uniform(tokens: int) -> None:
    rng = np.random.default_rng(tokens)
    weights = rng.choice([3, 6, 12, 16, 0], tokens, p=[0.5, 0.1, 0.1, 0.2, 0.1]).astype(np.uint8)
    weights[tokens // 3 : tokens // 2] = 3  # a predictable passage
    blocks = WeightedBlocks.of(weights, np.zeros(1, np.int64), np.array([tokens]))
    log_p = []
    for _ in range(20):
        scores = rng.exponential(size=(tokens, 5000)).astype(np.float32)
        activity = blocks.log_activity(blocks.sums(scores), GUMBEL)
        log_p.append(activity_log_p(activity, blocks.number, GUMBEL)[0])
    for level, tolerance in ((0.1, 0.06), (0.01, 0.15), (0.001, 0.4)):
        assert np.mean(np.concatenate(log_p) <= math.log(level)) == pytest.approx(level, rel=tolerance)


def test_equal_weights_change_nothing() -> None:
    scores = np.random.default_rng(1).exponential(size=(480, 5)).astype(np.float32)
    expected = log_activity(*evidence_blocks(scores, np.ones(480, np.bool_)), GUMBEL)
    for level in (16, 3):
        blocks = WeightedBlocks.of(np.full(480, level, np.uint8), np.zeros(1, np.int64), np.array([480]))
        assert blocks.number.tolist() == [480]
        np.testing.assert_allclose(blocks.log_activity(blocks.sums(scores), GUMBEL)[0], expected, atol=1e-4)


def test_texts_together_have_the_blocks_of_each_alone() -> None:
    rng = np.random.default_rng(2)
    starts, ends = np.array([0, 103, 103, 110]), np.array([100, 103, 107, 400])
    levels, scores = rng.integers(0, 17, 400).astype(np.uint8), rng.exponential(size=(400, 3)).astype("f4")
    levels[100:110] = 0
    blocks = WeightedBlocks.of(levels, starts, ends)
    together = blocks.log_activity(blocks.sums(scores), GUMBEL)
    for d, (start, end) in enumerate(zip(starts, ends, strict=True)):
        one = WeightedBlocks.of(levels[start:end], np.zeros(1, np.int64), np.array([end - start]))
        alone = one.log_activity(one.sums(scores[start:end]), GUMBEL)
        np.testing.assert_allclose(together[d], alone[0], atol=1e-12)
        assert blocks.number[d] == one.number[0]
    assert together[1].tolist() == together[2].tolist() == [0, 0, 0]
    squares = levels.astype(int) ** 2
    sizes = np.add.reduceat(squares[blocks.tokens], blocks.firsts)[:-1]
    assert sizes.max() <= 2 * 16**2 + sizes.mean()


def test_sums_over_spans_give_the_activity_of_token_scores() -> None:
    registry = iet.Registry.create(None, tokenizer="iet:demo", scheme=iet.Scheme(family="gumbel"))
    for name in teams.NAMES:
        registry.add(name, secret=teams.secret(name))
    ids = np.random.default_rng(3).integers(0, 8, 300)  # many repeat
    plan = iet.Auditor(registry).plan
    (reader,) = plan.readers
    batch = TokenBatch.of(Encoding(ids), None, reader.keys, None)
    levels = evidence_levels(batch, reader.keys)
    assert levels is not None
    assert set(levels.tolist()) == {3, 6, 12, 16}
    matrix = score(plan, reader, batch)
    evidence = np.where(batch.scored & ~batch.repeated, levels, 0).astype(np.uint8)
    blocks = WeightedBlocks.of(evidence, batch.starts, batch.ends)
    expected = blocks.log_activity(blocks.sums(matrix.scores), GUMBEL)[0]
    np.testing.assert_allclose(activity_of(batch, reader.keys, levels).log_ratios[0], expected, atol=1e-4)


def test_marks_of_engines_are_weighted_by_tokens_and_by_sums() -> None:
    ids = np.random.default_rng(4).integers(0, 30, 400)
    agents = {f"a{i}": i + 1 for i in range(90)}
    few = iet.EngineKeys("vllm-gumbel", {name: agents[name] for name in ("a0", "a1", "a2")}, vocab_size=64)
    many = iet.EngineKeys("vllm-gumbel", agents, vocab_size=64)
    log_p = []
    for keys in (few, many):
        plan = iet.Auditor(keys).plan
        batch = TokenBatch.of(Encoding(ids), None, plan.readers[0].keys, None)
        matrix = score(plan, plan.readers[0], batch)
        log_p.append(matrix.log_p[0, :3])
        levels = evidence_levels(batch, keys.scoring_keys())
        assert levels is not None
        edges, scores = np.array([0, 150, 400]), keys.scoring_keys().scores(batch.joined, 1)
        weighted = np.where(batch.scored, levels, 0).astype(np.uint8)
        expected = np.add.reduceat(scores * (weighted / LEVELS)[:, None], edges[:-1], axis=0)
        np.testing.assert_allclose(
            batch.weighted_sums(edges, keys.scoring_keys(), weighted), expected, atol=1e-3
        )
    np.testing.assert_allclose(*log_p, atol=1e-3)


def test_a_cosine_mark_has_no_weights() -> None:
    registry = teams.team()
    plan = iet.Auditor(registry).plan
    batch = TokenBatch.of(Encoding(np.arange(1, 50)), None, plan.readers[0].keys, None)
    assert evidence_levels(batch, plan.readers[0].keys) is None


def test_words_of_a_known_context_are_no_evidence() -> None:
    model, tokenizer = load_model()
    registry = iet.Registry.create(None, tokenizer=tokenizer, scheme=iet.Scheme(family="gumbel"))
    for name in teams.NAMES:
        registry.add(name, secret=teams.secret(name))
    text = converse(model, tokenizer, registry, [["critic"]], temperature=0.7, turn_tokens=(150, 150)).text
    first, second = text[: len(text) // 2], text[len(text) // 2 :]
    alone = iet.Auditor(registry, model="iet:demo").audit(text)
    first_half = iet.Auditor(registry, model=LanguageModel("iet:demo", context=text)).audit(first)
    half = iet.Auditor(registry, model=LanguageModel("iet:demo", context=first)).audit(second)
    assert alone.log_p < -20
    assert first_half.log_p == 0
    assert half.log_p < -10
