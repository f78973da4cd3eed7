"""Which words of a training text are listed for the demo."""

from __future__ import annotations

from benchmarks.lm.words import LEAST, LEAST_CAPITALISED, common_words


def test_lists_common_words_without_names() -> None:
    often = "We can't go on, and Congress can. " * LEAST_CAPITALISED + "A Mr. Smith said so. " * LEAST
    rare = "We saw an okapi. " * (LEAST - 1)
    assert common_words([often, rare]) == ["Congress", "We", "and", "can", "can't", "go", "on", "said", "so"]
