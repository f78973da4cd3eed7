"""Ask chat models questions, and keep every answer on disk.

A model is served by an OpenAI-compatible server (OpenAI, DeepSeek, vLLM, llama.cpp, `transformers serve`).
The `openai` package retries timeouts, lost connections, HTTP 429 and 5xx. If that does not help, the run
stops; answers are kept, so the same command continues. API keys are read from the environment and appear in
no message, repr or file.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import threading
import urllib.parse
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from tqdm import tqdm

from benchmarks.paper import needed
from benchmarks.paper.results import JsonLines
from iet.errors import BackendUnavailable, InputError
from iet.marks.scheme import canonical_digest

T = TypeVar("T")
R = TypeVar("R")


class AnswerError(InputError):
    """An answer breaks a rule of the question; the message says which."""


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Sampling parameters of a request. None leaves a parameter out, for models that refuse it."""

    temperature: float | None = 0.0
    top_p: float | None = 1.0
    max_tokens: int | None = None
    seed: int | None = None


@dataclasses.dataclass(frozen=True)
class OpenAIEndpoint:
    """A server that implements OpenAI's chat completions."""

    model: str
    # May hold a password, so it is not in the repr; None: OPENAI_BASE_URL or OpenAI
    base_url: str | None = dataclasses.field(default=None, repr=False)
    key_variable: str = "OPENAI_API_KEY"  # environment variable with the API key
    timeout: float = 120.0  # seconds for one request
    retries: int = 4

    @property
    def address(self) -> str | None:
        """The server's URL without user and password; None for OpenAI's own."""
        url = self.base_url or os.environ.get("OPENAI_BASE_URL")
        if not url:
            return None
        parts = urllib.parse.urlsplit(url)
        if not parts.hostname or parts.scheme not in ("http", "https"):
            raise InputError("base_url: expected an address such as http://127.0.0.1:8000/v1")
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"

    def client(self) -> Any:
        """Return a client of the `openai` package; raises BackendUnavailable without a key."""
        _ = self.address  # refuse a wrong address before asking for a key
        key = os.environ.get(self.key_variable, "").strip()
        if not key:
            raise BackendUnavailable(
                f"{self.key_variable}: the environment has no API key (a local server accepts any word)"
            )
        return needed("openai").OpenAI(
            api_key=key, base_url=self.base_url, timeout=self.timeout, max_retries=self.retries
        )

    def ask(self, system: str, user: str, sampling: Sampling) -> str | None:
        """Return the answer to a system and a user message; None if the question is refused."""
        openai = needed("openai")
        options = {k: v for k, v in dataclasses.asdict(sampling).items() if v is not None}
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        try:
            answer = self.client().chat.completions.create(model=self.model, messages=messages, **options)
            text = answer.choices[0].message.content
            problem = "" if isinstance(text, str) else "a response without text"
        except openai.APIStatusError as error:
            if error.status_code in (400, 413, 422):
                return None
            problem = f"HTTP {error.status_code}"
        except (openai.OpenAIError, AttributeError, IndexError, TypeError, ValueError) as error:
            problem = type(error).__name__
        if problem:  # outside of `except`, so that no request with its key is chained to the error
            raise BackendUnavailable(
                f"{self.model}: {problem}; answers are kept, run the same command again to continue"
            )
        return str(text)


def name_of(endpoint: OpenAIEndpoint) -> str:
    """Return the name that answers are kept under: one model at two addresses counts as two models."""
    return endpoint.model if endpoint.address is None else f"{endpoint.model} at {endpoint.address}"


class Answers:
    """The answers of models by the key of their question, in a file of JSON lines; None keeps nothing."""

    def __init__(self, path: pathlib.Path | None) -> None:
        self._file = None if path is None else JsonLines(path)
        self._by_key: dict[str, list[str]] = {}
        for line in self._file.objects if self._file else ():
            self._by_key.setdefault(line["key"], []).append(line["answer"])
        self._lock = threading.Lock()

    def of(self, key: str) -> list[str]:
        return list(self._by_key.get(key, ()))

    def add(self, key: str, model: str, answer: str, error: str | None = None) -> None:
        """Keep an answer; `error` says why it does not count. It is on disk when this returns."""
        with self._lock:
            self._by_key.setdefault(key, []).append(answer)
            if self._file:
                self._file.append([{"key": key, "model": model, "answer": answer, "error": error}])


@dataclasses.dataclass(frozen=True)
class Question(Generic[T]):
    system: str
    user: str
    sampling: Sampling
    parse: Callable[[str], T]  # answer -> its meaning; raises AnswerError if the answer does not count

    def key(self, model: str) -> str:
        return canonical_digest(
            {
                **{"model": model, "system": self.system, "user": self.user},
                "parameters": dataclasses.asdict(self.sampling),
            }
        )


class Asker:
    """Ask each question until an answer counts, at most `attempts` times; answers on disk are reused.

    Threads may share an asker: a question that another thread is asking is asked once.
    """

    def __init__(self, endpoint: OpenAIEndpoint, answers: Answers, attempts: int = 1) -> None:
        self.endpoint, self.answers, self.attempts = endpoint, answers, attempts
        self._lock = threading.Lock()
        self._asking: dict[str, threading.Lock] = {}

    def __call__(self, question: Question[T]) -> T | None:
        """Return the meaning of the first answer that counts, or None."""
        key = question.key(name_of(self.endpoint))
        with self._lock:
            lock = self._asking.setdefault(key, threading.Lock())
        with lock:
            for answer in self.answers.of(key):
                try:
                    return question.parse(answer)
                except AnswerError:
                    continue
            for _ in range(self.attempts - len(self.answers.of(key))):
                reply = self.endpoint.ask(question.system, question.user, question.sampling)
                if reply is None:
                    return None
                try:
                    meaning = question.parse(reply)
                except AnswerError as error:
                    self.answers.add(key, self.endpoint.model, reply, str(error))
                    continue
                self.answers.add(key, self.endpoint.model, reply)
                return meaning
            return None


def in_threads(work: Callable[[T], R], items: Sequence[T], workers: int, label: str) -> list[R]:
    """Return `work` of every item in order, several at once; the first error cancels what has not started."""
    if workers < 1:
        raise InputError(f"workers: got {workers}, expected at least 1")
    pool = ThreadPoolExecutor(workers)
    try:
        return list(tqdm(pool.map(work, items), label, len(items), disable=None))
    finally:
        pool.shutdown(cancel_futures=True)
