"""The three protocols, asked of a server on this machine and of a model of transformers."""

from __future__ import annotations

import dataclasses
import json

import pytest

from benchmarks.paper.failure.trajectories import SUBSETS, Trajectory, Turn
from benchmarks.paper.failure.verdicts import Prediction
from iet.errors import BackendUnavailable, InputError
from tests.support.chat_server import Server, serving
from tests.support.failure_logs import knowing, problem_of
from tests.support.waiting import PATIENCE

pytest.importorskip("openai")

from benchmarks.paper.asking.endpoints import OpenAIEndpoint, Sampling
from benchmarks.paper.failure import protocols, questions
from benchmarks.paper.failure.protocols import Judge

pytestmark = pytest.mark.usefixtures("any_key")

NAMES = ("Planner", "Coder", "Blu-Ray_Expert", "Coder", "Planner", "Checker", "Coder")


def log_of(number: int, step: int) -> Trajectory:
    turns = tuple(Turn(name, f"log {number}, word {i}") for i, name in enumerate(NAMES))
    return Trajectory(SUBSETS[0], number, f"problem {number}?", "42", turns, NAMES[step], step)


LOGS = [log_of(number, step) for number, step in enumerate([0, 2, 3, 6])]


def knows(body) -> str:
    """A judge that knows: it tells log and protocol by what it is asked."""
    user, number = problem_of(body)
    return knowing(user, LOGS[number].mistake_agent, LOGS[number].mistake_step)


def ask(server: Server, logs=LOGS, **options):
    judge = options.pop(
        "judge",
        Judge(OpenAIEndpoint("tiny", server.url, timeout=options.pop("timeout", PATIENCE)), workers=2),
    )
    return protocols.judge(logs, judge, **{"cache": None, "pause": 0.0, **options})


def test_who_knows_is_right_in_every_protocol():
    with serving(lambda body, _: knows(body)) as server:
        found = ask(server)
    assert list(found) == [(name, 0) for name in ("all_at_once", "step_by_step", "binary_search")]
    for (protocol, _), outcomes in found.items():
        for log, outcome in zip(LOGS, outcomes, strict=True):
            assert outcome.prediction == Prediction(log.mistake_agent, str(log.mistake_step))
            named = log.mistake_agent.split("-")[0]  # the evaluator's pattern ends at a hyphen
            assert outcome.legacy == Prediction(named, str(log.mistake_step))
            assert not outcome.unanswered
            assert outcome.cut == 0
            calls = {"all_at_once": [1], "step_by_step": [log.mistake_step + 1], "binary_search": [2, 3]}
            assert outcome.calls in calls[protocol]
    assert len(server.requests) == sum(outcome.calls for some in found.values() for outcome in some)


def test_the_request_is_the_question_with_the_judges_sampling():
    sampling = Sampling(temperature=0.3, top_p=None, max_tokens=77)
    with serving(lambda body, _: knows(body)) as server:
        ask(server, LOGS[:1], protocols=["all_at_once"], seeds=[5], sampling=sampling)
    (request,) = server.requests
    words = questions.all_at_once(LOGS[0])
    assert request["body"] == {
        "model": "tiny",
        "messages": [{"role": "system", "content": words.system}, {"role": "user", "content": words.user}],
        "temperature": 0.3,
        "max_tokens": 77,
        "seed": 5,
    }


def test_who_says_nothing_that_can_be_read_is_none_strictly_and_what_the_programs_make_of_it():
    with serving(lambda *_: "Well, well.") as server:
        found = ask(server)
    for (protocol, _), outcomes in found.items():
        for outcome in outcomes:
            assert outcome.prediction is None
            assert outcome.reason
            # Nothing is no mistake, and the upper half: the first step.
            expected = Prediction("Planner", "0") if protocol == "binary_search" else None
            assert outcome.legacy == expected
            assert not outcome.unanswered
    assert [outcome.calls for outcome in found["step_by_step", 0]] == [len(NAMES)] * len(LOGS)
    assert {outcome.legacy_reason for outcome in found["step_by_step", 0]} == {
        "no step was found to be a mistake"
    }


def test_an_answer_is_asked_for_once_a_seed_and_a_run_goes_on(tmp_path):
    cache = tmp_path / "answers.jsonl"
    with serving(lambda body, _: knows(body)) as server:
        first = ask(server, LOGS[:2], cache=cache, seeds=[0, 1])
        asked = len(server.requests)
        assert set(server.asked.values()) == {1}
        assert len(cache.read_text().splitlines()) == asked
        assert ask(server, LOGS[:2], cache=cache, seeds=[0, 1]) == first
        assert len(server.requests) == asked
        ask(server, LOGS[:2], cache=cache, seeds=[0, 1, 2])
        assert len(server.requests) == asked * 3 // 2
    # What is on the disk needs no server, and no key.
    assert ask(server, LOGS[:2], cache=cache, seeds=[0, 1]) == first


def test_logs_that_are_shown_alike_are_one_question():
    with serving(lambda body, _: knows(body)) as server:
        found = ask(server, [LOGS[1]] * 3)
    assert set(server.asked.values()) == {1}
    assert all(len(set(outcomes)) == 1 for outcomes in found.values())


def test_a_server_that_dies_half_way_loses_and_repeats_nothing(tmp_path):
    cache = tmp_path / "answers.jsonl"
    alive = 5
    judge = lambda server: Judge(OpenAIEndpoint("tiny", server.url))  # noqa: E731

    def reply(body, _):
        return knows(body) if len(server.requests) <= alive else 502

    with serving(reply) as server:
        with pytest.raises(BackendUnavailable, match="start again to go on"):
            ask(server, cache=cache, judge=judge(server), patience=2)
        assert len(cache.read_text().splitlines()) == alive
        before, died = len(server.requests), alive
        alive = 1000
        found = ask(server, cache=cache, judge=judge(server))
        asked = len(server.requests) - before
    with serving(lambda body, _: knows(body)) as server:
        assert ask(server, judge=judge(server)) == found
        assert asked == len(server.requests) - died


@pytest.mark.parametrize("count", [1, 2])
def test_who_answers_nothing_at_all_is_no_judge_however_few_the_logs_are(count):
    with (
        serving(lambda *_: 500) as server,
        pytest.raises(BackendUnavailable, match=f"no answer to {count} questions in a row"),
    ):
        ask(server, LOGS[:count], protocols=["all_at_once"])


@pytest.mark.parametrize("trouble", [500, 429, 400, None, b"<html>busy</html>", b'{"choices": []}'])
def test_trouble_leaves_that_log_without_a_prediction_in_this_run_only(tmp_path, trouble):
    cache, troubled = tmp_path / "answers.jsonl", True

    def reply(body, _):
        return trouble if troubled and "problem 1?" in body["messages"][-1]["content"] else knows(body)

    options = {"cache": cache, "protocols": ["step_by_step"], "attempts": 2}
    with serving(reply) as server:
        outcomes = ask(server, LOGS[:3], timeout=3.0 if trouble is None else PATIENCE, **options)[
            "step_by_step", 0
        ]
        assert [outcome.unanswered for outcome in outcomes] == [False, True, False]
        assert outcomes[1].prediction is outcomes[1].legacy is None
        assert outcomes[1].reason == "the endpoint gave no answer"
        asked = [
            r for r in server.requests if "problem 1?" in r["body"]["messages"][-1]["content"]
        ]  # once per attempt, not once more for the other reading
        assert len(asked) == (1 if trouble == 400 else 2)
        troubled, before = False, len(server.requests)
        outcomes = ask(server, LOGS[:3], **options)["step_by_step", 0]
        assert len(server.requests) == before + LOGS[1].mistake_step + 1
    assert [outcome.prediction.index for outcome in outcomes] == [log.mistake_step for log in LOGS[:3]]


def test_a_log_that_is_too_long_is_cut_and_the_outcome_says_so():
    turns = (*(Turn(turn.name, f"{turn.content} {'x' * 900} end") for turn in LOGS[1].turns),)
    log = dataclasses.replace(LOGS[1], turns=turns)
    with serving(lambda body, _: knows(body)) as server:
        endpoint = OpenAIEndpoint("tiny", server.url)
        found = ask(server, [log], judge=Judge(endpoint, room=4000))
        for request in server.requests:
            system, user = (message["content"] for message in request["body"]["messages"])
            assert len(system) + len(user) <= 4000
        assert any(questions.GAP in r["body"]["messages"][1]["content"] for r in server.requests)
        assert found["all_at_once", 0][0].cut == 1
        assert found["step_by_step", 0][0].cut == 0  # three turns fit
        assert [some[0].prediction.index for some in found.values()] == [2, 2, 2]
        before = len(server.requests)
        found = ask(server, [log], judge=Judge(endpoint, room=500))
        (outcome,) = found["all_at_once", 0]
        assert outcome.reason == "longer than the judge's 500 without any contents"
        assert (outcome.prediction, outcome.unanswered, outcome.calls) == (None, True, 0)
        assert all(len(r["body"]["messages"][1]["content"]) < 500 for r in server.requests[before:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocols": ["all_at_twice"]}, "protocols: got 'all_at_twice'"),
        ({"attempts": 0}, "attempts: got 0"),
        ({"patience": 0}, "patience: got 0"),
        ({"judge": Judge(OpenAIEndpoint("tiny"), workers=0)}, "workers: got 0"),
    ],
)
def test_nonsense_is_refused_before_anything_is_asked(options, message):
    with serving(lambda *_: 500) as server, pytest.raises(InputError, match=message):
        ask(server, **options)
    assert not server.requests


# A model of transformers


def test_a_model_on_this_machine_answers_by_its_seed_alone(loaded, tmp_path):
    from benchmarks.paper.failure.protocols import local

    cache = tmp_path / "answers.jsonl"
    options = {"protocols": ["all_at_once"], "sampling": Sampling(max_tokens=12)}
    judge = local(loaded, 12)
    assert judge.room == 4096 - 12
    protocols.judge(LOGS[:2], judge, cache=cache, seeds=[0, 1], **options)
    lines = [json.loads(line) for line in cache.read_text().splitlines()]
    assert {line["model"] for line in lines} == {f"iet:demo {loaded.digest[:16]}"}
    again = tmp_path / "again.jsonl"
    protocols.judge(LOGS[:2], judge, cache=again, seeds=[1, 0], **options)
    said = {line["key"]: line["answer"] for line in lines}
    assert {line["key"]: line["answer"] for line in map(json.loads, again.read_text().splitlines())} == said
    assert len(said) == 4
    assert len(set(said.values())) > 1


def test_greedy_answers_do_not_depend_on_the_seed_and_are_the_models(loaded):
    from benchmarks.paper.asking.local import LocalEndpoint

    ask = LocalEndpoint(loaded).connect()
    system, user = "You count.", "One, two, three,"
    answers = {ask(system, user, Sampling(temperature=0.0, max_tokens=8, seed=seed)) for seed in range(3)}
    assert len(answers) == 1
    ids = loaded.tokenizer(f"{system}\n\n{user}\n\n", return_tensors="pt").input_ids
    start = ids.shape[1]
    import torch

    for _ in range(8):
        with torch.inference_mode():
            logits = loaded.model(ids).logits[0, -1]
        ids = torch.cat([ids, logits.argmax().view(1, 1)], 1)
        if int(ids[0, -1]) == loaded.model.generation_config.eos_token_id:
            break
    assert loaded.tokenizer.decode(ids[0, start:], skip_special_tokens=True) in answers


def test_a_question_longer_than_the_model_is_cut_to_its_positions(loaded):
    from benchmarks.paper.failure.protocols import local

    turns = tuple(Turn(name, f"word {i} " * 700) for i, name in enumerate(NAMES))
    judge = local(loaded, 4)
    found = protocols.judge(
        [dataclasses.replace(LOGS[0], turns=turns)],
        judge,
        cache=None,
        protocols=["all_at_once"],
        sampling=Sampling(max_tokens=4),
    )
    (outcome,) = found["all_at_once", 0]
    assert (outcome.calls, outcome.cut, outcome.unanswered) == (1, 1, False)
