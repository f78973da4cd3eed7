"""The gateway in front of an engine, over real sockets: which requests it passes on, and as which agent."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import io
import json
import math
import os
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from iet import agents
from iet.errors import InputError
from iet.service import gateway
from iet.service.gateway import ENDPOINTS, Gateway, SessionList
from iet.service.limits import RequestRefused
from tests.support.conditions import posix
from tests.support.service import Client, Upstream, on_a_port
from tests.support.waiting import wait_until

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "What now?"}]}
KEYS = {"sk-planner": "planner", "sk-critic": "critic", "sk-other": "critic"}
LIES: dict[str, list[dict[str, Any]]] = {
    "vllm": [
        {"vllm_xargs": {"iet_agent": "critic"}},
        {"vllm_xargs": {"iet_agent": "planner "}},
        {"vllm_xargs": {"iet_agent": ""}},
        {"vllm_xargs": {"iet_agent": None}},
        {"vllm_xargs": {"iet_unmarked": True}},
        {"vllm_xargs": {"iet_agent": "planner", "iet_unmarked": "yes"}},
        {"vllm_xargs": {"iet_key": "00"}},
        {"vllm_xargs": {"iet_agent": "planner", "iet_session": "run-7"}},  # there is no list of them
    ],
    "sglang": [
        {"custom_params": {"iet_agent": "critic"}},
        {"custom_logit_processor": "{}"},
        {"watermark": {"enabled": True, "key": 7}},
        {**agents.body("planner", engine="sglang"), "custom_logit_processor": "x"},
    ],
}


@pytest.fixture
def keys(tmp_path: pathlib.Path) -> pathlib.Path:
    lines = (f"{hashlib.sha256(key.encode()).hexdigest()} {agent}" for key, agent in KEYS.items())
    path = tmp_path / "keys.txt"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(params=["vllm", "sglang"])
def engine(request: pytest.FixtureRequest) -> agents.Engine:
    return request.param


@pytest.fixture
def upstream() -> Upstream:
    return Upstream()


@pytest.fixture
def port(keys: pathlib.Path, engine: agents.Engine, upstream: Upstream) -> Iterator[int]:
    with on_a_port(Gateway(upstream, keys, engine=engine, also=("/login",))) as port:
        yield port


def test_the_key_decides_the_agent(port: int, engine: agents.Engine, upstream: Upstream) -> None:
    for key, agent in KEYS.items():
        for path in ENDPOINTS[engine]:
            reply = Client(port, key).ask(path, {**CHAT, "top_k": 5})
            assert reply.status == 200
            method, at, headers, request = upstream.received.pop()
            assert (method, at) == ("POST", path)
            assert request == {**CHAT, "top_k": 5, **agents.body(agent, engine=engine)}
            assert int(headers["content-length"]) == len(json.dumps(request).encode())


def test_honest_claims_and_other_arguments_are_passed_on(
    port: int, engine: agents.Engine, upstream: Upstream
) -> None:
    field = "vllm_xargs" if engine == "vllm" else "custom_params"
    honest = {**CHAT, **agents.body("planner", engine=engine)}
    honest[field] = {**honest[field], "session_id": "7"}
    assert Client(port, "sk-planner").ask("/v1/chat/completions", honest).status == 200
    assert upstream.received.pop()[3] == honest


def test_a_false_claim_is_refused(port: int, engine: agents.Engine, upstream: Upstream) -> None:
    for lie in LIES[engine]:
        reply = Client(port, "sk-planner").ask("/v1/chat/completions", {**CHAT, **lie})
        assert reply.status == 403, lie
        assert "expected" in reply.json["error"]["message"]
    assert upstream.received == []


def test_a_duplicate_field_has_one_meaning(port: int, engine: agents.Engine, upstream: Upstream) -> None:
    field = "vllm_xargs" if engine == "vllm" else "custom_params"
    boss, planner = (json.dumps({"iet_agent": name}) for name in ("boss", "planner"))
    twice = f'{{"model": "m", "{field}": {boss}, "{field}": {planner}}}'.encode()
    assert Client(port, "sk-planner").ask("/v1/completions", twice).status == 200
    assert "boss" not in json.dumps(upstream.received.pop()[3])
    twice = f'{{"model": "m", "{field}": {planner}, "{field}": {boss}}}'.encode()
    assert Client(port, "sk-planner").ask("/v1/completions", twice).status == 403


def test_other_paths_methods_and_bodies_are_refused(
    port: int, engine: agents.Engine, upstream: Upstream
) -> None:
    client = Client(port, "sk-planner")
    for path in (
        "/generate",
        "/inference/v1/generate",
        "/v1//chat/completions",
        "/v1/chat/completions/",
        "/v1/files",
    ):
        assert client.ask(path, CHAT).status == 404
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        assert client.ask("/v1/chat/completions", CHAT, method=method).status == 404
    for body in (
        b"",
        b"[]",
        b"null",
        b"{",
        b"[" * 100_000,
        b'{"temperature": NaN}',
        b'{"top_p": 1e999}',
        '{"prompt": "a"}'.encode("utf-16"),
        b"\xff",
    ):
        assert client.ask("/v1/chat/completions", body).status == 400
    assert client.ask("/v1/chat/completions", b"{}", Content_Encoding="gzip").status == 415
    for token in (None, "sk-nobody", hashlib.sha256(b"sk-planner").hexdigest()):
        assert Client(port, token).ask("/v1/chat/completions", CHAT).status == 401
        assert Client(port, token).ask("/v1/models").status == 401
    assert upstream.received == []
    assert client.ask("/v1/models").status == 200
    assert Client(port).ask("/login", {"own": True}).status == 200
    assert [(method, path) for method, path, *_ in upstream.received] == [
        ("GET", "/v1/models"),
        ("POST", "/login"),
    ]


@pytest.mark.parametrize(
    "content",
    [
        b"1.5," * 300_000,
        b"[]," * 400_000,
        b'{"a":1},' * 200_000,
        b'"","\\\\",' * 200_000,
        b'"",' * 1_200_000,
        b'"\\"","\\"",' * 260_000,
        b"2.2250738585072011360574097967091319e-308," * 30_000,
        b"9" * 4_000 + b"," * 300 + b" " * (1 << 20),
    ],
    ids=range(8),
)
def test_a_body_that_takes_long_to_parse_is_refused(
    port: int, engine: agents.Engine, upstream: Upstream, content: bytes
) -> None:
    client, body = Client(port, "sk-planner"), '{"prompt": [' + content.decode() + "1]}"
    reply = client.ask("/v1/completions", body.encode())
    message = reply.json["error"]["message"]
    assert (reply.status, "bytes outside of strings, expected at most 1,048,576" in message) == (413, True)
    for encoding in ("utf-16", "utf-16-le"):  # their strings cannot be found
        assert client.ask("/v1/completions", body.encode(encoding)).status in (400, 413)
    assert upstream.received == []


def test_bodies_of_one_agent_leave_memory_for_the_others(
    keys: pathlib.Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "AGENT_BYTES", 3 << 20)
    monkeypatch.setattr(gateway, "ALL_BYTES", 5 << 20)
    app = Gateway(upstream, keys)
    with on_a_port(app) as port, contextlib.ExitStack() as open_ones:
        planner, critic = Client(port, "sk-planner"), Client(port, "sk-critic")

        def begin(client: Client, size: int) -> None:
            connection = open_ones.enter_context(client.connect())
            connection.sendall(client.head("/v1/chat/completions", "Content-Length: 8000000") + b" " * size)

        begin(planner, 3 << 20)
        wait_until(lambda: app._memory._in_use["planner"] == 3 << 20)
        reply = planner.ask("/v1/chat/completions", CHAT)
        assert (
            reply.status,
            "planner: 3,145,728 bytes of requests at once" in reply.json["error"]["message"],
        ) == (
            429,
            True,
        )
        assert critic.ask("/v1/chat/completions", CHAT).status == 200
        begin(critic, 2 << 20)
        wait_until(lambda: app._memory.in_use == 5 << 20)
        assert critic.ask("/v1/chat/completions", CHAT).status == 503
        open_ones.close()
        wait_until(lambda: not app._memory.in_use)
        assert planner.ask("/v1/chat/completions", CHAT).status == 200
        wait_until(lambda: not app._memory.in_use)


def test_long_texts_and_many_messages_and_tools_are_passed_on(
    port: int, engine: agents.Engine, upstream: Upstream
) -> None:
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(10)}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    fields = {
        "messages": [{"role": "user", "content": 'He said: "1, 2, [3]", {4}\\'}] * 5_000,
        "tools": [tool] * 2_000,
        "prompt": '1,2,3,[4],"5",\\' * 200_000,
        "temperature": 0.5,
    }
    assert Client(port, "sk-planner").ask("/v1/chat/completions", fields).status == 200
    assert upstream.received.pop()[3] == {**fields, **agents.body("planner", engine=engine)}


def test_a_body_with_two_lengths_closes_the_connection(
    port: int, engine: agents.Engine, upstream: Upstream
) -> None:
    client = Client(port, "sk-planner")
    for path in ("/v1/completions", "/v1/models"):
        with client.connect() as connection:
            head = client.head(path, "Content-Length: 50", "Transfer-Encoding: chunked")
            connection.sendall(head + b"2\r\n{}\r\n0\r\n\r\n")
            received = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        assert received.startswith(b"HTTP/1.1 400")
        assert b"content-length: got one beside transfer-encoding" in received
    assert upstream.received == []


def test_a_withdrawn_key_is_refused_at_once(port: int, engine: agents.Engine, keys: pathlib.Path) -> None:
    assert Client(port, "sk-planner").ask("/v1/chat/completions", CHAT).status == 200
    keys.write_text(keys.read_text().splitlines()[1])
    assert Client(port, "sk-planner").ask("/v1/chat/completions", CHAT).status == 401
    keys.write_text("damaged")
    assert Client(port, "sk-critic").ask("/v1/chat/completions", CHAT).status == 503


def test_a_session_is_recorded_before_its_request_is_passed_on(
    keys: pathlib.Path, engine: agents.Engine, upstream: Upstream, tmp_path: pathlib.Path
) -> None:
    sessions_file = tmp_path / "sessions.txt"
    sessions_file.write_text("run-1")  # its writer died before the end of the line
    with on_a_port(Gateway(upstream, keys, engine=engine, sessions=sessions_file)) as port:
        client = Client(port, "sk-planner")
        for session in ("run-7", "run-8", "run-7", "run-1"):
            fields = {**CHAT, **agents.body("planner", engine=engine, session=session)}
            assert client.ask("/v1/chat/completions", fields).status == 200
            assert upstream.received.pop()[3] == fields
            assert session in sessions_file.read_text().split("\n")
        assert client.ask("/v1/chat/completions", CHAT).status == 200
        assert upstream.received.pop()[3] == {**CHAT, **agents.body("planner", engine=engine)}
        field = "vllm_xargs" if engine == "vllm" else "custom_params"
        for wrong in (7, "", " run", "a\nb", ["a"], "s" * 201, "\ud800"):
            fields = {**CHAT, field: {"iet_session": wrong}}
            assert client.ask("/v1/chat/completions", fields).status == 403
        lie = {**CHAT, **agents.body("critic", engine=engine, session="run-9")}
        assert client.ask("/v1/chat/completions", lie).status == 403
        sessions_file.unlink()
        sessions_file.mkdir()
        fields = {**CHAT, **agents.body("planner", engine=engine, session="run-9")}
        reply = client.ask("/v1/chat/completions", fields)
        assert reply.status == 503
        assert str(tmp_path) not in reply.json["error"]["message"]
    assert upstream.received == []


def test_session_list(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sessions.txt"
    first, second = SessionList(path), SessionList(path)
    for number in range(20):
        (first, second)[number % 2].add(f"run-{number}", "planner")
    assert path.stat().st_mode & 0o777 == 0o600
    assert [line for line in path.read_text().split("\n") if line] == [f"run-{i}" for i in range(20)]
    monkeypatch.setattr("iet.service.gateway.MAX_SESSIONS", 20)
    full = SessionList(path)
    full.add("run-3", "planner")
    with pytest.raises(RequestRefused, match="takes no more"):
        full.add("run-21", "planner")
    for damaged in (b"run\xff\n", b"run\t1\n", b"s" * 201):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="no list of sessions"):
            SessionList(path)
    with pytest.raises(InputError, match="no list of sessions"):
        SessionList(tmp_path)


def test_an_agent_cannot_fill_the_session_list(
    keys: pathlib.Path,
    engine: agents.Engine,
    upstream: Upstream,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("iet.service.gateway.MAX_NEW_SESSIONS", 3)
    sessions_file = tmp_path / "sessions.txt"

    def ask(agent: str, session: str) -> Any:
        fields = {**CHAT, **agents.body(agent, engine=engine, session=session)}
        return Client(port, f"sk-{agent}").ask("/v1/chat/completions", fields)

    with on_a_port(Gateway(upstream, keys, engine=engine, sessions=sessions_file)) as port:
        assert [ask("planner", f"run-{number}").status for number in range(5)] == [200] * 3 + [429] * 2
        assert "planner has named 3 new sessions" in ask("planner", "run-3").json["error"]["message"]
        assert ask("planner", "run-0").status == 200  # it is in the list
        assert ask("critic", "run-3").status == 200
        assert ask("planner", "run-3").status == 200
        wrong = json.dumps(
            {**CHAT, **agents.body("critic", engine=engine, session="run-9"), "top_p": math.nan}
        )
        assert Client(port, "sk-critic").ask("/v1/chat/completions", wrong.encode()).status == 400
    assert [line for line in sessions_file.read_text().split("\n") if line] == [f"run-{i}" for i in range(4)]


def test_other_requests_do_not_wait_for_a_slow_disk(
    upstream: Upstream, keys: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk, slow = threading.Event(), threading.Event()

    def fsync(_: int) -> None:
        on_disk.set()
        assert slow.wait(60)

    def ask(session: str) -> int:
        fields = {**CHAT, **agents.body("planner", session=session)}
        return Client(port, "sk-planner").ask("/v1/chat/completions", fields).status

    with on_a_port(Gateway(upstream, keys, sessions=tmp_path / "sessions.txt")) as port:
        assert ask("run-1") == 200
        monkeypatch.setattr(os, "fsync", fsync)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(ask, "run-2")
            assert on_disk.wait(60)
            assert ask("run-1") == 200
            assert not waiting.done()
            slow.set()
            assert waiting.result() == 200


@posix
def test_an_id_that_does_not_fit_on_the_disk_is_removed(tmp_path: pathlib.Path) -> None:
    import resource

    path = tmp_path / "sessions.txt"
    sessions = SessionList(path)
    sessions.add("run-1", "planner")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 4, limits[1]))
    try:
        with pytest.raises(RequestRefused, match=r"cannot be written \(No space left on device\)"):
            sessions.add("run-2", "planner")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "\nrun-1\n"
    sessions.add("run-2", "planner")
    assert path.read_text() == "\nrun-1\n\nrun-2\n"


@posix
def test_removing_an_id_removes_no_other_one(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sessions.txt"
    first, second = SessionList(path), SessionList(path)
    first.add("run-1", "planner")
    other_thread = threading.Thread(target=second.add, args=("run-3", "critic"))

    class FullDisk(io.FileIO):
        def write(self, line: bytes) -> int:  # type: ignore[override]
            if b"run-2" not in line:
                return super().write(line)
            other_thread.start()
            other_thread.join(0.2)
            assert other_thread.is_alive()  # it waits for the lock
            return super().write(line[:4])

    monkeypatch.setattr(
        "iet.service.gateway.open",
        lambda path, mode, buffering, opener: FullDisk(path, mode, opener=opener),
        raising=False,
    )
    with pytest.raises(RequestRefused):
        first.add("run-2", "planner")
    other_thread.join()
    assert path.read_text() == "\nrun-1\n\nrun-3\n"


def test_an_unknown_engine_is_refused(keys: pathlib.Path) -> None:
    with pytest.raises(InputError, match="engine: got 'tgi'"):
        Gateway(None, keys, engine="tgi")  # type: ignore[arg-type]
