"""Places for requests, and limits out of range."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from iet.errors import InputError
from iet.service.limits import Limits, Places, Refused


def test_places_are_counted_by_client_and_together() -> None:
    places = Places(Limits(requests=3, per_client=2))
    with contextlib.ExitStack() as held:
        for client in ("alice", "alice", "bob"):
            held.enter_context(places.place(client))
        assert places.taken == 3
        for client, status in (("alice", 429), ("bob", 503), ("carol", 503)):
            with pytest.raises(Refused) as refused, places.place(client):
                pass
            assert refused.value.status == status
            assert refused.value.headers == {"retry-after": "1"}
    assert places.taken == 0
    with pytest.raises(KeyError), places.place("alice"):
        raise KeyError
    assert places.taken == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [("requests", 0), ("body_bytes", 1.5), ("seconds", 0.0), ("wait", float("nan")), ("per_client", True)],
)
def test_limits_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^{name}: got"):
        Limits(**{name: value})
