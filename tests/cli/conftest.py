"""A team of two agents in files, and a text of one of them."""

from __future__ import annotations

import pathlib

import pytest

from iet.marks.registry import Registry
from tests.support import teams
from tests.support.commands import RunIet, run
from tests.support.texts import spell, write

WORDS = 400


@pytest.fixture
def tokenizer(tmp_path: pathlib.Path) -> pathlib.Path:
    teams.word_tokenizer(WORDS).save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


@pytest.fixture
def team(tmp_path: pathlib.Path, tokenizer: pathlib.Path) -> pathlib.Path:
    teams.team(("planner", "critic"), tmp_path / "team.json", tokenizer=tokenizer, kappa=3.0)
    return tmp_path / "team.json"


def written(team: pathlib.Path, agent: str | None, path: pathlib.Path) -> pathlib.Path:
    """Write 150 words as a model without preferences samples them under an agent's mark."""
    ids = write(Registry.load(team), [(agent, 150)], ids=range(1, WORDS), flat=True)
    path.write_text(spell(ids))
    return path


@pytest.fixture
def text(team: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    return written(team, "critic", tmp_path / "final.txt")


@pytest.fixture
def unmarked(team: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    return written(team, None, tmp_path / "unmarked.txt")


@pytest.fixture
def run_iet(capsys: pytest.CaptureFixture[str]) -> RunIet:
    """Return a function that runs a command, `run_iet(exit_code, *arguments)`, and checks its exit code.

    The function returns stdout, or stderr if the exit code is 2 or 3.
    """

    def of(code: int, *arguments: object) -> str:
        capsys.readouterr()
        assert run(*arguments) == code, arguments
        output = capsys.readouterr()
        return output.out if code < 2 else output.err

    return of
