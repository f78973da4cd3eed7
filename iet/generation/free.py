"""Free tokens: positions of an answer that the engine's own sampler draws without a mark.

One key gives one prompt one answer in family `gumbel`. So the first tokens of an answer are free, and later
each token is with a small probability: equal prompts get different answers, and the distribution of tokens
and texts stays exact, because the choice depends on nothing but the request and the position.

    free(p) = p < first, or h(request, p) < rate·2^32,    p the position in the answer, from 0

h is a hash of 32 bits. An engine that preempts a request, verifies drafts or goes on from where it stopped
asks for the same position again, and gets the same answer.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from numbers import Integral
from typing import Any

from iet.errors import InputError
from iet.generation.checks import shown

_MASK = (1 << 32) - 1


@dataclasses.dataclass(frozen=True)
class FreeTokens:
    """Which tokens of an answer are left to the engine's sampler, in family `gumbel`.

    Attributes:
        first: number of tokens at the start of an answer that are free, at least 0.
        rate: probability that a later token is free, 0 to 1 (1 not included).

    A setting of the engine. Readers need not know it, and no digest holds it.
    """

    first: int = 8
    rate: float = 0.05

    def __post_init__(self) -> None:
        if isinstance(self.first, bool) or not isinstance(self.first, int) or self.first < 0:
            raise InputError(f"first: got {self.first!r:.80}, expected a number of tokens, 0 or more")
        known = isinstance(self.rate, (int, float)) and not isinstance(self.rate, bool)
        if not known or not (math.isfinite(self.rate) and 0 <= self.rate < 1):
            raise InputError(f"rate: got {self.rate!r:.80}, expected a probability from 0 to below 1")

    def are_free(self, requests: Any, positions: Any) -> Any:
        """Tell which positions are free.

        Args:
            requests: int64 [B], keys of requests, as `request_key` makes them; an array of NumPy or a tensor.
            positions: int64 [B], positions in the answers, of the same kind and on the same device.

        Returns:
            bool [B], of the same kind. Deterministic, equal on all devices; nothing is read back.
        """
        mixed = _mix((positions * 0x9E3779B1 + requests) & _MASK)
        mixed = _mix(mixed ^ ((requests >> 32) & _MASK))
        return (positions < self.first) | (mixed < round(self.rate * (_MASK + 1)))


def free_of_environment() -> FreeTokens:
    """Return the free tokens that IET_FREE_FIRST and IET_FREE_RATE ask of a server.

    Raises:
        InputError: one of them is no such number.
    """
    found: dict[str, float] = {}
    for name, kind in (("first", int), ("rate", float)):
        variable = f"IET_FREE_{name.upper()}"
        given = os.environ.get(variable)
        try:
            if given:
                found[name] = kind(given)
        except ValueError:
            raise InputError(f"{variable}: got {given!r:.80}, expected a number") from None
    try:
        return FreeTokens(**found)  # type: ignore[arg-type]
    except InputError as error:
        raise InputError(f"IET_FREE_FIRST and IET_FREE_RATE: {error}") from None


def check_seed(seed: object) -> None:
    """Raise an InputError unless this is an integer or None."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, Integral)):
        raise InputError(f"seed: got {shown(seed)}, expected an integer or None")


def request_key(seed: object, row: int = 0) -> int:
    """Return the 63 bits by which a request chooses its free tokens.

    Args:
        seed: whatever names the request: its seed, its id, a state of a generator. Its `str` is hashed.
        row: of a batch, if one seed is for several requests.
    """
    digest = hashlib.blake2b(f"{seed}/{row}".encode(), person=b"iet free tokens", digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _mix(x: Any) -> Any:
    """Mix 32 bits, held in 64, as the finalizer of MurmurHash3 does."""
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _MASK
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _MASK
    return x ^ (x >> 16)
