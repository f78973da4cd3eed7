"""Foreign marks: the common base of their schemes and of agents' keys under them."""

from __future__ import annotations

import abc
import operator
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from iet.errors import InputError
from iet.marks.keys import Keys
from iet.marks.profiles import open_tokenizer
from iet.marks.scheme import AnyScheme, BaseProfile
from iet.marks.tokenizer import Tokenizer
from iet.native.reference import SPAN_UNIT, is_scored
from iet.native.texts import Texts

Ids = NDArray[np.int64]

_BLOCK = 32  # columns that are scored together, so that memory stays below [T, K]


class ForeignProfile(BaseProfile[Any]):
    """A foreign scheme bound to one vocabulary. No id is unmarked, not even a special one."""

    @classmethod
    def of(cls, scheme: AnyScheme, vocab_size: int, tokenizer: Tokenizer | None) -> Self:
        """Return the profile of a scheme and a tokenizer, None: for token ids only."""
        if tokenizer is None:
            return cls(scheme, vocab_size)
        return cls(scheme, vocab_size, tokenizer.digest, tokenizer_source=tokenizer.source)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        fields = super().to_dict()
        unmarked_ids = fields.pop("unmarked_ids")
        return {**fields, "unmarked_ids": unmarked_ids}


class ForeignKeys(Keys, abc.ABC):
    """Agents' keys under a foreign scheme. They never change.

    Attributes:
        names: agents.
        keys: one row for each key, [K] or [K, ...].
        owners: int32 [K], index into `names`, ascending.
        profile: the profile of the keys.
    """

    names: tuple[str, ...]
    keys: NDArray[Any]
    owners: NDArray[np.int32]
    profile: ForeignProfile
    _tokenizer: Tokenizer | None

    @property
    @abc.abstractmethod
    def digest(self) -> str:
        """BLAKE2b-256, in hex; reports call it the digest of the registry."""

    def scored(self, texts: Texts) -> NDArray[np.bool_]:
        """Return which positions [N] are scored, with scores that differ between keys."""
        return is_scored(texts.ids, self.profile.scheme.n_gram, self.profile.vocab_size)

    def sums(
        self, token_ids: Ids, cuts: Ids, counted: NDArray[np.bool_] | NDArray[np.uint8], num_threads: int
    ) -> NDArray[np.float64]:
        """Return sums over spans [S, K], see `Keys.sums`."""
        texts = Texts.single(token_ids)
        positions = np.flatnonzero((counted > 0) & self.scored(texts))
        edges = np.searchsorted(positions, cuts)
        filled = edges[1:] > edges[:-1]
        sums = np.zeros((len(cuts) - 1, len(self)))
        if not filled.any():
            return sums
        positions, starts = positions[edges[0] : edges[-1]], edges[:-1][filled] - edges[0]
        factors = (counted[positions] / np.float32(SPAN_UNIT)).astype(np.float32)[:, None]
        for first in range(0, len(self), _BLOCK):
            units = self.subset(slice(first, first + _BLOCK)).scores(texts, num_threads)[positions]
            units *= factors
            np.rint(units, out=units)
            sums[filled, first : first + _BLOCK] = np.add.reduceat(units, starts, axis=0, dtype=np.float64)
        sums *= SPAN_UNIT
        return sums

    def scoring_keys(self, profile: str | None = None) -> Self:
        """Return this object, as a registry returns the keys of a profile.

        Raises:
            InputError: `profile` is not the id of its only profile.
        """
        if profile is not None and profile != self.profile.id:
            raise InputError(f"profile: got {profile!r}, expected {self.profile.id!r} or None")
        return self

    def subset(self, columns: slice | NDArray[np.int64]) -> Self:
        """Return some of the keys; `owners` are still indices into all the names."""
        subset = object.__new__(type(self))
        subset.__dict__.update(self.__dict__)
        # Native code needs contiguous keys.
        subset.keys, subset.owners = np.ascontiguousarray(self.keys[columns]), self.owners[columns]
        return subset

    def open_tokenizer(self, profile: str | None = None, source: Any = None) -> Tokenizer:
        """Return the tokenizer of the only profile; or open `source` and compare its digest.

        Args:
            profile: id of the profile, or None.
            source: path or object; None: the tokenizer that the keys were made with.

        Raises:
            TokenizerMismatch: there is no tokenizer, or `source` has another digest.
        """
        self.scoring_keys(profile)
        return open_tokenizer(self.profile, self._tokenizer if source is None else source)

    def __len__(self) -> int:
        return len(self.keys)


def checked_integer(argument: str, value: Any, low: int, high: int, *, secret: bool = False) -> int:
    """Return `value` as an int if it is an integer (of Python or NumPy) from `low` to `high`.

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
        raise InputError(f"{argument}: got {got}, expected an integer from {low} to {high}")
    return number
