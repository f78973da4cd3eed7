"""The parameters of a native call: keys, and the settings of their profile."""

from __future__ import annotations

import dataclasses
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from iet.errors import IetError

MAX_VOCAB_SIZE = 1 << 24


GUMBEL = 2
"""Number of family "gumbel", as in csrc/keyed.h and iet/marks/families.py; the reference branches by it."""


@dataclasses.dataclass(frozen=True, eq=False)
class KernelParams:
    """K derived keys and the settings of their profile. Hashed by identity.

    It does not change, with one exception: an engine writes keys of sessions into rows of its own and then
    calls `refresh_keys` of `iet.native.host` and `iet.native.cuda`.

    Attributes:
        vocab_size: V, 1 to 2^24.
        n_gram: n, 2 to 16.
        family: a key of `iet.marks.families.FAMILIES`.
        code: the number that the native modules know it by, `Family` in csrc/keyed.h.
        kappa: κ at temperature 1.
        unmarked_ids: ids below V that carry no mark, ascending.
        subkeys: uint8 [K, 16].
        k_p: integers [K], the frequencies of φ.
        counted: whether a seed contains the number of earlier occurrences of its context (family "gumbel").
    """

    vocab_size: int
    n_gram: int
    family: str
    code: int
    kappa: float
    unmarked_ids: tuple[int, ...]
    subkeys: NDArray[np.uint8] = dataclasses.field(repr=False)
    k_p: NDArray[np.integer] = dataclasses.field(repr=False)
    counted: bool = False

    @property
    def subkey_words(self) -> NDArray[np.uint64]:
        """The sub-keys as the native modules read them, uint64 [K, 2]."""
        return np.ascontiguousarray(self.subkeys).view("<u8").astype(np.uint64)

    def __len__(self) -> int:
        return len(self.subkeys)

    def __reduce__(self) -> NoReturn:
        raise IetError("KernelParams hold keys and are not pickled: pass on the registry's path")
