"""vLLM's keyed Gumbel-max: Philox4x32-10 of (key, context, token)."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

from iet.marks.foreign.gumbel import KeyedGumbel
from iet.marks.foreign.keys import checked_integer
from iet.native import foreign


@dataclasses.dataclass(frozen=True)
class VllmGumbel(KeyedGumbel):
    """vLLM's `algorithm: gumbel`; of `dual_key_gumbel` each half, see `vllm_dual_keys`.

    Attributes:
        n_gram: vLLM's `context_width` + 1, 2 to 65.
        version: of this reading of the engine.
    """

    name = "vllm-gumbel"
    prf, padded = 0, True
    score = staticmethod(foreign.vllm_score)

    def checked_key(self, what: str, key: Any) -> tuple[int, ...]:
        """Return a key as numbers, or raise an InputError that does not show it."""
        return (checked_integer(what, key, 0, (1 << 64) - 1, secret=True),)


def vllm_dual_keys(key: int) -> list[int]:
    """Return the two keys of vLLM's `dual_key_gumbel`: A, of most tokens, and B, of a share alpha of them.

        SHA-256(label + key as 8 bytes, big-endian), the first 8 bytes, labels "key_a" and "key_b"

    Give an agent both: `EngineKeys("vllm-gumbel", {"planner": vllm_dual_keys(key)})`. Of their columns of
    scores vLLM's detector takes the mean with weights 1 - alpha and alpha.

    Args:
        key: 0 to 2^64 - 1.

    Raises:
        InputError: it is none.
    """
    data = checked_integer("key", key, 0, (1 << 64) - 1, secret=True).to_bytes(8, "big")
    return [int.from_bytes(hashlib.sha256(part + data).digest()[:8], "big") for part in (b"key_a", b"key_b")]
