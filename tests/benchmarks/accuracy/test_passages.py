"""Benchmarks of passages that come back: the truth about their texts, and tables of what is there."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib

import numpy as np
import pytest

pytest.importorskip("transformers")
pytest.importorskip("tqdm")
pytest.importorskip("pyarrow")

from benchmarks.accuracy import passages, templates, texts, unmarked
from tests.support.texts import write

CELL = texts.Cell("shipped", 1.0, 6, "fourier")


def turns_of(cell: texts.Cell = CELL) -> texts.Turns:
    """Turns that nobody marked, as long as the grid's."""
    ids = np.random.default_rng(0).integers(5, 4000, (12, 400))
    figures = np.ones(12), np.ones(12), np.zeros((12, 400), np.bool_)
    return texts.Turns(cell, 7, texts.speakers(6, 12, 7), ids, *figures)


def test_texts_know_who_wrote_them_and_where_the_passage_stands() -> None:
    drawn = (np.full(300, 4000 + i) for i in itertools.count())
    found = list(passages.trials(turns_of(), drawn))
    assert [trial.kind for trial in found] == 2 * (["behind"] * 4 + ["between", "quoted"])
    for trial in found:
        assert len(trial.ids) == len(trial.truth) == len(trial.passage)
        assert ((trial.truth < 0) == (trial.ids >= 4000)).all()
        if trial.kind == "quoted":
            assert trial.passage.sum() == 5 * 260
            assert len(np.unique(trial.truth[trial.passage])) == 1
        else:
            assert (trial.passage == (trial.truth < 0)).all()
    assert (found[4].truth >= 0).sum() == 6 * 200


def test_counts_of_a_text_are_of_its_segments() -> None:
    registry = texts.keys("shipped", "gumbel", 3, 3)
    said = write(registry, [("agent-1", 150), ("agent-3", 150)], 1)
    passage = np.random.default_rng(2).integers(600, 4000, 300)
    ids = np.concatenate([said, passage, passage])
    truth = np.repeat([0, 2, -1], [len(said) - 150, 150, 600])
    trial = passages.Trial("behind", ids, truth, truth < 0, registry)
    counts = passages.measure(trial, "share")
    assert (counts["segments"], counts["false"]) == (2, 0)
    assert (counts["turns"], counts["passage"]) == (len(said), 600)
    assert counts["turns found"] > 280
    assert counts["passage right"] > 580
    assert counts["tokens named"] - counts["tokens named wrong"] == counts["turns found"]
    swapped = dataclasses.replace(trial, truth=np.repeat([1, 2, -1], [len(said) - 150, 150, 600]))
    assert passages.measure(swapped, "share")["false"] == 1


def test_tables_of_what_is_there(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = np.random.default_rng(1)
    words = ["".join(letters.choice(list("abcdefghijklmnoprstuvwy"), 6)) for _ in range(500)]
    corpus = [unmarked.Unmarked("peps", " ".join(letters.choice(words, 700))) for _ in range(40)]
    for module in (passages, templates):
        monkeypatch.setattr(module, "CELLS", (CELL,), raising=False)
    monkeypatch.setattr(texts, "CELLS", (CELL,))
    monkeypatch.setattr(texts, "load", lambda work, cell, split: [turns_of(cell)])
    rows = passages.run(tmp_path, corpus, "tuning", None)
    assert [(row["kind"], row["way"]) for row in rows] == list(
        itertools.product(passages.KINDS, passages.WAYS)
    )
    assert passages.markdown(rows).count("| shipped | fourier |") == 6
    monkeypatch.setattr(templates, "DOCUMENTS", 14)
    rows = templates.run(tmp_path, corpus, "tuning", None, 2)
    assert [row["first pass"] for row in rows] == ["no", "yes"]
    assert rows[0]["template"][0] == 0
    assert 0.5 < rows[1]["template"][0] < 0.95
    assert templates.markdown(rows, 2).count("| shipped | fourier |") == 2
