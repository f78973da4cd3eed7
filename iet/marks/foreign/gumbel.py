"""Keyed Gumbel-max of vLLM and SGLang: x = -log(1 - u), u a uniform function of key, context and token."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from iet.errors import InputError
from iet.marks.families import FAMILIES, Family
from iet.marks.foreign.keys import Ids, checked_integer
from iet.marks.foreign.scheme import EngineScheme, Keys, Mask
from iet.marks.scheme import MAX_VOCAB_SIZE
from iet.native.load import compiled
from iet.native.pairs import number_pairs_of
from iet.native.reference import is_scored
from iet.native.texts import Texts

MAX_CONTEXT = 64
"""Maximum number of ids in a context: SGLang's limit, also used for vLLM."""


@dataclasses.dataclass(frozen=True)
class KeyedGumbel(EngineScheme):
    """Scores that are Exp(1) without a mark.

    Attributes:
        n_gram: n, 2 to 65.
        version: as in `EngineScheme`.
    """

    n_gram: int = 5

    prf: ClassVar[int]  # `EnginePrf` of csrc/foreign/schemes.h
    padded: ClassVar[bool]  # contexts of the first n-1 tokens are padded with -1

    def __post_init__(self) -> None:
        checked_integer("n_gram", self.n_gram, 2, MAX_CONTEXT + 1)

    def law(self, vocab_size: int) -> Family:
        """Return the null distribution of the scores."""
        return FAMILIES["gumbel"]

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
        compiled.engine_gumbel(
            self.prf,
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
class VllmGumbel(KeyedGumbel):
    """vLLM's `algorithm: gumbel`, Philox4x32-10; for `dual_key_gumbel` see `vllm_dual_keys`.

    Attributes:
        n_gram: vLLM's `context_width` + 1, 2 to 65.
        version: as in `EngineScheme`.
    """

    name = "vllm-gumbel"
    prf, padded = 0, True

    def checked_key(self, argument: str, key: Any) -> tuple[int, ...]:
        """Return a key as numbers, or raise an InputError that does not show it."""
        return (checked_integer(argument, key, 0, (1 << 64) - 1, secret=True),)


@dataclasses.dataclass(frozen=True)
class SglangGumbel(KeyedGumbel):
    """SGLang's `watermark`, MurmurHash3.

    Attributes:
        n_gram: SGLang's `context_window` + 1, 2 to 65.
        version: as in `EngineScheme`.
    """

    name = "sglang-gumbel"
    prf, padded = 1, False

    def checked_key(self, argument: str, key: Any) -> tuple[int, ...]:
        """Return a key as numbers, or raise an InputError that does not show it."""
        digits = key[2:] if isinstance(key, str) and key[:2].lower() == "0x" else key
        if (
            not isinstance(digits, str)
            or not 1 <= len(digits) <= 16
            or not set(digits) <= set("0123456789abcdefABCDEF")
        ):
            got = f"a {type(key).__name__}" if not isinstance(key, str) else "another str"
            raise InputError(f"{argument}: got {got}, expected a str of 1 to 16 hex digits")
        return (int(digits, 16),)


def vllm_dual_keys(key: int) -> list[int]:
    """Return the two keys of vLLM's `dual_key_gumbel`: A marks most tokens, B a share alpha of them.

        SHA-256(label + key as 8 bytes, big-endian), the first 8 bytes, labels "key_a" and "key_b"

    Give both to an agent: `EngineKeys("vllm-gumbel", {"planner": vllm_dual_keys(key)})`. vLLM's detector
    averages their columns of scores with weights 1 - alpha and alpha.

    Args:
        key: 0 to 2^64 - 1.

    Raises:
        InputError: `key` is out of range.
    """
    data = checked_integer("key", key, 0, (1 << 64) - 1, secret=True).to_bytes(8, "big")
    return [int.from_bytes(hashlib.sha256(part + data).digest()[:8], "big") for part in (b"key_a", b"key_b")]
