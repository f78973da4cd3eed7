"""The judge's path through a server that people run: `transformers serve` with the shipped model."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

pytest.importorskip("openai")
pytest.importorskip("fastapi", reason="transformers serve needs it")
pytest.importorskip("uvicorn", reason="transformers serve needs it")
pytest.importorskip("accelerate", reason="transformers serve needs it")

from benchmarks.paper.asking.endpoints import OpenAIEndpoint, Sampling
from benchmarks.paper.failure import protocols
from benchmarks.paper.failure.protocols import Judge
from benchmarks.paper.failure.trajectories import SUBSETS, Trajectory, Turn
from benchmarks.writing.vllm_server import free_port
from iet.demo.conversation import MODEL
from iet.errors import BackendUnavailable
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.usefixtures("any_key")

# The shipped model has no chat template, and a server needs one.
TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n\n{% endfor %}"

LOGS = [
    Trajectory(
        SUBSETS[0],
        number,
        f"How many apples are {number} and 3 apples?",
        str(number + 3),
        (Turn("Planner", "We add them."), Turn("Coder", f"{number} * 3"), Turn("Checker", "I agree.")),
        "Coder",
        1,
    )
    for number in range(2)
]


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[tuple[str, str]]:
    """Where the model is served, and its name there."""
    folder = tmp_path_factory.mktemp("served")
    model = folder / "judge"
    shutil.copytree(MODEL, model)
    settings = model / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "chat_template": TEMPLATE}))
    port = free_port()
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(model)]
    log = folder / "server.log"
    with open(log, "wb") as output:
        server = subprocess.Popen(
            [*command, "--device", "cpu", "--host", "127.0.0.1", "--port", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )
    try:
        _wait(server, f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}/v1", str(model)
    finally:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(20)
        server.kill()
        server.wait()


def _wait(server: subprocess.Popen[bytes], url: str, log: pathlib.Path) -> None:
    def said() -> str:
        return f"transformers serve did not start:\n{log.read_text(errors='replace')[-2000:]}"

    def healthy() -> bool:
        assert server.poll() is None, said()
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=PATIENCE):
            return True
        return False

    wait_until(healthy, said, 0.2)


def ask(served: tuple[str, str], cache: pathlib.Path, **options):
    url, model = served
    judge = Judge(OpenAIEndpoint(options.pop("model", model), url), workers=1)
    return protocols.judge(LOGS, judge, cache=cache, sampling=Sampling(max_tokens=24), pause=0.0, **options)


def test_a_server_that_people_run_is_a_judge(served, tmp_path):
    cache = tmp_path / "answers.jsonl"
    found = ask(served, cache)
    lines = [json.loads(line) for line in cache.read_text().splitlines()]
    assert len({line["key"] for line in lines}) == len(lines)
    assert len(lines) == sum(outcome.calls for some in found.values() for outcome in some)
    assert any(line["answer"].strip() for line in lines)
    for outcomes in found.values():
        for outcome in outcomes:
            assert not outcome.unanswered
            # So small a model says nothing in form; what it says is none of the endpoint's troubles.
            assert (outcome.prediction is None) == bool(outcome.reason)
    before = cache.read_bytes()
    assert ask(served, cache) == found
    assert cache.read_bytes() == before  # nothing was asked again


def test_a_model_that_is_not_served_there_is_refused(served, tmp_path):
    cache = tmp_path / "answers.jsonl"
    with pytest.raises(BackendUnavailable, match="no answer to 2 questions in a row"):
        ask(served, cache, model="nobody/nothing", patience=2)
    assert cache.read_bytes() == b""
