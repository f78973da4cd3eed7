"""The abilities of hosted APIs, and the requests whose answers can be marked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from iet.errors import InputError, check_number, shown
from iet.generation.checks import Floor

Mark = Literal["select", "walk"]


@dataclasses.dataclass(frozen=True)
class Provider:
    """The abilities of an API, as its documentation states them.

    Attributes:
        summary: for messages and documentation.
        many: whether one request returns several candidates (`n`). Else each candidate is a request.
        continued: fields of a chat request that continues its last message; None: chats are not continued.
        prefix: fields of that message. Chats are continued exactly if the chat template keeps blanks at the
            ends of messages; send prompts to a model whose template trims them.
        echoes: whether the answer to such a request begins with the continued message.
        completions: whether prompts are completed as they are, without a chat template.
        log_probs: whether log-probabilities of the likeliest tokens are returned.
        tempered: whether temperature is applied to them.
        limit: field with the maximum of tokens.
        ends: tokens that end an answer, if they are neither common nor special in the profile's tokenizer.
        unfiltered: fields that turn off the server's own filters, which log-probabilities do not show.
    """

    summary: str
    many: bool = True
    continued: Mapping[str, Any] | None = None
    prefix: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    echoes: bool = False
    completions: bool = False
    log_probs: bool = False
    tempered: bool = False
    limit: str = "max_tokens"
    ends: tuple[str, ...] = ()
    unfiltered: Mapping[str, Any] = dataclasses.field(default_factory=dict)


_UNFILTERED = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
_ENGINE = Provider(
    "n, continuation of chats and prompts, log-probabilities",
    continued={"continue_final_message": True, "add_generation_prompt": False},
    completions=True,
    log_probs=True,
    unfiltered=_UNFILTERED,
)

PROVIDERS: Mapping[str, Provider] = {
    "vllm": _ENGINE,
    "sglang": dataclasses.replace(_ENGINE, tempered=True, unfiltered={**_UNFILTERED, "top_k": -1}),
    "llama.cpp": dataclasses.replace(
        _ENGINE, echoes=True, unfiltered={"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0}
    ),
    # Its temperature is not the model's, so its log-probabilities may be before or after either.
    "deepseek": Provider(
        "continuation of chats (base URL of the beta); no n, log-probabilities of an unknown temperature",
        many=False,
        continued={},
        prefix={"prefix": True},
    ),
    "mistral": Provider(
        "n, continuation of chats; no log-probabilities", continued={}, prefix={"prefix": True}
    ),
    "together": Provider(
        "n, continuation of prompts, log-probabilities; no continuation of chats",
        completions=True,
        log_probs=True,
        unfiltered={"top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0},
    ),
    "openai": Provider("n; no continuation", limit="max_completion_tokens"),
    "gemini": Provider("candidates by separate requests; no continuation", many=False),
    "anthropic": Provider(
        "candidates by separate requests; no continuation (from Claude 4.6 on), no log-probabilities",
        many=False,
    ),
}
"""What the APIs of these providers can do. A provider that is not listed is described by a `Provider`."""

_PASSED_ON = frozenset(
    {"messages", "prompt", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p"}
    | {"repetition_penalty", "logit_bias", "stop", "seed", "user", "chat_template_kwargs", "reasoning_effort"}
)
"""Fields of a request that the mark can keep. Any other field might avoid it, so it is refused."""

_HIDDEN: Mapping[str, Any] = {"top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1, "logit_bias": {}}
"""Fields whose effect log-probabilities do not show, with the value that has none."""

_NEUTRAL: Mapping[str, Any] = {
    **{
        "n": 1,
        "best_of": 1,
        "response_format": {"type": "text"},
        "presence_penalty": 0,
        "frequency_penalty": 0,
    },
    **{"tools": [], "functions": [], "logprobs": False, "top_logprobs": 0, "echo": False, "suffix": ""},
}
"""Fields that are refused unless they have this value. (Chunks would start the count of a penalty anew.)"""

_RANGES = {"temperature": (Floor.temperature, 100), "top_p": (Floor.top_p, 1), "min_p": (0, 1 - Floor.top_p)}
"""Outside of these hardly anything is left to choose."""


def named(provider: object) -> tuple[str, Provider]:
    """Return a provider and its name for messages, or raise an InputError."""
    if isinstance(provider, Provider):
        return "the provider", provider
    if not isinstance(provider, str) or provider not in PROVIDERS:
        raise InputError(
            f"provider: got {shown(provider)}, expected one of {', '.join(PROVIDERS)}, or a Provider"
        )
    return provider, PROVIDERS[provider]


def checked(request: object, mark: Mark) -> dict[str, Any]:
    """Return the fields of a request, or raise an InputError for one that the mark cannot keep."""
    if not isinstance(request, Mapping):
        raise InputError(f"request: got {type(request).__name__}, expected a JSON object")
    ours = ("stream", "stream_options", "model")
    body = {name: value for name, value in request.items() if value is not None and name not in ours}
    if ("messages" in body) == ("prompt" in body):
        raise InputError("request: expected one of messages and prompt")
    messages = body.get("messages", [{"role": "user"}])
    if not isinstance(messages, list) or not messages or not all(isinstance(m, Mapping) for m in messages):
        raise InputError(f"messages: got {shown(messages)}, expected a list of messages")
    if messages[-1].get("role") == "assistant":
        raise InputError("messages: the last one is the assistant's, expected one that it answers")
    if not isinstance(body.get("prompt", ""), str):
        raise InputError(f"prompt: got {type(body['prompt']).__name__}, expected a text")
    for name, neutral in _NEUTRAL.items():
        if (value := body.pop(name, neutral)) != neutral:
            raise InputError(
                f"{name}: got {shown(value)}, expected {neutral!r}: other answers are not marked"
            )
    if unknown := sorted(set(body) - _PASSED_ON):
        accepted = ", ".join(sorted(_PASSED_ON))
        raise InputError(f"{unknown[0]}: got {shown(body[unknown[0]])}, expected none; accepted: {accepted}")
    for name in ("max_tokens", "max_completion_tokens"):
        check_number(name, body.get(name, 1), 1)
    check_number("seed", body.get("seed", 0), 0)
    for name, (low, high) in _RANGES.items():
        check_number(name, body.get(name, low), low, high, integer=False)
    check_number("top_k", body.get("top_k", 0), -1)
    if body.get("top_k") == 1:
        raise InputError("top_k: got 1, expected more: equal candidates carry no mark")
    stop = body.get("stop", [])
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(text, str) and text for text in stops):
        raise InputError(f"stop: got {shown(stop)}, expected texts that are not empty")
    if mark == "walk":
        for name, neutral in _HIDDEN.items():
            if body.pop(name, neutral) != neutral:
                raise InputError(
                    f"{name}: got {shown(request[name])}, expected none with mark 'walk': log-probabilities"
                    " do not show its effect (mark 'select' keeps it)"
                )
    return body
