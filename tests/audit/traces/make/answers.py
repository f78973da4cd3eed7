"""The conversation of all records, and a local server that answers with it as OpenAI and Anthropic do.

Run a script as `python make/NAME.py` in an environment with the packages that its line `# requires:` names.
"""

from __future__ import annotations

import json
import pathlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PLANNER_SYSTEM = "You are the planner of a small team."
CRITIC_SYSTEM = "You are the critic of a small team."
USER = "Plan the school garden."
PLANNER = "First we measure the beds and write a list of the tools."
CRITIC = "That list leaves out the water, so add the pump."
PLANNER_AGAIN = "Then the pump goes on the list, and we dig on Saturday."
TOOL_RESULT = "3 beds, 2 pumps."

RECORDS = pathlib.Path(__file__).parents[1] / "records"
CREATED = 1767225600
USAGE = {"prompt_tokens": 20, "completion_tokens": 12, "total_tokens": 32}


def write(name: str, value: Any) -> None:
    """Write a record: a list as JSON lines if the name ends in .jsonl, other values as indented JSON."""
    if name.endswith(".jsonl"):
        text = "".join(json.dumps(line, ensure_ascii=False, default=str) + "\n" for line in value)
    else:
        text = json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n"
    (RECORDS / name).write_text(text, encoding="utf-8")


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """Return an answer that calls a tool."""
    return {"name": name, "arguments": arguments}


@contextmanager
def server(*script: Any, received: list[Any] | None = None) -> Iterator[str]:
    """Serve the answers in turn: each a text, a `call`, or a list of both. Yield the URL without /v1.

    The last answer repeats. `received` collects the path and the JSON of every request.
    """
    answers, lock = list(script), threading.Lock()
    count = 0

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send({"data": [], "object": "list"})

        def do_POST(self) -> None:
            nonlocal count
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            request = json.loads(body) if body.startswith(b"{") else {}
            if received is not None:
                received.append((self.path, request))
            make = next((make for end, make in _APIS.items() if self.path.split("?")[0].endswith(end)), None)
            if make is None:
                return self._send({})
            with lock:
                answer = answers.pop(0) if len(answers) > 1 else answers[0]
                count += 1
            parts = answer if isinstance(answer, list) else [answer]
            response = make(parts, count, request.get("model", "model"))
            if "/responses" in self.path:
                response |= {
                    key: request.get(key) for key in ("instructions", "metadata", "previous_response_id")
                }
            if request.get("stream"):
                return self._stream(_events(response))
            return self._send(response)

        def _send(self, value: Any) -> None:
            data = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, events: list[dict[str, Any]]) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for event in events:
                kind = f"event: {event['type']}\n" if "type" in event else ""
                self.wfile.write(f"{kind}data: {json.dumps(event)}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, *args: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()


def _completion(parts: list[Any], i: int, model: str) -> dict[str, Any]:
    text = "".join(part for part in parts if isinstance(part, str)) or None
    message: dict[str, Any] = {"role": "assistant", "content": text}
    calls = [part for part in parts if isinstance(part, dict)]
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{i}{j}",
                "type": "function",
                "function": {**part, "arguments": json.dumps(part["arguments"])},
            }
            for j, part in enumerate(calls)
        ]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    head = {"id": f"chatcmpl-{i}", "object": "chat.completion", "created": CREATED + i, "model": model}
    return {**head, "choices": [choice], "usage": USAGE}


def _response(parts: list[Any], i: int, model: str) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    for j, part in enumerate(parts):
        if isinstance(part, str):
            content = [{"type": "output_text", "text": part, "annotations": []}]
            item = {"id": f"msg_{i}{j}", "type": "message", "role": "assistant", "content": content}
        else:
            arguments = json.dumps(part["arguments"])
            item = {"id": f"fc_{i}{j}", "type": "function_call", "call_id": f"call_{i}{j}", **part}
            item["arguments"] = arguments
        output.append({**item, "status": "completed"})
    counts = {"input_tokens": 20, "output_tokens": 12, "total_tokens": 32}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    head = {"id": f"resp_{i}", "object": "response", "created_at": CREATED + i, "model": model}
    settings = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {**head, "status": "completed", "output": output, "usage": {**counts, **details}, **settings}


def _anthropic(parts: list[Any], i: int, model: str) -> dict[str, Any]:
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "tool_use", "id": f"toolu_{i}{j}", "name": part["name"], "input": part["arguments"]}
        for j, part in enumerate(parts)
    ]
    reason = "end_turn" if isinstance(parts[-1], str) else "tool_use"
    head = {"id": f"msg_{i}", "type": "message", "role": "assistant", "model": model}
    usage = {"input_tokens": 20, "output_tokens": 12}
    return {**head, "content": content, "stop_reason": reason, "stop_sequence": None, "usage": usage}


_APIS = {"/chat/completions": _completion, "/responses": _response, "/v1/messages": _anthropic}


def _events(response: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a streamed answer; of Anthropic's, texts only."""
    if response.get("object") == "chat.completion":
        choice = response["choices"][0]
        delta = dict(choice["message"])
        if "tool_calls" in delta:
            delta["tool_calls"] = [{"index": j, **part} for j, part in enumerate(delta["tool_calls"])]
        head = {**response, "object": "chat.completion.chunk"}
        head.pop("usage")
        first = {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        last = {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
        return [first, last, {**head, "choices": [], "usage": response["usage"]}]
    if response.get("object") == "response":
        events: list[dict[str, Any]] = [{"type": "response.created", "response": {**response, "output": []}}]
        for index, item in enumerate(response["output"]):
            events.append({"type": "response.output_item.added", "output_index": index, "item": item})
            events.append({"type": "response.output_item.done", "output_index": index, "item": item})
        events.append({"type": "response.completed", "response": response})
        return [{**event, "sequence_number": number} for number, event in enumerate(events)]
    events = [{"type": "message_start", "message": {**response, "content": [], "stop_reason": None}}]
    for index, block in enumerate(response["content"]):
        start = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": block.get("text", "")}
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    ending = {"stop_reason": response["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": ending, "usage": response["usage"]})
    return [*events, {"type": "message_stop"}]
