"""Sampling that can be read: sentences of words that are in a list, which begin with a capital letter."""

from __future__ import annotations

import functools
import string
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import transformers

ENDS = (".", "?", "!")
"""What a sentence ends with. Within one, commas may stand."""


class Sentences(transformers.LogitsProcessor):
    """Leave only tokens that go on with a sentence of listed words: all other logits become -inf.

    It runs before the sampler and before the mark, which move probability among the tokens that remain.
    Stateless: where in a word a row is, is read off its last ids.

    Args:
        tokenizer: of the model, with byte-level tokens that hold a word, a part of one, or punctuation.
        words: the list; a word may have a capital letter as in the list or at the start of a sentence.
    """

    def __init__(self, tokenizer: Any, words: Iterable[str]) -> None:
        self._tokens: list[str] = [tokenizer.decode([i]) for i in range(len(tokenizer))]
        inside = set(words)
        starts = {word[0].upper() + word[1:] for word in inside}
        self._whole = (inside, starts)
        self._begun = tuple(
            {word[:i] for word in listed for i in range(1, len(word) + 1)} for listed in self._whole
        )
        spaced = [token.startswith(" ") for token in self._tokens]
        self._ends = torch.tensor([token in (*ENDS, ",") for token in self._tokens])
        # After a whole word, by whether a sentence has ended too: tokens that begin the next one.
        self._next = tuple(
            torch.tensor(
                [space and token[1:] in prefixes for token, space in zip(self._tokens, spaced, strict=True)]
            )
            for prefixes in self._begun
        )
        self._parts = [i for i, space in enumerate(spaced) if not space and not self._ends[i]]
        self._mask = functools.cache(self._mask_after)

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Return `scores` [B, >= V] with -inf for each token that does not fit after `input_ids` [B, T]."""
        masks = torch.stack([self._mask(*self._place(row)) for row in input_ids[:, -16:].tolist()])
        remaining: torch.FloatTensor = scores.clone()  # type: ignore[assignment]
        remaining[:, : masks.shape[1]].masked_fill_(~masks.to(scores.device), float("-inf"))
        remaining[:, masks.shape[1] :] = float("-inf")
        return remaining

    def _place(self, ids: Sequence[int]) -> tuple[str, bool]:
        """Return the word that the ids end in, as far as it goes, and whether it is a sentence's first."""
        text = "".join(self._tokens[i] for i in ids)
        word = text[len(text.rstrip(string.ascii_letters + "'")) :]
        prefix = text[: len(text) - len(word)].rstrip()
        return word, prefix.endswith(ENDS) or not prefix

    def _mask_after(self, word: str, first: bool) -> torch.Tensor:
        """Return which tokens fit, [V]."""
        complete = not word or word in self._whole[first]
        ended = first and not word
        fits = self._next[ended].clone() if complete else torch.zeros_like(self._ends)
        if word:
            prefixes = self._begun[first]
            fits |= self._ends & complete
            fits[[i for i in self._parts if word + self._tokens[i] in prefixes]] = True
        return fits


def whole_sentences(text: str) -> str:
    """Return `text` up to the end of its last sentence, or all of it if no sentence ends."""
    ends = [i for i, character in enumerate(text, 1) if character in ENDS]
    return text[: ends[-1]] if ends else text
