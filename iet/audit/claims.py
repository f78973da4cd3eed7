"""Check the agents that are claimed for pieces of a conversation against the marks in them."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from iet.audit.counting import counts_in_all
from iet.audit.encode import TokenBatch
from iet.audit.evidence import holm, session_log_p, sidak_min_p
from iet.audit.plan import Plan
from iet.audit.score import evidence_levels
from iet.audit.tails import log_tails
from iet.audit.traces import Trace
from iet.decoding.activity import BLOCK, LEVELS, unweighted_sums
from iet.errors import InputError
from iet.kernels import score_spans
from iet.marks.keys import KeyTable
from iet.marks.sessions import OWN
from iet.marks.tokenizer import Encoding
from iet.native.arrays import Bools, Float64s, Int32s, Int64s, UInt8s
from iet.report.claims import EXCLUDED, CheckedPiece, ClaimReport, HandOver, HandOvers

MAX_SUMS = 1 << 18
"""Maximum number of sums (pieces times keys) in memory at once: 2 MB an array."""

_LONGEST_NAME = 100
"""Number of letters of a claimed name that are compared with registered names."""

_COMPARISONS = 10_000
"""Number of pairs of a claimed and a registered name that are compared letter by letter."""

MAX_TOKENS = 1 << 17
"""Largest number of tokens that is suggested as enough; None is returned beyond it."""


def check_trace(plan: Plan, trace: Trace, names: Mapping[str, str]) -> ClaimReport:
    """Return what `Auditor.check_trace` does."""
    claims = [piece.claim and names.get(piece.claim, piece.claim) for piece in trace.pieces]
    skip = {d: piece.skipped for d, piece in enumerate(trace.pieces) if piece.skipped is not None}
    checked = check_claims(plan, [piece.text for piece in trace.pieces], claims, skip)
    return dataclasses.replace(
        checked,
        skipped={**checked.skipped, **trace.left_out},
        unreadable=dict(trace.unreadable),
        hand_overs=_hand_overs(trace, names, checked) if trace.transfers else None,
    )


def _hand_overs(trace: Trace, names: Mapping[str, str], checked: ClaimReport) -> HandOvers:
    """Return the hand-overs of a trace, compared with those that the marks show."""
    agents = [piece.agent for piece in checked.pieces if piece.verdict != "skipped"]
    neighbours = itertools.pairwise(agents)
    recovered = collections.Counter((a, b) for a, b in neighbours if a and b and a != b)
    found, missing = list[HandOver](), list[HandOver]()
    # Those with a source first, so that one without a source does not take their pair.
    for transfer in sorted(trace.transfers, key=lambda transfer: transfer.source is None):
        source = transfer.source and names.get(transfer.source, transfer.source)
        target = names.get(transfer.target, transfer.target)
        candidates = [(source, target)] if source else [pair for pair in recovered if pair[1] == target]
        pair = next((pair for pair in candidates if recovered[pair] > 0), None)
        if pair is None:
            missing.append((source, target))
        else:
            recovered[pair] -= 1
            found.append(pair)
    return HandOvers(tuple(found), tuple(missing), tuple(recovered.elements()))


def check_claims(
    plan: Plan,
    pieces: Sequence[str],
    claims: Sequence[str | None],
    skip: Collection[int] | Mapping[int, str],
) -> ClaimReport:
    """Return what `Auditor.check` does."""
    skipped = _checked(pieces, claims, skip)
    encodings = _encoded(plan, pieces)
    tokens = np.array([max(len(values.token_ids) for values in checked) for checked in encodings], np.int64)
    index = {name: a for a, name in enumerate(plan.names)}
    claimed = np.array([-1 if name is None else index.get(name, -1) for name in claims], np.int64)
    judged = np.array([d not in skipped for d in range(len(pieces))], np.bool_)

    evidence = [
        _Evidence.of([encoding[i] for encoding in encodings], reader.keys)
        for i, reader in enumerate(plan.readers)
    ]
    counts, repeated, published = (
        np.stack([getattr(part, name) for part in evidence], axis=1)
        for name in ("counts", "repeated", "published")
    )
    claimed_log_p, other_log_p, other_agents, excess, sessions = _tested(plan, evidence, claimed, judged)

    level = math.log(plan.options.level)
    confirmed = claimed_log_p <= level
    counted = counts[np.arange(len(pieces)), _profiles(plan, claimed)]
    strengths = _strengths(plan, excess, counted, claimed, confirmed)
    unknown = (claims[d] for d in np.flatnonzero(judged & (claimed < 0)).tolist())
    nearest = _nearest(unknown, plan.names)
    checked = []
    for d, (text, name) in enumerate(zip(pieces, claims, strict=True)):
        marked = plan.names[other_agents[d]] if other_log_p[d] <= level else None
        verdict, agent, p = "open", None, other_log_p[d] if claimed[d] < 0 else claimed_log_p[d]
        is_unknown = name is not None and claimed[d] < 0
        if not judged[d]:
            verdict, p = "skipped", 0.0
        elif confirmed[d]:
            verdict, agent = "confirmed", name
        elif marked is not None:
            verdict, agent, p = "named" if name is None else "contradicted", marked, other_log_p[d]
        if judged[d] and is_unknown:  # no key of the claimed name was read, so nothing contradicts it
            verdict = "unknown name"
        session = OWN if agent is None else sessions[d, int(verdict != "confirmed")]
        profile = int(_profiles(plan, np.array([claimed[d] if agent is None else index[agent]]))[0])
        checked.append(
            CheckedPiece(
                index=d,
                claim=name,
                verdict=verdict,
                agent=agent,
                log_p=float(p),
                also=marked if verdict == "confirmed" else None,
                characters=len(text),
                tokens=int(tokens[d]),
                counted=int(counts[d, profile]),
                repeated=int(repeated[d, profile]),
                published=None if plan.published is None else int(published[d, profile]),
                enough=None
                if verdict != "open"
                else _enough(plan, int(claimed[d]), strengths, int(judged.sum())),
                session=None if session == OWN else plan.sessions[session],
                reason=skipped.get(d),
                nearest=nearest.get(name) if name is not None and verdict == "unknown name" else None,
            )
        )
    return ClaimReport(
        pieces=tuple(checked),
        agents=plan.names,
        level=plan.options.level,
        registry_digest=plan.registry_digest,
        sessions=len(plan.sessions) or None,
        skipped=dict(collections.Counter(skipped.values())),
    )


def _nearest(claims: Iterable[str | None], names: Sequence[str]) -> dict[str, str]:
    """Return {claimed name: registered name that it is most like} for the names that are like one.

    Case, spaces and punctuation do not count. Only the first claims are compared letter by letter, so that
    many names, or many agents, take no long time.
    """
    import difflib  # `import iet` is shorter without it

    def letters(name: str) -> str:
        return "".join(filter(str.isalnum, name.casefold()))[:_LONGEST_NAME]

    repeated = {letters(name): name for name in reversed(names)}
    checked, compared = dict[str, str](), 0
    for claim in dict.fromkeys(claim for claim in claims if claim is not None):
        spelled = letters(claim)
        if spelled not in repeated and len(repeated) * compared < _COMPARISONS:
            compared += 1
            spelled = next(iter(difflib.get_close_matches(spelled, repeated, 1)), "")
        if spelled in repeated:
            checked[claim] = repeated[spelled]
    return checked


def _checked(
    pieces: Sequence[str], claims: Sequence[str | None], skip: Collection[int] | Mapping[int, str]
) -> dict[int, str]:
    """Return the reason for each piece to skip, after a check of all arguments."""
    for problem, values in (("pieces", pieces), ("claims", claims)):
        if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
            raise InputError(f"{problem}: got {type(values).__name__}, expected a list")
    if len(pieces) != len(claims):
        raise InputError(f"claims: got {len(claims)}, expected one for each of {len(pieces)} pieces, or None")
    for d, piece in enumerate(pieces):
        if not isinstance(piece, str):
            raise InputError(f"pieces[{d}]: got {type(piece).__name__}, expected str")
    for d, claim in enumerate(claims):
        if claim is not None and not isinstance(claim, str):
            raise InputError(
                f"claims[{d}]: got {type(claim).__name__}, expected the name of an agent, or None"
            )
    if not isinstance(skip, Iterable):
        raise InputError(f"skip: got {skip!r:.80}, expected numbers of pieces")
    skipped = dict[int, str]()
    for d in skip:
        number = int(d) if isinstance(d, (int, np.integer)) and not isinstance(d, bool) else -1
        if not 0 <= number < len(pieces):
            raise InputError(f"skip: got {d!r:.80}, expected numbers of pieces, 0 to {len(pieces) - 1}")
        skipped[number] = str(skip[d]) if isinstance(skip, Mapping) else EXCLUDED
    return skipped


def _encoded(plan: Plan, pieces: Sequence[str]) -> list[tuple[Encoding, ...]]:
    try:
        return plan.encode(pieces)
    except InputError:
        for d, piece in enumerate(pieces):
            try:
                plan.encode([piece])
            except InputError as error:
                raise InputError(f"pieces[{d}]: {error}") from None
        raise


@dataclasses.dataclass(frozen=True, eq=False)
class _Evidence:
    """The evidence of D pieces in the tokens of one profile.

    Attributes:
        ids: the token ids of each piece.
        levels: uint8 [T] for each piece, the weights of its tokens in sixteenths; 0: they do not count.
        counts: int64 [D], number of tokens that count.
        repeated: int64 [D], number of tokens that occurred in an earlier piece.
        published: int64 [D], number of tokens that were published before.
        times: for each piece the counts of its contexts in all pieces up to there, if seeds hold counts and
            enough of them differ from those in the piece; else None.
    """

    ids: tuple[Int64s, ...]
    levels: tuple[UInt8s, ...]
    counts: Int64s
    repeated: Int64s
    published: Int64s
    times: tuple[Int32s | None, ...]

    @classmethod
    def of(cls, encodings: Sequence[Encoding], keys: Any) -> _Evidence:
        if not encodings:
            nothing = np.zeros(0, np.int64)
            return cls((), (), nothing, nothing, nothing, ())
        reading = TokenBatch.of_many(encodings, keys, None)
        repeated = _known(reading, keys.profile.scheme.evidence_ids)
        fresh = reading.scored & ~reading.repeated & ~repeated
        weights = evidence_levels(reading, keys)
        levels = np.where(fresh, LEVELS if weights is None else weights, 0).astype(np.uint8)
        return cls(
            tuple(encoding.token_ids for encoding in encodings),
            tuple(levels[reading.inside(d)] for d in range(len(encodings))),
            reading.count(fresh),
            reading.count(repeated & reading.scored),
            reading.published_counts,
            counts_in_all(reading, keys, fresh),
        )

    def read(self, first: int, last: int, keys: Any) -> tuple[Float64s, Float64s]:
        """Return sums of scores in some pieces [last - first, K], and the log p-value of each key there.

        A writer may have had the earlier pieces as its prompt. So the lower p-value of both counts is taken,
        times two.
        """
        shape = last - first, len(keys)
        sums, weighted, in_all = (np.zeros(shape) for _ in range(3))
        several = np.array([self.times[d] is not None for d in range(first, last)], np.bool_)
        for d in range(first, last):
            ids, levels, times, row = self.ids[d], self.levels[d], self.times[d], d - first
            ends, counted = np.array([0, len(ids)]), levels > 0
            if not counted.any():
                continue
            sums[row] = score_spans(ids, ends, keys, counted=counted)[0]
            if keys.profile.family.chooses:
                weighted[row] = keys.sums(ids, ends, levels, 0)[0] / LEVELS
            if times is not None:  # counts are in the seeds of a family whose scores have weights
                in_all[row] = keys.sums(ids, ends, levels, 0, times)[0] / LEVELS
        if not keys.profile.family.chooses:
            of_pieces = np.repeat(self.counts[first:last], len(keys))
            return sums, log_tails(sums.ravel(), of_pieces, keys.profile.family).reshape(shape)
        tails = self._weighted_log_tails(first, weighted, keys)
        if several.any():
            others = self._weighted_log_tails(first, in_all, keys)
            lower = np.minimum(0.0, np.minimum(tails, others) + math.log(2))
            tails = np.where(several[:, None], lower, tails)
        return sums, tails

    def _weighted_log_tails(self, first: int, weighted: Float64s, keys: Any) -> Float64s:
        """Return the log p-value of each key in each piece, from its weighted sums [last - first, K]."""
        levels = [np.bincount(of, minlength=LEVELS + 1)[1:] for of in self.levels[first:][: len(weighted)]]
        sums = unweighted_sums(weighted, np.array(levels))
        return log_tails(sums.ravel(), np.full(sums.size, BLOCK), keys.profile.family).reshape(sums.shape)


def _known(reading: TokenBatch, n_gram: int) -> Bools:
    """Return bool [N]: the tokens that occurred with the same context in an earlier piece."""
    from iet.native.pairs import number_pairs

    numbers = number_pairs(reading.ids, reading.scored, n_gram)
    scored = np.flatnonzero(numbers >= 0)
    first = np.zeros(len(scored), np.int64)  # the piece of each number, at the index of that number
    first[numbers[scored][::-1]] = reading.numbers[scored][::-1]
    repeated = np.zeros(len(reading.ids), np.bool_)
    repeated[scored] = first[numbers[scored]] < reading.numbers[scored]
    return repeated


def _tested(
    plan: Plan, evidence: Sequence[_Evidence], claimed: Int64s, judged: Bools
) -> tuple[Float64s, Float64s, Int64s, Float64s, Int64s]:
    """Return corrected log p-values of claims and of other agents' marks, these agents, excess, and sessions.

    Two families of hypotheses, each corrected by Holm's steps. For each claim: its agent wrote nothing. For
    each piece: no agent but the claimed one wrote in it; its p-value is the lowest of A - 1 agents. The
    excess of a piece is the sum of its claimed agent's scores above chance. Sessions [D, 2] are those of the
    claimed and of the other agent, if the pair is found at the level among all pairs and all pieces. Pieces
    are read in blocks, so memory does not grow with pieces times keys.
    """
    pieces = len(claimed)
    claimed_log_p, other_log_p, excess = np.zeros(pieces), np.zeros(pieces), np.zeros(pieces)
    other_agents, sessions = np.zeros(pieces, np.int64), np.full((pieces, 2), OWN)
    certain = math.log(plan.options.level) - math.log(max(1, int(judged.sum())))
    present = np.unique(np.concatenate([reader.owners for reader in plan.readers]))
    rows = max(1, MAX_SUMS // plan.choices)
    for first in range(0, pieces, rows):
        last = min(first + rows, pieces)
        log_p, of_keys = np.zeros((last - first, len(plan.names))), list[Float64s]()
        for part, reader in zip(evidence, plan.readers, strict=True):
            family, owners = reader.keys.profile.family, reader.owners
            (sums, tails), counts = part.read(first, last, reader.keys), part.counts[first:last]
            of_keys.append(tails)
            log_p[:, np.unique(owners)] = sidak_min_p(of_keys[-1], owners)
            for row in np.flatnonzero(np.isin(claimed[first:last], owners)).tolist():
                inside = owners == claimed[first + row]
                excess[first + row] = sums[row, inside].max() - counts[row] * family.mean(0.0)
        for d in range(first, last):
            if claimed[d] >= 0:
                claimed_log_p[d] = log_p[d - first, claimed[d]]
            remaining = present[present != claimed[d]]
            if judged[d] and len(remaining):
                values = log_p[d - first, remaining]
                other_agents[d] = remaining[values.argmin()]
                other_log_p[d] = sidak_min_p(values, np.zeros(len(remaining), np.int64))[
                    0
                ]  # of the lowest of them
        if plan.sessions:
            for reader, tails in zip(plan.readers, of_keys, strict=True):
                for column, agents in enumerate((claimed[first:last], other_agents[first:last])):
                    _name_sessions(plan, reader, tails, agents, sessions[first:last, column], certain)
    with_claim = judged & (claimed >= 0)
    claimed_log_p[~with_claim] = 0
    claimed_log_p[with_claim] = holm(claimed_log_p[with_claim])
    other_log_p[judged] = holm(other_log_p[judged])
    return claimed_log_p, other_log_p, other_agents, excess, sessions


def _name_sessions(
    plan: Plan, reader: Any, log_p: Float64s, agents: Int64s, sessions: Int64s, certain: float
) -> None:
    """Fill in the surest session of an agent [D] in each piece, from the log p-values of keys [D, K]."""
    keys = reader.keys
    if not isinstance(keys, KeyTable) or keys.sessions is None or not len(keys):
        return
    for d in np.flatnonzero(np.isin(agents, reader.owners)).tolist():
        checked = session_log_p(log_p[d : d + 1], keys.owners, keys.sessions, plan.agents)[0]
        checked[reader.owners != agents[d]] = 0
        if checked.min() <= certain:
            sessions[d] = keys.sessions[checked.argmin()]


def _profiles(plan: Plan, agents: Int64s) -> Int64s:
    """Return the index of the profile of each agent [D]; 0 for agent -1."""
    firsts = np.array([reader.first for reader in plan.readers])
    return np.searchsorted(firsts, np.maximum(agents, 0), "right") - 1


def _strengths(
    plan: Plan, excess: Float64s, counted: Int64s, claimed: Int64s, confirmed: Bools
) -> dict[int, float]:
    """Return how far a token's score is above chance, for each confirmed agent and for all together.

    The key -1 means all agents, if they have one law of scores.
    """
    rows = np.flatnonzero(confirmed)
    groups = {a: rows[claimed[rows] == a] for a in np.unique(claimed[rows]).tolist()}
    if len({reader.keys.profile.family.name for reader in plan.readers}) == 1 and len(rows):
        groups[-1] = rows
    return {a: float(excess[inside].sum() / counted[inside].sum()) for a, inside in groups.items()}


def _enough(plan: Plan, agent: int, strengths: dict[int, float], number: int) -> int | None:
    """Return how many counted tokens would confirm an agent half of the time; None: nothing says so."""
    strength = strengths.get(agent, strengths.get(-1))
    if strength is None or strength <= 0:
        return None
    family = plan.readers[_profiles(plan, np.array([agent]))[0]].keys.profile.family
    sizes = np.unique(np.geomspace(1, MAX_TOKENS, 400).astype(np.int64))
    tails = log_tails((strength + family.mean(0.0)) * sizes, sizes, family)
    # The first that does, with all longer ones: below 20 tokens tails are bounds.
    short = np.flatnonzero(tails > math.log(plan.options.level / number))
    first = int(short[-1]) + 1 if len(short) else 0
    return int(sizes[first]) if first < len(sizes) else None
