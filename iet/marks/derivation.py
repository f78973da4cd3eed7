"""Derivations from an agent's secret: session secrets, sub-keys, frequencies, keys of engines.

Each is BLAKE2b keyed with the secret, with a label of its own, so that one reveals nothing about another.
The specification is docs/internals/scheme.md, step 1.
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
"""Engines whose own watermark takes a key with a request -> number of bytes of that key."""


def derive_session(secret: bytes, session: str) -> bytes:
    """Return an agent's secret in one session, 32 bytes: BLAKE2b keyed with the agent's secret.

    The result, and text marked under it, reveal nothing about the agent's secret or other sessions.

    Args:
        secret: 32 bytes.
        session: its id, hashed as UTF-8 without normalisation.
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
    """Raise an InputError if no text could be audited under the profile's k_p, but could under k_p 1."""
    k_p, few = profile.scheme.k_p, functools.partial(few_values, profile.vocab_size, family=profile.family)
    if k_p != "per-agent" and few(k_p) and not few(1):
        values = profile.vocab_size // math.gcd(profile.vocab_size, k_p)
        raise InputError(
            f"k_p: got {k_p} with a vocabulary of {profile.vocab_size}: a mark of {values} values, so that"
            " no text could be audited; expected one that shares no large divisor with it, such as 1"
        )


def derive_engine_key(secret: bytes, engine: str) -> bytes:
    """Return an agent's key for an engine's own watermark: BLAKE2b keyed with its secret.

    It is enough to set and detect that engine's mark as the agent, but not iet's or another engine's.

    Args:
        secret: 32 bytes.
        engine: a name in `ENGINE_KEY_BYTES`.
    """
    label = ENGINE_LABEL + engine.encode()
    return hashlib.blake2b(label, key=secret, digest_size=ENGINE_KEY_BYTES[engine]).digest()


def derive_index_key(secret: bytes, salt: bytes) -> bytes:
    """Return the 16 bytes that key the hashes of an index of published text.

    Args:
        secret: 32 bytes.
        salt: of the index.
    """
    return hashlib.blake2b(PUBLISHED_LABEL + salt, key=secret, digest_size=16).digest()


def usable(profile: Profile, secret: bytes) -> bool:
    """Return whether text under this key can be audited: its frequency has enough values (`few_values`)."""
    if profile.scheme.k_p != "per-agent":
        return True
    frequency = derive_frequency(secret, profile.max_frequency)
    return not bool(few_values(profile.vocab_size, frequency, profile.family))


def checked_secret(secret: bytes | None) -> bytes:
    """Return the secret, None: 32 random bytes; or raise an InputError that does not quote it."""
    if secret is None:
        import secrets

        return secrets.token_bytes(SECRET_BYTES)
    if not isinstance(secret, bytes) or len(secret) != SECRET_BYTES:
        got = f"{len(secret)} bytes" if isinstance(secret, bytes) else type(secret).__name__
        raise InputError(f"secret: got {got}, expected {SECRET_BYTES} bytes")
    return secret


def new_secret(profile: Profile, secret: bytes | None) -> bytes:
    """Return the secret; None: a random one that is `usable`. With a small V this may take several draws."""
    drawn = checked_secret(secret)
    for _ in range(64 if secret is None else 0):  # for some V no key is usable
        if usable(profile, drawn):
            break
        drawn = checked_secret(None)
    return drawn
