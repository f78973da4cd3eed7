"""The answers of models on disk."""

from __future__ import annotations

import contextlib
import os
import threading
from types import TracebackType

from benchmarks.paper.jsonl import Lines, parsed
from iet.errors import InputError


class AnswerError(InputError):
    """An answer breaks a rule of the question; the message says which."""


class Answers:
    """The answers of models, in a file of JSON lines that is only appended to; None keeps nothing.

    A line holds the key of a question (`Question.key`), the model, the number of the attempt, the answer and,
    for people, why it does not count (null if it does). A line that a kill cut short has no end; it is
    dropped, and that question asked again. Used as a context, by one process at a time, a second one is
    refused; threads may share it.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._lines = None if path is None else Lines(path)
        self._found: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Answers:
        if self._lines is None:
            return self
        with contextlib.ExitStack() as stack:
            lines = stack.enter_context(self._lines)
            for number, line in enumerate(lines.whole, 1):
                content = parsed(lines.path, number, line)
                key, answer = content.get("key"), content.get("answer")
                if not isinstance(key, str) or not isinstance(answer, str):
                    raise InputError(f"{lines.path}, line {number}: damaged, expected a key and an answer")
                self._found.setdefault(key, []).append(answer)
            lines.drop_torn()
            stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lines is not None:
            self._lines.__exit__(kind, error, trace)

    def of(self, key: str) -> list[str]:
        """Return what was answered to a question so far, attempt by attempt."""
        with self._lock:
            return list(self._found.get(key, ()))

    def add(self, key: str, model: str, answer: str, reason: str | None) -> None:
        """Keep an answer; when this returns it is on the disk."""
        with self._lock:
            found = self._found.setdefault(key, [])
            found.append(answer)
            if self._lines is not None:
                attempt = len(found)
                self._lines.append(
                    [{"key": key, "model": model, "attempt": attempt, "answer": answer, "reason": reason}]
                )
