"""Keys of sessions: known answers, the registry of a session, rejected ids."""

from __future__ import annotations

import copy
import hashlib
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
    """Three agents; the second has two keys."""
    registry = teams.team([], path, vocab_size=V, **scheme)
    for number, name in enumerate(("planner", "critic", "writer")):
        registry.add(name, secret=secret(number))
    registry.rotate("critic", secret=secret(10))
    return registry


# ---------------------------------------------------------------- known answers


@pytest.mark.parametrize("entry", VECTORS["derive"])
def test_derived_keys_equal_the_vectors(entry: dict[str, Any]) -> None:
    key, message = bytes.fromhex(entry["secret"]), f"iet/v1/session/{entry['session']}".encode()
    derived = hashlib.blake2b(message, key=key, digest_size=32).digest()
    assert derived.hex() == entry["session_secret"] == derive_session(key, entry["session"]).hex()
    registry = teams.team([], vocab_size=V)
    registry.add("planner", secret=key)
    table = registry.session(entry["session"]).marking_keys()
    assert table.subkeys[0].tobytes().hex() == entry["subkey"] == derive_subkey(derived).hex()


@pytest.mark.parametrize("entry", VECTORS["ops"], ids=lambda entry: entry["family"])
def test_ops_equal_the_vectors(entry: dict[str, Any], isa: str) -> None:
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
        rows = [row for row in range(3) if entry["slots"][row] == number]
        logits = from_bits(marked["logits"]).reshape(4, -1)[rows].copy()
        temperature = (kappas / np.float32(scheme.kappa))[rows]
        contexts = np.array(entry["contexts"])[rows]
        iet.embed_(logits, contexts, [0] * len(rows), of_session, temperature=temperature)
        assert np.array_equal(logits, from_bits(marked["marked"]).reshape(4, -1)[rows], equal_nan=True)


# ---------------------------------------------------------------- the registry of a session


@pytest.mark.parametrize("scheme", [{"k_p": "per-agent"}, {"family": "gumbel"}])
def test_session_keeps_agents_and_changes_keys(scheme: dict[str, Any]) -> None:
    registry = crowd(**scheme)
    first, second = registry.session("run-1"), registry.session("run-2")
    for session_table, own_table in zip(
        (first.marking_keys(), first.scoring_keys()),
        (registry.marking_keys(), registry.scoring_keys()),
        strict=True,
    ):
        for name in ("owners", "epochs", "k_p"):
            assert np.array_equal(getattr(session_table, name), getattr(own_table, name))
        assert session_table.names == own_table.names
        assert session_table.profile == own_table.profile
    tables = [member.scoring_keys().subkeys for member in (registry, first, second)]
    assert len({row.tobytes() for table in tables for row in table}) == 3 * 4
    assert first.slot("writer") == registry.slot("writer") == 2
    assert len({member.digest for member in (registry, first, second)}) == 3
    assert registry.session("run-1").digest == first.digest
    assert registry.engine_keys("sglang", agent="planner") != first.engine_keys("sglang", agent="planner")
    assert first.keys("planner")[0].secret == derive_session(secret(0), "run-1")
    assert first.session("run-1").digest != first.digest


def test_sessions_keep_k_p() -> None:
    registry = crowd(k_p="per-agent")
    maximum = registry.profile.max_frequency
    for of_session in (registry.session("a"), registry.session("a").session("b")):
        assert of_session.marking_keys().k_p[0] == derive_frequency(secret(0), maximum)
    with pytest.raises(RegistryError, match="save the registry, and take the session from it"):
        registry.session("a").dumps()


def test_session_keys_table() -> None:
    registry = crowd()
    table = registry.session_keys(["run-1", "run-2"])
    assert table.sessions is not None
    registries = {-1: registry, 0: registry.session("run-1"), 1: registry.session("run-2")}
    assert table.owners.tolist() == [0] * 3 + [1] * 6 + [2] * 3
    assert table.sessions.tolist() == [-1, 0, 1, *np.repeat([-1, 0, 1], 2), -1, 0, 1]
    for session, of_session in registries.items():
        part, expected = table.subset(np.flatnonzero(table.sessions == session)), of_session.scoring_keys()
        for name in ("subkeys", "owners", "epochs", "k_p"):
            assert np.array_equal(getattr(part, name), getattr(expected, name))
    assert table.decoys(3).sessions is None
    empty = teams.team([], vocab_size=V).session_keys(["run-1"])
    assert len(empty) == 0


def test_session_is_read_only_and_follows_its_registry() -> None:
    registry = crowd()
    old_session = registry.session("run-1")
    for change in (
        lambda: old_session.add("new"),
        lambda: old_session.rotate("planner"),
    ):
        with pytest.raises(RegistryError, match="session 'run-1': its keys follow"):
            change()
    registry.rotate("planner", secret=secret(11))
    assert [len(session.keys("planner")) for session in (old_session, registry.session("run-1"))] == [1, 2]


def test_exported_session_contains_its_key_only(tmp_path: pathlib.Path) -> None:
    registry = crowd()
    registry.session("run-1").export(tmp_path / "host.json", ["planner"])
    host = Registry.load(tmp_path / "host.json")
    subkeys = host.marking_keys().subkeys
    assert np.array_equal(subkeys, registry.session("run-1").marking_keys().subkeys[[0]])
    assert secret(0).hex() not in (tmp_path / "host.json").read_text()
    assert "'run-1'" in repr(registry.session("run-1"))


def test_pickle_contains_a_path_and_no_secret(tmp_path: pathlib.Path) -> None:
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
def test_rejects_invalid_ids(session: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        crowd().session(session)
    with pytest.raises(InputError, match=why):
        crowd().session_keys(["run-1", session])


def test_rejects_invalid_lists() -> None:
    assert checked_sessions(["b", "a", "b"]) == ("b", "a")
    for wrong in ("run-1", b"run-1", 7, None):
        with pytest.raises(InputError, match=f"got {type(wrong).__name__}, expected a list of ids"):
            checked_sessions(wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="got none"):
        checked_sessions([])
