"""The example of a custom gateway: the requests that it passes on, and its answer if the engine is gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import runpy
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from iet.service.credentials import add_token
from tests.support.service import ROOT, Client, on_a_port
from tests.support.waiting import wait_until

pytest.importorskip("httpx", reason="httpx is not installed")

PATH = "/v1/chat/completions"


class Engine:
    """Answers at once, but for requests of the model `slow`: not before `go`, or before the client goes."""

    def __init__(self) -> None:
        self.asked, self.waiting, self.left, self.go = list[tuple[str, str, str]](), 0, 0, False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.asked.append((scope["method"], scope["path"], scope["query_string"].decode()))
        if body and json.loads(body)["model"] == "slow":
            self.waiting += 1
            leaving = asyncio.ensure_future(receive())
            while not self.go and not leaving.done():
                await asyncio.sleep(0.01)
            self.left += leaving.done()
            leaving.cancel()
        headers = [(b"content-type", b"application/json"), (b"retry-after", b"7"), (b"x-engine", b"1")]
        await send({"type": "http.response.start", "status": 429, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})


@pytest.fixture
def engine() -> Engine:
    return Engine()


def of_engine(port: int, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[str]]:
    """The example before an engine, and the keys of two agents."""
    keys = [add_token(folder / "keys.txt", name) for name in ("planner", "critic")]
    monkeypatch.setenv("KEYS", str(folder / "keys.txt"))
    monkeypatch.setenv("ENGINE_URL", f"http://127.0.0.1:{port}")
    return runpy.run_path(str(ROOT / "examples" / "serving" / "gateway.py"))["app"], keys


@pytest.fixture
def agents(
    engine: Engine, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Client, Client]]:
    with on_a_port(engine) as port:
        app, keys = of_engine(port, tmp_path, monkeypatch)
        with on_a_port(app) as gateway_port:
            yield Client(gateway_port, keys[0]), Client(gateway_port, keys[1])
            engine.go = True


def start_slow_request(agent: Client, connections: contextlib.ExitStack) -> socket.socket:
    """Ask for what the engine does not answer yet."""
    body = b'{"model": "slow"}'
    connection = connections.enter_context(agent.connect())
    head = agent.head(PATH, "Content-Type: application/json", f"Content-Length: {len(body)}")
    connection.sendall(head + body)
    return connection


def test_queries_methods_and_when_to_come_back_are_passed_on(
    agents: tuple[Client, Client], engine: Engine
) -> None:
    agent, _ = agents
    for method, path, body in (
        ("GET", "/v1/models", None),
        ("HEAD", "/v1/models", None),
        ("POST", PATH, {"model": "m"}),
        ("GET", "//engine.example/v1/models", None),
    ):
        reply = agent.ask(f"{path}?a=b%20c&d", body, method=method)
        assert (reply.status, reply.headers["retry-after"]) == (429, "7")
        assert reply.headers["content-type"] == "application/json"
        assert "x-engine" not in reply.headers
        assert engine.asked.pop() == (method, path, "a=b%20c&d")


def test_other_agents_do_not_wait_for_one_with_many_requests(
    agents: tuple[Client, Client], engine: Engine
) -> None:
    many = 120
    with contextlib.ExitStack() as connections:
        for _ in range(many):
            start_slow_request(agents[0], connections)
        wait_until(lambda: engine.waiting == many)
        assert agents[1].ask(PATH, {"model": "m"}).status == 429
        engine.go = True


def test_a_disconnect_is_passed_on_to_the_engine(agents: tuple[Client, Client], engine: Engine) -> None:
    with contextlib.ExitStack() as connections:
        start_slow_request(agents[0], connections)
        wait_until(lambda: engine.waiting == 1)
        assert engine.left == 0
    wait_until(lambda: engine.left == 1)


def test_a_missing_engine_is_reported_in_the_form_of_its_errors(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    app, keys = of_engine(port, tmp_path, monkeypatch)
    with on_a_port(app) as gateway_port:
        reply = Client(gateway_port, keys[0]).ask(PATH, {"model": "m"})
    assert reply.status == 502
    assert reply.json["error"]["message"].startswith("the engine does not answer")
