"""Scores of made-up texts."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from iet.marks.families import FAMILIES

FOURIER = FAMILIES["fourier"]


def synthetic(rng, turns, agents, strength=0.8, length=(80, 320)):
    """Scores of turns under marks of known strength: cosines of von Mises angles are tilted arcsine draws."""
    speakers = [int(rng.integers(agents))]
    while len(speakers) < turns:
        speakers.append(int((speakers[-1] + rng.integers(1, agents)) % agents))
    truth = np.repeat(speakers, rng.integers(*length, turns))
    scores = np.cos(2 * np.pi * rng.random((len(truth), agents)))
    scores[np.arange(len(truth)), truth] = np.cos(rng.vonmises(0, strength, len(truth)))
    return scores.astype(np.float32), truth


def score_matrices(max_tokens=40, max_agents=4):
    shapes = st.tuples(st.integers(0, max_tokens), st.integers(1, max_agents), st.integers(0, 2**32 - 1))
    return shapes.map(lambda s: np.random.default_rng(s[2]).uniform(-1, 1, s[:2]).astype(np.float32))


def chain_text(rng, tokens, agents, length, null_share, strength, stages=3):
    """Draw each token's agent [T] (-1: null) from the chain of `forward_backward`, and log ratios [T, A].

    Scores are normal with mean `strength` under the agent's key, and with mean 0 under all other keys.
    """
    share = np.append(np.full(agents, (1 - null_share) / agents), null_share)
    truth = np.empty(tokens, np.int64)
    state, stage = rng.choice(agents + 1, p=share), rng.integers(stages)
    for t in range(tokens):
        if t and rng.random() < stages / length:
            stage += 1
            if stage == stages:  # a null segment may follow a null segment
                next_ = np.where((np.arange(agents + 1) == state) & (state < agents), 0, share)
                state, stage = rng.choice(agents + 1, p=next_ / next_.sum()), 0
        truth[t] = state
    scores = rng.normal(0, 1, (tokens, agents)) + strength * (truth[:, None] == np.arange(agents))
    return np.where(truth == agents, -1, truth), strength * scores - strength**2 / 2
