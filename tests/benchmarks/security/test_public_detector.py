"""The attackers of `benchmarks.security.public_detector`, and its committed results."""

from __future__ import annotations

import json
import pathlib

import pytest

from benchmarks.recording import as_json
from benchmarks.security import public_detector as attacks
from benchmarks.tables import RESULTS
from tests.support.texts import IDS, reader

VOCABULARY = [f" w{i}" for i in range(1, 600)]
MARKED = [f" w{i}" for i in IDS[:300]]


def test_an_attacker_with_p_values_forges_and_one_without_does_not() -> None:
    auditor = reader()
    for kind, succeeds in (("p-value", True), ("loose", False)):
        attacker = attacks.Attacker(VOCABULARY, 0)
        ask = attacks.Oracle(auditor, kind, 1500 if succeeds else 20)
        if succeeds:
            text = attacker.climb(ask)
            assert text is not None
            assert attacks.detect(auditor, "".join(text))["result"] == "found"
        else:
            with pytest.raises(attacks.OutOfQuestions):
                attacker.climb(ask)
        assert ask.questions <= 1500


def test_a_marked_text_is_exchanged_word_by_word() -> None:
    auditor = reader()
    ask = attacks.Oracle(auditor, "public", 200)
    attacker = attacks.Attacker(VOCABULARY, 0)
    assert ask(MARKED) == attacks.TIERS["found"]
    with pytest.raises(attacks.OutOfQuestions):
        attacker.exchange(ask, MARKED)
    assert ask.questions == 200
    assert ask.answers[attacks.TIERS["found"]] > 50


def test_a_mark_is_removed_with_fewer_words_than_there_are() -> None:
    result = attacks.remove(reader(), "public", attacks.Attacker(VOCABULARY, 0), MARKED, max_questions=500)
    assert 0 < result["replaced"] <= result["bisected"] < 1


def test_committed_results_are_those_of_the_guide() -> None:
    content = json.loads((RESULTS / "public_detector.json").read_text())
    rows = {(row["knows"], row["detector"]): row for row in content["forging"]}
    assert as_json(content) == (RESULTS / "public_detector.json").read_text()
    assert attacks.markdown(content) + "\n" == (RESULTS / "public_detector.md").read_text()
    assert rows["nothing", "public"]["succeeded"] == 0
    assert rows["nothing", "p-value"]["succeeded"] == rows["a marked text", "none"]["succeeded"] == 8
    assert rows["a marked text", "public"]["succeeded"] == 6
    assert rows["a marked text, which is in the index", "public"]["succeeded"] == 0
    guide = pathlib.Path(attacks.__file__).parents[2] / "docs/guides/service.md"
    share = f"{content['removing']['public']['replaced']:.0%}"
    sentence = f"To remove a mark, {share} of the words must be replaced if one may ask, 44% if not."
    assert sentence in " ".join(guide.read_text().split())
    assert content["removing"]["even"] == pytest.approx(0.44)
