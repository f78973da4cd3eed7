"""The end-to-end LLM baseline, against a server of its own on this machine."""

from __future__ import annotations

import collections
import itertools
import json
import logging
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from iet.audit.metrics import token_accuracy
from iet.errors import BackendUnavailable, InputError
from tests.support.chat_server import Server, serving
from tests.support.paper_logs import log_of, prose, words
from tests.support.waiting import PATIENCE

pytest.importorskip("openai")

from benchmarks.paper.asking.asker import Answers
from benchmarks.paper.asking.endpoints import BedrockEndpoint, OpenAIEndpoint, Parameters
from benchmarks.paper.baselines import llm, llm_prompts
from benchmarks.paper.baselines.reading import read_tokens, unit_bounds, unit_texts

KEY = "sk-a-key-that-nobody-may-see"


# What is asked of a server


@pytest.fixture(autouse=True)
def key(monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


SPEAKERS = (2, 0, 1, 2)
TASKS = {record: f"task number {record}" for record in range(40)}


@pytest.fixture(scope="module")
def logs():
    rng = np.random.default_rng(1)
    return [
        log_of([(agent, prose(rng, words(rng, 9, "t"), 3)) for agent in SPEAKERS], 3, record=record)
        for record in range(6)
    ]


def right_answer(log, tokenizer) -> str:
    tokens = read_tokens(log, tokenizer)
    bounds = unit_bounds(tokens)
    order = list(dict.fromkeys(tokens.agents.tolist()))
    runs = collections.defaultdict(list)
    for start, end in itertools.pairwise(bounds):
        mine = runs[str(order.index(tokens.agents[start]))]
        if mine and mine[-1][1] == start:
            mine[-1][1] = end
        else:
            mine.append([start, end])
    return json.dumps({"ranges": runs})


@pytest.fixture(scope="module")
def right(logs, tokenizer) -> Callable[[dict[str, Any]], str]:
    """A model that knows: it tells the log by its task."""
    answers = {TASKS[log.record]: right_answer(log, tokenizer) for log in logs}

    def answer(body: dict[str, Any]) -> str:
        content = body["messages"][-1]["content"]
        user = content if isinstance(content, str) else content[0]["text"]
        task = user.split("task_description=")[1].split("\n")[0]
        return answers[task]

    return answer


def read(logs, tokenizer, server: Server, **options: Any):
    settings = {"tasks": TASKS, "cache": None, "pause": 0.0, "workers": 2, **options}
    settings.setdefault("endpoint", OpenAIEndpoint("tiny", server.url, timeout=PATIENCE))
    return llm.read(logs, tokenizer, **settings)


def accuracies(logs, tokenizer, found):
    return [
        token_accuracy(read_tokens(log, tokenizer).agents, one.labels)
        for log, one in zip(logs, found, strict=True)
    ]


def test_a_right_answer_is_a_token_accuracy_of_one(logs, tokenizer, right):
    with serving(lambda body, _: right(body)) as server:
        found = read(logs, tokenizer, server)
    assert accuracies(logs, tokenizer, found) == [1.0] * len(logs)
    assert all(one.matched and one.edges is None for one in found)
    assert [(one.failures, one.attempts) for one in found] == [(0, 1)] * len(logs)


def test_the_request_is_the_papers(logs, tokenizer, right):
    with serving(lambda body, _: right(body)) as server:
        read(logs[:1], tokenizer, server)
    (request,) = server.requests
    assert request["path"] == "/chat/completions"
    assert request["key"] == f"Bearer {KEY}"
    body = request["body"]
    assert {k: body[k] for k in body if k != "messages"} == {
        "model": "tiny",
        "temperature": 0.0,
        "top_p": 1.0,
    }
    system, user = body["messages"]
    assert (system["role"], user["role"]) == ("system", "user")
    tokens = read_tokens(logs[0], tokenizer)
    bounds = unit_bounds(tokens)
    expected = llm_prompts.prompts(unit_texts(logs[0], tokens, bounds), bounds, 3, 64, TASKS[0])
    assert (system["content"], user["content"]) == expected


def test_a_parameter_can_be_left_out(logs, tokenizer, right):
    with serving(lambda body, _: right(body)) as server:
        read(logs[:1], tokenizer, server, parameters=Parameters(temperature=None, top_p=None))
    assert set(server.requests[0]["body"]) == {"model", "messages"}


def test_a_bad_answer_is_asked_again_without_the_reason(logs, tokenizer, right, tmp_path):
    cache = tmp_path / "answers.jsonl"
    with serving(lambda body, attempt: right(body) if attempt == 3 else "Okay, let me think") as server:
        found = read(logs, tokenizer, server, cache=cache)
    assert [(one.failures, one.attempts) for one in found] == [(0, 3)] * len(logs)
    assert accuracies(logs, tokenizer, found) == [1.0] * len(logs)
    assert set(server.asked.values()) == {3}  # the very same request each time
    lines = [json.loads(line) for line in cache.read_text().splitlines()]
    assert sorted(line["attempt"] for line in lines) == sorted([1, 2, 3] * len(logs))
    assert {line["reason"] for line in lines if line["attempt"] < 3} == {"text before '{' or after '}'"}
    assert {line["reason"] for line in lines if line["attempt"] == 3} == {None}


def test_who_never_answers_well_is_a_failure_and_stays_in(logs, tokenizer, tmp_path):
    cache = tmp_path / "answers.jsonl"
    with serving(lambda *_: '{"ranges": {}}') as server:
        found = read(logs, tokenizer, server, cache=cache)
        assert [(one.failures, one.attempts) for one in found] == [(1, 3)] * len(logs)
        for log, one in zip(logs, found, strict=True):
            truth = read_tokens(log, tokenizer).agents
            assert one.labels.tolist() == [np.bincount(truth).argmax()] * len(truth)
        # Used-up attempts are not asked again, nor counted twice.
        again = read(logs, tokenizer, server, cache=cache)
    assert [(one.failures, one.attempts) for one in again] == [(1, 3)] * len(logs)
    assert len(server.requests) == 3 * len(logs)


@pytest.mark.parametrize(
    "trouble", [500, 503, 429, 408, b"<html>busy</html>", b"{}", b'{"choices": []}', b""]
)
def test_trouble_of_the_endpoint_is_a_failure_of_this_run_only(logs, tokenizer, right, tmp_path, trouble):
    cache = tmp_path / "answers.jsonl"
    bad = TASKS[1]
    troubled = True

    def reply(body, _):
        return (
            trouble
            if troubled and f"task_description={bad}\n" in body["messages"][-1]["content"]
            else right(body)
        )

    with serving(reply) as server:
        found = read(logs[:3], tokenizer, server, cache=cache)
        assert [(one.failures, one.attempts) for one in found] == [(0, 1), (1, 3), (0, 1)]
        assert len(found[1].labels) == len(read_tokens(logs[1], tokenizer))
        troubled, before = False, len(server.requests)
        found = read(logs[:3], tokenizer, server, cache=cache)
        assert len(server.requests) == before + 1
    assert [one.failures for one in found] == [0, 0, 0]
    assert accuracies(logs[:3], tokenizer, found) == [1.0] * 3


def test_trouble_passes(logs, tokenizer, right):
    with serving(lambda body, attempt: 503 if attempt == 1 else right(body)) as server:
        found = read(logs[:2], tokenizer, server)
    assert [(one.failures, one.attempts) for one in found] == [(0, 2)] * 2


def test_a_time_out_is_a_failure(logs, tokenizer, right):
    bad = f"task_description={TASKS[0]}\n"

    def reply(body, _):
        return None if bad in body["messages"][-1]["content"] else right(body)

    with serving(reply) as server:
        endpoint = OpenAIEndpoint("tiny", server.url, timeout=3.0)
        found = read(logs[:2], tokenizer, server, endpoint=endpoint, attempts=2)
    assert [(one.failures, one.attempts) for one in found] == [(1, 2), (0, 1)]
    assert len(server.requests) == 3


def test_a_question_that_is_refused_is_asked_once_a_run(logs, tokenizer, right, tmp_path):
    """Such as one that is too long: the answer would be the same. What refuses all is no endpoint."""
    cache = tmp_path / "answers.jsonl"
    long = [f"task_description={TASKS[0]}\n"]

    def reply(body, _):
        return 400 if any(task in body["messages"][-1]["content"] for task in long) else right(body)

    with serving(reply) as server:
        found = read(logs[:2], tokenizer, server, cache=cache)
        assert [(one.failures, one.attempts) for one in found] == [(1, 1), (0, 1)]
        assert len(server.requests) == 2
        long.clear()
        found = read(logs[:2], tokenizer, server, cache=cache)
        assert [(one.failures, one.attempts) for one in found] == [(0, 1), (0, 1)]
        assert len(server.requests) == 3
        long.append("task_description")
        with pytest.raises(BackendUnavailable, match=r"HTTP 400: .* no answer to 3 questions in a row"):
            read(logs, tokenizer, server, patience=3)


@pytest.mark.parametrize("count", [1, 2])
def test_who_answers_no_log_at_all_is_no_baseline_however_few_they_are(logs, tokenizer, count):
    with (
        serving(lambda *_: 500) as server,
        pytest.raises(BackendUnavailable, match=f"no answer to {count} questions in a row"),
    ):
        read(logs[:count], tokenizer, server)


@pytest.mark.parametrize(
    ("status", "reason"), [(401, "key was refused"), (403, "permission"), (404, "no such model")]
)
def test_what_no_question_can_pass_ends_the_run_at_once(logs, tokenizer, status, reason):
    with serving(lambda *_: status) as server, pytest.raises(BackendUnavailable, match=reason):
        read(logs, tokenizer, server, workers=1)
    assert len(server.requests) == 1


def test_an_endpoint_that_dies_half_way_loses_and_repeats_nothing(logs, tokenizer, right, tmp_path):
    cache = tmp_path / "folder" / "answers.jsonl"
    alive = 3

    def reply(body, _):
        return right(body) if len(server.requests) <= alive else 502

    with serving(reply) as server:
        with pytest.raises(BackendUnavailable, match="start again to go on"):
            read(logs, tokenizer, server, cache=cache, workers=1, patience=2)
        assert len(cache.read_text().splitlines()) == alive
        before, alive = len(server.requests), 1000
        found = read(logs, tokenizer, server, cache=cache)
        assert len(server.requests) == before + len(logs) - 3
    assert [(one.failures, one.attempts) for one in found] == [(0, 1)] * len(logs)
    assert accuracies(logs, tokenizer, found) == [1.0] * len(logs)


def test_one_process_at_a_time_asks_into_a_file(logs, tokenizer, right, tmp_path):
    pytest.importorskip("fcntl")
    cache = tmp_path / "answers.jsonl"
    with serving(lambda body, _: right(body)) as server:
        with Answers(cache), pytest.raises(InputError, match="another process writes to it"):
            read(logs[:1], tokenizer, server, cache=cache)
        assert not server.requests
        read(logs[:1], tokenizer, server, cache=cache)
    assert len(cache.read_text().splitlines()) == 1


def test_nobody_at_the_address_is_a_dead_endpoint(logs, tokenizer):
    with serving(lambda *_: 500) as server:
        pass
    with pytest.raises(BackendUnavailable, match="no connection"):
        read(logs, tokenizer, server, patience=2)


def test_what_was_answered_needs_neither_endpoint_nor_key(logs, tokenizer, right, tmp_path, monkeypatch):
    cache = tmp_path / "answers.jsonl"
    with serving(lambda body, _: right(body)) as server:
        first = read(logs, tokenizer, server, cache=cache)
    monkeypatch.delenv("OPENAI_API_KEY")
    second = read(logs, tokenizer, server, cache=cache)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a.labels, b.labels)
    with pytest.raises(BackendUnavailable, match="OPENAI_API_KEY: got nothing from the environment"):
        read(logs, tokenizer, server)


def test_a_torn_line_is_asked_again_and_a_damaged_one_is_named(logs, tokenizer, right, tmp_path):
    cache = tmp_path / "answers.jsonl"
    with serving(lambda body, _: right(body)) as server:
        read(logs, tokenizer, server, cache=cache)
        whole = cache.read_bytes()
        cache.write_bytes(whole[:-20])
        found = read(logs, tokenizer, server, cache=cache)
        assert len(server.requests) == len(logs) + 1
    assert [(one.failures, one.attempts) for one in found] == [(0, 1)] * len(logs)
    assert sorted(cache.read_bytes().splitlines()) == sorted(whole.splitlines())
    cache.write_bytes(b"nonsense\n" + whole)
    with pytest.raises(InputError, match=r"answers.jsonl, line 1: damaged"):
        read(logs, tokenizer, server, cache=cache)


def test_other_models_addresses_prompts_and_parameters_have_answers_of_their_own(
    logs, tokenizer, right, tmp_path
):
    cache = tmp_path / "answers.jsonl"
    with serving(lambda body, _: right(body)) as server:
        for options in (
            {},
            {"endpoint": OpenAIEndpoint("other", server.url)},
            {"endpoint": OpenAIEndpoint("tiny", f"{server.url}/v2")},
            {"parameters": Parameters(temperature=None)},
            {"tasks": {0: TASKS[0] + "\nand more"}},
        ):
            read(logs[:1], tokenizer, server, cache=cache, **options)
            read(logs[:1], tokenizer, server, cache=cache, **options)
    assert len(server.requests) == 5


def test_two_logs_of_one_text_are_one_question(logs, tokenizer, right):
    with serving(lambda body, _: right(body)) as server:
        found = read([logs[0], logs[0]], tokenizer, server)
    assert len(server.requests) == 1
    np.testing.assert_array_equal(found[0].labels, found[1].labels)


def test_the_key_is_nowhere(logs, tokenizer, tmp_path, logged):
    """Not even where a server sends it back."""
    logging.getLogger().setLevel(logging.DEBUG)
    cache = tmp_path / "answers.jsonl"
    said = []
    for reply in (f"the key is {KEY}", 400, 401, 500):
        with serving(lambda *_, reply=reply: reply) as server:
            endpoint = OpenAIEndpoint("tiny", server.url)
            said.append(repr(endpoint) + repr(endpoint.connect()))
            try:
                read(logs[:1], tokenizer, server, endpoint=endpoint, cache=cache, attempts=1, patience=1)
            except BackendUnavailable as error:
                said += [str(error), repr(error), repr(error.__context__), repr(error.__cause__)]
    said += [cache.read_text(), logged.getvalue()]
    assert "[key]" in cache.read_text()
    assert not [text for text in said if KEY in text]


def test_any_word_that_a_local_server_takes_is_left_in_its_answers(logs, tokenizer, right, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "0")
    with serving(lambda body, _: right(body)) as server:
        found = read(logs[:1], tokenizer, server)
        assert server.requests[0]["key"] == "Bearer 0"
    assert accuracies(logs[:1], tokenizer, found) == [1.0]
    with serving(lambda *_: 404) as server, pytest.raises(BackendUnavailable, match="HTTP 404"):
        read(logs[:1], tokenizer, server)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": {}}, "tasks: got none for record 0"),
        ({"attempts": 0}, "attempts: got 0"),
        ({"workers": 0}, "workers: got 0"),
        ({"patience": 0}, "patience: got 0"),
        ({"unit_tokens": 0}, "unit_tokens: got 0"),
    ],
)
def test_nonsense_is_refused_before_anything_is_asked(logs, tokenizer, options, message):
    with serving(lambda *_: 500) as server, pytest.raises(InputError, match=message):
        read(logs, tokenizer, server, **options)
    assert not server.requests


@pytest.mark.parametrize(("module", "extra"), [("openai", "paper"), ("boto3", "bedrock")])
def test_a_missing_package_is_named(monkeypatch, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    endpoint = OpenAIEndpoint("tiny") if module == "openai" else BedrockEndpoint("tiny")
    with pytest.raises(BackendUnavailable, match=rf"{module} is missing: pip install .*\[{extra}\]"):
        endpoint.connect()


def test_a_text_of_one_speaker_is_no_question(tokenizer):
    with serving(lambda *_: 500) as server, pytest.raises(InputError, match="record 0: got 1 speakers"):
        read([log_of([(1, "all mine")], 2)], tokenizer, server)


# Bedrock


def converse(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": [{"text": text}]}
    return {
        "output": {"message": message},
        "stopReason": "end_turn",
        "usage": {},
        "metrics": {"latencyMs": 1},
    }


@pytest.fixture
def amazon(monkeypatch) -> None:
    pytest.importorskip("boto3")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIANOBODYMAYSEE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.usefixtures("amazon")
def test_bedrock_is_asked_the_same(logs, tokenizer, right):
    with serving(lambda body, _: right(body), converse) as server:
        endpoint = BedrockEndpoint("some.model-v1", base_url=server.url)
        found = read(logs[:2], tokenizer, server, endpoint=endpoint)
    assert accuracies(logs[:2], tokenizer, found) == [1.0, 1.0]
    request = server.requests[0]
    assert request["path"] == "/model/some.model-v1/converse"
    assert request["body"]["inferenceConfig"] == {"temperature": 0.0, "topP": 1.0}
    assert request["body"]["system"][0]["text"].startswith("You assign each token span")


@pytest.mark.usefixtures("amazon")
def test_trouble_of_bedrock_is_told_apart(logs, tokenizer, right):
    bad = f"task_description={TASKS[0]}\n"

    def ask(trouble, **options):
        def reply(body, _):
            return trouble if bad in body["messages"][-1]["content"][0]["text"] else right(body)

        with serving(reply, converse) as server:
            endpoint = BedrockEndpoint("some.model-v1", base_url=server.url, timeout=PATIENCE)
            found, _ = read(logs[:2], tokenizer, server, endpoint=endpoint, **options)
            return found.failures, found.attempts, len(server.requests) - 1

    assert ask(400) == (1, 1, 1)
    assert ask(503, attempts=2) == (1, 2, 2)
    assert ask(b'{"output": {}}', attempts=2) == (1, 2, 2)
    with pytest.raises(BackendUnavailable, match="permission") as raised:
        ask(403)
    assert KEY not in str(raised.value)


def test_bedrock_without_a_region_is_refused(logs, tokenizer, monkeypatch):
    pytest.importorskip("boto3")
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(pathlib.Path("no such file")))
    with pytest.raises(BackendUnavailable, match="NoRegionError"):
        BedrockEndpoint("some.model-v1").connect()
