"""Time `iet serve` and the bare `Auditor` on the same texts: requests a second, and times of answers.

    python -m benchmarks.speed.bench_service -o benchmarks/results/service.json

Documents of about 1,000 tokens, six agents, decoder `posterior`, reports as JSON with the text. The floor
audits them one after another in this process, on one thread, and writes the same JSON. The service runs
with one worker and with two; each is asked by one client, who waits for every answer, and by eight at once.
Clients keep their connections, and live in a process of their own on the same machine, so that on two cores
two workers, the server's own process and the clients share them. Contestants run in turn, round after
round; a percentile is over all requests of a round. If other work shares the cores, seconds mean little:
processor time, that of all the service's processes, says what a request costs (Linux). With --data, a folder
with who_and_when/, documents are cut from real agent logs, else from text of the shipped model.
"""

from __future__ import annotations

import contextlib
import dataclasses
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
from benchmarks import timing
from benchmarks.recording import columns, command, environment, exit_code, parser, write
from benchmarks.speed.bench_bulk import documents, plain
from benchmarks.speed.texts import given_logs, marked_text, team
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


@dataclasses.dataclass(frozen=True)
class Service:
    """A running one: its port and its process."""

    port: int
    process: int

    def processor(self) -> float | None:
        """Return the seconds of processor time that its processes took so far; None if unknown."""
        if not pathlib.Path("/proc/self/stat").exists():
            return None
        ticks = 0
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                if self.process in (int(stat.parent.name), int(fields[1])):
                    ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def serve(registry: pathlib.Path, workers: int) -> Iterator[Service]:
    """Run a service until the block is left, and yield it once all its workers are there."""
    with tempfile.TemporaryFile("w+") as log:
        options = ["--no-auth", "--port", "0", "--workers", str(workers), "-r", str(registry)]
        process = subprocess.Popen([sys.executable, "-m", "iet", "serve", *options], stderr=log)
        try:
            end = time.monotonic() + START_SECONDS
            while True:
                log.seek(0)
                log_text = log.read()
                if process.poll() is not None or time.monotonic() > end:
                    raise IetError(f"iet serve does not start: {log_text[-2000:]}")
                address = re.search(r"on http://127\.0\.0\.1:(\d+)", log_text)
                if address and _workers(int(address[1])) == workers:
                    break
                time.sleep(0.1)
            yield Service(int(address[1]), process.pid)
        finally:
            process.terminate()
            process.wait(60)


def _workers(port: int) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    metrics = connection.getresponse().read().decode()
    connection.close()
    match = re.search(r"^iet_workers (\S+)$", metrics, re.MULTILINE)
    return float(match[1]) if match else 0.0


Sample = tuple[float, list[float], float | None]
"""Seconds until all texts were audited, those of each request, and those of processor time."""


def ask_elsewhere(service: Service, folder: pathlib.Path, clients: int) -> Sample:
    """Return what clients in another process say, and what it cost the service."""
    line = [
        sys.executable,
        "-m",
        "benchmarks.speed.service_clients",
        str(service.port),
        str(folder),
        str(clients),
    ]
    processor_before = service.processor()
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    after = service.processor()
    seconds, latencies = json.loads(done.stdout)
    return seconds, latencies, None if processor_before is None or after is None else after - processor_before


def audit(auditor: iet.Auditor, texts: Sequence[str]) -> Sample:
    """Return the same of an `Auditor` in this process."""
    latencies, began, processor_before = [], time.perf_counter(), time.process_time()
    for text in texts:
        started = time.perf_counter()
        json.dumps(auditor.audit(text).to_dict(), ensure_ascii=False).encode()
        latencies.append(time.perf_counter() - started)
    return time.perf_counter() - began, latencies, time.process_time() - processor_before


def validate(port: int, auditor: iet.Auditor, texts: Sequence[str]) -> None:
    """Compare the service's reports with the auditor's."""
    for text in texts:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        body = json.dumps({"text": text}).encode()
        connection.request("POST", "/v1/audit", body, {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
        if answer != json.loads(auditor.audit(text).to_json()):
            raise IetError("the service does not report what the auditor finds")


def measure(samples: dict[str, Callable[[], Sample]], rounds: int) -> dict[str, list[Sample]]:
    """Return the samples of every contestant; one round before warms up."""
    samples_of: dict[str, list[Sample]] = {name: [] for name in samples}
    names = list(samples)
    for number in range(-1, rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            print(f"round {number + 1} of {rounds}: {name} ...", file=sys.stderr, flush=True)
            sample = samples[name]()
            if number >= 0:
                samples_of[name].append(sample)
    return samples_of


def results(samples_of: dict[str, list[Sample]], count: int) -> list[dict[str, object]]:
    """Return a row for each contestant: medians and quartiles over rounds."""
    rates = {name: [count / seconds for seconds, *_ in samples] for name, samples in samples_of.items()}
    rows = []
    for name, samples in samples_of.items():
        percentiles = {
            f"p{percent}_ms": timing.spread(
                [float(np.percentile(latencies, percent)) * 1e3 for _, latencies, _ in samples]
            )
            for percent in (50, 99)
        }
        rate = {
            "requests_per_second": timing.spread(rates[name]),
            "over_floor": timing.ratio(rates[name], rates[FLOOR]),
        }
        costs = [cost / count * 1e3 for _, _, cost in samples if cost is not None]
        cost = {"processor_ms": timing.spread(costs) if costs else None}
        rows.append(plain({"what": name, **rate, **percentiles, **cost}))
    return rows


def main() -> None:
    line = parser("benchmarks.speed.bench_service", __doc__)
    line.add_argument("--data", type=pathlib.Path, help="folder of agent logs")
    line.add_argument("--documents", type=int, default=400, help="in a sample")
    line.add_argument("--rounds", type=int, default=7)
    line.add_argument("--quick", action="store_true", help="tiny: whether it runs, not how fast")
    options = line.parse_args()
    quick, logs = options.quick, given_logs(line, options.data)
    count, rounds = (12, 1) if quick else (options.documents, options.rounds)
    load, registry = environment("tokenizers", "fastapi", "uvicorn"), team()
    texts = documents(logs or [marked_text(registry, 1200 if quick else 20_000)], count)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as open_:
        folder = pathlib.Path(name)
        registry.save(folder / "team.json")
        (folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
        auditor = iet.Auditor(registry)
        services = {workers: open_.enter_context(serve(folder / "team.json", workers)) for workers in (1, 2)}
        validate(services[1].port, auditor, texts[:5])
        samples: dict[str, Callable[[], Sample]] = {FLOOR: functools.partial(audit, auditor, texts)}
        for contestant, (workers, clients) in CONTESTANTS.items():
            samples[contestant] = functools.partial(ask_elsewhere, services[workers], folder, clients)
        samples_of = measure(samples, rounds)
    content: dict[str, Any] = {
        "command": command(line, options),
        "quick": quick,
        "environment": load,
        "documents": len(texts),
        "text": "agent logs" if logs else "the shipped model's",
        "rounds": rounds,
        "results": results(samples_of, len(texts)),
    }
    write(options.output, content, markdown(content))


def markdown(content: dict[str, Any]) -> str:
    def spread(name: str, form: str) -> str:
        return "{0[median]:1} ({0[low]:1} to {0[high]:1})".replace("0[", f"{name}[").replace(":1", f":{form}")

    columns_of = {"what": "{what}", "requests/s": spread("requests_per_second", ",.0f")}
    columns_of |= {f"over {FLOOR}": spread("over_floor", ".2f")}
    columns_of |= {"p50, ms": spread("p50_ms", ".1f"), "p99, ms": spread("p99_ms", ".1f")}
    columns_of |= {"processor, ms a request": spread("processor_ms", ".1f")}
    load = content["environment"]["load"]
    busy = (
        "" if load is None else f", and so does whatever else runs there (load at the start: {load[0]:.1f})"
    )
    parts = [
        f"`{content['command']}` on {content['environment']['machine']['name']}",
        f"{content['documents']:,} documents of about 1,000 tokens a sample, {content['text']}, six agents,"
        f" `posterior`; medians (quartiles) of {content['rounds']} rounds. The clients share the machine's"
        f" {content['environment']['cores']} cores with the service{busy}.",
        columns(content["results"], columns_of),
    ]
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(exit_code(main))
