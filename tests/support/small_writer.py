"""A server of an OpenAI-compatible API whose model is a small Markov chain: its text has a known law."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

import iet
from iet.marks.tokenizer import Tokenizer
from tests.support.chat_server import Server, serving
from tests.support.teams import secret

END = "<|im_end|>"


@functools.cache
def words(count: int | None = None) -> tuple[str, ...]:
    """Return the first tokens of the shipped tokenizer that are words, each with its blank; None: all."""
    tokenizer = Tokenizer("iet:demo")
    decoded = [tokenizer.decode([token]) for token in range(tokenizer.vocab_size)]
    return tuple(token for token in decoded if re.fullmatch(" [a-z]{2,}", token))[:count]


def gumbel_team(names: Iterable[str]) -> iet.Registry:
    """Return a registry in memory of agents with keys of family gumbel, the same in every run."""
    registry = iet.Registry.create(None, tokenizer="iet:demo", scheme=iet.Scheme(family="gumbel"))
    for name in names:
        registry.add(name, secret=secret(name))
    return registry


@dataclasses.dataclass
class SmallWriter:
    """Answers requests for completions and chats with text of a Markov chain.

    Attributes:
        words: tokens of the text, each with its blank.
        transitions: [W, W + 1], probabilities of the next token, the last one of the end of the answer.
        top: maximum number of log-probabilities.
        echoes: whether an answer holds the part that it continues, as with llama.cpp.
        tempered: whether log-probabilities are after temperature, as with SGLang.
        end: what the end of an answer is called.
    """

    words: tuple[str, ...]
    transitions: np.ndarray
    top: int = 20
    echoes: bool = False
    tempered: bool = False
    end: str = END

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def law(self, text: str, temperature: float = 1.0) -> np.ndarray:
        """Return the probabilities of what follows a text."""
        last = next((i for i, word in enumerate(self.words) if text.endswith(word)), 0)
        powers = self.transitions[last] ** (1 / temperature)
        return powers / powers.sum()

    def reply(self, body: dict[str, Any], _: int) -> bytes:
        text = body.get("prompt", "")
        if "messages" in body:
            last = body["messages"][-1]
            text = last["content"] if last["role"] == "assistant" else ""
        rng = self._rng if "seed" not in body else np.random.default_rng(body["seed"])
        choices = [self._choice(body, text, rng) for _ in range(body.get("n", 1))]
        usage = {"prompt_tokens": 10, "completion_tokens": sum(choice.pop("count") for choice in choices)}
        return json.dumps({"choices": choices, "usage": usage}).encode()

    def _choice(self, body: dict[str, Any], text: str, rng: np.random.Generator) -> dict[str, Any]:
        tokens, drawn, reason = [*self.words, self.end], [], "length"
        written = ""
        for _ in range(body.get("max_tokens") or body["max_completion_tokens"]):
            law = self.law(text + written, body.get("temperature", 1.0))
            index = int(rng.choice(len(law), p=law))
            drawn.append((tokens[index], law if self.tempered else self.law(text + written)))
            if tokens[index] == self.end:
                reason = "stop"
                break
            written += tokens[index]
            stops = [s for s in body.get("stop", ()) if s in written]
            if stops:
                written, reason = written[: min(map(written.index, stops))], "stop"
                break
        whole = (text if self.echoes else "") + written
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason, "count": len(drawn)}
        if "messages" in body:
            choice["message"] = {"role": "assistant", "content": whole}
        else:
            choice["text"] = written
        if body.get("logprobs"):
            choice["logprobs"] = self._log_probs(drawn, "messages" in body)
        return choice

    def _log_probs(self, drawn: list[tuple[str, np.ndarray]], chat: bool) -> dict[str, Any]:
        tokens = [*self.words, self.end]
        tops = []
        for token, law in drawn:
            order = np.argsort(-law)[: self.top]
            top = {tokens[i]: math.log(law[i]) for i in order if law[i] > 0}
            if token not in top:  # the drawn one takes the place of the last one, as with vLLM's chats
                del top[list(top)[-1]]
                top[token] = math.log(law[tokens.index(token)])
            tops.append(top)
        if not chat:
            return {"tokens": [token for token, _ in drawn], "top_logprobs": tops}

        def shown(token: str, value: float) -> dict[str, Any]:
            return {"token": token, "bytes": list(token.encode()), "logprob": value}

        return {
            "content": [
                {**shown(token, top[token]), "top_logprobs": [shown(*item) for item in top.items()]}
                for (token, _), top in zip(drawn, tops, strict=True)
            ]
        }


@contextlib.contextmanager
def serving_small(writer: SmallWriter) -> Iterator[Server]:
    with serving(writer.reply) as server:
        yield server
