"""LiteLLM's proxy with our hook: every request that reaches the engine names the agent of its key."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.conditions import posix
from tests.support.litellm import proxy
from tests.support.service import Client, Upstream, on_a_port

pytestmark = posix
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "What now?"}]}
BOSS = {"vllm_xargs": {"iet_agent": "boss"}}
PLANNER = {"iet_agent": "planner"}
TOOL = {"type": "object", "properties": {"vllm_xargs": {"type": "string"}}}


@pytest.fixture(scope="module")
def upstream() -> Upstream:
    return Upstream()


@pytest.fixture(scope="module")
def gateway(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("litellm")
    keys = folder / "keys.txt"
    keys.write_text(f"{hashlib.sha256(b'sk-planner').hexdigest()} planner\n")
    with on_a_port(upstream) as engine, proxy(folder, f"http://127.0.0.1:{engine}", keys) as port:
        yield Client(port, "sk-planner")


@pytest.fixture(autouse=True)
def nothing_yet(upstream: Upstream) -> None:
    upstream.received.clear()


@pytest.mark.parametrize(
    ("path", "request_"),
    [
        ("/v1/chat/completions", CHAT),
        ("/chat/completions", CHAT),
        ("/v1/completions", {"model": "tiny", "prompt": "What now?"}),
        ("/v1/chat/completions", {**CHAT, "vllm_xargs": PLANNER}),
        ("/v1/chat/completions", {**CHAT, "extra_body": {"vllm_xargs": PLANNER, "top_k": 7}}),
        ("/v1/chat/completions", {**CHAT, "additional_drop_params": ["vllm_xargs"]}),
        ("/v1/chat/completions", {**CHAT, "additional_drop_params": ["extra_body"]}),
        ("/v1/chat/completions", {**CHAT, "extra_body": {"additional_drop_params": ["vllm_xargs"]}}),
        ("/v1/chat/completions", {**CHAT, "drop_params": True}),
        ("/v1/chat/completions", {**CHAT, "allowed_openai_params": ["vllm_xargs"]}),
        ("/v1/chat/completions", {**CHAT, "metadata": BOSS, "litellm_metadata": BOSS}),
        ("/v1/chat/completions", {**CHAT, "extra_body": {"extra_body": BOSS}}),
        ("/v1/chat/completions", {**CHAT, "fallbacks": [{"model": "tiny", **BOSS}]}),
        ("/v1/chat/completions", {**CHAT, "model": "absent", "fallbacks": [{"model": "tiny", **BOSS}]}),
        (
            "/v1/chat/completions",
            {**CHAT, "model": "absent", "fallbacks": [{"model": "tiny", "extra_body": BOSS}]},
        ),
        (
            "/v1/chat/completions",
            {**CHAT, "mock_testing_fallbacks": True, "fallbacks": [{"model": "tiny", **BOSS}]},
        ),
        (
            "/v1/chat/completions",
            {**CHAT, "tools": [{"type": "function", "function": {"name": "f", "parameters": TOOL}}]},
        ),
        ("/engines/tiny/chat/completions", CHAT),
    ],
    ids=range(18),
)
def test_requests_to_the_engine_name_the_agent_of_the_key(
    gateway: Client, upstream: Upstream, path: str, request_: dict[str, Any]
) -> None:
    reply = gateway.ask(path, request_)
    if request_.get("model") != "absent" and "mock_testing_fallbacks" not in request_:
        assert reply.status == 200, reply.body
        assert len(upstream.received) == 1
    for method, at, headers, request in upstream.received:
        assert (method, at.rpartition("/")[2]) == ("POST", "completions")
        assert request["vllm_xargs"] == PLANNER
        assert "iet_agent" not in request
        assert "sk-planner" not in headers.get("authorization", "")


def test_a_fallback_cannot_ask_for_a_beam_search(
    gateway: Client, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "status", 500)
    beams = {"model": "tiny", "use_beam_search": True, "top_k": 7}
    assert gateway.ask("/v1/chat/completions", {**CHAT, "fallbacks": [beams]}).status == 500
    requests = [request for *_, request in upstream.received]
    assert [request for request in requests if request.get("top_k") == 7]
    assert not [request for request in requests if "use_beam_search" in request]


def test_a_session_is_passed_on_and_kept(upstream: Upstream, tmp_path: pathlib.Path) -> None:
    keys, sessions_file = tmp_path / "keys.txt", tmp_path / "sessions.txt"
    keys.write_text(f"{hashlib.sha256(b'sk-planner').hexdigest()} planner\n")
    with (
        on_a_port(upstream) as engine,
        proxy(tmp_path, f"http://127.0.0.1:{engine}", keys, sessions=sessions_file) as port,
    ):
        client, named = Client(port, "sk-planner"), {**PLANNER, "iet_session": "run-7"}
        for fields in ({"vllm_xargs": named}, {"extra_body": {"vllm_xargs": {"iet_session": "run-7"}}}):
            assert client.ask("/v1/chat/completions", {**CHAT, **fields}).status == 200
            assert upstream.received.pop()[3]["vllm_xargs"] == named
        assert sessions_file.read_text().split() == ["run-7"]
        assert client.ask("/v1/chat/completions", {**CHAT, "vllm_xargs": {"iet_session": 7}}).status == 403
        other_session = {"vllm_xargs": {"iet_session": "run-8"}}
        hidden = {**CHAT, "model": "absent", "fallbacks": [{"model": "tiny", **other_session}]}
        client.ask("/v1/chat/completions", hidden)
        for *_, request in upstream.received:
            if request is not None:  # LiteLLM may look whether the engine is there
                assert request["vllm_xargs"].get("iet_session") in (None, *sessions_file.read_text().split())


def test_other_arguments_stay(gateway: Client, upstream: Upstream) -> None:
    fields = {**CHAT, "temperature": 0.7, "top_k": 5, "vllm_xargs": {"session_id": "7"}}
    assert gateway.ask("/v1/chat/completions", fields).status == 200
    request = upstream.received[0][3]
    assert (request["temperature"], request["top_k"]) == (0.7, 5)
    assert request["vllm_xargs"] == {"session_id": "7", **PLANNER}


@pytest.mark.parametrize(
    "lie",
    [
        BOSS,
        {"vllm_xargs": {"iet_unmarked": True}},
        {"vllm_xargs": {**PLANNER, "iet_key": "00"}},
        {"vllm_xargs": "iet_agent"},
        {"vllm_xargs": {"iet_session": "run-7"}},  # the gateway has no list of sessions
        {"extra_body": BOSS},
        {"extra_body": {"vllm_xargs": {"iet_unmarked": True}}, "vllm_xargs": PLANNER},
    ],
    ids=range(7),
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_false_claim_is_refused(
    gateway: Client, upstream: Upstream, lie: dict[str, Any], stream: bool
) -> None:
    for path, fields in (
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"model": "tiny", "prompt": "a"}),
    ):
        reply = gateway.ask(path, {**fields, **lie, "stream": stream})
        assert reply.status == 403, reply.body
        assert b"expected" in reply.body
    assert upstream.received == []


@pytest.mark.parametrize(
    "path",
    [
        "/vllm/v1/chat/completions",
        "/vllm/v1/completions",
        "/vllm/inference/v1/generate",
        "/openai/chat/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/audio/speech",
        "/v1/images/generations",
        "/v1beta/models/tiny:generateContent",
    ],
)
def test_routes_that_lose_the_agent_are_closed(gateway: Client, upstream: Upstream, path: str) -> None:
    fields = {
        **CHAT,
        "input": "a",
        "prompt": "a",
        "max_tokens": 5,
        "contents": [{"parts": [{"text": "a"}]}],
        **BOSS,
    }
    reply = gateway.ask(path, fields)
    assert reply.status >= 400, reply.body
    assert upstream.received == []


def test_unknown_keys_are_refused(gateway: Client, upstream: Upstream) -> None:
    for key in (None, "", "sk-other", hashlib.sha256(b"sk-planner").hexdigest()):
        assert Client(gateway.port, key).ask("/v1/chat/completions", CHAT).status in (401, 403)
    assert upstream.received == []
