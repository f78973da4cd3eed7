"""Registries with agents, whose keys are the same at every run, and the tokenizers that they name."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from iet.marks.registry import Registry
from iet.marks.scheme import Scheme

WORDS = 600
NAMES = ("planner", "critic", "writer")


def word_tokenizer(words: int = WORDS) -> tokenizers.Tokenizer:
    """One id per word, so that a text has exactly the ids it was made of."""
    vocabulary = {"<unk>": 0, **{f"w{i}": i for i in range(1, words)}}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["<unk>"])
    return backend


def byte_tokenizer(
    normalizer: normalizers.Normalizer | None = None,
    corpus: Sequence[str] = ("the planner hands the plan to the critic",) * 5,
    size: int = 280,
    special_tokens: Sequence[str] = (),
) -> tokenizers.Tokenizer:
    """A byte-level BPE, which spells any text, many characters with several tokens."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(corpus, trainer)
    return backend


WORD_TOKENIZER = word_tokenizer()


def secret(of: str | int) -> bytes:
    """Return 32 bytes that are the same in every run: a padded name, or the hash of a number."""
    if isinstance(of, str):
        return of.encode()[:32].ljust(32, b".")
    return hashlib.blake2b(bytes([of]), digest_size=32).digest()


def team(
    names: Sequence[str] | Mapping[str, int] = NAMES,
    path: Any = None,
    *,
    numbered: int | None = None,
    tokenizer: Any = None,
    vocab_size: int | None = None,
    unmarked_ids: Sequence[int] | None = None,
    **scheme: Any,
) -> Registry:
    """A registry with one key for each name: `secret(name)`, or 32 times the byte numbered, numbered + 1, …

    A mapping gives the number of each name's secret.

    With neither a tokenizer nor a vocabulary it is one of words, at a strength that short texts show.
    """
    if tokenizer is None and vocab_size is None:
        tokenizer = WORD_TOKENIZER
        scheme = {"kappa": 2.0, **scheme}
    registry = Registry.create(
        path, tokenizer=tokenizer, vocab_size=vocab_size, unmarked_ids=unmarked_ids, scheme=Scheme(**scheme)
    )
    for number, name in enumerate(names, numbered or 0):
        of = names[name] if isinstance(names, Mapping) else name
        registry.add(name, secret=secret(of) if numbered is None else bytes([number]) * 32)
    return registry
