"""LiteLLM: the standard logging payloads of its proxy and callbacks, one line for each request."""

# requires: litellm==1.105.7

import asyncio
import json
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import answers
import litellm
from litellm.integrations.custom_logger import CustomLogger

SYSTEM = {"planner": answers.PLANNER_SYSTEM, "critic": answers.CRITIC_SYSTEM}
payloads: list[Any] = []


class Collector(CustomLogger):
    async def async_log_success_event(
        self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        payloads.append(kwargs["standard_logging_object"])


async def run(url: str) -> None:
    log = [{"role": "user", "content": answers.USER}]
    for name in ("planner", "critic", "planner"):
        response = await litellm.acompletion(
            model="openai/garden",
            api_base=f"{url}/v1",
            api_key="-",
            messages=[{"role": "system", "content": SYSTEM[name]}, *log],
            metadata={"tags": [name, "garden"], "session_id": "garden"},
        )
        log.append({"role": "assistant", "content": response.choices[0].message.content})
        await asyncio.sleep(2)


litellm.callbacks = [Collector()]
with answers.server(answers.PLANNER, answers.CRITIC, answers.PLANNER_AGAIN) as url:
    asyncio.run(run(url))
    text = json.dumps(payloads, default=str).replace(url, "http://127.0.0.1:8000")
answers.write("litellm_payloads.jsonl", json.loads(text))
