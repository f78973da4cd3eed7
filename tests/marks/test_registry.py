"""The registry: who holds which key, and that no key goes astray."""

from __future__ import annotations

import base64
import contextlib
import copy
import dataclasses
import hashlib
import json
import logging
import os
import pathlib
import pickle
import stat
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from iet.errors import IetError, InputError, RegistryError, SchemeMismatch, TokenizerMismatch
from iet.marks.keys import AgentKey, KeyTable, derive_frequency, derive_subkey
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme, canonical_digest
from iet.marks.tokenizer import Tokenizer

posix = pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")
V = 1000


def secret(number: int) -> bytes:
    """A recognisable secret: 32 bytes that occur nowhere by chance."""
    return hashlib.blake2b(bytes([number]), digest_size=32).digest()


def spellings(value: bytes) -> list[str]:
    """The ways in which 32 bytes could appear in text."""
    return [value.hex(), value.hex().upper(), repr(value)[2:-1], base64.b64encode(value).decode()[:40]]


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "team.json"


@pytest.fixture
def team(path: pathlib.Path) -> Registry:
    registry = Registry.create(path, vocab_size=V)
    for number, name in enumerate(["planner", "critic", "writer"]):
        registry.add(name, secret=secret(number))
    return registry


def rewrite(path: pathlib.Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Edit a registry file and mend its checksum, as another release would have written it."""
    content = json.loads(path.read_text())
    content.pop("checksum")
    change(content)
    content["checksum"] = canonical_digest(content)
    path.write_text(json.dumps(content))


# Derivation


def test_derived_keys_are_frozen() -> None:
    assert derive_subkey(bytes(32)).hex() == "e1d6df4db7b0896114affb6ed115e232"
    assert derive_frequency(bytes(32), 499) == 156
    assert derive_frequency(bytes(range(32)), 64127) == 22843


@given(st.binary(min_size=32, max_size=32), st.integers(1, 1 << 23))
def test_derived_frequency_is_in_range(value: bytes, maximum: int) -> None:
    assert 1 <= derive_frequency(value, maximum) <= maximum
    assert len(derive_subkey(value)) == 16


# Creating, adding, reading


def test_create_writes_a_private_file(path: pathlib.Path) -> None:
    registry = Registry.create(path, vocab_size=V, scheme=Scheme(kappa=1.5, n_gram=3))
    assert registry.path == path
    assert registry.profile.scheme.n_gram == 3
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@posix
def test_the_file_stays_private_whatever_the_umask(path: pathlib.Path) -> None:
    before = os.umask(0)
    try:
        Registry.create(path, vocab_size=V).add("planner")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_create_refuses_an_existing_file(team: Registry, path: pathlib.Path) -> None:
    before = path.read_bytes()
    with pytest.raises(RegistryError, match="it exists, and its keys would be lost"):
        Registry.create(path, vocab_size=V)
    assert path.read_bytes() == before
    assert len(Registry.create(path, vocab_size=V, overwrite=True)) == 0


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
def test_create_refuses_bad_input(path: pathlib.Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Registry.create(path, **arguments)
    assert not path.exists()


def test_a_saved_registry_reads_back(team: Registry, path: pathlib.Path) -> None:
    team.rotate("critic", secret=secret(9))
    for read in (Registry.load(path), Registry.loads(team.dumps()), Registry.loads(path.read_bytes())):
        assert read.digest == team.digest
        assert read.names() == team.names() == ("planner", "critic", "writer")
        assert read.keys("critic") == team.keys("critic")
        assert read.profile == team.profile


def test_slots_are_indices_into_names(team: Registry) -> None:
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
def test_bad_names_are_refused(team: Registry, name: Any) -> None:
    with pytest.raises(InputError, match="agent name"):
        team.add(name)
    assert len(team) == 3


@pytest.mark.parametrize(
    "name", ["x" * 200, "Прораб", "planner 2", "می\u200cروم", "a/b:c", '"quoted"', "__proto__"]
)
def test_good_names_survive_the_file(path: pathlib.Path, name: str) -> None:
    Registry.create(path, vocab_size=V).add(name)
    assert Registry.load(path).names() == (name,)


@pytest.mark.parametrize("value", [b"", bytes(31), bytes(33), "s" * 32, bytearray(32)])
def test_bad_secrets_are_refused(team: Registry, value: Any) -> None:
    with pytest.raises(InputError, match=r"secret: got .*, expected 32 bytes"):
        team.add("reader", secret=value)


def test_names_and_secrets_are_taken_once(team: Registry) -> None:
    with pytest.raises(RegistryError, match="'critic' is here already"):
        team.add("critic")
    with pytest.raises(RegistryError, match="'reader' epoch 0 has the secret of agent 'critic' epoch 0"):
        team.add("reader", secret=secret(1))
    with pytest.raises(RegistryError, match="has the secret"):
        team.rotate("critic", secret=secret(1))
    assert team.names() == ("planner", "critic", "writer")


def test_fresh_secrets_differ(team: Registry) -> None:
    team.add("a")
    team.add("b")
    assert team.keys("a")[0].secret != team.keys("b")[0].secret


def test_unknown_agents_are_named_with_the_known_ones(team: Registry) -> None:
    for call in (team.slot, team.rotate, team.profile_of, team.keys, lambda name: team.export(None, [name])):
        with pytest.raises(RegistryError, match=r"'planer'.*did you mean 'planner'.*critic, writer"):
            call("planer")
    with pytest.raises(InputError, match="agent name: got bytes"):
        team.slot(secret(0))  # type: ignore[arg-type]


# Key tables


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


def test_key_tables_are_kept_until_something_changes(team: Registry) -> None:
    before = team.marking_keys()
    assert team.marking_keys() is before
    team.rotate("critic")
    assert team.marking_keys().epochs.tolist() == [0, 1, 0]
    assert before.epochs.tolist() == [0, 0, 0]
    team.add("reader")
    assert team.slot("reader") == 3
    assert len(team.scoring_keys().owners) == 5


def test_frequency_per_agent() -> None:
    registry = Registry.create(None, vocab_size=V, scheme=Scheme(k_p="per-agent"))
    registry.add("planner", secret=secret(0))
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


# Profiles


def test_several_profiles_must_be_named(team: Registry) -> None:
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


def test_an_empty_registry_has_no_profile() -> None:
    with pytest.raises(InputError, match="expected one of"):
        Registry().add("planner")


@pytest.fixture
def tokenizer_file(tmp_path: pathlib.Path) -> pathlib.Path:
    vocabulary = {"<eos>": 0, "a": 1, "b": 2, "ab": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [("a", "b")]))
    tokenizer.add_special_tokens(["<eos>", "<pad>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_a_profile_takes_after_its_tokenizer(tokenizer_file: pathlib.Path, path: pathlib.Path) -> None:
    registry = Registry.create(path, tokenizer=tokenizer_file)
    assert registry.profile.vocab_size == 5
    assert registry.profile.unmarked_ids == (0, 4)
    assert registry.profile.tokenizer_digest == Tokenizer(tokenizer_file).digest
    other = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    assert Registry.create(None, tokenizer=other).profile.id == registry.profile.id
    assert Registry.create(None, tokenizer=other, vocab_size=4).profile.unmarked_ids == (0,)
    assert Registry.create(None, tokenizer=other, unmarked_ids=[3]).profile.unmarked_ids == (3,)
    assert Registry.create(None, vocab_size=9, unmarked_ids=[8, 2]).profile.unmarked_ids == (2, 8)


def test_the_tokenizer_is_found_again(
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
    with pytest.raises(TokenizerMismatch, match="not there"):
        registry.open_tokenizer()
    assert registry.open_tokenizer(source="moved.json").vocab_size == 5
    with pytest.raises(TokenizerMismatch, match="expects"):
        registry.open_tokenizer(source=tokenizers.Tokenizer(tokenizers.models.BPE()))


def test_without_a_tokenizer_there_is_none_to_open(team: Registry) -> None:
    with pytest.raises(TokenizerMismatch, match="token ids only"):
        team.open_tokenizer()


# Export and merge


def test_export_holds_no_other_secret(team: Registry, tmp_path: pathlib.Path) -> None:
    team.rotate("planner", secret=secret(10))
    team.add("stranger", profile=team.add_profile(vocab_size=2 * V), secret=secret(3))
    exported = team.export(tmp_path / "planner.json", agents=["planner"])
    data = (tmp_path / "planner.json").read_bytes()
    assert secret(10).hex().encode() in data
    for other in (0, 1, 2, 3):
        assert secret(other) not in data
        for spelling in spellings(secret(other)):
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


def test_export_takes_the_given_order_and_all_epochs(team: Registry) -> None:
    team.rotate("critic", secret=secret(10))
    exported = team.export(None, agents=["writer", "critic"], all_epochs=True)
    assert exported.names() == ("writer", "critic")
    assert exported.scoring_keys().epochs.tolist() == [0, 0, 1]
    assert exported.path is None


def test_export_refuses(team: Registry, path: pathlib.Path) -> None:
    with pytest.raises(RegistryError, match="it exists"):
        team.export(path, agents=["planner"])
    refused: list[Any] = ["planner", [], None, {"planner"}]
    for agents in refused:
        with pytest.raises(InputError, match="expected a list with at least one name"):
            team.export(None, agents=agents)
    assert Registry.load(path).digest == team.digest


def test_merge_joins_agents_and_epochs(team: Registry, path: pathlib.Path) -> None:
    host = team.export(None, agents=["planner"])
    host.rotate("planner", secret=secret(20))
    other = Registry.create(None, vocab_size=2 * V)
    other.add("reader", secret=secret(21))
    host.merge(other)
    team.merge(host)
    team.merge(host)
    read = Registry.load(path)
    assert [key.epoch for key in read.keys("planner")] == [0, 1]
    assert read.profile_of("reader").vocab_size == 2 * V
    assert read.digest == team.digest
    back = Registry()
    back.merge(team)
    assert back.digest == team.digest


def test_merge_puts_epochs_in_order(team: Registry) -> None:
    backup = Registry.loads(team.dumps())
    team.rotate("planner", secret=secret(20))
    backup.merge(team.export(None, agents=["planner"]))
    assert [key.secret for key in backup.keys("planner")] == [secret(0), secret(20)]
    assert backup.marking_keys().epochs.tolist() == [1, 0, 0]
    assert backup.digest == team.digest


def test_merge_refuses_conflicts_and_changes_nothing(team: Registry, path: pathlib.Path) -> None:
    before, digest = path.read_bytes(), team.digest
    other_key = Registry.create(None, vocab_size=V)
    other_key.add("new")
    other_key.add("critic")
    other_profile = Registry.create(None, vocab_size=2 * V)
    other_profile.add("critic", secret=secret(1))
    other_name = Registry.create(None, vocab_size=V)
    other_name.add("renamed", secret=secret(1))
    for other, message in (
        (other_key, "another secret in epoch 0"),
        (other_profile, "has profile"),
        (other_name, "has the secret of agent 'critic'"),
    ):
        with pytest.raises(RegistryError, match=message):
            team.merge(other)
    with pytest.raises(InputError, match="other: got dict"):
        team.merge({})  # type: ignore[arg-type]
    assert path.read_bytes() == before
    assert team.digest == digest


# Loading what is not right


def damaged(path: pathlib.Path) -> Iterator[tuple[bytes, str]]:
    """Contents that are no registry, each with what the refusal says."""
    data = path.read_bytes()
    content = json.loads(data)
    yield b"", "not JSON"
    yield data[: len(data) // 2], "not JSON from line"
    yield data[:-4], "not JSON from line"
    yield b"\xff\xfe" + data, "not UTF-8"
    yield data.decode().encode("utf-16"), "not UTF-8"
    yield b"[" * 100_000, "JSON"
    yield b"[]", "no registry file"
    yield b'"iet.registry/1"', "no registry file"
    yield json.dumps({**content, "format": "hunter2"}).encode(), 'its field "format" is not'
    yield json.dumps({**content, "format": "iet.registry/7"}).encode(), "format iet.registry/7, but"
    yield data.replace(b"critic", b"cricket"), "checksum"
    yield data.replace(secret(1).hex().encode(), secret(5).hex().encode()), "checksum"
    yield json.dumps({**content, "checksum": None}).encode(), "checksum"
    yield json.dumps({**content, "note": "\ud800"}).encode(), "checksum"


def test_damaged_files_are_refused(team: Registry, path: pathlib.Path) -> None:
    for data, message in damaged(path):
        path.write_bytes(data)
        with pytest.raises(RegistryError, match=message) as caught:
            Registry.load(path)
        assert str(path) in str(caught.value)
        assert "hunter2" not in str(caught.value)
        with pytest.raises(RegistryError, match=message):
            Registry.loads(data)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("agents"),
        lambda content: content.update(agents=[]),
        lambda content: content.update(profiles="x"),
        lambda content: content["agents"]["critic"].update(keys=[]),
        lambda content: content["agents"]["critic"].update(profile="x"),
        lambda content: content["agents"]["critic"].update(profile=[]),
        lambda content: content["agents"]["critic"]["keys"].append(content["agents"]["critic"]["keys"][0]),
        lambda content: content["agents"]["critic"]["keys"][0].update(epoch=-1),
        lambda content: content["agents"]["critic"]["keys"][0].update(epoch=True),
        lambda content: content["agents"]["critic"]["keys"][0].update(epoch=1 << 31),
        lambda content: content["agents"]["critic"]["keys"][0].update(secret="00"),
        lambda content: content["agents"]["critic"]["keys"][0].update(secret="z" * 64),
        lambda content: content["agents"]["critic"]["keys"][0].update(secret=3),
        lambda content: content["agents"]["critic"]["keys"][0].update(created="yesterday"),
        lambda content: content["agents"].update({"a\nb": content["agents"].pop("critic")}),
        lambda content: next(iter(content["profiles"].values())).pop("vocab_size"),
        lambda content: next(iter(content["profiles"].values())).update(vocab_size=-1),
        lambda content: next(iter(content["profiles"].values())).update(extra=1),
    ],
)
def test_wrong_structure_is_refused(
    team: Registry, path: pathlib.Path, change: Callable[[dict[str, Any]], object]
) -> None:
    rewrite(path, change)
    with pytest.raises(RegistryError, match="are not as a registry file has them"):
        Registry.load(path)


def test_a_shared_secret_in_a_file_is_refused(team: Registry, path: pathlib.Path) -> None:
    rewrite(path, lambda content: content["agents"].update(twin=content["agents"]["critic"]))
    with pytest.raises(RegistryError, match="could not be told apart"):
        Registry.load(path)


def test_a_profile_that_would_mark_differently_is_refused(team: Registry, path: pathlib.Path) -> None:
    rewrite(path, lambda content: next(iter(content["profiles"].values())).update(vocab_size=V + 1))
    with pytest.raises(SchemeMismatch, match="by a release that marks differently"):
        Registry.load(path)
    rewrite(path, lambda content: next(iter(content["profiles"].values()))["scheme"].update(version=9))
    with pytest.raises(SchemeMismatch, match="scheme version 9"):
        Registry.load(path)


def test_missing_files_and_folders_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(RegistryError, match="cannot be read"):
        Registry.load(tmp_path / "nothing.json")
    with pytest.raises(RegistryError, match="not a file"):
        Registry.load(tmp_path)
    with pytest.raises(RegistryError, match="cannot be written"):
        Registry.create(tmp_path / "no" / "folder.json", vocab_size=V)
    with pytest.raises(RegistryError, match="cannot be written"):
        Registry.create(tmp_path, vocab_size=V, overwrite=True)
    with pytest.raises(InputError, match="data: got NoneType"):
        Registry.loads(None)  # type: ignore[arg-type]


@posix
def test_a_pipe_is_refused_at_once(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RegistryError, match="not a file"):
        Registry.load(tmp_path / "pipe")


def test_the_environment_names_the_default(
    team: Registry, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IET_REGISTRY", str(path))
    assert Registry.load().digest == team.digest
    for value in ("", None):
        monkeypatch.delenv("IET_REGISTRY") if value is None else monkeypatch.setenv("IET_REGISTRY", value)
        with pytest.raises(RegistryError, match=r"set IET_REGISTRY, as in: export IET_REGISTRY=team\.json"):
            Registry.load()


# File modes


@posix
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o606, 0o610, 0o777])
def test_loose_modes_are_refused_with_the_command_that_mends_them(
    team: Registry, path: pathlib.Path, mode: int
) -> None:
    path.chmod(mode)
    with pytest.raises(RegistryError) as caught:
        Registry.load(path)
    assert f"mode {mode:04o}, expected 0600; run: chmod 600 {path}" in str(caught.value)
    path.chmod(0o600)
    Registry.load(path)
    path.chmod(0o400)
    Registry.load(path)


@posix
def test_the_command_quotes_the_path(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "my team.json"
    Registry.create(path, vocab_size=V)
    path.chmod(0o644)
    with pytest.raises(RegistryError, match=f"chmod 600 '{path}'"):
        Registry.load(path)


@posix
def test_a_secret_mount_is_read_only(team: Registry, path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path.chmod(0o644)
    with pytest.raises(RegistryError, match="this process can write it"):
        Registry.load(path, secret_mount=True)
    path.chmod(0o444)
    mount = tmp_path / "mounted"
    mount.symlink_to(path)
    mounted = Registry.load(mount, secret_mount=True)
    assert mounted.digest == team.digest
    for change in (
        lambda: mounted.add("reader"),
        lambda: mounted.rotate("critic"),
        lambda: mounted.save(),
        lambda: mounted.add_profile(vocab_size=2 * V),
        lambda: mounted.merge(team),
    ):
        with pytest.raises(RegistryError, match="read-only"):
            change()
    assert mounted.digest == team.digest
    assert copy.deepcopy(pickle.loads(pickle.dumps(mounted))).digest == team.digest
    mounted.save(tmp_path / "own.json")
    mounted.add("reader")
    assert stat.S_IMODE((tmp_path / "own.json").stat().st_mode) == 0o600


# Saving


@pytest.mark.parametrize("broken", ["replace", "fsync", "open"])
def test_a_failed_save_changes_nothing(
    team: Registry, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    before, digest = path.read_bytes(), team.digest

    def fail(*arguments: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(f"iet.marks.files.os.{broken}", fail)
        with pytest.raises(RegistryError, match=r"cannot be written \(No space left on device\)"):
            team.add("reader")
        with pytest.raises(RegistryError, match="cannot be written"):
            team.rotate("critic")
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]
    assert team.digest == digest
    assert team.marking_keys().epochs.tolist() == [0, 0, 0]
    team.add("reader")
    assert Registry.load(path).digest == team.digest


def test_an_interrupted_save_changes_nothing(
    team: Registry, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("iet.marks.files.os.replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            team.add("reader")
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]
    assert "reader" not in team


def test_no_update_is_lost(team: Registry, path: pathlib.Path) -> None:
    second = Registry.load(path)
    second.add("reader")
    with pytest.raises(RegistryError, match="changed on disk since it was loaded; load it again"):
        team.add("editor")
    with pytest.raises(RegistryError, match="changed on disk"):
        team.save()
    assert "editor" not in team
    assert "reader" in Registry.load(path)
    path.unlink()
    with pytest.raises(RegistryError, match="gone from the disk"):
        second.add("editor")


def test_writers_at_once_lose_nothing(team: Registry, path: pathlib.Path) -> None:
    def add(number: int) -> None:
        for _ in range(1000):
            with contextlib.suppress(RegistryError):  # changed on disk: load it again
                Registry.load(path).add(f"agent {number}")
                return

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Registry.load(path)) == 11
    assert os.listdir(path.parent) == [path.name]


def test_a_registry_in_memory_can_be_saved_later(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    registry = Registry.create(None, vocab_size=V)
    registry.add("planner")
    with pytest.raises(RegistryError, match="in memory only"):
        registry.save()
    registry.save(path)
    registry.add("critic")
    registry.save(path)
    assert Registry.load(path).digest == registry.digest
    registry.save(tmp_path / "copy.json")
    registry.add("writer")
    assert registry.path == tmp_path / "copy.json"
    assert len(Registry.load(path)) == 2
    with pytest.raises(RegistryError, match="it exists"):
        registry.save(path)


@posix
def test_saving_goes_through_links(team: Registry, path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "links"
    folder.mkdir()
    (folder / "link.json").symlink_to(path)
    Registry.load(folder / "link.json").add("reader")
    assert (folder / "link.json").is_symlink()
    assert "reader" in Registry.load(path)


# Digest


def test_the_digest_commits_to_secrets_names_and_epochs() -> None:
    def build(*agents: tuple[str, int], rotate: int | None = None) -> str:
        registry = Registry.create(None, vocab_size=V)
        for name, number in agents:
            registry.add(name, secret=secret(number))
        if rotate is not None:
            registry.rotate(agents[0][0], secret=secret(rotate))
        return registry.digest

    same = build(("a", 0), ("b", 1))
    assert same == build(("a", 0), ("b", 1)) == build(("b", 1), ("a", 0))
    others = [
        build(("a", 1), ("b", 0)),
        build(("a", 0)),
        build(("a", 0), ("b", 1), rotate=2),
        build(("a", 0), ("c", 1)),
    ]
    assert len({same, *others}) == 5


# Secrets stay where they are


def shown(value: object) -> list[str]:
    """The ways in which an object ends up in a log."""
    return [repr(value), str(value), f"{value}", f"{value!r:>9}", ascii(value)]


def test_no_repr_shows_a_secret(team: Registry, caplog: pytest.LogCaptureFixture) -> None:
    key = team.keys("critic")[0]
    texts = [text for value in (team, key, [key], key.secret, {"k": key.secret}) for text in shown(value)]
    for table in (team.marking_keys(), team.scoring_keys()):
        texts += shown(table)
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("test").warning("%s %r %s", team, key, key.secret)
    for text in [*texts, caplog.text]:
        for value in (secret(0), secret(1), secret(2), derive_subkey(secret(1))):
            for spelling in spellings(value):
                assert spelling not in text
    assert "critic" in repr(team)
    assert "critic" in repr(team.marking_keys())
    assert key.secret == secret(1)
    assert (
        key == AgentKey("critic", 0, key.created, secret(1)) != AgentKey("critic", 0, key.created, secret(2))
    )
    assert [field.name for field in dataclasses.fields(KeyTable) if field.repr] == [
        "names",
        "epochs",
    ]


def test_no_error_shows_a_secret(team: Registry, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Registry.create(None, vocab_size=V)
    other.add("critic", secret=secret(4))
    damages = list(damaged(path))

    def fail(*arguments: object, **more: object) -> None:
        raise OSError(5, "Input/output error")

    def failed_save() -> None:
        with monkeypatch.context() as patch:
            patch.setattr("iet.marks.files.os.replace", fail)
            team.rotate("writer")

    def load(data: bytes) -> Registry:
        (path.parent / "damaged.json").write_bytes(data)
        (path.parent / "damaged.json").chmod(0o600)
        return Registry.load(path.parent / "damaged.json")

    calls: list[Callable[[], object]] = [
        failed_save,
        lambda: team.merge(other),
        lambda: team.add("critic"),
        lambda: team.export(path, agents=["critic"]),
        lambda: team.slot("nobody"),
        lambda: pickle.dumps(other),
        lambda: pickle.dumps(team.keys("critic")),
        *(lambda data=data: load(data) for data, _ in damages),
    ]
    for call in calls:
        with pytest.raises(IetError) as caught:
            call()
        error: BaseException | None = caught.value
        # Local variables too, as error trackers send them; the first frames are this test's.
        lines = traceback.format_exception(error)
        while error is not None:
            library = [
                frame.tb_frame.f_locals
                for frame in iterate(error.__traceback__)
                if frame.tb_frame.f_code.co_filename != __file__
            ]
            lines += [repr(variables) for variables in library] + [repr(vars(error))]
            error = error.__cause__ or error.__context__
        text = "".join(lines)
        for number in (0, 1, 2, 4, 5):
            for spelling in spellings(secret(number)):
                assert spelling not in text


def iterate(frame: Any) -> Iterator[Any]:
    """The frames of a traceback."""
    while frame is not None:
        yield frame
        frame = frame.tb_next


def test_copies_are_the_registry_itself(team: Registry) -> None:
    assert copy.deepcopy(team) is team
    assert copy.copy(team) is team
    assert copy.deepcopy({"registry": team})["registry"] is team
    assert copy.deepcopy(team.keys("critic")) == team.keys("critic")


def test_a_pickle_holds_a_path_and_no_secret(team: Registry) -> None:
    data = pickle.dumps(team)
    assert pickle.loads(data).digest == team.digest
    for number in range(3):
        assert secret(number) not in data
        assert secret(number).hex().encode() not in data
    in_memory = Registry.loads(team.dumps())
    for value in (in_memory, team.keys("critic")[0], team.keys("critic")[0].secret):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            with pytest.raises(RegistryError, match="not pickled"):
                pickle.dumps(value, protocol)


def test_json_refuses_secrets(team: Registry) -> None:
    for value in (team, dataclasses.asdict(team.keys("critic")[0])):
        with pytest.raises(TypeError):
            json.dumps(value)


def test_many_agents_are_quick(path: pathlib.Path) -> None:
    registry = Registry.create(None, vocab_size=128256)
    for number in range(300):
        registry.add(f"agent {number}")
    registry.save(path)
    read = Registry.load(path)
    assert read.scoring_keys().subkeys.shape == (300, 16)
    assert "and 280 more" in repr(read)


def test_a_tokenizer_object_serves_the_process_that_made_the_profile(path: pathlib.Path) -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, []))
    registry = Registry.create(path, tokenizer=backend)
    assert registry.open_tokenizer().digest == registry.profile.tokenizer_digest
    with pytest.raises(TokenizerMismatch, match="does not say where"):
        Registry.load(path).open_tokenizer()


def test_a_key_table_is_copied_but_never_pickled(path: pathlib.Path) -> None:
    registry = Registry.create(path, vocab_size=100)
    registry.add("planner")
    for keys in (registry.marking_keys(), registry.scoring_keys()):
        assert copy.deepcopy(keys) is keys
        with pytest.raises(RegistryError, match="not pickled"):
            pickle.dumps(keys)
