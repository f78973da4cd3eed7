"""Short repeated passages: a copy's posterior is capped by that of its first occurrence."""

from __future__ import annotations

import numpy as np
import pytest

import iet
from iet.native.pairs import GRAM, SHORTEST, first_occurrences
from tests.support.teams import team
from tests.support.texts import write

DRAW = np.random.default_rng(0)
WEAK = team(kappa=0.4)
PASSAGE = DRAW.integers(1000, 2000, 30)


def fillers(tokens: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return DRAW.permutation(1000)[:tokens]


def test_every_token_of_a_copy_maps_to_its_first_occurrence() -> None:
    head, between, after = fillers(50), fillers(40) + 2000, fillers(30) + 4000
    positions = first_occurrences(np.concatenate([head, PASSAGE, between, PASSAGE, after, PASSAGE[5:25]]))
    assert positions is not None
    expected = np.arange(len(positions))
    expected[120:150] -= 70
    expected[180:200] = np.arange(55, 75)
    np.testing.assert_array_equal(positions, expected)


def test_a_copied_prefix_maps_to_its_first_occurrence() -> None:
    # The first occurrence of the last passage also begins with three copied tokens.
    first, between, new, after = fillers(40), fillers(30) + 2000, fillers(30) + 4000, fillers(20) + 6000
    positions = first_occurrences(
        np.concatenate([first, between, first[10:30], new, after, first[27:30], new[:20]])
    )
    assert positions is not None
    assert positions[87:90].tolist() == [27, 28, 29]
    assert positions[140:163].tolist() == [27, 28, 29, *range(90, 110)]


def test_short_passages_and_loops_are_no_copies() -> None:
    assert first_occurrences(np.zeros(0, np.int64)) is None
    assert first_occurrences(np.arange(100)) is None
    assert (
        first_occurrences(np.concatenate([PASSAGE[: SHORTEST - 1], fillers(40), PASSAGE[: SHORTEST - 1]]))
        is None
    )
    looped = first_occurrences(np.concatenate([fillers(40), np.tile(PASSAGE[:GRAM], 30)]))
    assert looped is None or (looped == np.arange(len(looped))).all()


@pytest.fixture(scope="module")
def quoting() -> list[int]:
    """The critic's 600 tokens, and the planner's 1,000 around 20 of them."""
    critics, planners = write(WEAK, [("critic", 600)], 1), write(WEAK, [("planner", 1000)], 2)
    return [*critics, *planners[:500], *critics[200:220], *planners[500:]]


def test_quoted_words_are_not_attributed_to_the_quoting_agent(quoting: list[int]) -> None:
    report = iet.Auditor(WEAK, level=0.05, attributed="tokens").audit(token_ids=quoting)
    planner, inside = report.agents.index("planner"), slice(1101, 1121)
    assert report.posterior is not None
    assert (report.posterior[inside, planner] > 0.98).all()  # by the words around them
    assert not (report.token_agents[inside] == planner).any()
    assert (report.token_agents[650:1050] == planner).mean() > 0.9


def test_quoted_words_do_not_count_in_the_quoting_agents_share(quoting: list[int]) -> None:
    report = iet.Auditor(WEAK).audit(token_ids=quoting)
    (segment,) = [segment for segment in report.segments if segment.agent == "planner"]
    assert segment.start <= 1101 < 1121 <= segment.end
    assert segment.share is not None
    assert segment.share_interval is not None
    low, high = segment.share_interval
    assert low <= 1000 / (segment.end - segment.start) <= high
    assert segment.share <= 1 - 19 / (segment.end - segment.start)


def test_an_agents_own_words_stay_attributed() -> None:
    registry = team()
    turn = write(registry, [("planner", 300)], 1)
    ids = np.concatenate([turn, write(registry, [("critic", 150)], 2), turn[100:140], turn[240:]])
    report = iet.Auditor(registry, attributed="tokens").audit(token_ids=ids)
    named = report.token_agents == report.agents.index("planner")
    assert named[:300].mean() > 0.9
    assert named[460:490].all()
