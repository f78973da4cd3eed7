"""The registry: agents, keys, profiles, exports and merges."""

from __future__ import annotations

import json
import os
import pathlib
import stat
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from iet.errors import InputError, RegistryError, TokenizerMismatch
from iet.marks.derivation import derive_frequency, derive_subkey
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from iet.marks.tokenizer import Tokenizer
from tests.support import teams
from tests.support.registries import V, spellings
from tests.support.teams import WORD_TOKENIZER, secret


@given(st.binary(min_size=32, max_size=32), st.integers(1, 1 << 23))
def test_derived_frequency_is_in_range(value: bytes, maximum: int) -> None:
    assert 1 <= derive_frequency(value, maximum) <= maximum
    assert len(derive_subkey(value)) == 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "got neither"),
        ({"vocab_size": 0}, "vocab_size: got 0"),
        ({"vocab_size": "1000"}, "vocab_size: got '1000'"),
        ({"vocab_size": V, "unmarked_ids": [V]}, "unmarked_ids: got"),
        ({"vocab_size": V, "scheme": "fourier"}, "scheme: got str"),
        ({"vocab_size": V, "scheme": Scheme(k_p=500)}, "k_p: got 500"),
        ({"tokenizer": 3}, "tokenizer: got int"),
    ],
)
def test_create_rejects_invalid_arguments(
    path: pathlib.Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Registry.create(path, **arguments)
    assert not path.exists()


def test_rejects_paths_of_other_types(team: Registry) -> None:
    for refused in (
        lambda: Registry.load(5),  # type: ignore[arg-type]
        lambda: Registry.create(5, vocab_size=V),  # type: ignore[arg-type]
        lambda: team.save(5),  # type: ignore[arg-type]
    ):
        with pytest.raises(InputError, match="path: got int, expected a path"):
            refused()


def test_save_and_load(team: Registry, path: pathlib.Path) -> None:
    team.rotate("critic", secret=secret(9))
    for read in (Registry.load(path), Registry.loads(team.dumps()), Registry.loads(path.read_bytes())):
        assert read.digest == team.digest
        assert read.names() == team.names() == ("planner", "critic", "writer")
        assert read.keys("critic") == team.keys("critic")
        assert read.profile == team.profile


def test_slots_index_names(team: Registry) -> None:
    assert [team.slot(name) for name in team.names()] == [0, 1, 2]
    assert team.add("reader") == 3
    assert list(team) == list(team.names())
    assert len(team) == 4
    assert "reader" in team
    assert "nobody" not in team
    assert ["reader"] not in team


@pytest.mark.parametrize(
    "name",
    ["", "x" * 201, "a\nb", "a\x00", "\x1b[31mred", "a\u202eb", "a\u200bb", " a", "a ", "\ud800", 3, None],
)
def test_rejects_invalid_names(team: Registry, name: Any) -> None:
    with pytest.raises(InputError, match="agent name"):
        team.add(name)
    assert len(team) == 3


@pytest.mark.parametrize(
    "name", ["x" * 200, "Прораб", "planner 2", "میروم", "a/b:c", '"quoted"', "__proto__"]
)
def test_names_survive_the_file(path: pathlib.Path, name: str) -> None:
    Registry.create(path, vocab_size=V).add(name)
    assert Registry.load(path).names() == (name,)


@pytest.mark.parametrize("value", [b"", bytes(31), bytes(33), "s" * 32, bytearray(32)])
def test_rejects_invalid_secrets(team: Registry, value: Any) -> None:
    with pytest.raises(InputError, match=r"secret: got .*, expected 32 bytes"):
        team.add("reader", secret=value)


def test_rejects_repeated_names_and_secrets(team: Registry) -> None:
    with pytest.raises(RegistryError, match="'critic' exists"):
        team.add("critic")
    with pytest.raises(RegistryError, match="'reader' epoch 0 has the secret of agent 'critic' epoch 0"):
        team.add("reader", secret=secret(1))
    with pytest.raises(RegistryError, match="has the secret"):
        team.rotate("critic", secret=secret(1))
    assert team.names() == ("planner", "critic", "writer")


def test_unknown_agent_error_suggests_a_name(team: Registry) -> None:
    for call in (team.slot, team.rotate, team.profile_of, team.keys, lambda name: team.export(None, [name])):
        with pytest.raises(RegistryError, match=r"'planer'.*did you mean 'planner'.*critic, writer"):
            call("planer")
    with pytest.raises(InputError, match="agent name: got bytes"):
        team.slot(secret(0))  # type: ignore[arg-type]


def test_key_tables_hold_derived_keys(team: Registry) -> None:
    team.rotate("planner", secret=secret(10))
    team.rotate("writer", secret=secret(12))
    marking, scoring = team.marking_keys(), team.scoring_keys()
    assert marking.profile is scoring.profile is team.profile
    assert (len(marking), len(scoring)) == (3, 5)
    assert marking.names == scoring.names == ("planner", "critic", "writer")
    assert marking.owners.tolist() == [0, 1, 2]
    assert marking.epochs.tolist() == [1, 0, 1]
    assert scoring.owners.tolist() == [0, 0, 1, 2, 2]
    assert scoring.epochs.tolist() == [0, 1, 0, 0, 1]
    assert [bytes(row) for row in marking.subkeys] == [derive_subkey(secret(i)) for i in (10, 1, 12)]
    assert [bytes(row) for row in scoring.subkeys] == [derive_subkey(secret(i)) for i in (0, 10, 1, 2, 12)]
    for table in (marking, scoring):
        assert table.subkeys.dtype == np.uint8
        assert table.subkeys.flags.c_contiguous
        assert [str(a.dtype) for a in (table.k_p, table.owners, table.epochs)] == ["int64", "int32", "int32"]
        assert table.k_p.tolist() == [1] * len(table.owners)
        assert not table.subkeys.flags.writeable


def test_key_tables_are_cached_until_a_change(team: Registry) -> None:
    table = team.marking_keys()
    assert team.marking_keys() is table
    team.rotate("critic")
    assert team.marking_keys().epochs.tolist() == [0, 1, 0]
    assert table.epochs.tolist() == [0, 0, 0]
    team.add("reader")
    assert team.slot("reader") == 3
    assert len(team.scoring_keys().owners) == 5


def test_k_p_per_agent() -> None:
    registry = teams.team({"planner": 0}, vocab_size=V, k_p="per-agent")
    assert registry.marking_keys().k_p.tolist() == [derive_frequency(secret(0), 499)]


def test_an_empty_registry_has_empty_tables() -> None:
    table = Registry.create(None, vocab_size=V).marking_keys()
    assert table.subkeys.shape == (0, 16)
    assert table.names == ()


def test_rotation_keeps_old_keys(team: Registry, path: pathlib.Path) -> None:
    assert team.rotate("critic", secret=secret(7)) == 1
    assert team.rotate("critic") == 2
    keys = Registry.load(path).keys("critic")
    assert [key.epoch for key in keys] == [0, 1, 2]
    assert keys[1].secret == secret(7)
    assert {key.agent for key in keys} == {"critic"}


def test_several_profiles(team: Registry) -> None:
    first = team.profile.id
    second = team.add_profile(vocab_size=2 * V)
    assert team.add_profile(vocab_size=2 * V) == second
    assert list(team.profiles) == [first, second]
    for call in (
        team.names,
        team.marking_keys,
        team.scoring_keys,
        lambda: team.profile,
        lambda: team.add("x"),
    ):
        with pytest.raises(InputError, match=f"{first}.*{second}"):
            call()
    assert team.add("reader", profile=second) == 0
    assert team.slot("reader") == 0
    assert team.slot("writer") == 2
    assert team.names(second) == ("reader",)
    assert team.profile_of("reader").vocab_size == 2 * V
    assert team.marking_keys(second).names == ("reader",)
    with pytest.raises(RegistryError, match="'writer' has profile"):
        team.slot("writer", second)
    with pytest.raises(RegistryError, match="'nope' is not in the registry"):
        team.get_profile("nope")
    with pytest.raises(TypeError):
        team.profiles["x"] = team.profiles[first]  # type: ignore[index]


def test_rejects_agent_without_a_profile() -> None:
    with pytest.raises(InputError, match="expected one of"):
        Registry().add("planner")


@pytest.fixture
def tokenizer_file(tmp_path: pathlib.Path) -> pathlib.Path:
    vocabulary = {"<eos>": 0, "a": 1, "b": 2, "ab": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [("a", "b")]))
    tokenizer.add_special_tokens(["<eos>", "<pad>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_profile_is_derived_from_its_tokenizer(tokenizer_file: pathlib.Path, path: pathlib.Path) -> None:
    registry = Registry.create(path, tokenizer=tokenizer_file)
    assert registry.profile.vocab_size == 5
    assert registry.profile.unmarked_ids == (0, 4)
    assert registry.profile.tokenizer_digest == Tokenizer(tokenizer_file).digest
    backend = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    assert Registry.create(None, tokenizer=backend).profile.id == registry.profile.id
    assert Registry.create(None, tokenizer=backend, vocab_size=4).profile.unmarked_ids == (0,)
    assert Registry.create(None, tokenizer=backend, unmarked_ids=[3]).profile.unmarked_ids == (3,)
    assert Registry.create(None, vocab_size=9, unmarked_ids=[8, 2]).profile.unmarked_ids == (2, 8)


def test_tokenizer_path_is_relative_to_the_registry(
    tokenizer_file: pathlib.Path, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tokenizer_file.parent)
    registry = Registry.create("team.json", tokenizer="tokenizer.json")
    registry.add("planner")
    assert (
        json.loads(path.read_text())["profiles"][registry.profile.id]["tokenizer_source"] == "tokenizer.json"
    )

    elsewhere = tokenizer_file.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert Registry.load(path).open_tokenizer().encode("ab").token_ids.tolist() == [3]
    exported = registry.export("planner.json", agents=["planner"])
    assert exported.profile.tokenizer_source == tokenizer_file.as_posix()
    assert exported.open_tokenizer().digest == registry.profile.tokenizer_digest

    tokenizer_file.rename(elsewhere / "moved.json")
    with pytest.raises(TokenizerMismatch, match="does not exist"):
        registry.open_tokenizer()
    assert registry.open_tokenizer(source="moved.json").vocab_size == 5
    with pytest.raises(TokenizerMismatch, match="expects"):
        registry.open_tokenizer(source=tokenizers.Tokenizer(tokenizers.models.BPE()))


def test_in_memory_tokenizer_follows_its_profile(tmp_path: pathlib.Path) -> None:
    registry = Registry.create(None, tokenizer=WORD_TOKENIZER)
    registry.add("planner")
    merged = Registry()
    merged.merge(registry)
    for derived in (registry.export(None, ["planner"]), merged):
        assert derived.open_tokenizer().digest == registry.profile.tokenizer_digest
    path = tmp_path / "there.json"
    path.write_text("mine")
    with pytest.raises(RegistryError, match="it exists; iet keys export --replace"):
        registry.export(path, ["planner"], with_tokenizer=True)
    assert [file.name for file in tmp_path.iterdir()] == ["there.json"]


def no_room(*_: object) -> str:
    raise RegistryError("no room")


def test_export_with_tokenizers_is_atomic(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone.json"
    word_level = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, "a"))
    word_level.save(str(gone))
    registry = Registry.create(None, tokenizer=WORD_TOKENIZER)
    registry.add("planner")
    registry.add("critic", profile=registry.add_profile(tokenizer=gone))
    gone.unlink()
    path = tmp_path / "host.json"
    with pytest.raises(TokenizerMismatch, match="does not exist"):
        registry.export(path, ["planner", "critic"], with_tokenizer=True)
    assert list(tmp_path.iterdir()) == []
    with monkeypatch.context() as full:
        full.setattr("iet.marks.registry.replace", no_room)
        with pytest.raises(RegistryError, match="no room"):
            registry.export(path, ["planner"], with_tokenizer=True)
    assert list(tmp_path.iterdir()) == []
    registry.export(path, ["planner"], with_tokenizer=True)
    assert Registry.load(path).open_tokenizer().digest == Tokenizer(WORD_TOKENIZER).digest
    assert len(list(tmp_path.iterdir())) == 2


def test_rejects_k_p_with_few_values() -> None:
    registry = Registry()
    with pytest.raises(InputError, match="got 16000 with a vocabulary of 128000: a mark of 8 values"):
        registry.add_profile(vocab_size=128000, scheme=Scheme(k_p=16000))
    assert registry.profiles == {}
    assert registry.add_profile(vocab_size=128000, scheme=Scheme(k_p=16001)) in registry.profiles


def test_rejects_opening_a_missing_tokenizer(team: Registry) -> None:
    with pytest.raises(TokenizerMismatch, match="token ids only"):
        team.open_tokenizer()


def test_export_contains_no_other_secret(team: Registry, tmp_path: pathlib.Path) -> None:
    team.rotate("planner", secret=secret(10))
    team.add("stranger", profile=team.add_profile(vocab_size=2 * V), secret=secret(3))
    exported = team.export(tmp_path / "planner.json", agents=["planner"])
    data = (tmp_path / "planner.json").read_bytes()
    assert secret(10).hex().encode() in data
    for number in (0, 1, 2, 3):
        assert secret(number) not in data
        for spelling in spellings(secret(number)):
            assert spelling.encode() not in data
    for name in (b"critic", b"writer", b"stranger"):
        assert name not in data
    if os.name == "posix":
        assert stat.S_IMODE((tmp_path / "planner.json").stat().st_mode) == 0o600
    host = Registry.load(tmp_path / "planner.json")
    assert host.digest == exported.digest != team.digest
    theirs, ours = host.marking_keys(), team.marking_keys(team.profile_of("planner").id)
    assert theirs.subkeys[0].tolist() == ours.subkeys[0].tolist()
    assert theirs.epochs.tolist() == [1]


def test_export_replaces_an_earlier_one_and_loses_no_key(team: Registry, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "host.json"
    first = team.export(path, ["planner"])
    with pytest.raises(RegistryError, match=r"host.json: it exists; iet keys export --replace"):
        team.export(path, ["planner", "critic"])
    both = team.export(path, ["planner", "critic"], replace=True)
    assert Registry.load(path).digest == both.digest != first.digest
    team.rotate("critic")
    team.export(path, ["critic"], replace=True)  # its older key is still in the registry
    assert Registry.load(path).names() == ("critic",)
    other = Registry.create(tmp_path / "other.json", vocab_size=1000)
    other.add("critic")
    before = path.read_bytes()
    with pytest.raises(RegistryError, match="holds a key of 'critic' that this registry lacks"):
        other.export(path, ["critic"], replace=True)
    with pytest.raises(RegistryError, match="it is the registry itself"):
        other.export(other.path, ["critic"], replace=True)
    other.path.rename(tmp_path / "moved.json")
    with pytest.raises(RegistryError, match="it exists"):
        other.export(path, ["critic"])
    assert path.read_bytes() == before
    assert other.export(tmp_path / "new.json", ["critic"], replace=True).names() == ("critic",)


def test_export_keeps_order_and_all_epochs(team: Registry) -> None:
    team.rotate("critic", secret=secret(10))
    exported = team.export(None, agents=["writer", "critic"], all_epochs=True)
    assert exported.names() == ("writer", "critic")
    assert exported.scoring_keys().epochs.tolist() == [0, 0, 1]
    assert exported.path is None


def test_export_rejects_invalid_arguments(team: Registry, path: pathlib.Path) -> None:
    with pytest.raises(RegistryError, match="it is the registry itself"):
        team.export(path, agents=["planner"])
    refused: list[Any] = ["planner", [], None, {"planner"}]
    for agents in refused:
        with pytest.raises(InputError, match="expected a list with at least one name"):
            team.export(None, agents=agents)
    assert Registry.load(path).digest == team.digest


def test_merge_joins_agents_and_epochs(team: Registry, path: pathlib.Path) -> None:
    host = team.export(None, agents=["planner"])
    host.rotate("planner", secret=secret(20))
    host.merge(teams.team({"reader": 21}, vocab_size=2 * V))
    team.merge(host)
    team.merge(host)
    read = Registry.load(path)
    assert [key.epoch for key in read.keys("planner")] == [0, 1]
    assert read.profile_of("reader").vocab_size == 2 * V
    assert read.digest == team.digest
    back = Registry()
    back.merge(team)
    assert back.digest == team.digest


def test_merge_orders_epochs(team: Registry) -> None:
    backup = Registry.loads(team.dumps())
    team.rotate("planner", secret=secret(20))
    backup.merge(team.export(None, agents=["planner"]))
    assert [key.secret for key in backup.keys("planner")] == [secret(0), secret(20)]
    assert backup.marking_keys().epochs.tolist() == [1, 0, 0]
    assert backup.digest == team.digest


def test_merge_rejects_conflicts_without_changes(team: Registry, path: pathlib.Path) -> None:
    content, digest = path.read_bytes(), team.digest
    for conflicting, message in (
        (teams.team(["new", "critic"], vocab_size=V), "another secret in epoch 0"),
        (teams.team({"critic": 1}, vocab_size=2 * V), "has profile"),
        (teams.team({"renamed": 1}, vocab_size=V), "has the secret of agent 'critic'"),
    ):
        with pytest.raises(RegistryError, match=message):
            team.merge(conflicting)
    with pytest.raises(InputError, match="other: got dict"):
        team.merge({})  # type: ignore[arg-type]
    assert path.read_bytes() == content
    assert team.digest == digest


def test_digest_covers_secrets_names_and_epochs() -> None:
    def build(*agents: tuple[str, int], rotate: int | None = None) -> str:
        registry = Registry.create(None, vocab_size=V)
        for name, number in agents:
            registry.add(name, secret=secret(number))
        if rotate is not None:
            registry.rotate(agents[0][0], secret=secret(rotate))
        return registry.digest

    same = build(("a", 0), ("b", 1))
    assert same == build(("a", 0), ("b", 1)) == build(("b", 1), ("a", 0))
    changed = [
        build(("a", 1), ("b", 0)),
        build(("a", 0)),
        build(("a", 0), ("b", 1), rotate=2),
        build(("a", 0), ("c", 1)),
    ]
    assert len({same, *changed}) == 5


def test_repr_of_many_agents_is_short(path: pathlib.Path) -> None:
    registry = Registry.create(None, vocab_size=128256)
    for number in range(300):
        registry.add(f"agent {number}")
    registry.save(path)
    read = Registry.load(path)
    assert read.scoring_keys().subkeys.shape == (300, 16)
    assert "and 280 more" in repr(read)


def test_loaded_registry_has_no_in_memory_tokenizer(path: pathlib.Path) -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, []))
    registry = Registry.create(path, tokenizer=backend)
    assert registry.open_tokenizer().digest == registry.profile.tokenizer_digest
    with pytest.raises(TokenizerMismatch, match="does not say where"):
        Registry.load(path).open_tokenizer()
