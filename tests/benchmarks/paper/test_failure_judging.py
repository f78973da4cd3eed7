"""The three protocols, asked of a server on this machine and of a local model; scores and chance levels."""

from __future__ import annotations

import pytest

from tests.support.chat_server import serving
from tests.support.failure_logs import knowing, problem_of, trajectory

pytest.importorskip("openai")
pytest.importorskip("transformers")

from benchmarks.paper.asking import OpenAIEndpoint
from benchmarks.paper.failure.judging import Judge, Prediction, Seen, chance, judge_logs, question, score
from benchmarks.paper.failure.trajectories import SUBSETS, Trajectory, Turn

pytestmark = pytest.mark.usefixtures("any_key")

NAMES = ("Planner", "Coder", "Blu-Ray_Expert", "Coder", "Planner", "Checker", "Coder")


def log_of(number: int, step: int) -> Trajectory:
    turns = tuple(Turn(name, f"log {number}, word {i}") for i, name in enumerate(NAMES))
    return Trajectory(SUBSETS[0], number, f"problem {number}?", "42", turns, NAMES[step], step)


LOGS = [log_of(number, step) for number, step in enumerate([0, 2, 3, 6])]


def knows(body) -> str:
    """A judge who knows the annotation of the log in the question."""
    user, number = problem_of(body)
    return knowing(user, LOGS[number].mistake_agent, LOGS[number].mistake_step)


def ask(server, logs=LOGS, **options):
    judge = Judge(OpenAIEndpoint("tiny", server.url, retries=0), workers=2)
    return judge_logs(logs, judge, **{"cache": None, **options})


def test_ideal_judge_is_correct_in_every_protocol():
    with serving(lambda body, _: knows(body)) as server:
        outcomes = ask(server)
    for (protocol, _), outcomes_of_protocol in outcomes.items():
        for log, outcome in zip(LOGS, outcomes_of_protocol, strict=True):
            assert outcome.prediction == Prediction(log.mistake_agent, log.mistake_step)
            calls = {"all_at_once": [1], "step_by_step": [log.mistake_step + 1], "binary_search": [2, 3]}
            assert outcome.calls in calls[protocol]
            assert not outcome.unanswered
    assert len(server.requests) == sum(
        outcome.calls for outcomes_of_protocol in outcomes.values() for outcome in outcomes_of_protocol
    )


@pytest.mark.parametrize(
    ("protocol", "answer"),
    [
        ("all_at_once", "Agent Name: Coder"),
        ("all_at_once", "Agent Name: Coder\nStep Number: 7"),
        ("all_at_once", "Agent Name: Coder\nAgent Name: Planner\nStep Number: 1"),
        ("step_by_step", "Yes"),
        ("step_by_step", "1. No."),
        ("binary_search", "the upper half, I think"),
    ],
)
def test_malformed_answer_is_no_prediction(protocol, answer):
    with serving(lambda *_: answer) as server:
        (outcome,) = ask(server, LOGS[:1], protocols=[protocol])[protocol, 0]
    assert outcome.prediction is None
    assert outcome.reason
    assert not outcome.unanswered


def test_answers_are_cached_by_seed(tmp_path):
    cache = tmp_path / "answers.jsonl"
    with serving(lambda body, _: knows(body)) as server:
        first = ask(server, LOGS[:2], cache=cache, seeds=[0, 1])
        num_requests = len(server.requests)
        assert set(server.asked.values()) == {1}
        assert {request["body"]["seed"] for request in server.requests} == {0, 1}
        assert ask(server, LOGS[:2], cache=cache, seeds=[0, 1]) == first
        ask(server, [LOGS[0]] * 3, cache=cache)  # equal logs are one question
        assert len(server.requests) == num_requests


def test_refused_question_gives_no_prediction():
    def reply(body, _):
        return 400 if problem_of(body)[1] == 1 else knows(body)

    with serving(reply) as server:
        outcomes = ask(server, LOGS[:3], protocols=["all_at_once"])["all_at_once", 0]
    assert [outcome.unanswered for outcome in outcomes] == [False, True, False]
    assert outcomes[1].prediction is None


def test_steps_of_a_corrupted_log_map_to_the_turn_with_most_shared_text():
    log = trajectory([("A", "a" * 10), ("B", "b" * 10), ("A", "c" * 10)], mistake=("B", 1))
    presented = trajectory([("A", log.text[:11]), ("B", log.text[11:])], mistake=("B", 1))
    seen = Seen(log, presented, ((0, 11), (11, 34)))
    assert seen.steps == (0, 1)
    assert score(Prediction("B (thought)", 1), seen) == (True, True, True)
    assert score(Prediction("A", 0), seen) == (False, False, False)
    assert score(None, seen) == (False, False, False)
    moved = Seen(log, presented, ((12, 20), (0, 8)))
    assert score(Prediction("A", 0), moved) == (False, True, False)
    assert score(Prediction("B", 1), moved) == (True, False, True)


def test_chance_is_the_mean_over_all_guesses():
    log = trajectory([("A", "a"), ("B (thought)", "b"), ("B (-> A)", "c"), ("C", "d")], mistake=("B", 1))
    assert chance(Seen(log, log)) == {
        "uniform_speaker": pytest.approx(1 / 3),
        "turn_speaker": pytest.approx(2 / 4),
        "uniform_step": pytest.approx(1 / 4),
    }


def test_only_step_by_step_shows_step_numbers():
    log = trajectory([("A", "one"), ("", "two"), ("B", "three")])
    everything = question("all_at_once", log, 0, 2)[1]
    assert "\nunknown: two\nB: three\n" in everything
    steps = question("step_by_step", log, 0, 1)[1]
    assert "\nStep 0 - A: one\nStep 1 - unknown: two\n\nThe last step is step 1, by unknown." in steps
    halves = question("binary_search", log, 0, 2)[1]
    assert "upper half is step 0 to step 1, the lower half step 2 to step 2" in halves
