"""Agent logs for the benchmarks of speed."""

from __future__ import annotations

import json
import pathlib

import pytest


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder for --data: one log, of 3,200 tokens that four of the benchmarks' agents marked."""
    from benchmarks.speed.texts import AGENTS, team
    from tests.support.bulk_documents import marked_text

    turns = [(agent, 400) for agent in AGENTS[:4] * 2]
    folder = tmp_path_factory.mktemp("data")
    log = folder / "who_and_when" / "Hand-Crafted" / "1.json"
    log.parent.mkdir(parents=True)
    log.write_text(json.dumps({"history": [{"content": marked_text(team(), turns, 1)}]}))
    return folder
