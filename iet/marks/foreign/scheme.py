"""The base of the schemes of serving engines: parameters, keys, scores, null distribution."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from iet.marks.foreign.keys import Ids
from iet.marks.scheme import AnyScheme
from iet.native.pairs import number_pairs_of
from iet.native.reference import is_scored
from iet.native.texts import Texts

Keys = NDArray[np.uint64]
"""[K, W]: the numbers of each key."""

Mask = NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class EngineScheme(AnyScheme):
    """The parameters of an engine's mark that a reader must know.

    Attributes:
        n_gram: n; a score depends on a token and the n-1 ids before it.
        version: of this implementation of the engine's mark.
    """

    n_gram: int = 0
    version: int = dataclasses.field(default=1, kw_only=True)

    name: ClassVar[str]

    @abc.abstractmethod
    def checked_key(self, argument: str, key: Any) -> tuple[int, ...]:
        """Return a key as numbers, or raise an InputError that does not show it."""

    def effective_key(self, key: tuple[int, ...]) -> tuple[int, ...]:
        """Return the part of a key that determines the scores: keys are distinct if this part differs."""
        return key

    @abc.abstractmethod
    def scores(
        self, ids: Ids, scored: Mask, keys: Keys, vocab_size: int, prepared: Any, threads: int
    ) -> NDArray[Any]:
        """Return x_j [N, K] of joined texts, 0 where not `scored`; `prepared`: see `prepare`."""

    def prepare(self, keys: Keys) -> Any:
        """Return an array [..., K] that depends on the keys only and is worth caching, or None."""
        return None

    @staticmethod
    def is_list(key: Any) -> bool:
        """Return whether `key` is a list of keys instead of one key."""
        return isinstance(key, (list, tuple)) or (isinstance(key, np.ndarray) and key.ndim > 0)

    def scored(self, texts: Texts, vocab_size: int) -> Mask:
        """Return which positions [N] are scored, with scores that differ between keys."""
        return is_scored(texts.ids, self.n_gram, vocab_size)

    def pair_numbers(self, texts: Texts, counting: Mask) -> tuple[Ids, Mask]:
        """Number the positions of each text that are in `counting`; equal numbers add no evidence.

        Returns:
            Numbers [N] from 0 in the order of first occurrence, else -1; which numbers are repeats [N].
        """
        return number_pairs_of(texts.ids, counting, texts.starts, texts.ends, self.evidence_ids)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"name": self.name, **super().to_dict()}

    def __str__(self) -> str:
        values = {k: v for k, v in self.to_dict().items() if k not in ("name", "n_gram", "version")}
        return f"{self.name}, n {self.n_gram}" + "".join(f", {k} {v}" for k, v in values.items())
