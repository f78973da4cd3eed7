"""A day in the life of a service: three clients ask what they always ask, a fourth means harm all the while.

    python -m benchmarks.security.hostile -o benchmarks/results/hostile.json

A real `iet serve` with two workers, and tokens for four clients. Three of them send 40 requests each, one
after another: a text as JSON, every tenth time a batch of five, every twentieth the page. Every answer is
compared with what an `Auditor` of this process finds. The fourth holds a token as good as theirs and does in
four threads, drawn by chance, without a pause, what `ATTACKS` names. The same honest requests are also sent
with nobody else there. The hostile client is told 503 where it waits for itself.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import http.client
import json
import os
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
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import iet
from benchmarks.house import ROOT
from benchmarks.recording import columns, exit_code, finish, parser
from iet.errors import IetError

CLIENTS, HOSTILE, THREADS = ("alice", "bob", "carol"), "mallory", 4
REQUESTS, CHARACTERS = 40, 1_500
LIMITS = {
    "seconds": 2,
    "body-bytes": 1 << 20,
    "batch-bytes": 1 << 23,
    "body-seconds": 3,
    "per-client": 6,
}
START_SECONDS = 180
JSON, LINES = "application/json", "application/x-ndjson"


@dataclasses.dataclass(frozen=True)
class Address:
    """Where a service is, and the token of whoever asks."""

    port: int
    token: str

    def ask(self, path: str, body: bytes, media: str = JSON, accept: str = JSON) -> tuple[int, bytes]:
        """Return status and body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            headers = {"Authorization": f"Bearer {self.token}", "Content-Type": media, "Accept": accept}
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def head(self, path: str, size: int, media: str = JSON) -> bytes:
        """Return the head of a request, for a client that speaks by itself."""
        lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {self.token}"]
        lines += [f"Content-Type: {media}", f"Content-Length: {size}", "", ""]
        return "\r\n".join(lines).encode()

    @contextlib.contextmanager
    def connected(self) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            yield connection


def _status(reply: tuple[int, bytes]) -> str:
    return str(reply[0])


def _said(connection: socket.socket) -> str:
    """Return the status that is told before the service ends the connection, or that it was cut off."""
    said = b""
    with contextlib.suppress(OSError):
        while part := connection.recv(1 << 16):
            said = (said + part)[:64]
    return said[9:12].decode() if said.startswith(b"HTTP/1.1 ") else "cut off"


def _garbage(to: Address, draw: random.Random) -> str:
    whole = json.dumps({"text": "w" * 200}).encode()
    body = bytearray(whole)
    for _ in range(draw.randint(1, 9)):
        body[draw.randrange(len(body))] = draw.randrange(256)
    return _status(to.ask("/v1/audit", bytes(body)))


def _deep(to: Address, draw: random.Random) -> str:
    return _status(to.ask("/v1/audit", b'{"decoder_options": ' + b"[" * draw.randint(1_000, 400_000)))


def _many_keys(to: Address, draw: random.Random) -> str:
    where: dict[str, Any] = {f"k{i}": i for i in range(60_000)}
    asked = {"text": "a", "decoder_options": where} if draw.random() < 0.5 else {"text": "a", **where}
    return _status(to.ask("/v1/audit", json.dumps(asked).encode()))


def _contradiction(to: Address, draw: random.Random) -> str:
    asked = draw.choice(
        [
            {"text": "a", "token_ids": [1]},
            {"text": "a", "spans": [[-1, 2**70]]},
            {"token_ids": [2**63]},
            {"text": "a", "decoder_options": {"tokenizer": "/etc/passwd"}},
            {"text": "a", "level": -1},
            {"text": "\ud800"},
        ]
    )
    return _status(to.ask("/v1/audit", json.dumps(asked).encode()))


def _too_long(to: Address, draw: random.Random) -> str:
    return _status(to.ask("/v1/audit", b'{"text": "' + b"a " * (1 << 20) + b'"}'))


def _heaviest(to: Address, draw: random.Random) -> str:
    words = " ".join(f"word{draw.randrange(10_000)}" for _ in range(60_000))
    return _status(to.ask("/v1/audit", json.dumps({"text": words, "decoys": 10_000}).encode()))


def _heaviest_batch(to: Address, draw: random.Random) -> str:
    line = json.dumps({"text": "a b c d " * 20_000, "decoys": 10_000}).encode() + b"\n"
    return _status(to.ask("/v1/audit/batch", line * 6, LINES))


def _leaves(to: Address, draw: random.Random) -> str:
    body = json.dumps({"text": "a b c " * 5_000}).encode()
    with to.connected() as connection:
        sent = to.head("/v1/audit", len(body)) + body
        connection.sendall(sent[: draw.randint(1, len(sent))])
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return "left"


def _slow(to: Address, draw: random.Random) -> str:
    with to.connected() as connection:
        connection.sendall(
            to.head("/v1/audit", 500) if draw.random() < 0.5 else b"POST /v1/audit HTTP/1.1\r\n"
        )
        return _said(connection)


def _never_reads(to: Address, draw: random.Random) -> str:
    line = json.dumps({"text": "a b c d " * 500}).encode() + b"\n"
    with to.connected() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(to.head("/v1/audit/batch", 200 * len(line), LINES))
        with contextlib.suppress(OSError):
            connection.sendall(200 * line)
            time.sleep(5)
    return "left"


def _no_token(to: Address, draw: random.Random) -> str:
    other = dataclasses.replace(to, token=to.token[:-1] + draw.choice("Aa\x7f"))
    return _status(other.ask("/v1/audit", b'{"text": "a"}'))


def _no_http(to: Address, draw: random.Random) -> str:
    with to.connected() as connection:
        connection.sendall(draw.randbytes(draw.randint(1, 2_000)) + b"\r\n\r\n")
        return _said(connection)


ATTACKS: dict[str, Callable[[Address, random.Random], str]] = {
    "JSON with changed bytes": _garbage,
    "JSON as deep as 400,000": _deep,
    "60,000 keys": _many_keys,
    "contradictions, surrogates, paths": _contradiction,
    "a body of 2 MB": _too_long,
    "the heaviest text that is taken": _heaviest,
    "a batch of such": _heaviest_batch,
    "leaves in the middle": _leaves,
    "sends nothing more": _slow,
    "never reads": _never_reads,
    "a wrong token": _no_token,
    "what is no HTTP": _no_http,
}


def texts() -> list[str]:
    """Return what honest clients ask about: pieces of the project's own pages."""
    pages = " ".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs/guides").glob("*.md")))
    return [pages[i : i + CHARACTERS] for i in range(0, len(pages) - CHARACTERS, CHARACTERS)]


@contextlib.contextmanager
def serving(folder: pathlib.Path) -> Iterator[tuple[dict[str, Address], Any, pathlib.Path]]:
    """Run a service; yield where each client finds it, its process, and its log."""
    from iet.service.credentials import add_token

    tokens = {name: add_token(folder / "tokens", name) for name in (*CLIENTS, HOSTILE)}
    limits = [part for name, value in LIMITS.items() for part in (f"--{name}", str(value))]
    options = ["-r", folder / "team.json", "--tokens", folder / "tokens", "--port", "0", "--workers", "2"]
    line = [sys.executable, "-m", "iet", "serve", *map(str, options), *limits]
    log = folder / "log"
    with log.open("w") as file:
        process = subprocess.Popen(line, stderr=file)
    try:
        end = time.monotonic() + START_SECONDS
        while not (found := re.search(r"on http://127\.0\.0\.1:(\d+)", log.read_text())):
            if process.poll() is not None or time.monotonic() > end:
                raise IetError(f"iet serve does not start: {log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield {name: Address(int(found[1]), token) for name, token in tokens.items()}, process, log
    finally:
        process.terminate()
        process.wait(60)


def ask(
    to: Address, asked: Sequence[str], expected: dict[str, Any], draw: random.Random, requests: int
) -> Any:
    """Return outcome -> number of requests, and their seconds."""
    outcomes, seconds = collections.Counter[str](), list[float]()
    for number in range(requests):
        text = draw.choice(asked)
        body = json.dumps({"text": text, "include_text": False}).encode()
        began = time.perf_counter()
        if number % 10 == 9:
            status, said = to.ask("/v1/audit/batch", (body + b"\n") * 5, LINES)
            found = [json.loads(line) for line in said.splitlines()]
            right = [line.get("report", {}).get("evidence") for line in found] == [expected[text]] * 5
            statuses = {line["status"] for line in found}
            status = status if statuses == {200} else max(statuses, default=0)
        elif number % 20 == 8:
            status, said = to.ask("/v1/audit", body, accept="text/html")
            right = said[:9].lower() == b"<!doctype"
        else:
            status, said = to.ask("/v1/audit", body)
            right = status == 200 and json.loads(said)["evidence"] == expected[text]
        seconds.append(time.perf_counter() - began)
        outcomes["right" if right else "wrong" if status == 200 else str(status)] += 1
    return outcomes, seconds


def honest(addresses: dict[str, Address], expected: dict[str, Any], requests: int) -> dict[str, Any]:
    """Let the three clients ask at once; return what came of it."""
    found = dict[str, Any]()

    def run(name: str) -> None:
        found[name] = ask(addresses[name], list(expected), expected, random.Random(name), requests)

    threads = [threading.Thread(target=run, args=(name,)) for name in CLIENTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcomes = sum((found[name][0] for name in CLIENTS), collections.Counter[str]())
    seconds = np.concatenate([found[name][1] for name in CLIENTS])
    return {
        "requests": int(outcomes.total()),
        "right": outcomes["right"],
        "wrong": outcomes["wrong"],
        "refused": outcomes.total() - outcomes["right"] - outcomes["wrong"],
        "median seconds": float(np.median(seconds)),
        "99th percentile": float(np.quantile(seconds, 0.99)),
        "longest": float(seconds.max()),
    }


@contextlib.contextmanager
def attacking(to: Address, seed: int) -> Iterator[dict[str, collections.Counter[str]]]:
    """Attack until the block is left; yield what came of each attack so far."""
    counts = {name: collections.Counter[str]() for name in ATTACKS}
    over, counting = threading.Event(), threading.Lock()

    def attack(number: int) -> None:
        draw = random.Random(f"{seed} {number}")
        while not over.is_set():
            name = draw.choice(list(ATTACKS))
            try:
                outcome = ATTACKS[name](to, draw)
            except (OSError, http.client.HTTPException):
                outcome = "cut off"
            with counting:
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


def day(requests: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        registry = iet.Registry.create(folder / "team.json", tokenizer="iet:demo")
        registry.add_many(["planner", "critic", "engineer"])
        auditor = iet.Auditor(registry)
        expected = {text: auditor.audit(text).evidence for text in texts()}
        with serving(folder) as (addresses, process, log):
            alone = honest(addresses, expected, requests)
            began = time.monotonic()
            with attacking(addresses[HOSTILE], 1) as counts:
                beside = honest(addresses, expected, requests)
            seconds = time.monotonic() - began
            after = honest(addresses, expected, max(1, requests // 20))
            said = log.read_text()
            return {
                "honest": {"alone": alone, "beside the hostile client": beside, "afterwards": after},
                "attacks": {name: dict(sorted(outcomes.items())) for name, outcomes in counts.items()},
                "seconds": seconds,
                "workers that were replaced": len(re.findall(r"another one is started", said)),
                "tracebacks in the log": said.count("Traceback"),
                "the service runs": process.poll() is None,
            }


def markdown(found: dict[str, Any]) -> str:
    served = [{"when": when, **row} for when, row in found["honest"].items()]
    attacks = [
        {
            "attack": name,
            "times": sum(outcomes.values()),
            "outcomes": ", ".join(f"{outcome}: {count:,}" for outcome, count in outcomes.items()),
        }
        for name, outcomes in found["attacks"].items()
    ]
    formats = {
        **{
            "three honest clients": "{when}",
            "requests": "{requests:,}",
            "right": "{right:,}",
            "wrong": "{wrong}",
        },
        **{
            "refused": "{refused}",
            "median, s": "{median seconds:.2f}",
            "99 % within, s": "{99th percentile:.2f}",
        },
        "longest, s": "{longest:.2f}",
    }
    told = {"the hostile client": "{attack}", "times": "{times:,}", "status, or what else came": "{outcomes}"}
    return "\n\n".join(
        [
            columns(served, formats),
            columns(attacks, told),
            f"{sum(row['times'] for row in attacks):,} attacks in {found['seconds']:,.0f} s; workers that"
            f" were replaced: {found['workers that were replaced']}; tracebacks in the log:"
            f" {found['tracebacks in the log']}. A text may take {LIMITS['seconds']} s here (`--seconds`).",
        ]
    )


def main() -> None:
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "IET_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    line = parser("benchmarks.security.hostile", __doc__)
    line.add_argument("--requests", type=int, default=REQUESTS, help=f"of each client (default: {REQUESTS})")
    given = line.parse_args()
    found = day(given.requests)
    finish(line, given, found, markdown(found))


if __name__ == "__main__":
    sys.exit(exit_code(main))
