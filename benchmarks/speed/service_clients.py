"""Clients of `iet serve`, in a process of their own: what bench_service times.

    python -m benchmarks.speed.service_clients PORT FOLDER CLIENTS

Prints the seconds until all of FOLDER/texts.json is audited, and those of each request.
"""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import pathlib
import sys
import threading
import time
from collections.abc import Sequence

from iet.errors import IetError


def ask(port: int, texts: Sequence[str], clients: int) -> tuple[float, list[float]]:
    """Return the seconds until all texts are audited, and those of each request."""
    bodies, local_state = [json.dumps({"text": text}).encode() for text in texts], threading.local()

    def one(body: bytes) -> float:
        if not hasattr(local_state, "connection"):
            local_state.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        began = time.perf_counter()
        local_state.connection.request("POST", "/v1/audit", body, {"Content-Type": "application/json"})
        answer = local_state.connection.getresponse()
        received = answer.read()
        if answer.status != 200:
            raise IetError(f"the service answers {answer.status}: {received.decode()[:500]}")
        return time.perf_counter() - began

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        began = time.perf_counter()
        latencies = list(pool.map(one, bodies))
        return time.perf_counter() - began, latencies


if __name__ == "__main__":
    port, folder, clients = sys.argv[1:]
    contents = json.loads((pathlib.Path(folder) / "texts.json").read_text(encoding="utf-8"))
    print(json.dumps(ask(int(port), contents, int(clients))))
