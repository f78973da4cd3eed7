"""What the heads of requests to `iet serve` say that contradicts itself, or that nobody would read."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.support.conditions import posix
from tests.support.service import LINES, Running, serving

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


def test_a_path_that_nearly_is_one_leads_nowhere(service: Running) -> None:
    for path, body in (("/v1/audit/", {"text": "w1"}), ("/healthz/", None), ("/metrics/", None)):
        reply = service.ask(path, body, Host="evil.example")
        assert (reply.status, reply.headers.get("location")) == (404, None)


def test_a_body_of_two_lengths_is_refused_and_its_connection_closed(service: Running) -> None:
    inner = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
    head = service.head(
        "/v1/audit", "Content-Type: application/json", "Content-Length: 17", "Transfer-Encoding: chunked"
    )
    with service.connect() as connection:
        connection.sendall(head + b"2\r\n{}\r\n0\r\n\r\n" + inner)
        said = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert said.startswith(b"HTTP/1.1 400")
    assert b"content-length: got one beside transfer-encoding" in said
    assert said.count(b"HTTP/1.1") == 1
