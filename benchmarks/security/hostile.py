"""Drill: three honest clients use a service while a fourth attacks it.

    python -m benchmarks.security.hostile -o benchmarks/results/hostile.json

Runs `iet serve` with two workers and four tokens. Each honest client sends requests one after another: texts
as JSON, every tenth time a batch of five texts, every twentieth time a page. Each answer is compared with an
`Auditor` of this process. The attacker has a valid token and runs the `ATTACKS` in random order in four
threads. Honest requests are also sent before and after the attacks.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import http.client
import itertools
import json
import pathlib
import random
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import iet
from benchmarks.house import ROOT
from benchmarks.recording import columns, exit_code, finish, parser
from iet.errors import IetError
from iet.service.credentials import add_token

CLIENTS, ATTACKER, THREADS = ("alice", "bob", "carol"), "mallory", 4
SECONDS, CHARACTERS = 120, 1_500
LIMITS = {
    "seconds": 2,
    "body_bytes": 1 << 20,
    "batch_bytes": 1 << 23,
    "body_seconds": 3,
    "per_client": 6,
}
START_SECONDS = 180
JSON, LINES = "application/json", "application/x-ndjson"


@dataclasses.dataclass(frozen=True)
class Client:
    """A client of the service: its port and the client's token."""

    port: int
    token: str

    def post(self, path: str, body: bytes, media: str = JSON, accept: str = JSON) -> tuple[int, bytes]:
        """Return status and body of the response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            headers = {"Authorization": f"Bearer {self.token}", "Content-Type": media, "Accept": accept}
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def send_raw(self, data: bytes, reads: bool = True) -> str:
        """Send bytes and return the status of the response, or wait and disconnect without reading it."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            response = b""
            with contextlib.suppress(OSError):
                connection.sendall(data)
                time.sleep(0 if reads else 5)
                while reads and (part := connection.recv(1 << 16)):
                    response = (response + part)[:64]
            return response[9:12].decode() if response.startswith(b"HTTP/1.1 ") else "disconnected"

    def head(self, path: str, size: int, media: str = JSON) -> bytes:
        """Return the head of a request with a body of `size` bytes."""
        lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {self.token}"]
        lines += [f"Content-Type: {media}", f"Content-Length: {size}", "", ""]
        return "\r\n".join(lines).encode()


def _post(client: Client, body: bytes, path: str = "/v1/audit", media: str = JSON) -> str:
    return str(client.post(path, body, media)[0])


def _changed_bytes(client: Client, rng: random.Random) -> str:
    body = bytearray(json.dumps({"text": "w" * 200}).encode())
    for _ in range(rng.randint(1, 9)):
        body[rng.randrange(len(body))] = rng.randrange(256)
    return _post(client, bytes(body))


def _contradiction(client: Client, rng: random.Random) -> str:
    requests = [
        {"text": "a", "token_ids": [1]},
        {"text": "a", "spans": [[-1, 2**70]]},
        {"token_ids": [2**63]},
        {"text": "a", "tokenizer": "/etc/passwd"},
        {"text": "a", "level": -1},
        {"text": "\ud800"},
    ]
    return _post(client, json.dumps(rng.choice(requests)).encode())


def _slowest_text(client: Client, rng: random.Random) -> str:
    words = " ".join(f"word{rng.randrange(10_000)}" for _ in range(60_000))
    return _post(client, json.dumps({"text": words, "decoys": 10_000}).encode())


def _slowest_batch(client: Client, rng: random.Random) -> str:
    line = json.dumps({"text": "a b c d " * 20_000, "decoys": 10_000}).encode() + b"\n"
    return _post(client, line * 6, "/v1/audit/batch", LINES)


def _disconnect(client: Client, rng: random.Random) -> str:
    body = json.dumps({"text": "a b c " * 5_000}).encode()
    request = client.head("/v1/audit", len(body)) + body
    with socket.create_connection(("127.0.0.1", client.port), timeout=30) as connection:
        connection.sendall(request[: rng.randint(1, len(request))])
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return "disconnected"


def _stall(client: Client, rng: random.Random) -> str:
    return client.send_raw(client.head("/v1/audit", 500))


def _never_read(client: Client, rng: random.Random) -> str:
    line = json.dumps({"text": "a b c d " * 500}).encode() + b"\n"
    head = client.head("/v1/audit/batch", 200 * len(line), LINES)
    return client.send_raw(head + 200 * line, reads=False)


def _wrong_token(client: Client, rng: random.Random) -> str:
    wrong = dataclasses.replace(client, token=client.token[:-1] + rng.choice("Aa\x7f"))
    return _post(wrong, b'{"text": "a"}')


ATTACKS: dict[str, Callable[[Client, random.Random], str]] = {
    "JSON with random bytes": _changed_bytes,
    "JSON of depth up to 400,000": lambda client, rng: _post(
        client, b'{"decoder_options": ' + b"[" * rng.randint(1_000, 400_000)
    ),
    "60,000 keys": lambda client, rng: _post(
        client, json.dumps({"text": "a", **{f"k{i}": i for i in range(60_000)}}).encode()
    ),
    "contradictory or invalid values": _contradiction,
    "a body of 2 MB": lambda client, rng: _post(client, b'{"text": "' + b"a " * (1 << 20) + b'"}'),
    "a text that takes longest": _slowest_text,
    "a batch of such texts": _slowest_batch,
    "disconnects during the request": _disconnect,
    "stops sending after the head": _stall,
    "never reads the response": _never_read,
    "a wrong token": _wrong_token,
    "random bytes instead of HTTP": lambda client, rng: client.send_raw(
        rng.randbytes(rng.randint(1, 2_000)) + b"\r\n\r\n"
    ),
}


def texts() -> list[str]:
    """Return the texts of the honest clients: parts of the project's own pages."""
    pages = " ".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md")))
    return [pages[i : i + CHARACTERS] for i in range(0, 100 * CHARACTERS, CHARACTERS)]


@contextlib.contextmanager
def serving(folder: pathlib.Path) -> Iterator[tuple[dict[str, Client], Any, pathlib.Path]]:
    """Run a service; yield the clients, the process and the path of its log."""
    tokens = {name: add_token(folder / "tokens", name) for name in (*CLIENTS, ATTACKER)}
    limits = [part for name, value in LIMITS.items() for part in ("--limit", f"{name}={value}")]
    options = ["-r", folder / "team.json", "--tokens", folder / "tokens", "--port", "0", "--workers", "2"]
    line = [sys.executable, "-m", "iet", "serve", *map(str, options), *limits]
    log = folder / "log"
    with log.open("w") as file:
        process = subprocess.Popen(line, stderr=file)
    try:
        end = time.monotonic() + START_SECONDS
        while not (address := re.search(r"on http://127\.0\.0\.1:(\d+)", log.read_text())):
            if process.poll() is not None or time.monotonic() > end:
                raise IetError(f"iet serve does not start: {log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield {name: Client(int(address[1]), token) for name, token in tokens.items()}, process, log
    finally:
        process.terminate()
        process.wait(60)


def send(client: Client, expected: dict[str, Any], rng: random.Random, until: Callable[[int], bool]) -> Any:
    """Send honest requests until a condition on their number; return outcomes, and seconds of requests."""
    outcomes, seconds = collections.Counter[str](), list[float]()
    for number in itertools.takewhile(lambda number: not until(number), itertools.count()):
        text = rng.choice(list(expected))
        body = json.dumps({"text": text, "include_text": False}).encode()
        began = time.perf_counter()
        if number % 10 == 9:
            status, response = client.post("/v1/audit/batch", (body + b"\n") * 5, LINES)
            lines = [json.loads(line) for line in response.splitlines()]
            correct = [line.get("report", {}).get("evidence") for line in lines] == [expected[text]] * 5
            status = max([status, *(line.get("status", 0) for line in lines)])
        elif number % 20 == 8:
            status, response = client.post("/v1/audit", body, accept="text/html")
            correct = response[:9].lower() == b"<!doctype"
        else:
            status, response = client.post("/v1/audit", body)
            correct = status == 200 and json.loads(response)["evidence"] == expected[text]
        seconds.append(time.perf_counter() - began)
        outcomes["correct" if correct else "wrong" if status == 200 else "refused"] += 1
    return outcomes, seconds


def use(clients: dict[str, Client], expected: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Let all honest clients send requests for some seconds."""
    results, end = dict[str, Any](), time.monotonic() + seconds

    def run(name: str) -> None:
        results[name] = send(clients[name], expected, random.Random(name), lambda _: time.monotonic() > end)

    threads = [threading.Thread(target=run, args=(name,)) for name in CLIENTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcomes = sum((results[name][0] for name in CLIENTS), collections.Counter[str]())
    times = np.concatenate([results[name][1] for name in CLIENTS])
    return {
        "requests": outcomes.total(),
        **{name: outcomes[name] for name in ("correct", "wrong", "refused")},
        "median": float(np.median(times)),
        "percentile": float(np.quantile(times, 0.99)),
        "longest": float(times.max()),
    }


@contextlib.contextmanager
def attacking(client: Client, seed: int) -> Iterator[dict[str, collections.Counter[str]]]:
    """Attack until the end of the block; yield the outcomes of each attack."""
    counts = {name: collections.Counter[str]() for name in ATTACKS}
    over, lock = threading.Event(), threading.Lock()

    def attack(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        while not over.is_set():
            name = rng.choice(list(ATTACKS))
            try:
                outcome = ATTACKS[name](client, rng)
            except (OSError, http.client.HTTPException):
                outcome = "disconnected"
            with lock:
                counts[name][outcome] += 1

    threads = [threading.Thread(target=attack, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        over.set()
        for thread in threads:
            thread.join()


def drill(seconds: float) -> dict[str, Any]:
    """Attack for some seconds, send honest requests before, during and after that, and return the counts."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        registry = iet.Registry.create(folder / "team.json", tokenizer="iet:demo")
        registry.add_many(["planner", "critic", "engineer"])
        auditor = iet.Auditor(registry)
        expected = {text: auditor.audit(text).evidence for text in texts()}
        with serving(folder) as (clients, process, log):
            before = use(clients, expected, seconds / 4)
            with attacking(clients[ATTACKER], 1) as counts:
                during = use(clients, expected, seconds)
            after = use(clients, expected, seconds / 4)
            lines = log.read_text()
            return {
                "honest": {"before": before, "during": during, "after": after},
                "attacks": {name: dict(sorted(outcomes.items())) for name, outcomes in counts.items()},
                "seconds": seconds,
                "tracebacks": lines.count("Traceback"),
                "runs": process.poll() is None,
            }


def markdown(content: dict[str, Any]) -> str:
    """Return the tables of the honest clients and of the attacks."""
    honest = [{"when": when, **row} for when, row in content["honest"].items()]
    attacks = [
        {
            "attack": name,
            "count": sum(outcomes.values()),
            "outcomes": ", ".join(f"{outcome}: {count:,}" for outcome, count in outcomes.items()),
        }
        for name, outcomes in content["attacks"].items()
    ]
    formats = {
        **{"honest clients, relative to the attacks": "{when}", "requests": "{requests:,}"},
        **{"correct": "{correct:,}", "wrong": "{wrong}", "refused": "{refused}"},
        **{"median, s": "{median:.2f}", "99 %, s": "{percentile:.2f}", "longest, s": "{longest:.2f}"},
    }
    return "\n\n".join(
        [
            columns(honest, formats),
            columns(attacks, {"attack": "{attack}", "count": "{count:,}", "status: count": "{outcomes}"}),
            f"{sum(row['count'] for row in attacks):,} attacks in {content['seconds']:,.0f} s; tracebacks in"
            f" the log: {content['tracebacks']}; the service runs: {content['runs']}. The limit of an audit"
            f" was {LIMITS['seconds']} s.",
        ]
    )


def main() -> None:
    """Run the drill and write its result."""
    options = parser("benchmarks.security.hostile", __doc__)
    options.add_argument("--seconds", type=float, default=SECONDS, help=f"of attacks (default: {SECONDS})")
    chosen = options.parse_args()
    content = drill(chosen.seconds)
    finish(options, chosen, content, markdown(content))


if __name__ == "__main__":
    sys.exit(exit_code(main))
