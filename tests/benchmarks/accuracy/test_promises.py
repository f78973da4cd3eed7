"""Promises about segments: regimes are what they say, and figures are counted right."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tqdm")

from benchmarks.accuracy import promises, regimes, texts  # noqa: E402 - after the skips

CELLS = (texts.Cell("shipped", 1.0, 6, "fourier"), texts.Cell("shipped", 1.0, 6, "gumbel"))
SOME = ("turns of 200", "edited", "quoted", "one turn in 8,000", "boilerplate", "turns of 60, gaps of 200")


@pytest.fixture(scope="module")
def work(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """Two texts a cell, of six turns of 90 tokens."""
    folder = tmp_path_factory.mktemp("texts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "SPLITS", {"tuning": 1, "evaluation": 2})
        patch.setattr(texts, "TURN_TOKENS", (45, 90))
        patch.setattr(texts, "TURNS", 6)
        patch.setattr(promises, "ROUNDS", {"one turn in 8,000": 2})
        texts.run(folder, CELLS)
        yield folder


@pytest.fixture(scope="module")
def cases(work: pathlib.Path) -> dict[str, list[regimes.Case]]:
    loaded = texts.load(work, CELLS[1])
    return {name: list(regimes.cases(loaded, name)) for name in regimes.REGIMES}


def words(case: regimes.Case, agent: bool) -> int:
    return sum(
        len(case.talk.text[s.start : s.end]) for s in case.talk.spans if (s.agent is not None) == agent
    )


def test_regimes(work: pathlib.Path, cases: dict[str, list[regimes.Case]]) -> None:
    plain, rare = cases["turns of 200"][0], cases["one turn in 8,000"][0]
    assert words(plain, agent=False) == 0
    assert [s.agent for s in rare.talk.spans].count(None) == 20
    assert words(rare, agent=True) < words(rare, agent=False) / 10
    copies = cases["boilerplate"][0].talk
    passages = [copies.text[s.start : s.end].strip() for s in copies.spans if s.agent is None]
    assert (len(passages), len(set(passages))) == (12, 1)
    gaps = cases["turns of 60, gaps of 200"][0].talk.spans
    assert [s.agent is None for s in gaps] == [True, False] * 6
    words_before, words_after = plain.talk.text.split(), cases["edited"][0].talk.text.split()
    assert 0.5 < len(set(words_before) & set(words_after)) / len(set(words_before)) < 0.98
    cases_again = list(regimes.cases(texts.load(work, CELLS[1]), "edited"))
    assert [case.talk.text for case in cases_again] == [case.talk.text for case in cases["edited"]]


def test_quotations_copy_the_quoted_agent(cases: dict[str, list[regimes.Case]]) -> None:
    spans, text = cases["quoted"][0].talk.spans, cases["quoted"][0].talk.text
    assert len(spans) == 1 + 3 * 5
    for quotation in spans[2::3]:
        quoted = text[quotation.start : quotation.end].strip()
        earlier = [
            text[s.start : s.end] for s in spans if s.end <= quotation.start and s.agent == quotation.agent
        ]
        halves = " ".join(part.strip() for part in earlier)
        assert re.sub(r"\s+", "", quoted)[:20] in re.sub(r"\s+", "", halves)


def test_counts_and_figures_of_small_texts(work: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    regimes_measured = promises.run(work, "evaluation", SOME, None)
    assert set(regimes_measured) == set(SOME)
    for of in regimes_measured.values():
        assert set(of) == {"fourier", "gumbel"}
        for figures in of.values():
            assert figures["texts"] in (2, 4)
            for level in promises.LEVELS:
                at_level = figures[f"{level:g}"]
                assert at_level["false"] is None or 0 <= at_level["false"][0] <= 1
                assert at_level["named"][1] <= at_level["named"][0] <= 1
    strong = regimes_measured["turns of 200"]["gumbel"]
    assert strong["0.01"]["segments"] >= 10
    assert strong["0.01"]["false"][0] == 0
    assert strong["0.01"]["named"][0] > 0.9
    assert strong["share"]["stated"] == pytest.approx(strong["share"]["right"], abs=0.03)
    page = promises.markdown(regimes_measured)
    assert page.count("one turn in 8,000") == 8


def test_rates() -> None:
    rows: list[Any] = [
        {"segments/0.01/all": 4.0, "segments/0.01/false": 1.0, "characters": 10.0, "tokens/0.01/right": 5.0},
        {"segments/0.01/all": 6.0, "segments/0.01/false": 0.0, "characters": 10.0, "error/6/all": 2.0},
    ]
    result = promises.figures(rows)
    assert result["0.01"]["segments"] == 10
    assert result["0.01"]["false"][0] == pytest.approx(0.1)
    assert result["0.01"]["named"] == [0, 0.25]
    assert result["0.01"]["wrong"] is None
    assert result["error"][6] == [2, 0, 0]
    assert np.sum(result["error"][:6]) == 0
    worst = promises.verdicts({"r": {"gumbel": promises.figures([{**rows[0], "segments/0.01/all": 2000.0}])}})
    assert worst[2] == ["0.01", "false segments", "0.0005", "r, gumbel", "1"]
    assert worst[0][2:] == ["nan", "nowhere", "0"]
