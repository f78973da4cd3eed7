"""`Auditor`: text → ids → scores → decoder → segments → evidence → transitions → report."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import functools
import inspect
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iet.decoding import (
    DECODERS,
    Segmentation,
    boundary_intervals,
    candidates,
    decode,
    log_activity,
    span_sums,
    windows,
)
from iet.decoding.activity import evidence_blocks
from iet.decoding.candidates import sum_activity
from iet.decoding.pairs import repeats
from iet.errors import InputError
from iet.evidence import activity_log_p, decoy_log_p, discoveries, over_keys, segment_log_p
from iet.kernels import check_token_ids, pair_numbers, score_spans, score_tokens
from iet.registry import KeyTable, Registry
from iet.report import Report, Segment
from iet.tokenizer import Encoding, Tokenizer
from iet.transitions import Transitions, transitions
from iet.waterfall import WaterfallKeys

ALL_KEYS = 64
"""With more keys, only the decoder's candidates among them are scored token by token."""

BATCH_CHARACTERS, BATCH_TEXTS = 1 << 16, 256
"""What `audit_many` gives the tokenizer at once, at most. More costs processor time: memory is not reused."""


class Auditor:
    """Recover from text alone which agent wrote which part (§ Agent Attribution).

    Args:
        registry: who may have written the text: an `iet.Registry`, or `iet.WaterfallKeys` for text that the
            Waterfall package marked.
        decoder: a key of `iet.decoding.DECODERS`: "posterior" (ours, the default), "cusum" (the paper's) or
            "window".
        level: 0 < level < 1. Of texts that none of the registered agents wrote in, at most this share has an
            agent found in it (`Report.log_p`); and with decoder "posterior" a segment is attributed if its
            agent is found and `Segment.error`, the posterior probability that the agent wrote none of it, is
            at most this. The other decoders have no posterior: there segments are attributed by the
            false-discovery rate of their own p-values (`iet.evidence.discoveries`).
        allow_unattributed: False is the paper's forced choice: every token gets an agent.
        profile: id of the profile, where the registry has several.
        tokenizer: path or object, where the registry's own note of it does not lead there. Its digest must
            be the profile's.
        decoys: keys that nobody holds, scored on every text to see how chance looks there. With some, agents'
            p-values are ranks among them, free of any assumption about scores but no lower than
            1 / (1 + decoys); 0: p-values come from the null law itself.
        options: the decoder's, see `iet.decoding.decode`.

    Raises:
        InputError: a parameter is out of range, or an option unknown.
        RegistryError: the profile has no agents.
        TokenizerMismatch: on the first text, if the tokenizer is another one or cannot be found.

    Deterministic. O(T·K) time for T tokens and K keys, apart from tokenizing.

    With more than 64 keys, all are read as sums over blocks of tokens, and only the decoder's `candidates`
    (256 at most, unless more are likelier than not somewhere) token by token: memory is T·256 scores, and
    T·K/16 sums with `posterior`. Other agents have posterior 0, are never named by the decoder, and are no
    competitor in P_ij (whose maximum is over the candidates' agents). What nobody wrote is still compared
    with every key for `best_guess`, and log_p is corrected for all K. "posterior" would leave the same agents
    out of all scores. The candidates of the others are first or second in some window (for "window" one every
    16 tokens). So where nobody wrote, "cusum" may miss the agent with the highest sum of a long segment, by
    which `refine` goes and which a forced choice names, and "window" in forced choice one that leads only
    between two windows.
    """

    def __init__(
        self,
        registry: Registry | WaterfallKeys,
        decoder: str = "posterior",
        level: float = 0.01,
        allow_unattributed: bool = True,
        *,
        profile: str | None = None,
        tokenizer: Any = None,
        decoys: int = 0,
        **options: Any,
    ) -> None:
        if not isinstance(registry, (Registry, WaterfallKeys)):
            raise InputError(
                f"registry: got {type(registry).__name__}, expected iet.Registry or iet.WaterfallKeys"
            )
        if not isinstance(decoder, str) or decoder not in DECODERS:
            raise InputError(f"decoder: got {decoder!r}, expected one of {sorted(DECODERS)}")
        if not isinstance(level, (int, float, np.floating)) or not 0 < level < 1:
            raise InputError(f"level: got {level!r}, expected a number between 0 and 1")
        if isinstance(decoys, bool) or not isinstance(decoys, (int, np.integer)) or decoys < 0:
            raise InputError(f"decoys: got {decoys!r}, expected an int of at least 0")
        if decoys and isinstance(registry, WaterfallKeys):
            raise InputError(f"decoys: got {decoys}, expected 0: Waterfall's integer keys have none")
        self._registry = registry
        self._keys: KeyTable | WaterfallKeys = registry.scoring_keys(profile)
        self._decoys = self._keys.decoys(int(decoys)) if isinstance(self._keys, KeyTable) and decoys else None
        self._registry_digest = registry.digest  # of the keys above, whatever is added later
        if len(self._keys) == 0:
            raise InputError("registry: the profile has no agents; expected at least one (registry.add)")
        self._profile_id = profile
        self._decoder = decoder
        self._level = float(level)
        self._allow_unattributed = bool(allow_unattributed)
        self._options = options
        # Decoders without a model of nobody have a level of their own: it is the report's.
        takes_level = "level" in inspect.signature(DECODERS[decoder]).parameters
        self._decoder_options = {**options, "level": min(self._level, 0.5)} if takes_level else options
        self._source = tokenizer
        self._tokenizer: Tokenizer | None = None
        # Refuse bad options now, not after the first text has been tokenized and scored.
        self._decode(np.zeros((0, len(self._keys)), dtype=np.float32), np.zeros(0, dtype=np.int64))

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle finds the keys through the registry's file and holds none.
        decoys = 0 if self._decoys is None else len(self._decoys)
        options = dict(self._options, profile=self._profile_id, tokenizer=self._source, decoys=decoys)
        rebuild = functools.partial(type(self), allow_unattributed=self._allow_unattributed, **options)
        return rebuild, (self._registry, self._decoder, self._level)

    def audit(self, text: str | None = None, *, token_ids: ArrayLike | None = None) -> Report:
        """Audit one text.

        Args:
            text: str, any length; invisible characters in it are skipped and counted.
            token_ids: integer ids [T] instead: no tokenizer is needed, and the report has no characters.

        Raises:
            InputError: neither or both are given, or `text` is not valid Unicode.
            ShapeError: `token_ids` is not a vector of integers.
            InputError: an id is beyond int64.
            TokenizerMismatch: no tokenizer with the profile's digest.
        """
        if (text is None) == (token_ids is None):
            raise InputError("audit: got neither or both of text and token_ids, expected one")
        if text is not None:
            return self._audit_text(text)
        return self._report(None, Encoding(check_token_ids(token_ids)))

    def audit_many(self, texts: Iterable[str]) -> Iterator[Report]:
        """Audit texts one after another, each as `audit` does, while the next ones are tokenized.

        Args:
            texts: read lazily, in the caller's thread, and ahead of the reports by at most three batches of
                256 texts or 2^16 characters (or one longer text), so memory does not grow with their number.

        Returns:
            An iterator of reports in the order of `texts`. What reading or auditing a text raises is raised
            after the reports of all texts before it.

        Raises:
            InputError: `texts` is one text, or nothing that can be iterated over.

        Deterministic: the reports are those of `audit`, whatever the number of threads. A second thread
        tokenizes, in one call per batch that does not hold the interpreter's lock; it ends with the iterator.
        """
        try:
            source = None if isinstance(texts, (str, bytes, bytearray)) else iter(texts)
        except TypeError:
            source = None
        if source is None:
            raise InputError(f"texts: got {type(texts).__name__}, expected a list (or iterable) of texts")
        return self._audit_many(source)

    def _audit_many(self, texts: Iterator[str]) -> Iterator[Report]:
        pending: collections.deque[tuple[list[str], concurrent.futures.Future[list[Encoding]]]]
        pending, failure = collections.deque(), None
        batches = _batches(texts)
        worker = concurrent.futures.ThreadPoolExecutor(1, "iet-tokenizer")
        try:
            while True:
                while failure is None and len(pending) < 2:
                    batch, failure = next(batches)
                    if batch:
                        pending.append((batch, worker.submit(self._open_tokenizer().encode_batch, batch)))
                if not pending:
                    break
                batch, encodings = pending.popleft()
                if encodings.exception() is None:
                    yield from map(self._report, batch, encodings.result())
                else:  # some text of the batch is to blame: those before it have reports
                    yield from map(self._audit_text, batch)
        finally:
            worker.shutdown(cancel_futures=True)
        if not isinstance(failure, StopIteration):
            assert failure is not None
            raise failure

    def _audit_text(self, text: str) -> Report:
        return self._report(text, self._open_tokenizer().encode(text))

    def _open_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            self._tokenizer = self._registry.open_tokenizer(self._profile_id, self._source)
        return self._tokenizer

    def _decode(
        self,
        scores: NDArray[np.float32],
        pairs: NDArray[np.int64],
        columns: NDArray[np.int64] | None = None,
    ) -> Segmentation:
        options = self._decoder_options
        if columns is not None and options.get("strengths") is not None:
            options = {**options, "strengths": np.asarray(options["strengths"])[columns]}
        return decode(
            scores,
            self._decoder,
            self._keys.profile.scheme.family,
            None,
            None,
            self._allow_unattributed,
            None if columns is None else len(self._keys),
            pairs,
            **options,
        )

    def _look(
        self, ids: NDArray[np.int64], scored: NDArray[np.bool_], repeated: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64] | None, NDArray[np.float32], NDArray[np.float64]]:
        """Return the columns of the keys that are read token by token (None: all), their scores and log Λ."""
        family, keys = self._keys.profile.family, self._keys
        if len(keys) <= ALL_KEYS:
            scores = score_tokens(ids, keys).astype(np.float32, copy=False)
            return None, scores, log_activity(*evidence_blocks(scores, scored & ~repeated), family)
        sums_of = functools.partial(_sums, ids, keys)
        activity = sum_activity(sums_of, len(keys), family, scored, repeated)
        columns = candidates(
            sums_of,
            len(keys),
            self._decoder,
            family.name,
            scored,
            repeated,
            self._allow_unattributed,
            activity,
            **self._decoder_options,
        )
        return columns, score_tokens(ids, keys.subset(columns)).astype(np.float32, copy=False), activity

    def _key_log_p(
        self,
        ids: NDArray[np.int64],
        activity: NDArray[np.float64],
        scored: NDArray[np.bool_],
        repeated: NDArray[np.bool_],
    ) -> NDArray[np.float64]:
        """Return the p-value of every key, corrected for their number."""
        family = self._keys.profile.family
        if self._decoys is None:
            return over_keys(activity_log_p(activity, int((scored & ~repeated).sum()), family))
        sums_of = functools.partial(_sums, ids, self._decoys)
        chance = sum_activity(sums_of, len(self._decoys), family, scored, repeated)
        return over_keys(decoy_log_p(activity, chance))

    def _report(self, text: str | None, encoding: Encoding) -> Report:
        # Every key is decoded as an agent of its own, and only then named after its owner: text of an old
        # and of the current key can stand side by side, and no score is a maximum over several keys.
        keys, ids = self._keys, encoding.token_ids
        pairs = pair_numbers(ids, keys)
        scored, repeated = pairs >= 0, repeats(pairs)
        columns, scores, activity = self._look(ids, scored, repeated)
        key_log_p = self._key_log_p(ids, activity, scored, repeated)
        agent_log_p = np.zeros(len(keys.names))
        np.minimum.at(agent_log_p, keys.owners, key_log_p)
        if columns is not None:
            keys = keys.subset(columns)
        found = self._decode(scores, pairs, columns)
        # From here on an agent is its index in `present`: the owners of the keys that were looked at.
        present, owners = np.unique(keys.owners, return_inverse=True)
        posterior = None if found.posterior is None else _sum_columns(found.posterior, owners)
        spans = _merge(found, owners)
        starts, ends, agents = np.array(spans, dtype=np.int64).reshape(-1, 3).T
        guesses, log_p = self._explain(ids, scores, pairs, starts, ends, agents, keys, owners)
        certainty = _certainty(posterior, present.astype(np.int64), spans, guesses)
        attributed = agents >= 0
        if self._allow_unattributed and certainty.error is not None:
            attributed &= agent_log_p[guesses] <= math.log(self._level)
            attributed &= certainty.error <= self._level
        elif self._allow_unattributed:
            attributed[attributed] = discoveries(log_p[attributed], self._level)
        guessed = [keys.names[guess] for guess in guesses.tolist()]
        segments = map(
            Segment,
            *_cuts(text, encoding, spans),
            starts.tolist(),
            ends.tolist(),
            [name if yes else None for name, yes in zip(guessed, attributed.tolist(), strict=True)],
            guessed,
            log_p.tolist(),
            *certainty.columns(),
        )
        return Report(
            text=text,
            profile=keys.profile,
            registry_digest=self._registry_digest,
            agents=keys.names,
            decoder=self._decoder,
            options=self._options,
            level=self._level,
            allow_unattributed=self._allow_unattributed,
            decoys=0 if self._decoys is None else len(self._decoys),
            log_p=float(agent_log_p.min()),
            evidence=dict(zip(keys.names, agent_log_p.tolist(), strict=True)),
            tokens=len(ids),
            scored=int(scored.sum()),
            repeated=int(repeated.sum()),
            invisible=encoding.skipped,
            seam_share=None if text is None else _seam_share(text, encoding, spans),
            segments=tuple(segments),
            transitions=self._transitions(scores, found, owners, spans, attributed).rename(
                {i: keys.names[agent] for i, agent in enumerate(present.tolist())}
            ),
            token_agents=np.repeat(np.where(attributed, guesses, -1).astype(np.int32), ends - starts),
            posterior=posterior,
            posterior_agents=None if posterior is None else present.astype(np.int32),
            strengths=_strengths(found, keys),
        )

    def _explain(
        self,
        ids: NDArray[np.int64],
        scores: NDArray[np.float32],
        pairs: NDArray[np.int64],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        agents: NDArray[np.int64],
        keys: KeyTable | WaterfallKeys,
        owners: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return who explains each span best (its own agent, if it has one), and the corrected log p."""
        # The highest sum stands for the lowest p-value, which differs by repeats and the ends of the span.
        sums = span_sums(scores, np.append(starts, len(scores)))
        eligible = (agents[:, None] < 0) | (owners == agents[:, None])
        best = np.where(eligible, sums, -np.inf).argmax(axis=1)
        family, count = keys.profile.family, len(self._keys)
        guesses = keys.owners[best].astype(np.int64)
        log_p = segment_log_p(scores, pairs, starts, ends, best, family, count)
        nobodys = np.flatnonzero(agents < 0)
        if len(keys) < count and len(nobodys):
            # Nobody's spans are compared with every key, also those that the decoder did not look at.
            edges = np.append(starts, len(scores))
            best = score_spans(ids, edges, self._keys).argmax(axis=1)[nobodys]
            columns, local = np.unique(best, return_inverse=True)
            others = score_tokens(ids, self._keys.subset(columns)).astype(np.float32, copy=False)
            guesses[nobodys] = self._keys.owners[best]
            log_p[nobodys] = segment_log_p(
                others, pairs, starts[nobodys], ends[nobodys], local, family, count
            )
        return guesses, log_p

    def _transitions(
        self,
        scores: NDArray[np.float32],
        found: Segmentation,
        owners: NDArray[np.int64],
        spans: list[tuple[int, int, int]],
        attributed: NDArray[np.bool_],
    ) -> Transitions:
        # One score per agent and token: under the key that the decoder chose where it chose this agent, under
        # the last key elsewhere. So keys that were rotated out raise nobody's f.
        last = np.flatnonzero(np.append(owners[1:] != owners[:-1], True))
        window_scores = found.window_scores
        if len(last) < len(owners):
            by_agent, window_scores = scores[:, last], None
            for start, end, column in found.segments:
                if column >= 0:
                    by_agent[start:end, owners[column]] = scores[start:end, column]
            scores = by_agent
        sizes = {k: v for k, v in self._options.items() if k in ("window", "step")}
        passed = [
            (start, end, agent if yes else -1)
            for (start, end, agent), yes in zip(spans, attributed.tolist(), strict=True)
        ]
        return transitions(
            passed, windows(scores, **sizes) if window_scores is None else window_scores, **sizes
        )


def _sums(
    ids: NDArray[np.int64],
    keys: KeyTable | WaterfallKeys,
    boundaries: NDArray[np.int64],
    counted: NDArray[np.bool_],
    low: int,
    high: int,
) -> NDArray[np.float64]:
    """Return Σ of the scores under keys [low, high) over the counted tokens of each span."""
    sums: NDArray[np.float64] = score_spans(ids, boundaries, keys.subset(slice(low, high)), counted=counted)
    return sums


def _batches(texts: Iterator[str]) -> Iterator[tuple[list[str], Exception | None]]:
    """Return batches of texts, the last one with what ended them: StopIteration, or what `texts` raised."""
    batch: list[str] = []
    size = 0
    while True:
        try:
            text = next(texts)
        except Exception as end:
            yield batch, end
            return
        batch.append(text)
        size += len(text) if isinstance(text, str) else 0
        if size >= BATCH_CHARACTERS or len(batch) == BATCH_TEXTS:
            yield batch, None
            batch, size = [], 0


def _sum_columns(posterior: NDArray[np.float32], owners: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return [T, A] from [T, K]: an agent's posterior is the sum over its keys."""
    firsts = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))
    return posterior if len(firsts) == len(owners) else np.add.reduceat(posterior, firsts, axis=1)


def _merge(found: Segmentation, owners: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Return the spans of the segmentation by owner, neighbours of one owner in one span."""
    owner_of = [*owners.tolist(), -1]  # -1 stays -1
    spans: list[tuple[int, int, int]] = []
    for start, end, column in found.segments:
        owner = owner_of[column]
        if spans and spans[-1][2] == owner:
            spans[-1] = (spans[-1][0], end, owner)
        else:
            spans.append((start, end, owner))
    return spans


def _cuts(
    text: str | None, encoding: Encoding, spans: list[tuple[int, int, int]]
) -> tuple[Iterable[int | None], Iterable[int | None]]:
    """Return the first and last characters of the spans; together they cover the text."""
    if text is None:
        return itertools.repeat(None), itertools.repeat(None)
    inner = encoding.characters(start for start, _, _ in spans[1:])[:, 0].tolist()
    return [0, *inner], [*inner, len(text)]


@dataclasses.dataclass(frozen=True, eq=False)
class _Certainty:
    """Of each span: mean posterior of its guess, the chance that the guess wrote none of it, intervals."""

    posterior: NDArray[np.float64] | None
    error: NDArray[np.float64] | None
    starts: list[tuple[int, int]] | None
    ends: list[tuple[int, int]] | None

    def columns(self) -> tuple[Iterable[Any], ...]:
        """Return one iterable for each field of `Segment`."""
        nothing = itertools.repeat(None)
        if self.posterior is None or self.error is None or self.starts is None or self.ends is None:
            return nothing, nothing, nothing, nothing
        return self.posterior.tolist(), self.error.tolist(), self.starts, self.ends


def _certainty(
    posterior: NDArray[np.float32] | None,
    present: NDArray[np.int64],
    spans: list[tuple[int, int, int]],
    guesses: NDArray[np.int64],
) -> _Certainty:
    if posterior is None:
        return _Certainty(None, None, None, None)
    if not spans:
        return _Certainty(np.zeros(0), np.zeros(0), [], [])
    edges = np.array([*(start for start, _, _ in spans), len(posterior)], dtype=np.int64)
    columns = np.searchsorted(present, guesses).clip(0, len(present) - 1)
    known = present[columns] == guesses  # others were not looked at: their posterior is 0
    rows = np.arange(len(spans))
    means = span_sums(posterior, edges)[rows, columns] / np.maximum(1, np.diff(edges))
    # P(a wrote none of it) is at most 1 - γ_t(a) at any of its tokens.
    highest = np.maximum.reduceat(posterior, edges[:-1], axis=0)[rows, columns]
    error = np.where(known, 1.0 - np.minimum(highest, 1.0), 1.0).astype(np.float64)
    intervals = boundary_intervals(posterior, spans)
    return _Certainty(np.where(known, means, 0.0), error, intervals[:-1], intervals[1:])


def _seam_share(text: str, encoding: Encoding, spans: list[tuple[int, int, int]]) -> float:
    """Return the share of characters in the two tokens that touch each boundary.

    A turn may have ended inside one of them: then its text was generated as other tokens than those read.
    """
    tokens = {token for start, _, _ in spans[1:] for token in (start - 1, start)}
    uncertain = np.diff(encoding.characters(tokens), axis=1).sum()
    return min(1.0, float(uncertain) / len(text)) if text else 0.0


def _strengths(found: Segmentation, keys: KeyTable | WaterfallKeys) -> dict[str, float] | None:
    if found.strengths is None:
        return None
    strengths: dict[str, float] = {}
    for owner, strength in zip(keys.owners.tolist(), found.strengths.tolist(), strict=True):
        name = keys.names[owner]
        strengths[name] = max(strength, strengths.get(name, 0.0))
    return strengths
