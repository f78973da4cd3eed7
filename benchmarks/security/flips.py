"""Every byte of what is kept on disk changed: registry, signed report, published index, bulk run.

A changed file is refused by an error of ours, or read as what it was: anything else is a fault.
"""

from __future__ import annotations

import datetime
import hashlib
import pathlib
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow.parquet as pq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from iet.audit.auditor import Auditor
from iet.bulk.files import audit_files
from iet.errors import IetError
from iet.marks.published import PublishedIndex
from iet.marks.registry import Registry
from iet.report import sign

NAMES = ("planner", "critic", "writer")
Kept = tuple[list[pathlib.Path], Callable[[pathlib.Path, bytes], Any]]
"""Files, and what reads them when one of them holds these bytes: the same value, unless it refuses."""


def team(path: pathlib.Path | None = None) -> Registry:
    """Return three agents under the shipped tokenizer, the same keys at every run."""
    registry = Registry.create(path, tokenizer="iet:demo")
    for name in NAMES:
        registry.add(name, secret=hashlib.blake2b(name.encode(), digest_size=32).digest())
    return registry


def registry_file(work: pathlib.Path) -> Kept:
    """A registry, without its tokenizer's file."""
    path = work / "team.json"
    team(path)
    return [path], lambda _, data: Registry.loads(data).dumps()


def signed_report(work: pathlib.Path) -> Kept:
    """A report that is signed, with the key that verifies it in its strict form."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    report = Auditor(team(), "cusum").audit("the planner hands the plan to the critic, who reads it. " * 3)
    path, noon = work / "report.json", datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
    path.write_bytes(sign.sign(report, key, name="final.txt", time=noon))
    return [path], lambda _, data: sign.verify(data, key.public_key(), strict=True)


def published_index(work: pathlib.Path) -> Kept:
    """An index with two texts in it."""
    registry = team()
    index = PublishedIndex(work / "out.idx", registry, create=True)
    for seed, name in enumerate(NAMES[:2]):
        draw = random.Random(seed)
        index.add(name, token_ids=[[draw.randrange(1, 1000) for _ in range(40)]])

    def read(path: pathlib.Path, data: bytes) -> Any:
        path.write_bytes(data)
        return PublishedIndex(index.path, registry).digest

    return sorted(index.path.iterdir()), read


def bulk_run(work: pathlib.Path) -> Kept:
    """The output of a bulk audit, read by going on with it."""
    auditor = Auditor(team(work / "team.json"), "cusum")
    path, out = work / "texts.jsonl", work / "out"
    texts = [f"the {name} hands the plan to number {i} " * 4 for i, name in enumerate(NAMES)]
    path.write_text(
        "".join(f'{{"text": "{text}", "id": "{i}"}}\n' for i, text in enumerate(texts)) + "{broken\n" * 2
    )
    options: dict[str, Any] = {"chunk_rows": 3, "templates": 2}
    audit_files(auditor, [path], out, **options)
    originals = work / "kept"
    shutil.copytree(out, originals)

    def read(changed: pathlib.Path, data: bytes) -> Any:
        for entry in out.iterdir():
            entry.unlink()
        for entry in originals.iterdir():
            shutil.copy(entry, out)
        changed.write_bytes(data)
        return audit_files(auditor, [path], out, resume=True, **options), _rows(out)

    return sorted(entry for entry in out.iterdir() if entry.stat().st_size), read


def _rows(out: pathlib.Path) -> list[Any]:
    all_rows: list[Any] = []
    for path in sorted(out.iterdir()):
        if path.suffix == ".parquet":
            all_rows.append((path.name, pq.read_table(path).to_pylist()))
        elif path.suffix == ".jsonl":
            all_rows.append((path.name, path.read_bytes()))
    return all_rows


KINDS: dict[str, Callable[[pathlib.Path], Kept]] = {
    "registry file": registry_file,
    "signed report": signed_report,
    "published index": published_index,
    "bulk run": bulk_run,
}


def changed(data: bytes, draw: random.Random, every: int, first: int) -> Iterator[tuple[int, bytes]]:
    """Yield place and `data` with the byte there changed, for each `every`-th place from `first` on."""
    for at in range(first, len(data), every):
        yield at, data[:at] + bytes([data[at] ^ draw.randrange(1, 256)]) + data[at + 1 :]


def flip(kind: str, work: pathlib.Path, seed: int, every: int = 1, first: int = 0) -> Counter[str]:
    """Return how many bytes of a kind were changed, and how often the file was refused, or read as before.

    Of each file, each `every`-th byte from `first` on is changed to another value, drawn from a seed.
    """
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    files, read = KINDS[kind](work)
    draw, counts = random.Random(seed), Counter[str](faults=0)
    reading = read(files[0], files[0].read_bytes())
    for path in files:
        data = path.read_bytes()
        for at, changed_data in changed(data, draw, every, first):
            counts["changed"] += 1
            try:
                same = read(path, changed_data) == reading
                counts["read as before" if same else "faults"] += 1
                problem = "" if same else "read as something else"
            except IetError:
                counts["refused"] += 1
                continue
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
                counts["faults"] += 1
            if problem:
                change = f"{data[at]:#04x} to {changed_data[at]:#04x}"
                print(f"{kind}: {path.name}, byte {at}, {change}: {problem:.300}")
        read(path, data)
    shutil.rmtree(work)
    return counts
