"""A commitment to many keys that can be opened for a single key: the Merkle tree of RFC 6962, §2.1.

    leaf(d)    = H(0x00 ‖ d)                             H: BLAKE2b-256
    node(l, r) = H(0x01 ‖ l ‖ r)
    root(D)    = leaf(d_0), or node(root(D[:k]), root(D[k:])), k the largest power of two below |D|

A leaf names an agent, its profile and epoch, and commits to its secret by a hash that is keyed with it. So
the hashes in a path reveal nothing about other keys, not even their agents. docs/internals/signing.md lists
the differences from RFC 6962.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from iet.errors import InputError
from iet.marks.scheme import canonical_digest, canonical_json

COMMITMENT_LABEL = b"iet/v1/commitment"

OPENING_SCHEMA = "iet.opening/1"


def commitment(secret: bytes) -> str:
    """Return the public commitment to a secret: BLAKE2b-256 keyed with it, in hex."""
    return hashlib.blake2b(COMMITMENT_LABEL, key=secret, digest_size=32).hexdigest()


@dataclasses.dataclass(frozen=True, order=True)
class Leaf:
    """One key in the tree; leaves are sorted by these fields, in this order.

    Attributes:
        agent: its name.
        epoch: of the key, from 0.
        profile: id of the agent's profile.
        commitment: `commitment` of the key's secret.
    """

    agent: str
    epoch: int
    profile: str
    commitment: str

    @property
    def hash(self) -> bytes:
        """leaf(d), where d is the canonical JSON of the fields."""
        return hashlib.blake2b(b"\x00" + canonical_json(dataclasses.asdict(self)), digest_size=32).digest()


@dataclasses.dataclass(frozen=True)
class Opening:
    """A proof that a registry's digest commits to one key; it reveals nothing about the other keys.

    Attributes:
        leaf: the key.
        index: of the leaf, from 0.
        keys: number of leaves.
        path: hashes in hex of the sibling subtrees, from the lowest up.
        profiles: ids of the registry's profiles, ascending.
    """

    leaf: Leaf
    index: int
    keys: int
    path: tuple[str, ...]
    profiles: tuple[str, ...]

    @property
    def digest(self) -> str:
        """The registry's digest that this opens. O(log keys).

        Raises:
            InputError: the path does not have the length that the leaf's index requires.
        """
        sides = _sides(self.index, self.keys)
        if len(sides) != len(self.path):
            place = f"for leaf {self.index} of {self.keys}"
            raise InputError(f"path: got {len(self.path)} hashes, expected {len(sides)} {place}")
        top = self.leaf.hash
        for is_left, sibling in zip(sides, map(bytes.fromhex, self.path), strict=True):
            top = _node(top, sibling) if is_left else _node(sibling, top)
        return _registry_digest(self.profiles, self.keys, top)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, which `from_dict` reads back. It holds no secret."""
        fields = dataclasses.asdict(self)
        return {"schema": OPENING_SCHEMA, **fields, "path": list(self.path), "profiles": list(self.profiles)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Opening:
        """Read the JSON form.

        Raises:
            InputError: it is not an opening.
        """
        try:
            fields = dict(data)
            if fields.pop("schema") != OPENING_SCHEMA:
                raise ValueError(f"schema is {data['schema']!r}")
            leaf = Leaf(**fields.pop("leaf"))
            path, profiles = (_strings(name, fields.pop(name)) for name in ("path", "profiles"))
            opening = cls(leaf=leaf, path=path, profiles=profiles, **fields)
            for name, number in (("epoch", leaf.epoch), ("index", opening.index), ("keys", opening.keys)):
                if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                    raise ValueError(f"{name} is {number!r}")
            _strings("leaf", [leaf.agent, leaf.profile, leaf.commitment])
            if opening.index >= opening.keys:
                raise ValueError(f"index is {opening.index} of {opening.keys} keys")
            if any(len(bytes.fromhex(hash)) != 32 for hash in path):
                raise ValueError("a hash in path has not 32 bytes")
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise InputError(
                f"opening: got one that cannot be read ({error}); expected what Opening.to_dict returns"
            ) from None
        return opening


def registry_digest(profiles: Sequence[str], leaves: Sequence[Leaf]) -> str:
    """Return the digest of a registry: BLAKE2b-256, in hex, of its profiles, number of keys and Merkle root.

    Args:
        profiles: ids.
        leaves: every key of the registry, in any order. O(keys).
    """
    hashes = [leaf.hash for leaf in sorted(leaves)]
    return _registry_digest(sorted(profiles), len(hashes), _root(hashes))


def open_leaf(profiles: Sequence[str], leaves: Sequence[Leaf], leaf: Leaf) -> Opening:
    """Return the opening of `leaf`, one of `leaves`. O(keys).

    Args:
        profiles: ids.
        leaves: every key of the registry, in any order.
        leaf: the one to open.
    """
    ordered = sorted(leaves)
    index = ordered.index(leaf)
    path = _path([leaf.hash for leaf in ordered], index)
    return Opening(leaf, index, len(ordered), tuple(hash.hex() for hash in path), tuple(sorted(profiles)))


def _registry_digest(profiles: Sequence[str], keys: int, root: bytes) -> str:
    return canonical_digest({"profiles": list(profiles), "keys": keys, "root": root.hex()})


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.blake2b(b"\x01" + left + right, digest_size=32).digest()


def _split(count: int) -> int:
    return 1 << ((count - 1).bit_length() - 1)


def _root(hashes: Sequence[bytes]) -> bytes:
    if not hashes:
        return hashlib.blake2b(digest_size=32).digest()
    if len(hashes) == 1:
        return hashes[0]
    split = _split(len(hashes))
    return _node(_root(hashes[:split]), _root(hashes[split:]))


def _path(hashes: Sequence[bytes], index: int) -> list[bytes]:
    """Return the roots of the sibling subtrees of a leaf, from the lowest up."""
    if len(hashes) == 1:
        return []
    split = _split(len(hashes))
    if index < split:
        return [*_path(hashes[:split], index), _root(hashes[split:])]
    return [*_path(hashes[split:], index - split), _root(hashes[:split])]


def _sides(index: int, count: int) -> list[bool]:
    """Return for each level, the lowest first, whether the leaf is in the left subtree."""
    sides = []
    while count > 1:
        split = _split(count)
        sides.append(index < split)
        index, count = (index, split) if index < split else (index - split, count - split)
    return sides[::-1]


def _strings(name: str, values: object) -> tuple[str, ...]:
    if not isinstance(values, (list, tuple)) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{name} is {values!r:.80}")
    for value in values:
        value.encode()  # JSON can hold a lone surrogate, which has no UTF-8 form and so no hash
    return tuple(values)
