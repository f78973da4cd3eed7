"""Who wrote what in D texts: score, fit, decode, evidence, attribute. One text is the case D = 1."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iet.audit.alignment import Axis
from iet.audit.certainty import Certainty, certainty, chance_factors, cut_by_token, doubted
from iet.audit.decode import (
    Decoded,
    Spans,
    decode,
    decode_together,
    name_pieces,
    spans_of,
)
from iet.audit.evidence import (
    activity_log_p,
    decoy_log_p,
    discoveries,
    over_keys,
    over_own_keys,
    over_sessions,
    piece_log_p,
    segment_log_p,
)
from iet.audit.parts import Parts
from iet.audit.plan import Plan
from iet.audit.quotations import agreed
from iet.audit.scoring import Columns, activity_of, owners_of, score
from iet.audit.texts import Reading
from iet.marks.keys import Keys, KeyTable
from iet.marks.sessions import OWN
from iet.marks.tokenizer import Encoding
from iet.native.arrays import Bools, Float32s, Float64s, Int64s

_NOWHERE = np.zeros(0, np.int64)

_MANY_KEYS = 1 << 14  # keys whose sums are in memory at a time


class FoundSession(NamedTuple):
    """An agent that is found in a session, or (`OWN`) under its own keys; `text`, `agent` as indices."""

    text: int
    agent: int
    session: int
    log_p: float


@dataclasses.dataclass(frozen=True, eq=False)
class Attribution:
    """Who wrote what in D texts, S spans in all, in the order of the texts.

    Attributes:
        plan: what was read with.
        readings: one for each profile.
        axis: on which the spans of a single text stand; None for many.
        columns: one for each profile.
        decoded: see `Decoded`.
        parts, cuts: what is left out of a single text, and the indices on the axis before which that stands.
        given: whether the spans are pieces whose boundaries were known.
        evidence: log p-value of every agent in every text [D, A]; NaN for agents without a key.
        texts: int64 [S], the text of each span.
        starts, ends: int64 [S], tokens `[start, end)` in the text, or indices on the axis.
        agents: int64 [S], whom the decoder names, -1 for nobody.
        guesses: int64 [S], who explains the span best: its own agent, if it has one.
        log_p: float64 [S], corrected log p-value of the guess.
        attributed: bool [S].
        present: int64 [P], the agents whose keys were looked at, ascending.
        posteriors: of each text float32 [T, P]; None where the decoder has none.
        certainty: how sure the posterior is of the guesses; None where the decoder has none.
        found_sessions: in which sessions agents are found, the surest first.
        sessions: int64 [S], the session of the key that explains the guess best, -1 where it is of none.
    """

    plan: Plan
    readings: tuple[Reading, ...]
    axis: Axis | None
    columns: tuple[Columns, ...]
    decoded: Decoded
    parts: Parts | None
    cuts: Int64s
    given: bool
    evidence: Float64s
    texts: Int64s
    starts: Int64s
    ends: Int64s
    agents: Int64s
    guesses: Int64s
    log_p: Float64s
    attributed: Bools
    present: Int64s
    posteriors: tuple[Float32s, ...] | None
    certainty: Certainty | None
    found_sessions: tuple[FoundSession, ...]
    sessions: Int64s

    @property
    def owners(self) -> Int64s:
        """int64 [K]: the agent of every column, ascending."""
        return owners_of(self.columns)

    @property
    def bounds(self) -> tuple[Int64s, Int64s]:
        """`starts` and `ends`."""
        return self.starts, self.ends


def attribute(
    plan: Plan, texts: Sequence[str] | None, encodings: Sequence[tuple[Encoding, ...]]
) -> Iterator[Attribution]:
    """Find out who wrote what in D texts: all in one pass if the plan allows it, else one after another.

    Args:
        plan: what to read with.
        texts: as given; None: only ids are known.
        encodings: of each text, one for each profile.
    """
    if not plan.many_at_once or len(encodings) < 2:
        for d, each in enumerate(encodings):
            yield attribute_one(plan, None if texts is None else texts[d], each)
        return
    reading = Reading.of_many([each for (each,) in encodings], plan.readers[0].keys, texts is not None)
    columns = score(plan, plan.readers[0], reading)
    decoded = decode(plan, columns, reading, plan.options.allow_unattributed)
    owners = columns.owners
    spans = spans_of(decoded.labels, owners, reading.starts, reading.ends)
    yield _attribute(plan, (reading,), None, (columns,), decoded, spans)


def attribute_one(
    plan: Plan, text: str | None, encodings: tuple[Encoding, ...], parts: Parts | None = None
) -> Attribution:
    """Find out who wrote what in one text, or in the parts of it that are read."""
    readings = tuple(
        Reading.of(encoding, parts, reader.keys, text is not None)
        for encoding, reader in zip(encodings, plan.readers, strict=True)
    )
    axis, cuts, lengths = Axis.of(readings), _NOWHERE, _NOWHERE
    if parts is not None:
        parts = parts.without_gaps(axis.origins)
        cuts = np.searchsorted(axis.origins, parts.left_out[:, 0])
        lengths = np.diff(axis.tokens_between(parts))[:, 0]
    if parts is not None and parts.boundaries is not None:
        columns, decoded, spans = name_pieces(plan, axis, parts.audited)
        return _attribute(plan, readings, axis, columns, decoded, spans, parts, cuts, given=True)
    # To the agents of one profile the text of the others is nobody's, also in forced choice.
    nobodys = plan.several or plan.options.allow_unattributed
    columns = tuple(
        score(plan, reader, reading) for reader, reading in zip(plan.readers, readings, strict=True)
    )
    if plan.several:
        decoded = decode_together(plan, axis, columns, cuts, lengths)
    else:
        decoded = decode(plan, columns[0], readings[0], nobodys, cuts, lengths)
    bounds = np.array([0]), np.array([axis.length])
    spans = spans_of(decoded.labels, owners_of(columns), *bounds, cuts[(cuts > 0) & (cuts < axis.length)])
    return _attribute(plan, readings, axis, columns, decoded, spans, parts, cuts)


def _found_sessions(plan: Plan, log_p: Sequence[Float64s]) -> tuple[FoundSession, ...]:
    """Return in which sessions agents are found, from the log p-values of the keys of all profiles."""
    found = []
    for reader, each in zip(plan.readers, log_p, strict=True):
        keys = reader.keys
        if isinstance(keys, KeyTable) and keys.sessions is not None and len(keys):
            corrected = over_sessions(each, keys.owners, keys.sessions, plan.num_readings * plan.agents)
            for d, k in np.argwhere(corrected <= math.log(plan.options.level)).tolist():
                agent = int(keys.owners[k]) + reader.first
                found.append(FoundSession(d, agent, int(keys.sessions[k]), float(corrected[d, k])))
    return tuple(sorted(found, key=lambda pair: (pair.text, pair.log_p)))


def _evidence(plan: Plan, log_p: Sequence[Float64s]) -> Float64s:
    """Return the log p-value of every agent in every text [D, A].

    Corrected for its keys, all agents, and the ways in which the text was read. `log_p` are those of the keys
    of each profile, [D, K].
    """
    owners = np.concatenate([reader.owners for reader in plan.readers])
    corrected = over_keys(over_own_keys(np.concatenate(log_p, axis=1), owners))
    found = np.full((len(corrected), len(plan.names)), np.nan)
    found[:, np.unique(owners)] = np.minimum(corrected + math.log(plan.num_readings), 0)
    return found


def _key_log_p(reading: Reading, columns: Columns) -> Float64s:
    """Return the log p-value of every key of a profile by itself, [D, K]."""
    reader = columns.reader
    activity = columns.activity
    if activity is None:
        activity = activity_of(reading, reader.keys)[None]
    if reader.decoys is not None:
        return decoy_log_p(activity[0], activity_of(reading, reader.decoys))[None]
    distinct = reading.each(reading.scored & ~reading.repeated)
    return activity_log_p(activity, distinct, reader.keys.profile.family)


def _explain(
    plan: Plan,
    axis: Axis | None,
    readings: Sequence[Reading],
    columns: Sequence[Columns],
    spans: Spans,
    given: bool,
) -> tuple[Int64s, Float64s, Int64s]:
    """Return who explains each span best (its own agent, if it has one), the corrected log p, the session.

    In the agent's own tokens. What is nobody's is compared with the keys of all profiles.
    """
    texts, starts, ends, agents = spans
    guesses, log_p = np.zeros(len(starts), np.int64), np.full(len(starts), np.inf)
    choices = plan.num_readings * plan.choices * (max(1, len(starts)) if given else 1)
    sessions = np.full(len(starts), OWN)
    for i, (reading, some) in enumerate(zip(readings, columns, strict=True)):
        low, high = some.reader.first, some.reader.first + len(some.reader.keys.names)
        mine = np.flatnonzero((agents < 0) | ((agents >= low) & (agents < high)))
        lows, highs = starts[mine], ends[mine]
        if plan.several:
            assert axis is not None
            lows, highs = np.searchsorted(axis.cells[i], lows), np.searchsorted(axis.cells[i], highs)
        locals_ = np.where(agents[mine] < 0, -1, agents[mine] - low)
        spans_there = Spans(texts[mine], lows, highs, locals_)
        guess, p, session = _explain_in(reading, some, spans_there, choices, given)
        better = p < log_p[mine]
        guesses[mine[better]], log_p[mine[better]] = guess[better] + low, p[better]
        sessions[mine[better]] = session[better]
    return guesses, log_p, sessions


def _explain_in(
    reading: Reading, columns: Columns, spans: Spans, choices: int, given: bool
) -> tuple[Int64s, Float64s, Int64s]:
    """Return what `_explain` does, in the tokens of one profile and with its agents.

    Args:
        reading, columns: of the profile.
        spans: in its tokens; agents are those of its keys.
        choices: number of keys there were to choose from; where the spans are given, times that of spans.
        given: the spans were not chosen, see `piece_log_p`.
    """
    # The highest sum stands for the lowest p-value, which differs by repeats and the ends of the span.
    texts, starts, ends, agents = spans
    keys, family = columns.keys, columns.keys.profile.family
    owners = keys.owners.astype(np.int64)
    firsts = reading.starts[texts]
    best = _best_keys(columns.scores, firsts + starts, firsts + ends, agents, owners)
    pairs = reading.evidence_here
    if len(reading.ends) > 1:
        # Pairs get numbers of their own in each text: its first token's place is above any number before.
        pairs = np.where(pairs >= 0, pairs + reading.starts[reading.numbers], -1)

    def log_p_of(scores: Float32s, some: Any, columns: Int64s) -> Float64s:
        places = starts[some], ends[some]
        if given:
            return piece_log_p(scores, pairs, *places, columns, family, choices)
        where = firsts[some], (reading.ends - reading.starts)[texts[some]]
        return segment_log_p(scores, pairs, *places, columns, family, choices, texts=where)

    guesses, log_p = owners[best], log_p_of(columns.scores, slice(None), best)
    sessions = np.full(len(best), OWN)
    if isinstance(keys, KeyTable) and keys.sessions is not None:
        sessions = keys.sessions[best].astype(np.int64)
    all_keys, nobodys = columns.reader.keys, np.flatnonzero(agents < 0)
    if len(keys) < len(all_keys) and len(nobodys):
        # Nobody's spans are compared with every key, also those that the decoder did not look at.
        inside = np.append(np.stack([starts, ends], axis=1)[nobodys].ravel(), len(reading))
        best = _best_of_many(reading, inside, all_keys)[: 2 * len(nobodys) : 2]
        others, local = np.unique(best, return_inverse=True)
        guesses[nobodys] = all_keys.owners[best]
        log_p[nobodys] = log_p_of(reading.scores(all_keys.subset(others)), nobodys, local)
    return guesses, log_p, sessions


def _best_of_many(reading: Reading, edges: Int64s, keys: Keys) -> Int64s:
    """Return the key with the highest sum in each span between `edges`, the first of several."""
    best = np.zeros(len(edges) - 1, np.int64)
    highest = np.full(len(best), -np.inf)
    for low in range(0, len(keys), _MANY_KEYS):
        sums = reading.sums(edges, keys.subset(slice(low, low + _MANY_KEYS)))
        column = sums.argmax(axis=1)
        value = sums[np.arange(len(best)), column]
        better = value > highest
        best[better], highest[better] = column[better] + low, value[better]
    return best


def _best_keys(scores: NDArray[Any], starts: Int64s, ends: Int64s, agents: Int64s, owners: Int64s) -> Int64s:
    """Return the key with the highest sum in each span [S], among those of its agent if it has one."""
    best, some = np.zeros(len(starts), np.int64), np.flatnonzero(ends > starts)
    if not len(some):
        return best
    edges = np.stack([starts[some], ends[some]], axis=1).ravel()  # the sums between spans are not looked at
    last = edges[-1:] == len(scores)
    sums = np.add.reduceat(scores, edges[:-1] if last else edges, axis=0, dtype=np.float64)[::2]
    others = (agents[some, None] >= 0) & (owners != agents[some, None])
    best[some] = np.where(others, -np.inf, sums).argmax(axis=1)
    return best


def _attribute(
    plan: Plan,
    readings: tuple[Reading, ...],
    axis: Axis | None,
    columns: tuple[Columns, ...],
    decoded: Decoded,
    spans: Spans,
    parts: Parts | None = None,
    cuts: Int64s = _NOWHERE,
    given: bool = False,
) -> Attribution:
    """Decide which spans are attributed, and return everything that was found out."""
    log_p_of_keys = [_key_log_p(reading, some) for reading, some in zip(readings, columns, strict=True)]
    evidence = _evidence(plan, log_p_of_keys)
    present, local = np.unique(owners_of(columns), return_inverse=True)
    own = posteriors = factors = sure = None
    if decoded.posteriors is not None:
        own = tuple(_sum_columns(posterior, local) for posterior in decoded.posteriors)
        posteriors = doubted(agreed(own, readings, axis), evidence[:, present])
        factors = chance_factors(spans, len(posteriors))
        if plan.options.attributed == "tokens" and not given:
            spans = cut_by_token(posteriors, present, factors, spans, evidence, plan.options.level)
    texts, starts, ends, agents = spans
    guesses, log_p, sessions = _explain(plan, axis, readings, columns, spans, given)
    if posteriors is not None and factors is not None:
        sure = certainty(posteriors, present, factors, spans, guesses)
    attributed = agents >= 0
    if plan.options.allow_unattributed and sure is not None:
        level = plan.options.level
        attributed &= (evidence[texts, guesses] <= math.log(level)) & (sure.errors <= level)
    elif plan.options.allow_unattributed:
        for d in np.unique(texts[attributed]).tolist():
            low, high = np.searchsorted(texts, [d, d + 1])
            mine = low + np.flatnonzero(attributed[low:high])
            attributed[mine] = discoveries(log_p[mine], plan.options.level)
    return Attribution(
        plan,
        readings,
        axis,
        columns,
        decoded,
        parts,
        cuts,
        given,
        evidence,
        texts,
        starts,
        ends,
        agents,
        guesses,
        log_p,
        attributed,
        present,
        own,
        sure,
        _found_sessions(plan, log_p_of_keys) if plan.sessions else (),
        sessions,
    )


def _sum_columns(posterior: Float32s, owners: Int64s) -> Float32s:
    """Return [T, A] from [T, K]: an agent's posterior is the sum over its keys."""
    firsts = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))
    return posterior if len(firsts) == len(owners) else np.add.reduceat(posterior, firsts, axis=1)
