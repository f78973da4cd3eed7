"""Hosted models with the gateway: marked answers of the authenticated agent, streams, errors, settings."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import iet
from iet.service import hosted
from iet.service.credentials import add_token
from tests.support.chat_server import Server, serving
from tests.support.litellm import proxy
from tests.support.service import Client, on_a_port
from tests.support.small_writer import SmallWriter, words
from tests.support.waiting import wait_until

ASK = {"model": "writer", "messages": [{"role": "user", "content": "Write."}], "max_tokens": 200}


def writer() -> SmallWriter:
    law = np.random.default_rng(7).dirichlet([0.3] * 200, 200)
    return SmallWriter(words(200), np.hstack([law, np.zeros((200, 1))]))


@contextlib.contextmanager
def served(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, reply: Any = None, **settings: Any
) -> Iterator[tuple[Client, iet.Registry, Server]]:
    """Run the gateway before a small writer; yield a client of critic, the registry and the writer."""
    registry = iet.Registry.create(
        folder / "team.json", tokenizer="iet:demo", scheme=iet.Scheme(family="gumbel")
    )
    registry.add_many(["planner", "critic"])
    token = add_token(folder / "keys.txt", "critic")
    with serving(reply or writer().reply) as server:
        configure(folder, monkeypatch, base_url=server.url, **settings)
        with on_a_port(hosted.gateway()) as port:
            yield Client(port, token), registry, server


def configure(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
    table = {"base_url": "http://127.0.0.1:9", "model": "small", "provider": "vllm", **settings}
    lines = [f"{name} = {json.dumps(value)}" for name, value in table.items()]
    path = folder / "hosted.toml"
    path.write_text('registry = "team.json"\n[models.writer]\n' + "\n".join(lines))
    monkeypatch.setenv("IET_HOSTED", str(path))
    monkeypatch.setenv("IET_GATEWAY_KEYS", str(folder / "keys.txt"))


@pytest.mark.parametrize("mark", ["select", "walk"])
def test_a_client_gets_an_ordinary_answer_with_the_mark_of_its_agent(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    with served(tmp_path, monkeypatch, mark=mark) as (client, registry, server):
        answer = client.ask("/v1/chat/completions", {**ASK, "max_tokens": 600}).json
    text = answer["choices"][0]["message"]["content"]
    assert iet.Auditor(registry, level=1e-4).audit(text).found == ("critic",)
    assert (answer["object"], answer["model"]) == ("chat.completion", "writer")
    assert answer["usage"]["total_tokens"] > 600
    assert all("vllm_xargs" not in request["body"] for request in server.requests)
    assert {request["body"]["model"] for request in server.requests} == {"small"}


def test_a_streamed_answer_comes_in_parts_and_ends_with_its_cost(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path, monkeypatch) as (client, _, _):
        request = {**ASK, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 64}
        reply = client.ask("/v1/chat/completions", request)
    lines = [line for line in reply.body.decode().split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    *parts, last = [json.loads(line.removeprefix("data: ")) for line in lines]
    choices = [part["choices"][0] for part in parts]
    assert len("".join(choice["delta"]["content"] for choice in choices).split()) == 64
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "length"]
    assert choices[0]["delta"]["role"] == "assistant"
    assert last["usage"]["completion_tokens"] == 8 * 64


def test_a_prompt_is_completed_and_streamed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path, monkeypatch) as (client, _, _):
        request = {"model": "writer", "prompt": "Write.", "max_tokens": 20}
        whole = client.ask("/v1/completions", request).json
        parts = client.ask("/v1/completions", {**request, "stream": True}).body.decode()
    assert len(whole["choices"][0]["text"].split()) == 20
    assert parts.count('"text":') == 2


def test_another_agents_name_is_refused_and_a_session_is_used(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IET_GATEWAY_SESSIONS", str(tmp_path / "sessions.txt"))
    with served(tmp_path, monkeypatch, mark="walk") as (client, registry, _):
        refused = client.ask("/v1/chat/completions", {**ASK, **iet.agents.body("planner")})
        answer = client.ask(
            "/v1/chat/completions", {**ASK, **iet.agents.body("critic", session="run-7")}
        ).json
    assert refused.status == 403
    text = answer["choices"][0]["message"]["content"]
    assert iet.Auditor(registry, level=1e-4, sessions=["run-7"]).audit(text).found == ("critic",)
    assert "run-7" in (tmp_path / "sessions.txt").read_text()


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/chat/completions", {**ASK, "tools": [{}]}, 400, "tools: got [{}]"),
        ("/v1/chat/completions", {**ASK, "tools": [{}], "stream": True}, 400, "tools: got [{}]"),
        ("/v1/chat/completions", {**ASK, "model": "x"}, 400, "model: got 'x', expected one of writer"),
        ("/v1/chat/completions", {"model": "writer", "prompt": "x"}, 400, "expected messages"),
        ("/v1/completions", ASK, 400, "expected a prompt"),
        ("/v1/responses", ASK, 404, "expected /v1/chat/completions"),
    ],
)
def test_a_request_that_cannot_be_marked_gets_the_reason(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, path: str, body: Any, status: int, message: str
) -> None:
    with served(tmp_path, monkeypatch) as (client, _, server):
        reply = client.ask(path, body)
    assert (reply.status, message in reply.json["error"]["message"]) == (status, True)
    assert server.requests == []


@pytest.mark.parametrize(("given", "status"), [(401, 502), (422, 422), (404, 404), (500, 502)])
def test_a_refusal_of_the_provider_is_passed_on_unless_it_is_about_its_key(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, given: int, status: int
) -> None:
    with served(tmp_path, monkeypatch, reply=lambda body, attempt: given, retries=0) as (client, _, _):
        reply = client.ask("/v1/chat/completions", ASK)
    assert reply.status == status
    assert f"status {given}" in reply.json["error"]["message"]


def test_a_provider_that_fails_within_a_stream_ends_it_with_an_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = writer()

    def reply(body: dict[str, Any], attempt: int) -> Any:
        return small.reply(body, attempt) if len(body["messages"]) == 1 else 400

    with served(tmp_path, monkeypatch, reply=reply) as (client, _, _):
        events = client.ask("/v1/chat/completions", {**ASK, "stream": True}).body.decode()
    assert '"finish_reason": null' in events
    assert '"code": 400' in events
    assert events.endswith("data: [DONE]\n\n")


def test_a_provider_that_is_away_gives_502_and_one_that_hangs_504(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path, monkeypatch, reply=lambda *_: None, retries=0, timeout=0.2) as (client, _, _):
        assert client.ask("/v1/chat/completions", ASK).status == 504
    configure(tmp_path, monkeypatch, retries=0)
    token = add_token(tmp_path / "keys.txt", "planner")
    with on_a_port(hosted.gateway()) as port:
        assert Client(port, token).ask("/v1/chat/completions", ASK).status == 502


def test_a_rotated_key_is_used_without_a_restart(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path, monkeypatch, mark="walk") as (client, registry, _):
        registry.rotate("critic")
        registry.save()
        text = client.ask("/v1/chat/completions", ASK).json["choices"][0]["message"]["content"]
    scores = iet.score_tokens(registry.open_tokenizer().encode(text).token_ids, registry).mean(axis=0)
    columns = registry.scoring_keys()
    assert columns.names[columns.owners[scores.argmax()]] == "critic"
    assert columns.epochs[scores.argmax()] == 1


def test_a_registry_that_cannot_be_read_gives_503_without_its_path(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path, monkeypatch) as (client, _, _):
        (tmp_path / "team.json").unlink()
        reply = client.ask("/v1/chat/completions", ASK)
    assert reply.status == 503
    assert str(tmp_path) not in reply.body.decode()


def test_the_providers_key_is_in_no_answer(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROVIDER_KEY", "sk-hidden")
    settings = {"api_key_env": "PROVIDER_KEY", "retries": 0}
    with served(tmp_path, monkeypatch, reply=lambda body, attempt: 400, **settings) as (client, _, _):
        reply = client.ask("/v1/chat/completions", ASK)
    assert "refused with Bearer ***" in reply.json["error"]["message"]


class Waiting:
    """A provider that answers nothing, and counts the requests whose client has left."""

    def __init__(self) -> None:
        self.asked, self.left = 0, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        self.asked += 1
        assert (await receive())["type"] == "http.disconnect"
        self.left += 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_stops_the_request_to_the_provider(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    provider = Waiting()
    registry = iet.Registry.create(tmp_path / "team.json", tokenizer="iet:demo")
    registry.add("critic")
    token = add_token(tmp_path / "keys.txt", "critic")
    with on_a_port(provider) as upstream:
        configure(tmp_path, monkeypatch, base_url=f"http://127.0.0.1:{upstream}")
        with on_a_port(hosted.gateway()) as port, pytest.raises(TimeoutError):
            Client(port, token).ask("/v1/chat/completions", {**ASK, "stream": stream}, timeout=1.0)
        wait_until(lambda: provider.left == provider.asked, lambda: (provider.asked, provider.left))
    assert provider.left > 0


def test_models_are_listed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path, monkeypatch) as (client, _, _):
        assert client.ask("/v1/models").json["data"] == [{"id": "writer", "object": "model"}]
        assert Client(client.port).ask("/v1/models").status == 401


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mark": "x"}, "models.writer: mark: got 'x'"),
        ({"temperature": 1}, "models.writer: temperature: no such setting, expected some of api_key_env"),
        ({"api_key_env": "IET_NOT_SET"}, "models.writer: api_key_env: the variable 'IET_NOT_SET' is not set"),
        ({"provider": "anthropic", "mark": "walk"}, "expected 'select' with anthropic"),
    ],
)
def test_a_wrong_configuration_is_refused_at_the_start(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], message: str
) -> None:
    iet.Registry.create(tmp_path / "team.json", tokenizer="iet:demo").add("critic")
    configure(tmp_path, monkeypatch, **settings)
    with pytest.raises(iet.InputError, match=message):
        hosted.upstream()


def test_a_configuration_that_is_missing_or_no_toml_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("IET_HOSTED", raising=False)
    with pytest.raises(iet.InputError, match="IET_HOSTED: got none"):
        hosted.upstream()
    for content, message in (("[", "expected TOML"), ("x = 1", "expected registry, a path")):
        (tmp_path / "hosted.toml").write_text(content)
        with pytest.raises(iet.InputError, match=message):
            hosted.application(tmp_path / "hosted.toml")


def test_litellms_proxy_marks_a_hosted_model_by_the_same_hook(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path, monkeypatch, mark="walk") as (client, registry, _):
        configuration = tmp_path / "hosted.toml"
        configuration.write_text(configuration.read_text().replace("[models.writer]", "[models.tiny]"))
        with (
            on_a_port(hosted.upstream()) as port,
            proxy(tmp_path, f"http://127.0.0.1:{port}", tmp_path / "keys.txt") as gateway,
        ):
            asked = {**ASK, "model": "tiny"}
            answer = Client(gateway, client.token).ask("/v1/chat/completions", asked).json
            streamed = Client(gateway, client.token).ask("/v1/chat/completions", {**asked, "stream": True})
    text = answer["choices"][0]["message"]["content"]
    assert iet.Auditor(registry, level=1e-4).audit(text).found == ("critic",)
    assert streamed.body.decode().rstrip().endswith("data: [DONE]")
