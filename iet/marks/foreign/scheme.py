"""What every mark of a serving engine says of itself: its parameters, its keys, its scores, its null law."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from iet.marks.families import Family
from iet.marks.foreign.keys import Ids, runs_of_ids
from iet.native.pairs import number_pairs_of
from iet.native.texts import Texts

Keys = NDArray[np.uint64]
Mask = NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class EngineScheme(abc.ABC):
    """The choices behind an engine's mark that a reader must know.

    Attributes:
        n_gram: n: a score depends on a token and the n-1 ids before it.
    """

    n_gram: int = 0
    version: int = dataclasses.field(default=1, kw_only=True)

    name: ClassVar[str]

    @abc.abstractmethod
    def family(self, vocab_size: int) -> Family:
        """Return the null law of the scores."""

    @abc.abstractmethod
    def checked_key(self, what: str, key: Any) -> tuple[int, ...]:
        """Return a key as numbers, or raise an InputError that does not show it."""

    def effective_key(self, key: tuple[int, ...]) -> tuple[int, ...]:
        """Return what of a key its scores depend on: two keys with the same have the same scores."""
        return key

    @abc.abstractmethod
    def scores(
        self, ids: Ids, scored: Mask, keys: Keys, vocab_size: int, prepared: Any, threads: int
    ) -> NDArray[Any]:
        """Return x_j [N, K] of joined texts, of which `scored` says what is scored."""

    def prepare(self, keys: Keys) -> Any:
        """Return what a text does not change and is worth keeping, an array [..., K], or None."""
        return None

    @staticmethod
    def is_list(key: Any) -> bool:
        """Tell whether this is a list of keys, not a key."""
        return isinstance(key, (list, tuple)) or (isinstance(key, np.ndarray) and key.ndim > 0)

    def scored(self, texts: Texts, vocab_size: int) -> Mask:
        """Tell which positions are scored, and not alike under every key, [N]."""
        return runs_of_ids(texts.ids, self.n_gram, vocab_size)

    def pair_numbers(self, texts: Texts, counting: Mask) -> tuple[Ids, Mask]:
        """Number the positions of each text that are `counting`: the same number, no new evidence.

        Returns:
            Numbers [N] from 0 in the order of first occurrence, else -1; which of them stood before [N].
        """
        return number_pairs_of(texts.ids, counting, texts.starts, texts.ends, self.evidence_ids)

    @property
    def evidence_ids(self) -> int:
        """Number of ids, the token's the last, of which another one makes another score: n."""
        return self.n_gram

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"name": self.name, **dataclasses.asdict(self)}

    def __str__(self) -> str:
        values = {k: v for k, v in dataclasses.asdict(self).items() if k not in ("n_gram", "version")}
        return f"{self.name}, n {self.n_gram}" + "".join(f", {k} {v}" for k, v in values.items())
