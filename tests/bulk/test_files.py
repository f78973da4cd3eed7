"""Audits of files: formats, bad records, shards, and resuming after kills."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from iet.audit.auditor import Auditor
from iet.audit.evidence import benjamini_hochberg
from iet.bulk.files import audit_files
from iet.bulk.job import DOCUMENTS, SEGMENTS
from iet.bulk.summary import Summary
from iet.cli import main
from iet.errors import InputError
from iet.marks.registry import Registry
from tests.support.bulk_documents import documents
from tests.support.conditions import posix

LINES = [b'{"text": "one", "id": 1}', b"{broken", b'{"text": null}', b"", b'{"text": "two", "id": "b"}']


def json_lines(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"text": t, "id": f"d{i}"}).encode() + b"\n" for i, t in enumerate(texts))


def tables(out: pathlib.Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Documents, segments and quarantined records, in order, of everything in a folder."""
    rows: tuple[list[dict[str, Any]], ...] = ([], [])
    for document_rows, kind, schema in zip(
        rows, ("documents", "segments"), (DOCUMENTS, SEGMENTS), strict=True
    ):
        for path in sorted(out.glob(f"{kind}-*.parquet")):
            table = pq.read_table(path)
            assert table.schema == schema
            document_rows.extend(table.to_pylist())
    lines = [line for path in sorted(out.glob("quarantine-*")) for line in path.read_text().splitlines()]
    return rows[0], rows[1], [json.loads(line) for line in lines]


def expected_rows(auditor: Auditor, origins: list[tuple[str, int, str | None]], texts: list[str]) -> Any:
    """Documents and segments as `Auditor.audit` finds them."""
    rows, parts = [], []
    for (file, row, id), text in zip(origins, texts, strict=True):
        report = auditor.audit(text)
        document_rows = auditor.audit_batch(pa.RecordBatch.from_pydict({"text": [text]})).to_pylist()[0]
        origin = {"file": file, "row": row, "id": id}
        assert document_rows["log_p"] == report.log_p
        assert [s["char_end"] for s in document_rows["segments"]] == [s.char_end for s in report.segments]
        parts += [
            {**origin, "segment": i, **segment} for i, segment in enumerate(document_rows.pop("segments"))
        ]
        del document_rows["problem"]
        rows.append({**origin, **document_rows, "segments": len(report.segments)})
    return rows, parts


WRITERS: dict[str, Callable[[pathlib.Path, list[str]], object]] = {
    "a.jsonl": lambda path, texts: path.write_bytes(json_lines(texts)),
    "a.jsonl.gz": lambda path, texts: path.write_bytes(gzip.compress(json_lines(texts))),
    "a.ndjson.zst": lambda path, texts: path.write_bytes(
        b"".join(zstandard.compress(json_lines(texts)[i : i + 5000]) for i in range(0, 10**6, 5000))
    ),
    "a.parquet": lambda path, texts: pq.write_table(
        pa.table({"text": texts, "id": [f"d{i}" for i in range(len(texts))], "other": texts}),
        path,
        row_group_size=4,
    ),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize(("chunk_rows", "in_folder"), [(3, True), (4096, False)])
def test_formats(
    registry: Registry, auditor: Auditor, tmp_path: pathlib.Path, name: str, chunk_rows: int, in_folder: bool
) -> None:
    path, texts = tmp_path / (name.upper() if in_folder else name), documents(registry)
    WRITERS[name](path, texts)
    source = tmp_path if in_folder else path
    summary = audit_files(auditor, [source], tmp_path / "out", chunk_rows=chunk_rows)
    document_rows, segments, bad = tables(tmp_path / "out")
    origins: list[Any] = [(str(path), i, f"d{i}") for i in range(len(texts))]
    assert (document_rows, segments) == expected_rows(auditor, origins, texts)
    assert not bad
    assert summary == Summary(
        documents=len(texts),
        segments=len(segments),
        quarantined=0,
        tokens=sum(row["tokens"] for row in document_rows),
        attributed=sum(row["coverage"] > 0 for row in document_rows),
        unattributed=sum(row["coverage"] < 1 for row in document_rows),
    )
    assert summary.attributed >= 3
    assert len(list((tmp_path / "out").glob("documents-*"))) == -(-len(texts) // chunk_rows)
    state = json.loads((tmp_path / "out" / "shard-1-of-1.json").read_text())
    assert state["complete"]
    assert state["documents"] == len(texts)


def test_texts_and_token_ids(registry: Registry, auditor: Auditor, tmp_path: pathlib.Path) -> None:
    texts = documents(registry)
    (tmp_path / "in" / "deep").mkdir(parents=True)
    names = [f"in/{'deep/' * (i % 2)}{i:02}.txt" for i in range(len(texts))]
    for name, text in zip(names, texts, strict=True):
        (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    (tmp_path / "in" / ".hidden.txt").write_text("no")
    audit_files(auditor, [tmp_path / "in"], tmp_path / "in" / "out", chunk_rows=4)
    order = sorted(range(len(texts)), key=lambda i: str(tmp_path / names[i]))
    origins = [(str(tmp_path / names[i]), 0, None) for i in order]
    document_rows, segments, _ = tables(tmp_path / "in" / "out")
    assert (document_rows, segments) == expected_rows(auditor, origins, [texts[i] for i in order])

    ids = [registry.open_tokenizer().encode(text).token_ids.tolist() for text in texts]
    pq.write_table(pa.table({"token_ids": pa.array(ids, pa.list_(pa.int32()))}), tmp_path / "ids.parquet")
    (tmp_path / "ids.jsonl").write_text("".join(json.dumps({"token_ids": i}) + "\n" for i in ids))
    audit_files(auditor, [str(tmp_path / "ids.*")], tmp_path / "ids")
    rows, parts, _ = tables(tmp_path / "ids")
    assert [row["log_p"] for row in rows] == [auditor.audit(token_ids=i).log_p for i in ids] * 2
    assert all(part["char_start"] is None and part["end"] > part["start"] for part in parts)


def test_names_of_documents(auditor: Auditor, tmp_path: pathlib.Path) -> None:
    """The column "id" is kept if it exists; another one is kept if it is requested, and must exist."""
    lines = [b'{"text": "one", "id": "\\ud800"}', b'{"text": "two", "name": "n"}', b'{"text": "three"}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    pq.write_table(pa.table({"text": ["four"], "name": ["m"]}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"text": ["five"], "id": [5]}), tmp_path / "c.parquet")
    for id_column, names in ((None, ["\\ud800", None, None, None, "5"]), ("name", [None, "n", None, "m"])):
        files = [tmp_path / name for name in ("a.jsonl", "b.parquet", "c.parquet")][: 2 if id_column else 3]
        audit_files(auditor, files, tmp_path / f"out-{id_column}", id_column=id_column)
        documents, segments, bad = tables(tmp_path / f"out-{id_column}")
        assert [row["id"] for row in documents] == names
        assert {row["id"] for row in segments} == {*names}
        assert not bad
    with pytest.raises(
        InputError, match=r"c\.parquet: columns: got \['text', 'id'\], expected 'name' among them"
    ):
        audit_files(auditor, [tmp_path / "c.parquet"], tmp_path / "other", id_column="name")


@pytest.mark.parametrize("workers", [1, 2])
def test_progress_counts_within_a_chunk(auditor: Auditor, tmp_path: pathlib.Path, workers: int) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "one two"}\n' * 150)
    seen = list[Any]()
    audit_files(auditor, [tmp_path / "a.jsonl"], tmp_path / "out", progress=seen.append, workers=workers)
    assert [state.documents for state in seen] == [64, 128, 150]
    assert [round(150 * state.share) for state in seen] == [64, 128, 150]
    assert [state.share for state in seen] == [state.fresh for state in seen]


def test_bad_records_are_quarantined(auditor: Auditor, tmp_path: pathlib.Path) -> None:
    lines = [*LINES, b'{"text": "\xff"}', b"[1]", b'{"id": 5}', b'{"text": 3}', b'{"text": "\\ud800"}', b"  "]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    summary = audit_files(auditor, [tmp_path / "a.jsonl"], tmp_path / "out", id_column="id", chunk_rows=2)
    document_rows, _, bad = tables(tmp_path / "out")
    assert [(row["row"], row["id"], row["tokens"] > 0) for row in document_rows] == [
        (0, "1", True),
        (4, "b", True),
    ]
    assert [(row["row"], row["reason"].split(" (")[0]) for row in bad] == [
        (1, "not a line of JSON"),
        (2, "got null, expected text"),
        (5, "not a line of JSON"),
        (6, "got list, expected an object with 'text'"),
        (7, "got the fields ['id'], expected 'text' among them"),
        (8, "got int 3, expected text"),
        (9, "character 0 is the lone surrogate U+D800, expected text that UTF-8 can hold"),
    ]
    assert [row["id"] for row in bad] == [None, None, None, None, "5", None, None]
    assert (summary.documents, summary.quarantined) == (2, 7)
    (tmp_path / "b.txt").write_bytes(b"\xe9")
    assert audit_files(auditor, [tmp_path / "b.txt"], tmp_path / "b").quarantined == 1
    (tmp_path / "c.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "one"}\n\xff\xfe\n')
    assert audit_files(auditor, [tmp_path / "c.jsonl"], tmp_path / "c").documents == 1
    assert "'utf-8' codec" in tables(tmp_path / "c")[2][0]["reason"]  # lines of JSON are in nothing else


def test_what_is_refused_before_any_work(auditor: Auditor, tmp_path: pathlib.Path) -> None:
    good, out = tmp_path / "a.jsonl", tmp_path / "out"
    good.write_bytes(json_lines(["one"]))
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "nothing.jsonl").write_text('{"body": "a"}')
    pq.write_table(pa.table({"text": [1]}), tmp_path / "numbers.parquet")
    pq.write_table(pa.table({"token_ids": [[1]]}), tmp_path / "ids.parquet")
    (tmp_path / "empty").mkdir()
    cases: list[tuple[list[str], dict[str, Any], str]] = [
        (["missing.jsonl"], {}, "missing.jsonl: cannot be read"),
        (["empty"], {}, "empty: got no .parquet"),
        (["*.csv"], {}, "csv: got no .parquet"),
        (["a.jsonl", "./a.jsonl"], {}, "got it twice"),
        (["broken.parquet"], {}, "broken.parquet: got no readable Parquet file"),
        (["numbers.parquet"], {}, "expected strings"),
        (["a.jsonl", "ids.parquet"], {}, "expected 'text' among them"),
        (["ids.parquet", "a.txt"], {}, "expected one of both"),
        (["a.txt", "ids.parquet"], {}, "expected one of both"),
        (["a.jsonl"], {"text_column": "body"}, "expected 'body' among them"),
        (["a.jsonl"], {"id_column": "key"}, "expected 'key' among them"),
        (["a.txt"], {"id_column": "key"}, "got a text"),
        (["a.jsonl"], {"workers": 0}, "workers: got 0"),
        (["a.jsonl"], {"workers": 1025}, "workers: got 1025, expected an int from 1 to 1024"),
        (["a.jsonl"], {"chunk_rows": True}, "chunk_rows: got True"),
        (["a.jsonl"], {"shard": (3, 2)}, "shard: got"),
        (["a.jsonl"], {"shard": (1, 2), "fdr": 0.1}, "expected one shard"),
        (["a.jsonl"], {"fdr": 2}, "fdr: got 2"),
        (["a.jsonl"], {"shard": (1, 2), "csv": True}, "csv, pages: got shard 1/2"),
        (["a.jsonl"], {"templates": 2, "pages": True}, "expected neither"),
        (["a.jsonl"], {"max_record": 0}, "max_record: got 0"),
        (["a.jsonl"], {"encoding": "morse"}, "encoding: got 'morse'"),
        (["nothing.jsonl"], {}, "got ['body'], expected 'text' or 'token_ids' among them"),
    ]
    for inputs, options, message in cases:
        with pytest.raises(InputError) as raised:
            audit_files(auditor, [f"{tmp_path}/{name}" for name in inputs], out, **options)
        assert message in str(raised.value)
        assert not out.exists()
    out.mkdir()
    (out / "mine.txt").write_text("keep")
    with pytest.raises(InputError, match=r"got a folder with \['mine.txt'\]"):
        audit_files(auditor, [good], out)
    assert os.listdir(out) == ["mine.txt"]


def test_a_compressed_file_that_ends_too_early(auditor: Auditor, tmp_path: pathlib.Path) -> None:
    text = json_lines([f"text {i} {random.Random(i).random()}" for i in range(6000)])
    for name, data in (("a.jsonl.gz", gzip.compress(text)), ("a.jsonl.zst", zstandard.compress(text))):
        (tmp_path / name).write_bytes(data[: len(data) * 9 // 10])
        summary = audit_files(auditor, [tmp_path / name], tmp_path / f"out-{name}", chunk_rows=500)
        document_rows, _, bad = tables(tmp_path / f"out-{name}")
        assert (summary.broken, summary.quarantined) == (1, 0)
        assert 1000 < len(document_rows) == bad[0]["row"] < 6000
        assert [line["rest"] for line in bad] == [True]
        assert bad[0]["reason"].startswith("the rest of the file is not read: ")
        (tmp_path / name).write_bytes(data[:15])
        with pytest.raises(InputError, match=f"{name}: the rest of the file is not read"):
            audit_files(auditor, [tmp_path / name], tmp_path / "nothing")
        assert not (tmp_path / "nothing").exists()


def test_another_configuration_is_refused_and_named(
    registry: Registry, auditor: Auditor, tmp_path: pathlib.Path
) -> None:
    path, out = tmp_path / "a.jsonl", tmp_path / "out"
    path.write_bytes(json_lines(["one", "two", "three"]))
    audit_files(auditor, [path], out, chunk_rows=1)
    with pytest.raises(InputError, match="holds the results of an earlier run; expected --resume"):
        audit_files(auditor, [path], out, chunk_rows=1)
    previous = tables(out)
    assert audit_files(auditor, [path], out, chunk_rows=1, resume=True).documents == 3
    assert tables(out) == previous
    other_registry = Registry.loads(registry.dumps())
    other_registry.add("stranger")
    cases: list[tuple[Auditor, dict[str, Any], str]] = [
        (Auditor(registry), {}, 'auditor.decoder: was "cusum", is "posterior"'),
        (Auditor(registry, "cusum", level=0.05), {}, "auditor.level: was 0.01, is 0.05"),
        (Auditor(registry, "cusum", tau=0.2), {}, "auditor.options.tau: was null, is 0.2"),
        (Auditor(other_registry, "cusum"), {}, "auditor.registry_digest: was"),
        (auditor, {"chunk_rows": 2}, "chunk_rows: was 1, is 2"),
        (auditor, {"shard": (1, 2)}, "shards: was 1, is 2"),
        (auditor, {"id_column": "text"}, 'columns.id: was "id", is "text"'),
    ]
    for reader, options, message in cases:
        with pytest.raises(InputError) as raised:
            audit_files(reader, [path], out, **{"chunk_rows": 1, "resume": True, **options})
        assert message in str(raised.value)
    path.write_bytes(json_lines(["one", "two", "thorn"]))
    with pytest.raises(InputError, match=r"inputs\[0\].edges_sha256: was"):
        audit_files(auditor, [path], out, chunk_rows=1, resume=True)
    assert tables(out) == previous
    assert "critic" not in (out / "run.json").read_text()  # digests, no agents, no secrets


def test_shards_partition_the_work(registry: Registry, auditor: Auditor, tmp_path: pathlib.Path) -> None:
    texts = documents(registry) * 2
    (tmp_path / "a.jsonl").write_bytes(json_lines(texts[:7]) + b"{broken\n")
    WRITERS["a.parquet"](tmp_path / "b.parquet", texts[7:])
    inputs = [tmp_path / "a.jsonl", tmp_path / "b.parquet"]
    complete = audit_files(auditor, inputs, tmp_path / "whole", chunk_rows=4)
    parts = [audit_files(auditor, inputs, tmp_path / "cut", shard=(i, 3), chunk_rows=4) for i in (2, 3, 1)]
    assert tables(tmp_path / "whole") == tables(tmp_path / "cut")
    assert sum(part.documents for part in parts) == complete.documents == len(texts)
    assert sum(part.quarantined for part in parts) == complete.quarantined == 1
    assert min(part.documents for part in parts) > 0


def test_workers_write_the_same_files(registry: Registry, auditor: Auditor, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines(documents(registry)) + b"{broken\n")
    seen = list[Any]()
    single = audit_files(auditor, [tmp_path / "a.jsonl"], tmp_path / "1", chunk_rows=2)
    two = audit_files(
        auditor, [tmp_path / "a.jsonl"], tmp_path / "2", chunk_rows=2, workers=2, progress=seen.append
    )
    assert single == two
    assert [state.documents for state in seen] == sorted(state.documents for state in seen)
    assert (seen[-1].documents, seen[-1].share, seen[-1].fresh) == (len(documents(registry)) + 1, 1, 1)
    assert "100% done, 0:00:00 left" in str(seen[-1])
    for path in sorted((tmp_path / "1").glob("*-0*")):
        assert (tmp_path / "2" / path.name).read_bytes() == path.read_bytes()


def test_discoveries_over_documents(registry: Registry, auditor: Auditor, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines(documents(registry)))
    summary = audit_files(auditor, [tmp_path / "a.jsonl"], tmp_path / "out", chunk_rows=4, fdr=0.05)
    log_p = np.array([row["log_p"] for row in tables(tmp_path / "out")[0]])
    assert (benjamini_hochberg(log_p, 0.05) == (log_p <= summary.fdr_log_p)).all()
    assert summary.fdr_documents == (log_p <= summary.fdr_log_p).sum() >= 4


@posix
def test_a_kill_at_any_moment_loses_and_doubles_nothing(
    registry: Registry, auditor: Auditor, tmp_path: pathlib.Path
) -> None:
    """Twenty kills at random times; each process continues the work of the killed one."""

    def chunks(out: pathlib.Path) -> int:
        return len(list(out.glob("documents-*")))

    texts = [text for text in documents(registry) for _ in range(5)]
    path = tmp_path / "a.jsonl"
    path.write_bytes(json_lines(texts) + b"{broken\n")
    started = time.perf_counter()
    audit_files(auditor, [path], tmp_path / "whole", chunk_rows=4)
    span = time.perf_counter() - started
    complete, draw, chunk_s = tables(tmp_path / "whole"), random.Random(7), span / chunks(tmp_path / "whole")
    # A fork of this process has all modules already, so that kills hit the work and not the imports.
    fork = multiprocessing.get_context("fork")
    kills = interrupted = rounds = 0
    while kills < 20:
        out = tmp_path / f"out{rounds}"
        process = fork.Process(
            target=audit_files, args=(auditor, [path], out), kwargs={"chunk_rows": 4, "resume": True}
        )
        # So many chunks later, then some time in a chunk: a slow machine is killed in the middle, too.
        target = chunks(out) + draw.randrange(3)
        process.start()
        while chunks(out) < target and process.is_alive():
            time.sleep(0.001)
        process.join(draw.uniform(0, 2 * chunk_s))
        process.kill()
        process.join()
        if process.exitcode == -signal.SIGKILL:
            kills += 1
            interrupted += chunks(out) > 0
            document_rows, segments, _ = tables(out)
            done = {row["row"] for row in document_rows}
            standing = [row for row in segments if row["row"] in done]
            assert len(standing) == sum(
                row["segments"] for row in document_rows
            )  # segments are written before documents
        else:
            assert process.exitcode == 0
            rounds += 1
    assert interrupted >= 10
    for i in range(rounds + 1):
        audit_files(auditor, [path], tmp_path / f"out{i}", chunk_rows=4, resume=True)
        assert tables(tmp_path / f"out{i}") == complete
        assert not list((tmp_path / f"out{i}").glob(".*.tmp"))


@posix
def test_a_killed_worker_is_replaced_and_a_killed_run_ends_its_workers(
    registry: Registry, auditor: Auditor, tmp_path: pathlib.Path
) -> None:
    path, out = tmp_path / "a.jsonl", tmp_path / "out"
    path.write_bytes(json_lines(documents(registry) * 3))
    killed = list[int]()

    def kill_one(state: object) -> None:
        if len(killed) < 2:
            killed.append(multiprocessing.active_children()[0].pid or 0)
            os.kill(killed[-1], signal.SIGKILL)

    summary = audit_files(auditor, [path], out, chunk_rows=1, workers=2, progress=kill_one)
    assert (summary.documents, len(killed)) == (len(documents(registry)) * 3, 2)
    assert not multiprocessing.active_children()
    audit_files(auditor, [path], tmp_path / "whole", chunk_rows=1)
    assert tables(out) == tables(tmp_path / "whole")
    command = [sys.executable, "-m", "iet", "audit", str(path), "-r", str(registry.path)]
    options = ["-o", str(tmp_path / "again"), "--decoder", "cusum", "--chunk-rows", "1", "--workers", "2"]
    run = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL)
    while not list((tmp_path / "again").glob("documents-*")) and run.poll() is None:
        time.sleep(0.01)
    run.kill()
    run.wait()
    summary = audit_files(auditor, [path], tmp_path / "again", chunk_rows=1, resume=True)
    assert summary.documents == len(documents(registry)) * 3
    assert tables(tmp_path / "again") == tables(tmp_path / "whole")


@posix
def test_ctrl_c_says_so_and_nothing_else(registry: Registry, tmp_path: pathlib.Path) -> None:
    """It reaches all processes of a terminal; here while the workers start."""
    path, out = tmp_path / "a.jsonl", tmp_path / "out"
    path.write_bytes(json_lines(documents(registry) * 20))
    command = [sys.executable, "-m", "iet", "audit", str(path), "-r", str(registry.path), "-o", str(out)]
    run = subprocess.Popen(
        [*command, "--chunk-rows", "1", "--workers", "2"],
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not (out / "run.json").exists() and run.poll() is None:
        time.sleep(0.01)
    time.sleep(0.3)
    os.killpg(run.pid, signal.SIGINT)
    output = b"what is done is kept, and the same command with --resume goes on from there"
    assert run.communicate()[1] == b"iet: interrupted; " + output + b"\n"
    assert run.returncode == 130
    assert not json.loads((out / "shard-1-of-1.json").read_text())["complete"]


@posix
def test_two_processes_on_one_shard(auditor: Auditor, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines(["one", "two"]))

    def second(state: object) -> None:
        with pytest.raises(InputError, match="another process is at work on shard 1/1"):
            audit_files(auditor, [tmp_path / "a.jsonl"], tmp_path / "out", resume=True)
        seen.append(state)

    seen = list[object]()
    audit_files(auditor, [tmp_path / "a.jsonl"], tmp_path / "out", progress=second)
    assert seen


def test_command(
    registry: Registry, auditor: Auditor, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = documents(registry)
    (tmp_path / "a.jsonl").write_bytes(json_lines(texts) + b"{broken\n")
    command = ["audit", str(tmp_path / "a.jsonl"), "-r", str(registry.path), "--decoder", "cusum"]
    out = ["--out", f"{tmp_path}/out/", "--column", "id=id"]
    assert main([*command, *out, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["documents"], summary["quarantined"]) == (len(texts), 1)
    origins: list[Any] = [(str(tmp_path / "a.jsonl"), i, f"d{i}") for i in range(len(texts))]
    assert tables(tmp_path / "out")[:2] == expected_rows(auditor, origins, texts)
    assert main([*command, *out]) == 3
    assert "expected --resume" in capsys.readouterr().err
    assert main([*command, *out, "--resume", "--fail-on", "attributed", "--fdr", "0.1"]) == 1
    names_shown = capsys.readouterr().out
    assert "1 record could not be read: quarantine-*.jsonl says why" in names_shown
    assert "at a false-discovery rate of 0.1:" in names_shown
    for wrong in ([], [*out, "--span", "0:3"], [*out, "--shard", "0/3"], [*out, "-", "--workers", "2"]):
        with pytest.raises(SystemExit, match="2"):
            main([*command, *wrong])
    (tmp_path / "a.txt").write_text(texts[0])
    single = ["audit", str(tmp_path / "a.txt"), "-r", str(registry.path)]
    assert main([*single, "-o", str(tmp_path / "report.json"), "--json"]) == 0  # one text is read as ever
    assert json.loads((tmp_path / "report.json").read_text())["schema"].startswith("iet.report/")
    assert main([*single, "-o", str(tmp_path / "texts") + "/"]) == 0
    assert len(tables(tmp_path / "texts")[0]) == 1
