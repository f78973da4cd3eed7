"""Mark a hosted model: agents write through an API without logits, and the text alone separates them.

Run `python examples/hosted_team.py` (extras `demo`, `hosted`, `service`). It starts a small server in place
of a provider: the shipped model with an OpenAI-compatible API that knows nothing of marks. `select` marks the
planner's text, `walk` the critic's. For a real provider, replace the URL, the model, `provider=` and the
tokenizer; `select` takes any.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import fastapi
import torch
import uvicorn

import iet
from iet.demo.conversation import MODEL, load_model
from iet.generation.hosted import HostedModel


def main(tokens: int = 240) -> iet.Report:
    registry = iet.Registry.create(None, tokenizer="iet:demo", scheme=iet.Scheme(family="gumbel"))
    registry.add("planner")
    registry.add("critic")
    turns = []
    with provider() as url:
        for agent, mark, prompt in (
            ("planner", "select", "The plan is to begin with"),
            ("critic", "walk", "What worries me about that plan is"),
        ):
            model = HostedModel(url, "small", registry, provider="vllm", mark=mark)  # type: ignore[arg-type]
            answer = model.write(agent, {"prompt": prompt, "max_tokens": tokens, "temperature": 1.0})
            print(f"{agent}: {mark}, {answer.usage.requests} requests,", end=" ")
            print(f"{answer.usage.completion_tokens / tokens:.1f} generated tokens for each of the answer")
            turns.append(answer.text.strip())
    return iet.Auditor(registry).audit(" ".join(turns))  # the text is the only input of the audit


@contextlib.contextmanager
def provider() -> Iterator[str]:
    """Serve completions of the shipped model, and yield the URL."""
    model, tokenizer = load_model(MODEL)
    app = fastapi.FastAPI()
    torch.manual_seed(0)

    @app.post("/v1/completions")
    def complete(body: dict[str, Any]) -> dict[str, Any]:
        inputs = tokenizer([body["prompt"]], return_tensors="pt")
        length = inputs["input_ids"].shape[1]
        output = model.generate(
            **inputs,
            do_sample=True,
            top_k=0,
            temperature=body["temperature"],
            num_return_sequences=body.get("n", 1),
            max_new_tokens=body["max_tokens"],
            return_dict_in_generate=True,
            output_logits=True,
        )
        choices = []
        for row, ids in enumerate(output.sequences[:, length:].tolist()):
            count = ids.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in ids else len(ids)
            text, tops = tokenizer.decode(ids[:count]), []
            for logits in output.logits[:count]:
                values, top = logits[row].log_softmax(-1).topk(20)
                tops.append(dict(zip(map(tokenizer.decode, top.tolist()), values.tolist(), strict=True)))
            drawn = [tokenizer.decode([token]) for token in ids[:count]]
            choice = {"text": text, "finish_reason": "length" if count == len(ids) else "stop"}
            choices.append({**choice, "logprobs": {"tokens": drawn, "top_logprobs": tops}})
        return {"choices": choices, "usage": {"completion_tokens": output.sequences[:, length:].numel()}}

    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    server.should_exit = True
    thread.join()


if __name__ == "__main__":
    print(main())
