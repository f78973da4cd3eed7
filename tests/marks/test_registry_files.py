"""Registry files: private, written whole or not at all, and refused if they are damaged."""

from __future__ import annotations

import copy
import os
import pathlib
import pickle
import stat
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from iet.errors import InputError, RegistryError, SchemeMismatch
from iet.marks.registry import Registry
from tests.support import teams
from tests.support.conditions import posix
from tests.support.registries import V, damaged, rewrite


@posix
def test_file_is_private_for_any_umask(path: pathlib.Path) -> None:
    umask = os.umask(0)
    try:
        Registry.create(path, vocab_size=V).add("planner")
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_create_rejects_an_existing_file(team: Registry, path: pathlib.Path) -> None:
    data_before = path.read_bytes()
    with pytest.raises(RegistryError, match="it exists, and its keys would be lost"):
        Registry.create(path, vocab_size=V)
    assert path.read_bytes() == data_before
    assert len(Registry.create(path, vocab_size=V, overwrite=True)) == 0


def test_rejects_damaged_files(team: Registry, path: pathlib.Path) -> None:
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
def test_rejects_wrong_structure(
    team: Registry, path: pathlib.Path, change: Callable[[dict[str, Any]], object]
) -> None:
    rewrite(path, change)
    with pytest.raises(RegistryError, match="are not as a registry file has them"):
        Registry.load(path)


def test_rejects_a_shared_secret(team: Registry, path: pathlib.Path) -> None:
    rewrite(path, lambda content: content["agents"].update(twin=content["agents"]["critic"]))
    with pytest.raises(RegistryError, match="could not be told apart"):
        Registry.load(path)


def test_rejects_a_profile_of_another_release(team: Registry, path: pathlib.Path) -> None:
    rewrite(path, lambda content: next(iter(content["profiles"].values())).update(vocab_size=V + 1))
    with pytest.raises(SchemeMismatch, match="by a release that marks differently"):
        Registry.load(path)
    rewrite(path, lambda content: next(iter(content["profiles"].values()))["scheme"].update(version=9))
    with pytest.raises(SchemeMismatch, match="scheme version 9"):
        Registry.load(path)


def test_rejects_missing_files_folders_and_pipes(tmp_path: pathlib.Path) -> None:
    refused = [(tmp_path / "nothing.json", "cannot be read"), (tmp_path, "not a file")]
    if os.name == "posix":
        os.mkfifo(tmp_path / "pipe")
        refused.append((tmp_path / "pipe", "not a file"))
    for path, message in refused:
        with pytest.raises(RegistryError, match=message):
            Registry.load(path)
    for path, overwrite in ((tmp_path / "no" / "folder.json", False), (tmp_path, True)):
        with pytest.raises(RegistryError, match="cannot be written"):
            Registry.create(path, vocab_size=V, overwrite=overwrite)
    with pytest.raises(InputError, match="data: got NoneType"):
        Registry.loads(None)  # type: ignore[arg-type]


def test_default_path_comes_from_the_environment(
    team: Registry, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IET_REGISTRY", str(path))
    assert Registry.load().digest == team.digest
    for value in ("", None):
        monkeypatch.delenv("IET_REGISTRY") if value is None else monkeypatch.setenv("IET_REGISTRY", value)
        with pytest.raises(RegistryError, match=r"set IET_REGISTRY, as in: export IET_REGISTRY=team\.json"):
            Registry.load()


@posix
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o606, 0o610, 0o777])
def test_rejects_loose_modes_and_prints_chmod(team: Registry, path: pathlib.Path, mode: int) -> None:
    path = path.rename(path.with_name("my team.json"))
    path.chmod(mode)
    with pytest.raises(RegistryError) as caught:
        Registry.load(path)
    assert f"mode {mode:04o}, expected 0600; run: chmod 600 '{path}'" in str(caught.value)
    path.chmod(0o600)
    Registry.load(path)
    path.chmod(0o400)
    Registry.load(path)


@posix
def test_secret_mount_is_read_only(team: Registry, path: pathlib.Path, tmp_path: pathlib.Path) -> None:
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


FULL = OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("broken", "raised", "expected", "message"),
    [
        *(
            (name, FULL, RegistryError, r"cannot be written \(No space")
            for name in ("replace", "fsync", "open")
        ),
        ("replace", KeyboardInterrupt(), KeyboardInterrupt, "^$"),
    ],
)
def test_failed_or_interrupted_save_changes_nothing(
    team: Registry,
    path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    broken: str,
    raised: BaseException,
    expected: type[BaseException],
    message: str,
) -> None:
    data_before, digest = path.read_bytes(), team.digest
    with monkeypatch.context() as patch:
        patch.setattr(f"iet.marks.files.os.{broken}", Mock(side_effect=raised))
        for change in (lambda: team.add("reader"), lambda: team.rotate("critic")):
            with pytest.raises(expected, match=message):
                change()
    assert path.read_bytes() == data_before
    assert os.listdir(path.parent) == [path.name]
    assert team.digest == digest
    assert "reader" not in team
    assert team.marking_keys().epochs.tolist() == [0, 0, 0]
    team.add("reader")
    assert Registry.load(path).digest == team.digest


def test_rejects_saving_over_a_newer_file(team: Registry, path: pathlib.Path) -> None:
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


def test_in_memory_registry_can_be_saved(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
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
def test_saving_follows_links(team: Registry, path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "links"
    folder.mkdir()
    (folder / "link.json").symlink_to(path)
    Registry.load(folder / "link.json").add("reader")
    assert (folder / "link.json").is_symlink()
    assert "reader" in Registry.load(path)


def test_rejects_any_changed_bit() -> None:
    registry = Registry.create(None, vocab_size=V, unmarked_ids=[3])
    registry.add("équipe")
    data = registry.dumps().encode()
    same = 0
    for index in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[index] ^= 1 << bit
            try:
                read = Registry.loads(bytes(changed))
            except (RegistryError, SchemeMismatch):
                continue
            assert read.dumps().encode() == data
            same += 1
    assert same <= data.count(b" ") + data.count(b"\n")  # white space for white space


@posix
def test_folder_name_may_not_be_utf8(tmp_path: pathlib.Path) -> None:
    plain, folder = tmp_path / "plain", tmp_path / os.fsdecode(b"caf\xe9")
    plain.mkdir()
    teams.word_tokenizer().save(str(plain / "tokenizer.json"))
    Registry.create(plain / "team.json", tokenizer=plain / "tokenizer.json").add("planner")
    plain.rename(folder)
    registry = Registry.load(folder / "team.json")
    registry.add("critic")
    beside = registry.export(folder / "host.json", ["planner"])
    assert Registry.load(folder / "host.json").profile.tokenizer_source == "tokenizer.json"
    # In another folder a file cannot store the tokenizer's path.
    away = registry.export(tmp_path / "away.json", ["planner"])
    read = Registry.load(tmp_path / "away.json")
    assert read.digest == away.digest == beside.digest
    assert read.profile.tokenizer_source is None
    assert Registry.loads(registry.export(None, ["planner"]).dumps()).digest == beside.digest
