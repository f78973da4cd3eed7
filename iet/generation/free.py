"""Free tokens: positions of an answer that the engine's own sampler draws without a mark.

In family `gumbel`, a key determines the answer to a prompt. So the first tokens of an answer are free, and
each later token is free with a small probability: equal prompts get different answers. The distribution of
tokens and texts stays exact, because the choice depends only on the request and the position.

    free(p) = p < first, or h(request, p) < rate·2^32,    p the position in the answer, from 0

h is a hash of 32 bits. If an engine preempts a request, verifies drafts or resumes, it asks for the same
position again and gets the same result.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
import math
import os
from collections.abc import Mapping
from numbers import Integral
from typing import Any

from iet.errors import InputError, shown

_MASK = (1 << 32) - 1


@dataclasses.dataclass(frozen=True)
class FreeTokens:
    """Which tokens of an answer are left to the engine's sampler, in family `gumbel`.

    Attributes:
        first: number of tokens at the start of an answer that are free, at least 0.
        rate: probability that a later token is free, 0 to 1 (1 not included).

    This is a setting of the engine. Readers need not know it, and it is in no digest.
    """

    first: int = 8
    rate: float = 0.05

    def __post_init__(self) -> None:
        if isinstance(self.first, bool) or not isinstance(self.first, int) or self.first < 0:
            raise InputError(f"first: got {self.first!r:.80}, expected a number of tokens, 0 or more")
        is_number = isinstance(self.rate, (int, float)) and not isinstance(self.rate, bool)
        if not is_number or not (math.isfinite(self.rate) and 0 <= self.rate < 1):
            raise InputError(f"rate: got {self.rate!r:.80}, expected a probability from 0 to below 1")

    @property
    def threshold(self) -> tuple[int, int]:
        """Return `first`, and the rate in units of 2^-32, as the native code takes them."""
        return self.first, round(self.rate * (_MASK + 1))

    def are_free(self, requests: Any, positions: Any) -> Any:
        """Return which positions are free.

        Args:
            requests: int64 [B], keys of requests, as `request_key` makes them; an array of NumPy or a tensor.
            positions: int64 [B], positions in the answers, of the same kind and on the same device.

        Returns:
            bool [B], of the same kind. Deterministic, equal on all devices; nothing is copied to the host.
        """
        mixed = _mix((positions * 0x9E3779B1 + requests) & _MASK)
        mixed = _mix(mixed ^ ((requests >> 32) & _MASK))
        first, rate = self.threshold
        return (positions < first) | (mixed < rate)


def free_of_environment(environment: Mapping[str, str] = os.environ) -> FreeTokens:
    """Return the free tokens of a server: the variables IET_FREE_FIRST and IET_FREE_RATE.

    Raises:
        InputError: a variable is not a number, or is out of range.
    """
    fields: dict[str, float] = {}
    for name, kind in (("first", int), ("rate", float)):
        variable = f"IET_FREE_{name.upper()}"
        text = environment.get(variable)
        try:
            if text:
                fields[name] = kind(text)
        except ValueError:
            raise InputError(f"{variable}: got {text!r:.80}, expected a number") from None
    try:
        return FreeTokens(**fields)  # type: ignore[arg-type]
    except InputError as error:
        raise InputError(f"IET_FREE_FIRST and IET_FREE_RATE: {error}") from None


@functools.cache
def warn_of_limit(log: logging.Logger, option: str, limit: int, first: int) -> None:
    """Write once to a server's log that answers of at most `limit` tokens are not marked."""
    log.warning(
        "requests with %s %d are not marked: the first %d tokens of an answer are free; ask for more tokens,"
        " or start the server with fewer free tokens (IET_FREE_FIRST)",
        option,
        limit,
        first,
    )


def check_seed(seed: object) -> None:
    """Raise an InputError unless this is an integer or None."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, Integral)):
        raise InputError(f"seed: got {shown(seed)}, expected an integer or None")


def request_key(seed: object, row: int = 0) -> int:
    """Return the 63 bits that select the free tokens of a request.

    Args:
        seed: identifies the request: its seed, its id, or a generator's state. Its `str` is hashed.
        row: row of a batch, if several requests share a seed.
    """
    digest = hashlib.blake2b(f"{seed}/{row}".encode(), person=b"iet free tokens", digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _mix(x: Any) -> Any:
    """Mix 32 bits, held in 64, as the finalizer of MurmurHash3 does."""
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _MASK
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _MASK
    return x ^ (x >> 16)
