"""Benchmark of claims: its messages, its false names, and a table of what is there."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

pytest.importorskip("transformers")
pytest.importorskip("tqdm")

from benchmarks.accuracy import claims, texts
from iet.errors import InputError
from tests.support.texts import write

CELL = texts.Cell("shipped", 1.0, 4, "gumbel")


def marked_turns() -> texts.Turns:
    """Turns of 400 random ids under their agents' keys."""
    speakers = texts.speakers(4, 12, 7)
    registry = texts.keys("shipped", "gumbel", 7, 4)
    context = registry.profile.scheme.n_gram - 1
    said = [
        write(registry, [(texts.agent_name(a), 60)], seed, ids=range(600, 4000))[context:]
        for seed, a in enumerate(speakers)
    ]
    ids = np.array([np.resize(turn, 400) for turn in said])
    return texts.Turns(CELL, 7, speakers, ids, np.ones(12), np.ones(12), np.zeros((12, 400), np.bool_))


def test_messages_and_names() -> None:
    turns = marked_turns()
    said, names = claims.pieces(turns, 60), claims.claims(turns)
    assert said[0] == turns.strings(60)[0]
    assert said[1].startswith("> ")
    assert said[1].endswith(turns.strings(60)[1])
    assert all(a != b for a, b in zip(names["true"], names["false"], strict=True))
    counts = claims.measure(turns, 60)
    assert counts["true"]["confirmed"] >= 11
    assert counts["true"]["contradicted"] == 0
    assert counts["false"]["contradicted"] >= 11
    assert counts["false"]["right"] == counts["false"]["contradicted"]
    assert counts["nobody's"]["confirmed"] == 0


def test_table_of_what_is_there(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="got no texts"):
        claims.run(tmp_path, [CELL], "tuning", None)
    texts.save(texts.path_of(tmp_path, CELL, "tuning", texts.units("tuning")[0]), [marked_turns()])
    monkeypatch.setattr(claims, "LENGTHS", (60,))
    (row,) = claims.run(tmp_path, [CELL], "tuning", None)
    assert row["claims"] == 12
    assert row["contradicted"] == [0, 0, 0]
    assert "| shipped | gumbel |" in claims.markdown([row])
