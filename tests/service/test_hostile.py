"""Hostile clients: each is answered or disconnected, and another client is served during every attack."""

from __future__ import annotations

import contextlib
import json
import pathlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

import iet
from iet.service.credentials import add_token
from tests.support.conditions import posix
from tests.support.service import LINES, Client, Running, serving
from tests.support.texts import TEXT
from tests.support.waiting import PATIENCE

pytestmark = posix

SECONDS = 2.0
LIMITS = {"body_bytes": 1 << 20, "batch_bytes": 1 << 22, "per_client": 6, "requests": 8, "connections": 40}
TIMES = {"body_seconds": SECONDS}


@pytest.fixture(scope="module")
def service(folder: pathlib.Path, registry: pathlib.Path) -> Iterator[Running]:
    values = {**LIMITS, **TIMES}
    options = [part for name, value in values.items() for part in ("--limit", f"{name}={value}")]
    with serving(folder, registry, *options, workers=2) as running:
        yield running


@pytest.fixture(scope="module")
def second_client(service: Running, folder: pathlib.Path) -> Client:
    """Another token holder, with a share of requests of its own."""
    return Client(service.port, add_token(folder / "tokens", "carol"))


@pytest.fixture(scope="module")
def expected(registry: pathlib.Path) -> dict[str, float]:
    return iet.Auditor(iet.Registry.load(registry)).audit(TEXT).evidence


@pytest.fixture(autouse=True)
def another_client(
    service: Running, second_client: Client, expected: dict[str, float]
) -> Iterator[contextlib.AbstractContextManager[object]]:
    """Ask during every test, except while the test holds the lock; all answers must be correct."""
    over, answers, asking = threading.Event(), list[object](), threading.Lock()

    def ask() -> None:
        while not over.is_set():
            with asking:
                reply = second_client.audit(text=TEXT, include_text=False)
            answers.append(reply.json["evidence"] if reply.status == 200 else reply)
            over.wait(0.1)  # often enough to meet every attack, without being most of the work

    thread = threading.Thread(target=ask)
    thread.start()
    yield asking
    count = len(answers)
    service.wait_until(lambda: len(answers) > count + 1)
    over.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert [answer for answer in answers if answer != expected] == []
    assert len(service.workers()) == 2
    assert "Traceback" not in service.log_text
    assert "lost" not in service.log_text


def deep(depth: int) -> bytes:
    return b'{"decoder_options": ' + b"[" * depth + b"]" * depth + b', "text": "a"}'


@pytest.mark.parametrize(
    ("body", "statuses"),
    [
        (b"", {400}),
        (b"{", {400}),
        (b'{"text": "a"', {400}),
        (b"null", {422}),
        (b'"text"', {422}),
        (b"[]", {422}),
        (b"\xff\xfe\x00", {400}),
        (b'{"text": "\xff"}', {400}),
        (b'{"text": "\\ud800"}', {400}),
        (b'{"text": "\\udfff\\ud800"}', {400}),
        (b'{"text": "a\\u0000b"}', {200}),
        (b'{"text": "a\x00b"}', {400}),
        (b'{"\\u0000": 1, "text": "a"}', {422}),
        (deep(100), {422}),
        (deep(100_000), {400}),
        (b"[" * 500_000, {400}),
        (b'{"level": 1e999, "text": "a"}', {422}),
        (b'{"level": NaN, "text": "a"}', {400, 422}),
        (b'{"level": -0.0, "text": "a"}', {422}),
        (b'{"token_ids": [1' + b"0" * 5000 + b"]}", {400, 422}),
        (b'{"token_ids": [9223372036854775808]}', {422}),
        (b'{"token_ids": [9223372036854775807]}', {200, 422}),
        (b'{"text": "a", "spans": [[-1, 9999999999999999999999]]}', {422}),
        (b'{"text": "a", "boundaries": [1.5]}', {422}),
        (b'{"text": "a", "decoys": true}', {422}),
        (b'{"text": "a", "decoys": 1e3}', {422}),
        (b'{"text": ["a"]}', {422}),
        (b'{"text": {"$ref": "#"}}', {422}),
        (b'{"messages": {"role": "user"}}', {422}),
        (b'{"messages": [null]}', {422}),
        (json.dumps({"text": "a", **{f"key{i}": i for i in range(100_000)}}).encode()[: 1 << 20], {400, 422}),
        (json.dumps({"text": "a", **{f"k{i}": 1 for i in range(80_000)}}).encode(), {422}),
        (json.dumps({"text": "a", "decoder_options": {f"k{i}": 1 for i in range(80_000)}}).encode(), {422}),
        (b'{"text": "a", ' + b'"level": 0.1, ' * 50_000 + b'"level": 0.2}', {200, 422}),
        (json.dumps({"text": "a", "known_agents": ["x" * 1000] * 900}).encode(), {422}),
        (
            json.dumps({"text": "a", "decoder_options": {"mean_segment": 1e308, "x" * 9999: -1}}).encode(),
            {422},
        ),
        (json.dumps({"text": "\u202e\u0301" * 50_000}).encode(), {200}),
        (json.dumps({"text": "\U000e0041" * 50_000}).encode(), {200}),
        (json.dumps({"text": "w1 " * 100_000}).encode(), {200}),
        (json.dumps({"messages": [{"role": "user", "content": "w1 w2"}] * 5_000}).encode(), {200}),
    ],
    ids=range(40),
)
def test_bodies(service: Running, body: bytes, statuses: set[int]) -> None:
    reply = service.ask("/v1/audit", body)
    assert reply.status in statuses, reply.body[:300]
    if reply.status != 200:
        assert len(reply.body) < 2_000, "an error that repeats what a client wrote"
        assert reply.json["error"]
    batch = service.ask(
        "/v1/audit/batch", body.replace(b"\n", b" ") + b'\n{"text": "w1"}', Content_Type=LINES
    )
    assert batch.status == 200
    assert batch.lines[-1]["status"] == 200


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": "w1", "messages": [{"role": "user", "content": "w1"}]}, "expected one of text"),
        ({"text": "w1 w2", "spans": [[0, 2]], "skip": [[0, 2]]}, ""),
        ({"text": "w1 w2", "spans": [[3, 5], [0, 2]]}, ""),
        ({"text": "w1 w2", "spans": [[0, 4], [2, 5]]}, ""),
        ({"text": "w1 w2", "spans": [[2, 2]]}, ""),
        ({"text": "w1 w2", "boundaries": [3, 3]}, ""),
        ({"text": "w1 w2", "boundaries": [99]}, "boundaries"),
        ({"token_ids": [1, 2], "as_copied": True}, "as_copied"),
        ({"token_ids": [-1, 2]}, ""),
        ({"text": "w1", "known_agents": []}, "known_agents"),
        ({"text": "w1", "known_agents": ["planner\0"]}, "known_agents"),
        ({"text": "w1", "decoder_options": {"step": 5}}, "step"),
        ({"text": "w1", "decoder_options": {"min_segment": -1}}, "min_segment"),
        ({"text": "w1", "decoder_options": {"mean_segment": 1e308, "min_segment": 10**9}}, ""),
        ({"text": "w1", "decoder": "window", "decoder_options": {"window": 10**18}}, ""),
        ({"text": "w1", "decoder": "window", "decoder_options": {"step": 0}}, "step"),
        ({"text": "w1", "published": "/etc"}, "published: unknown field"),
        ({"text": "w1", "registry": "/etc/passwd"}, "registry: unknown field"),
        ({"text": "w1", "id": {"a": 1}}, "id"),
    ],
    ids=range(19),
)
def test_contradictory_requests(service: Running, fields: dict[str, object], message: str) -> None:
    reply = service.audit(**fields)
    if message:
        assert reply.status == 422, reply.body[:300]
        assert message in reply.json["error"]
    assert reply.status in (200, 422), reply.body[:300]
    lines = [json.dumps({**fields, "id": 1}).encode(), b'{"text": "w1", "id": "\\u0000x"}']
    batch = service.ask("/v1/audit/batch", b"\n".join(lines), Content_Type=LINES).lines
    assert batch[1]["status"] == 200
    assert batch[1]["id"] == "\0x"


@pytest.mark.parametrize(
    ("lines", "statuses"),
    [
        (["Content-Encoding: gzip", "Content-Length: 20"], b"4"),
        (["Content-Type: application/json", "Content-Type: text/html", "Content-Length: 2"], b"4"),
        (["Content-Type: application/json; charset=utf-16", "Content-Length: 2"], b"4"),
        (["Content-Type: " + "application/json" * 500, "Content-Length: 2"], b"4"),
        (
            ["Content-Type: application/json", "Accept: " + "text/html;q=0.5," * 500, "Content-Length: 2"],
            b"4",
        ),
        (["Content-Type: application/json", "Accept: text/html;q=\u00b2;q=nan", "Content-Length: 2"], b"4"),
        (["Authorization: Bearer " + "x" * 10_000, "Content-Length: 2"], b"4"),
        (["Authorization: Bearer \xff\x00".replace("\0", "\x01"), "Content-Length: 2"], b"4"),
        (["Authorization: Basic YTpi", "Authorization: Bearer", "Content-Length: 2"], b"4"),
        (["Cookie: " + "a=b;" * 2000, "X-Forwarded-For: 127.0.0.1", "Content-Length: 2"], b"4"),
        (["Upgrade: websocket", "Connection: Upgrade", "Content-Length: 2"], b"4"),
    ],
    ids=range(11),
)
def test_contradictory_headers(service: Running, lines: list[str], statuses: bytes) -> None:
    with service.connect() as connection:
        head = f"POST /v1/audit HTTP/1.1\r\nHost: 127.0.0.1:{service.port}\r\nConnection: close\r\n"
        connection.sendall((head + "\r\n".join(lines) + "\r\n\r\n{}").encode("latin-1"))
        received = answered(connection)
    assert received.startswith(b"HTTP/1.1 " + statuses), received[:300]
    assert len(received) < 2_000


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "HEAD", "BREW"])
@pytest.mark.parametrize(
    "path", ["/v1/audit", "/v1/audit/batch", "/../../etc/passwd", "/%2e%2e/%00", "//", "/v1/audit/../audit"]
)
def test_other_methods_and_paths_are_refused(service: Running, method: str, path: str) -> None:
    reply = service.ask(path, method=method)
    assert reply.status in (400, 404, 405), reply.body[:300]
    assert len(reply.body) < 500


def answered(connection: socket.socket) -> bytes:
    """Return the bytes that arrive until the service closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            received += part
    return received


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # TLS
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 30_000,
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /v1/audit HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/audit HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /v1/audit HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/audit HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    ],
    ids=range(11),
)
def test_malformed_http_is_answered_or_disconnected(service: Running, raw: bytes) -> None:
    with service.connect() as connection:
        connection.sendall(raw)
        received = answered(connection)
    assert received == b"" or received.startswith((b"HTTP/1.1 4", b"HTTP/1.1 200")), received[:200]


def test_long_bodies_are_refused(service: Running) -> None:
    big = json.dumps({"text": "w1 " * 500_000}).encode()
    assert service.ask("/v1/audit", big).status == 413
    assert service.ask("/v1/audit/batch", b"{}\n" * 2_000_000, Content_Type=LINES).status == 413
    with service.connect() as connection:  # without a length
        connection.sendall(
            service.head("/v1/audit", "Content-Type: application/json", "Transfer-Encoding: chunked")
        )
        for _ in range(100):
            connection.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
        assert connection.recv(1 << 12).startswith(b"HTTP/1.1 413")
    with service.connect() as connection:  # asked first, as curl does
        head = ("Content-Type: application/json", f"Content-Length: {len(big)}", "Expect: 100-continue")
        connection.sendall(service.head("/v1/audit", *head))
        assert answered(connection).startswith(b"HTTP/1.1 413")
    with service.connect() as connection:
        head = ("Content-Type: application/json", "Content-Length: 999999999999999999999999")
        connection.sendall(service.head("/v1/audit", *head))
        assert answered(connection).startswith((b"HTTP/1.1 413", b"HTTP/1.1 400"))


def test_a_slow_body_is_refused(service: Running) -> None:
    head = service.head("/v1/audit", "Content-Type: application/json", "Content-Length: 100000")
    end = time.monotonic() + PATIENCE
    with service.connect() as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(head)
            while time.monotonic() < end:  # until the service closes the connection
                time.sleep(SECONDS / 10)
                connection.sendall(b" ")
        assert answered(connection).startswith(b"HTTP/1.1 408")


def test_a_batch_that_stops_arriving_is_ended(service: Running) -> None:
    with service.connect() as connection:
        head = service.head("/v1/audit/batch", f"Content-Type: {LINES}", "Content-Length: 500")
        connection.sendall(head + b'{"text": "w1"}\n')
        received = answered(connection)
    assert b'"line": 0, "status": 200' in received
    assert b'"status": 408' in received


def test_other_clients_are_served_beside_slow_ones(service: Running) -> None:
    connections = [service.connect() for _ in range(30)]
    try:
        for connection in connections:
            connection.sendall(b"POST /v1/audit HTTP/1.1\r\nHost: a\r\n")
        assert service.audit(text="w1").status == 200
    finally:
        for connection in connections:
            connection.close()


def is_idle(service: Running) -> bool:
    return b"\niet_requests_at_work 0.0" in service.ask("/metrics").body


def test_clients_that_leave(
    service: Running, another_client: contextlib.AbstractContextManager[object]
) -> None:
    body = json.dumps({"text": TEXT}).encode()
    line = body + b"\n"
    for _ in range(5):
        head = service.head("/v1/audit", "Content-Type: application/json", f"Content-Length: {len(body)}")
        lines = service.head("/v1/audit/batch", f"Content-Type: {LINES}", f"Content-Length: {len(line) * 50}")
        for sent in (head, head + body[:100], head + body, lines + line * 3, lines + line * 50):
            connection = service.connect()
            connection.sendall(sent)
            linger = struct.pack("ii", 1, 0)  # with a reset, in the middle of it
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            connection.close()
    with another_client:
        service.wait_until(lambda: is_idle(service))
    assert service.ask("/healthz").status == 200


def test_a_client_that_never_reads(
    service: Running, another_client: contextlib.AbstractContextManager[object]
) -> None:
    def ended() -> int:
        return service.log_text.count(" POST /v1/audit/batch ")

    count = ended()
    line = json.dumps({"text": TEXT}).encode() + b"\n"
    with service.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(
            service.head("/v1/audit/batch", f"Content-Type: {LINES}", f"Content-Length: {len(line) * 900}")
        )
        connection.sendall(line * 900)
        for _ in range(5):
            assert service.audit(text="w1").status == 200
    service.wait_until(lambda: ended() > count)
    with another_client:
        service.wait_until(lambda: is_idle(service))
    assert service.ask("/healthz").status == 200


def test_requests_beyond_the_share_of_a_client_are_refused(service: Running, folder: pathlib.Path) -> None:
    greedy = Client(service.port, add_token(folder / "tokens", "bob"))
    head = greedy.head("/v1/audit", "Content-Type: application/json", "Content-Length: 100")

    def refused() -> bool:
        with contextlib.ExitStack() as connections:
            for _ in range(LIMITS["per_client"]):
                connections.enter_context(greedy.connect()).sendall(head)
            reply = greedy.audit(text="w1")
        if reply.status == 200:  # it came when the first of the others had been cut off
            return False
        assert (reply.status, reply.headers["retry-after"]) == (429, "1")
        assert "bob: 6 requests at once" in reply.json["error"]
        return True

    service.wait_until(refused)
    service.wait_until(lambda: greedy.audit(text="w1").status == 200)
