"""Limits: on what one client and all clients use at once, and on the values of the limits themselves."""

from __future__ import annotations

import contextlib
import pathlib
import time
from typing import Any

import pytest

from iet.errors import InputError
from iet.service.audits import AuditFiles, AuditResponse
from iet.service.limits import ConcurrencyLimiter, Limits, RateLimiter, RequestRefused, address_group
from tests.support.service import Client, on_a_port
from tests.support.waiting import wait_until

from iet.service.app import AuditService, application  # isort: skip - needs the extra, like tests.support.service


def test_amounts_are_counted_for_each_client_and_for_all() -> None:
    limiter = ConcurrencyLimiter(per_client=2, total=3)
    with contextlib.ExitStack() as stack:
        for client in ("alice", "alice", "bob"):
            stack.enter_context(limiter.share(client))(1)
        assert limiter.in_use == 3
        for client, status in (("alice", 429), ("bob", 503), ("carol", 503)):
            with pytest.raises(RequestRefused) as refused, limiter.share(client) as add:
                add(1)
            assert refused.value.status == status
            assert refused.value.headers == {"retry-after": "1"}
    assert limiter.in_use == 0
    with contextlib.suppress(KeyError), limiter.share("alice") as add:
        add(2)
        raise KeyError
    assert limiter.in_use == 0


def test_requests_are_counted_in_periods() -> None:
    now = 100.0
    limiter = RateLimiter(per_client=2, total=3, seconds=10, clock=lambda: now)

    def status(client: str) -> tuple[int, str] | None:
        try:
            limiter.count(client)
        except RequestRefused as refused:
            return refused.status, refused.headers["retry-after"]
        return None

    now = 106.5
    answers = [status(client) for client in ("alice", "alice", "alice", "bob", "carol")]
    assert answers == [None, None, (429, "4"), None, (503, "4")]
    assert set(limiter._counts) == {"alice", "bob"}  # clients that are refused take no memory
    now = 110.0
    assert [status("alice"), status("carol")] == [None, None]


@pytest.mark.parametrize(
    ("host", "group"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unknown", ""),
        ("", ""),
    ],
)
def test_addresses_are_grouped(host: str, group: str) -> None:
    assert address_group(host) == group


@pytest.mark.parametrize(
    ("name", "value"),
    [("requests", 0), ("body_bytes", 1.5), ("seconds", 0.0), ("wait", float("nan")), ("per_client", True)],
)
def test_limits_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^{name}: got"):
        Limits(**{name: value})


class InstantPool:
    """Answers every job at once, with more bytes than the buffers of a connection hold."""

    ready, replaced = 1, 0

    async def do(self, job: object, client: str) -> AuditResponse:
        return AuditResponse(200, "text/plain", b"y" * (32 << 20))


def test_a_request_counts_until_its_answer_is_read() -> None:
    service = AuditService(AuditFiles(pathlib.Path("unused")), None, Limits(), workers=1)
    service._pool = InstantPool()  # type: ignore[assignment]

    with on_a_port(application(service)) as port:
        client = Client(port)
        with client.connect() as connection:
            head = client.head("/v1/audit", "Content-Type: application/json", "Content-Length: 2")
            connection.sendall(head + b"{}")
            received = b""
            while b"\r\n\r\n" not in received:
                received += connection.recv(1 << 12)
            assert b"content-length: 33554432" in received
            time.sleep(0.5)  # enough to send it all, if the buffers held it
            assert service._limiter.in_use == 1
            missing = (32 << 20) - len(received.partition(b"\r\n\r\n")[2])
            while missing:
                missing -= len(connection.recv(1 << 20))
            wait_until(lambda: service._limiter.in_use == 0)
