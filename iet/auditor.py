"""`Auditor`: text → ids → scores → decoder → segments → evidence → transitions → report."""

from __future__ import annotations

import collections
import concurrent.futures
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
    span_sums,
    windows,
)
from iet.errors import InputError
from iet.evidence import segment_log_p
from iet.kernels import check_token_ids, pair_numbers, repeats, score_spans, score_tokens
from iet.likelihood import LanguageModel, LogRatios
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
        level: a segment whose corrected p-value is above it is unattributed, 0 < level < 1.
        allow_unattributed: False is the paper's forced choice: every token gets an agent.
        profile: id of the profile, where the registry has several.
        tokenizer: path or object, where the registry's own note of it does not lead there. Its digest must
            be the profile's.
        model: a causal language model of transformers with this tokenizer, or a path or id of one, or an
            `iet.LanguageModel` of it, which has options. "posterior" then weighs every token by how likely
            the model finds it, so that predictable text counts for nothing. Best is the model that wrote the
            text. p-values rest on the scores alone. None: no model.
        options: the decoder's, see `iet.decoding.decode`.

    Raises:
        InputError: a parameter is out of range, or an option unknown.
        ShapeError: the model's vocabulary is smaller than the profile's.
        BackendUnavailable: a model, but neither torch nor transformers.
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
        model: Any = None,
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
        self._registry = registry
        self._keys: KeyTable | WaterfallKeys = registry.scoring_keys(profile)
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
        self._model: LanguageModel | None = None
        if model is not None:
            self._model = model if isinstance(model, LanguageModel) else LanguageModel(model)
            self._model.check(self._keys)
        # Refuse bad options now, not after the first text has been tokenized and scored.
        nothing = np.zeros(0, dtype=bool)
        empty = np.zeros((0, len(self._keys)), dtype=np.float32)
        self._decode(empty, nothing, nothing, ratios=None if model is None else empty)

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle finds the keys through the registry's file and holds none.
        options = dict(self._options, profile=self._profile_id, tokenizer=self._source, model=self._model)
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
        scored: NDArray[np.bool_],
        repeated: NDArray[np.bool_],
        columns: NDArray[np.int64] | None = None,
        ratios: NDArray[np.float32] | None = None,
    ) -> Segmentation:
        options = self._decoder_options
        if columns is not None and options.get("strengths") is not None:
            options = {**options, "strengths": np.asarray(options["strengths"])[columns]}
        return decode(
            scores,
            self._decoder,
            self._keys.profile.scheme.family,
            scored,
            repeated,
            self._allow_unattributed,
            None if columns is None else len(self._keys),
            log_ratios=ratios,
            **options,
        )

    def _candidates(
        self, ids: NDArray[np.int64], scored: NDArray[np.bool_], repeated: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Return the columns of the keys that the decoder has to look at token by token."""

        def sums_of(
            boundaries: NDArray[np.int64], counted: NDArray[np.bool_], low: int, high: int
        ) -> NDArray[np.float64]:
            some = self._keys.subset(slice(low, high))
            sums: NDArray[np.float64] = score_spans(ids, boundaries, some, counted=counted)
            return sums

        return candidates(
            sums_of,
            len(self._keys),
            self._decoder,
            self._keys.profile.scheme.family,
            scored,
            repeated,
            self._allow_unattributed,
            **self._decoder_options,
        )

    def _report(self, text: str | None, encoding: Encoding) -> Report:
        # Every key is decoded as an agent of its own, and only then named after its owner: text of an old
        # and of the current key can stand side by side, and no score is a maximum over several keys.
        keys, ids, columns = self._keys, encoding.token_ids, None
        pairs = pair_numbers(ids, keys)
        scored, repeated = pairs >= 0, repeats(pairs)
        if len(keys) > ALL_KEYS:
            columns = self._candidates(ids, scored, repeated)
            keys = keys.subset(columns)
        scores = score_tokens(ids, keys).astype(np.float32, copy=False)
        read: LogRatios | None = None
        if self._model is not None:
            read = self._model.log_ratios(ids, keys, scores, scored)
        found = self._decode(scores, scored, repeated, columns, None if read is None else read.values)
        # From here on an agent is its index in `present`: the owners of the keys that were looked at.
        present, owners = np.unique(keys.owners, return_inverse=True)
        posterior = None if found.posterior is None else _sum_columns(found.posterior, owners)
        spans = _merge(found, owners)
        starts, ends, agents = np.array(spans, dtype=np.int64).reshape(-1, 3).T
        guesses, log_p = self._explain(ids, scores, pairs, starts, ends, agents, keys, owners)
        attributed = agents >= 0
        if self._allow_unattributed:
            attributed &= log_p <= math.log(self._level)
        guessed = [keys.names[guess] for guess in guesses.tolist()]
        segments = map(
            Segment,
            *_cuts(text, encoding, spans),
            starts.tolist(),
            ends.tolist(),
            [name if yes else None for name, yes in zip(guessed, attributed.tolist(), strict=True)],
            guessed,
            log_p.tolist(),
            *_certainty(posterior, present.astype(np.int64), spans, guesses),
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
            model=None if self._model is None or read is None else self._model.describe(read),
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


def _certainty(
    posterior: NDArray[np.float32] | None,
    present: NDArray[np.int64],
    spans: list[tuple[int, int, int]],
    guesses: NDArray[np.int64],
) -> tuple[Iterable[Any], Iterable[Any], Iterable[Any]]:
    """Return mean posteriors of the spans' guesses and the intervals of their starts and ends."""
    if posterior is None:
        return itertools.repeat(None), itertools.repeat(None), itertools.repeat(None)
    edges = np.array([*(start for start, _, _ in spans), len(posterior)], dtype=np.int64)
    means = span_sums(posterior, edges) / np.maximum(1, np.diff(edges))[:, None]
    columns = np.searchsorted(present, guesses).clip(0, len(present) - 1)
    known = present[columns] == guesses  # others were not looked at: their posterior is 0
    mean = np.where(known, means[np.arange(len(spans)), columns], 0.0)
    intervals = boundary_intervals(posterior, spans)
    return mean.tolist(), intervals[:-1], intervals[1:]


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
