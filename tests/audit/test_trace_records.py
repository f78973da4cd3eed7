"""Records that real frameworks wrote: each text is judged once, under the name that the record states."""

from __future__ import annotations

import copy
import pathlib
import random
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from iet.audit.traces import Trace, parse, read
from iet.errors import InputError

RECORDS = pathlib.Path(__file__).parent / "traces" / "records"
INDEX: dict[str, dict[str, Any]] = tomllib.loads((RECORDS / "index.toml").read_text())
TEXTS = (  # the conversation in traces/make/answers.py
    "First we measure the beds and write a list of the tools.",
    "That list leaves out the water, so add the pump.",
    "Then the pump goes on the list, and we dig on Saturday.",
)
NOT_JUDGED = ("Plan the school garden.", "3 beds, 2 pumps.", "You are the ")


def record_of(name: str) -> Trace:
    (file,) = (path for path in RECORDS.iterdir() if path.stem == name)
    return read(parse(file.read_bytes()), agents=("planner", "critic"))


def judged_in(trace: Trace) -> list[tuple[str, str | None]]:
    return [(piece.text, piece.claim) for piece in trace.pieces if piece.skipped is None]


def test_every_record_is_in_the_index() -> None:
    assert {path.stem for path in RECORDS.iterdir()} - {"index"} == set(INDEX)
    assert all("made_by" in entry or "source" in entry for entry in INDEX.values())


@pytest.mark.parametrize("name", INDEX)
def test_each_text_of_an_agent_is_judged_once_under_its_claimed_name(name: str) -> None:
    judged, entry = judged_in(record_of(name)), INDEX[name]
    claims = [[claim or "" for text, claim in judged if expected in text] for expected in TEXTS]
    absent = entry.get("absent", ())
    assert claims == [[] if i in absent else [claim] for i, claim in enumerate(entry["claims"])]


@pytest.mark.parametrize("name", INDEX)
def test_texts_of_users_systems_and_tools_are_not_judged(name: str) -> None:
    also = INDEX[name].get("also", ())
    others = [text for text, _ in judged_in(record_of(name)) if not any(known in text for known in TEXTS)]
    assert len(others) == len(also)
    assert all(any(known in text for known in also) for text in others)
    assert not [text for text in others if text not in also and text.startswith(NOT_JUDGED)]


@pytest.mark.parametrize("name", INDEX)
def test_stated_hand_overs(name: str) -> None:
    transfers = [[transfer.source or "", transfer.target] for transfer in record_of(name).transfers]
    assert transfers == INDEX[name].get("transfers", [])


HOSTILE: tuple[Any, ...] = (None, True, -1.5, 10**400, "", "[]", '{"role": []}', "\ud800", [], {}, [[None]])


def fields_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (object or list, key or index) of every value in a record."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    for key in keys:
        yield value, key
        yield from fields_of(value[key])


@pytest.mark.parametrize("name", INDEX)
def test_a_field_of_another_type_is_read_or_refused(name: str) -> None:
    (file,) = (path for path in RECORDS.iterdir() if path.stem == name)
    record, rng = parse(file.read_bytes()), random.Random(name)
    pieces = []
    for _ in range(4):
        changed = copy.deepcopy(record)
        holder, key = rng.choice(list(fields_of(changed)))
        holder[key] = rng.choice(HOSTILE)
        try:
            pieces.append(read(changed, agents=("planner", "critic")).pieces)
        except InputError as error:
            pieces.append((str(error),))
    assert all(pieces)
