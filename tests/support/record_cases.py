"""Records that attribute text to the wrong agent, with the right verdict on each.

Every record holds marked text. Every name that it gives to an agent's own words is true, so "contradicted"
accuses an innocent agent, and a missing message is lost text.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers

import iet

AGENTS = ("planner", "critic", "writer")
WORDS = 400
TOKENS = 120


def text_tokenizer() -> tokenizers.Tokenizer:
    """Return a tokenizer with one id for each of `WORDS` Latin and as many Cyrillic words."""
    words = ["<unk>", *(f"w{i}" for i in range(WORDS)), *(f"слово{i}" for i in range(WORDS))]
    made = tokenizers.Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>")
    )
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["<unk>"])
    return made


def registry(path: pathlib.Path | None = None, tokenizer: Any = None) -> iet.Registry:
    """Return a registry of `AGENTS` whose keys are the same in every run."""
    made = iet.Registry.create(
        path, tokenizer=tokenizer or text_tokenizer(), scheme=iet.Scheme(kappa=3.0, n_gram=2)
    )
    for agent in AGENTS:
        made.add(agent, secret=agent.encode().ljust(32, b"."))
    return made


def texts(keys: iet.Registry) -> dict[str, str]:
    """Return a marked text of each agent, and one of the planner in Russian, as a flat model writes them."""
    words = text_tokenizer()
    texts_ = {}
    for name, agent, first in (*((agent, agent, 1) for agent in AGENTS), ("russian", "planner", WORDS + 1)):
        draw, slots = np.random.default_rng(first), [keys.slot(agent)]
        ids = [first]
        for _ in range(TOKENS):
            logits = np.zeros((1, 2 * WORDS + 1), np.float32)
            iet.embed_(logits, [ids[-1:]], slots, keys.marking_keys())
            noisy = logits[0] + draw.gumbel(size=logits.shape[1])
            ids.append(first + int(noisy[first : first + WORDS].argmax()))
        texts_[name] = " ".join(words.id_to_token(i) for i in ids)  # type: ignore[misc]
    return texts_


class Case(NamedTuple):
    """A record: its kind, what is special, how it is made of marked texts, and what is right to say of it."""

    kind: str
    name: str
    make: Callable[[Mapping[str, str]], Any]
    right: str


def event(kind: str, content: Any, source: str = "planner", **fields: Any) -> dict[str, Any]:
    """A message or event of AutoGen, as its `model_dump` has it."""
    return {"source": source, "type": kind, "content": content, "models_usage": None, "metadata": {}} | fields


def attribute(key: str, value: Any) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value if isinstance(value, str) else json.dumps(value)}}


def spoken(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def span(number: int, attributes: Mapping[str, Any], *, parent: int = 0, events: Any = ()) -> dict[str, Any]:
    """An OTLP span; the one with the higher number starts and ends later."""
    return {
        "spanId": f"{number:016x}",
        "parentSpanId": f"{parent:016x}" if parent else "",
        "name": f"span {number}",
        "startTimeUnixNano": str(number),
        "endTimeUnixNano": str(100 + number),
        "attributes": [attribute(key, value) for key, value in attributes.items()],
        "events": list(events),
    }


def otlp(*spans: Any) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def planner(**attributes: Any) -> dict[str, Any]:
    """The attributes of a planner's span."""
    return {"gen_ai.agent.name": "planner"} | attributes


def generation(output: Any, **fields: Any) -> dict[str, Any]:
    """A generation of Langfuse's."""
    metadata = {"langgraph_node": "planner"}
    return {"id": "1", "traceId": "t", "type": "GENERATION", "startTime": "2026-11-01T10:00:00.000Z"} | {
        "output": output,
        "metadata": metadata,
        **fields,
    }


def chat(role: str, text: str, name: str | None = None) -> dict[str, Any]:
    return {"role": role, "content": text} | ({} if name is None else {"name": name})


def text_message(text: str) -> dict[str, Any]:
    return event("TextMessage", text)


TOOL, INPUT, NAME, JSON = (
    "A tool's output under an agent's name",
    "An input taken for an output",
    "A name or role that is no agent of the registry",
    "JSON inside a string",
)

RESULT = {"name": "read_file", "call_id": "1", "is_error": False}
OUT, OPERATION = "gen_ai.output.messages", "gen_ai.operation.name"

CASES = (
    Case(
        TOOL,
        "AutoGen: `ToolCallExecutionEvent`",
        lambda t: [event("ToolCallExecutionEvent", [{"content": t["critic"], **RESULT}])],
        "skipped (tool output)",
    ),
    Case(
        TOOL,
        "AutoGen: `MemoryQueryEvent`",
        lambda t: [event("MemoryQueryEvent", [{"content": t["critic"], "mime_type": "text/plain"}])],
        "skipped (tool output)",
    ),
    Case(
        TOOL,
        "AutoGen: `ToolCallSummaryMessage`",
        lambda t: [event("ToolCallSummaryMessage", t["critic"], tool_calls=[], results=[])],
        "skipped (tool output)",
    ),
    Case(
        TOOL,
        "AutoGen: `CodeExecutionEvent`, which has no content, beside a message",
        lambda t: [
            {"source": "planner", "type": "CodeExecutionEvent", "result": {"output": t["critic"]}},
            text_message(t["planner"]),
        ],
        "skipped (tool output); planner: confirmed",
    ),
    Case(
        TOOL,
        "AutoGen: `HandoffMessage` with what the next agent is to read",
        lambda t: [event("HandoffMessage", t["critic"], target="writer")],
        "skipped (notice of the framework)",
    ),
    Case(
        TOOL,
        "AutoGen: a user's `MultiModalMessage`",
        lambda t: [event("MultiModalMessage", [t["critic"], {"data": "iVBORw0="}], "user")],
        "skipped (user message)",
    ),
    Case(
        TOOL,
        "AutoGen: chunks of a stream before the message",
        lambda t: [
            *(event("ModelClientStreamingChunkEvent", w) for w in (t["planner"][:400], t["planner"][400:])),
            text_message(t["planner"]),
        ],
        "planner: confirmed; skipped (chunk of a stream); skipped (chunk of a stream)",
    ),
    Case(
        TOOL,
        "A chat's tool that is called as an agent is",
        lambda t: [chat("tool", t["critic"], "planner"), chat("assistant", t["planner"], "planner")],
        "skipped (tool output); planner: confirmed",
    ),
    Case(
        TOOL,
        "A message of role `tool` in `gen_ai.output.messages`",
        lambda t: otlp(
            span(1, planner(**{OUT: [spoken("tool", t["critic"]), spoken("assistant", t["planner"])]}))
        ),
        "skipped (tool output); planner: confirmed",
    ),
    Case(
        TOOL,
        "OpenTelemetry: a span `execute_tool` inside an agent's",
        lambda t: otlp(
            span(1, {OUT: [spoken("assistant", t["critic"])], OPERATION: "execute_tool"}, parent=2),
            span(2, planner()),
        ),
        "skipped (tool output)",
    ),
    Case(
        TOOL,
        "OpenInference: a span of kind RETRIEVER inside an agent's",
        lambda t: otlp(
            span(
                1,
                {
                    "openinference.span.kind": "RETRIEVER",
                    "llm.output_messages.0.message.content": t["critic"],
                },
                parent=2,
            ),
            span(2, planner()),
        ),
        "skipped (tool output)",
    ),
    Case(
        TOOL,
        "Langfuse: a message of role `tool` in a generation's output",
        lambda t: [generation([chat("tool", t["critic"]), chat("assistant", t["planner"])])],
        "skipped (tool output); planner: confirmed",
    ),
    Case(
        INPUT,
        "The event `gen_ai.assistant.message`",
        lambda t: otlp(
            span(
                1,
                planner(),
                events=[
                    {"name": "gen_ai.assistant.message", "attributes": [attribute("content", t["critic"])]}
                ],
            )
        ),
        "skipped (input of a call)",
    ),
    Case(
        INPUT,
        "An agent's span that ends with the words of the agent that it called",
        lambda t: otlp(
            span(1, {"gen_ai.agent.name": "critic", OUT: [spoken("assistant", t["critic"])]}, parent=2),
            span(2, planner(**{OUT: [spoken("assistant", t["critic"])]})),
        ),
        "critic: confirmed; skipped (repeats another message)",
    ),
    Case(
        INPUT,
        "A system message to an agent, under its name",
        lambda t: [chat("system", t["critic"], "planner"), chat("assistant", t["planner"], "planner")],
        "skipped (system message); planner: confirmed",
    ),
    Case(
        INPUT,
        "A user's message in `gen_ai.output.messages`",
        lambda t: otlp(
            span(1, planner(**{OUT: [spoken("user", t["critic"]), spoken("assistant", t["planner"])]}))
        ),
        "skipped (user message); planner: confirmed",
    ),
    Case(
        NAME,
        "`Planner` for `planner`",
        lambda t: [chat("assistant", t["planner"], "Planner")],
        "Planner: unknown name (planner; nearest planner)",
    ),
    Case(
        NAME,
        "AutoGen: the source `Planner`",
        lambda t: [event("TextMessage", t["planner"], "Planner")],
        "Planner: unknown name (planner; nearest planner)",
    ),
    Case(
        NAME,
        "OpenTelemetry: the agent `The-Planner`",
        lambda t: otlp(
            span(1, {"gen_ai.agent.name": "The-Planner", OUT: [spoken("assistant", t["planner"])]})
        ),
        "The-Planner: unknown name (planner; nearest planner)",
    ),
    Case(
        NAME,
        "Who&When: roles `planner` and `Orchestrator (thought)`",
        lambda t: {"history": [chat("planner", t["planner"]), chat("Orchestrator (thought)", t["critic"])]},
        "planner: confirmed; skipped (role 'Orchestrator (thought)', which is no agent of the registry)",
    ),
    Case(
        NAME,
        "A2A: roles `agent` and `ROLE_AGENT`",
        lambda t: [
            {"role": role, "parts": [{"text": t[name]}], "messageId": name}
            for role, name in (("agent", "planner"), ("ROLE_AGENT", "critic"))
        ],
        "named (planner); named (critic)",
    ),
    Case(
        NAME,
        "Roles in capitals: `ASSISTANT`, `Model`, `USER`",
        lambda t: [
            chat(role, t[name])
            for role, name in (("ASSISTANT", "planner"), ("Model", "critic"), ("USER", "writer"))
        ],
        "named (planner); named (critic); skipped (user message)",
    ),
    Case(
        NAME,
        "An item that is no message among messages",
        lambda t: [
            {"type": "step", "output": "x"},
            chat("assistant", t["planner"], "planner"),
        ],
        "planner: confirmed; unreadable (no message: type 'step')",
    ),
    Case(
        JSON,
        "OpenLLMetry: `gen_ai.completion.0.content` is JSON of parts, in Russian",
        lambda t: otlp(span(1, planner(**{"gen_ai.completion.0.content": _parts(t["russian"])}))),
        "planner: confirmed",
    ),
    Case(
        JSON,
        "`gen_ai.output.messages` encoded twice, in Russian",
        lambda t: otlp(
            span(1, planner(**{OUT: json.dumps(json.dumps([spoken("assistant", t["russian"])]))}))
        ),
        "planner: confirmed",
    ),
    Case(
        JSON,
        "Langfuse: an output that is a string's JSON, in Russian",
        lambda t: [generation(json.dumps(t["russian"]))],
        "planner: confirmed",
    ),
    Case(
        JSON,
        "A chat's content that is JSON of a message, in Russian",
        lambda t: [chat("assistant", json.dumps(chat("assistant", t["russian"])), "planner")],
        "planner: confirmed",
    ),
    Case(
        JSON,
        "Langfuse: an output that is an agent's own JSON",
        lambda t: [generation(json.dumps({"answer": t["planner"]}))],
        "planner: confirmed",
    ),
)


def _parts(text: str) -> str:
    return json.dumps([{"type": "text", "text": text}])


def outcome(report: Mapping[str, Any] | str) -> str:
    """Return what `iet check --json` says, in a few words, or the refusal itself."""
    if isinstance(report, str):
        return f"refused: {report}"
    verdicts = [_piece(piece) for piece in report["pieces"]]
    pieces = [piece.get("reason") for piece in report["pieces"]]
    for reason, count in report.get("skipped", {}).items():  # also of messages that are no pieces
        verdicts += [f"skipped ({reason})"] * (count - pieces.count(reason))
    verdicts += [f"unreadable ({reason})" for reason in report.get("unreadable", ())]
    return "; ".join(verdicts)


def _piece(piece: Mapping[str, Any]) -> str:
    beside = [piece["agent"]] if piece["agent"] and piece["verdict"] != "confirmed" else []
    if piece.get("nearest"):
        beside.append(f"nearest {piece['nearest']}")
    if piece.get("reason"):
        beside.append(piece["reason"])
    claim = f"{piece['claim']}: " if piece["claim"] and piece["verdict"] != "skipped" else ""
    return claim + str(piece["verdict"]) + (f" ({'; '.join(beside)})" if beside else "")
