"""The registry that most of these tests are about."""

from __future__ import annotations

import pathlib

import pytest

from iet.marks.registry import Registry
from tests.support.registries import V, secret


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "team.json"


@pytest.fixture
def team(path: pathlib.Path) -> Registry:
    registry = Registry.create(path, vocab_size=V)
    for number, name in enumerate(["planner", "critic", "writer"]):
        registry.add(name, secret=secret(number))
    return registry
