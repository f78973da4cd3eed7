"""Key rows for the sessions of requests: derived when a request arrives, released when it ends."""

from __future__ import annotations

import dataclasses
import heapq
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from iet.errors import InputError
from iet.marks.derivation import derive_session, derive_subkey
from iet.marks.keys import KeyTable
from iet.marks.names import checked_session
from iet.marks.registry import Registry
from iet.native import cuda, host

if TYPE_CHECKING:
    import torch

_CAPACITY = 64  # initial number of session rows, if it grows with the requests


@dataclasses.dataclass(frozen=True, eq=False)
class SessionRow:
    """A row that is reserved for a session as long as this object is referenced.

    Attributes:
        row: of `SessionRows.keys`.
        own: row of the agent's own key.
        session: id of the session.
    """

    row: int
    own: int
    session: str


class SessionRows:
    """A key table with agents' own keys, followed by rows for the sessions of running requests.

    Each request with a session has a row, even if another request has the same session. So the table grows
    with the number of running requests, not with the number of sessions.

    Args:
        registry: of the agents; None: no request has a session.
        own: its marking keys.
        capacity: number of session rows. The default suits `take`, which adds rows as needed.

    Attributes:
        own: agents' own keys.
        keys: the table. `take` may replace it by a larger one; rows keep their index.
    """

    def __init__(
        self,
        registry: Registry | None,
        own: KeyTable,
        capacity: int = _CAPACITY,
    ) -> None:
        self._registry, self.own = registry, own
        self._free: list[int] = []  # a heap
        self._reserved: weakref.WeakValueDictionary[int, SessionRow] = weakref.WeakValueDictionary()
        self._changed = False
        self.keys = self._table(capacity)

    def put(self, index: int, row: int, session: str) -> int:
        """Write the key of a session to a given session row, and return its index in the table.

        Args:
            index: of the session row, 0 to `capacity` - 1.
            row: of `own`.
            session: a checked id.
        """
        self._write(len(self.own) + index, row, session)
        return len(self.own) + index

    def take(self, row: int, session: str) -> SessionRow:
        """Reserve a free session row, and write the key of a session to it; `row` is one of `own`."""
        if not self._free:
            self.keys = self._table(2 * (len(self.keys) - len(self.own)))
        reserved = SessionRow(heapq.heappop(self._free), row, session)
        try:
            self._write(reserved.row, row, session)
        except Exception:
            heapq.heappush(self._free, reserved.row)
            raise
        self._reserved[reserved.row] = reserved
        weakref.finalize(reserved, heapq.heappush, self._free, reserved.row)
        return reserved

    def is_reserved(self, reserved: SessionRow, row: int, session: str) -> bool:
        """Return whether `take` of this object returned `reserved` for this row and session."""
        known = self._reserved.get(reserved.row) is reserved
        return known and (reserved.own, reserved.session) == (row, session)

    def send(self, device: torch.device) -> None:
        """Copy changed keys to a device, on its current stream. Call it before the step that uses them."""
        if self._changed:
            cuda.refresh_keys(self.keys.marking, device)
        self._changed = False

    def _write(self, index: int, row: int, session: str) -> None:
        if self._registry is None:
            raise InputError("session: got one, but there is no registry to derive its keys from")
        own = self.own
        # Find the key by epoch, because the agent may have a newer key now. k_p is that of the row.
        keys = self._registry.keys(own.names[own.owners[row]])
        secret = next(key.secret for key in keys if key.epoch == own.epochs[row])
        subkey = derive_subkey(derive_session(secret, session))
        self.keys.subkeys[index] = np.frombuffer(subkey, np.uint8)
        self.keys.k_p[index] = own.k_p[row]
        host.refresh_keys(self.keys.marking)
        self._changed = True

    def _table(self, capacity: int) -> KeyTable:
        """Return the present keys in a table with `capacity` session rows, and mark new rows as free."""
        old = self.keys if hasattr(self, "keys") else self.own
        size = len(self.own) + capacity
        for row in range(len(old), size):
            heapq.heappush(self._free, row)

        def grown(array: NDArray[Any], new: int) -> NDArray[Any]:
            return np.concatenate([array, np.full((size - len(old), *array.shape[1:]), new, array.dtype)])

        return dataclasses.replace(
            old,
            subkeys=grown(old.subkeys, 0),
            k_p=grown(old.k_p, 1),
            owners=grown(old.owners, 0),
            epochs=grown(old.epochs, 0),
        )


def keys_of_rows(
    registry: Registry, own: KeyTable, rows: Sequence[int], sessions: Sequence[str | None]
) -> tuple[KeyTable, list[int]]:
    """Return a table of agents' own keys and of their keys in sessions, and the key of each row in it.

    Args:
        registry: of the agents.
        own: its marking keys.
        rows: [B], rows of `own`, -1: unmarked.
        sessions: [B], id of each row; None: its agent's own key.

    Returns:
        The table, and [B] rows of it, equal for the same key in the same session.

    Raises:
        InputError: an id is invalid.
    """
    checked = [None if session is None else checked_session(session) for session in sessions]
    pairs = list(zip(rows, checked, strict=True))
    distinct = dict.fromkeys((row, session) for row, session in pairs if row >= 0 and session is not None)
    table = SessionRows(registry, own, len(distinct))
    row_of = {pair: table.put(index, *pair) for index, pair in enumerate(distinct)}
    return table.keys, [row_of.get((row, session or ""), row) for row, session in pairs]
