"""What a reader of family gumbel gets of a text: the figures are what they say, on two short texts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tqdm")

from benchmarks.accuracy import information  # noqa: E402
from iet.native.pairs import times_before  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def short() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"TEMPERATURES": (0.5,), "TURNS": 4, "TOKENS": 40, "DRAWS": 50}.items():
            patch.setattr(information, name, value)
        yield
    torch.set_num_threads(threads)


def test_rows_hold_what_their_columns_say() -> None:
    rows = information.run(2, 3)
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
    nats, tokens = information.read(way, written, 5)
    assert tokens.tolist() == [len(ids)]
    assert 0 < nats[0] < written.entropy[0].sum()
