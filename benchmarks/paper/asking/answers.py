"""The answers of models on disk."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from benchmarks.paper.jsonl import Lines, parsed
from iet.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Self


class AnswerError(InputError):
    """An answer breaks a rule of the question; the message says which."""


class Answers(Lines):
    """The answers of models, in a file of JSON lines that is only appended to; None keeps nothing.

    A line holds the key of a question (`Question.key`), the model, the number of the attempt, the answer and,
    for people, why it does not count (null if it does). A line that a kill cut short has no end; it is
    dropped, and that question asked again. Used as a context, by one process at a time, a second one is
    refused; threads may share it.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        super().__init__(path or "")
        self._keeps = path is not None
        self._found: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return super().__enter__() if self._keeps else self

    def __exit__(self, *raised: object) -> None:
        if self._keeps:
            super().__exit__(*raised)

    def take(self) -> None:
        for number, line in enumerate(self.whole, 1):
            content = parsed(self.path, number, line)
            key, answer = content.get("key"), content.get("answer")
            if not isinstance(key, str) or not isinstance(answer, str):
                raise InputError(f"{self.path}, line {number}: damaged, expected a key and an answer")
            self._found.setdefault(key, []).append(answer)
        self.drop_torn()

    def of(self, key: str) -> list[str]:
        """Return what was answered to a question so far, attempt by attempt."""
        with self._lock:
            return list(self._found.get(key, ()))

    def add(self, key: str, model: str, answer: str, reason: str | None) -> None:
        """Keep an answer; when this returns it is on the disk."""
        with self._lock:
            found = self._found.setdefault(key, [])
            found.append(answer)
            said = {"attempt": len(found), "answer": answer, "reason": reason}
            if self._keeps:
                self.put([{"key": key, "model": model, **said}])
