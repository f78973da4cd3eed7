"""Many recorded conversations: verdicts in tables, bad records in the quarantine, and resumed runs."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from iet.audit import traces
from iet.audit.auditor import Auditor
from iet.bulk.claims import check_files
from iet.errors import InputError
from iet.marks.registry import Registry
from tests.support.bulk_documents import marked_text

NAMES = {"Planning agent": "planner"}


@pytest.fixture(scope="module")
def conversations(registry: Registry) -> list[dict[str, Any]]:
    """Return two conversations: with true claims, and with the planner's name on the critic's text."""
    of_planner, of_critic = (
        marked_text(registry, [(agent, 150)], seed) for seed, agent in enumerate(("planner", "critic"))
    )
    task = {"role": "user", "content": "w1 w2 w3"}

    def said(name: str, text: str) -> dict[str, str]:
        return {"role": "assistant", "name": name, "content": text}

    return [
        {"id": "true", "messages": [task, said("Planning agent", of_planner), said("critic", of_critic)]},
        {"id": "false", "messages": [task, said("Planning agent", of_critic)]},
    ]


def rows_of(folder: pathlib.Path, kind: str) -> list[dict[str, Any]]:
    return [
        row for path in sorted(folder.glob(f"{kind}-*.parquet")) for row in pq.read_table(path).to_pylist()
    ]


def test_a_conversation_a_line(
    auditor: Auditor, conversations: list[dict[str, Any]], tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "logs.jsonl"
    lines = [json.dumps(conversations[0]), "{", json.dumps({"text": "w1"}), json.dumps(conversations[1])]
    path.write_text("\n".join(lines))
    summary = check_files(auditor, [path], tmp_path / "out", names=NAMES, per_line=True)
    assert (summary.documents, summary.quarantined, summary.pieces, summary.contradicted) == (2, 2, 5, 1)
    assert summary.verdicts["confirmed"] == 2
    documents = rows_of(tmp_path / "out", "documents")
    assert [(row["row"], row["id"], row["contradicted"]) for row in documents] == [
        (0, "true", 0),
        (3, "false", 1),
    ]
    pieces = rows_of(tmp_path / "out", "segments")
    assert [row["verdict"] for row in pieces] == [
        "skipped",
        "confirmed",
        "confirmed",
        "skipped",
        "contradicted",
    ]
    report = auditor.check_trace(traces.read(conversations[1], agents=[*auditor.agents, *NAMES]), NAMES)
    assert pieces[-1]["log_p"] == report.pieces[-1].log_p
    quarantine = (tmp_path / "out" / "quarantine-000000-000000.jsonl").read_text().splitlines()
    assert ["line 1: " in quarantine[0], "an object with 'text'" in quarantine[1]] == [True, True]
    assert "1 conversations have a contradicted piece" in summary.lines()[0]


def test_stated_hand_overs_are_counted(
    auditor: Auditor, conversations: list[dict[str, Any]], tmp_path: pathlib.Path
) -> None:
    log = list(conversations[0]["messages"])
    call = {"id": "1", "type": "function", "function": {"name": "transfer_to_critic", "arguments": "{}"}}
    stated = {"role": "assistant", "name": "Planning agent", "content": None, "tool_calls": [call]}
    agents = [i for i, message in enumerate(log) if message["role"] == "assistant"]
    with_call = [*log[: agents[0] + 1], stated, *log[agents[0] + 1 :]]
    (tmp_path / "logs.jsonl").write_text("\n".join(map(json.dumps, (log, with_call))))
    check_files(auditor, [tmp_path / "logs.jsonl"], tmp_path / "out", names=NAMES, per_line=True)
    counts = [
        [row[f"hand_overs_{name}"] for name in ("found", "missing", "unclaimed")]
        for row in rows_of(tmp_path / "out", "documents")
    ]
    assert counts == [[None, None, None], [1, 0, 0]]


def test_files_folders_and_columns(
    auditor: Auditor, conversations: list[dict[str, Any]], tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "a.json").write_text(json.dumps(conversations[0]))
    (folder / "b.jsonl").write_text("\n".join(map(json.dumps, conversations[1]["messages"])))
    (folder / "c.csv").write_text("a,b\n")
    names = [conversation["id"] for conversation in conversations]
    messages = [conversation["messages"] for conversation in conversations]
    pq.write_table(pa.table({"messages": messages, "id": names}), folder / "d.parquet")
    as_json = pa.table({"messages": [*map(json.dumps, messages), None]})
    pq.write_table(as_json, folder / "e.parquet")
    summary = check_files(auditor, [folder], tmp_path / "out", names=NAMES, csv=True)
    assert (summary.documents, summary.contradicted, summary.quarantined) == (6, 3, 1)
    assert summary.not_read == {".csv": 1}
    assert [row["id"] for row in rows_of(tmp_path / "out", "documents")][2:4] == names
    assert len((tmp_path / "out" / "segments.csv").read_text().splitlines()) == 1 + summary.pieces
    with pytest.raises(InputError, match=r"1 file not read: \.csv 1$"):
        check_files(auditor, [folder], tmp_path / "strict", strict=True)
    with pytest.raises(InputError, match="expected 'log' among them"):
        check_files(auditor, [folder], tmp_path / "column", column="log")


def test_a_resumed_run_has_the_same_results(
    registry: Registry, conversations: list[dict[str, Any]], tmp_path: pathlib.Path
) -> None:
    auditor = Auditor(registry, "cusum")
    path = tmp_path / "logs.ndjson"
    path.write_text("\n".join(map(json.dumps, conversations * 3)))
    options: dict[str, Any] = {"names": NAMES, "per_line": True, "chunk_rows": 2}
    whole = check_files(auditor, [path], tmp_path / "whole", **options)
    out = tmp_path / "out"
    check_files(auditor, [path], out, workers=2, **options)
    (out / "documents-000000-000001.parquet").unlink()
    assert check_files(auditor, [path], out, resume=True, **options) == whole
    for kind in ("documents", "segments"):
        assert rows_of(out, kind) == rows_of(tmp_path / "whole", kind)
    with pytest.raises(InputError, match=r"check\.names"):
        check_files(auditor, [path], out, resume=True, per_line=True, chunk_rows=2)
