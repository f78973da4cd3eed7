"""Mark text without logits: choose among candidates by the scores that an audit will read.

A hosted model shows no logits, but it writes several candidates. The scores of their tokens depend on
the agent's key alone, so choosing by score marks the text, and `iet.Auditor` reads the mark as any other.
WaterMax (Giboulot and Furon, arXiv 2403.04808) and Bahri and Wieting (arXiv 2410.02099) choose drafts by a
keyed score, too; here the choice stays unbiased although candidates share tokens (see `TextChooser`).
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import json
import weakref
from collections.abc import Sequence

import numpy as np

from iet.errors import InputError, shown
from iet.generation.sessions import keys_of_rows
from iet.marks.families import Family
from iet.marks.registry import Registry
from iet.marks.tokenizer import Tokenizer
from iet.native.arrays import Bools, Float64s, Int64s
from iet.native.texts import Texts

MAX_CANDIDATES = 128

_SIMULATED = 1023
"""Number of drawn keys that a sum of scores is ranked among."""

_TAIL = 256  # characters

_opened: weakref.WeakKeyDictionary[Registry, dict[str, Tokenizer]] = weakref.WeakKeyDictionary()
"""Tokenizers of profiles by id: opening one takes longer than a choice."""


@dataclasses.dataclass(frozen=True)
class Selection:
    """The candidate that `select` chose.

    Attributes:
        index: of the candidate.
        score: sum of the scores of its tokens; without a mark, the family's mean a token (gumbel: 1).
    """

    index: int
    score: float


def select(
    registry: Registry,
    agent: str,
    before: str,
    candidates: Sequence[str],
    session: str | None = None,
) -> Selection:
    """Choose the candidate that carries an agent's mark best, without a change to the distribution of text.

    With a score S_i = Σ_j x_j over the tokens of candidate i and n_i equal candidates, the choice is
    argmax log(u_i)/n_i, u_i = F(S_i), F the distribution of S_i over keys. Then each of m candidates is
    chosen with probability 1/m, over keys. If candidates share their first tokens, their sums depend on each
    other; `TextChooser.choose` says how the choice stays exact. The equation is that of Bahri and Wieting
    (arXiv 2410.02099), with sums of token scores instead of a hash of the whole candidate.

    m candidates of L different tokens carry E_m²/2 nats, E_m the expected maximum of m normal variates: 0.16,
    0.53, 1.01 and 1.56 nats for m = 2, 4, 8 and 16. Candidates that share tokens carry less.

    Args:
        registry: with the agent, and a tokenizer that can be opened.
        agent: its name.
        before: the answer so far, without the prompt: seeds count contexts in it, and the first tokens of a
            candidate depend on its last ones.
        candidates: drafts of what follows, each a sample of the model, none empty. Tokens are those of the
            *profile's* tokenizer in `before + candidate`, as an audit reads them; the provider's differ.
        session: id of the session whose keys mark the text. None: the agent's own key.

    Returns:
        The index of the candidate, of equal ones the first, and its score.

    Raises:
        InputError: there are no or more than 128 candidates, one is empty or no text, `before` is no text, or
            the id is invalid.
        RegistryError: the agent is unknown.
        TokenizerMismatch: the profile's tokenizer cannot be opened.

    Deterministic: the same candidates in any order give the same text. About 3 ms for 8 candidates of 16
    tokens, and O(m·tokens so far).
    """
    if not isinstance(before, str):
        raise InputError(f"before: got {shown(before)}, expected text")
    if isinstance(candidates, str) or not isinstance(candidates, Sequence):
        raise InputError(f"candidates: got {type(candidates).__name__}, expected a list of texts")
    if not len(candidates):
        raise InputError("candidates: got none, expected at least one text")
    if len(candidates) > MAX_CANDIDATES:
        raise InputError(f"candidates: got {len(candidates)}, expected at most {MAX_CANDIDATES}")
    for number, text in enumerate(candidates):
        if not isinstance(text, str) or not text:
            raise InputError(f"candidates[{number}]: got {shown(text)}, expected a text that is not empty")
    chooser = TextChooser(registry, agent, session)
    return chooser.choose(before, candidates, [1.0] * len(candidates))


class TextChooser:
    """Chooses among weighted continuations of a text by the scores of one key.

    Args:
        registry, agent, session: as in `select`.

    Raises:
        InputError, RegistryError, TokenizerMismatch: as in `select`.
    """

    def __init__(self, registry: Registry, agent: str, session: str | None = None) -> None:
        if not isinstance(registry, Registry):
            raise InputError(f"registry: got {type(registry).__name__}, expected iet.Registry")
        row, profile = registry.slot(agent), registry.profile_of(agent)
        table = registry.marking_keys(profile.id)
        if session is not None:
            table, (row,) = keys_of_rows(registry, table, [row], [session])
        self._keys = table.subset(np.array([row]))
        opened = _opened.setdefault(registry, {})
        if profile.id not in opened:
            opened[profile.id] = registry.open_tokenizer(profile.id)
        self._tokenizer = opened[profile.id]

    @functools.cached_property
    def special_tokens(self) -> frozenset[str]:
        """The profile's tokens that are no text, such as the end of an answer."""
        backend = self._tokenizer.backend
        return frozenset(str(backend.id_to_token(token)) for token in self._tokenizer.special_ids)

    def choose(
        self,
        text: str,
        options: Sequence[str],
        weights: Sequence[float],
        ended: Sequence[bool] | None = None,
    ) -> Selection:
        """Choose option i with probability proportional to its weight, over keys.

        Options form a tree by their tokens. At each fork, branch b has a value v_b, the sum of the scores on
        its first edge plus the value of the next fork, and the branch with the largest log(u_b)/W_b
        wins, W_b the weight of its options. u_b is the rank of v_b among the values of the same branch under
        `_SIMULATED` keys, whose scores are drawn; the agent's key is one more draw, so u_b is uniform.
        Branches share no token after their fork, so -log(u_b)/W_b are independent exponential variates, and b
        wins with probability W_b/ΣW. Their minimum does not depend on which branch attains it: the value of
        the fork is the quantile of the winners' values at the rank of that minimum, so that forks decide
        independently. If no two options share a token, this is argmax log F(S_i)/w_i.

        A pair of context and token in two branches has one score, so it is left out of both. Two
        things are not exact: the value of a fork is a quantile among 1,024 values, which include its own, and
        scores of options that were not chosen may return in a later choice.

        Args:
            text: the text so far.
            options: what may follow; empty if the text may end here.
            weights: above 0. Equal options add their weights.
            ended: whether the text ends after each option; None: none does. Options that differ only in this
                are different.

        Returns:
            The index of the option, of equal ones the first, and the sum of the scores of its tokens.
        """
        labels = list(zip(options, [False] * len(options) if ended is None else ended, strict=True))
        distinct = sorted(set(labels))
        totals = dict.fromkeys(distinct, 0.0)
        for label, weight in zip(labels, weights, strict=True):
            totals[label] += weight
        ids_so_far, *ids = self._token_ids(text, [option for option, _ in distinct])
        scores, counted = self._scores(ids)
        rng, family = self._generator(text, distinct), self._keys.profile.family
        winner = Tree(ids, scores, counted, list(totals.values()), family, rng).winner()
        unchanged = _common_length(ids_so_far, ids[winner])
        return Selection(labels.index(distinct[winner]), float(scores[winner][unchanged:].sum()))

    def _scores(self, ids: Sequence[Int64s]) -> tuple[list[Float64s], list[Bools]]:
        """Return the scores of each option, 0 if not scored or repeated, and which of them are counted.

        A pair of context and token in several branches has one score, which would couple them. The prefix
        that all options share is no part of the choice.
        """
        keys, n_gram = self._keys, self._keys.profile.scheme.n_gram
        texts = Texts.of(ids, n_gram)
        times = keys.times_before(texts)
        numbers, repeated = keys.pairs(texts)
        is_fresh = (numbers >= 0) & ~repeated
        scores = np.where(is_fresh, keys.scores(texts, 1, times)[:, 0], 0.0)
        shared = _common_length(*ids)
        nodes: dict[tuple[int, int], int] = {}  # (node before, token) -> node of the tree
        nodes_of = collections.defaultdict[tuple[bytes, int], set[int]](set)
        pairs = list[tuple[int, tuple[bytes, int]]]()
        for start, end in zip(texts.starts.tolist(), texts.ends.tolist(), strict=True):
            node = -1
            for j in range(start + shared, end):
                node = nodes.setdefault((node, int(texts.ids[j])), len(nodes))
                if is_fresh[j]:
                    pair = texts.ids[j + 1 - n_gram : j + 1].tobytes(), 0 if times is None else int(times[j])
                    nodes_of[pair].add(node)
                    pairs.append((j, pair))
        counted = np.zeros(len(scores), np.bool_)
        for j, pair in pairs:
            counted[j] = len(nodes_of[pair]) == 1
        spans = [slice(*span) for span in zip(texts.starts.tolist(), texts.ends.tolist(), strict=True)]
        return [scores[span] for span in spans], [counted[span] for span in spans]

    def _token_ids(self, text: str, options: Sequence[str]) -> list[Int64s]:
        """Return the tokens of the text, and of the text with each option.

        Only the end of a long text is tokenized with every option, if it has the same tokens by itself.
        """
        blank = text.find(" ", max(0, len(text) - _TAIL))
        tail = text[blank:] if blank > 0 else text
        encodings = self._tokenizer.encode_batch([text, tail, *(tail + option for option in options)])
        ids, tail_ids, *rest = [encoding.token_ids for encoding in encodings]
        head = ids[: len(ids) - len(tail_ids)]
        if np.array_equal(ids[len(head) :], tail_ids):
            return [ids, *(np.concatenate([head, part]) for part in rest)]
        return [ids, *(e.token_ids for e in self._tokenizer.encode_batch([text + o for o in options]))]

    def _generator(self, text: str, options: Sequence[tuple[str, bool]]) -> np.random.Generator:
        """Return the draws of a choice, which depend on the key, the text and the options."""
        content = json.dumps([text, options]).encode()
        key = self._keys.subkeys.tobytes()
        return np.random.default_rng(list(hashlib.blake2b(content, key=key, person=b"iet select").digest()))


class Tree:
    """Options as a tree of their tokens, with their scores under the key and under simulated keys.

    Args:
        ids: tokens [T_i] of each option, with the text before it.
        scores: [T_i] of each option.
        counted: bool [T_i] of each option, the tokens whose scores take part in the choice. Their scores are
            independent, unless they are the same token of the same prefix.
        weights: of the options.
        family: law of the scores.
        rng: draws the scores under simulated keys, and breaks ties.
    """

    def __init__(
        self,
        ids: Sequence[Int64s],
        scores: Sequence[Float64s],
        counted: Sequence[Bools],
        weights: Sequence[float],
        family: Family,
        rng: np.random.Generator,
    ) -> None:
        self._ids, self._scores, self._counted = ids, scores, counted
        self._weights, self._family, self._rng = weights, family, rng

    def winner(self) -> int:
        """Return the index of the chosen option."""
        return self._winners(list(range(len(self._ids))), 0)[1]

    def _winners(self, options: list[int], start: int) -> tuple[Float64s, int]:
        """Return the value of a branch under all keys [1 + simulated], and the winner under the first."""
        end = start + _common_length(*(self._ids[option][start:] for option in options))
        values = self._sums(options[0], start, end)
        if len(options) == 1:
            return values, options[0]
        branches: dict[object, list[int]] = {}
        for option in options:
            ids = self._ids[option]
            # An option that ends here is a branch of its own, without tokens.
            branches.setdefault(int(ids[end]) if len(ids) > end else f"end {option}", []).append(option)
        results = [self._winners(branch, end) for branch in branches.values()]
        weights = [sum(self._weights[option] for option in branch) for branch in branches.values()]
        races = [
            np.log(self._ranks(value)) / weight for (value, _), weight in zip(results, weights, strict=True)
        ]
        best, race = np.argmax(races, axis=0), np.max(races, axis=0)
        of_winner = np.take_along_axis(np.array([value for value, _ in results]), best[None], axis=0)[0]
        # Which branch wins says nothing about `race`, but much about the winner's value. So pass on a value
        # of the same distribution that depends on `race` alone.
        values[np.argsort(race)] += np.sort(of_winner)
        return values, results[best[0]][1]

    def _sums(self, option: int, start: int, end: int) -> Float64s:
        """Return the sum of an option's scores in `[start, end)`, under the key and the simulated keys."""
        counted = self._counted[option][start:end]
        drawn = self._family.draw(self._rng, (int(counted.sum()), _SIMULATED), 0.0).sum(axis=0)
        return np.append(self._scores[option][start:end][counted].sum(), drawn)

    def _ranks(self, values: Float64s) -> Float64s:
        """Return the rank of each value in (0, 1): uniform for every column, ties included."""
        size = len(values)
        order = np.lexsort((self._rng.random(size), values))
        ranks = np.empty(size)
        ranks[order] = np.arange(size)
        return (ranks + 1 - self._rng.random(size)) / size


def _common_length(*ids: Int64s) -> int:
    """Return the length of the longest common prefix."""
    length = min(map(len, ids))
    equal = np.ones(length, np.bool_)
    for sequence in ids[1:]:
        equal &= ids[0][:length] == sequence[:length]
    return length if equal.all() else int(equal.argmin())
