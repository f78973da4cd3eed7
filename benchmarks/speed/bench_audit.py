"""Time whole audits, from text to report, against the same tokenizer call alone.

python -m benchmarks.speed.bench_audit -o benchmarks/results/audit.json

Three parts. Six agents on one thread: each text is tokenized and audited in turn; the floor is the call
`encode_batch`, with offsets and without reading anything from its result; ratios are medians over rounds. An
audit can stay below it: with a byte-level tokenizer it does not ask for offsets (iet/marks/tokenizer.py), and
asks for the ids of a word once (iet/marks/word_cache.py). The text is the same in all rounds, so all words
are known; "no word known" clears the cache before each round.
Ten thousand keys: a process of its own on all cores, with its peak memory. The command `iet audit`: whole
processes, with an empty cache of compiled loops (cold) and with a filled one (warm). The shipped model writes
the marked text. With --data, a folder with who_and_when/Hand-Crafted/*.json and corpus/, agent logs are read
from it, also with a byte-level BPE of 32,000 tokens that is trained on its corpus.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

if __name__ == "__main__" and "--ten-thousand" not in sys.argv:  # before anything starts threads
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "IET_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

import tokenizers

import iet
from benchmarks import timing
from benchmarks.recording import columns, command, environment, exit_code, parser, write
from benchmarks.speed.texts import AGENTS, given_logs, marked_text, team
from iet import kernels
from iet.audit import plan
from iet.errors import IetError
from iet.marks.registry import Registry
from iet.marks.tokenizer import DEMO_SOURCE, Tokenizer
from iet.marks.word_cache import WordCache

MANY_KEYS, MANY_TOKENS = 10_000, 4_096
UNREAD = "audit, posterior, no word known"
"""An audit by a tokenizer that has read nothing before."""


def large_tokenizer(data: pathlib.Path) -> tokenizers.Tokenizer:
    """A byte-level BPE of 32,000 tokens, trained on the corpus."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    files = sorted(path for path in (data / "corpus").rglob("*") if path.is_file())
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=32_000, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(
        (path.read_text(encoding="utf-8", errors="replace") for path in files), trainer
    )
    return backend


def validate(registry: Registry, text: str) -> None:
    """Compare scores with the reference, and the audit among many keys with the one that scores them all."""
    ids = Tokenizer(DEMO_SOURCE).encode(text).token_ids[:1500]
    crowd = iet.Auditor(team(AGENTS + tuple(f"stranger {i}" for i in range(1000))))
    isa_before, limit = kernels.backends().isa, plan.ALL_KEYS
    try:
        for isa in timing.isas():
            timing.select_isa(isa)
            timing.validate_score(registry.scoring_keys(), ids)
            plan.ALL_KEYS = limit
            few = crowd.audit(token_ids=ids)
            plan.ALL_KEYS = MANY_KEYS
            every = crowd.audit(token_ids=ids)
            if [(s.start, s.end, s.agent) for s in few.segments] != [
                (s.start, s.end, s.agent) for s in every.segments
            ]:
                raise IetError(f"an audit that reads candidates alone differs from one of all keys on {isa}")
    finally:
        plan.ALL_KEYS = limit
        if isa_before is not None:
            timing.select_isa(isa_before)


def unread(auditor: iet.Auditor, tokenizer: Tokenizer, text: str) -> None:
    """Audit a text with a tokenizer that has read nothing before."""
    tokenizer._words = WordCache(tokenizer.backend, tokenizer._token_lengths)
    auditor.audit(text)


def six_agents(texts: dict[str, tuple[str, Registry]], rounds: int) -> list[dict[str, object]]:
    results: list[dict[str, object]] = []
    for name, (text, registry) in texts.items():
        # One tokenizer for all: each has a cache of words, and the floor is called more often than an audit.
        tokenizer = registry.open_tokenizer()
        backend = tokenizer.backend
        auditors = {
            decoder: iet.Auditor(registry, decoder, tokenizer=tokenizer) for decoder in ("cusum", "posterior")
        }

        def encode(read: bool = False, text: str = text, backend: Any = backend) -> object:
            encoded = backend.encode_batch([text], add_special_tokens=False)[0]
            return (encoded.ids, encoded.offsets) if read else None

        functions: dict[str, Any] = {
            "encode_batch": encode,
            "encode_batch, .ids and .offsets read": lambda encode=encode: encode(True),
            "audit, cusum": lambda text=text, auditor=auditors["cusum"]: auditor.audit(text),
            "audit, posterior": lambda text=text, auditor=auditors["posterior"]: auditor.audit(text),
            UNREAD: functools.partial(unread, auditors["posterior"], tokenizer, text),
        }
        segments = {f"audit, {d}": len(a.audit(text).segments) for d, a in auditors.items()}
        segments[UNREAD] = segments["audit, posterior"]
        tokens = auditors["cusum"].audit(text).tokens
        samples = timing.interleaved(
            {contestant: timing.timed(call) for contestant, call in functions.items()}, rounds
        )
        for contestant, seconds in samples.items():
            value = timing.spread(seconds).median
            results.append(
                {
                    **{
                        "text": name,
                        "tokens": tokens,
                        "what": contestant,
                        "segments": segments.get(contestant),
                    },
                    "milliseconds": value * 1e3,
                    "million_tokens_per_second": tokens / value / 1e6,
                    "over_encode_batch": timing.ratio(seconds, samples["encode_batch"]).median,
                }
            )
    return results


def many_texts(registry: Registry, logs: list[str]) -> list[dict[str, object]]:
    """Many logs, one after another and with `audit_many`, on one thread of the tokenizer each."""
    backend, reader = Tokenizer(DEMO_SOURCE).backend, iet.Auditor(registry)
    functions = {
        "encode_batch of each": lambda: [backend.encode_batch([t], add_special_tokens=False) for t in logs],
        "audit of each": lambda: [reader.audit(text).coverage for text in logs],
        "audit_many": lambda: [report.coverage for report in reader.audit_many(logs)],
    }
    samples = timing.interleaved({name: timing.timed(call) for name, call in functions.items()}, 5)
    return [
        {"what": name, "texts": len(logs), "seconds": timing.spread(seconds).median}
        for name, seconds in samples.items()
    ]


def ten_thousand(text: str) -> None:
    """Print what auditing 4,096 tokens with 10,000 keys takes, as JSON; a process of its own."""
    registry = team(AGENTS + tuple(f"agent {i}" for i in range(6, MANY_KEYS)))
    tokenizer = Tokenizer(DEMO_SOURCE)
    ends = tokenizer.encode(text).char_ends
    text = text[: int(ends[MANY_TOKENS - 1])]
    result: dict[str, object] = {}
    memory_before = _peak_mb()
    for decoder in ("cusum", "posterior"):
        reader = iet.Auditor(registry, decoder)
        seconds = []
        for _ in range(8):
            started = time.perf_counter()
            report = reader.audit(text)
            seconds.append(time.perf_counter() - started)
        result[decoder] = {"seconds": statistics.median(seconds[1:]), "tokens": report.tokens}
    print(json.dumps({**result, "peak_mb": _peak_mb(), "peak_mb_before": memory_before}))


def _peak_mb() -> float:
    # Not ru_maxrss, which begins at what the parent process held.
    status = pathlib.Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def many_keys(text: str) -> list[dict[str, object]]:
    command = [sys.executable, "-m", "benchmarks.speed.bench_audit", "--ten-thousand"]
    several = {k: v for k, v in os.environ.items() if k not in ("IET_NUM_THREADS", "TOKENIZERS_PARALLELISM")}
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True, env=several)
    measured = json.loads(done.stdout)
    peaks = {key: measured.pop(key) for key in ("peak_mb", "peak_mb_before")}
    return [{"decoder": decoder, **values, **peaks} for decoder, values in measured.items()]


def processes(registry: Registry, text: str) -> list[dict[str, object]]:
    """Whole processes of `iet audit`: cold, warm, and one that only imports what it is made of."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        registry.save(folder / "team.json")
        (folder / "final.txt").write_text(text, encoding="utf-8")

        def run(cache: str, *arguments: str) -> float:
            environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / cache)}
            environment.pop("PYTHONDONTWRITEBYTECODE", None)  # bytecode is kept, as elsewhere
            started = time.perf_counter()
            subprocess.run(
                [sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL, check=True
            )
            return time.perf_counter() - started

        seconds: dict[str, list[float]] = {}
        for i in range(7):
            imports = run("none", "-c", "import numba, tokenizers")
            seconds.setdefault("import numba, tokenizers", []).append(imports)
            for decoder in ("cusum", "posterior"):
                files = [str(folder / "final.txt"), "-r", str(folder / "team.json")]
                audit = ["-m", "iet", "audit", *files, "--decoder", decoder]
                if i < 3:
                    seconds.setdefault(f"iet audit, {decoder}, cold", []).append(run(f"{decoder}{i}", *audit))
                seconds.setdefault(f"iet audit, {decoder}, warm", []).append(run(f"{decoder}0", *audit))
    return [
        {"what": contestant, "seconds": statistics.median(values)}
        for contestant, values in sorted(seconds.items())
    ]


def main() -> None:
    line = parser("benchmarks.speed.bench_audit", __doc__)
    line.add_argument("--data", type=pathlib.Path, help="folder of agent logs and a corpus")
    line.add_argument("--tokens", type=int, default=10_000, help="of the marked text, at least")
    line.add_argument("--rounds", type=int, default=31)
    options = line.parse_args()
    logs = given_logs(line, options.data)
    registry = team()
    text = marked_text(registry, options.tokens)
    validate(registry, text)
    texts = {"marked": (text, registry)}
    if logs:
        sizes = itertools.accumulate(len(log) for log in logs)
        text_count = 1 + next(i for i, size in enumerate(sizes) if size > 6 * options.tokens)
        joined = "\n".join(logs[:text_count])
        texts["agent logs"] = (joined, registry)
        texts["agent logs, 32k BPE"] = (joined, team(tokenizer=large_tokenizer(options.data)))
    content: dict[str, Any] = {
        "command": command(line, options),
        "left_out": [] if logs else ["agent logs: no --data"],
        "environment": environment("tokenizers"),
        "six_agents": six_agents(texts, options.rounds),
        "many_texts": many_texts(registry, logs) if logs else [],
        "many_keys": many_keys(text),
        "processes": processes(registry, text),
    }
    write(options.output, content, markdown(content))


def markdown(content: dict[str, Any]) -> str:
    six = {
        **{"text": "{text}", "tokens": "{tokens}", "what": "{what}", "segments": "{segments}"},
        **{"ms": "{milliseconds:.3f}", "over `encode_batch`": "{over_encode_batch:.3f}"},
    }
    keys = {
        **{"decoder": "{decoder}", "tokens": "{tokens}", "seconds": "{seconds:.3f}"},
        **{"peak MB of the process": "{peak_mb:.3f}", "before the first audit": "{peak_mb_before:.3f}"},
    }
    many = {"what": "{what}", "texts": "{texts}", "seconds": "{seconds:.3f}"}
    parts = [f"Left out: {reason}." for reason in content["left_out"]]
    parts += ["Six agents, one thread", columns(content["six_agents"], six)]
    if content["many_texts"]:
        parts += ["Many texts, one after another", columns(content["many_texts"], many)]
    parts += [f"{MANY_KEYS:,} keys, all cores", columns(content["many_keys"], keys)]
    parts.append("Whole processes on the marked text; cold: with an empty cache of compiled loops")
    parts.append(columns(content["processes"], {"what": "{what}", "seconds": "{seconds:.3f}"}))
    return "\n\n".join(parts)


if __name__ == "__main__":
    if "--ten-thousand" in sys.argv:
        ten_thousand(sys.stdin.read())
    else:
        sys.exit(exit_code(main))
