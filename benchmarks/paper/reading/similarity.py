"""Similarity of a text before and after a change: ROUGE-L of the words, SemSim of the meaning."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.paper import needed

Embed = Callable[[Sequence[str]], npt.ArrayLike]
"""Texts to their vectors [N, D]."""

_WORD = re.compile(r"[a-z0-9]+")


def rouge_l(reference: str, candidate: str) -> float:
    """Return the F-measure of the longest common subsequence of words.

        ROUGE-L = 2·L / (|reference| + |candidate|),    L = LCS in words

    Words are those of the package rouge-score. The LCS keeps one bit for each word of the reference (Hyyrö,
    "Bit-parallel LCS-length computation revisited", 2004), because the loop of rouge-score takes seconds for
    5,000 words. Cost: O(|a|·|b| / 64).

    >>> rouge_l("the cat sat on the mat", "the cat is on the mat")
    0.8333333333333334
    """
    a, b = (_WORD.findall(text.lower()) for text in (reference, candidate))
    positions: dict[str, int] = {}
    for i, word in enumerate(a):
        positions[word] = positions.get(word, 0) | 1 << i
    column = mask = (1 << len(a)) - 1
    for word in b:
        matches = column & positions.get(word, 0)
        column = (column + matches | column - matches) & mask
    common = len(a) - column.bit_count()
    return 2 * common / (len(a) + len(b)) if a or b else 1.0


def semantic_similarity(pairs: Sequence[tuple[str, str]], embed: Embed | None) -> list[float | None]:
    """Return the cosine of the two texts' vectors for each pair; None for all without a model."""
    if embed is None:
        return [None] * len(pairs)
    vectors = np.asarray(embed([text for pair in pairs for text in pair]), dtype=np.float64)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    return [float(a @ b) for a, b in vectors.reshape(len(pairs), 2, -1)]


def embedder(model: str) -> Embed:
    """Return the encoder of a sentence-transformers model, or scikit-learn's "tf-idf"."""
    if model == "tf-idf":
        make = needed("sklearn.feature_extraction.text").TfidfVectorizer
        return lambda texts: make().fit_transform(texts).toarray()
    encode: Any = needed("sentence_transformers", "sentence-transformers").SentenceTransformer(model).encode
    return lambda texts: encode(list(texts))
