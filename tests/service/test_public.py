"""`iet serve --public`: one of three results for anyone, and nothing else."""

from __future__ import annotations

import ipaddress
import json
import math
import pathlib
import random
import urllib.parse
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

import iet
from iet.audit.attribution import evidence_of
from iet.errors import InputError
from iet.service import detection, server
from tests.support.browser import chromium, tab_of
from tests.support.conditions import posix
from tests.support.service import JSON, Running, serving
from tests.support.texts import IDS, TEXT, reader, spell

PLAIN, FORM = "text/plain", "application/x-www-form-urlencoded"
UNMARKED = spell(random.Random(1).choices(range(1, 599), k=400))
SHORT = spell(IDS[:199])
ANSWER = {"result", "meaning", "tokens", "min_tokens"}


@pytest.fixture(scope="module")
def service(folder: pathlib.Path, registry: pathlib.Path) -> Iterator[Running]:
    with serving(folder, registry, "--limit", "rate=100000", "--limit", "body_bytes=9000", public=True) as it:
        yield it


def test_results_and_nothing_else(service: Running) -> None:
    for text, result in ((TEXT, "found"), (UNMARKED, "not_found"), ("w1 w2 " * 150, "unclear")):
        replies = [service.ask("/v1/detect", {"text": text}) for _ in range(2)]
        assert replies[0].status == 200
        assert replies[0].body == replies[1].body
        assert replies[0].json["result"] == result
        assert set(replies[0].json) == ANSWER
        assert replies[0].json["tokens"] == len(text.split())
        schema = service.ask("/openapi.json").json["components"]["schemas"]["Answer"]
        jsonschema.validate(replies[0].json, {**schema, "additionalProperties": False})
        page = service.ask("/v1/detect", {"text": text}, Accept="text/html").body.decode()
        assert f"<strong>Mark: {result.replace('_', ' ')}</strong>" in page
        for name in ("planner", "critic", "writer", "log_p", "segment", "w599"):
            assert name not in page + replies[0].body.decode() + service.log_text


def test_three_types_of_a_question(service: Running) -> None:
    text = TEXT[:3000].replace(" ", "\n", 50)
    lines = urllib.parse.urlencode({"text": text.replace("\n", "\r\n")}).encode()
    expected = service.ask("/v1/detect", {"text": text})
    for media, body in ((f"{PLAIN}; charset=utf-8", text.encode()), (FORM, lines)):
        reply = service.ask("/v1/detect", body, Content_Type=media)
        assert (reply.status, reply.headers["content-type"]) == (200, JSON)
        assert reply.body == expected.body
        assert reply.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("body", "media", "status", "message"),
    [
        ({"text": SHORT}, JSON, 422, "text: got 199 tokens, expected at least 200"),
        (b"", PLAIN, 422, "text: got 0 tokens, expected at least 200"),
        ({"text": 7}, JSON, 422, "text: Input should be a valid string"),
        ({"text": TEXT[:3000], "level": 0.5}, JSON, 422, "level: unknown field"),
        ({"token_ids": IDS}, JSON, 422, "text: Field required"),
        (b"{", JSON, 400, "request: Invalid JSON"),
        (b'{"text": "\\ud800"}', JSON, 400, "request: Invalid JSON"),
        (b"\xff\xfe", PLAIN, 422, "text: expected UTF-8"),
        (b"text=%ff", FORM, 422, "text: expected UTF-8"),
        (b"text=a&text=b", FORM, 422, "in a form the field text alone"),
        (b"", FORM, 422, "in a form the field text alone"),
        (b"level=1", FORM, 422, "in a form the field text alone"),
        (b"x" * 9001, PLAIN, 413, "body: got more than 9,000 bytes, expected at most these"),
        (b"<a/>", "text/xml", 415, "content-type: expected application/json or text/plain or"),
    ],
)
def test_bad_questions_are_refused(
    service: Running, body: Any, media: str, status: int, message: str
) -> None:
    reply = service.ask("/v1/detect", body, Content_Type=media)
    assert reply.status == status, reply.body
    assert message in reply.json["error"]
    page = service.ask("/v1/detect", body, Content_Type=media, Accept="text/html")
    assert (page.status, "The text was not read" in page.body.decode()) == (status, True)
    assert page.headers["content-security-policy"].startswith("default-src 'none'")


def test_other_endpoints_are_closed(service: Running) -> None:
    for path in ("/v1/audit", "/v1/check", "/v1/audit/batch", "/metrics", "/docs", "/detect"):
        for method in ("GET", "POST"):
            reply = service.ask(path, {"text": TEXT} if method == "POST" else None, method=method)
            assert reply.status == 404
    assert service.ask("/v1/detect").status == 405
    assert service.ask("/v1/detect?level=0.5", {"text": TEXT}).status == 422
    assert set(service.ask("/openapi.json").json["paths"]) == {"/healthz", "/v1/detect"}


def test_the_page_loads_nothing(service: Running) -> None:
    reply = service.ask("/")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "form-action 'self'" in reply.headers["content-security-policy"]
    assert "<script" not in reply.body.decode()
    assert "src=" not in reply.body.decode()


@posix
def test_the_page_answers_in_a_browser(service: Running) -> None:
    with chromium() as browser:
        tab, trouble = tab_of(browser), list[str]()
        tab.on("console", lambda message: trouble.append(message.text))
        tab.goto(f"http://127.0.0.1:{service.port}/")
        tab.locator("#text").fill(TEXT)
        tab.get_by_role("button").click()
        tab.get_by_text("Mark: found").wait_for()
        assert trouble == []


@pytest.mark.parametrize("trusted", [True, False])
def test_questions_are_limited_by_address(
    folder: pathlib.Path, registry: pathlib.Path, trusted: bool
) -> None:
    options = ["--limit", "rate=3", "--limit", "total_rate=8"]
    options += ["--trusted-proxy", "127.0.0.1"] if trusted else []
    with serving(folder, registry, *options, public=True) as service:

        def status(address: str) -> int:
            body = SHORT.encode()
            return service.ask("/v1/detect", body, Content_Type=PLAIN, X_Forwarded_For=address).status

        if not trusted:  # the header counts for nothing
            assert [status(f"192.0.2.{i}") for i in range(5)] == [422, 422, 422, 429, 429]
            return
        assert [status("192.0.2.1") for _ in range(4)] == [422, 422, 422, 429]
        assert [status(f"2001:db8::{i}") for i in range(4)] == [422, 422, 422, 429]
        assert status("198.51.100.9, 192.0.2.1") == 429  # the proxy appends the last one
        refused = service.ask("/v1/detect", {"text": "a"}, X_Forwarded_For="192.0.2.1")
        assert 0 < int(refused.headers["retry-after"]) <= 3600
        assert [status(f"192.0.2.{i}") for i in (2, 3, 4)] == [422, 422, 503]
        assert service.ask("/healthz").status == 200
        assert "192.0.2" not in service.log_text


@pytest.mark.parametrize(
    ("proxy", "peers", "strangers"),
    [
        ("127.0.0.1", ["127.0.0.1", "::ffff:127.0.0.1"], ["127.0.0.2", "::ffff:127.0.0.2", "::1"]),
        ("10.0.0.0/8", ["10.1.2.3", "::ffff:10.1.2.3"], ["11.0.0.1", "::ffff:11.0.0.1"]),
        ("fd00::/8", ["fd00::1"], ["fe80::1", "::ffff:127.0.0.1"]),
    ],
)
def test_a_proxy_is_trusted_on_a_socket_of_both_versions(
    proxy: str, peers: list[str], strangers: list[str]
) -> None:
    networks = [ipaddress.ip_network(form) for form in server.proxy_forms(proxy)]

    def trusted(peer: str) -> bool:
        return any(ipaddress.ip_address(peer) in network for network in networks)

    assert all(map(trusted, peers))
    assert not any(map(trusted, strangers))


def test_results_follow_from_the_p_value_of_an_audit() -> None:
    auditor, results = reader(), set[str]()
    unmarked = UNMARKED.split()
    for marked in range(0, 150, 3):
        text = " ".join([*spell(IDS[:marked]).split(), *unmarked[marked:]])
        log_p = auditor.audit(text).log_p
        levels = {"found": detection.FOUND_LEVEL, "unclear": detection.UNCLEAR_LEVEL}
        expected = next((name for name, level in levels.items() if log_p <= math.log(level)), "not_found")
        assert detection.detect(auditor, text)["result"] == expected
        results.add(expected)
    assert results == {"found", "unclear", "not_found"}


@pytest.mark.parametrize("family", ["fourier", "gumbel"])
def test_evidence_without_decoding_is_that_of_a_report(family: str) -> None:
    registry = iet.Registry.create(None, tokenizer="iet:demo", scheme=iet.Scheme(family=family))
    registry.add_many(["planner", "critic"])
    auditor = iet.Auditor(registry)
    text = " ".join(f"{word} reads the plan and {word}s it." for word in TEXT.split()[:60])
    report = auditor.audit(text)
    evidence, counted = evidence_of(auditor.plan, text, auditor.plan.encode([text])[0])
    assert dict(zip(auditor.agents, evidence.tolist(), strict=True)) == report.evidence
    assert counted == report.scored - report.repeated


def test_a_short_text_is_refused_before_it_is_scored() -> None:
    with pytest.raises(InputError, match=r"^text: got 199 tokens, expected at least 200$"):
        detection.answer(reader(), json.dumps({"text": SHORT}).encode(), JSON)
