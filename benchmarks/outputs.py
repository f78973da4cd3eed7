"""Write the outputs of commands and calls on fixed texts, so that two states of the code can be compared.

    python -m benchmarks.outputs FOLDER        # in this checkout
    python -m benchmarks.outputs OTHER         # in a checkout of the commit before
    diff -r FOLDER OTHER

A refactoring that changes no result leaves every file equal. The texts, their registry and their keys come
from the demo's seed. Times, durations and paths are blanked.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq

import iet
from benchmarks.recording import exit_code

BLANKED = [
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)?"), "TIME"),
    (re.compile(r"\d+(?:\.\d+)? (?:m?s|documents/s|MB/s)\b"), "DURATION"),
    (re.compile(r'"(seconds|audit_seconds|started|finished|host|pid)": [^,\n}]+'), r'"\1": BLANK'),
]

AUDITS: dict[str, list[str]] = {
    "default": [],
    "cusum": ["--decoder", "cusum"],
    "window": ["--decoder", "window"],
    "forced": ["--forced"],
    "forced_cusum": ["--forced", "--decoder", "cusum"],
    "tokens": ["--attributed", "tokens"],
    "level": ["--level", "0.0001"],
    "decoys": ["--decoys", "500"],
    "known": ["--known", "planner", "--known", "critic"],
    "spans": ["--span", "100:4000", "--skip", "700:900"],
    "as_copied": ["--as-copied"],
    "model": ["--model", "iet:demo"],
    "published": ["--published", "published.idx"],
}


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield a name and the arguments of `iet`, in the order of their runs, all in one folder."""
    keys = ["-r", "team.json"]
    yield "index", ["index", "add", "published.idx", "published.txt", "--agent", "researcher", *keys]
    for (name, options), text in itertools.product(AUDITS.items(), ("final", "short", "edited")):
        yield f"audit_{name}_{text}", ["audit", f"{text}.txt", *keys, *options]
        yield f"audit_{name}_{text}_json", ["audit", f"{text}.txt", *keys, *options, "--json"]
    yield "audit_messages", ["audit", "messages.json", "--messages", *keys, "--json"]
    yield (
        "check",
        ["check", "messages.json", *keys, "-o", "check.json", "-o", "check.html", "-o", "check.csv"],
    )
    outputs = itertools.chain.from_iterable(
        ("-o", f"report.{end}") for end in ("html", "json", "dot", "prov.json")
    )
    yield "report", ["audit", "final.txt", *keys, *outputs]
    for decoder in ("posterior", "cusum"):
        bulk = ["audit", "documents.jsonl", *keys, "--decoder", decoder, "--csv", "--fdr", "0.05"]
        yield f"bulk_{decoder}", [*bulk, "-o", f"bulk_{decoder}", "--chunk-rows", "16"]
    yield "bulk_pages", ["audit", "documents.jsonl", *keys, "-o", "bulk_pages", "--pages"]
    yield "bulk_templates", ["audit", "documents.jsonl", *keys, "-o", "bulk_templates", "--templates", "2"]
    yield "plan", ["calibrate", "--plan", "--agents", "4", "--turn-tokens", "200", "--entropy", "1.5"]


def make_inputs(folder: pathlib.Path) -> None:
    """Write the demo's text and registry, and what else the commands read."""
    subprocess.run(
        [sys.executable, "-m", "iet", "demo", "--out", str(folder)], check=True, capture_output=True
    )
    text = (folder / "final.txt").read_text(encoding="utf-8")
    turns = json.loads((folder / "truth.json").read_text(encoding="utf-8"))["turns"]
    pieces = [(turn["agent"], text[turn["char_start"] : turn["char_end"]]) for turn in turns]
    plain = (pathlib.Path(iet.__file__).parent.parent / "LICENSE").read_text(encoding="utf-8")[:6000]
    (folder / "short.txt").write_text(text[600:900])
    words = text.split(" ")
    (folder / "edited.txt").write_text(
        " ".join("thing" if i % 9 == 0 else w for i, w in enumerate(words)) + plain
    )
    (folder / "published.txt").write_text(pieces[1][1])
    messages = [{"role": "assistant", "name": name, "content": piece} for name, piece in pieces]
    messages[3]["name"] = "critic"  # a wrong name
    messages.append({"role": "user", "name": "someone", "content": plain})
    (folder / "messages.json").write_text(json.dumps(messages))
    documents = [{"id": f"turn {at}", "text": piece} for at, (_, piece) in enumerate(pieces)]
    documents += [{"id": f"all {at}", "text": text[start:]} for at, start in enumerate((0, 2000, 5000))]
    documents += [{"id": "plain", "text": plain}, {"id": "empty", "text": ""}, {"id": "again", "text": text}]
    documents += [{"id": f"piece {at}", "text": text[at * 300 : at * 300 + 450]} for at in range(20)]
    with (folder / "documents.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(document) + "\n" for document in documents)
        file.write('{"id": "broken", "text": 3}\n')


def python_calls(folder: pathlib.Path) -> Iterator[tuple[str, Any]]:
    """Yield a name and a JSON value of what the Python interface returns."""
    registry, text = (
        iet.Registry.load(folder / "team.json"),
        (folder / "edited.txt").read_text(encoding="utf-8"),
    )
    for decoder in ("posterior", "cusum", "window"):
        report = iet.Auditor(registry, decoder).audit(text)
        yield (
            f"python_{decoder}",
            {
                "token_agents": report.token_agents.tolist(),
                "transitions": report.transitions.dense(registry.names()).confidence.tolist(),
                "report": json.loads(report.to_json()),
            },
        )


def service_answers(folder: pathlib.Path) -> Iterator[tuple[str, Any]]:
    """Yield a name and what `iet serve` answers, with its status."""
    text = (folder / "final.txt").read_text(encoding="utf-8")
    messages = json.loads((folder / "messages.json").read_text(encoding="utf-8"))
    lines = "".join(
        json.dumps({"id": name, "text": content}) + "\n" for name, content in (("a", text), ("b", ""))
    )
    requests: dict[str, tuple[str, Any]] = {
        "audit": ("/v1/audit", {"text": text}),
        "audit_cusum": ("/v1/audit", {"text": text, "decoder": "cusum", "level": 0.001}),
        "audit_spans": ("/v1/audit", {"text": text, "spans": [[0, 3000]], "known_agents": ["planner"]}),
        "audit_messages": ("/v1/audit", {"messages": messages}),
        "audit_wrong": ("/v1/audit", {"text": text, "decoder": "none"}),
        "check": ("/v1/check", {"messages": messages}),
        "batch": ("/v1/audit/batch", lines),
        "openapi": ("/openapi.json", None),
    }
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "iet", "serve", "-r", "team.json", "--no-auth", "--port", str(port)]
    with subprocess.Popen(
        command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stderr is not None
        while "http://" not in server.stderr.readline():
            assert server.poll() is None
        try:
            for name, (path, body) in requests.items():
                client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                kind = "application/x-ndjson" if isinstance(body, str) else "application/json"
                sent = body if isinstance(body, str) or body is None else json.dumps(body)
                client.request("GET" if body is None else "POST", path, sent, {"Content-Type": kind})
                answer = client.getresponse()
                yield f"service_{name}", [answer.status, answer.read().decode().splitlines()]
                client.close()
        finally:
            server.terminate()


def blank(text: str, folder: pathlib.Path) -> str:
    for pattern, instead in BLANKED:
        text = pattern.sub(instead, text)
    return text.replace(str(folder), "FOLDER")


def main() -> None:
    line = argparse.ArgumentParser(prog="python -m benchmarks.outputs", description=__doc__.split("\n")[0])
    line.add_argument("folder", type=pathlib.Path)
    folder = line.parse_args().folder.resolve()
    work = folder / "work"
    work.mkdir(parents=True)
    make_inputs(work)
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    for name, arguments in commands():
        ran = subprocess.run(
            [sys.executable, "-m", "iet", *arguments],
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
        )
        parts = (
            f"$ iet {' '.join(arguments)}",
            ran.stdout,
            "--- stderr",
            ran.stderr,
            f"--- exit {ran.returncode}",
        )
        (folder / f"{name}.txt").write_text(blank("\n".join(parts), work))
    for name, value in itertools.chain(python_calls(work), service_answers(work)):
        (folder / f"{name}.json").write_text(blank(json.dumps(value, indent=1), work))
    for path in sorted(work.rglob("*.parquet")):
        rows = pq.read_table(path).to_pylist()
        path.with_suffix(".json").write_text(json.dumps(rows, indent=1, default=str))
        path.unlink()
    shutil.rmtree(work / "published.idx")  # hashes under a key that is drawn
    for path in sorted(path for path in work.rglob("*") if path.is_file()):
        try:
            path.write_text(blank(path.read_text(encoding="utf-8"), work))
        except UnicodeDecodeError:
            path.unlink()


if __name__ == "__main__":
    sys.exit(exit_code(main))
