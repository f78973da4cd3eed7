"""Keys: an agent's secret, the tables derived from it, and the score columns that keys produce.

Secrets are only used by derivation: of sub-keys for kernels, and of keys for engines' own watermarks.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from iet.errors import RegistryError
from iet.marks.derivation import derive_frequency, derive_subkey
from iet.marks.scheme import AnyProfile as AnyProfile
from iet.marks.scheme import Profile
from iet.native import host
from iet.native.marking import KernelParams
from iet.native.pairs import number_pairs_of, times_before
from iet.native.reference import is_scored
from iet.native.siphash import hash_n_grams
from iet.native.texts import Texts

Ids = NDArray[np.int64]
Ids32 = NDArray[np.int32]
Mask = NDArray[np.bool_]


class Secret(bytes):
    """Bytes that never appear in a repr, str, format, traceback with locals, or pickle.

    The content of files that hold secrets is wrapped in it too.
    """

    def __repr__(self) -> str:
        return "<secret>"

    __str__ = __repr__

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise RegistryError(
            "a secret is not pickled; use Registry.export, or pickle a Registry that has a file"
        )


@dataclasses.dataclass(frozen=True)
class AgentKey:
    """One key of one agent.

    Attributes:
        agent: name of the agent.
        epoch: 0 for the first key, one more with each rotation.
        created: time of creation, ISO 8601 in UTC, to the second.
        secret: 32 bytes, in no repr.
        k_p: frequency of φ, if it is not derived from this secret: session keys have the frequency of their
            agent under k_p "per-agent". Else None.
    """

    agent: str
    epoch: int
    created: str
    secret: bytes = dataclasses.field(repr=False)
    k_p: int | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "secret", Secret(self.secret))

    def frequency(self, profile: Profile) -> int:
        """Return the frequency of φ under a profile."""
        if profile.scheme.k_p != "per-agent":
            return profile.scheme.k_p
        return derive_frequency(self.secret, profile.max_frequency) if self.k_p is None else self.k_p


@dataclasses.dataclass(frozen=True)
class EngineKey:
    """A key of one agent for an engine's own watermark.

    Attributes:
        agent: name of the agent.
        epoch: of the secret that it was derived from.
        key: as many bytes as the engine takes, in no repr.
    """

    agent: str
    epoch: int
    key: bytes = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", Secret(self.key))


@runtime_checkable
class Keys(Protocol):
    """Agents' keys under one mark, ours or foreign, as `score_tokens` and an `Auditor` take them.

    Each key produces a column of scores. Keys never change. Methods that take texts return the results of
    the single texts, each independent of the others.

    Attributes:
        names: of the agents.
        owners: int32 [K], the agent of each key as an index into `names`, ascending.
        profile: the profile of the keys; its `family` holds the null distribution of the scores.
    """

    names: tuple[str, ...]
    owners: NDArray[np.int32]
    profile: AnyProfile

    def __len__(self) -> int:
        return len(self.owners)

    def subset(self, columns: slice | NDArray[np.int64]) -> Keys:
        """Return some of the keys; `owners` are still indices into all the names."""

    def scored(self, texts: Texts) -> Mask:
        """Return which positions [N] are scored, with scores that differ between keys."""

    def scores(self, texts: Texts, num_threads: int) -> NDArray[Any]:
        """Return x_j [N, K], 0 in the padding: `score_tokens` without its checks of arguments."""

    def sums(
        self, token_ids: Ids, cuts: Ids, counted: Mask | NDArray[np.uint8], num_threads: int
    ) -> NDArray[np.float64]:
        """Return sums over spans [S, K]: `score_spans` without its checks of arguments.

        `counted`: also weights w, uint8 [T] of at most 16, for sums of w·x, of scores of at least 0.
        """

    def pairs(self, texts: Texts, counted: Mask | None = None) -> tuple[Ids, Mask]:
        """Number the scored positions: `kernels.pair_numbers` without its checks of arguments.

        Two positions of a text have the same number if the second adds no evidence to the first: its score
        follows from the first one's, or it carries no mark.

        Args:
            texts: of N ids with their padding.
            counted: bool [N], the positions to number; None: all that are scored.

        Returns:
            int64 [N], -1 in the padding; bool [N], whether the number occurs earlier in the same text.
        """
        contexts, n_gram = self.profile.family.chooses, self.profile.scheme.n_gram
        scored = self.scored(texts)
        counting = scored if counted is None else scored & counted
        return number_pairs_of(texts.ids, counting, texts.starts, texts.ends, n_gram, contexts=contexts)


@dataclasses.dataclass(frozen=True, eq=False)
class KeyTable(Keys):
    """K derived keys and their profile, for kernels. They are enough to mark, so no repr shows them.

    A table never changes and is hashed by identity: a registry returns the same table until a key changes.

    Attributes:
        profile: the profile of the keys.
        subkeys: uint8 [K, 16], C-contiguous.
        k_p: int64 [K], frequencies of φ.
        owners: int32 [K], index into `names`, ascending.
        names: agents, in slot order.
        epochs: int32 [K].
        sessions: int32 [K], index of the session of each key, -1 for agents' own keys; None: all are -1.
    """

    profile: Profile = dataclasses.field(repr=False)
    subkeys: NDArray[np.uint8] = dataclasses.field(repr=False)
    k_p: NDArray[np.int64] = dataclasses.field(repr=False)
    owners: NDArray[np.int32] = dataclasses.field(repr=False)
    names: tuple[str, ...]
    epochs: NDArray[np.int32]
    sessions: NDArray[np.int32] | None = dataclasses.field(default=None, repr=False)

    @classmethod
    def derive(cls, profile: Profile, names: Sequence[str], keys: Sequence[AgentKey]) -> KeyTable:
        """Return the table of `keys`.

        Args:
            profile: of the keys.
            names: agents, in slot order.
            keys: keys of these agents, in the order of the table.
        """
        subkeys = np.frombuffer(b"".join(derive_subkey(key.secret) for key in keys), dtype=np.uint8)
        slots = {name: slot for slot, name in enumerate(names)}
        table = cls(
            profile,
            subkeys.reshape(len(keys), 16),
            np.array([key.frequency(profile) for key in keys], dtype=np.int64),
            np.array([slots[key.agent] for key in keys], dtype=np.int32),
            tuple(names),
            np.array([key.epoch for key in keys], dtype=np.int32),
        )
        for array in (table.k_p, table.owners, table.epochs):
            array.setflags(write=False)
        return table

    def __len__(self) -> int:
        return len(self.owners)

    @functools.cached_property
    def marking(self) -> KernelParams:
        """The arguments of native calls."""
        profile, scheme = self.profile, self.profile.scheme
        return KernelParams(
            profile.vocab_size,
            scheme.n_gram,
            scheme.family,
            profile.family.code,
            scheme.kappa,
            profile.unmarked_ids,
            self.subkeys,
            self.k_p,
            scheme.counted,
        )

    def scored(self, texts: Texts) -> Mask:
        """Return which positions [N] are scored."""
        marking = self.marking
        return is_scored(texts.ids, marking.n_gram, marking.vocab_size, marking.unmarked_ids)

    def scores(self, texts: Texts, num_threads: int, times: Ids32 | None = None) -> NDArray[np.float32]:
        """Return x_j(a), float32 [N, K]; `times` [N]: see `times_before`, which is called for None."""
        counts = self.times_before(texts) if times is None else times
        return host.score_tokens(self.marking, texts.ids, counts, num_threads)

    def sums(
        self,
        token_ids: Ids,
        cuts: Ids,
        counted: Mask | NDArray[np.uint8],
        num_threads: int,
        times: Ids32 | None = None,
    ) -> NDArray[np.float64]:
        """Return sums over spans, float64 [S, K]; `times` as in `scores`."""
        counts = self.times_before(Texts.single(token_ids)) if times is None else times
        return host.score_spans(self.marking, token_ids, cuts, counted, counts, num_threads)

    def times_before(self, texts: Texts) -> Ids32 | None:
        """Return how often each context [N] occurred earlier in its text; None if seeds hold no counts."""
        if not self.marking.counted:
            return None
        return times_before(texts.ids, self.marking.n_gram, texts.starts, texts.ends)

    def pairs(self, texts: Texts, counted: Mask | None = None) -> tuple[Ids, Mask]:
        """Number the scored positions, see `Keys.pairs`: all of a text differ if seeds hold counts."""
        if not self.marking.counted:
            return super().pairs(texts, counted)
        scored = self.scored(texts) if counted is None else self.scored(texts) & counted
        before = np.append(0, np.cumsum(scored))
        numbers = before[:-1] - np.repeat(before[texts.starts], np.diff(texts.ends, prepend=0))
        return np.where(scored, numbers, -1), np.zeros(len(scored), np.bool_)

    def pair_hashes(self, token_ids: Ids, key: bytes) -> NDArray[np.uint64]:
        """Return the hash of each position in an index of published text, uint64 [T]; 0 if not scored.

        A published pair is an id with the n - 1 ids before it, in this profile. In family gumbel a seed also
        holds how often the context occurred before, but the writer counts in a prompt that the index does not
        see. So the hash does not depend on the count.

        Args:
            token_ids: [T].
            key: 16 bytes, of the index.
        """
        first = int(self.profile.digest[:16], 16)
        hashes = hash_n_grams(token_ids, self.profile.scheme.n_gram, key, first)
        return np.where(self.scored(Texts.single(token_ids)), np.maximum(hashes, np.uint64(1)), np.uint64(0))

    def subset(self, columns: slice | NDArray[np.int64]) -> KeyTable:
        """Return a table of some of the keys, under the same names."""
        return dataclasses.replace(
            self,
            subkeys=self.subkeys[columns],
            k_p=self.k_p[columns],
            owners=self.owners[columns],
            epochs=self.epochs[columns],
            sessions=None if self.sessions is None else self.sessions[columns],
        )

    def decoys(self, count: int) -> KeyTable:
        """Return `count` keys that no agent holds, to estimate the null distribution of scores.

        They are a function of the keys, and as secret: with the decoys, a forger could write a text whose
        decoy scores are low, so that any key would seem to be in it.
        """
        secret = hashlib.blake2b(self.subkeys.tobytes(), person=b"iet decoys").digest()
        drawn = b"".join(
            hashlib.blake2b(i.to_bytes(8, "little"), digest_size=16, key=secret).digest()
            for i in range(count)
        )
        return dataclasses.replace(
            self,
            subkeys=np.frombuffer(drawn, dtype=np.uint8).reshape(count, 16).copy(),
            k_p=np.resize(self.k_p, count),
            owners=np.arange(count, dtype=np.int32),
            names=tuple(f"decoy {i}" for i in range(count)),
            epochs=np.zeros(count, dtype=np.int32),
            sessions=None,
        )

    def __copy__(self) -> KeyTable:
        return self  # it never changes

    def __deepcopy__(self, memo: object) -> KeyTable:
        return self

    def __reduce__(self) -> NoReturn:
        raise RegistryError("a KeyTable holds keys and is not pickled: pass on the registry's path")
