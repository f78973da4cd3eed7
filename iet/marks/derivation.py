"""What is derived from an agent's secret: of sessions, sub-keys, a frequency, keys of engines.

The specification is docs/internals/scheme.md, step 1.

Everything is BLAKE2b keyed with the secret, each with a label of its own, so that none of it tells another.
"""

from __future__ import annotations

import functools
import hashlib
import math

from iet.errors import InputError
from iet.marks.families import few_values
from iet.marks.scheme import Profile

PERMUTATION_LABEL = b"iet/v1/permutation"
FREQUENCY_LABEL = b"iet/v1/frequency"
ENGINE_LABEL = b"iet/v1/engine/"
SESSION_LABEL = b"iet/v1/session/"
PUBLISHED_LABEL = b"iet/v1/published/"

SECRET_BYTES = 32

ENGINE_KEY_BYTES = {"sglang": 8}
"""The engines' own watermarks that take a key with a request, and how long that is."""


def derive_session(secret: bytes, session: str) -> bytes:
    """Return the 32 bytes that stand for an agent's secret in one session: BLAKE2b keyed with that secret.

    Who learns them, or all that was written under them, learns nothing of the secret or of another session.

    Args:
        secret: 32 bytes.
        session: its id, hashed as it is, in UTF-8.
    """
    return hashlib.blake2b(SESSION_LABEL + session.encode(), key=secret, digest_size=32).digest()


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


def check_frequency(profile: Profile) -> None:
    """Refuse a k_p of all agents under which no text could be audited, where under 1 it could."""
    k_p, few = profile.scheme.k_p, functools.partial(few_values, profile.vocab_size, family=profile.family)
    if k_p != "per-agent" and few(k_p) and not few(1):
        values = profile.vocab_size // math.gcd(profile.vocab_size, k_p)
        raise InputError(
            f"k_p: got {k_p} with a vocabulary of {profile.vocab_size}: a mark of {values} values, so that"
            " no text could be audited; expected one that shares no large divisor with it, such as 1"
        )


def derive_engine_key(secret: bytes, engine: str) -> bytes:
    """Return what an engine's own watermark takes as the agent's key: BLAKE2b keyed with its secret.

    Who learns it can set and find that engine's mark as the agent, but neither iet's nor another engine's.

    Args:
        secret: 32 bytes.
        engine: a name in `ENGINE_KEY_BYTES`.
    """
    label = ENGINE_LABEL + engine.encode()
    return hashlib.blake2b(label, key=secret, digest_size=ENGINE_KEY_BYTES[engine]).digest()


def derive_index_key(secret: bytes, salt: bytes) -> bytes:
    """Return the 16 bytes that key the hashes of an index of what was published.

    Args:
        secret: 32 bytes.
        salt: of the index.
    """
    return hashlib.blake2b(PUBLISHED_LABEL + salt, key=secret, digest_size=16).digest()


def usable(profile: Profile, secret: bytes) -> bool:
    """Tell whether text under this key can be audited: a frequency of its own is none of `few_values`."""
    if profile.scheme.k_p != "per-agent":
        return True
    frequency = derive_frequency(secret, profile.max_frequency)
    return not bool(few_values(profile.vocab_size, frequency, profile.family))


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
