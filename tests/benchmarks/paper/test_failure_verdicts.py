"""What judges are asked, what their answers say, and what guessing is worth."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.paper.asking.asker import AnswerError
from benchmarks.paper.failure import questions
from benchmarks.paper.failure.restoration import remove_ids
from benchmarks.paper.failure.trajectories import SUBSETS, Trajectory, Turn, load
from benchmarks.paper.failure.verdicts import (
    LEGACY,
    STRICT,
    Prediction,
    Score,
    Seen,
    chance,
    legacy_score,
    score,
)
from tests.support.letters import LETTERS

DATA = pathlib.Path(__file__).resolve().parents[4] / "shared" / "data"


def log_of(*turns: tuple[str, str], agent: str = "Coder", step: int = 0) -> Trajectory:
    said = tuple(Turn(name, content) for name, content in turns)
    return Trajectory(SUBSETS[0], 1, "How many?", "Seventeen", said, agent, step)


LOG = log_of(
    ("Planner", "First we count."),
    ("Coder", "There are three.\nOr four."),
    ("Blu-Ray_Expert", "I agree."),
    ("Coder", "Four it is."),
    step=1,
)


# Questions


def test_every_question_tells_problem_and_answer_and_shows_the_log_as_its_protocol_does():
    words = {
        "all": questions.all_at_once(LOG).user,
        "step": questions.step_by_step(LOG, 2).user,
        "half": questions.binary_search(LOG, 1, 3).user,
    }
    for user in words.values():
        assert "How many?" in user
        assert "Seventeen" in user
    whole = (
        "Planner: First we count.\nCoder: There are three.\nOr four.\nBlu-Ray_Expert: I agree.\n"
        "Coder: Four it is."
    )
    assert whole in words["all"]
    assert whole.split("\n", 1)[1] in words["half"]
    assert "First we count." not in words["half"]
    assert "Step 0 - Planner: First we count.\nStep 1 - Coder: There are three.\nOr four.\n" in words["step"]
    assert "Step 2 - Blu-Ray_Expert: I agree.\n" in words["step"]
    assert "Four it is." not in words["step"]
    assert "step 2, by Blu-Ray_Expert" in words["step"]
    assert "upper half is step 1 to step 2, the lower half step 3 to step 3" in words["half"]


def test_a_log_without_names_shows_none():
    bare = dataclasses.replace(LOG, turns=tuple(Turn("Agent", turn.content) for turn in LOG.turns))
    for words in (
        questions.all_at_once(bare),
        questions.step_by_step(bare, 3),
        questions.binary_search(bare, 0, 3),
    ):
        assert "Agent: First we count." in words.user
        assert not [name for name in LOG.speakers if name in words.user]


def test_a_question_that_fits_is_asked_as_it_is_and_another_with_as_much_of_its_contents_as_fits():
    log = log_of(("A", "x" * 100), ("B", "short"), ("A", "y" * 400))

    def ask(longest):
        return questions.all_at_once(log, longest)

    def length(words):
        return len(words.user)

    whole, cuts = ask(None), [ask(longest) for longest in range(401)]
    assert questions.fitted(ask, 400, lambda words: length(words) <= length(whole)) == (whole, False)
    for room in range(length(ask(0)), length(whole)):
        words, cut = questions.fitted(ask, 400, lambda words, room=room: length(words) <= room)
        assert cut
        assert length(words) <= room
        (kept,) = [longest for longest, cut_to in enumerate(cuts) if cut_to == words][-1:]
        assert length(ask(kept + 1)) > room
        assert "B: short\n" in words.user
    assert questions.fitted(ask, 400, lambda words: length(words) < length(ask(0))) is None


@given(st.text(LETTERS, max_size=60), st.integers(0, 70))
def test_a_capped_content_keeps_both_ends(content, longest):
    capped = questions.capped(content, longest)
    if capped != content:
        assert len(capped) == longest + len(questions.GAP) < len(content)
        start, end = capped[: longest - longest // 2], capped[len(capped) - longest // 2 :]
        assert content.startswith(start)
        assert content.endswith(end)
        assert 0 <= len(start) - len(end) <= 1


# Strict reading


@pytest.mark.parametrize(
    "answer",
    [
        "Agent Name: Coder\nStep Number: 1\nReason for Mistake: it miscounted",
        "  \nAgent Name:   Coder  \nStep Number:\t1 \nReason for Mistake:",
        "I think so.\nStep Number: 1\nAgent Name: Coder",
    ],
)
def test_an_answer_in_form_is_a_prediction(answer):
    assert STRICT.prediction(answer, 4) == Prediction("Coder", "1")


def test_names_are_read_whole():
    found = STRICT.prediction("Agent Name: Blu-Ray_Expert\nStep Number: 2\n", 4)
    assert found == Prediction("Blu-Ray_Expert", "2")
    assert LEGACY.prediction("Agent Name: Blu-Ray_Expert\nStep Number: 2\n", 4) == Prediction("Blu", "2")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", "0 lines with the agent's name"),
        ("It was Coder, at step 1.", "0 lines with the agent's name"),
        ("**Agent Name:** Coder\nStep Number: 1", "0 lines with the agent's name"),
        ("Agent Name: Coder Step Number: 1", "0 lines with the step number"),
        ("Agent Name:\nStep Number: 1", "0 lines with the agent's name"),
        ("agent name: Coder\nStep Number: 1", "0 lines with the agent's name"),
        ("Agent Name: Coder\nStep Number: one", "0 lines with the step number"),
        ("Agent Name: Coder\nStep Number: -1", "0 lines with the step number"),
        ("Agent Name: Coder\nStep Number: 1 or 2", "0 lines with the step number"),
        ("Agent Name: Coder\nStep Number: \u0661", "0 lines with the step number"),
        ("Agent Name: Coder\nStep Number: 4", "got step 4, expected one below 4"),
        ("Agent Name: Coder\nStep Number: " + "9" * 5000, "expected one below 4"),
        ("Agent Name: Coder\nAgent Name: Planner\nStep Number: 1", "2 lines with the agent's name"),
        ("Agent Name: Coder\nStep Number: 1\nStep Number: 2", "2 lines with the step number"),
    ],
)
def test_an_answer_out_of_form_is_none_and_the_reason_says_why(answer, reason):
    with pytest.raises(AnswerError, match=reason):
        STRICT.prediction(answer, 4)


@pytest.mark.parametrize(
    ("answer", "strict", "legacy"),
    [
        ("1. Yes.\n2. Reason: it miscounted", True, True),
        ("1. Yes", True, True),
        ("\n1. No. \n2. Reason: all is well", False, False),
        ("1. yes\n2. Reason: hm", None, True),
        ("1. Yes, because it miscounted", None, True),
        ("1. Yesterday it was right", None, True),
        ("Yes.", None, False),
        ("No.", None, False),
        ("**1. Yes**", None, False),
        ("It is a mistake. 1. Yes", None, False),
        ("1. Yes/No.", None, True),
        ("", None, None),
    ],
)
def test_whether_a_step_is_a_mistake(answer, strict, legacy):
    for reading, says in ((STRICT, strict), (LEGACY, legacy)):
        if says is None:
            with pytest.raises(AnswerError):
                reading.mistaken(answer)
        else:
            assert reading.mistaken(answer) is says


@pytest.mark.parametrize(
    ("answer", "strict", "legacy"),
    [
        ("upper half", True, True),
        ("Lower half.", False, False),
        ("'lower half'\n", False, False),
        ("The lower half", None, False),
        ("not the upper half but the lower half", None, True),
        ("I do not know.", None, True),
        ("  ", None, None),
    ],
)
def test_which_half(answer, strict, legacy):
    for reading, says in ((STRICT, strict), (LEGACY, legacy)):
        if says is None:
            with pytest.raises(AnswerError):
                reading.upper(answer)
        else:
            assert reading.upper(answer) is says


# The public evaluator


@pytest.mark.parametrize(
    ("answer", "agent", "step"),
    [
        ("agent name: Coder and STEP NUMBER: 12.", "Coder", "12"),
        ("Agent Name: Coder\nAgent Name: Planner\nStep Number: 1\nStep Number: 2", "Coder", "1"),
        ("Agent Name:\nStep Number: 1", "Step", "1"),  # blanks reach over the end of a line
        ("Agent Name: Coder\nStep Number: 007", "Coder", "007"),
    ],
)
def test_the_evaluator_takes_the_first_that_its_patterns_find(answer, agent, step):
    assert LEGACY.prediction(answer, 4) == Prediction(agent, step)


@pytest.mark.parametrize(
    "answer",
    [
        "**Agent Name:** Coder\nStep Number: 1",
        "Agent Name: (Coder)\nStep Number: 1",
        "Agent Name: Coder\nPrediction for the step:\nStep Number: 1",
        "Agent Name: Coder\nStep Number: one",
        "",
    ],
)
def test_what_the_evaluator_cannot_parse_is_no_prediction(answer):
    with pytest.raises(AnswerError):
        LEGACY.prediction(answer, 4)


def test_the_evaluator_looks_for_substrings():
    truth = dataclasses.replace(LOG, mistake_step=1)
    assert legacy_score(Prediction("Coder", "1"), truth) == (True, True)
    assert legacy_score(Prediction("Chief_Coder", "10"), truth) == (True, True)
    assert legacy_score(Prediction("coder", "2"), truth) == (False, False)
    assert legacy_score(Prediction("Cod", "01"), truth) == (False, True)
    assert legacy_score(None, truth) == (False, False)


# Scores


def test_agents_are_compared_without_the_rest_of_their_role_and_by_both_spellings_of_a_label():
    log = log_of(("Orchestrator (thought)", "Hm."), ("WebSurfer", "I see."), agent="Orchestrator")
    seen = Seen(log, log)
    assert score(Prediction("Orchestrator (-> WebSurfer)", "1"), seen) == Score(True, False, False)
    assert score(Prediction("Orchestrator", "0"), seen) == Score(True, True, True)
    assert score(Prediction("Orchestra", "0"), seen) == Score(False, True, True)
    assert score(Prediction("orchestrator", "0"), seen) == Score(False, True, True)
    assert score(None, seen) == Score(False, False, False)
    surfer = Seen(dataclasses.replace(log, mistake_agent="Websurfer", mistake_step=1), log)
    surfer = dataclasses.replace(surfer, shown=surfer.original)
    for spelled in ("WebSurfer", "Websurfer"):
        assert score(Prediction(spelled, "1"), surfer) == Score(True, True, True)


def test_the_generic_assistant_is_not_the_agent_of_that_name():
    """Hand-Crafted has an agent 'Assistant', and after ID removal everybody is 'assistant'."""
    log = dataclasses.replace(log_of(("human", "Hm?"), ("Assistant", "I see.")), subset=SUBSETS[1])
    log = dataclasses.replace(log, mistake_agent="Assistant", mistake_step=1)
    bare = Seen(log, remove_ids(log))
    assert {turn.name for turn in bare.shown.turns} == {"assistant"}
    assert score(Prediction("assistant", "1"), bare) == Score(False, True, True)
    assert chance(bare)["turn_speaker"] == chance(bare)["uniform_speaker"] == 0


def test_a_step_stands_for_the_original_turn_that_it_shares_most_with():
    # "abcde\n\nfghij\n\nklmno": turns at [0, 5), [7, 12), [14, 19)
    log = log_of(("A", "abcde"), ("B", "fghij"), ("A", "klmno"), agent="B", step=1)
    assert log.spans == ((0, 5), (7, 12), (14, 19))
    cut = log_of(("A", "abcde\n\nfgh"), ("B", "ij\n\nklm"), ("A", "no"))
    seen = Seen(log, cut, ((0, 10), (10, 17), (17, 19)))
    assert seen.steps == (0, 2, 2)
    assert score(Prediction("B", "1"), seen) == Score(True, False, True)
    moved = dataclasses.replace(log, mistake_step=2)
    assert score(Prediction("A", "1"), dataclasses.replace(seen, original=moved)) == Score(False, True, False)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.data())
def test_the_largest_overlap_is_that_of_sets_of_characters(sizes, data):
    log = log_of(*(("A", "x" * size) for size in sizes))
    end = len(log.text)
    cuts = sorted(data.draw(st.lists(st.integers(0, end), min_size=2, max_size=6)))
    spans = tuple(itertools.pairwise(cuts))
    shown = log_of(*(("A", log.text[start:stop]) for start, stop in spans))
    for (start, stop), found in zip(spans, Seen(log, shown, spans).steps, strict=True):
        shared = [len({*range(*turn)} & {*range(start, stop)}) for turn in log.spans]
        assert found == (shared.index(max(shared)) if max(shared) else None)


# Chance


def test_chance_is_what_all_guesses_are_worth_on_average():
    log = log_of(("A", "aaaa"), ("B", "b"), ("A", "cc"), ("C (x)", "d"), ("C", "e"), agent="C", step=4)
    assert chance(Seen(log, log)) == pytest.approx(
        {
            "uniform_speaker": 1 / 3,
            "first_speaker": 0.0,
            "turn_speaker": 2 / 5,
            "uniform_step": 1 / 5,
            "step_one": 0.0,
            "uniform_step_legacy": 1 / 5,
        }
    )
    nameless = dataclasses.replace(log, turns=tuple(Turn("Agent", turn.content) for turn in log.turns))
    assert chance(Seen(log, nameless))["uniform_speaker"] == chance(Seen(log, nameless))["turn_speaker"] == 0
    # Restored as two turns, the second of which is nobody's and stands for the last.
    two = dataclasses.replace(log, turns=(Turn("C", "aaaa\n\nb\n\ncc"), Turn("", "d\n\ne")))
    end = len(log.text)
    assert chance(Seen(log, two, ((0, 11), (end - 1, end)))) == pytest.approx(
        {
            "uniform_speaker": 1.0,
            "first_speaker": 1.0,
            "turn_speaker": 1 / 2,
            "uniform_step": 1 / 2,
            "step_one": 1.0,
            "uniform_step_legacy": 0.0,
        }
    )


def test_chance_agrees_with_guessing():
    rng = np.random.default_rng(3)
    names = ["A", "B", "C"]
    log = log_of(*((names[i], "x" * 5) for i in rng.integers(0, 3, 12)), agent="B", step=1)
    seen, guesses = Seen(log, log), 4000
    right = np.zeros(4)
    for step in rng.integers(0, 12, guesses):
        by_turn = score(Prediction(log.turns[step].name, str(step)), seen)
        by_name = score(Prediction(str(rng.choice(log.speakers)), "0"), seen)
        legacy = legacy_score(Prediction("B", str(step)), log)[1]
        right += [by_name.agent, by_turn.agent, by_turn.step, legacy]
    expected = chance(seen)
    wanted = [
        expected[name] for name in ("uniform_speaker", "turn_speaker", "uniform_step", "uniform_step_legacy")
    ]
    assert right / guesses == pytest.approx(wanted, abs=4 * 0.5 / guesses**0.5)
    assert expected["uniform_step_legacy"] == 3 / 12  # 1, 10 and 11


@pytest.mark.skipif(not (DATA / "who_and_when").is_dir(), reason="the data are not beside the checkout")
def test_chance_levels_of_the_data():
    """The figures that are known of both subsets, in percent."""

    def levels(subset):
        each = [chance(Seen(log, log)) for log in load(DATA, subset, whole=True)]
        return {name: round(100 * float(np.mean([one[name] for one in each])), 2) for name in each[0]}

    generated, crafted = map(levels, SUBSETS)
    assert generated == {
        "uniform_speaker": 29.10,
        "first_speaker": 49.21,
        "turn_speaker": 33.19,
        "uniform_step": 12.00,
        "step_one": 26.98,
        "uniform_step_legacy": 12.00,
    }
    assert (crafted["uniform_step"], crafted["uniform_step_legacy"]) == (4.16, 8.89)


@pytest.mark.skipif(not (DATA / "who_and_when").is_dir(), reason="the data are not beside the checkout")
def test_a_perfect_judge_loses_one_log_with_the_evaluator_and_none_with_us():
    logs = load(DATA, SUBSETS[0], whole=True)
    said = [f"Agent Name: {log.mistake_agent}\nStep Number: {log.mistake_step}" for log in logs]
    legacy = [legacy_score(LEGACY.prediction(answer, 0), log) for answer, log in zip(said, logs, strict=True)]
    assert [log.number for log, (agent, _) in zip(logs, legacy, strict=True) if not agent] == [91]
    assert all(step for _, step in legacy)
    for answer, log in zip(said, logs, strict=True):
        assert score(STRICT.prediction(answer, len(log.turns)), Seen(log, log)) == Score(True, True, True)
