"""The text of the demo: sentences of listed words, marked as any other text."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch

from iet.cli.demo import demo_registry
from iet.demo.conversation import ADDRESS, ROLES, WORDS, converse
from iet.demo.words import Sentences, whole_sentences
from iet.marks.scheme import Scheme
from tests.support.shipped import shipped_model

LIST = frozenset(WORDS.read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def sentences() -> Sentences:
    return Sentences(shipped_model()[1], LIST)


def continuations(sentences: Sentences, text: str) -> set[str]:
    """The tokens that fit after a text."""
    tokenizer = shipped_model()[1]
    ids = torch.tensor([tokenizer(text, add_special_tokens=False).input_ids])
    scores = sentences(ids, torch.zeros(1, len(tokenizer) + 3))
    return {tokenizer.decode([i]) for i in (scores[0] == 0).nonzero().flatten().tolist()}


def test_a_sentence_begins_with_a_capital_letter(sentences: Sentences) -> None:
    for text in ("We can do it.", "Can we? ", "Go!"):
        assert {" The", " We", " I"} <= continuations(sentences, text)
        assert not continuations(sentences, text) & {" the", " we", ".", ",", "s"}
        assert all(token.startswith(" ") and token[1:2].isupper() for token in continuations(sentences, text))


def test_within_a_word_it_continues_or_ends(sentences: Sentences) -> None:
    after = continuations(sentences, "We can")
    assert {" the", ".", ",", "'t", " America"} <= after
    assert not after & {" The", "ing", "\n", " (", "\ufffd"}
    assert " the" not in continuations(sentences, "We saw the chil")  # a part of a word
    assert not continuations(sentences, "We saw, ") & {",", "."}


def test_prefixes_of_no_word_allow_no_continuation(sentences: Sentences) -> None:
    assert continuations(sentences, "We xqzj") == set()


def test_the_last_sentence_is_whole() -> None:
    assert whole_sentences("We can. Can we? And th") == "We can. Can we?"
    assert whole_sentences("and so we") == "and so we"


def test_agents_write_listed_words_alone() -> None:
    model, tokenizer = shipped_model()
    registry = demo_registry(ROLES[:2], 0, Scheme(family="gumbel"))
    options: dict[str, Any] = {"task": ADDRESS, "words": LIST, "turn_tokens": (60, 60), "temperature": 0.8}
    talk = converse(model, tokenizer, registry, [ROLES[:2], ROLES[:2]], **options)
    for span in talk.spans:
        turn = talk.text[span.start : span.end].strip()
        assert turn[0].isupper()
        assert turn[-1] in ".?!"
        words = re.findall(r"[A-Za-z']+", turn)
        assert all({word, word.lower()} & LIST for word in words)
        assert len(words) > 15
    assert re.sub(r"[A-Za-z' .,?!]", "", talk.text) == ""


def test_the_list_is_sorted_words() -> None:
    words = WORDS.read_text(encoding="utf-8").split("\n")
    assert words[-1] == ""
    assert words[:-1] == sorted(set(words[:-1]))
    assert all(re.fullmatch(r"[A-Za-z]+('[a-z]+)?", word) for word in words[:-1])
