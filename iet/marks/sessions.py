"""Sessions: keys that an agent has in one execution, derived from its own key and the session's id.

A session may be a run of a team, a conversation or a tenant. Specified in docs/internals/scheme.md, step 1.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from iet.errors import InputError
from iet.marks.derivation import derive_session, derive_subkey
from iet.marks.keys import AgentKey, KeyTable
from iet.marks.names import checked_session
from iet.marks.scheme import Profile

OWN = -1
"""The session index of agents' own keys."""


def checked_sessions(sessions: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct ids of sessions, or raise an InputError."""
    if isinstance(sessions, (str, bytes)) or not isinstance(sessions, Iterable):
        raise InputError(f"sessions: got {type(sessions).__name__}, expected a list of ids")
    checked = tuple(dict.fromkeys(map(checked_session, sessions)))
    if not checked:
        raise InputError("sessions: got none, expected at least one id")
    return checked


def sessions_digest(sessions: Sequence[str]) -> str:
    """Return BLAKE2b-256, in hex, of the ids of sessions in their order."""
    return hashlib.blake2b("\n".join(sessions).encode(), digest_size=32).hexdigest()


def session_key(key: AgentKey, session: str, profile: Profile) -> AgentKey:
    """Return an agent's key in a session.

    It keeps the epoch of the agent's own key, and its frequency, which was drawn to make text auditable.

    Args:
        key: the agent's own key.
        session: a checked id.
        profile: of the key.
    """
    k_p = key.frequency(profile) if profile.scheme.k_p == "per-agent" else None
    return dataclasses.replace(key, secret=derive_session(key.secret, session), k_p=k_p)


def with_sessions(own: KeyTable, keys: Sequence[AgentKey], sessions: Sequence[str]) -> KeyTable:
    """Return one table of agents' own keys and of their keys in sessions.

    Args:
        own: the table of `keys`.
        keys: of agents in slot order, all epochs.
        sessions: checked ids.

    Returns:
        The table: agents in slot order, then their own keys, then session by session; each with its epochs.
        O(keys), about 4 µs each.
    """
    bounds = np.searchsorted(own.owners, np.arange(len(own.names) + 1)).tolist()
    subkeys, rows, numbers = list[bytes](), list[int](), list[int]()
    for low, high in itertools.pairwise(bounds):  # the epochs of one agent
        subkeys.append(own.subkeys[low:high].tobytes())
        for session in sessions:
            subkeys += [derive_subkey(derive_session(key.secret, session)) for key in keys[low:high]]
        rows += [*range(low, high)] * (len(sessions) + 1)
        numbers += np.repeat(np.arange(OWN, len(sessions)), high - low).tolist()
    index = np.array(rows, np.int64)
    return dataclasses.replace(
        own,
        subkeys=np.frombuffer(b"".join(subkeys), dtype=np.uint8).reshape(len(rows), 16),
        k_p=own.k_p[index],
        owners=own.owners[index],
        epochs=own.epochs[index],
        sessions=np.array(numbers, np.int32),
    )
