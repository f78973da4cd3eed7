"""The base of marks whose scores depend on a 32-bit word of key, context and token."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iet.errors import InputError
from iet.marks.foreign.keys import Ids, checked_integer
from iet.marks.foreign.scheme import EngineScheme, Keys, Mask
from iet.marks.scheme import MAX_VOCAB_SIZE
from iet.native.load import compiled
from iet.native.pairs import number_pairs_of
from iet.native.reference import is_scored
from iet.native.texts import Texts

MAX_CONTEXT = 64
"""Maximum number of ids in a context: SGLang's limit, also used for vLLM."""

PHILOX, MURMUR, HMAC, SBW_SELF, SBW_LEFT = range(5)
"""`EnginePrf` of csrc/foreign/schemes.h."""

PRFS = {"philox": PHILOX, "hmac_sha256": HMAC}
"""vLLM's names of its pseudorandom functions."""


class Rule(NamedTuple):
    """How a word becomes a score: `EngineRule` of csrc/foreign/schemes.h and its numbers."""

    code: int
    limit: int = 0
    scale: float = 0.0
    offset: float = 0.0


LOG24, LOG32 = Rule(0), Rule(1)
BELOW, ONES = 2, 3


@dataclasses.dataclass(frozen=True)
class PrfScheme(EngineScheme):
    """A mark whose scores depend on a 32-bit word of key, context and token.

    Attributes:
        n_gram: n, 2 to 65.
        version: as in `EngineScheme`.
    """

    n_gram: int = 5

    padded: ClassVar[bool] = True  # contexts of the first n-1 tokens are padded with -1

    def __post_init__(self) -> None:
        checked_integer("n_gram", self.n_gram, 2, MAX_CONTEXT + 1)

    @property
    def code(self) -> int:
        """Number of the pseudorandom function."""
        return PHILOX

    def rule(self) -> Rule:
        """Return how a word becomes a score."""
        return LOG24

    def checked_key(self, argument: str, key: Any) -> tuple[int, ...]:
        """Return a key as numbers, or raise an InputError that does not show it."""
        return (checked_integer(argument, key, 0, (1 << 64) - 1, secret=True),)

    def scored(self, texts: Texts, vocab_size: int) -> Mask:
        """Return which positions [N] are scored, with scores that differ between keys."""
        if not self.padded:
            return super().scored(texts, vocab_size)
        between = texts.between
        filled = np.append(np.zeros(self.n_gram - 1, np.int64), np.where(between, 0, texts.ids))
        return is_scored(filled, self.n_gram, vocab_size)[self.n_gram - 1 :] & ~between

    def pair_numbers(self, texts: Texts, counting: Mask) -> tuple[Ids, Mask]:
        """Number the contexts of each text; see `EngineScheme.pair_numbers`."""
        # Engines mark only the first token after a context, and their detectors count no other token. The
        # context may begin before the text.
        context_len = self.n_gram - 1
        filled = np.append(
            np.full(context_len, MAX_VOCAB_SIZE), np.where(texts.between, MAX_VOCAB_SIZE, texts.ids)
        )
        counting = np.append(np.zeros(context_len, np.bool_), counting)
        numbers, repeated = number_pairs_of(
            filled, counting, texts.starts, texts.ends + context_len, self.n_gram, contexts=True
        )
        return numbers[context_len:], repeated[context_len:]

    def scores(
        self, ids: Ids, scored: Mask, keys: Keys, vocab_size: int, prepared: Any, threads: int
    ) -> NDArray[Any]:
        """Return x_j [N, K]."""
        # -1 becomes 2^32 - 1, as in vLLM.
        words = np.concatenate([np.full(self.n_gram - 1, -1), ids]).astype(np.uint32)
        scores = np.empty((len(ids), len(keys)), np.float32)
        compiled.engine_scores(
            self.code,
            *self.rule(),
            words.ctypes.data,
            self.n_gram - 1,
            scored.ctypes.data,
            len(ids),
            keys.ctypes.data,
            len(keys),
            scores.ctypes.data,
            threads,
        )
        return scores


@dataclasses.dataclass(frozen=True)
class VllmPrf(PrfScheme):
    """A mark of vLLM with a choice of pseudorandom function.

    Attributes:
        n_gram: vLLM's `context_width` + 1, 2 to 65; with "hmac_sha256" 2 to 17.
        prf: "philox", with keys below 2^64, or "hmac_sha256", with keys below 2^256.
        version: as in `EngineScheme`.
    """

    prf: str = "philox"

    def __post_init__(self) -> None:
        if self.prf not in PRFS:
            raise InputError(f"prf: got {self.prf!r:.80}, expected one of {list(PRFS)}")
        checked_integer("n_gram", self.n_gram, 2, 17 if self.code == HMAC else MAX_CONTEXT + 1)

    @property
    def code(self) -> int:
        """Number of the pseudorandom function."""
        return PRFS[self.prf]

    def checked_key(self, argument: str, key: Any) -> tuple[int, ...]:
        """Return a key as numbers, the lowest 64 bits first, or raise an InputError that does not show it."""
        words = 4 if self.code == HMAC else 1
        number = checked_integer(argument, key, 0, (1 << 64 * words) - 1, secret=True)
        return tuple(number >> 64 * word & (1 << 64) - 1 for word in range(words))


def checked_share(argument: str, value: Any) -> float:
    """Return `value` if it is a number above 0 and below 1.

    Raises:
        InputError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise InputError(f"{argument}: got {value!r:.80}, expected a number between 0 and 1")
    return float(value)
