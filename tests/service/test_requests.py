"""Headers of requests to `iet serve`."""

from __future__ import annotations

import pytest

from tests.support.service import fastapi

from iet.service import requests  # isort: skip - needs the extra


def request_with(
    *headers: tuple[bytes, bytes], server: tuple[str, int] = ("127.0.0.1", 80)
) -> fastapi.Request:
    return fastapi.Request({"type": "http", "headers": list(headers), "server": server})


def test_the_address_of_the_server_is_a_name_of_this_machine() -> None:
    for address, hosts, foreign in (
        ("127.0.0.2", ["127.0.0.2", "127.0.0.2:80", "localhost:80"], ["127.0.0.3:80", "127.0.0.2.evil:80"]),
        ("::1", ["[::1]", "[::1]:80"], ["[::2]:80", "evil.example", ""]),
    ):
        for host in hosts + foreign:
            request = request_with((b"host", host.encode()), server=(address, 80))
            assert requests.is_for_this_machine(request) is (host in hosts), host
    assert not requests.is_for_this_machine(request_with())
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
    assert requests.prefers_html(request_with((b"accept", accept.encode()))) is page
    parts = [(b"accept", part.encode()) for part in accept.split(",")]
    assert requests.prefers_html(request_with(*parts)) is page
