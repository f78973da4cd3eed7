"""Who wrote what in D texts: score, decode, evidence, attribution. One text is the case D = 1."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iet.audit.align import TokenAlignment
from iet.audit.certainty import certainty, chance_factors, cut_by_token, temper_posteriors
from iet.audit.decode import Decoded, Spans, decode, decode_together, name_pieces, spans_of
from iet.audit.details import boundary_columns, chosen_boundaries, details_of, published_shares
from iet.audit.encode import TokenBatch
from iet.audit.evidence import (
    benjamini_hochberg,
    holm,
    piece_log_p,
    segment_log_p,
    session_log_p,
    sidak_min_p,
)
from iet.audit.parts import Parts
from iet.audit.plan import Plan
from iet.audit.quotations import cap_quoted_posteriors
from iet.audit.score import ScoreMatrix, owners_of, score
from iet.marks.keys import Keys, KeyTable
from iet.marks.sessions import OWN, sessions_digest
from iet.marks.tokenizer import Encoding
from iet.native.arrays import Bools, Float32s, Float64s, Int32s, Int64s
from iet.report.result import DOCUMENT_DTYPES, SEGMENT_DTYPES, AuditResult, FoundSession, concatenated

_NO_CUTS = np.zeros(0, np.int64)

_MANY_KEYS = 1 << 14
"""Maximum number of keys whose sums are in memory at a time."""


@dataclasses.dataclass(frozen=True, eq=False)
class DecodedTexts:
    """D texts that are scored and decoded.

    Attributes:
        alignment: the tokens of each profile, and the alignment on which the spans lie.
        matrices: the scores, one matrix for each profile.
        decoded: the labels of the tokens, posteriors and strengths.
        spans: runs of one agent, or the given pieces.
        parts, cuts: what is left out of a single text, and the indices on the alignment that follow it.
    """

    alignment: TokenAlignment
    matrices: tuple[ScoreMatrix, ...]
    decoded: Decoded
    spans: Spans
    parts: Parts | None
    cuts: Int64s

    @property
    def pieces_given(self) -> bool:
        """Whether the boundaries were given, so that no span was chosen."""
        return self.parts is not None and self.parts.boundaries is not None


def attribute(
    plan: Plan,
    texts: Sequence[str] | None,
    encodings: Sequence[tuple[Encoding, ...]],
    parts: Parts | None = None,
    *,
    details: bool = False,
) -> AuditResult:
    """Find out who wrote what in D texts: all in one pass if the plan allows it, else one after another.

    Args:
        plan: keys, decoder and level.
        texts: as given; None: only ids are known.
        encodings: of each text, one for each profile.
        parts: what to read of a single text; None: everything.
        details: whether to compute what only a whole report shows, such as transitions.
    """
    size = max(1, len(encodings)) if plan.many_at_once and not details else 1
    results = []
    for start in range(0, len(encodings), size):
        batch = slice(start, start + size)
        of_batch = None if texts is None else texts[batch]
        read = decode_texts(plan, encodings[batch], parts, of_batch)
        results.append(_result(plan, of_batch, read, details))
    return results[0] if len(results) == 1 else concatenated(results, _empty(plan, texts is not None))


def evidence_of(plan: Plan, text: str, encodings: tuple[Encoding, ...]) -> tuple[Float64s, int]:
    """Return the log p-value of every agent [A] in one whole text, without decoding the text.

    It is that of `Report.evidence`; NaN for agents without a key. The second value is the number of tokens
    that are evidence, summed over the profiles.
    """
    pairs = list(zip(encodings, plan.readers, strict=True))
    batches = [TokenBatch.of(encoding, None, reader.keys, text) for encoding, reader in pairs]
    log_p = [score(plan, *pair).log_p for pair in zip(plan.readers, batches, strict=True)]
    counts = _counts(batches)
    return _evidence(plan, log_p)[0], int((counts["scored"] - counts["repeated"])[0])


def decode_texts(
    plan: Plan,
    encodings: Sequence[tuple[Encoding, ...]],
    parts: Parts | None,
    texts: Sequence[str] | None,
) -> DecodedTexts:
    """Score and decode D texts; several only if `plan.many_at_once`. `texts` None: only ids are known."""
    if len(encodings) == 1:
        batches = [
            TokenBatch.of(encoding, parts, reader.keys, None if texts is None else texts[0])
            for encoding, reader in zip(encodings[0], plan.readers, strict=True)
        ]
    else:
        batches = [TokenBatch.of_many([one for (one,) in encodings], plan.readers[0].keys, texts)]
    if plan.model is not None and plan.model.context:
        (reader,) = plan.readers
        n_gram = reader.keys.profile.scheme.evidence_ids
        ids = reader.opened.encode(plan.model.context).token_ids
        batches = [batch.without_evidence_in(ids, n_gram) for batch in batches]
    alignment, cuts, lengths = TokenAlignment.of(batches), _NO_CUTS, _NO_CUTS
    if parts is not None:
        parts = parts.without_gaps(alignment.origins)
        cuts = np.searchsorted(alignment.origins, parts.left_out[:, 0])
        lengths = np.diff(alignment.tokens_between(parts))[:, 0]
        if parts.boundaries is not None:
            return DecodedTexts(alignment, *name_pieces(plan, alignment, parts.audited), parts, cuts)
    matrices = tuple(score(plan, *pair) for pair in zip(plan.readers, batches, strict=True))
    if plan.several:
        decoded = decode_together(plan, alignment, matrices, cuts, lengths)
    else:
        decoded = decode(plan, matrices[0], batches[0], plan.options.allow_unattributed, cuts, lengths)
    inner = cuts[(cuts > 0) & (cuts < alignment.length)]
    spans = spans_of(decoded.labels, owners_of(matrices), *alignment.bounds, inner)
    return DecodedTexts(alignment, matrices, decoded, spans, parts, cuts)


def _result(plan: Plan, texts: Sequence[str] | None, read: DecodedTexts, details: bool) -> AuditResult:
    """Decide which spans are attributed, and return the results in columns."""
    alignment, spans, level = read.alignment, read.spans, plan.options.level
    log_p_of_keys = [matrix.log_p for matrix in read.matrices]
    evidence = _evidence(plan, log_p_of_keys)
    owners, local = np.unique(owners_of(read.matrices), return_inverse=True)
    posterior: Float32s | None = None
    certain: dict[str, Float64s] = {}
    if read.decoded.posterior is not None:
        posterior = _sum_columns(read.decoded.posterior, local)
        capped = cap_quoted_posteriors(posterior, alignment)
        tempered = temper_posteriors(capped, alignment.texts, evidence[:, owners])
        factors, firsts = chance_factors(spans, len(evidence)), alignment.bounds[0]
        if plan.options.attributed == "tokens" and not read.pieces_given:
            spans = cut_by_token(tempered, firsts, owners, factors, spans, evidence, level)
    guesses, log_p, sessions = _explain(plan, read, spans)
    if posterior is not None:
        certain = certainty(tempered, firsts, owners, factors, spans, guesses)
    attributed = _attributed(plan, spans, evidence, guesses, log_p, certain.get("error"))
    sessions_found = _found_sessions(plan, log_p_of_keys) if plan.sessions else ()

    characters = None if texts is None else _characters(read, spans, texts)
    tokens = alignment.tokens(spans.starts, spans.ends)
    columns: dict[str, NDArray[Any] | None] = {
        **dict.fromkeys(SEGMENT_DTYPES),
        "char_start": None if characters is None else characters[:, 0],
        "char_end": None if characters is None else characters[:, 1],
        "start": None if tokens is None else tokens[:, 0],
        "end": None if tokens is None else tokens[:, 1],
        "decoded": spans.agents,
        "agent": np.where(attributed, guesses, -1),
        "best_guess": guesses,
        "session": _found_there(spans, guesses, sessions, attributed, sessions_found)
        if plan.sessions
        else None,
        "log_p": log_p,
        **certain,
    }
    count = len(evidence)
    # Profiles have different tokens: characters measure a text that several of them read.
    extents = tokens if tokens is not None else characters
    assert extents is not None
    lengths = np.diff(extents, axis=1)[:, 0]
    read_length = np.bincount(spans.texts, lengths, minlength=count)
    coverage = np.bincount(spans.texts, lengths * attributed, minlength=count) / np.maximum(1, read_length)
    counts = np.bincount(spans.texts, minlength=count)
    more = None
    if details:
        text = None if texts is None else texts[0]
        chosen = chosen_boundaries(read, spans)
        local_agents = np.where(spans.agents >= 0, np.searchsorted(owners, spans.agents), -1)
        named = list(zip(spans.starts.tolist(), spans.ends.tolist(), local_agents.tolist(), strict=True))
        if posterior is not None:
            end = alignment.length_of_text if text is None else len(text)
            columns |= boundary_columns(alignment, spans, named, posterior, chosen, extents, end)
        if plan.published is not None:
            columns["published"] = published_shares(alignment, spans)
        if read.parts is not None:
            columns = _with_left_out(columns, read.parts, alignment)
            counts = counts + len(read.parts.left_out)
        more = (details_of(plan, read, spans, named, attributed, guesses, chosen, owners, posterior, text),)
    return AuditResult(
        plan.settings,
        plan.sessions,
        sessions_digest(plan.sessions) if plan.sessions else None,
        None if texts is None else tuple(texts),
        evidence,
        {**_counts(alignment.batches), "coverage": coverage},
        counts,
        columns,
        sessions_found,
        more,
    )


def _empty(plan: Plan, spelled: bool) -> AuditResult:
    return AuditResult(
        plan.settings,
        plan.sessions,
        sessions_digest(plan.sessions) if plan.sessions else None,
        () if spelled else None,
        np.zeros((0, len(plan.names))),
        {name: np.zeros(0, dtype) for name, dtype in DOCUMENT_DTYPES.items()},
        np.zeros(0, np.int64),
        {name: np.zeros(0, dtype) for name, dtype in SEGMENT_DTYPES.items()},
        details=(),
    )


def _counts(batches: Sequence[TokenBatch]) -> dict[str, Int64s]:
    """Return the numbers of tokens [D] of each kind, summed over the profiles."""

    def total(counts: Sequence[Any]) -> Int64s:
        return np.asarray(np.sum(counts, axis=0, dtype=np.int64))

    lengths = [[len(encoding.token_ids) for encoding in batch.encodings] for batch in batches]
    return {
        "tokens": total(lengths),
        "left_out": total(lengths) - total([batch.ends - batch.starts for batch in batches]),
        "scored": total([batch.count(batch.scored) for batch in batches]),
        "repeated": total([batch.count(batch.repeated) for batch in batches]),
        "template": total([_template(batch) for batch in batches]),
        "published": total([batch.published_counts for batch in batches]),
        "invisible": np.array([encoding.skipped for encoding in batches[0].encodings], np.int64),
    }


def _template(batch: TokenBatch) -> Int64s:
    """Return the number of scored tokens [D] that are evidence in another document."""
    counts = np.zeros(len(batch.encodings), np.int64)
    for d, encoding in enumerate(batch.encodings):
        if encoding.elsewhere is not None:
            counts[d] = np.count_nonzero(encoding.elsewhere & batch.scored[batch.inside(d)])
    return counts


def _attributed(
    plan: Plan, spans: Spans, evidence: Float64s, guesses: Int64s, log_p: Float64s, errors: Float64s | None
) -> Bools:
    """Return the spans that are attributed to their agent, bool [S]."""
    attributed, level = spans.agents >= 0, plan.options.level
    if not plan.options.allow_unattributed:
        return attributed
    if errors is not None:
        return attributed & (evidence[spans.texts, guesses] <= math.log(level)) & (errors <= level)
    for d in np.unique(spans.texts[attributed]).tolist():
        low, high = np.searchsorted(spans.texts, [d, d + 1])
        selected = low + np.flatnonzero(attributed[low:high])
        attributed[selected] = benjamini_hochberg(log_p[selected], level)
    return attributed


def _characters(read: DecodedTexts, spans: Spans, texts: Sequence[str]) -> Int64s:
    """Return the characters `[start, end)` [S, 2] of each span; with what is left out they cover a text."""
    parts, starts = read.parts, spans.starts
    if parts is not None and read.pieces_given:
        return parts.audited
    lows, highs = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.int64)
    edges = np.searchsorted(spans.texts, np.arange(len(texts) + 1))
    for d in np.flatnonzero(edges[1:] > edges[:-1]).tolist():
        low, high = edges[d], edges[d + 1]
        if high - low > 1:
            inner = read.alignment.origins_of(starts[low + 1 : high], d)
            lows[low + 1 : high] = highs[low : high - 1] = inner
        highs[high - 1] = len(texts[d])
    if parts is not None and len(starts):
        after = np.searchsorted(starts, read.cuts)  # the span that follows the part that is left out
        inside = after < len(starts)
        lows[after[inside]] = parts.left_out[inside, 1]
        highs[after[after > 0] - 1] = parts.left_out[after > 0, 0]
    return np.stack([lows, highs], axis=1)


def _with_left_out(
    columns: dict[str, NDArray[Any] | None], parts: Parts, alignment: TokenAlignment
) -> dict[str, NDArray[Any] | None]:
    """Return the columns with a row for each part that was left out, in the order of the text."""
    count = len(parts.left_out)
    missing: dict[str, Any] = {
        name: np.full(count, np.nan if dtype is np.float64 else -1) for name, dtype in SEGMENT_DTYPES.items()
    }
    missing |= {"log_p": np.zeros(count), "left_out": np.ones(count, np.bool_)}
    missing["char_start"], missing["char_end"] = parts.left_out.T
    if alignment.has_tokens:
        missing["start"], missing["end"] = alignment.tokens_between(parts).T
    columns["left_out"] = np.zeros(len(columns["log_p"]), np.bool_)  # type: ignore[arg-type]
    joined = {
        name: None if column is None else np.concatenate([column, missing[name]])
        for name, column in columns.items()
    }
    starts = joined["start"] if joined["char_start"] is None else joined["char_start"]
    order = np.argsort(starts, kind="stable")  # type: ignore[arg-type]
    return {name: None if column is None else column[order] for name, column in joined.items()}


# ---------------------------------------------------------------- evidence


def _found_sessions(plan: Plan, log_p: Sequence[Float64s]) -> tuple[FoundSession, ...]:
    """Return the sessions that agents are found in, from the log p-values of the keys of all profiles."""
    sessions_found = []
    for reader, values in zip(plan.readers, log_p, strict=True):
        keys = reader.keys
        if isinstance(keys, KeyTable) and keys.sessions is not None and len(keys):
            corrected = session_log_p(values, keys.owners, keys.sessions, plan.num_readings * plan.agents)
            for d, k in np.argwhere(corrected <= math.log(plan.options.level)).tolist():
                agent = int(keys.owners[k]) + reader.first
                sessions_found.append(FoundSession(d, agent, int(keys.sessions[k]), float(corrected[d, k])))
    return tuple(sorted(sessions_found, key=lambda session: (session.document, session.log_p)))


def _found_there(
    spans: Spans, guesses: Int64s, sessions: Int64s, attributed: Bools, sessions_found: Sequence[FoundSession]
) -> Int64s:
    """Return the session [S] of each attributed span whose agent is found in that session, else `OWN`."""
    pairs = {(session.document, session.agent, session.session) for session in sessions_found}
    claimed = zip(spans.texts.tolist(), guesses.tolist(), sessions.tolist(), strict=True)
    return np.where(attributed & np.array([claim in pairs for claim in claimed], np.bool_), sessions, OWN)


def _evidence(plan: Plan, log_p: Sequence[Float64s]) -> Float64s:
    """Return the log p-value of every agent in every text [D, A]; NaN for agents without a key.

    It is corrected for the agent's keys, for the number of agents, and for the number of batches of the
    text. `log_p` are those of the keys of each profile, [D, K].
    """
    owners = np.concatenate([reader.owners for reader in plan.readers])
    corrected = holm(sidak_min_p(np.concatenate(log_p, axis=1), owners))
    evidence = np.full((len(corrected), len(plan.names)), np.nan)
    evidence[:, np.unique(owners)] = np.minimum(corrected + math.log(plan.num_readings), 0)
    return evidence


def _explain(plan: Plan, read: DecodedTexts, spans: Spans) -> tuple[Int64s, Float64s, Int64s]:
    """Return the agent that explains each span best, its corrected log p, and the session of its key.

    A span with an agent is explained by that agent's keys, in its own tokens; an unattributed span is
    compared with the keys of all profiles.
    """
    texts, starts, ends, agents = spans
    guesses, log_p = np.zeros(len(starts), np.int64), np.full(len(starts), np.inf)
    choices = plan.num_readings * plan.choices * (max(1, len(starts)) if read.pieces_given else 1)
    sessions = np.full(len(starts), OWN)
    for i, (batch, matrix) in enumerate(zip(read.alignment.batches, read.matrices, strict=True)):
        low, high = matrix.reader.first, matrix.reader.first + len(matrix.reader.keys.names)
        selected = np.flatnonzero((agents < 0) | ((agents >= low) & (agents < high)))
        lows, highs = starts[selected], ends[selected]
        if plan.several:
            cells = read.alignment.cells[i]
            lows, highs = np.searchsorted(cells, lows), np.searchsorted(cells, highs)
        local = Spans(
            texts[selected], lows, highs, np.where(agents[selected] < 0, -1, agents[selected] - low)
        )
        guess, p, session = _explain_in(batch, matrix, local, choices, read.pieces_given)
        better = p < log_p[selected]
        guesses[selected[better]], log_p[selected[better]] = guess[better] + low, p[better]
        sessions[selected[better]] = session[better]
    return guesses, log_p, sessions


def _explain_in(
    batch: TokenBatch, matrix: ScoreMatrix, spans: Spans, choices: int, pieces_given: bool
) -> tuple[Int64s, Float64s, Int64s]:
    """Return what `_explain` does, in the tokens of one profile and with its agents.

    Args:
        batch, matrix: of the profile.
        spans: in its tokens; agents are those of its keys.
        choices: number of keys there were to choose from, times the number of spans if these are given.
        pieces_given: the spans were not chosen, see `piece_log_p`.
    """
    # The key with the highest sum is taken for the one with the lowest p-value. They can differ by repeats
    # and by the ends of the span.
    texts, starts, ends, agents = spans
    keys, all_keys, family = matrix.keys, matrix.reader.keys, matrix.keys.profile.family
    firsts = batch.starts[texts]
    lengths = (batch.ends - batch.starts)[texts]
    lowest, guesses = np.full(len(starts), np.inf), np.zeros(len(starts), np.int64)
    sessions = np.full(len(starts), OWN)
    number = np.ones(len(batch.ends))
    sessions_of_keys = None if not isinstance(keys, KeyTable) else keys.sessions

    def keep(selected: Any, scores: Float32s, pairs: Int64s, columns: Int64s, of: Keys) -> None:
        spans_there = pairs, starts[selected], ends[selected], columns, family, choices
        if pieces_given:
            log_p = piece_log_p(scores, *spans_there)
        else:
            log_p = segment_log_p(scores, *spans_there, texts=(firsts[selected], lengths[selected]))
        better = log_p < lowest[selected]
        at = selected[better]
        lowest[at], guesses[at] = log_p[better], of.owners[columns[better]]
        if of is keys and sessions_of_keys is not None:
            sessions[at] = sessions_of_keys[columns[better]]

    for hypothesis, reading in zip((None, *matrix.hypotheses), matrix.readings, strict=True):
        pairs, times, scores = batch.evidence_here, reading.times, reading.scores
        selected = np.arange(len(starts))
        if hypothesis is not None:
            pairs = np.where(pairs >= 0, hypothesis.pairs, -1)
            selected = np.flatnonzero(hypothesis.applies[texts])
            number += hypothesis.applies
        if len(batch.ends) > 1:
            # Give pairs distinct numbers in each text: the index of its first token exceeds all before.
            pairs = np.where(pairs >= 0, pairs + batch.starts[batch.numbers], -1)
        lows, highs = firsts[selected] + starts[selected], firsts[selected] + ends[selected]
        owners = keys.owners.astype(np.int64)
        keep(selected, scores, pairs, _best_keys(scores, lows, highs, agents[selected], owners), keys)
        unattributed = selected[agents[selected] < 0]
        if len(keys) < len(all_keys) and len(unattributed):
            # Unattributed spans are compared with every key, also with those that were no candidates.
            inside = np.append(np.stack([starts, ends], axis=1)[unattributed].ravel(), len(batch))
            best = _best_of_many(batch, inside, all_keys, times)[: 2 * len(unattributed) : 2]
            other_keys, local = np.unique(best, return_inverse=True)
            lowest[unattributed] = np.inf if hypothesis is None else lowest[unattributed]
            others = all_keys.subset(other_keys)
            keep(unattributed, batch.scores(others, times), pairs, local, others)
    return guesses, np.minimum(0.0, lowest + np.log(number)[texts]), sessions


def _best_of_many(batch: TokenBatch, edges: Int64s, keys: Keys, times: Int32s | None = None) -> Int64s:
    """Return the key with the highest sum in each span between `edges`, the first of equals."""
    best = np.zeros(len(edges) - 1, np.int64)
    highest = np.full(len(best), -np.inf)
    for low in range(0, len(keys), _MANY_KEYS):
        sums = batch.sums(edges, keys.subset(slice(low, low + _MANY_KEYS)), times=times)
        column = sums.argmax(axis=1)
        value = sums[np.arange(len(best)), column]
        better = value > highest
        best[better], highest[better] = column[better] + low, value[better]
    return best


def _best_keys(scores: NDArray[Any], starts: Int64s, ends: Int64s, agents: Int64s, owners: Int64s) -> Int64s:
    """Return the key with the highest sum in each span [S], among those of its agent if it has one."""
    best, selected = np.zeros(len(starts), np.int64), np.flatnonzero(ends > starts)
    if not len(selected):
        return best
    edges = np.stack(
        [starts[selected], ends[selected]], axis=1
    ).ravel()  # the sums between spans are not used
    last = edges[-1:] == len(scores)
    sums = np.add.reduceat(scores, edges[:-1] if last else edges, axis=0, dtype=np.float64)[::2]
    other_keys = (agents[selected, None] >= 0) & (owners != agents[selected, None])
    best[selected] = np.where(other_keys, -np.inf, sums).argmax(axis=1)
    return best


def _sum_columns(posterior: Float32s, owners: Int64s) -> Float32s:
    """Return [T, A] from [T, K]: an agent's posterior is the sum over its keys."""
    firsts = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))
    return posterior if len(firsts) == len(owners) else np.add.reduceat(posterior, firsts, axis=1)
