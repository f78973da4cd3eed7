"""HMM / Viterbi: who sounds like whom, with a prior that speakers go on speaking.

The paper (§ Baselines; Rabiner 1989, Viterbi 1967): "emission scores are defined by similarity to agent
prototypes and a sticky transition prior favors state persistence". No more is said. Here:

    prototype   m_a = TF-IDF of all that agent a says in the logs of other records, one document
    emission    log e_u(a) = β·cos(x_u, m_a) - log Σ_b exp(β·cos(x_u, m_b)),    x_u = TF-IDF of unit u
    transition  log P(a → b) = log ρ if a = b, else log((1 - ρ) / (n - 1));     P(first) = 1/n
    labels      Viterbi's path over the units

TF-IDF is scikit-learn's (`TfidfVectorizer` with its defaults: smooth idf, L2 norm), fitted on the turns of
the other records: a record, and every other log of it, is never in its own prototypes, vocabulary or idf. β
(by maximum likelihood over a grid) and ρ (the share of neighbouring units with one speaker) are fitted on the
labelled units of the other records, each under its own prototypes, so the baseline has no parameter that
could be chosen badly.

`read_own` has prototypes, vocabulary and idf from **the log itself**: of a unit from all others, each
under the agent that wrote it. So it is told who wrote everything but what it reads; β and ρ as above.

**The units are those of `unit_mode = assistant_response`, which gives away the true ends of the turns**; the
paper does not say on what its HMM runs, and this favours it. The labels carry names (`matched` is False):
agents are known by what they say elsewhere. Edges are the hand-overs of Viterbi's path with confidence 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from benchmarks.paper import needed
from benchmarks.paper.baselines.reading import Found, Labels, read_tokens, unit_bounds, unit_texts
from benchmarks.paper.conversations.logs import Log
from iet.errors import InputError, ShapeError
from iet.marks.tokenizer import Tokenizer

SHARPNESS = np.concatenate([[0.0], np.geomspace(0.25, 256, 41)])
"""The grid of β; 0 is no preference."""

Floats = NDArray[np.float64]


def read(logs: Sequence[Log], tokenizer: Tokenizer, seed: int = 123) -> list[Found]:
    """Attribute every log of one setting, of at least two records, by an HMM with prototypes from the others.

    O(Σ words + logs · n · vocabulary).
    """
    return _read(logs, tokenizer, own=False)


def read_own(logs: Sequence[Log], tokenizer: Tokenizer, seed: int = 123) -> list[Found]:
    """Attribute every log of one setting by an HMM with prototypes from the rest of the log itself.

    O(Σ units · n · vocabulary of a log).
    """
    return _read(logs, tokenizer, own=True)


def _read(logs: Sequence[Log], tokenizer: Tokenizer, own: bool) -> list[Found]:
    agents = sorted({log.setting.agents for log in logs})
    if len(agents) > 1:
        raise InputError(f"logs: got some of {agents} agents, expected all of one number")
    if len({log.record for log in logs}) < 2:
        raise InputError(
            f"logs: got {len(logs)} of fewer than two records, expected more: agents are known by the others"
        )
    n = agents[0]
    tokens = [read_tokens(log, tokenizer) for log in logs]
    bounds = [unit_bounds(each) for each in tokens]
    truths = [each.agents[edges[:-1]] for each, edges in zip(tokens, bounds, strict=True)]
    units = [unit_texts(*each) for each in zip(logs, tokens, bounds, strict=True)]
    if own:
        cosines = [own_similarities(some, truth, n) for some, truth in zip(units, truths, strict=True)]
    else:
        cosines = similarities(logs, units)

    records = [log.record for log in logs]
    fit = np.array([_log_likelihoods(cos, truth) for cos, truth in zip(cosines, truths, strict=True)])
    stays = np.array([[(np.diff(truth) == 0).sum(), len(truth) - 1] for truth in truths], np.float64)
    found = []
    for record, edges, cos in zip(records, bounds, cosines, strict=True):
        others = np.array([other != record for other in records])
        beta = SHARPNESS[fit[others].sum(axis=0).argmax()]
        same, pairs = stays[others].sum(axis=0)
        stay = (same + 1) / (pairs + 2)  # Laplace's rule: neither 0 nor 1
        path = viterbi(log_softmax(beta * cos, axis=-1), stay)
        found.append(Found(np.repeat(path, np.diff(edges)), _edges(path, n), matched=False))
    return found


def similarities(logs: Sequence[Log], units: Sequence[Sequence[str]]) -> list[Floats]:
    """Return per log the cosines [units, n] of its units with the agents' prototypes from other records.

    With counts c_a of all records and those of one record taken away, the TF-IDF of the rest is what
    `TfidfVectorizer` gives when it is fitted on the rest, without reading that again.
    """
    vectorizer = needed("sklearn.feature_extraction.text").CountVectorizer()
    turns = [(row, turn) for row, log in enumerate(logs) for turn in log.turns]
    try:
        counts = vectorizer.fit_transform([turn.text for _, turn in turns]).tocsr()
    except ValueError:
        raise InputError("logs: got no word in any turn, expected some") from None
    n = logs[0].setting.agents
    records = np.array([log.record for log in logs])
    agent_of = np.array([turn.agent for _, turn in turns])
    record_of = records[[row for row, _ in turns]]

    def said(rows: NDArray[np.bool_]) -> tuple[Floats, Floats, int]:
        """Counts per agent [n, words], turns with the word [words], turns."""
        per_agent = [np.asarray(counts[rows & (agent_of == a)].sum(axis=0), np.float64) for a in range(n)]
        document_counts = np.bincount(counts[rows].indices, minlength=counts.shape[1]).astype(np.float64)
        return np.concatenate(per_agent), document_counts, int(rows.sum())

    all_said, all_documents, _ = said(np.ones(len(turns), np.bool_))
    found: dict[int, Floats] = {}
    for record in np.unique(records).tolist():
        by_agent, documents, number = said(record_of == record)
        by_agent, documents, number = all_said - by_agent, all_documents - documents, len(turns) - number
        # scikit-learn's smooth idf; a word that only this record has is in no vocabulary.
        idf = np.where(documents > 0, np.log((1 + number) / (1 + documents)) + 1, 0.0)
        prototypes = by_agent * idf
        norms = np.linalg.norm(prototypes, axis=1, keepdims=True)
        prototypes = np.divide(prototypes, norms, out=np.zeros_like(prototypes), where=norms > 0)
        for row in np.flatnonzero(records == record).tolist():
            weights = vectorizer.transform(units[row]).multiply(idf).tocsr()
            lengths = np.sqrt(np.asarray(weights.multiply(weights).sum(axis=1), np.float64)).reshape(-1, 1)
            found[row] = np.asarray(weights @ prototypes.T) / np.where(lengths > 0, lengths, 1.0)
    return [found[row] for row in range(len(logs))]


def own_similarities(units: Sequence[str], truth: Labels, agents: int) -> Floats:
    """Return the cosines [U, n] of units with the agents' prototypes from the other units of the same log.

    A word that no other unit has is in no vocabulary; an agent without another unit is like nobody.
    """
    vectorizer = needed("sklearn.feature_extraction.text").CountVectorizer()
    try:
        counts = vectorizer.fit_transform(units).toarray().astype(np.float64)
    except ValueError:  # no word in any unit
        return np.zeros((len(units), agents))
    said = np.eye(agents)[truth].T @ counts
    documents = (counts > 0).sum(axis=0)
    cosines = np.zeros((len(units), agents))
    for u, own in enumerate(counts):
        rest = said.copy()
        rest[truth[u]] -= own
        elsewhere = documents - (own > 0)
        idf = np.where(elsewhere > 0, np.log(len(units) / (1 + elsewhere)) + 1, 0.0)  # 1 + the others
        prototypes, weights = rest * idf, own * idf
        norms = np.linalg.norm(prototypes, axis=1) * np.linalg.norm(weights)
        cosines[u] = np.divide(prototypes @ weights, norms, out=np.zeros(agents), where=norms > 0)
    return cosines


def viterbi(log_emissions: Floats, stay: float) -> Labels:
    """Return the likeliest path, int64 [U], of emissions [U, n].

        argmax_z Σ_u log e_u(z_u) + Σ_u log P(z_{u-1} → z_u),    P(a → a) = ρ, P(a → b) = (1 - ρ) / (n - 1)

    Of equally likely paths the one with the lowest labels, from the end on, is taken. O(U·n).
    """
    log_emissions = np.asarray(log_emissions, np.float64)
    if log_emissions.ndim != 2 or 0 in log_emissions.shape:
        raise ShapeError("log_emissions", got=list(log_emissions.shape), expected="[U, n], both at least 1")
    if not 0 < stay < 1:
        raise InputError(f"stay: got {stay}, expected above 0 and below 1")
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
    """Log likelihood of the true speakers under every β of the grid."""
    log_p = log_softmax(SHARPNESS[:, None, None] * cosines, axis=-1)
    return np.asarray(log_p[:, np.arange(len(truth)), truth].sum(axis=1))


def _edges(path: Labels, n: int) -> Floats:
    edges = np.zeros((n, n))
    for before, after in itertools.pairwise(path.tolist()):
        if before != after:
            edges[before, after] = 1.0
    return edges
