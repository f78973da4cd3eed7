"""Key tables of drawn secrets, for what takes arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from iet.marks.keys import KeyTable
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme


def key_table(
    vocab_size: int, agents: int = 3, unmarked_ids: tuple[int, ...] = (), **scheme: Any
) -> KeyTable:
    """The keys of a registry whose profile leaves `unmarked_ids` alone, the same at every run."""
    rng = np.random.default_rng(vocab_size)
    registry = Registry.create(
        None, vocab_size=vocab_size, unmarked_ids=unmarked_ids, scheme=Scheme(**scheme)
    )
    for i in range(agents):
        registry.add(f"agent {i}", secret=rng.bytes(32))
    return registry.marking_keys()
