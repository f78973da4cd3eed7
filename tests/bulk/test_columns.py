"""Columns of Parquet as other programs write them: names of any type, and columns that are there twice."""

from __future__ import annotations

import pathlib
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from iet.audit.auditor import Auditor
from iet.bulk.files import audit_files
from iet.errors import InputError

TEXTS = ["w1 w2", "w3"]


def shown_ids(auditor: Auditor, folder: pathlib.Path, ids: pa.Array) -> Any:
    path = folder / "a.parquet"
    pq.write_table(pa.table({"text": pa.array(TEXTS), "id": ids}), path, version="2.6")
    assert audit_files(auditor, [path], folder / "out").documents == 2
    return pq.read_table(folder / "out" / "documents-000000-000000.parquet")["id"].to_pylist()


@pytest.mark.parametrize(
    ("ids", "expected_ids"),
    [
        (pa.array([1, 1000], pa.timestamp("ns")), ["1970-01-01 00:00:00.000000001", "1970-01-01 00:00:00"]),
        (pa.array([3_000_000, 0], pa.date32()), ["10183-09-21", "1970-01-01"]),
        (pa.array([10**17, 0], pa.timestamp("ms")), ["100000000000000000", "1970-01-01 00:00:00"]),
        (pa.array([2**62, None], pa.duration("ms")), ["4611686018427387904", None]),
    ],
)
def test_times_that_python_does_not_have_are_shown(
    auditor: Auditor, tmp_path: pathlib.Path, ids: pa.Array, expected_ids: list[str | None]
) -> None:
    for actual, expected in zip(shown_ids(auditor, tmp_path, ids), expected_ids, strict=True):
        assert actual is expected is None or expected in actual, (actual, expected)


@pytest.mark.parametrize("name", ["text", "id"])
def test_a_column_that_is_there_twice_is_refused_before_any_work(
    auditor: Auditor, tmp_path: pathlib.Path, name: str
) -> None:
    path, out = tmp_path / "a.parquet", tmp_path / "out"
    columns = [pa.array(TEXTS), pa.array(["a", "b"]), pa.array(["c", "d"])]
    pq.write_table(pa.Table.from_arrays(columns, names=["text", "id", name]), path)
    with pytest.raises(InputError, match=f"a.parquet: columns: got '{name}' 2 times, expected it once"):
        audit_files(auditor, [path], out)
    assert not out.exists()
    pq.write_table(pa.Table.from_arrays([*columns, columns[0]], names=["text", "id", "x", "x"]), path)
    assert audit_files(auditor, [path], out).documents == 2  # these are not read


def test_an_id_with_two_fields_of_a_name_is_refused_before_any_work(
    auditor: Auditor, tmp_path: pathlib.Path
) -> None:
    twice = pa.StructArray.from_arrays([pa.array([1, 2]), pa.array([3, 4])], names=["a", "a"])
    for ids in (twice, pa.StructArray.from_arrays([twice], names=["within"])):
        with pytest.raises(InputError, match=r"a\.parquet: column '.*': got struct<a: .*each of its fields"):
            shown_ids(auditor, tmp_path, ids)
    assert not (tmp_path / "out").exists()


def test_a_batch_with_a_column_twice_is_refused(auditor: Auditor) -> None:
    columns = [pa.array(TEXTS), pa.array(TEXTS)]
    batch = pa.RecordBatch.from_arrays(columns, names=["text", "text"])
    for column in (None, "text"):
        with pytest.raises(InputError, match="got 'text' 2 times"):
            auditor.audit_batch(batch, text_column=column)
