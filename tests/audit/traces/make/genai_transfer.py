"""Spans of two agents as in the agent-to-agent examples of OpenTelemetry's conventions for generative AI.

Adapted from open-telemetry/semantic-conventions-genai, docs/gen-ai (Apache-2.0). No library writes
`gen_ai.transfer.*` and `gen_ai.caller.*` yet, so the script sets the attributes itself.
"""

# requires: opentelemetry-exporter-otlp-json-file==0.66b1

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import answers
import otlp
from opentelemetry.trace import Span, SpanKind

TRACER = otlp.TRACER_PROVIDER.get_tracer("garden")
INTERNAL = SpanKind.INTERNAL
SYSTEM = {"planner": answers.PLANNER_SYSTEM, "critic": answers.CRITIC_SYSTEM}


@contextmanager
def span(operation: str, target: str, kind: SpanKind = INTERNAL, **attributes: Any) -> Iterator[Span]:
    dotted = {f"gen_ai.{name.replace('__', '.')}": value for name, value in attributes.items()}
    with TRACER.start_as_current_span(
        f"{operation} {target}", kind=kind, attributes={"gen_ai.operation.name": operation, **dotted}
    ) as current:
        yield current


def chat(agent: str, history: list[dict[str, Any]], text: str, *calls: dict[str, Any]) -> None:
    """Record a call to the model inside the span of an agent."""
    message = {"role": "assistant", "parts": [{"type": "text", "content": text}, *calls]}
    reason = "tool_call" if calls else "stop"
    system = [{"type": "text", "content": SYSTEM[agent]}]
    with span("chat", "gpt-5", SpanKind.CLIENT, request__model="gpt-5", provider__name="openai") as current:
        current.set_attribute("gen_ai.system_instructions", json.dumps(system))
        current.set_attribute("gen_ai.input.messages", json.dumps(history))
        current.set_attribute("gen_ai.output.messages", json.dumps([{**message, "finish_reason": reason}]))
    history.append(message)


HISTORY: list[dict[str, Any]] = json.loads(otlp.text_messages("user", answers.USER))
TRANSFER = {"type": "tool_call", "id": "call_1", "name": "transfer_to_critic", "arguments": {}}
TARGET = {"transfer__target__name": "critic", "transfer__target__type": "agent"}
with span("invoke_workflow", "garden", workflow__name="garden"):
    with span("invoke_agent", "planner", agent__name="planner"):
        chat("planner", HISTORY, answers.PLANNER, TRANSFER)
        with span(
            "execute_tool",
            "transfer_to_critic critic",
            agent__name="planner",
            tool__name="transfer_to_critic",
            tool__call__result='{"assistant": "critic"}',
            transfer__mode="pass_control",
            **TARGET,
        ):
            pass
    response = {"type": "tool_call_response", "id": "call_1", "response": '{"assistant": "critic"}'}
    HISTORY.append({"role": "tool", "parts": [response]})
    # The critic runs in another process. The planner's process sees the request, and both record the answer.
    caller = {"caller__type": "agent", "caller__name": "planner"}
    with span("invoke_agent", "critic", SpanKind.CLIENT, agent__name="critic", **caller) as request:
        request.set_attribute("gen_ai.output.messages", otlp.text_messages("assistant", answers.CRITIC))
        with span("invoke_agent", "critic", agent__name="critic"):
            chat("critic", HISTORY, answers.CRITIC)
    with span("invoke_agent", "planner", agent__name="planner"):
        chat("planner", HISTORY, answers.PLANNER_AGAIN)
otlp.save("genai_transfer_spans.json")
