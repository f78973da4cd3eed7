"""Many texts read in one pass: the numbers of `Auditor.audit`, without its cost for each call.

The texts stand one behind the other, ids that carry no mark before each, so that no context crosses from one
to the next. Every step then is one call for all of them, to the very loops that read a single text. What
a table does not hold (transitions, intervals of boundaries) is not computed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iet.audit.auditor import ALL_KEYS, Auditor
from iet.audit.evidence import activity_log_p, discoveries, over_keys, segment_log_p
from iet.bulk.findings import Findings, Floats, Integers, found_agents
from iet.decoding import DECODERS, column_summary, log_activity
from iet.decoding.activity import evidence_blocks_of
from iet.decoding.cusum import cusum_labels, cusum_parameters
from iet.errors import InputError
from iet.kernels import score_tokens
from iet.marks.foreign.engines import EngineKeys, Texts
from iet.marks.keys import KeyTable
from iet.marks.tokenizer import Encoding
from iet.native.jit import njit
from iet.native.pairs import novelty_weights, number_pairs_of
from iet.native.reference import is_scored

Keys = KeyTable | EngineKeys


def can_read(auditor: Auditor) -> bool:
    """Tell whether `find` reads as this auditor does: one profile, few keys, and the marks alone."""
    return (
        len(auditor._readers) == 1
        and isinstance(auditor._readers[0].keys, Keys)
        and len(auditor._readers[0].keys) <= ALL_KEYS
        and auditor._decoder in ("cusum", "posterior")
        and auditor._decoys == 0
        and auditor._model is None
        and auditor._break_odds is None
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Texts:
    """The tokens of D texts, one behind the other.

    Attributes:
        ids: int64 [N], also those between texts.
        starts, ends: int64 [D], the tokens `[start, end)` of each text.
        numbers: int64 [N], the text of each token, or before which it stands.
        pairs: int64 [N], as `pair_numbers` counts them in each text; -1 where not scored.
        repeated: bool [N].
        scores: float32 [N, K].
    """

    ids: Integers
    starts: Integers
    ends: Integers
    numbers: Integers
    pairs: Integers
    repeated: NDArray[np.bool_]
    scores: NDArray[np.float32]

    @classmethod
    def of(cls, texts: Sequence[Integers], keys: Keys) -> _Texts:
        """Score the ids of some texts."""
        n_gram = keys.profile.scheme.n_gram
        joined = Texts.of(texts, n_gram)
        ids, starts, ends = joined.ids, joined.starts, joined.ends
        if isinstance(keys, EngineKeys):
            pairs, repeated, scores = keys.read(joined, 0)
        else:
            profile = keys.profile
            scored = is_scored(ids, n_gram, profile.vocab_size, profile.unmarked_ids)
            pairs, repeated = number_pairs_of(
                ids, scored, starts, ends, n_gram, profile.scheme.family == "gumbel"
            )
            scores = score_tokens(ids, keys)
        numbers = np.repeat(np.arange(len(texts)), np.diff(ends, prepend=0))
        return cls(ids, starts, ends, numbers, pairs, repeated, scores)

    def each(self, mask: NDArray[np.bool_]) -> Integers:
        """Return how many tokens of each text the mask [N] names."""
        total = np.append(0, np.cumsum(mask))
        return np.asarray(total[self.ends] - total[self.starts])


def find(auditor: Auditor, texts: Sequence[str] | None, ids: Sequence[Integers] | None = None) -> Findings:
    """Audit some texts, or some texts' ids.

    Raises:
        InputError: a text is not valid Unicode, or an id is no int64.
    """
    reader = auditor._readers[0]
    keys = reader.keys
    assert isinstance(keys, Keys)
    encodings: Sequence[Encoding] = ()
    if ids is None:
        assert texts is not None
        encodings = reader.open_tokenizer().encode_batch(texts)
        ids = [encoding.token_ids for encoding in encodings]
    if not len(ids):
        raise InputError("texts: got none, expected at least one")
    read = _Texts.of(ids, keys)
    scored = read.pairs >= 0
    evidence = _evidence(read, keys, scored & ~read.repeated)
    if auditor._decoder == "cusum":
        labels, posteriors = _cusum(auditor, read, keys, scored), None
    else:
        labels, posteriors = _posterior(auditor, read, keys)
    owners = keys.owners.astype(np.int64)
    of, starts, ends, agents = _spans(read, labels, owners)
    guesses, log_p = _explain(read, keys, owners, of, starts, ends, agents)
    posterior = error = None
    attributed = agents >= 0
    if posteriors is not None:
        posterior, error = _certainty(posteriors, owners, of, starts, ends, guesses)
        if auditor._allow_unattributed:
            attributed &= (evidence[of, guesses] <= math.log(auditor._level)) & (error <= auditor._level)
    elif auditor._allow_unattributed:
        for d in np.unique(of[attributed]).tolist():
            mine = _in(of, d, attributed)
            attributed[mine] = discoveries(log_p[mine], auditor._level)
    counts = np.bincount(of, minlength=len(ids))
    best, found, found_counts = found_agents(evidence, auditor._level)
    lengths = read.ends - read.starts
    covered = np.bincount(of, weights=(ends - starts) * attributed, minlength=len(ids))
    lows, highs = _characters(texts, encodings, counts, starts) if texts is not None else (None, None)
    return Findings(
        auditor.agents,
        {
            "tokens": lengths,
            "scored": read.each(scored),
            "repeated": read.each(read.repeated),
            "invisible": np.array([e.skipped for e in encodings] or [0] * len(ids), np.int64),
            "log_p": np.nanmin(evidence, axis=1),
            "coverage": covered / np.maximum(1, lengths),
        },
        best,
        found,
        found_counts,
        counts,
        {
            "char_start": lows,
            "char_end": highs,
            "start": starts,
            "end": ends,
            "agent": np.where(attributed, guesses, -1),
            "best_guess": guesses,
            "log_p": log_p,
            "posterior": posterior,
            "error": error,
        },
    )


def _in(of: Integers, text: int, mask: NDArray[np.bool_]) -> Integers:
    """Return the spans of a text, of spans in the order of texts, that the mask names."""
    low, high = np.searchsorted(of, [text, text + 1])
    return np.asarray(low + np.flatnonzero(mask[low:high]))


def _evidence(read: _Texts, keys: Keys, counted: NDArray[np.bool_]) -> Floats:
    """Return the log p-value of every agent in every text [D, A]; NaN for agents without a key."""
    family = keys.profile.family
    sums, counts, edges = evidence_blocks_of(read.scores, counted, read.starts, read.ends)
    activity = log_activity(sums, counts, family, edges)
    corrected = over_keys(activity_log_p(activity, read.each(counted), family))
    lowest = np.full((len(corrected), len(keys.names)), np.nan)
    firsts = np.flatnonzero(np.append(True, keys.owners[1:] != keys.owners[:-1]))
    lowest[:, keys.owners[firsts]] = np.minimum.reduceat(corrected, firsts, axis=1)
    return lowest


def _cusum(auditor: Auditor, read: _Texts, keys: Keys, scored: NDArray[np.bool_]) -> NDArray[np.int32]:
    defaults = DECODERS["cusum"].__kwdefaults__ or {}
    parameters = cusum_parameters(
        keys.profile.family,
        auditor._allow_unattributed,
        len(keys),
        **{**defaults, **auditor._readers[0]._options},
    )
    return cusum_labels(read.scores, scored, read.starts, read.ends, parameters)


def _posterior(
    auditor: Auditor, read: _Texts, keys: Keys
) -> tuple[NDArray[np.int32], list[NDArray[np.float32]]]:
    """Return the labels, and of each text the posterior of every key: the chain is run text by text."""
    labels, posteriors = np.full(len(read.ids), -1, np.int32), []
    reader, novelty = auditor._readers[0], keys.profile.family.name == "gumbel"
    for start, end in zip(read.starts.tolist(), read.ends.tolist(), strict=True):
        inside = slice(start, end)
        each: dict[str, Any] = {"weights": novelty_weights(read.ids[inside])} if novelty else {}
        found = reader.decode(
            read.scores[inside], read.pairs[inside], None, auditor._allow_unattributed, **each
        )
        labels[inside] = found.token_agents
        assert found.posterior is not None
        posteriors.append(found.posterior)
    return labels, posteriors


def _spans(
    read: _Texts, labels: NDArray[np.int32], owners: Integers
) -> tuple[Integers, Integers, Integers, Integers]:
    """Return the maximal runs of one agent: text, start and end in the text, and agent [S] each."""
    agents = np.append(owners, -1)[labels]
    begins = np.zeros(len(labels), np.bool_)
    begins[1:] = agents[1:] != agents[:-1]
    begins[read.starts[read.ends > read.starts]] = True
    begins[np.arange(len(labels)) < read.starts[read.numbers]] = False  # what stands between texts
    firsts = np.flatnonzero(begins)
    of = np.searchsorted(read.ends, firsts, "right")
    starts = firsts - read.starts[of]
    ends = np.append(firsts[1:] - read.starts[of[:-1]], 0)
    last = np.append(of[1:] != of[:-1], True)[: len(of)]
    ends[: len(of)][last] = (read.ends - read.starts)[of[last]]
    return of, starts, ends[: len(of)], agents[firsts]


def _explain(
    read: _Texts,
    keys: Keys,
    owners: Integers,
    of: Integers,
    starts: Integers,
    ends: Integers,
    agents: Integers,
) -> tuple[Integers, Floats]:
    """Return who explains each span best (its own agent, if it has one), and the corrected log p."""
    best = np.zeros(len(of), np.int64)
    firsts = read.starts[of]
    _best_keys_njit(read.scores, firsts + starts, firsts + ends, agents, owners, best)
    # Pairs get numbers of their own in each text: the first token's place is more than any number before.
    pairs = np.where(read.pairs >= 0, read.pairs + read.starts[read.numbers], -1)
    texts = firsts, (read.ends - read.starts)[of]
    log_p = segment_log_p(read.scores, pairs, starts, ends, best, keys.profile.family, len(keys), texts=texts)
    return owners[best], log_p


@njit
def _best_keys_njit(
    scores: NDArray[Any],
    starts: Integers,
    ends: Integers,
    agents: Integers,
    owners: Integers,
    best: Integers,
) -> None:
    sums = np.zeros(scores.shape[1])
    for s in range(len(starts)):
        sums[:] = 0.0
        for t in range(starts[s], ends[s]):
            for a in range(len(sums)):
                sums[a] += scores[t, a]
        highest = -np.inf
        for a in range(len(sums)):
            if (agents[s] < 0 or owners[a] == agents[s]) and sums[a] > highest:
                highest, best[s] = sums[a], a


def _certainty(
    posteriors: list[NDArray[np.float32]],
    owners: Integers,
    of: Integers,
    starts: Integers,
    ends: Integers,
    guesses: Integers,
) -> tuple[Floats, Floats]:
    """Return the mean posterior of each span's guess, and the chance that the guess wrote none of it."""
    firsts = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))
    means, error = np.zeros(len(of)), np.zeros(len(of))
    columns = np.searchsorted(owners[firsts], guesses)
    edges = np.searchsorted(of, np.arange(len(posteriors) + 1))
    for d, posterior in enumerate(posteriors):
        mine = slice(edges[d], edges[d + 1])
        if len(firsts) < len(owners):
            posterior = np.add.reduceat(posterior, firsts, axis=1)
        bounds = np.append(starts[mine], len(posterior))
        means[mine], highest = column_summary(posterior, bounds, columns[mine])
        error[mine] = 1 - np.minimum(highest, 1)
    return means, error


def _characters(
    texts: Sequence[str], encodings: Sequence[Encoding], counts: Integers, starts: Integers
) -> tuple[Integers, Integers]:
    """Return the characters `[start, end)` of each span; those of a text cover it."""
    lows, highs = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.int64)
    last = np.cumsum(counts)
    lengths = np.array([len(text) for text in texts], np.int64)
    highs[last[counts > 0] - 1] = lengths[counts > 0]
    for d in np.flatnonzero(counts > 1).tolist():
        inner = slice(last[d] - counts[d] + 1, last[d])
        places = encodings[d].characters(starts[inner])[:, 0]
        lows[inner] = places
        highs[last[d] - counts[d] : last[d] - 1] = places
    return lows, highs
