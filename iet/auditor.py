"""`Auditor`: text → ids → scores → decoder → segments → evidence → transitions → report."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iet.decoding import DECODERS, Segmentation, decode, windows
from iet.errors import InputError, ShapeError
from iet.evidence import segment_log_p
from iet.kernels import pair_numbers, repeats, score_tokens
from iet.registry import KeyTable, Registry
from iet.report import Report, Segment
from iet.tokenizer import Encoding, Tokenizer
from iet.transitions import Transitions, transitions
from iet.waterfall import WaterfallKeys

_SURE = 0.95
"""Posterior from which a token next to a boundary counts as decided (`Segment.start_interval`)."""


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
        options: the decoder's, see `iet.decoding.decode`.

    Raises:
        InputError: a parameter is out of range, or an option unknown.
        RegistryError: the profile has no agents.
        TokenizerMismatch: on the first text, if the tokenizer is another one or cannot be found.

    Deterministic. O(T·K) time for T tokens and K keys, apart from tokenizing.
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
        **options: Any,
    ) -> None:
        if not isinstance(registry, (Registry, WaterfallKeys)):
            raise InputError(
                f"registry: got {type(registry).__name__}, expected iet.Registry or iet.WaterfallKeys"
            )
        if decoder not in DECODERS:
            raise InputError(f"decoder: got {decoder!r}, expected one of {sorted(DECODERS)}")
        if not isinstance(level, (int, float)) or not 0 < level < 1:
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
        self._decoder_options = {**options, "level": min(level, 0.5)} if takes_level else options
        self._source = tokenizer
        self._tokenizer: Tokenizer | None = None
        # Refuse bad options now, not after the first text has been tokenized and scored.
        nothing = np.zeros(0, dtype=bool)
        self._decode(np.zeros((0, len(self._keys)), dtype=np.float32), nothing, nothing)

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle finds the keys through the registry's file and holds none.
        options = dict(self._options, profile=self._profile_id, tokenizer=self._source)
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
            TokenizerMismatch: no tokenizer with the profile's digest.
        """
        if (text is None) == (token_ids is None):
            raise InputError("audit: got neither or both of text and token_ids, expected one")
        if text is not None:
            return self._report(text, self._open_tokenizer().encode(text))
        ids = np.asarray(token_ids)
        if ids.ndim != 1 or (ids.dtype.kind not in "iu" and ids.size):
            raise ShapeError("token_ids", got=f"{ids.dtype} {list(ids.shape)}", expected="integers [T]")
        nowhere = np.zeros(len(ids), dtype=np.int64)
        return self._report(None, Encoding(ids.astype(np.int64), nowhere, nowhere, 0))

    def audit_many(self, texts: Iterable[str]) -> Iterator[Report]:
        """Audit texts one after another, each as `audit` does; lazily, so that memory does not grow."""
        return (self.audit(text) for text in texts)

    def _open_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            self._tokenizer = self._registry.open_tokenizer(self._profile_id, self._source)
        return self._tokenizer

    def _decode(
        self, scores: NDArray[np.float32], scored: NDArray[np.bool_], repeated: NDArray[np.bool_]
    ) -> Segmentation:
        return decode(
            scores,
            self._decoder,
            self._keys.profile.scheme.family,
            scored,
            repeated,
            self._allow_unattributed,
            **self._decoder_options,
        )

    def _report(self, text: str | None, encoding: Encoding) -> Report:
        keys, ids = self._keys, encoding.token_ids
        # Every key is decoded as an agent of its own, and only then named after its owner: text of an old
        # and of the current key can stand side by side, and no score is a maximum over several keys.
        scores, pairs = score_tokens(ids, keys).astype(np.float32, copy=False), pair_numbers(ids, keys)
        scored, repeated = pairs >= 0, repeats(pairs)
        found = self._decode(scores, scored, repeated)
        owners = np.append(keys.owners, np.int32(-1))  # -1 stays -1
        posterior = None if found.posterior is None else _sum_columns(found.posterior, keys)
        spans = _merge(found, owners)
        cuts = [] if text is None else _cuts(text, encoding, spans)
        segments, token_agents = [], np.full(len(ids), -1, dtype=np.int32)
        for i, (start, end, owner) in enumerate(spans):
            guess, log_p = self._best_key(scores, pairs, start, end, owner)
            attributed = owner >= 0 and (not self._allow_unattributed or log_p <= math.log(self._level))
            if attributed:
                token_agents[start:end] = guess
            segments.append(
                Segment(
                    cuts[i] if cuts else None,
                    cuts[i + 1] if cuts else None,
                    start,
                    end,
                    keys.names[guess] if attributed else None,
                    keys.names[guess],
                    log_p,
                    None if posterior is None else float(posterior[start:end, guess].mean(dtype=np.float64)),
                    _interval(posterior, spans, i),
                    _interval(posterior, spans, i + 1),
                )
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
            transitions=self._transitions(scores, found, spans, token_agents),
            token_agents=token_agents,
            posterior=posterior,
            strengths=self._strengths(found),
        )

    def _best_key(
        self, scores: NDArray[np.float32], pairs: NDArray[np.int64], start: int, end: int, owner: int
    ) -> tuple[int, float]:
        """Return the agent that explains a span best (`owner`, if it has one) and its corrected log p."""
        keys = self._keys
        columns = np.flatnonzero(keys.owners == owner) if owner >= 0 else np.arange(len(keys))
        # The highest sum stands for the lowest p-value, which differs by repeats and the ends of the span.
        column = int(columns[scores[start:end, columns].sum(axis=0, dtype=np.float64).argmax()])
        log_p = segment_log_p(scores[:, column], pairs, start, end, keys.profile.family, len(keys))
        return int(keys.owners[column]), log_p

    def _transitions(
        self,
        scores: NDArray[np.float32],
        found: Segmentation,
        spans: list[tuple[int, int, int]],
        token_agents: NDArray[np.int32],
    ) -> Transitions:
        keys = self._keys
        # One score per agent and token: under the key that the decoder chose where it chose this agent, under
        # the current key elsewhere. So keys that were rotated out raise nobody's f.
        current = np.searchsorted(keys.owners, np.arange(len(keys.names)), side="right") - 1
        by_agent = scores[:, current]
        for start, end, column in found.segments:
            if column >= 0:
                by_agent[start:end, keys.owners[column]] = scores[start:end, column]
        sizes = {k: v for k, v in self._options.items() if k in ("window", "step")}
        attributed = [(start, end, int(token_agents[start])) for start, end, _ in spans]
        passages = transitions(attributed, windows(by_agent, **sizes), **sizes)
        return passages.rename(dict(enumerate(keys.names)))

    def _strengths(self, found: Segmentation) -> dict[str, float] | None:
        if found.strengths is None:
            return None
        strongest = np.zeros(len(self._keys.names))
        np.maximum.at(strongest, self._keys.owners, found.strengths)
        return dict(zip(self._keys.names, strongest.tolist(), strict=True))


def _sum_columns(posterior: NDArray[np.float32], keys: KeyTable | WaterfallKeys) -> NDArray[np.float32]:
    """Return [T, A] from [T, K]: an agent's posterior is the sum over its keys."""
    if len(keys) == len(keys.names):
        return posterior
    summed = np.zeros((len(posterior), len(keys.names)), dtype=np.float32)
    for column, owner in enumerate(keys.owners.tolist()):
        summed[:, owner] += posterior[:, column]
    return summed


def _merge(found: Segmentation, owners: NDArray[np.int32]) -> list[tuple[int, int, int]]:
    """Return the spans of the segmentation by owner, neighbours of one owner in one span."""
    spans: list[tuple[int, int, int]] = []
    for start, end, column in found.segments:
        owner = int(owners[column])
        if spans and spans[-1][2] == owner:
            spans[-1] = (spans[-1][0], end, owner)
        else:
            spans.append((start, end, owner))
    return spans


def _cuts(text: str, encoding: Encoding, spans: list[tuple[int, int, int]]) -> list[int]:
    """Return the characters between which the spans lie; together they cover the text."""
    return [0, *(int(encoding.char_starts[start]) for start, _, _ in spans[1:]), len(text)]


def _seam_share(text: str, encoding: Encoding, spans: list[tuple[int, int, int]]) -> float:
    """Return the share of characters in the two tokens that touch each boundary.

    A turn may have ended inside one of them: then its text was generated as other tokens than those read.
    """
    seams = np.array([start for start, _, _ in spans[1:]], dtype=np.int64)
    tokens = np.unique(np.concatenate([seams - 1, seams]))
    uncertain = (encoding.char_ends[tokens] - encoding.char_starts[tokens]).sum()
    return min(1.0, float(uncertain) / len(text)) if text else 0.0


def _interval(
    posterior: NDArray[np.float32] | None, spans: list[tuple[int, int, int]], boundary: int
) -> tuple[int, int] | None:
    """Return the tokens between which the boundary before span number `boundary` may lie."""
    if posterior is None:
        return None
    if boundary == 0 or boundary == len(spans):
        edge = 0 if boundary == 0 else spans[-1][1]
        return edge, edge
    (start, at, left), (_, end, right) = spans[boundary - 1], spans[boundary]
    before, after = (
        posterior[span, owner] if owner >= 0 else 1 - posterior[span].sum(axis=1)
        for span, owner in ((slice(start, at), left), (slice(at, end), right))
    )
    sure_before, sure_after = np.flatnonzero(before >= _SURE), np.flatnonzero(after >= _SURE)
    low = start + int(sure_before[-1]) + 1 if len(sure_before) else start
    high = at + int(sure_after[0]) if len(sure_after) else end
    return low, high
