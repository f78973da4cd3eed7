"""O and Rec: corruption of logs, and that the true ĝ restores them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.paper.failure.restoration import (
    CORRUPTIONS,
    Identity,
    Named,
    corrupt_boundaries,
    ideal_judge,
    ideal_step,
    identities,
    majority,
    nearest,
    remove_ids,
    restore_boundaries,
    restore_names,
    token_figures,
)
from benchmarks.paper.failure.trajectories import JOINER, SUBSETS, Restored, Trajectory, agent_of
from iet.demo.conversation import MODEL
from iet.marks.tokenizer import Tokenizer
from tests.support.failure_logs import trajectory

NAMES = {
    "Algorithm-Generated": ("A", "B-C_Expert", "Computer_terminal"),
    "Hand-Crafted": ("human", "Orchestrator (thought)", "Orchestrator (-> WebSurfer)", "WebSurfer"),
}


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    subset = draw(st.sampled_from(SUBSETS))
    turns = draw(
        st.lists(
            st.tuples(st.sampled_from(NAMES[subset]), st.text("ab \n", max_size=8)), min_size=1, max_size=8
        )
    )
    return trajectory(turns, subset=subset, number=draw(st.integers(1, 126)))


def names_and_contents(log: Trajectory) -> list[tuple[str, str]]:
    return [(turn.name, turn.content) for turn in log.turns]


def true_turns(log: Trajectory) -> list[Named]:
    return [(*span, turn.name) for span, turn in zip(log.spans, log.turns, strict=True)]


def true_agents(log: Trajectory) -> list[Named]:
    """The true ĝ: the agent of every character; what joins two turns belongs to the later one."""
    labels = [
        agent_of(turn.name)
        for i, turn in enumerate(log.turns)
        for _ in range(len(turn.content) + (len(JOINER) if i else 0))
    ]
    runs = [(name, len(list(run))) for name, run in itertools.groupby(labels)]
    ends = list(itertools.accumulate(size for _, size in runs))
    return [(end - size, end, name) for (name, size), end in zip(runs, ends, strict=True)]


def merged(log: Trajectory) -> list[tuple[str, str]]:
    """Agent and content of each turn, with adjacent turns of an agent joined, without empty ones."""
    turns: list[tuple[str, str]] = []
    for turn in log.turns:
        name = agent_of(turn.name)
        if turns and turns[-1][0] == name:
            turns[-1] = name, turns[-1][1] + JOINER + turn.content
        else:
            turns.append((name, turn.content))
    return [(name, content) for name, content in turns if content]


# ---------------------------------------------------------------- O


def test_removing_ids_leaves_one_name_in_algorithm_generated_logs() -> None:
    log = trajectory([("A", "I am A."), ("Computer_terminal", "exitcode: 0"), ("", "Hello"), ("B", "Fine.")])
    bare = remove_ids(log)
    assert [(turn.name, turn.human) for turn in bare.turns] == [
        ("Agent", False),
        ("Agent", False),
        ("", True),
        ("Agent", False),
    ]
    assert [turn.content for turn in bare.turns] == [turn.content for turn in log.turns]
    assert bare.system_prompts == ()


def test_removing_ids_keeps_human_turns_of_hand_crafted_logs() -> None:
    log = trajectory([("human", "Where?"), ("Orchestrator (thought)", "Hm."), ("WebSurfer", "There.")],
                     subset="Hand-Crafted")  # fmt: skip
    assert [(turn.name, turn.human) for turn in remove_ids(log).turns] == [
        ("human", True),
        ("assistant", False),
        ("assistant", False),
    ]


@given(trajectories())
def test_corrupted_boundaries_keep_names_and_text(log: Trajectory) -> None:
    cut = corrupt_boundaries(log)
    assert [(turn.name, turn.human) for turn in cut.turns] == [(turn.name, turn.human) for turn in log.turns]
    assert "".join(turn.content for turn in cut.turns) == log.text
    assert cut == corrupt_boundaries(log, seed=42)


def test_corrupted_boundaries_are_uniform_and_differ_by_seed_and_log() -> None:
    logs = [trajectory([("A", "x" * 500), ("B", "y" * 498)], number=number) for number in range(1, 201)]
    cuts = [len(corrupt_boundaries(log).turns[0].content) for log in logs]
    assert cuts != [len(corrupt_boundaries(log, seed=43).turns[0].content) for log in logs]
    # 200 even draws of 0 to 1000: five standard errors of the mean are 102.
    assert 398 < sum(cuts) / len(cuts) < 602
    assert min(cuts) < 100
    assert max(cuts) > 900


# ---------------------------------------------------------------- Rec


@given(trajectories())
@pytest.mark.parametrize("name", sorted(CORRUPTIONS))
def test_true_turns_restore_names_and_contents(name: str, log: Trajectory) -> None:
    corruption = CORRUPTIONS[name]
    restored = corruption.restore(corruption.corrupt(log), true_turns(log))
    assert names_and_contents(restored.trajectory) == names_and_contents(log)
    assert restored.spans == log.spans


@given(trajectories().filter(lambda log: log.turns[0].content))
def test_true_agents_restore_all_but_boundaries_within_one_agent(log: Trajectory) -> None:
    restored = restore_boundaries(corrupt_boundaries(log), true_agents(log))
    assert merged(restored.trajectory) == merged(log)
    for turn, (start, end) in zip(restored.trajectory.turns, restored.spans, strict=True):
        assert log.text[start:end] == turn.content


@given(trajectories())
def test_true_agents_name_every_turn_with_text(log: Trajectory) -> None:
    restored = restore_names(remove_ids(log), true_agents(log)).trajectory
    for turn, restored_turn in zip(log.turns, restored.turns, strict=True):
        if turn.content and not turn.human:
            assert restored_turn.name == agent_of(turn.name)


def test_unattributed_text_stays_unattributed() -> None:
    log = trajectory([("A", "aaaa"), ("B", "bb"), ("C", "cc")])
    attributed: list[Named] = [(0, 1, ""), (1, 6, "A"), (6, 12, "")]
    assert [turn.name for turn in restore_names(remove_ids(log), attributed).trajectory.turns] == [
        "A",
        "",
        "",
    ]
    restored = restore_boundaries(corrupt_boundaries(log), attributed)
    assert names_and_contents(restored.trajectory) == [("", "a"), ("A", "aaa\n\n"), ("", "bb\n\ncc")]


# ---------------------------------------------------------------- how good it is


def test_majority_of_characters_names_a_span_and_ties_take_the_first() -> None:
    attributed: list[Named] = [(0, 2, "A"), (2, 4, "B"), (4, 9, ""), (9, 10, "A")]
    assert majority(attributed, [(0, 4), (1, 4), (3, 10), (10, 12)]) == ["A", "B", "", ""]


def test_nearest_span_shares_most_characters() -> None:
    assert nearest((3, 9), [(0, 5), (5, 8), (8, 20)]) == 1
    assert nearest((3, 7), [(0, 5), (5, 9)]) == 0
    assert nearest((3, 3), [(0, 5)]) is None
    assert nearest((3, 7), []) is None


def test_ideal_judge_returns_the_name_at_the_mistake() -> None:
    log = trajectory([("A", "a" * 9), ("Websurfer", "b" * 9), ("A", "c" * 9)], mistake=("WebSurfer", 1))
    assert ideal_judge(log, Restored(log, log.spans))
    assert ideal_step(log, Restored(log, log.spans))
    cut = corrupt_boundaries(log)
    right = restore_boundaries(cut, [(0, 12, "A"), (12, 19, "Websurfer"), (19, 31, "A")])
    assert ideal_judge(log, right)
    assert ideal_step(log, right)
    merged_log = restore_boundaries(cut, [(0, 31, "Websurfer")])
    assert ideal_judge(log, merged_log)
    assert not ideal_step(log, merged_log)
    assert not ideal_judge(log, restore_boundaries(cut, [(0, 31, "A")]))
    assert not ideal_judge(log, restore_boundaries(cut, [(0, 31, "")]))


@pytest.mark.parametrize("said_by_people", [False, True])
def test_human_turns_are_unattributed(said_by_people: bool) -> None:
    turns = [("human", "Where is it?"), ("WebSurfer", "I look it up."), ("human", ""), ("human", "And now?")]
    log = trajectory([*turns, ("WebSurfer", "It is here, I think.")], subset="Hand-Crafted")
    names = ["" if turn.human else turn.name for turn in log.turns]
    attributed = [
        (*span, name) for span, name in zip(log.spans, names, strict=True) if name or said_by_people
    ]
    ends = Tokenizer(MODEL).encode(log.text).char_ends
    assert set(token_figures(log, attributed, ends).values()) == {1.0}


def test_unattributed_tokens_of_tools_are_correct() -> None:
    tokenizer = Tokenizer(MODEL)
    log = trajectory([("A", "one two three four"), ("Computer_terminal", "five six"), ("B", "seven eight")])
    perfect = [(*span, "" if i == 1 else log.turns[i].name) for i, span in enumerate(log.spans)]
    ends = tokenizer.encode(log.text).char_ends
    assert token_figures(log, perfect, ends) == {
        "token_accuracy": 1.0,
        "coverage": 1.0,
        "accuracy_where_attributed": 1.0,
        "boundary_f1": 1.0,
    }
    all_a: list[Named] = [(0, len(log.text), "A")]
    figures = token_figures(log, all_a, ends)
    a_share = float((ends <= log.spans[0][1]).mean())
    assert figures["token_accuracy"] == figures["accuracy_where_attributed"] == pytest.approx(a_share)
    assert figures["coverage"] == 1.0
    assert figures["boundary_f1"] == 0.0
    nothing = token_figures(log, [(0, len(log.text), "")], ends)
    assert (nothing["coverage"], nothing["accuracy_where_attributed"]) == (0.0, None)
    turns = identities(log, all_a, perfect)
    assert turns[1] == Identity("", "A", "")
    assert [(turn.agent, turn.attributed, turn.guess) for turn in turns[::2]] == [
        ("A", "A", "A"),
        ("B", "A", "B"),
    ]
