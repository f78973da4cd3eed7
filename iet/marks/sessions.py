"""Sessions: keys that an agent has in one execution alone, derived from its own and the session's id.

A session is whatever its id stands for: a run of a team, a conversation, a tenant. Specified in
docs/internals/scheme.md, step 1.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from iet.errors import InputError
from iet.marks.derivation import derive_session, derive_subkey
from iet.marks.keys import AgentKey, KeyTable
from iet.marks.names import checked_session
from iet.marks.scheme import Profile

OWN = -1
"""The session of keys that are of none: agents' own."""


def checked_sessions(sessions: Iterable[str]) -> tuple[str, ...]:
    """Return ids of sessions, each once, or raise an InputError."""
    if isinstance(sessions, (str, bytes)) or not isinstance(sessions, Iterable):
        raise InputError(f"sessions: got {type(sessions).__name__}, expected a list of ids")
    found = tuple(dict.fromkeys(map(checked_session, sessions)))
    if not found:
        raise InputError("sessions: got none, expected at least one id")
    return found


def sessions_digest(sessions: Sequence[str]) -> str:
    """Return BLAKE2b-256, in hex, of ids of sessions in their order."""
    return hashlib.blake2b("\n".join(sessions).encode(), digest_size=32).hexdigest()


def session_key(key: AgentKey, session: str, profile: Profile) -> AgentKey:
    """Return the key that stands for an agent's own in a session whose id was checked.

    The epoch is that of the agent's own key, and so is the frequency, which was drawn so that text under it
    can be audited.
    """
    k_p = key.frequency(profile) if profile.scheme.k_p == "per-agent" else None
    return dataclasses.replace(key, secret=derive_session(key.secret, session), k_p=k_p)


def with_sessions(own: KeyTable, keys: Sequence[AgentKey], sessions: Sequence[str]) -> KeyTable:
    """Return agents' own keys and those of sessions in one table, whose `sessions` tells them apart.

    Args:
        own: of all `keys`.
        keys: of agents in slot order, all epochs.
        sessions: checked ids.

    Returns:
        The table: agents in slot order, then their own keys, then session by session; each with its epochs.
        O(keys), about 4 µs each.
    """
    if not len(own):
        return dataclasses.replace(own, sessions=np.zeros(0, np.int32))
    subkeys, parts = list[bytes](), list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]]()
    count, at = len(sessions), 0
    by_owner = np.searchsorted(own.owners, np.arange(len(own.names) + 1))
    for slot, name in enumerate(own.names):
        low, high = int(by_owner[slot]), int(by_owner[slot + 1])
        subkeys.append(own.subkeys[low:high].tobytes())
        mine = []
        while at < len(keys) and keys[at].agent == name:
            mine.append(keys[at])
            at += 1
        for session in sessions:
            subkeys += [derive_subkey(derive_session(key.secret, session)) for key in mine]
        rows = np.arange(low, high)
        numbers = np.repeat(np.arange(OWN, count), high - low)
        parts.append(np.stack([np.tile(rows, count + 1), numbers]))
    rows, numbers = np.concatenate(parts, axis=1)
    return dataclasses.replace(
        own,
        subkeys=np.frombuffer(b"".join(subkeys), dtype=np.uint8).reshape(len(rows), 16),
        k_p=own.k_p[rows],
        owners=own.owners[rows],
        epochs=own.epochs[rows],
        sessions=numbers.astype(np.int32),
    )
