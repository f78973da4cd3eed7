"""Time every decoder against the length of the text and the number of agents.

    python -m benchmarks.speed.bench_decode -o benchmarks/results/decode.json

A decoder gets what an audit gives it, scores [T, A] and the numbers of their pairs, and may leave tokens
unattributed. The floor is one pass over the scores, a copy of [T, A]. One thread, as decoders have. A
decoder is linear in T and A where its cost of one score stays the same from line to line and table to table.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.speed.suite import Contestant, Suite, main
from benchmarks.timing import timed
from iet.decoding import DECODERS, decode, forward_backward, windows
from iet.errors import IetError

TURN, STRENGTH = 200, 0.8
FLOOR = "copy of [T, A]"
Scores = NDArray[np.float32]


def marked_scores(tokens: int, agents: int) -> Scores:
    """Scores of family fourier, turns of 200 tokens: tilted arcsine draws in the speaker's column."""
    rng = np.random.default_rng(agents)
    angles = rng.random((tokens, agents), dtype=np.float32)
    angles *= 2 * np.pi
    speakers = np.repeat(rng.integers(0, agents, -(-tokens // TURN)), TURN)[:tokens]
    angles[np.arange(tokens), speakers] = rng.vonmises(0, STRENGTH, tokens)
    return np.cos(angles, out=angles)


class Text:
    """The scores of the longest text, made at first use; shorter ones are its beginning."""

    def __init__(self, tokens: int, agents: int) -> None:
        self._shape, self._scores = (tokens, agents), np.zeros((0, agents), np.float32)
        self._target = self._scores

    def first(self, tokens: int) -> tuple[Scores, NDArray[np.int64]]:
        """Return scores [T, A] and pairs [T], none of them a repeat."""
        return self._all()[:tokens], np.arange(tokens)

    def copied(self, tokens: int) -> tuple[Scores, Scores]:
        """Return what a copy is made into, and what is copied."""
        scores = self._all()[:tokens]
        return self._target[:tokens], scores

    def release(self) -> None:
        self._scores = self._target = self._scores[:0].copy()

    def _all(self) -> Scores:
        if not len(self._scores):
            self._scores = marked_scores(*self._shape)
            self._target = np.zeros_like(self._scores)
        return self._scores


def agents_suite(agents: int, lengths: tuple[int, ...], rounds: int) -> Suite:
    """Decode the same text at several lengths."""
    text = Text(max(lengths), agents)
    contestants = {}
    for decoder in DECODERS:
        read = functools.partial(_decode, decoder)
        for tokens in lengths:
            contestants[f"{decoder}, T = {tokens}"] = Contestant(
                timed(read, functools.partial(text.first, tokens)), "ours", tokens * agents
            )
    for tokens in lengths:
        contestants[f"{FLOOR}, T = {tokens}"] = Contestant(
            timed(np.copyto, functools.partial(text.copied, tokens)), "floor", tokens * agents
        )
    name = f"decoders, A = {agents}"
    floors = (f"{FLOOR}, T = {max(lengths)}",)
    check = functools.partial(validate, agents)
    return Suite(name, "ns per token·agent", contestants, floors, check, rounds, release=text.release)


def _decode(decoder: str, scores: Scores, pairs: NDArray[np.int64]) -> None:
    decode(scores, decoder, pairs=pairs, allow_unattributed=True)


def validate(agents: int) -> None:
    """Compare what takes the time in each decoder with its formula in plain NumPy, on a short text."""
    scores = marked_scores(3 * TURN, agents)
    plain = np.array([scores[t : t + 64].mean(axis=0, dtype=np.float64) for t in range(0, 3 * TURN - 63, 16)])
    if not np.allclose(windows(scores), plain, atol=1e-6):
        raise IetError(f"windows of decoder cusum differ from their means at A = {agents}")
    around = [scores[max(0, t - 32) : t + 32].sum(axis=0, dtype=np.float64) for t in range(len(scores))]
    if (decode(scores, "window").token_agents != np.argmax(around, axis=1)).any():
        raise IetError(f"decoder window differs from the best sum around each token at A = {agents}")
    ratios = (0.8 * scores[::20] - 0.15).astype(np.float32)
    both: Any = forward_backward(ratios, 12.0, 0.3), dense_posterior(ratios, 12.0, 0.3)
    for found, expected in zip(*both, strict=True):
        if not np.allclose(found, expected, atol=1e-5):
            raise IetError(f"forward_backward differs from multiplying matrices at A = {agents}")


def dense_posterior(
    log_ratios: Scores, mean_segment: float, nobody: float, stages: int = 3
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Return what `forward_backward` does, by the matrix of the whole chain, states x stages."""
    agents = log_ratios.shape[1]
    prior = np.append(np.full(agents, (1 - nobody) / agents), nobody)
    states, advance = agents + 1, stages / mean_segment
    onward = prior * (1 - np.eye(states)) / (1 - prior)[:, None]  # to somebody else
    onward[-1] = prior  # nobody may follow nobody
    chain = (1 - advance) * np.eye(stages * states) + advance * np.eye(stages * states, k=states)
    chain[(stages - 1) * states :, :states] += advance * onward
    weights = np.tile(np.exp(np.append(log_ratios, np.zeros((len(log_ratios), 1)), axis=1)), stages)
    alphas, log_ratio = [np.tile(prior / stages, stages) * weights[0]], 0.0
    for row in weights[1:]:
        log_ratio += float(np.log(alphas[-1].sum()))
        alphas.append((alphas[-1] / alphas[-1].sum()) @ chain * row)
    log_ratio += float(np.log(alphas[-1].sum()))
    beta, held = np.ones(stages * states), []
    for alpha, row in zip(alphas[::-1], weights[::-1], strict=True):
        both = (alpha * beta).reshape(stages, states).sum(axis=0)
        held.append(both / both.sum())
        beta = chain @ (beta * row)
        beta /= beta.sum()
    posterior = np.array(held[::-1])
    return posterior[:, :-1], posterior[:, -1], log_ratio


def suites(quick: bool) -> list[Suite]:
    if quick:
        return [agents_suite(agents, (300, 700), 2) for agents in (2, 20)]
    return [agents_suite(agents, (1_000, 10_000, 100_000, 1_000_000), 5) for agents in (2, 6, 16, 64)]


def bench_decode(replay: Callable[[], None]) -> None:
    replay()


if __name__ == "__main__":
    main("benchmarks.speed.bench_decode", __doc__, suites, ())
