"""The same texts read by two checkouts: labels come from each library, differences are paired."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.accuracy import before, texts
from benchmarks.accuracy.decoders import form
from iet.audit.auditor import Auditor
from iet.demo.conversation import load_model

pytestmark = pytest.mark.usefixtures("one_thread")


def test_checkout_equals_itself(tmp_path: pathlib.Path) -> None:
    cell = texts.Cell("shipped", 1.0, 4, "gumbel")
    made = texts.generate(load_model()[0], cell, [1, 2], turn_tokens=60, turns=4)
    texts.save(texts.path_of(tmp_path, cell, "evaluation", range(50)), made)
    with before.reader(before.ROOT) as first, before.reader(before.ROOT) as second:
        rows = list(before.compared((first, second), tmp_path, (30, 60), None))
        labels = first.read(form(made[0], 60), made[0])
    assert [(row["text"], row["turn_tokens"]) for row in rows] == [(0, 30), (0, 60), (1, 30), (1, 60)]
    text = form(made[0], 60)
    ways = ({"allow_unattributed": False}, {"level": before.LEVEL})
    for labels_read, way in zip(labels, ways, strict=True):
        assert np.array_equal(labels_read, Auditor(text.registry, **way).audit(text.talk.text).token_agents)
    for cell_found in before.cells(rows):
        assert cell_found["texts"] == 2
        assert cell_found["token_accuracy"]["before"] == cell_found["token_accuracy"]["now"] > 0.7
        assert cell_found["token_accuracy"]["gain"] == [0, 0, 0]
    over = before.means(rows)
    assert [line["turns"] for line in over] == ["turns of 30", "longer turns"]
    assert "shipped, gumbel" in before.markdown(before.cells(rows), over)


def test_unattributed_tokens_are_not_named() -> None:
    truth = np.array([0, 0, 1, 1])
    labels_read = before.judged(truth, [np.array([0, 0, 1, 0]), np.array([-1, 0, 0, -1])])
    assert (labels_read["token_accuracy"], labels_read["named"], labels_read["right"]) == (0.75, 0.5, 0.5)
    assert before.judged(truth, [truth, np.full(4, -1)])["right"] is None


def test_reads_the_other_checkout(tmp_path: pathlib.Path) -> None:
    (tmp_path / "iet").mkdir()
    (tmp_path / "iet" / "__init__.py").write_text("raise SystemExit('no library')")
    cell = texts.Cell("shipped", 1.0, 4, "gumbel")
    turns = texts.generate(load_model()[0], cell, [1], turn_tokens=20, turns=4)[0]
    with before.reader(tmp_path) as second, pytest.raises(SystemExit, match="ended without an answer"):
        second.read(form(turns, 20), turns)
