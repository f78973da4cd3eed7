"""If a worker dies at a record, or memory is short for it, only that record is lost."""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from iet.audit import worker_pool
from iet.audit.auditor import Auditor
from iet.audit.records import audit_records
from iet.bulk import files, workers
from iet.bulk.files import audit_files
from iet.bulk.inputs import Records
from iet.bulk.job import Job
from iet.errors import IetError
from iet.marks.published import PublishedIndex
from iet.marks.registry import Registry

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")

DEADLY = "here memory ends"


class KillsItself(Job):
    """As the system does with a process that takes too much memory."""

    def _values(self, records: Records) -> Iterator[tuple[Any, str | None]]:
        for value, id in super()._values(records):
            if value == DEADLY:
                os.kill(os.getpid(), signal.SIGKILL)
            yield value, id


class DiesAtStart(Job):
    """Each worker dies before it can take up a chunk."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        os._exit(3)


class DiesOnceThenAtStart(Job):
    """The first worker dies at a record, and the next three before they take up a chunk."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        with self._file("starts", "ab") as file:
            file.write(b".")
            file.flush()
            if 1 < os.fstat(file.fileno()).st_size <= 4:
                os._exit(3)

    def _values(self, records: Records) -> Iterator[tuple[Any, str | None]]:
        try:
            self._file("died", "xb").close()
        except FileExistsError:
            yield from super()._values(records)
        else:
            os._exit(4)

    def _file(self, name: str, mode: str) -> Any:
        return open(f"{self.folder.path}.{name}", mode)


def rows(out: pathlib.Path) -> list[dict[str, Any]]:
    return [row for path in sorted(out.glob("documents-*")) for row in pq.read_table(path).to_pylist()]


def corpus(path: pathlib.Path, deadly: set[int], count: int) -> pathlib.Path:
    texts = [DEADLY if i in deadly else f"Text number {i} that somebody wrote." for i in range(count)]
    path.write_text("".join(json.dumps({"text": text, "id": i}) + "\n" for i, text in enumerate(texts)))
    return path


def test_a_deadly_record_costs_itself_alone(
    auditor: Auditor, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadly = {7}
    path = corpus(tmp_path / "a.jsonl", deadly, 20)
    complete = audit_files(auditor, [path], tmp_path / "whole", chunk_rows=10)
    monkeypatch.setattr(files, "Job", KillsItself)
    seen = list[Any]()
    options: dict[str, Any] = {"chunk_rows": 10, "workers": 2, "templates": None}
    summary = audit_files(auditor, [path], tmp_path / "out", progress=seen.append, **options)
    assert (complete.documents, summary.documents, summary.quarantined) == (20, 19, 1)
    assert [row for row in rows(tmp_path / "whole") if row["row"] not in deadly] == rows(tmp_path / "out")
    lines = [line for path in (tmp_path / "out").glob("quarantine-*") for line in path.open()]
    records = [json.loads(line) for line in lines]
    assert [record["row"] for record in records] == sorted(deadly)
    assert {record["reason"] for record in records} == {
        "the worker died (exit code -9) at this record, twice; perhaps memory is short"
    }
    assert (seen[-1].documents, seen[-1].share) == (20, 1.0)
    monkeypatch.undo()  # the refused record is recognised by its content, so nothing is repeated
    rerun = audit_files(auditor, [path], tmp_path / "out", resume=True, progress=seen.append, chunk_rows=10)
    assert (rerun.documents, rerun.quarantined, seen[-1].documents) == (19, 1, 20)


def test_no_more_workers_are_started_than_there_are_chunks(
    auditor: Auditor, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, start = list[Any](), worker_pool._Worker.__init__

    def counted(worker: Any, *arguments: Any) -> None:
        started.append(worker)
        start(worker, *arguments)

    monkeypatch.setattr(worker_pool._Worker, "__init__", counted)
    path = corpus(tmp_path / "a.jsonl", set(), 20)
    options: dict[str, Any] = {"chunk_rows": 10, "workers": 1000}
    assert audit_files(auditor, [path], tmp_path / "out", **options).documents == 20
    assert 1 <= len(started) <= 2
    del started[:]
    audit_files(auditor, [path], tmp_path / "out", resume=True, **options)
    assert started == []


def test_where_all_die_the_run_ends(
    auditor: Auditor, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "Job", KillsItself)
    monkeypatch.setattr(workers, "MOST_DEATHS", 1)
    path = corpus(tmp_path / "a.jsonl", set(range(20, 40)), 40)
    with pytest.raises(
        IetError, match=r"died \(exit code -9\), number 2 of this run; the chunks that are do"
    ):
        audit_files(auditor, [path], tmp_path / "out", chunk_rows=20, workers=2)
    assert {row["row"] for row in rows(tmp_path / "out")} <= set(range(20))
    monkeypatch.undo()
    summary = audit_files(auditor, [path], tmp_path / "out", chunk_rows=20, resume=True)
    assert summary.documents == 40


def test_who_never_starts_is_not_replaced(
    auditor: Auditor, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "Job", DiesAtStart)
    path = corpus(tmp_path / "a.jsonl", set(), 20)
    with pytest.raises(IetError, match=r"died \(exit code 3\) before it took up a chunk; .*__main__"):
        audit_files(auditor, [path], tmp_path / "out", chunk_rows=10, workers=2)


def test_no_record_is_to_blame_where_a_worker_dies_before_it_has_one(
    auditor: Auditor, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = corpus(tmp_path / "a.jsonl", set(), 20)
    audit_files(auditor, [path], tmp_path / "whole")
    monkeypatch.setattr(files, "Job", DiesOnceThenAtStart)
    # One chunk, so who starts last has it.
    summary = audit_files(auditor, [path], tmp_path / "out", workers=2)
    assert (tmp_path / "out.starts").stat().st_size == 5
    assert (summary.documents, summary.quarantined) == (20, 0)
    assert rows(tmp_path / "out") == rows(tmp_path / "whole")


def test_records_for_which_there_is_no_memory(auditor: Auditor) -> None:
    """One that cannot be looked at, and, in a process that gets little, one that cannot be audited."""
    few_ids = np.arange(100)
    endless = np.broadcast_to(np.int64(7), 1 << 50)
    batches = list(audit_records(auditor, [few_ids, endless, few_ids], ids=True))
    reasons = [reason for few_ids, _ in batches for reason in few_ids]
    assert reasons == [None, "out of memory with 1,125,899,906,842,624 ids", None]
    assert [len(records.segment_counts) for _, records in batches] == [1, 1]
    program = """
        import resource, iet, numpy as np
        from iet.audit.records import audit_records
        registry = iet.Registry.create(None, vocab_size=500)
        registry.add("planner")
        auditor = iet.Auditor(registry)
        some, many = np.arange(400), np.zeros(1 << 26, np.int64)
        list(audit_records(auditor, [some], ids=True))
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 29),) * 2)
        for reasons, found in audit_records(auditor, [some, many, some], ids=True):
            print(reasons, len(found.segment_counts))
    """
    if not pathlib.Path("/proc/self/statm").exists():
        pytest.skip("reads its memory from /proc")
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert done.stdout == "[None, 'out of memory with 67,108,864 ids'] 1\n[None] 1\n", done.stderr


def test_a_worker_says_that_texts_were_published_meanwhile(
    registry: Registry, tmp_path: pathlib.Path
) -> None:
    index = PublishedIndex(tmp_path / "out.idx", registry, create=True)
    auditor = Auditor(registry, "cusum", published=index)
    configuration = auditor.configuration
    index.add(next(iter(registry)), ["some words that were published while the run was under way"])
    with pytest.raises(IetError, match=r"texts were added to the index .* audit with a copy of the index"):
        workers._loaded(pickle.dumps(auditor), configuration)


def test_pandas_is_not_imported_for_arrow_unless_somebody_asks_for_it() -> None:
    pytest.importorskip("pandas")
    program = """
        import sys
        import pyarrow as pa
        from iet.bulk.workers import without_pandas
        without_pandas()
        column = pa.array(["a", "b"])
        print("pandas" in sys.modules)
        print(list(column.to_pandas()))
        without_pandas()
        print(pa.array(sys.modules["pandas"].Series([1, 2])).to_pylist())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert done.stdout == "False\n['a', 'b']\n[1, 2]\n", done.stderr
