"""Headers, queries and paths of requests to `iet serve`, contradictory and unexpected ones included."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.support.conditions import posix
from tests.support.service import LINES, Running, fastapi, serving

from iet.service import requests  # isort: skip - needs the extra

pytestmark = posix
CLAIM = {"messages": [{"role": "assistant", "name": "planner", "content": "w1 w2"}]}


@pytest.fixture(scope="module")
def service(folder: pathlib.Path, registry: pathlib.Path) -> Iterator[Running]:
    with serving(folder, registry) as running:
        yield running


def test_options_in_a_query_beside_json_are_refused(service: Running) -> None:
    for path, body, media in (
        ("/v1/audit", {"text": "w1"}, "application/json"),
        ("/v1/check", CLAIM, "application/json"),
        ("/v1/audit/batch", b'{"text": "w1"}\n', LINES),
    ):
        assert service.ask(path, body, Content_Type=media).status == 200
        for query in ("level=0.5", "level=abc", "x"):
            reply = service.ask(f"{path}?{query}", body, Content_Type=media)
            assert (reply.status, reply.json["error"].partition(":")[0]) == (422, "query"), path


def test_a_trailing_slash_is_not_redirected(service: Running) -> None:
    for path, body in (("/v1/audit/", {"text": "w1"}), ("/healthz/", None), ("/metrics/", None)):
        reply = service.ask(path, body, Host="evil.example")
        assert (reply.status, reply.headers.get("location")) == (404, None)


def test_a_body_with_two_lengths_closes_the_connection(service: Running) -> None:
    inner = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
    head = service.head(
        "/v1/audit", "Content-Type: application/json", "Content-Length: 17", "Transfer-Encoding: chunked"
    )
    with service.connect() as connection:
        connection.sendall(head + b"2\r\n{}\r\n0\r\n\r\n" + inner)
        received = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert received.startswith(b"HTTP/1.1 400")
    assert b"content-length: got one beside transfer-encoding" in received
    assert received.count(b"HTTP/1.1") == 1


def asked(*headers: tuple[bytes, bytes], server: tuple[str, int] = ("127.0.0.1", 80)) -> fastapi.Request:
    return fastapi.Request({"type": "http", "headers": list(headers), "server": server})


def test_the_address_of_the_server_is_a_name_of_this_machine() -> None:
    for address, hosts, foreign in (
        ("127.0.0.2", ["127.0.0.2", "127.0.0.2:80", "localhost:80"], ["127.0.0.3:80", "127.0.0.2.evil:80"]),
        ("::1", ["[::1]", "[::1]:80"], ["[::2]:80", "evil.example", ""]),
    ):
        for host in hosts + foreign:
            request = asked((b"host", host.encode()), server=(address, 80))
            assert requests.is_for_this_machine(request) is (host in hosts), host
    assert not requests.is_for_this_machine(asked())
    assert not requests.is_for_this_machine(fastapi.Request({"type": "http", "headers": [(b"host", b":80")]}))


@pytest.mark.parametrize(
    ("accept", "page"),
    [
        ("text/html", True),
        ("application/json", False),
        ("text/html;level=1;q=0.5, application/json;q=0.9", False),
        ("text/html; q=0.9, application/json ; charset=utf-8 ; Q = 0.1", True),
        ("text/*", True),
        ("text/*;q=0.5, application/*;q=0.6", False),
        ("*/*", False),
        ("text/html;q=0.5, */*", False),
        ("application/json;q=0.5, */*;q=0.8", True),
        ("text/html;q=0, text/*, application/json;q=0.5", False),
        ("text/html;q=much", False),
        ("", False),
    ],
)
def test_accept_decides_between_html_and_json(accept: str, page: bool) -> None:
    assert requests.prefers_html(asked((b"accept", accept.encode()))) is page
    parts = [(b"accept", part.encode()) for part in accept.split(",")]
    assert requests.prefers_html(asked(*parts)) is page
