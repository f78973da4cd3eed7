"""SGLang's keyed Gumbel-max: MurmurHash3 of (key, context, token)."""

from __future__ import annotations

import dataclasses
from typing import Any

from iet.errors import InputError
from iet.marks.foreign.gumbel import KeyedGumbel
from iet.native import foreign


@dataclasses.dataclass(frozen=True)
class SglangGumbel(KeyedGumbel):
    """SGLang's `watermark`.

    Attributes:
        n_gram: SGLang's `context_window` + 1, 2 to 65.
        version: of this reading of the engine.
    """

    name = "sglang-gumbel"
    prf, padded = 1, False
    score = staticmethod(foreign.sglang_score)

    def checked_key(self, what: str, key: Any) -> tuple[int, ...]:
        """Return a key as numbers, or raise an InputError that does not show it."""
        digits = key[2:] if isinstance(key, str) and key[:2].lower() == "0x" else key
        if (
            not isinstance(digits, str)
            or not 1 <= len(digits) <= 16
            or not set(digits) <= set("0123456789abcdefABCDEF")
        ):
            got = f"a {type(key).__name__}" if not isinstance(key, str) else "another str"
            raise InputError(f"{what}: got {got}, expected a str of 1 to 16 hex digits")
        return (int(digits, 16),)
