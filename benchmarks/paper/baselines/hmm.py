"""HMM / Viterbi: emissions by similarity to agent prototypes, and a sticky transition prior.

The paper (§ Baselines; Rabiner 1989, Viterbi 1967) says: "emission scores are defined by similarity to agent
prototypes and a sticky transition prior favors state persistence". Here:

    prototype   m_a = TF-IDF of everything that agent a says in the logs of other records
    emission    log e_u(a) = β·cos(x_u, m_a) - log Σ_b exp(β·cos(x_u, m_b)),    x_u = TF-IDF of unit u
    transition  log P(a → b) = log ρ if a = b, else log((1 - ρ) / (n - 1));     P(first) = 1/n
    labels      Viterbi's path over the units

TF-IDF is scikit-learn's `TfidfVectorizer` with its defaults, fitted on the turns of the other records. β
(maximum likelihood over a grid) and ρ (share of neighbouring units with one speaker) are fitted on the
labelled units of the other records, so the baseline has no parameter that could be chosen badly.

**The units are those of `unit_mode = assistant_response`, which contain the true ends of the turns**; the
paper does not say what its HMM reads, and this favours it. Edges are the hand-overs of the path.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from benchmarks.paper import needed
from benchmarks.paper.baselines.reading import Labels, read_tokens, unit_bounds, unit_texts
from benchmarks.paper.conversations.logs import Log
from benchmarks.paper.reading.readers import Reading
from iet.errors import InputError
from iet.marks.tokenizer import Tokenizer

SHARPNESS = np.concatenate([[0.0], np.geomspace(0.25, 256, 41)])
"""The grid of β; 0 means no preference."""

Floats = NDArray[np.float64]


def read(logs: Sequence[Log], tokenizer: Tokenizer, seed: int = 123) -> list[Reading]:
    """Attribute every log of a setting, of at least two records. Cost: one TF-IDF fit for each record."""
    if len({log.record for log in logs}) < 2:
        raise InputError("logs: expected at least two records, since prototypes come from the other records")
    n = logs[0].setting.agents
    tokens = [read_tokens(log, tokenizer) for log in logs]
    bounds = [unit_bounds(log_tokens) for log_tokens in tokens]
    truths = [log_tokens.agents[edges[:-1]] for log_tokens, edges in zip(tokens, bounds, strict=True)]
    units = [unit_texts(*parts) for parts in zip(logs, tokens, bounds, strict=True)]
    cosines = similarities(logs, units)
    records = np.array([log.record for log in logs])
    fit = np.array([_log_likelihoods(cos, truth) for cos, truth in zip(cosines, truths, strict=True)])
    stays = np.array([[(np.diff(truth) == 0).sum(), len(truth) - 1] for truth in truths], np.float64)
    readings = []
    for record, edges, cos in zip(records, bounds, cosines, strict=True):
        is_other = records != record
        beta = SHARPNESS[fit[is_other].sum(axis=0).argmax()]
        same, pairs = stays[is_other].sum(axis=0)
        stay = (same + 1) / (pairs + 2)  # Laplace's rule, so that ρ is neither 0 nor 1
        path = viterbi(log_softmax(beta * cos, axis=-1), stay)
        readings.append(Reading(np.repeat(path, np.diff(edges)), _edges(path, n)))
    return readings


def similarities(logs: Sequence[Log], units: Sequence[Sequence[str]]) -> list[Floats]:
    """Return for each log the cosines [units, n] of its units with the agents' prototypes."""
    make = needed("sklearn.feature_extraction.text").TfidfVectorizer
    n = logs[0].setting.agents
    cosines: list[Floats] = []
    fitted: dict[int, tuple[Any, Any]] = {}
    for log, texts in zip(logs, units, strict=True):
        if log.record not in fitted:
            turns = [turn for other_log in logs if other_log.record != log.record for turn in other_log.turns]
            vectorizer = make().fit([turn.text for turn in turns])
            prototypes = [" ".join(turn.text for turn in turns if turn.agent == a) for a in range(n)]
            fitted[log.record] = vectorizer, vectorizer.transform(prototypes)
        vectorizer, prototype = fitted[log.record]
        cosines.append((vectorizer.transform(texts) @ prototype.T).toarray())
    return cosines


def viterbi(log_emissions: Floats, stay: float) -> Labels:
    """Return the likeliest path, int64 [U], of emissions [U, n]. Cost: O(U·n).

    argmax_z Σ_u log e_u(z_u) + Σ_u log P(z_{u-1} → z_u),    P(a → a) = ρ, P(a → b) = (1 - ρ) / (n - 1)
    """
    units, n = log_emissions.shape
    log_stay, log_move = np.log(stay), np.log((1 - stay) / (n - 1)) if n > 1 else -np.inf
    back = np.zeros((units, n), np.int64)
    best = log_emissions[0]
    for u in range(1, units):
        arrive = best[:, None] + np.where(np.eye(n, dtype=np.bool_), log_stay, log_move)
        back[u] = arrive.argmax(axis=0)
        best = arrive.max(axis=0) + log_emissions[u]
    path = np.zeros(units, np.int64)
    path[-1] = best.argmax()
    for u in range(units - 1, 0, -1):
        path[u - 1] = back[u, path[u]]
    return path


def _log_likelihoods(cosines: Floats, truth: Labels) -> Floats:
    """Return the log likelihood of the true speakers for every β of the grid."""
    log_p = log_softmax(SHARPNESS[:, None, None] * cosines, axis=-1)
    return np.asarray(log_p[:, np.arange(len(truth)), truth].sum(axis=1))


def _edges(path: Labels, n: int) -> Floats:
    edges = np.zeros((n, n))
    for previous, following in itertools.pairwise(path.tolist()):
        if previous != following:
            edges[previous, following] = 1.0
    return edges
