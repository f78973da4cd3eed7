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
from iet.bulk.files import audit_files
from iet.bulk.templates import Templates, shared
from iet.errors import InputError
from iet.marks.registry import Registry
from tests.support.bulk_documents import documents, marked_text
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
    result = annotate(table)
    assert result.column_names == ["text", "n", *(f"iet_{name}" for name in SCHEMA.names)]
    assert result.select(table.column_names) == table
    assert result.drop_columns(["text", "n"]).to_pylist() == expected
    assert annotate(result) == result  # columns of an audit before are replaced
    assert annotate(table.slice(0, 0)).schema == result.schema


def test_datasets(registry: Registry, expected: list[dict[str, Any]], tmp_path: pathlib.Path) -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"text": documents(registry)}, features=None).with_format("arrow")
    annotate = Annotator(str(registry.path), decoder="cusum")
    result = dataset.map(annotate, batched=True, batch_size=4, cache_file_name=str(tmp_path / "cache.arrow"))
    assert result.with_format("arrow")[:].drop_columns(["text"]).to_pylist() == expected


Notes = tuple[list[str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def letters(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Notes:
    """Documents that share a template, and their results of `audit_files`."""
    template, folder = marked_text(registry, [("planner", 300)], 11), tmp_path_factory.mktemp("letters")
    texts = [f"{template} {marked_text(registry, [('critic', 200)], 20 + i)}" for i in range(6)]
    lines = [json.dumps({"text": text, "id": f"no {i}"}) + "\n" for i, text in enumerate(texts)]
    (folder / "a.jsonl").write_text("".join(lines))
    audit_files(Auditor(registry, "cusum"), [folder / "a.jsonl"], folder / "out", templates=5)
    (path,) = (folder / "out").glob("documents-*")
    rows = pq.read_table(path, columns=["template", "scored", "log_p"]).to_pylist()
    assert [row["template"] > 100 for row in rows] == [False] + [True] * 5
    return texts, [{f"iet_{name}": value for name, value in row.items()} for row in rows]


def test_templates_of_an_annotator(registry: Registry, letters: Notes, tmp_path: pathlib.Path) -> None:
    texts, expected = letters
    names = [f"no {i}" for i in range(len(texts))]
    result = shared(zip(names, texts, strict=True))
    result.save(tmp_path / "templates.npz")
    table = pa.table({"text": texts[::-1], "id": names[::-1]})
    for templates in (result, str(tmp_path / "templates.npz")):
        annotate = Annotator(registry, decoder="cusum", templates=templates, id_column="id")
        assert annotate(table).select(list(expected[0])).to_pylist() == expected[::-1]
    loaded = Templates.load(tmp_path / "templates.npz")
    assert (loaded.fragment, loaded.hashes.tolist()) == (result.fragment, result.hashes.tolist())


def test_templates_that_are_refused(registry: Registry, tmp_path: pathlib.Path) -> None:
    with pytest.raises(
        InputError, match=r"templates: got 5, expected the result of iet\.bulk\.templates\.shared over all"
    ):
        Annotator(registry, templates=5, id_column="id")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="expected templates and id_column together"):
        Annotator(registry, templates=shared([]))
    with pytest.raises(InputError, match="expected templates and id_column together"):
        Annotator(registry, id_column="id")
    annotate = Annotator(registry, templates=shared([]), id_column="id")
    with pytest.raises(InputError, match="expected 'id' among them"):
        annotate(pa.table({"text": ["a"]}))
    with pytest.raises(InputError, match="id of a document: got None"):
        annotate(pa.table({"text": ["a"], "id": [None]}))
    with pytest.raises(InputError, match="least: got 1"):
        shared([], least=1)
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 and no more")
    for path in (tmp_path / "a.npz", tmp_path / "b.npz"):
        with pytest.raises(InputError, match=r"expected a file that iet\.bulk\.templates\.shared made"):
            Annotator(registry, templates=path, id_column="id")


def test_templates_of_datatrove(registry: Registry, letters: Notes, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("datatrove")
    from datatrove.data import Document

    from iet.bulk.datatrove import IETAudit

    texts, expected = letters
    documents_ = [Document(text=text, id=f"no {i}") for i, text in enumerate(texts)]
    shared((document.id, document.text) for document in documents_).save(tmp_path / "templates.npz")
    assert registry.path is not None
    with pytest.raises(InputError, match="batch_size: got 0, expected an int of at least 1"):
        IETAudit(registry.path, batch_size=0)
    step = IETAudit(registry.path, decoder="cusum", batch_size=4, templates=tmp_path / "templates.npz")
    result = [document.metadata for document in step.run(documents_)]
    assert [{name: row[name] for name in expected[0]} for row in result] == expected
    assert step.stats["template"].total == sum(row["iet_template"] for row in expected)
    assert step.stats["scored"].total == sum(row["iet_scored"] for row in expected)


def test_half_a_character_costs_datatrove_one_document(registry: Registry) -> None:
    pytest.importorskip("datatrove")
    from datatrove.data import Document

    from iet.bulk.datatrove import IETAudit

    assert registry.path is not None
    texts = ["hello there", "bad \ud800 x", None, "good"]
    documents_ = [Document(text=text, id=f"{i} \udfff") for i, text in enumerate(texts)]
    result = IETAudit(registry.path).run(documents_)
    problems = [document.metadata["iet_problem"] for document in result]
    assert [problem is None for problem in problems] == [True, False, False, True]
    assert "which is not UTF-8" in problems[1]


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
    result = [json.loads(line)["metadata"] for line in written]
    wanted = [row for row, text in zip(expected, documents(registry), strict=True) if text]
    assert [{name: row.get(name) for name in wanted[0]} for row in result] == wanted


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
        result = ray.data.read_parquet(str(tmp_path / "a.parquet")).map_batches(
            IETAudit,
            fn_constructor_kwargs={"registry": str(registry.path), "decoder": "cusum"},
            batch_format="pyarrow",
            batch_size=4,
            compute=ray.data.ActorPoolStrategy(size=1),
        )
        rows = sorted(result.take_all(), key=lambda row: row["n"])
    finally:
        ray.shutdown()
    names = list(expected[0])
    assert [{name: row[name] for name in names} for row in rows] == expected
