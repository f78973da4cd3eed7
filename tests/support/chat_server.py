"""A server on this machine that speaks chat completions and says what a test wants."""

from __future__ import annotations

import collections
import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tests.support.waiting import PATIENCE

Reply = Callable[[dict[str, Any], int], Any]


class Server(http.server.ThreadingHTTPServer):
    """Answers by `reply(request, number of the attempt)`: a text, a status, a body, or None to hang."""

    daemon_threads = True

    def __init__(self, reply: Reply, form: Callable[[str], Any], models: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.reply, self.form, self.models = reply, form, models
        self.requests: list[dict[str, Any]] = []
        self.asked: collections.Counter[str] = collections.Counter()
        self.released = threading.Event()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        listed = {"object": "list", "data": [{"id": "tiny", "object": "model"}]}
        self.answer(self.server.models, json.dumps(listed).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = json.dumps(body, sort_keys=True)
        with self.server.lock:
            self.server.requests.append(
                {"path": self.path, "key": self.headers["Authorization"], "body": body}
            )
            self.server.asked[key] += 1
            attempt = self.server.asked[key]
        reply = self.server.reply(body, attempt)
        status, content = 200, reply
        if isinstance(reply, str):
            content = json.dumps(self.server.form(reply)).encode()
        elif isinstance(reply, int):
            status = reply
            error = {"message": f"refused with {self.headers.get('Authorization')}"}
            content = json.dumps({"error": error}).encode()
        elif reply is None:  # hang until the test is over
            self.server.released.wait(PATIENCE)
            return
        self.answer(status, content)

    def answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def completion(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "tiny", "choices": [choice]}


@contextlib.contextmanager
def serving(reply: Reply, form: Callable[[str], Any] = completion, *, models: int = 200) -> Iterator[Server]:
    server = Server(reply, form, models)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE)
        assert not thread.is_alive()
