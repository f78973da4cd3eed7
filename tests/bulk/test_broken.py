"""Broken, huge and changing files, registries and folders: what they cost a run, and how it goes on."""

from __future__ import annotations

import collections
import errno
import gzip
import json
import os
import pathlib
import random
import shutil
import tracemalloc
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from iet.audit.auditor import Auditor
from iet.bulk import run as bulk_run
from iet.bulk import sources
from iet.bulk.files import audit_files
from iet.bulk.line_reader import Refused, lines
from iet.bulk.progress import Progress
from iet.bulk.storage import Stored
from iet.errors import IetError, InputError
from iet.marks.registry import Registry
from tests.support.commands import run
from tests.support.conditions import posix


def json_lines(start: int, count: int, length: int = 60) -> bytes:
    draw = random.Random(start)
    texts = ["".join(draw.choices("abcdefgh ", k=length)) for _ in range(count)]
    return b"".join(json.dumps({"text": text, "id": i}).encode() + b"\n" for i, text in enumerate(texts))


def rows(out: pathlib.Path) -> list[dict[str, Any]]:
    return [row for path in sorted(out.glob("documents-*")) for row in pq.read_table(path).to_pylist()]


def quarantine(out: pathlib.Path) -> list[dict[str, Any]]:
    lines = [line for path in sorted(out.glob("quarantine-*")) for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def written(out: pathlib.Path) -> dict[str, int]:
    """The documents of a run: a file that is written again has another number."""
    return {path.name: path.stat().st_ino for path in out.glob("documents-*")}


class Stopped(Exception):
    pass


def stop_after(chunks: int) -> Any:
    seen = list[object]()

    def progress(state: object) -> None:
        seen.append(state)
        if len(seen) == chunks:
            raise Stopped

    return progress


def test_workers_refuse_a_registry_that_changed(auditor: Auditor, tmp_path: pathlib.Path) -> None:
    shutil.copy(str(auditor._registry.path), tmp_path / "team.json")  # type: ignore[union-attr]
    reader = Auditor(Registry.load(tmp_path / "team.json"), "cusum")
    Registry.load(tmp_path / "team.json").add("stranger")
    (tmp_path / "a.jsonl").write_bytes(json_lines(1, 4))
    with pytest.raises(IetError, match=r"registry_digest: was .* is .* the registry has changed"):
        audit_files(reader, [tmp_path / "a.jsonl"], tmp_path / "out", chunk_rows=1, workers=2)
    assert not written(tmp_path / "out")
    audit_files(reader, [tmp_path / "a.jsonl"], tmp_path / "out", chunk_rows=1, resume=True)


def test_a_truncated_file_among_six_costs_its_end(
    auditor: Auditor, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_run, "CHUNK_SIZE", 1500)  # each file is a group of its own
    complete = [gzip.compress(json_lines(i, 60)) for i in range(6)]
    for i, data in enumerate(complete):
        (tmp_path / f"{i}.jsonl.gz").write_bytes(data[: len(data) // 2] if i == 2 else data)
    out, patterns = tmp_path / "out", [tmp_path / "*.gz"]
    summary = audit_files(auditor, patterns, out, chunk_rows=50)
    assert (summary.broken, summary.quarantined) == (1, 0)
    assert "1 files could not be read to their end" in "\n".join(summary.lines())
    (broken,) = quarantine(out)
    assert broken["file"] == str(tmp_path / "2.jsonl.gz")
    assert 0 < broken["row"] == sum(row["file"] == broken["file"] for row in rows(out)) < 60
    assert summary.documents == 300 + broken["row"]
    assert audit_files(auditor, patterns, out, chunk_rows=50, resume=True) == summary

    previous = written(out)
    (tmp_path / "2.jsonl.gz").write_bytes(complete[2])
    with pytest.raises(InputError, match=r"inputs\[2\].bytes: was .*--reread"):
        audit_files(auditor, patterns, out, chunk_rows=50, resume=True)
    with pytest.raises(InputError) as caught:  # other files are another run
        audit_files(auditor, [tmp_path / "[0-4].*"], out, chunk_rows=50, resume=True)
    assert "--reread" not in str(caught.value)
    with pytest.raises(InputError, match="reread: got True without resume"):
        audit_files(auditor, patterns, out, chunk_rows=50, reread=True)
    command = ["audit", *patterns, "-r", str(auditor._registry.path), "--decoder", "cusum", "-o", out]  # type: ignore[union-attr]
    assert run(*command, "--chunk-rows", 50, "--resume", "--reread", "--max-text", 1 << 23) == 0
    mended = audit_files(auditor, patterns, out, chunk_rows=50, resume=True)
    assert (mended.documents, mended.broken) == (360, 0)
    unchanged = {name for name, number in written(out).items() if previous.get(name) == number}
    assert {name for name in previous if "-000002-" not in name} <= unchanged  # the other files' chunks
    audit_files(auditor, patterns, tmp_path / "fresh", chunk_rows=50)
    assert rows(tmp_path / "fresh") == rows(out)
    assert not quarantine(out)
    assert audit_files(auditor, patterns, out, chunk_rows=50, resume=True) == mended

    (tmp_path / "2.jsonl.gz").write_bytes(gzip.compress(json_lines(2, 10)))  # fewer chunks than before
    assert audit_files(auditor, patterns, out, chunk_rows=50, resume=True, reread=True).documents == 310
    assert len(rows(out)) == 310


def test_reread_takes_back_that_other_shards_are_complete(auditor: Auditor, tmp_path: pathlib.Path) -> None:
    path, out = tmp_path / "a.jsonl", tmp_path / "out"
    path.write_bytes(json_lines(1, 6))
    for i in (1, 2):
        audit_files(auditor, [path], out, chunk_rows=1, shard=(i, 2))
    path.write_bytes(json_lines(1, 5) + json_lines(9, 2))
    rerun: dict[str, Any] = {"chunk_rows": 1, "resume": True, "reread": True}
    assert audit_files(auditor, [path], out, shard=(1, 2), **rerun).documents == 4
    assert not (out / "shard-2-of-2.json").exists()
    assert audit_files(auditor, [path], out, shard=(2, 2), **rerun).documents == 3
    assert len(rows(out)) == 7


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet", "txt"])
def test_records_beyond_the_limit_go_to_the_quarantine(
    auditor: Auditor, tmp_path: pathlib.Path, kind: str
) -> None:
    path, out = tmp_path / f"a.{kind}", tmp_path / "out"
    texts = ["short", "x" * 5000, "after", "y" * 4990]
    plain = b"\n".join(json.dumps({"text": text}).encode() for text in texts)
    if kind == "txt":
        path.write_text(texts[1])
        (tmp_path / "b.txt").write_text("short")
    elif kind == "parquet":
        pq.write_table(pa.table({"text": texts}), path)
    else:
        pack: dict[str, Any] = {"jsonl": bytes, "jsonl.gz": gzip.compress, "jsonl.zst": zstandard.compress}
        path.write_bytes(pack[kind](plain))
    summary = audit_files(auditor, [tmp_path / "*.*"], out, max_record=4000, chunk_rows=1)
    bad = quarantine(out)
    assert bad[0]["reason"].startswith("got 5,0")
    assert all("expected at most 4,000 (max_record, --max-text)" in line["reason"] for line in bad)
    assert summary.quarantined == len(bad) == (1 if kind == "txt" else 2)
    assert {row["tokens"] > 0 for row in rows(out)} == {True}
    previous = written(out)
    # Another limit changes no chunk, so that a run that is short of memory can go on with a lower one.
    assert audit_files(auditor, [tmp_path / "*.*"], out, max_record=10, chunk_rows=1, resume=True) == summary
    assert written(out) == previous
    if kind != "txt":
        next(iter(sorted(out.glob("documents-*1.parquet")))).unlink()
        more = audit_files(auditor, [tmp_path / "*.*"], out, max_record=9000, chunk_rows=1, resume=True)
        assert more.documents == summary.documents + 1


def test_a_bomb_is_read_in_bounded_memory(tmp_path: pathlib.Path) -> None:
    """256 MB of zeros in 8 kB: one line, then many."""
    for name, block in (("line", b"0" * (1 << 20)), ("lines", (b"0" * 1023 + b"\n") * 1024)):
        packer = zstandard.ZstdCompressor(level=19).compressobj()
        data = b"".join(packer.compress(block) for _ in range(256)) + packer.flush()
        path = tmp_path / f"{name}.jsonl.zst"
        path.write_bytes(data)
        tracemalloc.start()
        result = [(number, line) for number, line, _ in lines(str(path), len(data), 1 << 16)][-2:]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(data) < 1 << 16
        assert isinstance(result[-1][1], Refused)
        assert "grows to more than 67,108,864 bytes" in str(result[-1][1])
        assert result[-1][1].ends_file
        assert (1 << 26) <= result[0][0] * 1024 + (1 << 26) * (name == "line") <= (1 << 26) + 1024
        assert peak < (1 << 26) + (1 << 24) if name == "line" else True


def test_frames_of_a_few_bytes(tmp_path: pathlib.Path) -> None:
    path, records = tmp_path / "a.jsonl.zst", [f"{i}\n".encode() for i in range(3000)]
    path.write_bytes(b"".join(zstandard.compress(record) + zstandard.compress(b"") for record in records))
    assert [line for _, line, _ in lines(str(path), path.stat().st_size, 100)] == records
    path.write_bytes(path.read_bytes()[:-1])
    assert isinstance([line for _, line, _ in lines(str(path), path.stat().st_size, 100)][-1], Refused)


def test_a_change_in_the_middle_of_a_file_is_noticed(
    auditor: Auditor, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_EDGE", 64)
    path, out = tmp_path / "a.jsonl", tmp_path / "out"
    path.write_bytes(json_lines(1, 30))
    with pytest.raises(Stopped):
        audit_files(auditor, [path], out, chunk_rows=2, progress=stop_after(12))
    previous = written(out)
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"a.jsonl, row 10, to row 11: not what was audited before"):
        audit_files(auditor, [path], out, chunk_rows=2, resume=True)
    audit_files(auditor, [path], out, chunk_rows=2, resume=True, reread=True)
    changed = [name for name, number in previous.items() if written(out)[name] != number]
    assert changed == ["documents-000000-000005.parquet"]
    audit_files(auditor, [path], tmp_path / "fresh", chunk_rows=2)
    assert rows(out) == rows(tmp_path / "fresh")


def test_documents_that_cannot_be_read_again_are_made_again(auditor: Auditor, tmp_path: pathlib.Path) -> None:
    path, out = tmp_path / "a.jsonl", tmp_path / "out"
    path.write_bytes(json_lines(1, 6))
    summary, previous = audit_files(auditor, [path], out, chunk_rows=2), rows(out)
    standing = sorted(out.glob("documents-*"))
    standing[1].write_bytes(standing[1].read_bytes()[:-40])
    assert audit_files(auditor, [path], out, chunk_rows=2, resume=True) == summary
    assert rows(out) == previous


@pytest.mark.parametrize("kind", ["documents", "segments", "quarantine"])
def test_a_chunk_of_which_a_byte_changed_is_made_again(
    auditor: Auditor, tmp_path: pathlib.Path, kind: str
) -> None:
    path, out = tmp_path / "a.jsonl", tmp_path / "out"
    path.write_bytes(json_lines(1, 6) + b"{broken\n")
    summary = audit_files(auditor, [path], out, chunk_rows=7)
    previous = rows(out), pq.read_table(out / "segments-000000-000000.parquet"), quarantine(out)
    (damaged,) = out.glob(f"{kind}-*")
    data = damaged.read_bytes()
    for at in range(5, len(data), len(data) // 7):
        damaged.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        assert audit_files(auditor, [path], out, chunk_rows=7, resume=True) == summary
        after = rows(out), pq.read_table(out / "segments-000000-000000.parquet"), quarantine(out)
        assert after == previous, at
    assert damaged.read_bytes() == data
    damaged.unlink()
    assert audit_files(auditor, [path], out, chunk_rows=7, resume=True) == summary
    assert damaged.read_bytes() == data


def test_nothing_stays_of_a_chunk_that_the_input_has_no_more(
    auditor: Auditor, tmp_path: pathlib.Path
) -> None:
    path, out = tmp_path / "a.jsonl", tmp_path / "out"
    path.write_bytes(json_lines(1, 5) + b"{broken\n")
    audit_files(auditor, [path], out, chunk_rows=2)
    (out / "documents-000000-000002.parquet").unlink()  # as if a kill had prevented its writing
    path.write_bytes(json_lines(1, 3))
    summary = audit_files(auditor, [path], out, chunk_rows=2, resume=True, reread=True)
    assert (summary.documents, summary.quarantined) == (3, 0)
    assert not quarantine(out)
    assert not list(out.glob("*-000002.*"))


@posix
def test_folders_that_are_not_read_stop_the_run_or_are_named(
    auditor: Auditor, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs, elsewhere = tmp_path / "docs", tmp_path / "elsewhere"
    for folder in (docs / "inner", elsewhere):
        folder.mkdir(parents=True)
        (folder / "a.txt").write_text("w1 w2")
    (docs / "link").symlink_to(elsewhere)
    summary = audit_files(auditor, [str(docs)], tmp_path / "out")
    assert (summary.documents, dict(summary.not_read)) == (1, {"links to folders": 1})
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if str(path).endswith("inner"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError, match="inner"):
        audit_files(auditor, [str(docs)], tmp_path / "out2")
    assert not (tmp_path / "out2").exists()


def test_results_below_the_texts_are_not_read(auditor: Auditor, tmp_path: pathlib.Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a.txt").write_text("w1 w2")
    assert audit_files(auditor, [str(docs)], docs / "out").documents == 1
    rerun = audit_files(auditor, [str(docs)], tmp_path / "out")
    assert rerun.documents == 1
    assert rerun.not_read == {"results of an audit": len(list((docs / "out").iterdir()))}
    assert sources.not_read_note(rerun.not_read).endswith(" not read: results of an audit 5")
    assert "convert them" in sources.not_read_note({**rerun.not_read, ".pdf": 1})


def test_a_folder_that_cannot_be_written_is_named(auditor: Auditor, tmp_path: pathlib.Path) -> None:
    path, lock = tmp_path / "a.jsonl", tmp_path / "out" / ".shard-1-of-1.lock"
    path.write_bytes(json_lines(1, 2))
    lock.mkdir(parents=True)
    with pytest.raises(InputError, match=r"\.shard-1-of-1\.lock: cannot be written \("):
        audit_files(auditor, [path], tmp_path / "out")


def test_a_folder_that_is_swapped_is_not_reported_complete(auditor: Auditor, tmp_path: pathlib.Path) -> None:
    path, out = tmp_path / "a.jsonl", tmp_path / "out"
    path.write_bytes(json_lines(1, 30))

    def swap(state: Progress) -> None:
        if state.documents == 5:
            out.rename(tmp_path / "moved")
            out.mkdir()
            shutil.copy(tmp_path / "moved" / "run.json", out)

    with pytest.raises(InputError, match="the folder was moved or replaced during the run"):
        audit_files(auditor, [path], out, chunk_rows=1, progress=swap)
    assert os.listdir(out) == ["run.json"]  # nothing is written to a folder of someone else
    shutil.rmtree(out)
    (tmp_path / "moved").rename(out)
    assert audit_files(auditor, [path], out, chunk_rows=1, resume=True).documents == 30


def test_chunks_that_vanish_during_a_run_are_missed(auditor: Auditor, tmp_path: pathlib.Path) -> None:
    path, out = tmp_path / "a.jsonl", tmp_path / "out"
    path.write_bytes(json_lines(1, 30))

    def lose(state: Progress) -> None:
        if state.documents == 20:
            for number in range(5):
                (out / f"documents-000000-{number:06d}.parquet").unlink()

    with pytest.raises(InputError, match="5 of 30 chunks are missing"):
        audit_files(auditor, [path], out, chunk_rows=1, progress=lose)
    assert not json.loads((out / "shard-1-of-1.json").read_text())["complete"]
    assert audit_files(auditor, [path], out, chunk_rows=1, resume=True).documents == 30


def test_too_little_memory_is_no_broken_file(
    auditor: Auditor, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"text": [f"text {i}" for i in range(9)]}), tmp_path / "a.parquet")
    complete = pq.ParquetFile.iter_batches

    def short(self: pq.ParquetFile, size: int, **options: Any) -> Any:
        yield next(complete(self, 3, **options))
        raise pa.lib.ArrowMemoryError("malloc of size 314572864 failed")

    with monkeypatch.context() as full:
        full.setattr(pq.ParquetFile, "iter_batches", short)
        with pytest.raises(InputError, match=r"a.parquet: out of memory; resume where there is more"):
            audit_files(auditor, [tmp_path / "a.parquet"], tmp_path / "out")
    result = audit_files(auditor, [tmp_path / "a.parquet"], tmp_path / "out", resume=True)
    assert (result.documents, result.broken) == (9, 0)


def test_a_changed_group_of_an_input_is_noticed(auditor: Auditor, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines(0, 5))
    (tmp_path / "b.jsonl").write_bytes(json_lines(1, 5))
    inputs, out = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"], tmp_path / "out"
    audit_files(auditor, inputs, out)
    run_json = out / "run.json"
    content = json.loads(run_json.read_text())
    for groups in ([1, 0], [0, 2], [2, 2]):
        for entry, group in zip(content["inputs"], groups, strict=True):
            entry["group"] = group
        run_json.write_text(json.dumps(content))
        with pytest.raises(InputError, match=r"run.json: damaged, its groups are \["):
            audit_files(auditor, inputs, out, resume=True)


def test_results_of_audits_in_a_store_are_counted_and_not_read() -> None:
    names = (
        "a.jsonl",
        "b.bin",
        "old/run.json",
        "old/documents-0.parquet",
        "old/sub/x.jsonl",
        "runs/run.json",
    )
    result = [Stored(f"s3://b/corpus/{name}", 1, "") for name in names]
    unread = collections.Counter[str]()
    below = sources._below("s3://b/corpus", result, None, unread, sources.documents())
    read = [entry.path for entry in below]
    assert read == ["s3://b/corpus/a.jsonl"]
    assert unread == {".bin": 1, ".json": 1, sources.RESULTS: 3}
