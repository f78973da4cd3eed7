"""Simulated scores of marked text, for `iet calibrate`.

Text is a mixture, as language models write it at low temperature: a share H / 2.5 of its tokens is drawn from
distributions of 2.5 nats, the others are certain and carry no mark. Above 2.5 nats all are drawn from
distributions of H nats. Marks:

    native  the engine chooses or tilts tokens by their scores
    select  the one of m drafts of L tokens with the largest log F(S)/n
    walk    the key chooses among the 19 likeliest tokens; a drawn token outside of these stays, unmarked

S is the sum of a draft's scores, F its distribution without a mark, n the number of equal drafts. Drafts with
a common prefix share its scores and the distribution of the next token.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Literal, get_args

import numpy as np

from iet.audit.tails import log_tails
from iet.errors import InputError, check_number, shown
from iet.marks.families import FAMILIES
from iet.native.arrays import Float64s, Int64s

MarkName = Literal["native", "select", "walk"]

FREE_FIRST, FREE_RATE = 8, 0.05
"""The default free tokens of `iet.FreeTokens`, which stands above this module."""

UNCERTAIN_NATS = 2.5

_CANDIDATES = 256
MOST_NATS = 5.5
"""Just below log 256, the entropy of that many tokens where all are alike."""

MOST_CANDIDATES, MOST_CHUNK_TOKENS = 128, 4096

_WALK_TOKENS, _WALK_DRAFT = 19, 8
"""Tokens that `walk` chooses among, and the tokens of its drafts: the defaults of `iet.generation.hosted`."""

_DISTRIBUTIONS = 4096
_FEWEST_CHUNKS = 512
_BATCH = 1 << 23
"""Scores of drafts that are in memory at a time."""

_CHOSEN = FAMILIES["gumbel"]
"""Law of the scores of `select` and `walk`."""


@dataclasses.dataclass(frozen=True)
class Method:
    """How text is marked.

    Attributes:
        mark: "native": by the engine; "select" and "walk": by `iet.generation.hosted`.
        candidates: m, the number of drafts of "select", 2 to 128.
        chunk_tokens: L, the tokens of a draft of "select", 1 to 4096.
    """

    mark: MarkName = "native"
    candidates: int = 8
    chunk_tokens: int = 16

    def __post_init__(self) -> None:
        if self.mark not in get_args(MarkName):
            raise InputError(f"mark: got {shown(self.mark)}, expected one of {', '.join(get_args(MarkName))}")
        check_number("candidates", self.candidates, 2, MOST_CANDIDATES)
        check_number("chunk_tokens", self.chunk_tokens, 1, MOST_CHUNK_TOKENS)

    def __str__(self) -> str:
        walk = f"walk among {_WALK_TOKENS} tokens, drafts of {_WALK_DRAFT}"
        select = f"select among {self.candidates} candidates of {self.chunk_tokens} tokens"
        return {"native": "native", "walk": walk, "select": select}[self.mark]

    @property
    def families(self) -> tuple[str, ...]:
        """Families that are simulated."""
        return tuple(FAMILIES) if self.mark == "native" else (_CHOSEN.name,)

    def chunk(self, tokens: float) -> int:
        """Return the number of tokens that are chosen together in an answer of `tokens` tokens."""
        return min(self.chunk_tokens, max(1, int(tokens))) if self.mark == "select" else 1

    def scores(
        self,
        family: str,
        kappa: float,
        entropy: float,
        rng: np.random.Generator,
        draws: int = 1 << 16,
        chunk: int = 1,
    ) -> Float64s:
        """Return scores of marked tokens, [draws / chunk, chunk]; `select` has at least 512 rows.

        Rows are independent. The scores in a row of `select` are not, since they were chosen by their sum.
        """
        if self.mark == "select":
            return _selected_scores(entropy, self.candidates, chunk, rng, draws)
        if self.mark == "walk":
            return _walk_scores(entropy, rng, draws)[:, None]
        return marked_scores(family, kappa, entropy, rng, draws)[:, None]

    def generated(self, entropy: float) -> float:
        """Return the price: tokens generated for each token of text, with `walk` 8/E[min(8, tokens kept)]."""
        if self.mark != "walk":
            return float(self.candidates) if self.mark == "select" else 1.0
        q = _likeliest(_distributions(entropy, np.random.default_rng(0)))
        mass = q.sum(axis=1)
        changed = float((mass - (q**2).sum(axis=1) / mass).mean())
        changed *= _share(entropy) * (1 - FREE_RATE)
        return _WALK_DRAFT / sum((1 - changed) ** position for position in range(_WALK_DRAFT))


NATIVE = Method()


@functools.cache
def information(method: Method, entropy: float, tokens: float) -> float:
    """Return the information per token of `select` and `walk`, in nats, in turns of `tokens` tokens.

    As for native marks it is the KL of the tilted law with the mean μ of marked scores, here μ - 1 - log μ.
    """
    rng = np.random.default_rng([_CHOSEN.code, round(1e6 * entropy)])
    scores = method.scores(_CHOSEN.name, _CHOSEN.kappa, entropy, rng, chunk=method.chunk(tokens))
    mean = max(1.0, float(scores.mean()))
    return mean - 1 - math.log(mean)


def marked_scores(
    family: str, kappa: float, entropy: float, rng: np.random.Generator, draws: int = 1 << 16
) -> Float64s:
    """Return scores of tokens drawn with a mark, [draws], in text of `entropy` nats (see `power`)."""
    nats = max(entropy, UNCERTAIN_NATS)
    uncertain = rng.random(draws) < entropy / nats
    # Sixteen draws from each distribution. The arrays are large, so work in place.
    logits = (_slope(nats, rng) * rng.normal(size=(draws // 16, _CANDIDATES)))[:, None]
    shape = draws // 16, 16, _CANDIDATES
    law = FAMILIES[family]
    if law.chooses:
        certain = law.draw(rng, draws, 0.0)
        noise = rng.random(shape)
        tilted = _log_of_exponential(noise.copy())
        np.subtract(logits, tilted, out=tilted)
        chosen = tilted.argmax(axis=2).ravel()
        scores = -np.log1p(-noise.reshape(draws, _CANDIDATES)[np.arange(draws), chosen])
    else:
        scores_of = law.draw(rng, shape, 0.0)
        certain = law.draw(rng, draws, 0.0)
        noise = _log_of_exponential(rng.random(shape))
        tilted = kappa * scores_of
        tilted += logits
        tilted -= noise
        chosen = tilted.argmax(axis=2).ravel()
        scores = scores_of.reshape(draws, _CANDIDATES)[np.arange(draws), chosen]
    return np.where(uncertain, scores, certain)


def _log_of_exponential(uniform: Float64s) -> Float64s:
    """Return log(-log(u)) in the array that holds u."""
    for function in (np.log, np.negative, np.log):
        function(uniform, out=uniform)
    return uniform


def _slope(nats: float, rng: np.random.Generator) -> float:
    """Return s so that softmax(s·z), z standard normal, has `nats` of entropy on average."""
    z = rng.normal(size=(400, _CANDIDATES))
    low, high = 0.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        log_q = middle * z - np.log(np.exp(middle * z).sum(axis=1, keepdims=True))
        low, high = (middle, high) if -(np.exp(log_q) * log_q).sum(axis=1).mean() > nats else (low, middle)
    return low


def _share(entropy: float) -> float:
    """Return the share of tokens that are not certain."""
    return min(1.0, entropy / UNCERTAIN_NATS)


def _distributions(entropy: float, rng: np.random.Generator) -> Float64s:
    """Return distributions of the tokens that are not certain, [4096, 256]."""
    logits = _slope(max(entropy, UNCERTAIN_NATS), rng) * rng.normal(size=(_DISTRIBUTIONS, _CANDIDATES))
    q = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(q / q.sum(axis=1, keepdims=True))


def _likeliest(q: Float64s) -> Float64s:
    return np.partition(q, -_WALK_TOKENS, axis=1)[:, -_WALK_TOKENS:]


def _walk_scores(entropy: float, rng: np.random.Generator, draws: int) -> Float64s:
    q = _likeliest(_distributions(entropy, rng))[rng.integers(0, _DISTRIBUTIONS, draws)]
    is_marked = rng.random(draws) < _share(entropy) * q.sum(axis=1)
    noise = rng.random(q.shape)
    chosen = (np.log(q) - _log_of_exponential(noise.copy())).argmax(axis=1)
    scores = -np.log1p(-noise[np.arange(draws), chosen])
    return np.where(is_marked, scores, _CHOSEN.draw(rng, draws, 0.0))


def _selected_scores(
    entropy: float, candidates: int, chunk: int, rng: np.random.Generator, draws: int
) -> Float64s:
    """Return the scores of chosen drafts, [draws / chunk, chunk], with at least 512 rows."""
    cumulative = np.cumsum(_distributions(entropy, rng), axis=1)
    cumulative += np.arange(_DISTRIBUTIONS)[:, None]  # of all rows, in one ascending array
    size = max(draws // chunk, _FEWEST_CHUNKS)
    batch = max(1, _BATCH // (candidates * chunk))
    rows = np.diff(np.append(np.arange(0, size, batch), size))
    chosen = list[Float64s]()
    for texts in rows:
        tree = draft_tree(cumulative.ravel(), _share(entropy), (int(texts), candidates, chunk), rng)
        chosen.append(np.take_along_axis(tree[0], chosen_drafts(*tree)[None, :, None], axis=2)[:, :, 0].T)
    return np.concatenate(chosen)


def draft_tree(
    cumulative: Float64s, share: float, shape: tuple[int, int, int], rng: np.random.Generator
) -> tuple[Float64s, Int64s]:
    """Draw m drafts of L tokens for C texts: shape (C, m, L).

    Returns:
        Scores [L, C, m], and numbers of prefixes [L, C, m], which are equal for drafts that are equal so far.
    """
    texts, candidates, chunk = shape
    prefixes = np.repeat(np.arange(texts), candidates)
    scores, numbers = np.empty((chunk, len(prefixes))), np.empty((chunk, len(prefixes)), np.int64)
    for position in range(chunk):
        size = prefixes.max() + 1
        is_uncertain = (rng.random(size) < share)[prefixes]
        rows = rng.integers(0, len(cumulative) // _CANDIDATES, size)[prefixes]
        drawn = np.searchsorted(cumulative, rows + rng.random(len(rows))) - _CANDIDATES * rows
        tokens = np.where(is_uncertain, np.minimum(drawn, _CANDIDATES - 1), 0)
        prefixes = np.unique(_CANDIDATES * prefixes + tokens, return_inverse=True)[1]
        scores[position] = _CHOSEN.draw(rng, prefixes.max() + 1, 0.0)[prefixes]
        numbers[position] = prefixes
    return scores.reshape(chunk, texts, candidates), numbers.reshape(chunk, texts, candidates)


def chosen_drafts(scores: Float64s, prefixes: Int64s) -> Int64s:
    """Return the index of the chosen draft of each text [C], from what `draft_tree` returns.

    The choice is argmax log F(S)/n, without the prefix that all drafts share. `iet.select` also weighs forks
    inside the drafts: with 8 drafts of 16 tokens of 0.25 to 5 nats, its mean score shift is 0.2 to 0.4 %
    smaller.
    """
    is_fork = (prefixes != prefixes[:, :, :1]).any(axis=2, keepdims=True)
    sums = (scores * is_fork).sum(axis=0)
    tokens = np.broadcast_to(is_fork.sum(axis=0), sums.shape)
    log_p = log_tails(sums.ravel(), tokens.ravel(), _CHOSEN).reshape(sums.shape)
    log_f = np.log1p(-np.minimum(np.exp(log_p), 1 - 1e-16))
    copies = np.bincount(prefixes[-1].ravel())[prefixes[-1]]
    return np.asarray((log_f / copies).argmax(axis=1))
