"""Time `iet serve` beside the bare `Auditor` on the same texts: requests a second, and times of answers.

    python -m benchmarks.speed.bench_service -o benchmarks/results/service.json

Documents of about 1,000 tokens, six agents, decoder `posterior`, reports as JSON with the text. The floor
audits them one after another in this process, on one thread, and writes the same JSON. The service runs
with one worker and with two; each is asked by one client, who waits for every answer, and by eight at once.
Clients keep their connections, and live in a process of their own on the same machine, so that on two cores
two workers, the server's own process and the clients share them. Contestants run in turn, round after
round; a percentile is over all requests of a round. With --data, a folder with who_and_when/, documents are
cut from real agent logs, else from text of the shipped model.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

if __name__ == "__main__":  # before anything starts threads
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "IET_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

import numpy as np

import iet
from benchmarks.recording import columns, command, environment, parser, write
from benchmarks.speed.bench_bulk import documents, plain
from benchmarks.speed.texts import given_logs, marked_text, team
from iet.cli import bench
from iet.errors import IetError

FLOOR = "bare Auditor"
CONTESTANTS = {
    "one worker, one client": (1, 1),
    "one worker, eight clients": (1, 8),
    "two workers, one client": (2, 1),
    "two workers, eight clients": (2, 8),
}
"""Name -> workers of the service, and clients at once."""

START_SECONDS = 120


@contextlib.contextmanager
def serve(registry: pathlib.Path, workers: int) -> Iterator[int]:
    """Run a service until the block is left, and yield its port once all its workers are there."""
    with tempfile.TemporaryFile("w+") as log:
        options = ["--no-auth", "--port", "0", "--workers", str(workers), "-r", str(registry)]
        process = subprocess.Popen([sys.executable, "-m", "iet", "serve", *options], stderr=log)
        try:
            end = time.monotonic() + START_SECONDS
            while True:
                log.seek(0)
                said = log.read()
                if process.poll() is not None or time.monotonic() > end:
                    raise IetError(f"iet serve does not start: {said[-2000:]}")
                address = re.search(r"on http://127\.0\.0\.1:(\d+)", said)
                if address and _workers(int(address[1])) == workers:
                    break
                time.sleep(0.1)
            yield int(address[1])
        finally:
            process.terminate()
            process.wait(60)


def _workers(port: int) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    shown = connection.getresponse().read().decode()
    connection.close()
    found = re.search(r"^iet_workers (\S+)$", shown, re.MULTILINE)
    return float(found[1]) if found else 0.0


def ask_elsewhere(port: int, folder: pathlib.Path, clients: int) -> tuple[float, list[float]]:
    """Return what clients in another process say."""
    line = [
        sys.executable,
        "-m",
        "benchmarks.speed.service_clients",
        str(port),
        str(folder),
        str(clients),
    ]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    seconds, each = json.loads(done.stdout)
    return seconds, each


def audit(auditor: iet.Auditor, texts: Sequence[str]) -> tuple[float, list[float]]:
    """Return the same of an `Auditor` in this process."""
    each, began = [], time.perf_counter()
    for text in texts:
        started = time.perf_counter()
        json.dumps(auditor.audit(text).to_dict(), ensure_ascii=False).encode()
        each.append(time.perf_counter() - started)
    return time.perf_counter() - began, each


def validate(port: int, auditor: iet.Auditor, texts: Sequence[str]) -> None:
    """Compare the service's reports with the auditor's."""
    for text in texts:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        body = json.dumps({"text": text}).encode()
        connection.request("POST", "/v1/audit", body, {"Content-Type": "application/json"})
        found = json.loads(connection.getresponse().read())
        connection.close()
        if found != json.loads(auditor.audit(text).to_json()):
            raise IetError("the service does not report what the auditor finds")


Sample = Callable[[], tuple[float, list[float]]]


def measure(
    samples: dict[str, Sample], rounds: int, warm_up: int = 1
) -> dict[str, list[tuple[float, list[float]]]]:
    """Return the samples of every contestant, after rounds that warm up."""
    found: dict[str, list[tuple[float, list[float]]]] = {name: [] for name in samples}
    names = list(samples)
    for number in range(-warm_up, rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            print(f"round {number + 1} of {rounds}: {name} ...", file=sys.stderr, flush=True)
            sample = samples[name]()
            if number >= 0:
                found[name].append(sample)
    return found


def results(found: dict[str, list[tuple[float, list[float]]]], count: int) -> list[dict[str, object]]:
    """Return a row for each contestant: medians and quartiles over rounds."""
    rates = {name: [count / seconds for seconds, _ in samples] for name, samples in found.items()}
    rows = []
    for name, samples in found.items():
        percentiles = {
            f"p{percent}_ms": bench.spread([float(np.percentile(each, percent)) * 1e3 for _, each in samples])
            for percent in (50, 99)
        }
        rate = {
            "requests_per_second": bench.spread(rates[name]),
            "over_floor": bench.ratio(rates[name], rates[FLOOR]),
        }
        rows.append(plain({"what": name, **rate, **percentiles}))
    return rows


def main() -> None:
    line = parser("benchmarks.speed.bench_service", __doc__)
    line.add_argument("--data", type=pathlib.Path, help="folder of agent logs")
    line.add_argument("--documents", type=int, default=400, help="in a sample")
    line.add_argument("--rounds", type=int, default=7)
    line.add_argument("--quick", action="store_true", help="tiny: whether it runs, not how fast")
    given = line.parse_args()
    quick, logs = given.quick, given_logs(line, given.data)
    count, rounds = (12, 1) if quick else (given.documents, given.rounds)
    load, registry = environment("tokenizers", "fastapi", "uvicorn"), team()
    texts = documents(logs or [marked_text(registry, 1200 if quick else 20_000)], count)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as open_:
        folder = pathlib.Path(name)
        registry.save(folder / "team.json")
        (folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
        auditor = iet.Auditor(registry)
        ports = {workers: open_.enter_context(serve(folder / "team.json", workers)) for workers in (1, 2)}
        validate(ports[1], auditor, texts[:5])
        samples: dict[str, Sample] = {FLOOR: functools.partial(audit, auditor, texts)}
        for contestant, (workers, clients) in CONTESTANTS.items():
            samples[contestant] = functools.partial(ask_elsewhere, ports[workers], folder, clients)
        found = measure(samples, rounds, warm_up=0 if quick else 1)
    content: dict[str, Any] = {
        "command": command(line, given),
        "quick": quick,
        "environment": load,
        "documents": len(texts),
        "text": "agent logs" if logs else "the shipped model's",
        "rounds": rounds,
        "results": results(found, len(texts)),
    }
    write(given.output, content, markdown(content))


def markdown(content: dict[str, Any]) -> str:
    def spread(name: str, form: str) -> str:
        return "{0[median]:1} ({0[low]:1} to {0[high]:1})".replace("0[", f"{name}[").replace(":1", f":{form}")

    shown = {"what": "{what}", "requests/s": spread("requests_per_second", ",.0f")}
    shown |= {f"over {FLOOR}": spread("over_floor", ".2f")}
    shown |= {"p50, ms": spread("p50_ms", ".1f"), "p99, ms": spread("p99_ms", ".1f")}
    parts = [
        f"`{content['command']}` on {content['environment']['machine']['name']}",
        f"{content['documents']:,} documents of about 1,000 tokens a sample, {content['text']}, six agents,"
        f" `posterior`; medians (quartiles) of {content['rounds']} rounds. The clients share the machine's"
        f" {content['environment']['cores']} cores with the service.",
        columns(content["results"], shown),
    ]
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
