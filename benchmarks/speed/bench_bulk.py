"""Time audits of many documents, from JSON lines to Parquet, against the same tokenizer call alone.

python -m benchmarks.speed.bench_bulk -o benchmarks/results/bulk.json

Documents of about 1,000 tokens, six agents. Every sample is a process of its own, so that its memory is its
own; contestants run in turn, round after round, and ratios are formed within rounds. The floor is
`encode_batch` on one thread, of texts that lie in memory, with nothing read of its result: no file, no audit,
no table. An audit reads the file, tokenizes, audits and writes both tables. "steady" leaves out what comes
before every worker has done a chunk, such as starting workers and loading compiled loops, which a run of
hours does not see. Processor time, of workers as well, is what a machine that others share changes least.

Documents are cut from the agent logs below --data (who_and_when/), else from text of the shipped model;
if there are too few they are read again.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import multiprocessing
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

if __name__ == "__main__":  # before anything starts threads
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "IET_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

import pyarrow as pa
import pyarrow.parquet as pq

import iet
from benchmarks import timing
from benchmarks.recording import columns, command, environment, exit_code, parser, write
from benchmarks.speed.texts import given_logs, marked_text, team
from iet.audit.records import BATCH_RECORDS
from iet.bulk import files
from iet.bulk.workers import without_pandas
from iet.errors import IetError
from iet.marks.registry import Registry
from iet.marks.tokenizer import DEMO_SOURCE, Tokenizer

TOKENS = 1000
SAMPLE = "--sample"
FLOOR = "encode_batch"
CONTESTANTS = {
    FLOOR: (None, 1),
    "audit, cusum": ("cusum", 1),
    "audit, cusum, two workers": ("cusum", 2),
    "audit, posterior": ("posterior", 1),
    "audit, posterior, two workers": ("posterior", 2),
}
"""Name -> decoder (None: the tokenizer alone) and workers."""


def documents(texts: Sequence[str], count: int) -> list[str]:
    """Cut texts into documents of `TOKENS` tokens; repeated if there are too few."""
    tokenizer, cut = Tokenizer(DEMO_SOURCE), list[str]()
    for text in texts:
        ends = tokenizer.encode(text).char_ends[TOKENS - 1 :: TOKENS].tolist()
        cut += [text[low:high] for low, high in itertools.pairwise([0, *ends])]
    if not cut:
        raise IetError(f"no text has {TOKENS} tokens")
    return list(itertools.islice(itertools.cycle(cut), count))


def validate(registry: Registry, texts: Sequence[str], folder: pathlib.Path) -> None:
    """Compare what is written with `Auditor.audit`, document by document."""
    lines = folder / "few.jsonl"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    names = ("char_start", "char_end", "start", "end", "agent", "best_guess", "log_p", "posterior", "error")
    for decoder in ("cusum", "posterior"):
        auditor = iet.Auditor(registry, decoder)
        files.audit_files(auditor, [lines], folder / f"few {decoder}", chunk_rows=7)
        table_rows = _tables(folder / f"few {decoder}", "segments")
        rows = [[row[name] for name in ("row", *names)] for row in table_rows.to_pylist()]
        expected = list[list[object]]()
        for row, text in enumerate(texts):
            report = auditor.audit(text)
            for segment in report.segments:
                redacted = dataclasses.replace(segment, best_guess=report.redact_guesses(segment).best_guess)
                expected.append([row, *(getattr(redacted, name) for name in names)])
        if rows != expected:
            raise IetError(f"{decoder}: the tables do not hold what audits one by one find")


def _tables(folder: pathlib.Path, kind: str) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob(f"{kind}-*.parquet")))


def sample(name: str, folder: pathlib.Path, chunk_rows: int) -> None:
    """Do one contestant's work in this process, and print what it took."""
    decoder, workers = CONTESTANTS[name]
    marks = list[tuple[int, float, float]]()  # documents, seconds, megabytes so far
    processor_before = 0.0
    if decoder is None:
        lines = (folder / "documents.jsonl").read_text(encoding="utf-8").splitlines()
        texts = [json.loads(line)["text"] for line in lines]
        backend, size = Tokenizer(DEMO_SOURCE).backend, BATCH_RECORDS
        processor_before, started = time.process_time(), time.perf_counter()
        for low in range(0, len(texts), size):
            backend.encode_batch(texts[low : low + size], add_special_tokens=False)
            if (low + size) % chunk_rows < size:
                marks.append((low + size, time.perf_counter() - started, _peak_mb()))
        marks.append((len(texts), time.perf_counter() - started, _peak_mb()))
    else:
        without_pandas()  # as the command line does
        auditor = iet.Auditor(Registry.load(folder / "team.json"), decoder)
        with tempfile.TemporaryDirectory(dir=folder) as out:
            processor_before, started = time.process_time(), time.perf_counter()
            files.audit_files(
                auditor,
                [folder / "documents.jsonl"],
                out,
                workers=workers,
                chunk_rows=chunk_rows,
                progress=lambda state: marks.append(
                    (state.documents, time.perf_counter() - started, _peak_mb())
                ),
            )
            marks.append((marks[-1][0], time.perf_counter() - started, marks[-1][2]))
    ours = resource.getrusage(resource.RUSAGE_SELF)
    theirs = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = sum(usage.ru_utime + usage.ru_stime for usage in (ours, theirs)) - processor_before
    print(json.dumps({"marks": marks, "cpu": spent}))


def _peak_mb() -> float:
    """Return the highest memory so far of this process and its workers."""
    pids = ["self", *(str(child.pid) for child in multiprocessing.active_children())]
    total = 0.0
    for pid in pids:
        status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        total += int(status.split("VmHWM:")[1].split()[0]) / 1024
    return total


def figures(workers: int, marks: Sequence[Sequence[float]], cpu: float) -> dict[str, float]:
    """Return what a sample's marks (documents, seconds, megabytes so far) say."""
    # When the first documents are done, those of other workers nearly are: each must have finished some.
    (first, steady_start, _), (count, seconds, peak) = marks[min(workers, len(marks)) - 1], marks[-1]
    return {
        "cpu": cpu,
        "seconds": seconds,
        "steady": (seconds - steady_start) / max(1, count - first) * count,
        "quarter_mb": next(megabytes for documents, _, megabytes in marks if documents >= count / 4),
        "peak_mb": peak,
    }


def measure(folder: pathlib.Path, rounds: int, chunk_rows: int) -> dict[str, list[dict[str, float]]]:
    def run(name: str) -> dict[str, float]:
        command = [sys.executable, "-m", "benchmarks.speed.bench_bulk", SAMPLE, name]
        command += [str(folder), str(chunk_rows)]
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        process = time.perf_counter() - began
        return {"process": process, **figures(CONTESTANTS[name][1], **json.loads(done.stdout))}

    samples_of: dict[str, list[dict[str, float]]] = {name: [] for name in CONTESTANTS}
    for number in range(rounds):
        names = list(CONTESTANTS)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            print(f"round {number + 1} of {rounds}: {name} ...", file=sys.stderr, flush=True)
            samples_of[name].append(run(name))
    return samples_of


def results(
    samples_of: dict[str, list[dict[str, float]]], count: int, tokens: int
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name, samples in samples_of.items():
        single_worker = samples_of[name.removesuffix(", two workers")]
        values = {key: [figures_of[key] for figures_of in samples] for key in samples[0]}
        floor = {key: [figures_of[key] for figures_of in samples_of[FLOOR]] for key in samples[0]}
        steady = timing.spread(values["steady"])
        row = {
            "what": name,
            "documents_per_second": count / steady.median,
            "tokens_per_second": tokens / steady.median,
            "steady_seconds": steady,
            "seconds": timing.spread(values["seconds"]),
            "process_seconds": timing.spread(values["process"]),
            "over_encode_batch": timing.ratio(values["steady"], floor["steady"]),
            "over_encode_batch_whole": timing.ratio(values["seconds"], floor["seconds"]),
            "cpu_over_encode_batch": timing.ratio(values["cpu"], floor["cpu"]),
            "times_one_worker": timing.ratio(
                [figures_of["steady"] for figures_of in single_worker], values["steady"]
            ),
            "quarter_mb": max(values["quarter_mb"]),
            "peak_mb": max(values["peak_mb"]),
        }
        rows.append(plain(row) | ({"times_one_worker": None} if single_worker is samples else {}))
    return rows


def plain(row: Mapping[str, object]) -> dict[str, object]:
    """Return a row with dictionaries in place of spreads."""
    return {k: dict(v._asdict()) if isinstance(v, timing.Spread) else v for k, v in row.items()}


def main() -> None:
    line = parser("benchmarks.speed.bench_bulk", __doc__)
    line.add_argument("--data", type=pathlib.Path, help="folder of agent logs")
    line.add_argument("--documents", type=int, default=20_000)
    line.add_argument("--rounds", type=int, default=5)
    line.add_argument("--chunk-rows", type=int, default=512)
    line.add_argument("--quick", action="store_true", help="tiny: whether it runs, not how fast")
    options = line.parse_args()
    quick, logs = options.quick, given_logs(line, options.data)
    count, rounds, rows = (60, 1, 20) if quick else (options.documents, options.rounds, options.chunk_rows)
    load, registry = environment("tokenizers", "pyarrow"), team()
    texts = documents(logs or [marked_text(registry, 1200 if quick else 20_000)], count)
    tokens = sum(len(encoding.token_ids) for encoding in Tokenizer(DEMO_SOURCE).encode_batch(texts))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        registry.save(folder / "team.json")
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (folder / "documents.jsonl").write_text(lines, encoding="utf-8")
        validate(registry, texts[: 6 if quick else 40], folder)
        samples_of = measure(folder, rounds, rows)
    content: dict[str, Any] = {
        "command": command(line, options),
        "quick": quick,
        "environment": load,
        "documents": len(texts),
        "distinct": len(set(texts)),
        "tokens": tokens,
        "text": "agent logs" if logs else "the shipped model's",
        "rounds": rounds,
        "keys": len(registry.scoring_keys()),
        "results": results(samples_of, len(texts), tokens),
    }
    write(options.output, content, markdown(content))


def markdown(content: dict[str, Any]) -> str:
    def spread(name: str, form: str = ".2f") -> str:
        return "{0[median]:1} ({0[low]:1} to {0[high]:1})".replace("0[", f"{name}[").replace(":1", f":{form}")

    audited = {
        **{"what": "{what}", "documents/s": "{documents_per_second:,.0f}"},
        **{"tokens/s": "{tokens_per_second:,.0f}", f"over `{FLOOR}`": spread("over_encode_batch")},
        **{"with its start": spread("over_encode_batch_whole")},
        **{"processor time": spread("cpu_over_encode_batch")},
        **{"times one worker": spread("times_one_worker")},
        **{"peak MB after a quarter": "{quarter_mb:.0f}", "at the end": "{peak_mb:.0f}"},
    }
    parts = [
        f"`{content['command']}` on {content['environment']['machine']['name']}",
        f"{content['documents']:,} documents ({content['distinct']:,} distinct) of {content['tokens']:,}"
        f" tokens, {content['text']}, {content['keys']} keys; medians (quartiles) of {content['rounds']}"
        " rounds",
        columns(content["results"], audited),
    ]
    return "\n\n".join(parts)


if __name__ == "__main__":
    if sys.argv[1:2] == [SAMPLE]:
        sample(sys.argv[2], pathlib.Path(sys.argv[3]), int(sys.argv[4]))
    else:
        sys.exit(exit_code(main))
