"""Audits in bulk inside other people's frameworks, each the real one: datasets, datatrove, a local Ray."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from iet.audit.auditor import Auditor
from iet.bulk.arrow import SCHEMA, Annotator
from iet.marks.registry import Registry
from tests.support.bulk_documents import documents
from tests.support.conditions import posix


@pytest.fixture(scope="module")
def expected(registry: Registry, auditor: Auditor) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_pydict({"text": documents(registry)})
    rows = auditor.audit_batch(batch).to_pylist()
    assert sum(row["coverage"] > 0 for row in rows) >= 3
    return [{f"iet_{name}": value for name, value in row.items()} for row in rows]


def test_annotator(registry: Registry, expected: list[dict[str, Any]]) -> None:
    annotate = Annotator(registry, decoder="cusum")
    table = pa.table({"text": documents(registry), "n": range(len(expected))})
    found = annotate(table)
    assert found.column_names == ["text", "n", *(f"iet_{name}" for name in SCHEMA.names)]
    assert found.select(table.column_names) == table
    assert found.drop_columns(["text", "n"]).to_pylist() == expected
    assert annotate(found) == found  # columns of an audit before are replaced
    assert annotate(table.slice(0, 0)).schema == found.schema


def test_datasets(registry: Registry, expected: list[dict[str, Any]], tmp_path: pathlib.Path) -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"text": documents(registry)}, features=None).with_format("arrow")
    annotate = Annotator(str(registry.path), decoder="cusum")
    found = dataset.map(annotate, batched=True, batch_size=4, cache_file_name=str(tmp_path / "cache.arrow"))
    assert found.with_format("arrow")[:].drop_columns(["text"]).to_pylist() == expected


def test_datatrove(registry: Registry, expected: list[dict[str, Any]], tmp_path: pathlib.Path) -> None:
    pytest.importorskip("datatrove")
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter

    from iet.bulk.datatrove import IETAudit

    (tmp_path / "in").mkdir()
    texts = [text for text in documents(registry) if text]  # its reader skips empty documents
    lines = [json.dumps({"text": text, "id": str(i)}) + "\n" for i, text in enumerate(texts)]
    (tmp_path / "in" / "a.jsonl").write_text("".join(lines))
    assert registry.path is not None
    LocalPipelineExecutor(
        [
            JsonlReader(str(tmp_path / "in")),
            IETAudit(registry.path, batch_size=4, decoder="cusum"),
            JsonlWriter(str(tmp_path / "out"), output_filename="${rank}.jsonl", compression=None),
        ],
        logging_dir=str(tmp_path / "logs"),
    ).run()
    written = (tmp_path / "out" / "00000.jsonl").read_text().splitlines()
    found = [json.loads(line)["metadata"] for line in written]
    wanted = [row for row, text in zip(expected, documents(registry), strict=True) if text]
    assert [{name: row.get(name) for name in wanted[0]} for row in found] == wanted


@posix
def test_ray(registry: Registry, expected: list[dict[str, Any]], tmp_path: pathlib.Path) -> None:
    ray = pytest.importorskip("ray")
    from iet.bulk.ray import IETAudit

    pq.write_table(
        pa.table({"text": documents(registry), "n": range(len(expected))}),
        tmp_path / "a.parquet",
        row_group_size=4,
    )
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        found = ray.data.read_parquet(str(tmp_path / "a.parquet")).map_batches(
            IETAudit,
            fn_constructor_kwargs={"registry": str(registry.path), "decoder": "cusum"},
            batch_format="pyarrow",
            batch_size=4,
            compute=ray.data.ActorPoolStrategy(size=1),
        )
        rows = sorted(found.take_all(), key=lambda row: row["n"])
    finally:
        ray.shutdown()
    names = list(expected[0])
    assert [{name: row[name] for name in names} for row in rows] == expected
