"""Invalid agent names that a client may send: types, sizes, surrogates, contradictions."""

from __future__ import annotations

from typing import Any


def nested(depth: int) -> list[Any]:
    """A list in a list, and so on."""
    outer: list[Any] = []
    for _ in range(depth):
        outer = [outer]
    return outer


NAMES: dict[str, Any] = {
    "unknown": "nobody",
    "empty": "",
    "long": "x" * 10_000_000,
    "NUL": "planner\0",
    "surrogate": "planner\ud800",
    "escapes": "\x1b[2J\u202eplanner\n",
    "bytes": b"planner",
    "zero": 0,
    "yes": True,
    "large integer": 10**4000,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "list": ["planner"],
    "list of 100,000": ["planner"] * 100_000,
    "nested 100,000 deep": nested(100_000),
    "dict": {"iet_agent": "planner"},
}
"""What is no agent's name."""

MANY_KEYS = {f"key {i}": i for i in range(100_000)}


def is_short_and_printable(message: str) -> bool:
    """Whether a message is safe to print to a log or a terminal."""
    return len(message) < 400 and message.isprintable()


SESSIONS: dict[str, Any] = {
    "a number": 7,
    "a list": ["run-7"],
    "true": True,
    "nothing": "",
    "spaces": " run-7",
    "NUL": "run\0",
    "a line feed": "run\n7",
    "a surrogate": "run\ud800",
    "turned round": "run\u202e7",
    "100 MB": "s" * 100_000_000,
    "nested": nested(100_000),
}
"""What is no id of a session."""
