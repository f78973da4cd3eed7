"""Ids put together from those of words are the tokenizer's own."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers

from iet.marks import word_cache
from iet.marks.tokenizer import DEMO_SOURCE, Tokenizer
from iet.marks.word_cache import SPLITS, WordCache, is_cacheable

TEXT = [
    "The planner's plan: it'll cost 1,234 EUR (or 99 %)!",
    "WE'VE  said\n\n that\tna\u00efve caf\u00e9s' 3\u00d72=6 // ok",
    "d\u00e9j\u00e0 \u65e5\u672c\u8a9e \u0434\u0430 don't <a> </a>\r\n  x = y_1 + 22;",
]
# White space of all kinds, also such as only some regular expressions take for it, and what splits look at.
PARTS = st.sampled_from(
    [
        *(
            " ",
            "  ",
            "\n",
            "\r\n",
            "\t",
            "\u00a0",
            "\u0085",
            "\u001c",
            "\u2003",
            "\u3000",
            "\u200b",
            "\u180e",
        ),
        *(
            "a",
            "The",
            "PLAN",
            "'s",
            "'LL",
            "'",
            "\u00e9",
            "e\u0301",
            "\u0301",
            "\u65e5\u672c",
            "\u0434\u0430",
            "\u01c5",
        ),
        *("1", "1234", "\u0663", "_", ".", "//", "/", "!?", "<eos>", "<e", "\U0001f600", "\x00", "\u00ad"),
    ]
)


def byte_level(*steps: Any, **changes: Any) -> tokenizers.Tokenizer:
    """A tokenizer with these steps before the model, trained on a few lines."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
    backend.normalizer = changes.get("normalizer")
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=alphabet, special_tokens=["<eos>"], show_progress=False
    )
    backend.train_from_iterator(TEXT * 3, trainer)
    return backend


def split_by(pattern: str, **changes: Any) -> tokenizers.Tokenizer:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return byte_level(split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), **changes)


GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
BACKENDS = {
    "byte level": byte_level(GPT2),
    "digits": byte_level(pre_tokenizers.Digits(individual_digits=True), GPT2),
    "composed": split_by(next(iter(SPLITS)), normalizer=normalizers.NFC()),
    **{name: split_by(pattern) for pattern, name in SPLITS.items()},
}


def words_of(backend: tokenizers.Tokenizer) -> WordCache:
    found = Tokenizer(backend)._words
    assert found is not None
    return found


@pytest.mark.parametrize("name", sorted(BACKENDS))
@given(st.lists(st.lists(PARTS, max_size=14).map("".join), max_size=4))
def test_ids_are_the_tokenizers(name: str, texts: list[str]) -> None:
    backend = BACKENDS[name]
    assert is_cacheable(json.loads(backend.to_str()))
    expected = [each.ids for each in backend.encode_batch(texts, add_special_tokens=False)]
    for cache in (words_of(backend), SHARED[name], WordCache(backend, no_lengths)):
        assert [ids.tolist() for ids in cache.ids_of(texts)] == expected


SHARED = {name: words_of(backend) for name, backend in BACKENDS.items()}


def no_lengths() -> Any:
    return np.zeros(1000, np.int64)


def test_no_word_is_asked_for_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    class Asked:
        def __init__(self) -> None:
            self.texts = list[str]()

        def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
            self.texts += texts
            return BACKENDS["byte level"].encode_batch_fast(texts, **options)

    monkeypatch.setattr(word_cache, "MAX_WORDS", 4)
    monkeypatch.setattr(word_cache, "MAX_WORD_LENGTH", 6)
    asked: Any = Asked()
    found = WordCache(asked, words_of(BACKENDS["byte level"])._lengths)
    found.ids_of(["the plan the planner", "a plan the"])
    assert asked.texts == [" plan the planner", "the", "a"]  # one is too long to be kept
    found.ids_of(["the plan planner a critic"])
    assert asked.texts[3:] == [" planner a critic"]  # and four are kept
    found.ids_of([" a"])
    assert asked.texts[4:] == [" a"]
    assert [ids.tolist() for ids in found.ids_of(["", "the plan the"])] == [
        each.ids for each in BACKENDS["byte level"].encode_batch(["", "the plan the"])
    ]


@pytest.mark.parametrize(
    ("what", "token"),
    [
        ("a prefix", None),
        ("another normalizer", None),
        ("another split", None),
        ("no split", None),
        ("merged words", None),
        ("unigram", None),
        ("white space", None),
        ("", tokenizers.AddedToken("critic", lstrip=True)),
        ("", tokenizers.AddedToken("critic", rstrip=True)),
        ("", tokenizers.AddedToken("critic", single_word=True)),
        ("", tokenizers.AddedToken("the critic")),
    ],
)
def test_other_tokenizers_are_not_cached(what: str, token: Any) -> None:
    backend = byte_level(GPT2)
    assert is_cacheable(json.loads(backend.to_str()))
    raw = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if what == "a prefix":
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    elif what == "another normalizer":
        backend.normalizer = normalizers.Lowercase()
    elif what == "another split":
        split = pre_tokenizers.Split(Regex(r"\w+ \w+"), behavior="isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, raw])
    elif what == "no split":
        backend.pre_tokenizer = raw
    elif what == "merged words":
        split = pre_tokenizers.Split(Regex(next(iter(SPLITS))), behavior="merged_with_next")
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, raw])
    elif what == "unigram":
        backend.model = models.Unigram([("a", 0.0)], 0, False)
    elif what == "white space":
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if token is not None:
        backend.add_tokens([token])
    assert not is_cacheable(json.loads(backend.to_str()))
    assert Tokenizer(backend)._words is None


def test_the_demo_tokenizer_is_cached() -> None:
    assert Tokenizer(DEMO_SOURCE)._words is not None
