"""Ids from the cache of words against the tokenizer's own."""

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
# All kinds of white space, including characters that only some regular expressions match; word parts.
PARTS = st.sampled_from(
    [
        *" \n\t\u00a0\u0085\u001c\u2003\u3000\u200b\u180e'\u00e9\u0301\u01c51\u0663_./\U0001f600\x00\u00ada",
        *("  ", "\r\n", "The", "PLAN", "'s", "'LL", "e\u0301", "\u65e5\u672c", "\u0434\u0430"),
        *("1234", "//", "!?", "<eos>", "<e"),
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
    cache = Tokenizer(backend)._words
    assert cache is not None
    return cache


@pytest.mark.parametrize("name", sorted(BACKENDS))
@given(st.lists(st.lists(PARTS, max_size=14).map("".join), max_size=4))
def test_ids_equal_the_tokenizers(name: str, texts: list[str]) -> None:
    backend = BACKENDS[name]
    assert is_cacheable(json.loads(backend.to_str()))
    expected = [encoding.ids for encoding in backend.encode_batch(texts, add_special_tokens=False)]
    for cache in (words_of(backend), SHARED[name], WordCache(backend, no_lengths)):
        assert [ids.tolist() for ids in cache.ids_of(texts)] == expected


SHARED = {name: words_of(backend) for name, backend in BACKENDS.items()}


def no_lengths() -> Any:
    return np.zeros(1000, np.int64)


def test_words_are_tokenized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Recorder:
        def __init__(self) -> None:
            self.texts = list[str]()

        def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
            self.texts += texts
            return BACKENDS["byte level"].encode_batch_fast(texts, **options)

    monkeypatch.setattr(word_cache, "MAX_WORDS", 4)
    monkeypatch.setattr(word_cache, "MAX_WORD_LENGTH", 6)
    recorder: Any = Recorder()
    words = WordCache(recorder, words_of(BACKENDS["byte level"])._lengths)
    words.ids_of(["the plan the planner", "a plan the"])
    assert recorder.texts == [" plan the planner", "the", "a"]  # one is too long to be kept
    words.ids_of(["the plan planner a critic"])
    assert recorder.texts[3:] == [" planner a critic"]  # and four are kept
    words.ids_of([" a"])
    assert recorder.texts[4:] == [" a"]
    assert [ids.tolist() for ids in words.ids_of(["", "the plan the"])] == [
        encoding.ids for encoding in BACKENDS["byte level"].encode_batch(["", "the plan the"])
    ]


@pytest.mark.parametrize(
    ("kind", "token"),
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
def test_rejects_other_tokenizers(kind: str, token: Any) -> None:
    backend = byte_level(GPT2)
    assert is_cacheable(json.loads(backend.to_str()))
    raw = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if kind == "a prefix":
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    elif kind == "another normalizer":
        backend.normalizer = normalizers.Lowercase()
    elif kind == "another split":
        split = pre_tokenizers.Split(Regex(r"\w+ \w+"), behavior="isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, raw])
    elif kind == "no split":
        backend.pre_tokenizer = raw
    elif kind == "merged words":
        split = pre_tokenizers.Split(Regex(next(iter(SPLITS))), behavior="merged_with_next")
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, raw])
    elif kind == "unigram":
        backend.model = models.Unigram([("a", 0.0)], 0, False)
    elif kind == "white space":
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if token is not None:
        backend.add_tokens([token])
    assert not is_cacheable(json.loads(backend.to_str()))
    assert Tokenizer(backend)._words is None


def test_demo_tokenizer_is_cached() -> None:
    assert Tokenizer(DEMO_SOURCE)._words is not None
