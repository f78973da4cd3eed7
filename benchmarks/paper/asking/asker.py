"""Ask a model until it answers: attempts, patience with an endpoint, and every answer kept on disk."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, Self, TypeVar

from tqdm import tqdm

from benchmarks.paper.asking.endpoints import Ask, Endpoint, NoAnswer, Parameters, Refused, known_as
from benchmarks.paper.jsonl import Lines, parsed
from iet.errors import BackendUnavailable, InputError
from iet.marks.scheme import canonical_digest


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


T = TypeVar("T")
R = TypeVar("R")


@dataclasses.dataclass(frozen=True)
class Question(Generic[T]):
    system: str  # prompt; user likewise
    user: str
    parameters: Parameters  # of the model
    check: Callable[[str], T]  # returns what an answer says; raises AnswerError if it does not count

    def key(self, model: str) -> str:
        """Digest of (model, both prompts, parameters): the same question to the same model (`known_as`)."""
        return canonical_digest(
            {
                "model": model,
                "system": self.system,
                "user": self.user,
                "parameters": dataclasses.asdict(self.parameters),
            }
        )


class Asker:
    """Ask questions, each until it has an answer that counts or its attempts are used up.

    Answers are kept as they come, and a question that has an answer is not asked again; answers that do not
    count are kept, too, and count towards the attempts. Time-outs, lost connections and HTTP errors are
    attempts of this run only. What is refused (`Refused`) is not asked again in this run. Threads may share
    an asker; none asks what another is asking.

    Args:
        pause: seconds before the next attempt after a time-out or an HTTP error, doubled each time.
        patience: questions in a row without an answer after which the endpoint counts as dead.
    """

    def __init__(
        self, endpoint: Endpoint, answers: Answers, *, attempts: int, pause: float, patience: int
    ) -> None:
        for name, value in (("attempts", attempts), ("patience", patience)):
            if value < 1:
                raise InputError(f"{name}: got {value}, expected at least 1")
        self.endpoint, self.answers = endpoint, answers
        self.attempts, self.pause, self.patience = attempts, pause, patience
        self._ask: Ask | None = None
        self._silent = 0  # questions in a row that got no answer
        self._lock = threading.Lock()
        self._asking: dict[str, threading.Lock] = {}
        self._over = threading.Event()  # no question will be answered any more

    def __call__(self, question: Question[T]) -> tuple[T | None, int]:
        """Return what the answer says (None: there is none that counts) and the number of attempts."""
        key = question.key(known_as(self.endpoint))
        with self._lock:
            asking = self._asking.setdefault(key, threading.Lock())
        with asking:
            found = self._known(key, question)
            if found is None:
                found = self._asked(key, question)
            return found

    def over_all(self, work: Callable[[T], R], items: Sequence[T], workers: int, unit: str) -> list[R]:
        """Return `work` of every item, several at once, in order; the first error ends all of it."""
        if workers < 1:
            raise InputError(f"workers: got {workers}, expected at least 1")
        found: dict[int, R] = {}
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            running = {pool.submit(self._unless_over, work, item): i for i, item in enumerate(items)}
            try:
                done = concurrent.futures.as_completed(running)
                for future in tqdm(done, self.endpoint.model, len(items), disable=None, unit=unit):
                    found[running[future]] = future.result()
            except BaseException:
                self._over.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return [found[i] for i in range(len(items))]

    def _unless_over(self, work: Callable[[T], R], item: T) -> R:
        try:
            return work(item)
        except BaseException:
            self._over.set()  # before this thread takes the next item
            raise

    def _known(self, key: str, question: Question[T]) -> tuple[T | None, int] | None:
        """What the answers on disk say; None if the question must be asked."""
        answers = self.answers.of(key)
        for number, answer in enumerate(answers, 1):
            try:
                return question.check(answer), number
            except AnswerError:
                continue
        return (None, len(answers)) if len(answers) >= self.attempts else None

    def _asked(self, key: str, question: Question[T]) -> tuple[T | None, int]:
        heard, wait = False, self.pause
        tried = len(self.answers.of(key))
        while tried < self.attempts and not self._over.is_set():
            tried += 1
            try:
                answer = self._connected()(question.system, question.user, question.parameters)
            except Refused as error:
                self._unanswered(error)
                return None, tried
            except NoAnswer as error:
                if tried < self.attempts:
                    time.sleep(wait)
                    wait *= 2
                elif not heard:
                    self._unanswered(error)
                continue
            heard = True
            with self._lock:
                self._silent = 0
            try:
                says = question.check(answer)
            except AnswerError as error:
                self.answers.add(key, self.endpoint.model, answer, str(error))
                continue
            self.answers.add(key, self.endpoint.model, answer, None)
            return says, tried
        return None, tried

    def _connected(self) -> Ask:
        with self._lock:
            if self._ask is None:
                self._ask = self.endpoint.connect()
            return self._ask

    def _unanswered(self, error: NoAnswer | Refused) -> None:
        with self._lock:
            self._silent += 1
            dead = self._silent >= self.patience
        if dead:
            raise BackendUnavailable(
                f"{error}: no answer to {self.patience} questions in a row, expected an endpoint that"
                " answers; the answers so far are kept, start again to go on"
            ) from None
