"""Hosted models: marked answers from a server of an OpenAI-compatible API, their law, and refusals."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from scipy.stats import chisquare

import iet
from iet.generation import selection
from iet.generation.hosted import Answer, HostedModel
from iet.generation.providers import PROVIDERS, Provider
from tests.support.chat_server import Server, completion, serving
from tests.support.small_writer import SmallWriter, gumbel_team, serving_small, words

ASK = {"messages": [{"role": "user", "content": "Write."}]}


def chain(count: int, concentration: float, end: float, **options: Any) -> SmallWriter:
    law = np.random.default_rng(7).dirichlet([concentration] * count, count)
    return SmallWriter(words(count), np.hstack([law * (1 - end), np.full((count, 1), end)]), **options)


@pytest.fixture(scope="module")
def registry() -> iet.Registry:
    return gumbel_team(["planner", "critic", "writer"])


@pytest.fixture(scope="module")
def many() -> iet.Registry:
    return gumbel_team(f"agent-{number}" for number in range(500))


@contextlib.contextmanager
def hosted(
    writer: SmallWriter, registry: iet.Registry, provider: str | Provider = "vllm", **options: Any
) -> Iterator[tuple[HostedModel, Server]]:
    with serving_small(writer) as server:
        yield HostedModel(server.url, "small", registry, provider=provider, **options), server


@pytest.mark.parametrize("mark", ["select", "walk"])
@pytest.mark.parametrize("request_", [ASK, {"prompt": "Write."}])
def test_the_unchanged_auditor_names_the_agent(
    registry: iet.Registry, mark: Any, request_: dict[str, Any]
) -> None:
    with hosted(chain(200, 0.3, 0.0), registry, mark=mark) as (model, _):
        answer = model.write("critic", {**request_, "max_tokens": 600})
    assert iet.Auditor(registry, level=1e-4).audit(answer.text).found == ("critic",)
    assert answer.finish_reason == "length"


def test_chunks_continue_the_chat_and_the_budget_is_kept(registry: iet.Registry) -> None:
    with hosted(chain(200, 0.3, 0.0), registry) as (model, server):
        answer = model.write("planner", {**ASK, "max_tokens": 40, "temperature": 0.9})
    bodies = [request["body"] for request in server.requests]
    assert [body["max_tokens"] for body in bodies] == [16, 16, 8]
    assert all(body["n"] == 8 and body["temperature"] == 0.9 for body in bodies)
    assert "continue_final_message" not in bodies[0]
    assert bodies[2]["continue_final_message"]
    assert not bodies[2]["add_generation_prompt"]
    assert bodies[2]["messages"][0] == ASK["messages"][0]
    assert answer.text.startswith(bodies[2]["messages"][1]["content"])
    assert (answer.usage.requests, answer.usage.completion_tokens) == (3, 8 * 40)


def test_walking_asks_for_log_probabilities_without_filters(registry: iet.Registry) -> None:
    with hosted(chain(200, 0.3, 0.0), registry, mark="walk") as (model, server):
        model.write("planner", {**ASK, "max_tokens": 60})
    body = server.requests[-1]["body"]
    assert (body["logprobs"], body["top_logprobs"], body["top_p"], body["top_k"]) == (True, 20, 1.0, 0)
    assert "n" not in body
    assert len(server.requests) < 60


@pytest.mark.parametrize(
    ("provider", "requests", "candidates"), [("openai", 1, 8), ("anthropic", 8, None), ("gemini", 8, None)]
)
def test_whole_answers_are_chosen_from_if_nothing_continues(
    registry: iet.Registry, provider: str, requests: int, candidates: int | None
) -> None:
    with hosted(chain(200, 0.3, 0.02), registry, provider) as (model, server):
        answer = model.write("planner", {**ASK, "max_tokens": 100})
    assert [request["body"].get("n") for request in server.requests] == [candidates] * requests
    assert answer.finish_reason in ("stop", "length")


def test_a_prefix_is_marked_as_such_for_providers_that_ask_for_it(registry: iet.Registry) -> None:
    with hosted(chain(200, 0.3, 0.0), registry, "deepseek", candidates=2) as (model, server):
        model.write("planner", {**ASK, "max_tokens": 20})
    last = server.requests[-1]["body"]["messages"][-1]
    assert (last["role"], last["prefix"]) == ("assistant", True)
    assert len(server.requests) == 4


def test_a_server_that_returns_the_continued_part_is_understood(registry: iet.Registry) -> None:
    with hosted(chain(200, 0.3, 0.0, echoes=True), registry, "llama.cpp") as (model, _):
        answer = model.write("planner", {**ASK, "max_tokens": 48})
    assert len(answer.text.split()) == 48


@pytest.mark.parametrize("mark", ["select", "walk"])
def test_a_stop_string_ends_the_answer_wherever_chunks_join(registry: iet.Registry, mark: Any) -> None:
    writer = chain(4, 2.0, 0.0)
    stop = writer.words[1] + writer.words[2]
    with hosted(writer, registry, mark=mark, chunk_tokens=3, candidates=2) as (model, _):
        for seed in range(12):
            grown: list[str] = []
            answer = asyncio.run(
                collected(model, {**ASK, "max_tokens": 400, "stop": [stop], "seed": seed}, grown)
            )
            assert answer.finish_reason == "stop"
            assert stop not in answer.text
            assert all(answer.text.startswith(text) for text in grown)


async def collected(
    model: HostedModel, request: dict[str, Any], grown: list[str], agent: str = "planner"
) -> Answer:
    async for answer in model.stream(agent, request):
        grown.append(answer.text)
    return answer


@pytest.mark.parametrize("mark", ["select", "walk"])
def test_answers_follow_the_law_of_the_model(
    many: iet.Registry, mark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Over keys: three tokens of a skewed chain, with an end, in chunks of two tokens.
    monkeypatch.setattr(selection, "_SIMULATED", 63)
    rows = np.array([[0.7, 0.15, 0.05, 0.1], [0.2, 0.6, 0.1, 0.1], [0.3, 0.3, 0.3, 0.1]])
    writer, temperature = SmallWriter(words(3), rows), 0.8
    with hosted(writer, many, mark=mark, chunk_tokens=2, candidates=4, free=iet.FreeTokens(0, 0.0)) as (
        model,
        _,
    ):
        texts = asyncio.run(answers(model, list(many), {**ASK, "max_tokens": 3, "temperature": temperature}))
    expected: collections.Counter[str] = collections.Counter()

    def spread(text: str, left: int, chance: float) -> None:
        law = writer.law(text, temperature)
        if not left:
            expected[text] += chance  # type: ignore[assignment]
            return
        expected[text] += chance * law[-1]
        for word, share in zip(writer.words, law, strict=False):
            spread(text + word, left - 1, chance * share)

    spread("", 3, 1.0)
    kinds = [text for text in expected if expected[text] * len(texts) > 5]
    observed = [texts.count(text) for text in kinds]
    wanted = [expected[text] * len(texts) for text in kinds]
    rest = [len(texts) - sum(observed)], [len(texts) - sum(wanted)]
    assert chisquare(observed + rest[0], wanted + rest[1]).pvalue > 1e-3


async def answers(model: HostedModel, agents: list[str], request: dict[str, Any]) -> list[str]:
    async def write(agent: str) -> str:
        return (await collected(model, request, [], agent)).text

    return [
        text
        for first in range(0, len(agents), 50)
        for text in await asyncio.gather(*map(write, agents[first : first + 50]))
    ]


def test_tokens_that_are_not_among_the_likeliest_are_kept(registry: iet.Registry) -> None:
    # A flat chain of 200 tokens: nine of ten drawn tokens are not among the first 19.
    writer = SmallWriter(words(200), np.hstack([np.full((200, 200), 1 / 200), np.zeros((200, 1))]))
    with hosted(writer, registry, mark="walk") as (model, server):
        answer = model.write("planner", {**ASK, "max_tokens": 200})
    assert len(set(answer.text.split())) > 60
    assert len(server.requests) < 100


def test_log_probabilities_after_temperature_are_taken_as_they_are(many: iet.Registry) -> None:
    rows = np.array([[0.7, 0.3, 0.0], [0.7, 0.3, 0.0]])
    options: dict[str, Any] = {"mark": "walk", "chunk_tokens": 1, "free": iet.FreeTokens(0, 0.0)}
    with hosted(SmallWriter(words(2), rows, tempered=True), many, "sglang", **options) as (model, _):
        texts = asyncio.run(answers(model, list(many)[:300], {**ASK, "max_tokens": 1, "temperature": 0.5}))
    share = 0.49 / (0.49 + 0.09)
    count = texts.count(words(1)[0])
    assert chisquare([count, 300 - count], [300 * share, 300 * (1 - share)]).pvalue > 1e-3


def test_an_end_of_an_unusual_name_is_no_text(registry: iet.Registry) -> None:
    writer = chain(200, 0.3, 0.05)
    writer.end = "[EOS]"
    provider = dataclasses.replace(PROVIDERS["vllm"], ends=("[EOS]",))
    with hosted(writer, registry, provider, mark="walk") as (model, _):
        written = [model.write("planner", {**ASK, "max_tokens": 400}) for _ in range(3)]
    assert all("[EOS]" not in answer.text for answer in written)
    assert {answer.finish_reason for answer in written} == {"stop"}


def test_a_token_that_is_no_text_ends_the_answer(registry: iet.Registry) -> None:
    top = [{" a": -0.1}, {"[EOS]": -0.1}]
    log_probs = {"tokens": [" a", "[EOS]"], "top_logprobs": top}
    reply = json.dumps({"choices": [{"text": " a", "finish_reason": "stop", "logprobs": log_probs}]}).encode()
    with serving(lambda body, attempt: reply) as server:
        model = HostedModel(server.url, "small", registry, provider="vllm", mark="walk")
        answer = model.write("planner", {"prompt": "x"})
    assert (answer.text, answer.finish_reason) == (" a", "stop")


def test_the_last_token_of_a_stop_string_does_not_end_other_text(registry: iet.Registry) -> None:
    def part(text: str, reason: str, drawn: list[tuple[str, str]]) -> bytes:
        tops = [{token: -60.0, likely: -0.01} for token, likely in drawn]
        log_probs = {"tokens": [token for token, _ in drawn], "top_logprobs": tops}
        choice = {"text": text, "finish_reason": reason, "logprobs": log_probs}
        return json.dumps({"choices": [choice]}).encode()

    # The key replaces " a" by " b", so the stop string of the first draft is not reached.
    first = part(" a", "stop", [(" a", " b"), (" foo", " foo"), (" bar", " bar")])
    second = part(" bar c", "length", [(" bar", " bar"), (" c", " c")])
    with serving(lambda body, _: second if body["prompt"].endswith("b") else first) as server:
        options: dict[str, Any] = {"mark": "walk", "free": iet.FreeTokens(0, 0.0)}
        model = HostedModel(server.url, "small", registry, provider="vllm", **options)
        answer = model.write("planner", {"prompt": "x", "max_tokens": 3, "stop": [" foo bar"]})
    assert answer.text == " b bar c"


def test_a_short_answer_by_walk_is_warned_of(registry: iet.Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    log = logging.getLogger("iet.generation.hosted")
    monkeypatch.setattr(log, "warning", lambda message, *values: warnings.append(message % values))
    with hosted(chain(200, 0.3, 0.0), registry, mark="walk", free=iet.FreeTokens(first=5)) as (model, _):
        model.write("planner", {**ASK, "max_tokens": 5})
    assert "requests with max_tokens 5 are not marked" in warnings[0]


def test_equal_prompts_get_different_answers_and_a_seed_repeats_one(registry: iet.Registry) -> None:
    with hosted(chain(200, 0.3, 0.0), registry, mark="walk") as (model, _):
        texts = {model.write("planner", {**ASK, "max_tokens": 60}).text for _ in range(4)}
        repeated = {model.write("planner", {**ASK, "max_tokens": 60, "seed": 5}).text for _ in range(2)}
    assert len(texts) == 4
    assert len(repeated) == 1


def test_with_a_seed_candidates_differ_and_repeat(registry: iet.Registry) -> None:
    with hosted(chain(200, 0.3, 0.0), registry, candidates=4) as (model, server):
        first, second = (model.write("planner", {**ASK, "max_tokens": 32, "seed": 9}) for _ in range(2))
    assert first.text == second.text
    seeds = [request["body"]["seed"] for request in server.requests[:8]]
    assert len(set(seeds)) == 8


def test_a_session_marks_with_its_own_key(registry: iet.Registry) -> None:
    with hosted(chain(200, 0.3, 0.0), registry, mark="walk") as (model, _):
        answer = model.write("writer", {**ASK, "max_tokens": 300}, "run-7")
    assert iet.Auditor(registry, level=1e-4, sessions=["run-7"]).audit(answer.text).found == ("writer",)
    assert iet.Auditor(registry, level=1e-4).audit(answer.text).found == ()


def test_a_request_that_fails_is_tried_again(registry: iet.Registry) -> None:
    writer = chain(50, 0.3, 0.0)

    def reply(body: dict[str, Any], attempt: int) -> Any:
        return 503 if attempt == 1 else writer.reply(body, attempt)

    with serving(reply) as server:
        model = HostedModel(server.url, "small", registry, provider="vllm", api_key="sk-hidden")
        answer = model.write("planner", {**ASK, "max_tokens": 16})
    assert len(answer.text.split()) == 16
    assert [request["key"] for request in server.requests] == ["Bearer sk-hidden"] * 2


def test_an_error_of_the_provider_is_raised_and_shows_no_key(registry: iet.Registry) -> None:
    with serving(lambda body, attempt: 401) as server:
        model = HostedModel(server.url, "small", registry, provider="vllm", api_key="sk-hidden", retries=0)
        with pytest.raises(openai.AuthenticationError) as refused:
            model.write("planner", ASK)
    assert "refused with Bearer ***" in str(refused.value)
    assert "sk-hidden" not in f"{model!r} {vars(model)!r}"


def content(**message: Any) -> bytes:
    choice = {"index": 0, "finish_reason": "length", "message": {"role": "assistant", **message}}
    return json.dumps({"choices": [choice]}).encode()


@pytest.mark.parametrize(
    ("mark", "reply", "expected"),
    [
        ("select", b"{}", "no completion of OpenAI's form"),
        ("select", b"<html>", "no completion of OpenAI's form"),
        ("select", json.dumps(completion(" a")).encode(), "got 1 candidates, expected 8"),
        ("walk", content(content="", reasoning_content="Hm."), "reasons before it answers"),
        ("walk", content(content=" a"), "without log-probabilities"),
        ("select", content(content=[" a"]), "no completion of OpenAI's form"),
    ],
)
def test_an_answer_in_another_form_is_refused(
    registry: iet.Registry, mark: Any, reply: bytes, expected: str
) -> None:
    with serving(lambda body, attempt: reply) as server:
        model = HostedModel(server.url, "small", registry, provider="vllm", mark=mark)
        with pytest.raises(iet.IetError, match=expected):
            model.write("planner", ASK)


def test_a_character_in_several_tokens_is_kept_whole(registry: iet.Registry) -> None:
    parts = [[240, 159], [145, 128]]

    def token(values: list[int]) -> dict[str, Any]:
        known = {"token": "", "bytes": values, "logprob": -0.5}
        return {**known, "top_logprobs": [known]}

    choice = {
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": "\N{EYES}"},
        "logprobs": {"content": [token(values) for values in parts]},
    }
    with serving(lambda body, attempt: json.dumps({"choices": [choice]}).encode()) as server:
        model = HostedModel(server.url, "small", registry, provider="vllm", mark="walk")
        answer = model.write("planner", ASK)
    assert (answer.text, answer.finish_reason) == ("\N{EYES}", "stop")


def test_part_of_a_character_at_the_end_of_a_chunk_is_drawn_again(registry: iet.Registry) -> None:
    replies = [content(content=" eyes \ufffd"), json.dumps(completion("\N{EYES}")).encode()]

    def reply(body: dict[str, Any], attempt: int) -> bytes:
        return replies[len(body["messages"]) - 1]

    with serving(reply) as server:
        model = HostedModel(server.url, "small", registry, provider=Provider("", many=False, continued={}))
        answer = model.write("planner", ASK)
    assert answer.text == " eyes \N{EYES}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"provider": "nobody"}, "provider: got 'nobody', expected one of vllm, sglang"),
        ({"provider": "anthropic", "mark": "walk"}, "expected 'select' with anthropic, which offers"),
        ({"provider": "openai", "mark": "walk"}, "expected 'select' with openai"),
        ({"mark": "native"}, "mark: got 'native', expected one of select, walk"),
        ({"candidates": 1}, "candidates: got 1"),
        ({"chunk_tokens": 0}, "chunk_tokens: got 0"),
        ({"timeout": 0}, "timeout: got 0"),
        ({"retries": -1}, "retries: got -1"),
        ({"model": ""}, "model: got ''"),
        ({"base_url": None}, "base_url: got None"),
        ({"registry": {}}, "registry: got dict"),
    ],
)
def test_bad_settings_are_refused(registry: iet.Registry, options: dict[str, Any], message: str) -> None:
    given = {"base_url": "http://127.0.0.1:9", "model": "m", "registry": registry, "provider": "vllm"}
    with pytest.raises(iet.InputError, match=message):
        HostedModel(**{**given, **options})


@pytest.mark.parametrize(
    ("mark", "fields", "message"),
    [
        ("select", {"tools": [{"type": "function"}]}, "tools: got [{'type': 'function'}], expected []"),
        ("select", {"logprobs": True}, "logprobs: got True"),
        ("select", {"n": 2}, "n: got 2, expected 1"),
        ("select", {"temperature": 0}, "temperature: got 0, expected a number from 0.1"),
        ("select", {"temperature": 0.01}, "temperature: got 0.01, expected a number from 0.1"),
        ("select", {"top_p": 0.01}, "top_p: got 0.01"),
        ("select", {"min_p": 1.0}, "min_p: got 1.0"),
        ("select", {"top_k": 1}, "top_k: got 1"),
        ("select", {"top_k": "1"}, "top_k: got '1'"),
        ("select", {"n_predict": 300}, "n_predict: got 300, expected none; accepted: chat_template_kwargs"),
        ("select", {"custom_logit_processor": "x"}, "custom_logit_processor: got 'x', expected none"),
        ("select", {"presence_penalty": 0.5}, "presence_penalty: got 0.5, expected 0"),
        ("select", {"max_tokens": 0}, "max_tokens: got 0"),
        ("select", {"max_completion_tokens": "many"}, "max_completion_tokens: got 'many'"),
        ("select", {"stop": [""]}, "stop: got"),
        ("select", {"stop": 3}, "stop: got 3"),
        ("select", {"seed": "x"}, "seed: got 'x'"),
        ("select", {"response_format": {"type": "json_object"}}, "response_format: got"),
        ("select", {"messages": None}, "expected one of messages and prompt"),
        ("select", {"prompt": "x"}, "expected one of messages and prompt"),
        ("select", {"messages": []}, "messages: got"),
        ("select", {"messages": [{"role": "assistant", "content": "x"}]}, "the last one is the assistant's"),
        ("select", {"messages": None, "prompt": [1, 2]}, "prompt: got list"),
        ("walk", {"top_p": 0.9}, "top_p: got 0.9, expected none with mark 'walk'"),
        ("walk", {"logit_bias": {"5": 1}}, "logit_bias: got"),
        ("walk", {"top_k": 5}, "top_k: got 5"),
    ],
)
def test_requests_that_cannot_be_marked_are_refused_before_any_work(
    registry: iet.Registry, mark: Any, fields: dict[str, Any], message: str
) -> None:
    with hosted(chain(5, 1.0, 0.1), registry, mark=mark) as (model, server):
        with pytest.raises(iet.InputError, match=re.escape(message)):
            model.write("planner", {**ASK, **fields})
        with pytest.raises(iet.RegistryError, match="nobody"):
            model.write("nobody", ASK)
    assert server.requests == []


def test_prompts_are_refused_by_providers_of_chats_alone(registry: iet.Registry) -> None:
    model = HostedModel("http://127.0.0.1:9", "m", registry, provider="mistral")
    with pytest.raises(iet.InputError, match="got a prompt, expected messages: mistral offers n"):
        model.write("planner", {"prompt": "x"})


def test_every_provider_says_what_it_offers() -> None:
    assert all(provider.summary for provider in PROVIDERS.values())
    assert {"vllm", "sglang", "llama.cpp", "deepseek", "mistral", "together"} <= set(PROVIDERS)
