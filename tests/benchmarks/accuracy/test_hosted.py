"""The benchmark of hosted marks: figures of texts that are already written, and the comparison of laws."""

from __future__ import annotations

import numpy as np
import pytest

import iet
from benchmarks.accuracy import hosted
from iet.generation.selection import TextChooser
from iet.marks.tokenizer import Tokenizer

CELL = hosted.Cell("vllm", "select", 1.0, 100, 1, 4)


@pytest.fixture(scope="module")
def registry() -> iet.Registry:
    made = iet.Registry.create(None, tokenizer="iet:demo", scheme=iet.Scheme(family="gumbel"))
    made.add_many(hosted.AGENTS)
    return made


@pytest.fixture(scope="module")
def written(registry: iet.Registry) -> dict[str, object]:
    tokenizer, rng = Tokenizer("iet:demo"), np.random.default_rng(0)
    words = [tokenizer.decode([token]) for token in rng.integers(600, 4000, 800)]
    texts = []
    for agent in hosted.AGENTS:
        chooser, text = TextChooser(registry, agent), ""
        for _ in range(20):
            drafts = ["".join(rng.choice(words, 8)) for _ in range(8)]
            text += drafts[chooser.choose(text, drafts, [1.0] * 8).index]
        texts.append(text)
    generated = 8 * sum(len(tokenizer.encode(text).token_ids) for text in texts)
    return {
        "agents": list(hosted.AGENTS),
        "texts": texts,
        "generated": generated,
        "prompts": 0,
        "seconds": 1.0,
    }


def test_marked_turns_are_read_and_priced(registry: iet.Registry, written: dict[str, object]) -> None:
    row = hosted.read(CELL, written, registry)
    assert row["token_accuracy"][0] > 0.8
    assert row["price"] == pytest.approx(8.0)
    (power,) = hosted.power([row])
    assert power["texts"] == 4
    page = hosted.markdown([row, {**row, "mark": "none"}], [])
    assert "| vllm | select | 1 |" in page


def test_laws_differ_only_if_the_samples_do() -> None:
    rng = np.random.default_rng(1)
    first, second = (rng.choice(["red", "blue", "green"], 500, p=[0.5, 0.3, 0.2]).tolist() for _ in range(2))
    third = rng.choice(["red", "blue", "green"], 500, p=[0.3, 0.5, 0.2]).tolist()
    assert hosted.law(first, second)["p"] > 0.001
    assert hosted.law(first, third)["p"] < 1e-6
