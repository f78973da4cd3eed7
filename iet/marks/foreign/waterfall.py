"""Scheme `waterfall`: text marked by the public Waterfall package, under integer ids.

    p = RandomState((id, *context)).permutation(V)          context: the n-1 token ids before
    logits[v] += κ·φ(p[v])        x_j = φ(p[y_j])           (docs/internals/foreign_marks.md)

It serves to make and to read the runs of the paper, which used that package and the ids 42, 43, ...
Ids are not secret: all of them can be tried. For your own text use a `Registry`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iet.errors import InputError, RegistryError
from iet.marks.families import FAMILIES, Family
from iet.marks.foreign.keys import ForeignKeys, ForeignProfile, Ids, checked_integer
from iet.marks.names import checked_name
from iet.marks.scheme import MAX_N_GRAM, MAX_VOCAB_SIZE, MIN_N_GRAM, AnyScheme, canonical_digest
from iet.marks.tokenizer import Tokenizer
from iet.native.load import compiled
from iet.native.texts import Texts

MAX_KEY = (1 << 32) - 1
"""The largest integer id: `RandomState` takes 32 bits."""

MIN_VOCAB_SIZE = 3
"""The package has no frequency for smaller vocabularies."""


@dataclasses.dataclass(frozen=True)
class WaterfallScheme(AnyScheme):
    """The parameters of the package's mark that a reader must know; κ is not one of them.

    Attributes:
        n_gram: n, 2 to 16. The n-1 ids before a position seed its permutation.
        k_p: 1 to M = ⌊(V-1)/2⌋ is the frequency of a cosine, M+1 to 2M of a sine (frequency k_p - M).
        version: of this implementation of the package's mark.
    """

    n_gram: int = 2
    k_p: int = 1
    version: int = 1

    def law(self, vocab_size: int) -> Family:
        """Return family "fourier": a cosine or sine of a uniform rank has the same null distribution."""
        return FAMILIES["fourier"]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"name": "waterfall", **super().to_dict()}

    def __str__(self) -> str:
        return f"waterfall, n {self.n_gram}, k_p {self.k_p}"


class WaterfallKeys(ForeignKeys):
    """Agents under the integer ids that the Waterfall package marked them with.

    `score_tokens` and an `Auditor` accept them like a `Registry`. They never change.

    >>> keys = WaterfallKeys({"planner": 42, "critic": 43}, vocab_size=32000)
    >>> keys
    WaterfallKeys(planner=42, critic=43; waterfall, n 2, k_p 1, V 32000)
    >>> keys.key("critic")
    43

    Args:
        keys: agent -> integer id, 0 to 2^32 - 1, each once.
        tokenizer: anything that `iet.marks.tokenizer.Tokenizer` takes.
        vocab_size: V, 3 to 2^24. Default: that of the tokenizer without added tokens, as the package counts.
            Alone: only token ids can be audited.
        n_gram: n, 2 to 16.
        k_p: 1 to 2·⌊(V-1)/2⌋, see `WaterfallScheme`.

    Raises:
        InputError: there are no agents, two have one id, there is neither a tokenizer nor a vocabulary size,
            or a value is out of range.
        TokenizerMismatch: the tokenizer cannot be read.
    """

    def __init__(
        self,
        keys: Mapping[str, int],
        *,
        tokenizer: Any = None,
        vocab_size: int | None = None,
        n_gram: int = 2,
        k_p: int = 1,
    ) -> None:
        if not isinstance(keys, Mapping) or not keys:
            raise InputError(
                f"keys: got {keys!r:.80}, expected agents and their ids, such as {{'planner': 42}}"
            )
        ids = [
            checked_integer(f"keys: id of {checked_name(name)!r}", id, 0, MAX_KEY)
            for name, id in keys.items()
        ]
        for i, id in enumerate(ids):
            if id in ids[:i]:
                raise InputError(f"keys: got the id {id} twice, expected one of its own for each agent")
        if tokenizer is None and vocab_size is None:
            raise InputError("vocab_size: got neither it nor a tokenizer, expected one of them")
        opened = None if tokenizer is None else Tokenizer(tokenizer)
        if vocab_size is None:
            assert opened is not None
            vocab_size = opened.backend.get_vocab_size(with_added_tokens=False)
        vocab_size = checked_integer("vocab_size", vocab_size, MIN_VOCAB_SIZE, MAX_VOCAB_SIZE)
        scheme = WaterfallScheme(
            checked_integer("n_gram", n_gram, MIN_N_GRAM, MAX_N_GRAM),
            checked_integer("k_p", k_p, 1, (vocab_size - 1) // 2 * 2),
        )
        self.names: tuple[str, ...] = tuple(keys)
        self.keys: NDArray[np.uint32] = np.array(ids, dtype=np.uint32)
        self.owners: NDArray[np.int32] = np.arange(len(ids), dtype=np.int32)
        for array in (self.keys, self.owners):
            array.setflags(write=False)
        self.scheme = scheme
        self.profile = ForeignProfile.of(scheme, vocab_size, opened)
        self._tokenizer = opened

    @classmethod
    def unnamed(
        cls, keys: Sequence[int], *, vocab_size: int | None = None, n_gram: int = 2, k_p: int = 1
    ) -> WaterfallKeys:
        """Return integer ids [K] without agents, to score token ids.

        >>> WaterfallKeys.unnamed([42], vocab_size=32000).names
        ('42',)

        Args:
            keys: distinct ids.
            vocab_size: V, required because the permutations depend on it.
            n_gram, k_p: as for `WaterfallKeys`.

        Raises:
            InputError: as for `WaterfallKeys`.
        """
        if isinstance(keys, str) or not isinstance(keys, (Sequence, np.ndarray)):
            raise InputError(f"keys: got {keys!r:.80}, expected a list of keys [K]")
        if vocab_size is None:
            raise InputError("vocab_size: got none, expected V: the permutations depend on it")
        names = {str(key): key for key in keys}
        if len(names) < len(keys):
            raise InputError("keys: got an id twice, expected distinct ids")
        return cls(names, vocab_size=vocab_size, n_gram=n_gram, k_p=k_p)

    @property
    def digest(self) -> str:
        """BLAKE2b-256, in hex, of profile, names and ids; reports call it the digest of the registry."""
        return canonical_digest({"profile": self.profile.digest, "agents": self._ids()})

    @property
    def k_p(self) -> NDArray[np.int64]:
        """Frequencies of the cosine or the sine [K]."""
        max_frequency = (self.profile.vocab_size - 1) // 2  # larger values of k_p are sines
        return np.full(len(self), (self.scheme.k_p - 1) % max_frequency + 1)

    def key(self, name: str) -> int:
        """Return an agent's integer id.

        Raises:
            RegistryError: the agent is unknown.
        """
        ids = self._ids()
        if name not in ids:
            raise RegistryError(f"agent {name!r} is not among {', '.join(list(ids)[:20])}")
        return ids[name]

    def _ids(self) -> dict[str, int]:
        # After `subset`, `owners` does not contain all of `names`.
        return {
            self.names[owner]: id for owner, id in zip(self.owners.tolist(), self.keys.tolist(), strict=True)
        }

    def scores(self, texts: Texts, num_threads: int) -> NDArray[np.float64]:
        """Return x_j [N, K] of `texts`, 0 in the padding; `num_threads` as in `score_tokens`."""
        return _scores(texts.ids, self, num_threads)

    def __repr__(self) -> str:
        ids = ", ".join(f"{name}={id}" for name, id in itertools.islice(self._ids().items(), 20))
        more = f" and {len(self) - 20} more" if len(self) > 20 else ""
        return f"WaterfallKeys({ids}{more}; {self.profile.scheme}, V {self.profile.vocab_size})"


@functools.lru_cache(maxsize=4)
def waterfall_phi(vocab_size: int, k_p: int) -> NDArray[np.float64]:
    """Return φ(r) of all ranks, read-only float64 [V].

    With M = ⌊(V-1)/2⌋ it is cos(2π·k_p·r/V) for k_p <= M, and sin(2π·(k_p - M)·r/V) for M < k_p <= 2M. The
    order of the operations is the package's, so that its logits come out to the bit.
    """
    most = (vocab_size - 1) // 2
    turns = np.arange(vocab_size) / vocab_size
    wave, frequency = (np.cos, k_p) if k_p <= most else (np.sin, k_p - most)
    phi = np.asarray(wave(turns * 2 * np.pi * frequency))
    phi.setflags(write=False)
    return phi


def _scores(ids: Ids, keys: WaterfallKeys, threads: int) -> NDArray[np.float64]:
    profile = keys.profile
    vocab_size, n_gram, k_p = profile.vocab_size, keys.scheme.n_gram, keys.scheme.k_p
    scores = np.zeros((len(ids), len(keys)))
    positions = np.arange(n_gram - 1, len(ids))
    contexts = ids[positions[:, None] + np.arange(1 - n_gram, 0)]
    scored = (ids[positions] >= 0) & (ids[positions] < vocab_size) & (contexts >= 0).all(axis=1)
    seeded = scored & (contexts < vocab_size).all(axis=1)
    phi = waterfall_phi(vocab_size, k_p)
    unseeded = positions[scored & ~seeded]
    scores[unseeded] = phi[ids[unseeded], None]
    positions, contexts = positions[seeded], contexts[seeded]
    if len(positions) == 0:
        return scores
    # Each distinct context needs one permutation. So number the contexts, then the (context, token) pairs.
    number = np.zeros(len(positions), dtype=np.int64)
    for column in contexts.T:  # numbers stay below T, products below 2^63
        number = np.unique(number * vocab_size + column, return_inverse=True)[1]
    distinct = np.unique(number, return_index=True)[1]
    pairs, pair = np.unique(number * vocab_size + ids[positions], return_inverse=True)
    context_ids = np.ascontiguousarray(contexts[distinct], dtype=np.uint32)
    offsets = np.searchsorted(pairs, np.arange(len(distinct) + 1) * vocab_size).astype(np.int64)
    tokens = (pairs % vocab_size).astype(np.uint32)
    ranks = _ranks(vocab_size, keys.keys, context_ids, offsets, tokens, threads)
    scores[positions] = phi[ranks.T[pair]]
    return scores


def _ranks(
    vocab_size: int,
    keys: NDArray[np.uint32],
    contexts: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    tokens: NDArray[np.uint32],
    threads: int,
) -> NDArray[np.uint32]:
    # Ranks [K, N] of the tokens [N]; those after contexts[c] are [offsets[c], offsets[c+1]), ascending.
    ranks = np.empty((len(keys), len(tokens)), dtype=np.uint32)
    compiled.waterfall_ranks(
        vocab_size,
        contexts.shape[1] + 1,
        keys.ctypes.data,
        len(keys),
        contexts.ctypes.data,
        len(contexts),
        offsets.ctypes.data,
        tokens.ctypes.data,
        ranks.ctypes.data,
        threads,
    )
    return ranks


def waterfall_permutation(key: int, context: Sequence[int], vocab_size: int) -> NDArray[np.uint32]:
    """Return the ranks [V] of all tokens under scheme `waterfall`, on the host backend.

    Args:
        key: integer id, 0 to 2^32 - 1.
        context: the n-1 ids before the position, 0 or more, oldest first; an id >= V gives the identity.
        vocab_size: V, 1 to 2^24.

    Raises:
        InputError: a value is not an integer, or is out of range.
    """
    vocab_size = checked_integer("vocab_size", vocab_size, 1, MAX_VOCAB_SIZE)
    key = checked_integer("key", key, 0, MAX_KEY)
    if not 1 <= len(context) < MAX_N_GRAM:
        raise InputError(f"context: got {len(context)} ids, expected 1 to {MAX_N_GRAM - 1}")
    context = [checked_integer("context", id, 0, sys.maxsize) for id in context]
    if max(context) >= vocab_size:
        return np.arange(vocab_size, dtype=np.uint32)
    seed = np.array([key, *context], dtype=np.uint32)
    ranks = np.empty(vocab_size, dtype=np.uint32)
    compiled.waterfall_permute(vocab_size, seed.ctypes.data, len(seed), ranks.ctypes.data)
    return ranks
