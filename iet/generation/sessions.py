"""Rows of keys for the sessions of requests: derived when a request comes, given back when it goes."""

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

_ROOM = 64  # rows at first, where they grow with the requests


@dataclasses.dataclass(frozen=True, eq=False)
class HeldRow:
    """A row that marks in a session for as long as something refers to this.

    Attributes:
        row: of `SessionRows.keys`.
        own: the row that would mark without a session.
        session: its id.
    """

    row: int
    own: int
    session: str


class SessionRows:
    """Agents' own keys, and behind them room for keys of sessions, each for one request.

    There is no cache of sessions: as many rows are taken as there are requests of one, so that nothing grows
    with their number, and two requests of a session have a row each.

    Args:
        registry: of the agents; None: no request has a session.
        own: its marking keys.
        room: number of rows, where each has a place of its own (`put`). Default: what `take` needs.

    Attributes:
        own: agents' own keys.
        keys: all of them; another table where `take` needed more room. Rows keep their number.
    """

    def __init__(
        self,
        registry: Registry | None,
        own: KeyTable,
        room: int = _ROOM,
    ) -> None:
        self._registry, self.own = registry, own
        self._free: list[int] = []  # a heap
        self._held: weakref.WeakValueDictionary[int, HeldRow] = weakref.WeakValueDictionary()
        self._changed = False
        self.keys = self._table(room)

    def put(self, place: int, row: int, session: str) -> int:
        """Write the key of a session at a place of the room, and return its row.

        Args:
            place: 0 to `room` - 1.
            row: of `own`.
            session: a checked id.
        """
        self._write(len(self.own) + place, row, session)
        return len(self.own) + place

    def take(self, row: int, session: str) -> HeldRow:
        """Write the key of a session where there is room, or make some: `put` without a place of its own."""
        if not self._free:
            self.keys = self._table(2 * (len(self.keys) - len(self.own)))
        held = HeldRow(heapq.heappop(self._free), row, session)
        try:
            self._write(held.row, row, session)
        except Exception:
            heapq.heappush(self._free, held.row)
            raise
        self._held[held.row] = held
        weakref.finalize(held, heapq.heappush, self._free, held.row)
        return held

    def holds(self, held: HeldRow, row: int, session: str) -> bool:
        """Tell whether a row was taken here for a session and one of agents' own rows."""
        return self._held.get(held.row) is held and (held.own, held.session) == (row, session)

    def send(self, device: torch.device) -> None:
        """Send what was written to a device: before the step that marks with it, on its stream."""
        if self._changed:
            cuda.refresh_keys(self.keys.marking, device)
        self._changed = False

    def _write(self, at: int, row: int, session: str) -> None:
        if self._registry is None:
            raise InputError("session: got one, but there is no registry to derive its keys from")
        own = self.own
        # The agent's key may have been rotated since: k_p is that of the row.
        keys = self._registry.keys(own.names[own.owners[row]])
        secret = next(key.secret for key in keys if key.epoch == own.epochs[row])
        subkey = derive_subkey(derive_session(secret, session))
        self.keys.subkeys[at] = np.frombuffer(subkey, np.uint8)
        self.keys.k_p[at] = own.k_p[row]
        host.refresh_keys(self.keys.marking)
        self._changed = True

    def _table(self, room: int) -> KeyTable:
        """Return the keys there are with room for more sessions, and count the new rows as free."""
        old = self.keys if hasattr(self, "keys") else self.own
        size = len(self.own) + room
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


class RowSessions:
    """The sessions of the rows of a prompt batch, each row in its own.

    Args:
        registry: of the agents.
        sessions: id of each row, None: under its agent's own keys.

    Raises:
        InputError: there are none, or one is no id.
    """

    def __init__(self, registry: Registry, sessions: Sequence[str | None]) -> None:
        if isinstance(sessions, bytes) or not len(sessions):
            raise InputError(
                f"session: got {sessions!r:.80}, expected one id (or None) per row of the prompt batch, or"
                " one for all"
            )
        self._registry = registry
        self._sessions = [None if each is None else checked_session(each) for each in sessions]

    def __len__(self) -> int:
        return len(self._sessions)

    def keys_of(self, own: KeyTable, rows: NDArray[np.int32]) -> tuple[KeyTable, NDArray[np.int32]]:
        """Return agents' own keys with those of the sessions behind them, and where each row's stands there.

        Args:
            own: the registry's marking keys.
            rows: int32 [B], of `own`, -1: unmarked; B is a multiple of the sessions, neighbours share one.

        Returns:
            The table, and int32 [B]: rows of one key in one session have one row of it, as without sessions.
        """
        of_rows = np.repeat(np.array(self._sessions, dtype=object), len(rows) // len(self))
        asked = list(zip(rows.tolist(), of_rows.tolist(), strict=True))
        places: dict[tuple[int, str], int] = {}
        for row, session in asked:
            if row >= 0 and session is not None:
                places.setdefault((row, session), len(places))
        made = SessionRows(self._registry, own, len(places))
        where = {pair: made.put(place, *pair) for pair, place in places.items()}
        return made.keys, np.array([where.get(pair, pair[0]) for pair in asked], dtype=np.int32)
