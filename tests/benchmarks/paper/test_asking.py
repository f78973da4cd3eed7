"""Models of an endpoint: requests, kept answers, and the end-to-end LLM baseline."""

from __future__ import annotations

import collections
import itertools
import json

import numpy as np
import pytest

from iet.audit.metrics import token_accuracy
from iet.errors import BackendUnavailable
from tests.support.chat_server import serving
from tests.support.paper_logs import log_of, prose, words

pytest.importorskip("openai")
pytest.importorskip("transformers")

from benchmarks.paper.asking import AnswerError, Answers, Asker, OpenAIEndpoint, Question, Sampling
from benchmarks.paper.baselines import llm
from benchmarks.paper.baselines.reading import read_tokens, unit_bounds

KEY = "sk-a-secret-key"
TASKS = {record: f"task number {record}" for record in range(4)}
BOUNDS = [0, 64, 128, 130]


@pytest.fixture(autouse=True)
def key(monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def even(answer: str) -> int:
    if not answer.isdigit() or int(answer) % 2:
        raise AnswerError("expected an even number")
    return int(answer)


def question(user: str, **sampling) -> Question[int]:
    return Question("You count.", user, Sampling(**sampling), even)


def endpoint(server) -> OpenAIEndpoint:
    return OpenAIEndpoint("tiny", server.url, retries=0)


# ---------------------------------------------------------------- endpoints and answers


def test_requests_hold_prompts_and_sampling_parameters():
    with serving(lambda *_: "4") as server:
        asker = Asker(endpoint(server), Answers(None))
        assert asker(question("How many?", temperature=None, top_p=0.9, max_tokens=5)) == 4
    (request,) = server.requests
    assert request["key"] == f"Bearer {KEY}"
    assert request["body"] == {
        "model": "tiny",
        "messages": [{"role": "system", "content": "You count."}, {"role": "user", "content": "How many?"}],
        "top_p": 0.9,
        "max_tokens": 5,
    }


def test_cached_answers_are_reused_and_incomplete_lines_are_not(tmp_path):
    path = tmp_path / "answers.jsonl"
    with serving(lambda *_: "4") as server:
        for _ in range(2):
            assert Asker(endpoint(server), Answers(path))(question("How many?")) == 4
        assert len(server.requests) == 1
        path.write_bytes(path.read_bytes()[:-9])  # a killed run
        assert Asker(endpoint(server), Answers(path))(question("How many?")) == 4
        assert len(server.requests) == 2
        # Another seed, another model name and another address are other questions.
        assert Asker(endpoint(server), Answers(path))(question("How many?", seed=1)) == 4
        assert len(server.requests) == 3
    assert KEY.encode() not in path.read_bytes()


def test_invalid_answers_are_retried_up_to_the_limit():
    replies = iter(["3", "many", "6"])
    with serving(lambda *_: next(replies)) as server:
        assert Asker(endpoint(server), Answers(None), 3)(question("How many?")) == 6
    with serving(lambda *_: "3") as server:
        assert Asker(endpoint(server), Answers(None), 3)(question("How many?")) is None
        assert len(server.requests) == 3


@pytest.mark.parametrize("reply", [500, 401, b"<html>busy</html>", b'{"choices": []}'])
def test_failing_server_stops_the_run_without_showing_the_key(reply):
    with serving(lambda *_: reply) as server:
        asker = Asker(endpoint(server), Answers(None))
        with pytest.raises(BackendUnavailable, match="run the same command again") as error:
            asker(question("How many?"))
    assert KEY not in str(error.value)
    assert error.value.__context__ is None


def test_refused_question_has_no_answer():
    with serving(lambda *_: 400) as server:
        assert Asker(endpoint(server), Answers(None), 3)(question("How many?")) is None
        assert len(server.requests) == 1


def test_addresses_hide_credentials_and_a_missing_key_is_named(monkeypatch):
    made = OpenAIEndpoint("tiny", "http://user:secret@host:8000/v1/")
    assert made.address == "http://host:8000/v1"
    assert "secret" not in repr(made)
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(BackendUnavailable, match="OPENAI_API_KEY"):
        made.client()


# ---------------------------------------------------------------- the LLM baseline


@pytest.mark.parametrize(
    "answer",
    [
        'Here: {"ranges": {"0": [[0, 64]], "1": [[64, 130]]}}',
        '{"ranges": {"0": [[0, 64]], "1": [[64, 130]]}} ',
        '{"ranges": {"0": [[0, 64]], "1": [[64, 130]]}, "x": 1}',
        '{"ranges": {"0": [[0, 63]], "1": [[63, 130]]}}',  # not at unit boundaries
        '{"ranges": {"0": [[0, 64], [64, 128]], "1": [[128, 130]]}}',  # not merged
        '{"ranges": {"0": [[0, 64]], "1": [[128, 130]]}}',  # a gap
        '{"ranges": {"0": [[0, 128]], "1": [[64, 130]]}}',  # an overlap
        '{"ranges": {"1": [[0, 64]], "0": [[64, 130]]}}',  # not in the order of appearance
        '{"ranges": {"0": [[0, 130]], "1": []}}',
        '{"ranges": {"0": [[0, 64]], "1": [[64, 128]], "2": [[128, 130]]}}',
        '{"ranges": [[0, 64]]}',
        "[1]",
        "",
    ],
)
def test_rejects_answers_that_break_a_rule_of_the_prompts(answer):
    with pytest.raises(AnswerError):
        llm.parse_answer(answer, BOUNDS, 2)


def test_valid_answer_labels_every_unit():
    assert llm.parse_answer('{"ranges": {"0": [[0, 64]], "1": [[64, 130]]}}', BOUNDS, 2).tolist() == [0, 1, 1]


@pytest.fixture(scope="module")
def logs():
    rng = np.random.default_rng(1)
    turns = [(agent, prose(rng, words(rng, 9, "t"), 3)) for agent in (2, 0, 1, 2)]
    return [log_of(turns, 3, record=record) for record in range(4)]


def right_answer(log, tokenizer) -> str:
    tokens = read_tokens(log, tokenizer)
    order = list(dict.fromkeys(tokens.agents.tolist()))
    runs = collections.defaultdict(list)
    for start, end in itertools.pairwise(unit_bounds(tokens)):
        spans = runs[str(order.index(tokens.agents[start]))]
        if spans and spans[-1][1] == start:
            spans[-1][1] = end
        else:
            spans.append([start, end])
    return json.dumps({"ranges": runs})


def test_correct_answers_have_accuracy_one_and_missing_answers_are_failures(logs, tokenizer):
    answers = {TASKS[log.record]: right_answer(log, tokenizer) for log in logs[:3]}

    def reply(body, _) -> str:
        user = body["messages"][1]["content"]
        assert body["temperature"] == 0.0
        assert "There are K=3 speakers." in user
        assert "{" not in body["messages"][0]["content"].replace('{"ranges"', "").split("\n")[0]
        return answers.get(user.split("task_description=")[1].split("\n")[0], "no idea")

    with serving(reply) as server:
        attributions = llm.read(logs, tokenizer, endpoint=endpoint(server), tasks=TASKS, cache=None)
    truths = [read_tokens(log, tokenizer).agents for log in logs]
    right = [token_accuracy(t, a.labels) for t, a in zip(truths, attributions, strict=True)]
    assert right[:3] == [1.0, 1.0, 1.0]
    # Every token goes to one speaker, who is matched to the agent with the most tokens.
    assert right[3] == pytest.approx(np.bincount(truths[3]).max() / len(truths[3]))
    assert [a.failures for a in attributions] == [0, 0, 0, 1]
    assert len(server.requests) == 3 + llm.ATTEMPTS
