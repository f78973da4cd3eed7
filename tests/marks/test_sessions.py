"""Keys of sessions: their known answers, what they share with their agents' own, and what is refused."""

from __future__ import annotations

import copy
import hashlib
import json
import pathlib
import pickle
from typing import Any

import numpy as np
import pytest

import iet
from iet.errors import InputError, RegistryError
from iet.marks.derivation import derive_frequency, derive_session, derive_subkey
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from iet.marks.sessions import checked_sessions
from tests.support import teams
from tests.support.known_answers import from_bits, vectors
from tests.support.registries import V
from tests.support.teams import secret
from tests.vectors import make

VECTORS = vectors("sessions_v1")


def crowd(path: Any = None, **scheme: Any) -> Registry:
    """Three agents, of which the second has two keys."""
    registry = teams.team([], path, vocab_size=V, **scheme)
    for number, name in enumerate(("planner", "critic", "writer")):
        registry.add(name, secret=secret(number))
    registry.rotate("critic", secret=secret(10))
    return registry


# ---------------------------------------------------------------- known answers


def test_vectors_are_those_that_are_made() -> None:
    assert json.loads(json.dumps(make.make_sessions())) == VECTORS


def test_the_vectors_are_frozen() -> None:
    path = pathlib.Path(make.__file__).with_name("sessions_v1.json")
    page = (path.parents[2] / "docs" / "internals" / "scheme.md").read_text()
    assert f"sessions_v1.json  {hashlib.blake2b(path.read_bytes(), digest_size=32).hexdigest()}" in page


@pytest.mark.parametrize("entry", VECTORS["derive"])
def test_vectors_derive(entry: dict[str, Any]) -> None:
    key, message = bytes.fromhex(entry["secret"]), f"iet/v1/session/{entry['session']}".encode()
    derived = hashlib.blake2b(message, key=key, digest_size=32).digest()
    assert derived.hex() == entry["session_secret"] == derive_session(key, entry["session"]).hex()
    registry = teams.team([], vocab_size=V)
    registry.add("planner", secret=key)
    table = registry.session(entry["session"]).marking_keys()
    assert table.subkeys[0].tobytes().hex() == entry["subkey"] == derive_subkey(derived).hex()


@pytest.mark.parametrize("entry", VECTORS["ops"], ids=lambda entry: entry["family"])
def test_vectors_of_the_ops(entry: dict[str, Any], isa: str) -> None:
    scheme = Scheme(**{name: entry[name] for name in ("family", "n_gram", "k_p")})
    registry = Registry.create(
        None, vocab_size=entry["vocab_size"], unmarked_ids=entry["unmarked_ids"], scheme=scheme
    )
    registry.add("planner", secret=make.SECRETS[0])
    expected = np.array([from_bits(row) for row in entry["scores"]])
    kappas, marked = from_bits(entry["kappas"]), entry["embed"]["float32"]
    for number, session in enumerate(VECTORS["sessions"]):
        of_session = registry.session(session)
        scores = iet.score_tokens(entry["token_ids"], of_session)
        assert np.array_equal(scores[:, 0], expected[:, number])
        mine = [row for row in range(3) if entry["slots"][row] == number]
        logits = from_bits(marked["logits"]).reshape(4, -1)[mine].copy()
        temperature = (kappas / np.float32(scheme.kappa))[mine]
        contexts = np.array(entry["contexts"])[mine]
        iet.embed_(logits, contexts, [0] * len(mine), of_session, temperature=temperature)
        assert np.array_equal(logits, from_bits(marked["marked"]).reshape(4, -1)[mine], equal_nan=True)


# ---------------------------------------------------------------- the registry of a session


@pytest.mark.parametrize("scheme", [{"k_p": "per-agent"}, {"family": "gumbel"}])
def test_a_session_has_the_same_agents_under_other_keys(scheme: dict[str, Any]) -> None:
    registry = crowd(**scheme)
    one, other = registry.session("run-1"), registry.session("run-2")
    for mine, own in zip(
        (one.marking_keys(), one.scoring_keys()),
        (registry.marking_keys(), registry.scoring_keys()),
        strict=True,
    ):
        for name in ("owners", "epochs", "k_p"):
            assert np.array_equal(getattr(mine, name), getattr(own, name))
        assert mine.names == own.names
        assert mine.profile == own.profile
    tables = [each.scoring_keys().subkeys for each in (registry, one, other)]
    assert len({row.tobytes() for table in tables for row in table}) == 3 * 4
    assert one.slot("writer") == registry.slot("writer") == 2
    assert len({each.digest for each in (registry, one, other)}) == 3
    assert registry.session("run-1").digest == one.digest
    assert registry.engine_keys("sglang", agent="planner") != one.engine_keys("sglang", agent="planner")
    assert one.keys("planner")[0].secret == derive_session(secret(0), "run-1")
    assert one.session("run-1").digest != one.digest


def test_frequencies_stay_those_that_were_drawn_to_be_usable() -> None:
    registry = crowd(k_p="per-agent")
    maximum = registry.profile.max_frequency
    for of_session in (registry.session("a"), registry.session("a").session("b")):
        assert of_session.marking_keys().k_p[0] == derive_frequency(secret(0), maximum)
    with pytest.raises(RegistryError, match="save the registry, and take the session from it"):
        registry.session("a").dumps()


def test_all_sessions_in_one_table() -> None:
    registry = crowd()
    table = registry.session_keys(["run-1", "run-2"])
    assert table.sessions is not None
    own = {-1: registry, 0: registry.session("run-1"), 1: registry.session("run-2")}
    assert table.owners.tolist() == [0] * 3 + [1] * 6 + [2] * 3
    assert table.sessions.tolist() == [-1, 0, 1, *np.repeat([-1, 0, 1], 2), -1, 0, 1]
    for session, of_session in own.items():
        mine, expected = table.subset(np.flatnonzero(table.sessions == session)), of_session.scoring_keys()
        for name in ("subkeys", "owners", "epochs", "k_p"):
            assert np.array_equal(getattr(mine, name), getattr(expected, name))
    assert table.decoys(3).sessions is None
    empty = teams.team([], vocab_size=V).session_keys(["run-1"])
    assert len(empty) == 0


def test_a_session_follows_its_registry_and_is_not_changed_itself() -> None:
    registry = crowd()
    before = registry.session("run-1")
    for change in (
        lambda: before.add("new"),
        lambda: before.rotate("planner"),
    ):
        with pytest.raises(RegistryError, match="session 'run-1': its keys follow"):
            change()
    registry.rotate("planner", secret=secret(11))
    assert [len(each.keys("planner")) for each in (before, registry.session("run-1"))] == [1, 2]


def test_a_host_of_one_session_gets_that_one_alone(tmp_path: pathlib.Path) -> None:
    registry = crowd()
    registry.session("run-1").export(tmp_path / "host.json", ["planner"])
    host = Registry.load(tmp_path / "host.json")
    subkeys = host.marking_keys().subkeys
    assert np.array_equal(subkeys, registry.session("run-1").marking_keys().subkeys[[0]])
    assert secret(0).hex() not in (tmp_path / "host.json").read_text()
    assert "'run-1'" in repr(registry.session("run-1"))


def test_copies_and_pickles_find_the_keys_through_the_registrys_file(tmp_path: pathlib.Path) -> None:
    of_session = crowd(tmp_path / "team.json").session("run-1")
    assert copy.deepcopy(of_session) is of_session
    pickled = pickle.dumps(of_session)
    assert secret(0) not in pickled
    assert derive_session(secret(0), "run-1") not in pickled
    assert pickle.loads(pickled).digest == of_session.digest
    with pytest.raises(RegistryError, match="in memory"):
        pickle.dumps(crowd().session("run-1"))


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("session", "why"),
    [
        (7, "got int, expected str"),
        (None, "got NoneType"),
        ("", "1 to 200 characters"),
        ("s" * 201, "1 to 200 characters"),
        (" run", "no space at either end"),
        ("run\n7", "U\\+000A"),
        ("run\0", "U\\+0000"),
        ("run\u2028x", "U\\+2028"),
        ("run\u202e7", "U\\+202E"),
        ("run\ud8007", "U\\+D800"),
    ],
)
def test_ids_that_are_none(session: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        crowd().session(session)
    with pytest.raises(InputError, match=why):
        crowd().session_keys(["run-1", session])


def test_lists_that_are_none() -> None:
    assert checked_sessions(["b", "a", "b"]) == ("b", "a")
    for wrong in ("run-1", b"run-1", 7, None):
        with pytest.raises(InputError, match=f"got {type(wrong).__name__}, expected a list of ids"):
            checked_sessions(wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="got none"):
        checked_sessions([])
