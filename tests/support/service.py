"""`iet serve` as a process, clients of it, and an application of ASGI on a port."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

fastapi = pytest.importorskip("fastapi", reason="the extra service is not installed")
pytest.importorskip("prometheus_client", reason="the extra service is not installed")
uvicorn = pytest.importorskip("uvicorn", reason="the extra service is not installed")

from tests.support.teams import WORD_TOKENIZER, team  # noqa: E402 - skipped first
from tests.support.waiting import PATIENCE, wait_until  # noqa: E402

ROOT = pathlib.Path(__file__).parents[2]
JSON, LINES = "application/json", "application/x-ndjson"


@dataclasses.dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]


@dataclasses.dataclass(frozen=True)
class Client:
    """A client of a server on this machine."""

    port: int
    token: str | None = None

    def ask(
        self,
        path: str,
        body: Any = None,
        *,
        method: str | None = None,
        timeout: float = PATIENCE,
        **headers: str,
    ) -> Reply:
        """Send a request whose body is bytes, or becomes JSON; header names have _ in place of -."""
        all_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token is not None:
            all_headers.setdefault("Authorization", f"Bearer {self.token}")
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            all_headers.setdefault("Content-Type", JSON)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method or ("GET" if body is None else "POST"), path, body, all_headers)
            answer = connection.getresponse()
            return Reply(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def audit(self, timeout: float = PATIENCE, **request: Any) -> Reply:
        return self.ask("/v1/audit", request, timeout=timeout)

    def connect(self, timeout: float = PATIENCE) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def head(self, path: str, *more: str) -> bytes:
        """Return the headers of a POST, for a client that writes to the socket itself."""
        lines = [f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", *more]
        lines += [] if self.token is None else [f"Authorization: Bearer {self.token}"]
        return "\r\n".join([*lines, "", ""]).encode()


@dataclasses.dataclass(frozen=True)
class Running(Client):
    """An `iet serve`."""

    process: Any = None
    log: Any = None

    @property
    def log_text(self) -> str:
        return str(self.log.read_text())

    def workers(self) -> list[int]:
        """Process ids of the workers."""
        pids = []
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parent = int(stat.read_text().rpartition(")")[2].split()[1])
                command = (stat.parent / "cmdline").read_bytes()
                if parent == self.process.pid and b"spawn_main" in command:
                    pids.append(int(stat.parent.name))
        return pids

    def wait_until(self, happened: Callable[[], object]) -> None:
        """Wait, as long as the service runs."""

        def over() -> object:
            assert self.process.poll() is None, self.log_text[-4000:]
            return happened()

        wait_until(over, lambda: self.log_text[-4000:], 0.05)

    def ready(self, workers: int = 1) -> bool:
        if self.ask("/healthz").status != 200:
            return False
        metrics = self.ask("/metrics").body.decode()
        return float(re.search(r"^iet_workers (\S+)$", metrics, re.MULTILINE)[1]) >= workers  # type: ignore[index]


def registry_file(folder: pathlib.Path, *names: str) -> pathlib.Path:
    """Return a registry of a word tokenizer, whose agents wrote `tests.support.texts`."""
    WORD_TOKENIZER.save(str(folder / "tokenizer.json"))
    path = folder / "team.json"
    team(names or ("planner", "critic", "writer"), path, tokenizer=str(folder / "tokenizer.json"), kappa=2.0)
    return path


@contextlib.contextmanager
def serving(
    folder: pathlib.Path,
    registry: pathlib.Path,
    *options: Any,
    token: bool = True,
    public: bool = False,
    workers: int = 1,
) -> Iterator[Running]:
    """Run a service while the block runs; with `token` it accepts one new token, without it all requests.

    With `public` it is the public detector, which has no tokens.

    Its time limits are far longer than needed, unless `options` set others.
    """
    from iet.service.credentials import add_token

    made = add_token(folder / "tokens", "alice") if token and not public else None
    authentication = ["--tokens", folder / "tokens"] if token else ["--no-auth"]
    authentication = ["--public"] if public else authentication
    command = [sys.executable, "-m", "iet", "serve", "-r", registry, "--port", 0, "--workers", workers]
    for name in ("seconds", "wait", "body_seconds"):
        command += ["--limit", f"{name}={PATIENCE}"]
    log = folder / "log"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    with log.open("w") as file:
        process = subprocess.Popen(
            list(map(str, [*command, *authentication, *options])), stdout=file, stderr=file, env=environment
        )
    address = re.compile(r"^iet: serving .* on http://127.0.0.1:(\d+)", re.MULTILINE)
    try:
        Running(0, made, process, log).wait_until(lambda: address.search(log.read_text()))
        running = Running(int(address.findall(log.read_text())[0]), made, process, log)
        running.wait_until(
            lambda: running.ask("/healthz").status == 200 if public else running.ready(workers)
        )
        yield running
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        workers = Running(0, made, process, log).workers()
        process.kill()
        process.wait()
        for worker in workers:  # a stopped one does not notice the end of its parent
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


@contextlib.contextmanager
def on_a_port(app: Any) -> Iterator[int]:
    """Run an application of ASGI in a thread, and yield its port."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()


class Upstream:
    """The server of an engine: records its requests, and answers all of them with the same text."""

    def __init__(self) -> None:
        self.received: list[tuple[str, str, dict[str, str], Any]] = []
        self.status = 200

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        request = json.loads(body) if body else None
        self.received.append((scope["method"], scope["path"], headers, request))
        answer = json.dumps(_completion(request or {})).encode()
        media = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": self.status, "headers": media})
        await send({"type": "http.response.body", "body": answer})


def _completion(request: Mapping[str, Any]) -> dict[str, Any]:
    content = (
        {"message": {"role": "assistant", "content": "Well."}} if "messages" in request else {"text": "Well."}
    )
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    choice = {"index": 0, "finish_reason": "stop", **content}
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "tiny",
        "choices": [choice],
        "usage": usage,
    }
