"""The registry that most of these tests are about."""

from __future__ import annotations

import pathlib

import pytest

from iet.marks.registry import Registry
from tests.support import teams
from tests.support.registries import V


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "team.json"


@pytest.fixture
def team(path: pathlib.Path) -> Registry:
    return teams.team({"planner": 0, "critic": 1, "writer": 2}, path, vocab_size=V)
