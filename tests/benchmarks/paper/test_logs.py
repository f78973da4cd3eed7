"""The logs of the paper's experiments: the csv they start from, and the files that keep them."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import zipfile
from typing import Any

import pytest

from benchmarks.paper import results
from benchmarks.paper.conversations.logs import Log, Setting, Turn, Writer, read, summary
from benchmarks.paper.conversations.records import COLUMNS, ROWS, chosen, read_records
from iet.errors import InputError, SchemeMismatch
from iet.marks.scheme import canonical_digest
from tests.support.mama import row, write_csv

SETTING = Setting("chain", 4, "round-major", "fourier", "00", 0.7, 0.9, " | ", 5, strength=0.8)


@pytest.fixture
def extract(tmp_path: pathlib.Path) -> pathlib.Path:
    return write_csv(tmp_path / "three.csv", [row(i) for i in range(3)])


# ---------------------------------------------------------------- records


def test_a_record_holds_what_its_row_says(extract: pathlib.Path) -> None:
    records = read_records(extract, rows=3)
    assert [record.index for record in records] == [0, 1, 2]
    assert records[1].memory == "Private: Ada Fischer 1, ID-0001,\nborn long ago."
    assert records[1].entities == ("Ada Fischer 1", "ID-0001")
    assert records[1].kinds == ("name", "unique_identifier")
    assert records[1].task.startswith("[Task background]")
    assert records[1].task.endswith("case 1?")


def test_a_folder_is_searched(tmp_path: pathlib.Path) -> None:
    (tmp_path / "mama").mkdir()
    write_csv(tmp_path / "mama" / "llama3.1_num484_nopii.csv", [row(0)])
    assert len(read_records(tmp_path, rows=None)) == 1
    with pytest.raises(InputError, match=r"holds no llama3.* from https://github\.com/llll121/mama-eval"):
        read_records(tmp_path.parent)
    with pytest.raises(
        InputError, match=r"is not there; expected .* from https://github\.com/llll121/mama-e"
    ):
        read_records(tmp_path / "no.csv")


def test_the_csv_is_found_in_the_zip_of_its_repository(extract: pathlib.Path, tmp_path: pathlib.Path) -> None:
    def zipped(path: pathlib.Path, name: str, content: bytes) -> pathlib.Path:
        path.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("README.md", "")
            archive.writestr(name, content)
        return path

    csv, records = "llama3.1_num484_nopii.csv", read_records(extract, rows=3)
    inner = zipped(tmp_path / "data" / "llama3.1_num484_nopii.zip", csv, extract.read_bytes())
    nested = f"mama-eval-main/data/{inner.name}"
    archive = zipped(tmp_path / "mama-eval-main.zip", nested, inner.read_bytes())
    for path in (inner, inner.parent, tmp_path, archive):
        assert read_records(path, rows=3) == records
    for path, message in (
        (
            zipped(tmp_path / "empty.zip", "other.csv", b""),
            r"holds no llama3.*; expected .* of https://github",
        ),
        (
            zipped(tmp_path / "large.zip", csv, bytes((1 << 26) + 1)),
            "has 67108865 bytes, expected 67108864 at",
        ),
        (zipped(tmp_path / "latin.zip", csv, b"\xe9"), "byte 0 of llama3.1_num484_nopii.csv is no UTF-8"),
    ):
        with pytest.raises(InputError, match=message):
            read_records(path)
    (tmp_path / "broken.zip").write_bytes(archive.read_bytes()[:-30])
    with pytest.raises(InputError, match="cannot be unpacked"):
        read_records(tmp_path / "broken.zip")


def test_progress_says_which_setting_of_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(results.each(["chain", "star"], str.upper)) == ["chain", "star"]
    assert capsys.readouterr() == ("", "setting 1 of 2: CHAIN\nsetting 2 of 2: STAR; about a minute left\n")
    assert list(results.each([1], str)) == [1]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("text", " ", r"row 2, column 'text': got an empty cell"),
        (
            "text",
            "nobody is named here",
            r"row 2, column 'pii': got 'Ada Fischer 1', expected an entity that",
        ),
        (
            "pii",
            "[{'entity': 3, 'types': ['name']}]",
            r"row 2, column 'pii': got .*expected \[\{'entity': str",
        ),
        (
            "pii",
            "[{'entity': 'Ada Fischer 1', 'types': 'name'}]",
            r"row 2, column 'pii': got .*expected \[\{",
        ),
        ("pii", "[", r"row 2, column 'pii'"),
        ("pii", "[]", r"row 2, column 'pii'"),
        ("generated_texts", "Ada Fischer 1 is at home", r"row 2, column 'generated_texts': got the entity"),
        ("generated_texts", "something else", r"row 2, column 'task_backgrounds'"),
        ("questions", "Is this another question?", r"row 2, column 'questions'"),
    ],
)
def test_an_altered_cell_is_named(tmp_path: pathlib.Path, column: str, value: str, message: str) -> None:
    rows = [row(0), {**row(1), column: value}, row(2)]
    with pytest.raises(InputError, match=message):
        read_records(write_csv(tmp_path / "altered.csv", rows), rows=3)


def test_missing_columns_rows_and_files_are_named(tmp_path: pathlib.Path, extract: pathlib.Path) -> None:
    with pytest.raises(InputError, match=r"missing: \['pii'\]"):
        read_records(write_csv(tmp_path / "a.csv", [row(0)], [c for c in COLUMNS if c != "pii"]))
    with pytest.raises(InputError, match=r"3 rows after the header, expected 484"):
        read_records(extract)
    with pytest.raises(InputError, match=r"no row after the header"):
        read_records(write_csv(tmp_path / "b.csv", []), rows=None)
    with pytest.raises(InputError, match=r"is not there"):
        read_records(tmp_path / "nothing.csv")
    extract.write_text(extract.read_text() + "a,b\n")
    with pytest.raises(InputError, match=r"row 4, column 'generated_texts': got 2 cells"):
        read_records(extract, rows=None)
    extract.write_bytes(b"text,\xff")
    with pytest.raises(InputError, match=r"byte 5 is no UTF-8"):
        read_records(extract)


def test_another_file_of_the_right_size_is_read_with_a_warning(tmp_path: pathlib.Path) -> None:
    path = write_csv(tmp_path / "other.csv", [row(i) for i in range(ROWS)])
    with pytest.warns(UserWarning, match="not the file that the experiments are stated for"):
        assert len(read_records(path)) == ROWS


def test_more_records_only_add_to_fewer(extract: pathlib.Path) -> None:
    records = read_records(extract, rows=3)
    assert chosen(records, 3, 1)[:2] == chosen(records, 2, 1)
    assert {record.index for record in chosen(records, 3, 2)} == {0, 1, 2}
    orders = {tuple(record.index for record in chosen(records, 3, seed)) for seed in range(20)}
    assert len(orders) > 1
    with pytest.raises(InputError, match="records: got 4, expected 1 to 3"):
        chosen(records, 4, 0)


# ---------------------------------------------------------------- logs


def log_of(record: int, setting: Setting = SETTING) -> Log:
    turns = tuple(
        Turn(agent, number, (record, agent, 7), f"Agent {agent} | said «{record}»\nin {number}.")
        for number in range(2)
        for agent in range(4)
    )
    return Log(setting, record, turns, ((0, 4, 0), (4, 9, 1)), 1.25, record == 2)


def test_text_spans_and_edges_are_those_of_the_turns() -> None:
    log = log_of(3)
    assert log.spans[0][0] == 0
    assert log.spans[-1][1] == len(log.text)
    for (start, end, agent), turn in zip(log.spans, log.turns, strict=True):
        assert agent == turn.agent
        assert log.text[start:end] in (turn.text, " | " + turn.text)
    assert log.edges.tolist() == [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0]]
    assert log.joiners_inside == 8
    assert dataclasses.replace(log, turns=()).spans == ()
    assert str(summary([log, log_of(2)])).startswith("2 logs, 16 turns, 48 tokens; mean entropy 1.25 nats")
    assert summary([log, log_of(2)]).joiners_inside == 1.0


def test_settings_that_differ_have_different_files() -> None:
    for change in (
        {"rounds": 2},
        {"joiner": " "},
        {"strength": 1.0},
        {"turn_tokens": (1, 64)},
        {"model": "01"},
        {"early_stop": False},
        {"repetition_penalty": 1.2},
    ):
        assert dataclasses.replace(SETTING, **change).name != SETTING.name, change
    assert SETTING.name.startswith("chain_4-round-major-fourier0.8-T0.7-p0.9-seed5-")
    assert dataclasses.replace(SETTING, model_name="elsewhere").digest == SETTING.digest
    older = {
        name: value for name, value in dataclasses.asdict(SETTING).items() if name != "repetition_penalty"
    }
    assert SETTING.digest == canonical_digest({**older, "model_name": ""})


def test_what_is_written_is_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "new" / SETTING.name
    with Writer(path, SETTING) as writer:
        writer.append([log_of(4), log_of(2)])
        writer.append([log_of(3)])
    assert read(path) == [log_of(4), log_of(2), log_of(3)]
    line = json.loads(path.read_text().splitlines()[1])
    assert line["text"] == log_of(4).text
    assert line["spans"][1] == list(log_of(4).spans[1])
    assert line["token_spans"] == [[0, 4, 0], [4, 9, 1]]
    assert (line["entropy"], line["joiners_inside"]) == (1.25, 8)


def test_a_kill_at_any_byte_loses_one_line_and_repeats_none(tmp_path: pathlib.Path) -> None:
    logs = [log_of(record) for record in (4, 2, 3)]
    with Writer(tmp_path / "whole", SETTING) as writer:
        writer.append(logs)
    whole = (tmp_path / "whole").read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    cuts = {*range(0, len(whole) + 1, 61), *ends, *(end - 1 for end in ends), *(end + 1 for end in ends)}
    path = tmp_path / "cut"
    for cut in sorted(cut for cut in cuts if cut <= len(whole)):
        path.write_bytes(whole[:cut])
        if cut not in ends:
            with pytest.raises(InputError, match=rf"line {sum(end <= cut for end in ends) + 1}: torn"):
                read(path)
        with Writer(path, SETTING) as writer:
            assert writer.logs == logs[: max(0, sum(end <= cut for end in ends) - 1)]
            writer.append(log for log in logs if log.record not in writer.records)
        assert path.read_bytes() == whole


def test_damage_is_named_with_its_line(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "logs"
    with Writer(path, SETTING) as writer:
        writer.append([log_of(4), log_of(2), log_of(3)])
    good = path.read_text().splitlines(keepends=True)

    def refused(lines: list[str], message: str, kind: type[Exception] = InputError) -> None:
        path.write_text("".join(lines))
        with pytest.raises(kind, match=message):
            read(path)
        with pytest.raises(kind, match=message), Writer(path, SETTING):
            pass
        assert path.read_text() == "".join(lines)  # refused before anything is written

    def changed(number: int, **fields: Any) -> list[str]:
        lines = list(good)
        lines[number] = json.dumps({**json.loads(good[number]), **fields}) + "\n"
        return lines

    refused([*good[:2], good[2][:-9] + "\n", good[3]], r"logs, line 3: damaged")
    refused([*good[:2], "[]\n"], r"line 3: damaged \(a list\)")
    refused([*good, good[2]], r"line 5: record 2 for the second time")
    refused(changed(2, text="other words"), r"line 3: text, spans and joiners_inside are not those")
    refused(changed(2, spans=[]), r"line 3: text, spans")
    refused(changed(2, joiners_inside=0), r"line 3: text, spans")
    refused(changed(2, token_spans=[[0, 4, 0], [5, 9, 1]]), r"line 3: token_spans")
    refused(changed(2, token_spans=[["0", 4, 0]]), r"line 3: token_spans")
    refused(changed(2, record=-1), r"line 3: record -1")
    refused(changed(2, record=True), r"line 3: record True")
    refused(changed(2, entropy="abc"), r"line 3: entropy 'abc', expected a number or null")
    refused(changed(2, entropy=True), r"line 3: entropy True")
    refused(changed(2, stopped="no"), r"line 3: stopped 'no', expected true or false")
    refused(changed(2, stopped=0), r"line 3: stopped 0")
    refused(changed(2, turns=[], text="", spans=[], joiners_inside=0), r"line 3: no turns")
    refused(changed(2, extra=1), r"line 3: fields")
    refused(
        changed(2, turns=[{"agent": 9, "round": 0, "ids": [1], "text": "x"}]), r"line 3: a turn of agent 9"
    )
    refused(changed(2, turns=[{"agent": 1}]), r"line 3: damaged")
    refused(changed(0, setting={**dataclasses.asdict(SETTING), "seed": 6}), r"line 1: the digest")
    refused(changed(0, format="other"), r"line 1: format 'other'")
    refused(changed(0, version=2), r"line 1: version 2, expected 1", SchemeMismatch)
    refused(changed(0, setting={}), r"line 1: its setting is damaged")


def test_a_writer_takes_its_own_setting_alone_and_each_record_once(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "logs"
    other = dataclasses.replace(SETTING, seed=6)
    with Writer(path, SETTING) as writer:
        writer.append([log_of(1)])
        with pytest.raises(InputError, match="record 1 twice"):
            writer.append([log_of(1)])
        with pytest.raises(InputError, match="another setting"):
            writer.append([log_of(2, other)])
        with pytest.raises(InputError, match="another process writes"), Writer(path, SETTING):
            pass
    with pytest.raises(InputError, match=r"differs in seed \(5, 6\)"), Writer(path, other):
        pass
    assert read(path) == [log_of(1)]
    with pytest.raises(InputError, match="no file of logs"):
        read(tmp_path / "nothing")
