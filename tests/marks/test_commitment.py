"""The Merkle commitment to a registry against RFC 6962's definition, and openings of single keys."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from typing import TypeAlias

import pytest

from iet import InputError, Registry, RegistryError
from iet.marks.commitment import Leaf, Opening, open_leaf, registry_digest
from iet.marks.scheme import canonical_digest, canonical_json
from tests.support import teams

Hash: TypeAlias = Callable[[bytes], bytes]

AGENTS = {"planner": 0, "critic": 1, "engineer": 2}


def keys(count: int) -> list[Leaf]:
    return [Leaf(f"agent {i:03}", 0, "profile", f"{i:064x}") for i in range(count)]


def blake2b(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def split(n: int) -> int:
    k = 1
    while 2 * k < n:
        k *= 2
    return k


def root(leaves: list[bytes], hashed: Hash) -> bytes:
    """MTH of RFC 6962, §2.1, with any hash."""
    if not leaves:
        return hashed(b"")
    if len(leaves) == 1:
        return hashed(b"\x00" + leaves[0])
    k = split(len(leaves))
    return hashed(b"\x01" + root(leaves[:k], hashed) + root(leaves[k:], hashed))


def path(m: int, leaves: list[bytes], hashed: Hash) -> list[bytes]:
    """PATH of RFC 6962, §2.1.1, with any hash."""
    if len(leaves) == 1:
        return []
    k = split(len(leaves))
    if m < k:
        return [*path(m, leaves[:k], hashed), root(leaves[k:], hashed)]
    return [*path(m - k, leaves[k:], hashed), root(leaves[:k], hashed)]


def test_reference_equals_certificate_transparency() -> None:
    # The leaves and roots that logs of certificates are tested with.
    parts = (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
    leaves = [bytes.fromhex(part) for part in parts]
    for count, expected in (
        (0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        (1, "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"),
        (2, "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"),
        (3, "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77"),
        (5, "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4"),
        (7, "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c"),
        (8, "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"),
    ):
        assert root(leaves[:count], sha256).hex() == expected
    assert [hash_.hex() for hash_ in path(0, leaves, sha256)] == [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ]


@pytest.mark.parametrize("count", [*range(18), 31, 32, 33, 100])
def test_root_and_paths_equal_rfc_6962(count: int) -> None:
    # The hash, the content and order of leaves, and the digest around the root differ from the RFC.
    leaves = keys(count)
    data = [canonical_json(dataclasses.asdict(leaf)) for leaf in leaves]
    expected = canonical_digest({"profiles": ["a", "b"], "keys": count, "root": root(data, blake2b).hex()})
    assert registry_digest(("b", "a"), leaves[::-1]) == expected
    for index, leaf in enumerate(leaves):
        opening = open_leaf(("b", "a"), leaves, leaf)
        assert opening.index == index
        assert opening.path == tuple(hash_.hex() for hash_ in path(index, data, blake2b))
        assert opening.digest == expected
        assert Opening.from_dict(json.loads(json.dumps(opening.to_dict()))) == opening


def test_any_change_changes_the_digest() -> None:
    leaves = keys(11)
    opening = open_leaf(("a",), leaves, leaves[6])
    digests = {opening.digest}
    changed = [
        dataclasses.replace(opening, leaf=leaves[7]),
        dataclasses.replace(opening, leaf=dataclasses.replace(leaves[6], epoch=1)),
        dataclasses.replace(opening, index=7),
        dataclasses.replace(opening, keys=12),
        dataclasses.replace(opening, profiles=("a", "b")),
        *(
            dataclasses.replace(opening, path=(*opening.path[:i], "0" * 64, *opening.path[i + 1 :]))
            for i in range(len(opening.path))
        ),
    ]
    digests |= {opening_.digest for opening_ in changed}
    assert len(digests) == 1 + len(changed)


def test_open_key() -> None:
    team = teams.team(AGENTS, vocab_size=1000)
    team.rotate("critic")
    opening = team.open_key("critic")
    assert opening.digest == team.digest
    assert opening.leaf.epoch == 1
    third_party = team.export(None, ["critic"])
    assert third_party.has_key(opening)
    assert third_party.digest != team.digest
    assert not third_party.has_key(team.open_key("critic", 0))  # rotated out, and not exported
    assert team.export(None, ["critic"], all_epochs=True).has_key(team.open_key("critic", 0))
    assert not third_party.has_key(team.open_key("planner"))
    impostor = Registry.create(None, vocab_size=1000)
    impostor.add("critic")
    impostor.rotate("critic")
    assert not impostor.has_key(opening)


def test_opening_reveals_no_other_agent() -> None:
    team = teams.team(AGENTS, vocab_size=1000)
    content = json.dumps(team.open_key("planner").to_dict())
    assert "critic" not in content
    assert "engineer" not in content
    for number in AGENTS.values():
        assert teams.secret(number).hex() not in content


def test_rejects_invalid_openings() -> None:
    team = teams.team(["planner", "critic"], vocab_size=1000)
    with pytest.raises(RegistryError, match=r"got epoch 3, expected one of \[0\]"):
        team.open_key("planner", 3)
    with pytest.raises(RegistryError, match="'plannr' is not in the registry; did you mean 'planner'"):
        team.open_key("plannr")
    good = team.open_key("planner").to_dict()
    for field, value, message in (
        ("schema", "iet.opening/2", "schema is 'iet.opening/2'"),
        ("path", "abc", "path is 'abc'"),
        ("path", ["zz"], "non-hexadecimal"),
        ("path", ["00"], "has not 32 bytes"),
        ("index", 2, "index is 2 of 2 keys"),
        ("index", True, "index is True"),
        ("keys", -1, "keys is -1"),
        ("profiles", [1], r"profiles is \[1\]"),
        ("leaf", {}, "missing"),
        ("leaf", {**good["leaf"], "agent": "\ud800"}, "surrogates not allowed"),
        ("profiles", ["\ud800"], "surrogates not allowed"),
    ):
        with pytest.raises(InputError, match=message):
            Opening.from_dict({**good, field: value})
    with pytest.raises(InputError, match="opening: got one that cannot be read"):
        Opening.from_dict([])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="path: got 0 hashes, expected 1 for leaf 1 of 2"):
        Opening.from_dict({**good, "path": []}).digest  # noqa: B018
