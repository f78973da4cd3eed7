"""Key tables of drawn secrets, for what takes arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from iet.marks.keys import AgentKey, KeyTable
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
    names = [f"agent {i}" for i in range(agents)]  # not added one by one: tests make thousands of tables
    keys = [AgentKey(name, 0, "2026-01-01T00:00:00Z", rng.bytes(32)) for name in names]
    return KeyTable.derive(registry.profile, names, keys)
