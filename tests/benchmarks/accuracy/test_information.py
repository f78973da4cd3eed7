"""What a reader of family gumbel gets of a text: the figures are what they say, on two short texts."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tqdm")

from benchmarks.accuracy import information, texts  # noqa: E402
from iet.native.pairs import times_before  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def short() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"TURNS": 4, "TOKENS": 40, "DRAWS": 50}.items():
            patch.setattr(information, name, value)
        yield
    torch.set_num_threads(threads)


def test_rows_hold_what_their_columns_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(information, "TOKENS", 20)
    rows = information.run(2, 3, (0.5,), information.PROMPTS, information.WAYS)
    assert len(rows) == len(information.PROMPTS) * len(information.WAYS)
    by = {(row["prompt"], row["version"], row["n_gram"], row["counted_in"]): row for row in rows}
    for row in rows:
        if row["version"] == 1:
            assert row["marked"] == pytest.approx(1 - row["seen_before"])
            assert "gain" not in row
        else:
            assert row["marked"] == 1
            assert row["gain_low"] <= row["gain"] <= row["gain_high"]
        assert 0 < row["share"] < 1
        assert row["low"] <= row["high"]
        assert 0 < row["score_bound"] < 1
    logged = by["the log", 2, 4, "prompt and text"], by["the log", 2, 4, "turn"]
    assert logged[0]["index_right"] > logged[1]["index_right"]
    table = information.markdown(rows, 2)
    assert table.count("\n| 0.5 |") == len(rows)


def test_what_is_written_is_read_under_the_seeds_that_wrote_it() -> None:
    model, _ = information.load_model()
    way = information.Way(2, 4)
    written = information.write(model, way, "an opening", 1.0, 1, 5)
    turn, ids = slice(0, information.TOKENS), written.ids[0]
    seen = written.counts[0, turn] == times_before(ids, 4)[turn]
    own = information.score_tokens(ids[turn], information.registry_of(way, 0, 5))[:, written.owners[0, 0]]
    read = own[seen & (np.arange(information.TOKENS) >= 3)]
    assert read.mean() > 1 + 3 / math.sqrt(len(read))
    registries = [information.registry_of(way, 0, 5)]
    nats, tokens = information.read(way, written.ids, written.owners, registries, 5)
    assert tokens.tolist() == [len(ids)]
    assert 0 < nats[0] < written.entropy[0].sum()


def test_texts_of_the_grid_are_read_in_both_versions(tmp_path: pathlib.Path) -> None:
    model, _ = information.load_model()
    for family in ("gumbel", "gumbel-v2"):
        cell = texts.Cell("shipped", 0.7, 4, family)
        assert information.of_grid(tmp_path) == []
        made = texts.generate(model, cell, [1, 2], turn_tokens=60, turns=4)
        texts.save(texts.path_of(tmp_path, cell, "evaluation", range(50)), made)
    first, second = information.of_grid(tmp_path)
    assert (first["version"], second["version"]) == (1, 2)
    assert first["marked"] < second["marked"] == 1
    for row in (first, second):
        assert row["low"] <= row["share"] <= row["high"]
        assert 0 < row["reader"] < row["entropy"]
    assert second["gain_low"] <= second["gain"] <= second["gain_high"]
    assert information.markdown([first, second], 2).count("\n| shipped |") == 2
