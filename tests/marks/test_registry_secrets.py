"""Secrets stay in the registry: no log, error, copy, pickle or JSON shows one."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import logging
import pathlib
import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from iet.errors import IetError, RegistryError
from iet.marks.derivation import derive_subkey
from iet.marks.keys import AgentKey, KeyTable
from iet.marks.registry import Registry
from iet.marks.registry_file import dump
from iet.marks.registry_state import Agent, RegistryState
from tests.support import teams
from tests.support.registries import V, damaged, spellings
from tests.support.teams import secret


def spelled_out(value: object) -> list[str]:
    """Formatted forms of an object that a log may contain."""
    return [repr(value), str(value), f"{value}", f"{value!r:>9}", ascii(value)]


def test_reprs_and_logs_contain_no_secret(team: Registry, logged: io.StringIO) -> None:
    key = team.keys("critic")[0]
    texts = [
        text for value in (team, key, [key], key.secret, {"k": key.secret}) for text in spelled_out(value)
    ]
    for table in (team.marking_keys(), team.scoring_keys()):
        texts += spelled_out(table)
    logging.getLogger().setLevel(logging.DEBUG)
    logging.getLogger("test").warning("%s %r %s", team, key, key.secret)
    assert "critic" in logged.getvalue()
    for text in [*texts, logged.getvalue()]:
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


def test_errors_contain_no_secret(
    team: Registry, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = teams.team({"critic": 4}, vocab_size=V)
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
        lambda: team.merge(second),
        lambda: team.add("critic"),
        lambda: team.export(path, agents=["critic"]),
        lambda: team.slot("nobody"),
        lambda: pickle.dumps(second),
        lambda: dump(RegistryState(team.profiles, {"\ud800": Agent(team.profile.id, team.keys("critic"))})),
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


def test_copy_returns_the_registry_itself(team: Registry) -> None:
    assert copy.deepcopy(team) is team
    assert copy.copy(team) is team
    assert copy.deepcopy({"registry": team})["registry"] is team
    assert copy.deepcopy(team.keys("critic")) == team.keys("critic")


def test_pickle_contains_a_path_and_no_secret(team: Registry) -> None:
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


def test_json_rejects_secrets(team: Registry) -> None:
    for value in (team, dataclasses.asdict(team.keys("critic")[0])):
        with pytest.raises(TypeError):
            json.dumps(value)


def test_key_tables_are_copied_but_not_pickled(path: pathlib.Path) -> None:
    registry = Registry.create(path, vocab_size=100)
    registry.add("planner")
    for keys in (registry.marking_keys(), registry.scoring_keys()):
        assert copy.deepcopy(keys) is keys
        with pytest.raises(RegistryError, match="not pickled"):
            pickle.dumps(keys)
