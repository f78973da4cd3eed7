"""LiteLLM's proxy as a process, in the environment that .ci/prepare makes for it."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import secrets
import subprocess
import urllib.request
from collections.abc import Iterator

import pytest

from benchmarks.writing.vllm_server import free_port
from tests.support.waiting import PATIENCE, wait_until

ROOT = pathlib.Path(__file__).parents[2]
COMMAND = ROOT / "build" / "litellm" / "bin" / "litellm"


@contextlib.contextmanager
def proxy(
    folder: pathlib.Path,
    upstream: str,
    keys: pathlib.Path,
    engine: str = "vllm",
    sessions: pathlib.Path | None = None,
) -> Iterator[int]:
    """Run the proxy, with our hook and our authentication, before an engine until the block is left."""
    if not COMMAND.exists():
        pytest.skip("LiteLLM's proxy is not installed in build/litellm (.ci/prepare installs it)")
    port = free_port()
    model = {"model": "hosted_vllm/tiny", "api_base": f"{upstream}/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": "tiny", "litellm_params": model}],
        "litellm_settings": {"callbacks": "iet.service.litellm.hook", "num_retries": 0},
        "general_settings": {"custom_auth": "iet.service.litellm.authenticate"},
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("IET_", "LITELLM_"))
    }
    environment |= {"PYTHONPATH": str(ROOT), "HOME": str(folder), "NO_PROXY": "127.0.0.1"}
    environment |= {"IET_GATEWAY_KEYS": str(keys), "IET_GATEWAY_ENGINE": engine}
    environment |= {
        "LITELLM_MASTER_KEY": f"sk-{secrets.token_hex(32)}",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    environment |= {"IET_GATEWAY_SESSIONS": str(sessions)} if sessions else {}
    log = folder / "litellm.log"
    with log.open("w") as file:
        command = [str(COMMAND), "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )

    def alive() -> bool:
        assert process.poll() is None, log.read_text()[-4000:]
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=PATIENCE),
        ):
            return True
        return False

    try:
        wait_until(alive, lambda: log.read_text()[-4000:], 0.3)
        yield port
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()
