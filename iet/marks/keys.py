"""Keys: an agent's secret, what is derived from it, and the columns of scores that keys give.

The one way out of a secret is derivation: sub-keys for kernels, and keys for engines' own watermarks.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import unicodedata
from collections.abc import Sequence
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from iet.errors import InputError, RegistryError
from iet.marks.scheme import Profile, few_values
from iet.native.marking import Marking

SECRET_BYTES = 32
PERMUTATION_LABEL = b"iet/v1/permutation"
FREQUENCY_LABEL = b"iet/v1/frequency"
ENGINE_LABEL = b"iet/v1/engine/"

ENGINE_KEY_BYTES = {"sglang": 8}
"""The engines' own watermarks that take a key with a request, and how long that is."""

MAX_NAME = 200
"""Maximum number of characters of an agent's name."""


def derive_subkey(secret: bytes) -> bytes:
    """Return the 16 bytes that key an agent's permutations: h_π(a, ·), BLAKE2b keyed with its secret.

    Args:
        secret: 32 bytes.
    """
    return hashlib.blake2b(PERMUTATION_LABEL, key=secret, digest_size=16).digest()


def derive_frequency(secret: bytes, max_frequency: int) -> int:
    """Return an agent's own frequency, k_p = 1 + h_p(a) mod `max_frequency`, where h_p has 64 bits.

    Args:
        secret: 32 bytes.
        max_frequency: largest k_p, at least 1, see `Profile.max_frequency`.
    """
    digest = hashlib.blake2b(FREQUENCY_LABEL, key=secret, digest_size=8).digest()
    return 1 + int.from_bytes(digest, "little") % max_frequency


def derive_engine_key(secret: bytes, engine: str) -> bytes:
    """Return what an engine's own watermark takes as the agent's key: BLAKE2b keyed with its secret.

    Who learns it can set and find that engine's mark as the agent, but neither iet's nor another engine's.

    Args:
        secret: 32 bytes.
        engine: a name in `ENGINE_KEY_BYTES`.
    """
    label = ENGINE_LABEL + engine.encode()
    return hashlib.blake2b(label, key=secret, digest_size=ENGINE_KEY_BYTES[engine]).digest()


def usable(profile: Profile, secret: bytes) -> bool:
    """Tell whether text under this key can be audited: a frequency of its own is none of `few_values`."""
    if profile.scheme.k_p != "per-agent":
        return True
    frequency = derive_frequency(secret, profile.max_frequency)
    return not bool(few_values(profile.vocab_size, frequency, profile.family))


class Secret(bytes):
    """Bytes that show nothing where bytes usually show: repr, str, format, tracebacks with locals, pickles.

    Whole files that hold secrets are wrapped in it too.
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
        created: when it was drawn, ISO 8601 in UTC, to the second.
        secret: 32 bytes, shown by no repr.
    """

    agent: str
    epoch: int
    created: str
    secret: bytes = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "secret", Secret(self.secret))


@dataclasses.dataclass(frozen=True)
class EngineKey:
    """A key of one agent for an engine's own watermark.

    Attributes:
        agent: name of the agent.
        epoch: of the secret that it was derived from.
        key: as many bytes as the engine takes, shown by no repr.
    """

    agent: str
    epoch: int
    key: bytes = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", Secret(self.key))


@dataclasses.dataclass(frozen=True, eq=False)
class KeyTable:
    """What kernels take: K derived keys and their profile. Whoever has it can mark, so no key is shown.

    A table never changes and is hashed by identity: the registry hands the same one out until a key changes.

    Attributes:
        profile: what the keys mark under.
        subkeys: uint8 [K, 16], C-contiguous.
        k_p: int64 [K], frequencies of φ.
        owners: int32 [K], index into `names`.
        names: agents, in slot order.
        epochs: int32 [K].
    """

    profile: Profile = dataclasses.field(repr=False)
    subkeys: NDArray[np.uint8] = dataclasses.field(repr=False)
    k_p: NDArray[np.int64] = dataclasses.field(repr=False)
    owners: NDArray[np.int32] = dataclasses.field(repr=False)
    names: tuple[str, ...]
    epochs: NDArray[np.int32]

    @classmethod
    def derive(cls, profile: Profile, names: Sequence[str], keys: Sequence[AgentKey]) -> KeyTable:
        """Return the table of `keys`, whose agents are in `names`."""
        subkeys = np.frombuffer(b"".join(derive_subkey(key.secret) for key in keys), dtype=np.uint8)
        k_p, slots = profile.scheme.k_p, {name: slot for slot, name in enumerate(names)}
        if k_p == "per-agent":
            frequencies = [derive_frequency(key.secret, profile.max_frequency) for key in keys]
        else:
            frequencies = [k_p] * len(keys)
        table = cls(
            profile,
            subkeys.reshape(len(keys), 16),
            np.array(frequencies, dtype=np.int64),
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
    def marking(self) -> Marking:
        """What native calls take of it."""
        profile, scheme = self.profile, self.profile.scheme
        return Marking(
            profile.vocab_size,
            scheme.n_gram,
            scheme.family,
            scheme.kappa,
            profile.unmarked_ids,
            self.subkeys,
            self.k_p,
        )

    def subset(self, columns: slice | NDArray[np.int64]) -> KeyTable:
        """Return a table of some of the keys, under the same names."""
        return dataclasses.replace(
            self,
            subkeys=self.subkeys[columns],
            k_p=self.k_p[columns],
            owners=self.owners[columns],
            epochs=self.epochs[columns],
        )

    def decoys(self, count: int) -> KeyTable:
        """Return `count` keys that nobody holds: what chance looks like is read off them.

        Always the same for the same keys, and as secret as these: who knew them could write a text in which
        they come out low, so that any key seems to be in it.
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
        )

    def __copy__(self) -> KeyTable:
        return self  # it never changes

    def __deepcopy__(self, memo: object) -> KeyTable:
        return self

    def __reduce__(self) -> NoReturn:
        raise RegistryError("a KeyTable holds keys and is not pickled: pass on the registry's path")


def checked_secret(secret: bytes | None) -> bytes:
    """Return the secret, or one from the operating system, or raise an InputError that does not quote it."""
    if secret is None:
        import secrets

        return secrets.token_bytes(SECRET_BYTES)
    if not isinstance(secret, bytes) or len(secret) != SECRET_BYTES:
        got = f"{len(secret)} bytes" if isinstance(secret, bytes) else type(secret).__name__
        raise InputError(f"secret: got {got}, expected {SECRET_BYTES} bytes")
    return secret


def new_secret(profile: Profile, secret: bytes | None) -> bytes:
    """Return the secret, or one that is drawn and `usable`, which with a small V may take some draws."""
    found = checked_secret(secret)
    for _ in range(64 if secret is None else 0):  # with some V no key is
        if usable(profile, found):
            break
        found = checked_secret(None)
    return found


def checked_name(name: object) -> str:
    """Return an agent's name, or raise an InputError that says what is wrong with it."""
    if not isinstance(name, str):
        raise InputError(f"agent name: got {type(name).__name__}, expected str")
    if not 1 <= len(name) <= MAX_NAME or name != name.strip():
        raise InputError(
            f"agent name: got {name!r:.80}, expected 1 to {MAX_NAME} characters without spaces at the ends"
        )
    for character in name:
        # Two names that look alike must not be two agents. The zero-width joiners spell words.
        if (
            unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
            and character not in "\u200c\u200d"
        ):
            raise InputError(
                f"agent name: got the control or invisible character U+{ord(character):04X}, expected none"
            )
    return name
