"""Files of logs and records: round trip, continued runs, and what is refused."""

from __future__ import annotations

import pytest

from benchmarks.paper.conversations.logs import LogFile, summary
from benchmarks.paper.conversations.records import chosen, read_records
from benchmarks.paper.results import JsonLines, check_overwrite
from iet.errors import InputError
from tests.support.mama import row, write_csv
from tests.support.paper_logs import log_of, setting

LOGS = [log_of([(0, "One mill."), (1, "Two."), (0, "")], 2, record=record) for record in (5, 2)]


def test_logs_roundtrip_and_killed_runs_continue(tmp_path):
    path = tmp_path / "logs" / "some.jsonl"
    LogFile(path, setting(2)).append(LOGS)
    data = path.read_bytes()
    assert LogFile(path, setting(2)).logs == LOGS
    path.write_bytes(data[:-20])
    file = LogFile(path, setting(2))
    assert file.records == {5}
    file.append(LOGS[1:])
    assert path.read_bytes() == data


def test_rejects_another_setting_and_damaged_lines(tmp_path):
    path = tmp_path / "some.jsonl"
    LogFile(path, setting(2)).append(LOGS)
    with pytest.raises(InputError, match="line 1: expected digest"):
        LogFile(path, setting(3))
    path.write_bytes(path.read_bytes().replace(b'{"record"', b"{record", 1))
    with pytest.raises(InputError, match="line 2: damaged"):
        JsonLines(path)


def test_spans_tile_the_text_and_edges_are_changes_of_agent():
    log = LOGS[0]
    assert "".join(log.text[start:end] for start, end, _ in log.spans) == log.text
    assert [agent for _, _, agent in log.spans] == [0, 1, 0]
    assert log.edges.tolist() == [[0, 1], [1, 0]]
    assert log_of([(0, "a"), (0, "b")], 2).edges.sum() == 0
    assert "2 logs, 6 turns, 0 tokens" in str(summary(LOGS))


def test_digest_covers_all_but_the_path_of_the_model():
    base_setting = setting(2)
    assert base_setting.digest == setting(2).digest != setting(3).digest
    assert base_setting.name.endswith(f"-{base_setting.digest[:8]}.jsonl")


def test_rejects_overwriting_results_of_another_configuration(tmp_path):
    path = tmp_path / "result.json"
    check_overwrite(path, {"seed": 1})
    path.write_text('{"configuration": {"seed": 1, "sizes": [1, 2]}}')
    check_overwrite(path, {"seed": 1, "sizes": (1, 2)})
    with pytest.raises(InputError, match="differs in seed"):
        check_overwrite(path, {"seed": 2, "sizes": (1, 2)})
    path.write_text("{}")
    with pytest.raises(InputError, match="not a result"):
        check_overwrite(path, {"seed": 1})


def test_records_have_memory_entities_and_task(tmp_path):
    path = write_csv(tmp_path / "extract.csv", [row(i) for i in range(5)])
    records = read_records(path, rows=5)
    assert [record.index for record in records] == list(range(5))
    assert records[2].entities == ("Ada Fischer 2", "ID-0002")
    assert records[2].kinds == ("name", "unique_identifier")
    assert records[2].task.startswith("[Task background]: Case 2")
    assert "Ada Fischer 2" in records[2].memory
    assert chosen(records, 2, 0) == chosen(records, 4, 0)[:2] != chosen(records, 2, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pii": "[{'entity': 'Nobody', 'types': ['name']}]"}, "row 2: expected entities that occur"),
        ({"pii": "[}"}, "row 2: not a record"),
        ({"pii": "[]"}, "row 2: expected entities"),
    ],
)
def test_names_a_damaged_row(tmp_path, change, message):
    path = write_csv(tmp_path / "extract.csv", [row(0), {**row(1), **change}])
    with pytest.raises(InputError, match=message):
        read_records(path, rows=None)


def test_rejects_another_csv_and_an_extract(tmp_path):
    path = write_csv(tmp_path / "extract.csv", [row(0)])
    with pytest.raises(InputError, match="1 rows after the header, expected 484"):
        read_records(path)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="expected a csv with the columns"):
        read_records(path)
