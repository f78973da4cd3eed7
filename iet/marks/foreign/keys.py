"""Marks of others: what gives an `Auditor` and `score_tokens` what a `Registry` and its `KeyTable` give."""

from __future__ import annotations

import abc
import dataclasses
import operator
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from iet.errors import InputError, TokenizerMismatch
from iet.marks.families import Family
from iet.marks.keys import AnyScheme, Keys
from iet.marks.scheme import canonical_digest
from iet.marks.tokenizer import Tokenizer
from iet.native import reference

Ids = NDArray[np.int64]


class ForeignScheme(AnyScheme, Protocol):
    """The choices behind a mark of others, in place of a `Scheme`."""

    def family(self, vocab_size: int) -> Family:
        """Return the null law of the scores."""


@dataclasses.dataclass(frozen=True)
class ForeignProfile:
    """A `ForeignScheme` bound to one vocabulary: what `Profile` is to `Scheme`.

    Attributes:
        scheme: the choices.
        vocab_size: V. Ids from V on are not scored.
        tokenizer_digest: digest of the tokenizer's canonical content, or None (token ids only).
        tokenizer_source: where the tokenizer was found; a hint, not part of the digest.
    """

    scheme: ForeignScheme
    vocab_size: int
    tokenizer_digest: str | None = None
    tokenizer_source: str | None = None

    unmarked_ids = ()  # every id below V is marked, special ones among them

    @property
    def family(self) -> Family:
        """The null law of the scores."""
        return self.scheme.family(self.vocab_size)

    @property
    def digest(self) -> str:
        """BLAKE2b-256, in hex, of everything that changes a score."""
        content = self.to_dict()
        del content["tokenizer_source"]
        return canonical_digest(content)

    @property
    def id(self) -> str:
        """The first 16 hex digits of the digest: the profile's name in reports."""
        return self.digest[:16]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "scheme": self.scheme.to_dict(),
            "vocab_size": self.vocab_size,
            "tokenizer_digest": self.tokenizer_digest,
            "tokenizer_source": self.tokenizer_source,
            "unmarked_ids": list(self.unmarked_ids),
        }


class ForeignKeys(Keys, abc.ABC):
    """Agents under the keys of a scheme that is not ours. It never changes.

    Attributes:
        names: agents.
        keys: one row for each key, [K] or [K, ...].
        owners: int32 [K], index into `names`, ascending.
        profile: what the keys mark under.
    """

    names: tuple[str, ...]
    keys: NDArray[Any]
    owners: NDArray[np.int32]
    profile: ForeignProfile
    _tokenizer: Tokenizer | None

    @property
    @abc.abstractmethod
    def digest(self) -> str:
        """BLAKE2b-256, in hex: what a report calls its registry's digest."""

    @abc.abstractmethod
    def scores(self, token_ids: Ids, num_threads: int) -> NDArray[Any]:
        """Return x_j [T, K]: `score_tokens`, of checked arguments."""

    def scored(self, token_ids: Ids) -> NDArray[np.bool_]:
        """Tell which positions are scored, and not alike under every key, [T]."""
        return runs_of_ids(token_ids, self.profile.scheme.n_gram, self.profile.vocab_size)

    def sums(
        self, token_ids: Ids, cuts: Ids, counted: NDArray[np.bool_], num_threads: int
    ) -> NDArray[np.float64]:
        """Return sums over spans [S, K]: `score_spans`, of checked arguments."""
        block = 32
        places = np.flatnonzero(counted & self.scored(token_ids))
        edges = np.searchsorted(places, cuts)
        filled = edges[1:] > edges[:-1]
        sums = np.zeros((len(cuts) - 1, len(self)))
        if not filled.any():
            return sums
        places, starts = places[edges[0] : edges[-1]], edges[:-1][filled] - edges[0]
        for first in range(0, len(self), block):  # so that [T, K] is never there
            units = self.subset(slice(first, first + block)).scores(token_ids, num_threads)[places]
            units *= 1 / reference.SPAN_UNIT  # a power of two
            np.rint(units, out=units)
            sums[filled, first : first + block] = np.add.reduceat(units, starts, axis=0, dtype=np.float64)
        sums *= reference.SPAN_UNIT
        return sums

    def scoring_keys(self, profile: str | None = None) -> Self:
        """Return this object, as a registry returns a profile's keys.

        Raises:
            InputError: `profile` is not the id of its only profile.
        """
        if profile is not None and profile != self.profile.id:  # an id takes longer than a short text
            raise InputError(f"profile: got {profile!r}, expected {self.profile.id!r} or None")
        return self

    def subset(self, columns: slice | NDArray[np.int64]) -> Self:
        """Return the same with some of the keys; `owners` are still places in all the names."""
        some = object.__new__(type(self))
        some.__dict__.update(self.__dict__)
        # Native code reads keys one behind another.
        some.keys, some.owners = np.ascontiguousarray(self.keys[columns]), self.owners[columns]
        return some

    def open_tokenizer(self, profile: str | None = None, source: Any = None) -> Tokenizer:
        """Return the tokenizer of `profile`, the only one, or open `source` in its place and compare digests.

        Raises:
            TokenizerMismatch: none is known, or it is another one.
        """
        self.scoring_keys(profile)
        if self._tokenizer is None:
            raise TokenizerMismatch(f"profile {self.profile.id} has no tokenizer: it reads token ids only")
        if source is None:
            return self._tokenizer
        tokenizer = source if isinstance(source, Tokenizer) else Tokenizer(source)
        if tokenizer.digest != self._tokenizer.digest:
            raise TokenizerMismatch(
                f"tokenizer: got digest {tokenizer.digest[:16]}, profile {self.profile.id} expects"
                f" {self._tokenizer.digest[:16]}"
            )
        return tokenizer

    def __len__(self) -> int:
        return len(self.keys)


def runs_of_ids(token_ids: Ids, n_gram: int, vocab_size: int) -> NDArray[np.bool_]:
    """Tell where n ids of [0, V) end, [T]: `reference.is_scored` without unmarked ids, and for any V fast."""
    known = (token_ids >= 0) & (token_ids < vocab_size)
    scored = known.copy()
    scored[: n_gram - 1] = False
    for back in range(1, min(n_gram, len(known))):
        scored[back:] &= known[:-back]
    return scored


def checked_integer(what: str, value: Any, low: int, high: int, *, secret: bool = False) -> int:
    """Return `value` as an int, if it is an integer (of NumPy too) from `low` to `high`.

    Raises:
        InputError: it is not. The message does not show a secret.
    """
    try:
        number = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not low <= number <= high:
        kind = f"a {type(value).__name__}" if number is None else "an integer out of range"
        got = kind if secret else f"{value!r:.80}"
        raise InputError(f"{what}: got {got}, expected an integer from {low} to {high}")
    return number
