"""Documents that mean harm, made by code, through the command line: as files, and by the thousand.

Every run must satisfy: exit code 0, no traceback, nothing on the terminal that is not printable, and a
row or a quarantined record for each document.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
import os
import pathlib
import random
import resource
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from benchmarks.security.flips import team
from iet.cli import main

NAMES = (
    "plain",
    "\x1b[2J\x1b]0;title\x07escape",
    "\u202egnp.txt\u202c",
    "zero\u200b\u200d\u2060width\ufeff",
    "line\nbreak\r\ttab",
    "-o",
    "--resume",
    "*[a-z]?",
    "%s%n{0}",
    "=cmd|' !A1",
    "<script>alert(1)</script>"[:40].replace("/", "\u2215"),
    "' \" ; $(touch x) `id`",
    "e\u0301" * 40,
    "x" * 240,
    os.fsdecode(b"caf\xe9\xff"),
    "\u0000".replace("\u0000", "\u2400"),
)
"""Of files: escapes, directions, joiners, line ends, options, patterns, formulas, bytes that are no UTF-8."""


def deep(depth: int) -> bytes:
    return b'{"text": ' + b"[" * depth + b"]" * depth + b"}"


def lines(size: int) -> list[bytes]:
    """Return lines of JSON, or of something else; `size` is that of the longest."""
    return [
        b'{"text": "a plain text of a few words"}',
        deep(1000),
        deep(100_000),
        b"[" * 1_000_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"text": "' + b"x" * size + b'"}',
        b"x" * size,
        b'{"text": "\xff\xfe\x80"}',
        b'{"text": "\xed\xa0\x80"}',
        b'{"text": "\\ud800"}',
        b'{"text": "\\udfff\\ud800 a"}',
        b'{"text": "a\\u0000b"}',
        b'{"text": "a\x00b"}',
        b"\xef\xbb\xbf" + b'{"text": "behind a mark"}',
        '{"text": "utf-16"}'.encode("utf-16"),
        '{"text": "one\u2028two\u2029three\x85four"}'.encode(),
        b'{"text": "one", "text": "two", "text": ["three"]}',
        b'{"text": ' + b"9" * 5000 + b"}",
        b'{"text": 1e999}',
        b'{"text": NaN}',
        b'{"text": true}',
        b'{"text": {"text": {"text": "a"}}}',
        b'{"id": {"a": 1}, "text": "an id that is an object"}',
        b'{"id": "\\ud800", "text": "an id that is no Unicode"}',
        json.dumps({"id": "\x1b[2J\u202e" * 1000, "text": "an id with escapes"}).encode(),
        json.dumps({"text": "many keys", **{f"key {i}": i for i in range(100_000)}}).encode(),
        json.dumps({"text": "\u0301" * 200_000}).encode(),
        json.dumps({"text": "e\u0301\u0316" * 100_000}, ensure_ascii=False).encode(),
        json.dumps({"text": "\U000e0041\u200d\ufe0f" * 50_000}).encode(),
        json.dumps({"text": "\u202e\u2066" * 50_000}).encode(),
        json.dumps({"text": " " * 500_000}).encode(),
        json.dumps({"text": "\n" * 300_000}).encode(),
        json.dumps({"text": "👩\u200d👩\u200d👧" * 20_000}).encode(),
        json.dumps({"text": "".join(map(chr, range(0x20, 0xD800, 3)))}).encode(),
        b'{"tex\\u0074": "a key in escapes"}',
        b'{"text": "no end',
        b'"text"',
        b"null",
        b"{}",
        b"\x00" * 1000,
    ]


def _zst(blocks: Iterator[bytes], **options: Any) -> bytes:
    packer = zstandard.ZstdCompressor(level=3, **options).compressobj()
    return b"".join(packer.compress(block) for block in blocks) + packer.flush()


def packed(size: int) -> dict[str, bytes]:
    """Return contents of compressed files: bombs of `size`, files that end early or go on wrong."""
    plain = b'{"text": "a plain text"}\n' * 50
    zeros = (b"0" * (1 << 20) for _ in range(size >> 20))
    many = (b'{"text": ""}\n' for _ in range(20_000))
    frame, gz = zstandard.compress(plain), gzip.compress(plain)
    skippable = b"\x50\x2a\x4d\x18" + (1 << 10).to_bytes(4, "little") + bytes(1 << 10)
    return {
        "bomb.jsonl.zst": _zst(zeros),
        "lines.jsonl.zst": _zst(many),
        "bomb.jsonl.gz": gzip.compress(b"0" * size),
        "twice.jsonl.zst": zstandard.compress(zstandard.compress(plain * 1000)),
        "frames.jsonl.zst": frame * 300 + zstandard.compress(b"") * 300,
        "cut.jsonl.zst": frame[:-5],
        "cut.jsonl.gz": gz[:-9],
        "garbage.jsonl.zst": frame + b"garbage",
        "garbage.jsonl.gz": gz + b"garbage",
        "skipped.jsonl.zst": skippable + frame + skippable,
        "window.jsonl.zst": b"\x28\xb5\x2f\xfd\x00\xff" + frame[6:],
        "dictionary.jsonl.zst": b"\x28\xb5\x2f\xfd\x03\x00\x01\x02\x03\x04" + frame[6:],
        "empty.jsonl.zst": b"",
        "no.jsonl.gz": b"\x1f\x8b",
    }


def parquets(seed: int) -> dict[str, bytes]:
    """Return contents of Parquet files: whole, cut off, and with bytes changed."""

    def content(table: pa.Table, **options: Any) -> bytes:
        file = io.BytesIO()
        pq.write_table(table, file, **options)
        return file.getvalue()

    draw, texts = random.Random(seed), ["one", None, "", "x" * 10_000, "\u0301" * 1000] * 20
    complete = content(pa.table({"text": texts}), row_group_size=16)
    variants = {
        "whole": complete,
        "large strings": content(pa.table({"text": pa.array(texts, pa.large_string())})),
        "no rows": content(pa.table({"text": pa.array([], pa.string())})),
        "magic alone": b"PAR1PAR1",
        "empty": b"",
        "text": b"no Parquet at all\n" * 100,
        "huge footer": complete[:-8] + b"\xff\xff\xff\x7fPAR1",
    }
    for part in range(1, 10):
        variants[f"cut {part}"] = complete[: len(complete) * part // 10]
    for number in range(10):
        at = draw.randrange(4, len(complete) - 12)
        variants[f"changed {number}"] = complete[:at] + bytes([draw.randrange(256)]) + complete[at + 1 :]
    return {f"{name}.parquet": data for name, data in variants.items()}


def texts() -> dict[str, bytes]:
    """Return contents of text files."""
    draw = random.Random(0)
    return {
        "nothing": b"",
        "binary": draw.randbytes(200_000),
        "pdf": b"%PDF-1.7\n" + draw.randbytes(1000),
        "zip": b"PK\x03\x04" + draw.randbytes(1000),
        "NUL": b"\0" * 100_000,
        "utf-16": "in another encoding".encode("utf-16"),
        "utf-32": "in another encoding".encode("utf-32"),
        "surrogates": b"\xed\xa0\x80\xed\xb0\x80",
        "overlong": b"\xc0\x80\xe0\x80\x80",
        "marks": ("a" + "\u0301\u0316" * 100_000).encode(),
        "escapes": b"\x1b[31m\x1b]8;;http://x\x07" * 1000,
        "one line": b"word " * 200_000,
        "words": b"planner hands the plan to the critic " * 2000,
    }


def folder(work: pathlib.Path, seed: int, size: int) -> int:
    """Write the corpus, and return the number of documents of whose number there is no doubt."""
    work.mkdir(parents=True)
    records = lines(size)
    (work / "lines.jsonl").write_bytes(b"\n".join(records))
    (work / "returns.jsonl").write_bytes(b"\r\n".join(records[7:26]))
    (work / "packed.jsonl.zst").write_bytes(zstandard.compress(b"\n".join(records[7:])))
    for name, data in {**packed(size), **parquets(seed)}.items():
        (work / name).write_bytes(data)
    for name, data in texts().items():
        (work / f"{name}.txt").write_bytes(data)
    named = work / "named"
    for name in NAMES:
        (named / name[:60]).mkdir(parents=True)
        (named / name[:60] / f"{name}.txt").write_text("the planner hands the plan to the critic")
    os.mkfifo(work / "pipe.txt")
    (work / "nowhere.txt").symlink_to("does not exist")
    (work / "round").symlink_to(work)
    (work / "folder.txt").mkdir()
    return len(records) + 19 + len(records[7:]) + len(texts()) + len(NAMES)


def audited(work: pathlib.Path, seed: int, size: int) -> Counter[str]:
    """Audit the corpus by `iet audit`, twice, the second time going on, and count what came of it.

    Every problem is printed, and counted as a fault. "peak MB" is the largest of the processes' memory.
    """
    shutil.rmtree(work, ignore_errors=True)
    sure = folder(work / "in", seed, size)
    team(work / "team.json")
    out, counts = work / "out", Counter[str](faults=0)
    options = [str(work / "in"), "-r", str(work / "team.json"), "-o", str(out), "--decoder", "cusum"]
    command = [sys.executable, "-m", "iet", "audit", *options, "--csv", "--pages", "--chunk-rows", "512"]

    def fault(problem: str) -> None:
        counts["faults"] += 1
        print(f"hostile documents, seed {seed}: {problem:.1500}")

    for more in ([], ["--resume"]):
        done = subprocess.run([*command, *more], capture_output=True)
        output = done.stdout + done.stderr
        if done.returncode != 0 or b"Traceback" in output:
            fault(f"exit code {done.returncode}: {output[-1200:].decode(errors='replace')}")
            return counts
        if not printable(output.decode("utf-8", "replace")):
            fault(f"not printable: {output!r}")
    documents, bad = rows(out)
    counts["documents read"], counts["records in quarantine"] = len(documents), len(bad)
    if len(documents) + len(bad) < sure:
        fault(f"{len(documents)} documents and {len(bad)} in quarantine, expected {sure} or more")
    for row in documents:
        if problem := wrong(row):
            fault(f"{problem}: {row}")
    counts["peak MB"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
    shutil.rmtree(work)
    return counts


def printable(output: str) -> bool:
    """Tell whether a terminal shows this unchanged: no escapes, no letters that change its direction."""
    return all(letter.isprintable() or letter in "\n\r" for letter in output)


def rows(out: pathlib.Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the documents of a run, and what it put into quarantine."""
    documents = [
        row for path in sorted(out.glob("documents-*.parquet")) for row in pq.read_table(path).to_pylist()
    ]
    bad = [json.loads(line) for path in sorted(out.glob("quarantine-*")) for line in path.open("rb")]
    return documents, bad


def wrong(row: dict[str, Any]) -> str | None:
    """Return what no document's row can say."""
    if not (0 <= row["coverage"] <= 1 and 0 <= row["scored"] <= row["tokens"]):
        return "a share or a number out of range"
    if math.isnan(row["log_p"]) or row["log_p"] > 0:
        return "no p-value"
    return None


LETTERS: tuple[Callable[[random.Random], str], ...] = (
    lambda draw: draw.choice(["the plan ", "critic ", "and ", "planner", " hands", ", ", ". ", "\n\n"]),
    lambda draw: chr(draw.randrange(0x20, 0x7F)),
    lambda draw: chr(draw.randrange(0x20)),
    lambda draw: chr(draw.randrange(0x300, 0x370)),
    lambda draw: draw.choice("\u200b\u200c\u200d\u2060\ufeff\u00ad\u034f\u115f\u3164\ufe0f\U000e0100"),
    lambda draw: draw.choice("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2069\u061c\u200f"),
    lambda draw: chr(draw.randrange(0xA0, 0xD800)),
    lambda draw: chr(draw.randrange(0xE000, 0x110000)),
    lambda draw: chr(draw.randrange(0x1F300, 0x1FA00)) + draw.choice(["", "\u200d", "\U0001f3fd"]),
    lambda draw: chr(draw.randrange(0xAC00, 0xD7A4)) + chr(draw.randrange(0x1100, 0x1200)),
    lambda draw: chr(draw.randrange(0xD800, 0xE000)),
    lambda draw: draw.choice("ab\u0301 \u200b") * draw.randrange(1, 200),
    lambda draw: draw.choice(["<|endoftext|>", "<s>", "</s>", "\ufffd", "<script>", "%s", "${x}", "\x1b[2J"]),
)
"""What hostile texts are made of; the lone surrogates are no text, and go to the quarantine."""


def text(draw: random.Random) -> str:
    """Return a text of up to a few hundred letters, of a few kinds."""
    kinds = draw.choices(LETTERS, k=draw.randrange(1, 5))
    if LETTERS[10] in kinds and draw.random() < 0.8:
        kinds = [LETTERS[0]]
    return "".join(draw.choice(kinds)(draw) for _ in range(draw.randrange(0, draw.choice([8, 60, 400]))))


def by_the_thousand(work: pathlib.Path, seed: int, count: int) -> Counter[str]:
    """Audit texts that a seed draws by one call of the command line, and count what came of them."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    team(work / "team.json")
    draw, counts = random.Random(seed), Counter[str](texts=count, faults=0)
    lines = [json.dumps({"text": text(draw)}) for _ in range(count)]
    sent = [json.loads(line)["text"] for line in lines]  # two halves of a letter are joined
    (work / "texts.jsonl").write_text("".join(line + "\n" for line in lines))
    decoder = ("cusum", "posterior", "window")[seed % 3]
    command = [
        "audit",
        work / "texts.jsonl",
        "-r",
        work / "team.json",
        "-o",
        work / "out",
        "--decoder",
        decoder,
    ]
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()) as captured:
        code = main([str(part) for part in command])
    documents, bad = rows(work / "out")
    lone = {
        i for i, sentence in enumerate(sent) if any("\ud800" <= letter <= "\udfff" for letter in sentence)
    }
    problems = [problem for row in documents if (problem := wrong(row))]
    if {row["row"] for row in bad} != lone or len(documents) + len(bad) != count:
        problems.append(
            f"{len(documents)} documents and {len(bad)} in quarantine, expected {len(lone)} there"
        )
    if code != 0 or not printable(captured.getvalue()):
        problems.append(f"exit code {code}: {captured.getvalue()!r:.500}")
    for problem in problems[:5]:
        print(f"hostile texts, seed {seed}: {problem}")
    counts.update({"faults": len(problems), "not Unicode, in quarantine": len(bad)})
    counts["somebody found"] = sum(row["coverage"] > 0 for row in documents)
    shutil.rmtree(work)
    return counts
