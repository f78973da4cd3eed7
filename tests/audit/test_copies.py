"""Repeated passages are evidence only once, and do not absorb unmarked text between them."""

from __future__ import annotations

import numpy as np

import iet
from tests.support.teams import WORDS, team
from tests.support.texts import reader, write


def drawn(seed: int, tokens: int) -> list[int]:
    return np.random.default_rng(seed).integers(1, WORDS, tokens).tolist()


def test_copies_change_no_p_value() -> None:
    passage, remainder = drawn(0, 300), drawn(1, 200)
    low = 0
    for number in range(150):
        registry = team(numbered=number % 200)
        few, many = (
            reader(registry).audit(token_ids=[*remainder, *passage * copies, *remainder]) for copies in (2, 8)
        )
        assert few.evidence == many.evidence
        low += many.log_p <= np.log(0.05)
    assert low <= 17  # of 150 at 0.05: once in a thousand times more


def test_every_copy_of_a_turn_is_attributed_to_its_agent() -> None:
    registry = team()
    turn = write(registry, [("planner", 200)], 1)
    parts = [turn, drawn(3, 300), turn, write(registry, [("critic", 250)], 2), turn]
    report = iet.Auditor(registry).audit(token_ids=np.concatenate(parts))
    at = 0
    for part in parts:
        if part is turn:
            named = report.token_agents[at : at + len(part)]
            assert (named == report.agents.index("planner")).mean() > 0.9
        at += len(part)
    assert {segment.agent for segment in report.segments} == {"planner", "critic", None}
