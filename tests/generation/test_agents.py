"""Requests that each agent framework sends to a local server, and the rules of `iet.agents`."""

from __future__ import annotations

import asyncio
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any, get_args

import pytest

from iet import agents
from iet.errors import InputError
from tests.support.chat_server import completion, serving

ENGINES = get_args(agents.Engine)
NAME = "Plänner №1"  # on the wire it is escaped, or UTF-8


def _openai(url: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    answer = client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hello"}], extra_body=body
    )
    return answer.choices[0].message.content


def _openai_agents(url: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    framework = pytest.importorskip("agents", reason="openai-agents is not installed")
    openai = pytest.importorskip("openai")
    model = framework.OpenAIChatCompletionsModel(
        model="m", openai_client=openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    )
    agent = framework.Agent(
        name="writer", model=model, model_settings=framework.ModelSettings(extra_body=body)
    )
    return framework.Runner.run_sync(agent, "hello").final_output


def _langchain(url: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str:
    framework = pytest.importorskip("langchain_openai")
    model = framework.ChatOpenAI(model="m", base_url=url, api_key="none", max_retries=0, extra_body=body)
    return model.invoke("hello").content


def _crewai(url: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str:
    return _crewai_llm(url, body, monkeypatch).call("hello")


def _crewai_llm(url: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    for variable in ("CREWAI_DISABLE_TELEMETRY", "OTEL_SDK_DISABLED"):
        monkeypatch.setenv(variable, "true")
    framework = pytest.importorskip("crewai")
    return framework.LLM(model="m", provider="openai", base_url=url, api_key="none", extra_body=body)


def _crewai_crew(url: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str:
    model = _crewai_llm(url, body, monkeypatch)
    framework = pytest.importorskip("crewai")
    writer = framework.Agent(role="writer", goal="write", backstory="none", llm=model)
    task = framework.Task(description="hello", expected_output="a text", agent=writer)
    return framework.Crew(agents=[writer], tasks=[task]).kickoff().raw


def _autogen_agents(url: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str:
    chat = pytest.importorskip("autogen_agentchat.agents")
    framework = pytest.importorskip("autogen_ext.models.openai")
    core = pytest.importorskip("autogen_core.models")
    client = framework.OpenAIChatCompletionClient(
        model="m",
        base_url=url,
        api_key="none",
        max_retries=0,
        extra_body=body,
        model_info=core.ModelInfo(
            vision=False, function_calling=False, json_output=False, structured_output=False, family="unknown"
        ),
    )

    async def ask() -> Any:
        result = await chat.AssistantAgent("writer", model_client=client).run(task="hello")
        await client.close()
        return result.messages[-1].content

    return asyncio.run(ask())


FRAMEWORKS: dict[str, Callable[[str, dict[str, Any], pytest.MonkeyPatch], str]] = {
    "openai": _openai,
    "openai-agents": _openai_agents,
    "langchain-openai": _langchain,
    "crewai": _crewai,
    "crewai-crew": _crewai_crew,
    "autogen-agentchat": _autogen_agents,
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_frameworks_send_the_agent(
    framework: str, engine: agents.Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HOME", str(tmp_path))  # where CrewAI keeps a database and a key
    body = agents.body(NAME, engine=engine)

    def form(text: str) -> dict[str, Any]:
        return {**completion(text), "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}

    with serving(lambda request, attempt: "as you wish", form) as server:
        assert FRAMEWORKS[framework](server.url + "/v1", body, monkeypatch) == "as you wish"
    assert [request["path"] for request in server.requests] == ["/v1/chat/completions"]
    sent = server.requests[0]["body"]
    assert {field: sent.get(field) for field in body} == body
    assert "hello" in json.dumps(sent["messages"])


@pytest.mark.parametrize("engine", ENGINES)
def test_body_is_json_and_a_fresh_copy(engine: agents.Engine) -> None:
    body = agents.body(NAME, engine=engine)
    assert json.loads(json.dumps(body)) == body
    for value in body.values():
        if isinstance(value, dict):
            value["iet_agent"] = "changed"
    assert agents.body(NAME, engine=engine) != body


@pytest.mark.parametrize("name", ["", " planner", "plan\nner", "a" * 201, 7, None, b"planner", "\ud800"])
def test_rejects_invalid_agent_names(name: Any) -> None:
    with pytest.raises(InputError, match="agent name"):
        agents.body(name)


@pytest.mark.parametrize("engine", ["", "VLLM", "tgi", None, 3, ["vllm"]])
def test_rejects_unknown_engines(engine: Any) -> None:
    for call in (lambda: agents.body("a", engine=engine), lambda: agents.enforce({}, "a", engine=engine)):
        with pytest.raises(InputError, match="expected one of vllm, sglang"):
            call()


def test_enforce_overrides_the_client() -> None:
    sent_fields = {"model": "m", "vllm_xargs": {"iet_agent": "boss", "session_id": "7"}}
    assert agents.enforce(sent_fields, "planner") == {
        "model": "m",
        "vllm_xargs": {"iet_agent": "planner", "session_id": "7"},
    }
    assert sent_fields["vllm_xargs"] == {"iet_agent": "boss", "session_id": "7"}
    assert agents.enforce({"vllm_xargs": None}, "planner") == agents.body("planner")

    sent_fields = {
        "custom_params": {"iet_agent": "boss", "thinking_budget": 5},
        "custom_logit_processor": '{"callable": "00"}',  # code of the client's
        "watermark": {"enabled": False},
        "vllm_xargs": {},
    }
    named = agents.body("planner", engine="sglang")
    assert agents.enforce(sent_fields, "planner", engine="sglang") == {
        "custom_params": {"iet_agent": "planner", "thinking_budget": 5},
        "custom_logit_processor": named["custom_logit_processor"],
        "vllm_xargs": {},
    }


@pytest.mark.parametrize(
    ("request_", "named"),
    [([], "request: got list"), (None, "request"), ({"vllm_xargs": "iet_agent"}, "vllm_xargs: got str")],
)
def test_rejects_requests_that_are_not_objects(request_: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        agents.enforce(request_, "planner")


@pytest.mark.parametrize("engine", ENGINES)
def test_session_of_a_request(engine: agents.Engine) -> None:
    agent_field = next(iter(agents.body(NAME, engine=engine)))
    body = agents.body(NAME, engine=engine, session="run-7")
    assert body[agent_field] == {"iet_agent": NAME, "iet_session": "run-7"}
    assert agents.session_of(body, engine=engine) == "run-7"
    assert (
        agents.session_of({}, engine=engine) is agents.session_of({agent_field: None}, engine=engine) is None
    )
    # A client's own goes no further, unless the gateway passes it on.
    assert agents.enforce(body, NAME, engine=engine) == agents.body(NAME, engine=engine)
    assert agents.enforce({}, NAME, engine=engine, session="run-7") == body
    agents.refuse_lies(body, NAME, engine=engine, session="run-7")
    for session in (None, "run-8"):
        with pytest.raises(InputError, match="got iet_session 'run-7'"):
            agents.refuse_lies(body, NAME, engine=engine, session=session)
    for wrong in (7, "", " a", "a\n", ["a"]):
        with pytest.raises(InputError, match="session: got"):
            agents.body(NAME, engine=engine, session=wrong)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=r"^iet_session: got"):
            agents.session_of({agent_field: {"iet_session": wrong}}, engine=engine)
    for request in ([], {agent_field: "run-7"}):
        with pytest.raises(InputError, match="expected a JSON object"):
            agents.session_of(request, engine=engine)  # type: ignore[arg-type]


def test_agents_imports_no_engine() -> None:
    code = (
        "import sys, iet; iet.agents.body('a'); iet.agents.body('a', engine='sglang');"
        "print(*{'torch', 'numba', 'transformers', 'sglang', 'vllm', 'dill'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("engine", ENGINES)
def test_refuse_lies_accepts_true_claims(engine: agents.Engine) -> None:
    agent_field = next(iter(agents.body(NAME, engine=engine)))
    for request in (
        {},
        {agent_field: None},
        {agent_field: {"session_id": "7"}},
        agents.body(NAME, engine=engine),
    ):
        sent_fields = {"model": "m", **request}
        agents.refuse_lies(sent_fields, NAME, engine=engine)
        assert sent_fields == {"model": "m", **request}


@pytest.mark.parametrize("engine", ENGINES)
def test_refuse_lies_rejects_false_claims(engine: agents.Engine) -> None:
    agent_field = next(iter(agents.body(NAME, engine=engine)))
    for claim in ({"iet_agent": "boss"}, {"iet_agent": NAME.upper()}, {"iet_unmarked": True}, {"iet_": 1}):
        with pytest.raises(InputError, match=f"^{agent_field}: got {next(iter(claim))} "):
            agents.refuse_lies({agent_field: claim}, NAME, engine=engine)
    for field in agents.fields(engine) - {agent_field}:
        with pytest.raises(InputError, match=f"^{field}: got one, expected none"):
            agents.refuse_lies({field: {"key": 7}}, NAME, engine=engine)
    with pytest.raises(InputError, match=f"^{agent_field}: got list"):
        agents.refuse_lies({agent_field: [1]}, NAME, engine=engine)
    with pytest.raises(InputError, match=r"^use_beam_search: got one, expected none"):
        agents.refuse_lies({"use_beam_search": True, **agents.body(NAME, engine=engine)}, NAME, engine=engine)
    agents.refuse_lies({"use_beam_search": False}, NAME, engine=engine)
    named = agents.body(NAME, engine=engine)
    assert agents.enforce({"use_beam_search": True}, NAME, engine=engine) == named
    assert set(agents.body(NAME, engine=engine)) <= agents.fields(engine)
