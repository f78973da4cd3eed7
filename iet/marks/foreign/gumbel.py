"""Keyed Gumbel-max of vLLM and SGLang: x = -log(1 - u), u a uniform function of key, context and token."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

from iet.errors import InputError
from iet.marks.families import FAMILIES, Family
from iet.marks.foreign.keys import checked_integer
from iet.marks.foreign.prf import LOG32, MURMUR, PrfScheme, Rule, VllmPrf


@dataclasses.dataclass(frozen=True)
class VllmGumbel(VllmPrf):
    """vLLM's `algorithm: gumbel`; for `dual_key_gumbel` see `vllm_dual_keys`.

    Attributes:
        n_gram, prf, version: as in `VllmPrf`.
    """

    name = "vllm-gumbel"

    def law(self, vocab_size: int) -> Family:
        """Return the null distribution of the scores, Exp(1)."""
        return FAMILIES["gumbel"]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, without the default of `prf`, which older profiles do not have."""
        fields = super().to_dict()
        if self.prf == "philox":
            del fields["prf"]
        return fields


@dataclasses.dataclass(frozen=True)
class SglangGumbel(PrfScheme):
    """SGLang's `watermark`, MurmurHash3.

    Attributes:
        n_gram: SGLang's `context_window` + 1, 2 to 65.
        version: as in `EngineScheme`.
    """

    name = "sglang-gumbel"
    padded = False

    @property
    def code(self) -> int:
        """Number of the pseudorandom function."""
        return MURMUR

    def rule(self) -> Rule:
        """Return how a word becomes a score."""
        return LOG32

    def law(self, vocab_size: int) -> Family:
        """Return the null distribution of the scores, Exp(1)."""
        return FAMILIES["gumbel"]

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
