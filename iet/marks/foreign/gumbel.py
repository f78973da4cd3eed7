"""Keyed Gumbel-max of serving engines: x = -log(1 - u), u a uniform number of key, context and token."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from iet.marks.foreign.keys import Ids, checked_integer, runs_of_ids
from iet.marks.foreign.scheme import EngineScheme, Keys, Mask
from iet.marks.scheme import FAMILIES, MAX_VOCAB_SIZE, Family
from iet.native.load import cpu
from iet.native.texts import Texts

MAX_CONTEXT = 64
"""Ids in a context: SGLang's limit, and ours."""


@dataclasses.dataclass(frozen=True)
class KeyedGumbel(EngineScheme):
    """Scores that are Exp(1) without a mark.

    Attributes:
        n_gram: n, 2 to 65.
    """

    n_gram: int = 5

    prf: ClassVar[int]  # `EnginePrf` of csrc/foreign/schemes.h
    padded: ClassVar[bool]  # the first n-1 tokens have a context, which is filled up with -1

    @staticmethod
    @abc.abstractmethod
    def score(words: NDArray[np.uint32], key: int) -> NDArray[np.float32]:
        """Return the scores of n-grams [N, n]."""

    def __post_init__(self) -> None:
        checked_integer("n_gram", self.n_gram, 2, MAX_CONTEXT + 1)

    def family(self, vocab_size: int) -> Family:
        """Return the null law of the scores."""
        return FAMILIES["gumbel"]

    def scored(self, texts: Texts, vocab_size: int) -> Mask:
        """Tell which positions are scored, and not alike under every key, [N]."""
        if not self.padded:
            return super().scored(texts, vocab_size)
        between = texts.between
        return runs_of_ids(np.where(between, 0, texts.ids), self.n_gram, vocab_size) & ~between

    def pair_numbers(self, texts: Texts, counting: Mask) -> tuple[Ids, Mask]:
        """Number the positions of each text that are `counting`: the same number, no new evidence."""
        # Engines mark the first token after a context only, and their detectors count no other. A context may
        # begin before the text.
        from iet.native.pairs import number_pairs_of

        filled = np.where(texts.between, MAX_VOCAB_SIZE, texts.ids)
        starts = texts.starts - (self.n_gram - 1)
        return number_pairs_of(filled, counting, starts, texts.ends, self.n_gram, contexts=True)

    def scores(
        self, ids: Ids, scored: Mask, keys: Keys, vocab_size: int, prepared: Any, threads: int
    ) -> NDArray[Any]:
        """Return x_j [T, K]."""
        # -1 becomes 2^32 - 1, as in vLLM.
        words = np.concatenate([np.full(self.n_gram - 1, -1), ids]).astype(np.uint32)
        if cpu is not None:
            scores = np.empty((len(ids), len(keys)), np.float32)
            cpu.engine_gumbel(
                self.prf,
                words.ctypes.data,
                self.n_gram - 1,
                scored.ctypes.data,
                len(ids),
                keys.ctypes.data,
                len(keys),
                scores.ctypes.data,
                threads,
            )
            return scores
        scores = np.zeros((len(ids), len(keys)), np.float32)
        if scored.any():
            n_grams = np.lib.stride_tricks.sliding_window_view(words, self.n_gram)[scored]
            for column, key in enumerate(keys.tolist()):
                scores[scored, column] = self.score(n_grams, key)
        return scores
