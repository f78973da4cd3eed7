"""Benchmark of copies: each keeps the letters that it should, and its table."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

pytest.importorskip("transformers")
pytest.importorskip("tqdm")

from benchmarks.accuracy import copying, texts
from iet.demo.conversation import Conversation
from iet.report import Span
from tests.support.texts import write

SAID = 'The cat sat. It said "meow" & left - twice... A dog was near. It had seen all of it before.'
CONVERSATION = Conversation(
    f"{SAID}\n\n{SAID}\n\n{SAID}",
    (Span(0, 92, "a"), Span(92, 185, "b"), Span(185, 278, "c")),
    ("a", "b", "c"),
)


def test_a_conversation_becomes_markdown_and_keeps_its_writers() -> None:
    text, writers = copying.markdown_of(CONVERSATION)
    assert len(text) == len(writers)
    assert text.startswith("## Part 1\n\nThe cat sat. It said")
    assert text.count("**") == 6
    assert text.count("\n- ") == 4
    for agent in "abc":
        mine = "".join(c for c, writer in zip(text, writers, strict=True) if writer == agent)
        assert copying.letters(mine)[0] == copying.letters(SAID)[0]


def test_letters_are_found_again() -> None:
    copy, places = copying.by_character('a "b"\n', lambda c: json.dumps(c)[1:-1])
    assert copy == 'a \\"b\\"\\n'
    assert places.tolist() == [0, 1, 2, 2, 3, 4, 4, 5, 5]
    assert copying.aligned("fine, so", "ﬁ-\nne ― so").tolist() == [1, -1, -1, 2, 3, -1, -1, -1, 6, 7]
    assert copying.aligned("abc def", "page 1 abc def")[-3:].tolist() == [4, 5, 6]
    assert copying.wrapped("a bcdef gh", 6, lambda word: word.replace("cd", "c\u00add")) == "a bc-\ndef gh"
    assert copying.typographic('"It\'s" - a cat...') == "“It’s” – a\u00a0cat…"


def turns() -> texts.Turns:
    """Random ids under their agents' keys."""
    speakers = texts.speakers(4, 12, 7)
    registry = texts.keys("shipped", "fourier", 7, 4)
    said = [
        write(registry, [(texts.agent_name(a), 120)], seed, ids=range(600, 4000))[1:]
        for seed, a in enumerate(speakers)
    ]
    ids = np.array([np.resize(turn, 400) for turn in said])
    cell = texts.Cell("shipped", 1.0, 4, "fourier")
    return texts.Turns(cell, 7, speakers, ids, np.ones(12), np.ones(12), np.zeros((12, 400), np.bool_))


def test_every_copy_is_read() -> None:
    for module in ("docx", "pypdf", "pyphen", "markdown_it", "playwright"):
        pytest.importorskip(module)
    if shutil.which("chromium") is None:
        pytest.skip("chromium is not installed")
    with copying.browser() as shown:
        text, _ = copying.markdown_of(CONVERSATION)
        for name, (copy, places) in copying.copies(text, shown).items():
            there = places[places >= 0]
            kept = {int(place) for place in there}
            said = copying.letters(text)[1]
            assert np.mean([int(place) in kept for place in said]) > 0.99, name
            assert len(places) == len(copy)
        found = copying.measure(turns(), shown)
    whole = found["as written"]
    assert whole["as it is pairs"] == 1
    for name, row in found.items():
        assert 0 <= row["as it is pairs"] <= 1, name
        assert row["restored TokenAcc"] >= whole["as it is TokenAcc"] - 0.3, name
    mail = found["wrapped and quoted twice"]
    assert mail["as it is pairs"] < 0.95 < mail["restored pairs"]
    rows = [
        {"family": "fourier", "texts": 1, "copy": name, **{k: [v] * 3 for k, v in row.items()}}
        for name, row in found.items()
    ]
    assert copying.markdown(rows).count("| fourier |") == len(found) == 14
