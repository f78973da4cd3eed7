"""Names of agents: rejected names and lookalikes, normal forms, and older registries."""

from __future__ import annotations

import pathlib
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iet.errors import InputError, RegistryError
from iet.marks.names import _TABLE, RESERVED, _prototypes, new_name, skeleton
from iet.marks.registry import Registry
from tests.support.letters import LETTERS
from tests.support.registries import V, rewrite

LOOKALIKES = [
    "pl\u0430nner",  # Cyrillic a
    "\u0440lanner",  # Cyrillic er
    "p1anner",
    "pIanner",
    "\uff50lanner",  # fullwidth
    "\U0001d429lanner",  # mathematical bold
    "planne\u1d26",  # Greek small capital gamma
    "plan\u0578er",  # Armenian vo
]


@pytest.mark.parametrize("name", LOOKALIKES)
def test_rejects_lookalike_names(team: Registry, name: str) -> None:
    digest = team.digest
    with pytest.raises(RegistryError, match="which looks like 'planner', an existing agent") as caught:
        team.add(name)
    assert str(caught.value).isascii()  # so that the difference is visible
    assert team.digest == digest
    alone = Registry.create(None, vocab_size=V)
    alone.add(name)  # valid if it is the only such name
    with pytest.raises(RegistryError, match="which looks like"):
        alone.add("planner")


@pytest.mark.parametrize(
    "hidden",
    [
        *("\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\u00ad", "\u034f", "\ufe0f", "\U000e0100"),
        *("\u115f", "\u1160", "\u3164", "\uffa0", "\u2800", "\u180e", "\u17b4", "\U0001d173", "\U000e0041"),
    ],
)
def test_rejects_invisible_characters(team: Registry, hidden: str) -> None:
    for name in (f"plan{hidden}ner", f"writers{hidden}"):
        with pytest.raises(InputError, match=f"invisible character U\\+{ord(hidden):04X}, expected none"):
            team.add(name)
    assert skeleton(f"plan{hidden}ner") == "planner"


@pytest.mark.parametrize("space", ["\u00a0", "\u2003", "\u3000", "\u202f"])
def test_rejects_other_spaces(team: Registry, space: str) -> None:
    with pytest.raises(InputError, match=f"got the space U\\+{ord(space):04X}, expected none but U\\+0020"):
        team.add(f"the{space}planner")


def test_repeated_spaces_look_alike() -> None:
    registry = Registry.create(None, vocab_size=V)
    registry.add("the planner")
    with pytest.raises(RegistryError, match="looks like 'the planner'"):
        registry.add("the  planner")


def test_rejects_a_leading_combining_mark(team: Registry) -> None:
    with pytest.raises(InputError, match=r"got '\\u0301a', which begins with a mark"):
        team.add("\u0301a")


@pytest.mark.parametrize(
    "name",
    [
        *RESERVED,
        "Unattributed",
        "NOBODY",
        "un\u0430ttributed",
        "left  out",
        "1eft out",
        "decoy 10",
        "Decoy 0",
    ],
)
def test_rejects_words_of_reports(team: Registry, name: str) -> None:
    with pytest.raises(InputError, match="which reports use for something else"):
        team.add(name)


def test_accepts_longer_names_that_contain_such_words(team: Registry) -> None:
    for name in ("nobody's", "decoy", "decoy 1a", "unmarked texts"):
        team.add(name)
    assert team.names()[3:] == ("nobody's", "decoy", "decoy 1a", "unmarked texts")


def test_names_are_stored_in_nfc_and_found_in_any_form(path: pathlib.Path) -> None:
    registry = Registry.create(path, vocab_size=V)
    composed, decomposed = "équipe 각", unicodedata.normalize("NFD", "équipe 각")
    assert composed != decomposed
    assert registry.add(decomposed) == 0
    for read in (registry, Registry.load(path)):
        assert read.names() == (composed,)
        for name in (composed, decomposed):
            assert name in read
            assert read.slot(name) == 0
            assert read.keys(name)[0].agent == composed
            with pytest.raises(RegistryError, match="exists"):
                read.add(name)
    assert registry.rotate(decomposed) == 1
    assert [key.agent for key in registry.keys(composed)] == [composed] * 2
    assert registry.names() == registry.export(None, [decomposed]).names() == (composed,)
    assert registry.open_key(decomposed).leaf.agent == composed


def test_older_registries_stay_readable(team: Registry, path: pathlib.Path) -> None:
    old = ["unattributed", "pl\u0430nner", "plan\u200dner", "planner\u3164", "e\u0301", "é", "p\ufe0f"]

    def rename(content: dict[str, Any]) -> None:
        critic = content["agents"]["critic"]
        key = critic["keys"][0]
        for number, name in enumerate(old):
            secret = f"{number:064x}"
            content["agents"][name] = {**critic, "keys": [{**key, "secret": secret}]}

    rewrite(path, rename)
    read = Registry.load(path)
    assert read.names() == ("planner", "critic", "writer", *old)
    assert [read.slot(name) for name in old] == list(range(3, 10))
    assert [read.keys(name)[0].agent for name in old] == old
    assert read.rotate("planner\u3164") == 1
    read.add("reader")
    joined = Registry()
    joined.merge(Registry.load(path))
    assert joined.digest == read.digest
    for name in old:
        with pytest.raises((RegistryError, InputError)):
            read.add(name)


@given(st.text(LETTERS, max_size=20))
def test_skeleton_is_invariant_and_idempotent(text: str) -> None:
    look = skeleton(text)
    assert (
        skeleton(unicodedata.normalize("NFC", text)) == skeleton(unicodedata.normalize("NFD", text)) == look
    )
    assert skeleton(look) == look


@given(st.text(LETTERS, min_size=1, max_size=20))
def test_normalises_or_rejects_new_names(text: str) -> None:
    try:
        name = new_name(text, {})
    except InputError:
        return
    assert new_name(name, {}) == name == unicodedata.normalize("NFC", text)
    assert new_name(name, {skeleton(name): name}) == name
    with pytest.raises(RegistryError, match="looks like"):
        new_name(name, {skeleton(name): name + "."})


def test_prototypes_are_fixed_points() -> None:
    assert len(_prototypes()) > 5000
    for point, prototype in _prototypes().items():
        assert skeleton(chr(point)) == skeleton(prototype) == skeleton(skeleton(prototype))
    head = _TABLE.read_text(encoding="utf-8").partition("\n\n0020;")[0]
    assert "confusables.txt, version 17.0.0" in head
    assert "SPDX-License-Identifier: Unicode-3.0" in head
