"""The Merkle commitment to a registry, against RFC 6962's definition, and what an opening shows."""

import dataclasses
import hashlib
import json

import pytest

from iet import InputError, Registry, RegistryError
from iet.marks.commitment import Leaf, Opening, open_leaf, registry_digest
from iet.marks.scheme import canonical_digest
from tests.support import teams

AGENTS = {"planner": 0, "critic": 1, "engineer": 2}


def keys(count: int) -> list[Leaf]:
    return [Leaf(f"agent {i:03}", 0, "profile", f"{i:064x}") for i in range(count)]


def root(hashes: list[bytes]) -> bytes:
    """MTH of RFC 6962, §2.1, as it stands there, with BLAKE2b-256."""
    n = len(hashes)
    if n == 0:
        return hashlib.blake2b(b"", digest_size=32).digest()
    if n == 1:
        return hashes[0]
    k = 1
    while 2 * k < n:
        k *= 2
    return hashlib.blake2b(b"\x01" + root(hashes[:k]) + root(hashes[k:]), digest_size=32).digest()


@pytest.mark.parametrize("count", [*range(18), 31, 32, 33, 100])
def test_every_leaf_leads_to_the_root(count: int) -> None:
    leaves = keys(count)
    expected = canonical_digest(
        {"profiles": ["a", "b"], "keys": count, "root": root([leaf.hash for leaf in leaves]).hex()}
    )
    assert registry_digest(("b", "a"), leaves[::-1]) == expected
    for leaf in leaves:
        opening = open_leaf(("b", "a"), leaves, leaf)
        assert opening.digest == expected
        assert Opening.from_dict(json.loads(json.dumps(opening.to_dict()))) == opening


def test_anything_else_leads_elsewhere() -> None:
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
    digests |= {other.digest for other in changed}
    assert len(digests) == 1 + len(changed)


def test_a_leaf_is_no_node() -> None:
    # Without the prefixes a registry of the two hashes of a node would have the root of another.
    two = keys(2)
    assert root([leaf.hash for leaf in two]) != hashlib.blake2b(two[0].hash + two[1].hash).digest()
    assert registry_digest((), two) != registry_digest((), two[:1])


def test_open_one_agent_of_a_registry() -> None:
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


def test_an_opening_shows_nothing_of_the_others() -> None:
    team = teams.team(AGENTS, vocab_size=1000)
    shown = json.dumps(team.open_key("planner").to_dict())
    assert "critic" not in shown
    assert "engineer" not in shown
    for number in AGENTS.values():
        assert teams.secret(number).hex() not in shown


def test_bad_openings_are_refused() -> None:
    team = teams.team(["planner", "critic"], vocab_size=1000)
    with pytest.raises(RegistryError, match=r"got epoch 3, expected one of \[0\]"):
        team.open_key("planner", 3)
    with pytest.raises(RegistryError, match="'plannr' is not in the registry; did you mean 'planner'"):
        team.open_key("plannr")
    good = team.open_key("planner").to_dict()
    for field, value, what in (
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
        with pytest.raises(InputError, match=what):
            Opening.from_dict({**good, field: value})
    with pytest.raises(InputError, match="opening: got one that cannot be read"):
        Opening.from_dict([])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="path: got 0 hashes, expected 1 for leaf 1 of 2"):
        Opening.from_dict({**good, "path": []}).digest  # noqa: B018
