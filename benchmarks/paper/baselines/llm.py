"""End-to-end LLM: a model is asked which tokens are which speaker's (§ Baselines, § LLM Baseline Prompts).

The paper's two prompts, verbatim (`llm_prompts`), `unit_mode = assistant_response`, units of 64 tokens,
temperature 0, top-p 1. **The units give the model the true ends of the turns as unit boundaries**: no unit
crosses the end of a message, and the prompt says so. It is also told the number of speakers K (those that
speak in the log) and the task. Speaker ids carry no name; they are mapped to agents by the best one-to-one
assignment ("oracle-matched"). EdgeSim is N/A as in the paper.

The paper leaves open what becomes of a bad answer. Here `llm_answers.check` refuses one that breaks any rule
of the prompts, and the same question is asked again, without the reason, up to 3 times in all. If all fail,
the log counts as a failure (`Found.failures`), and every token goes to speaker 0, who is mapped like any
other, so to the agent that wrote the most: no log is left out, and the baseline gets what knowing nothing is
worth.

Tokens are those of the auditor's tokenizer, not of the model that is asked.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np
from tqdm import tqdm

from benchmarks.paper.baselines.llm_answers import AnswerError, Answers, check
from benchmarks.paper.baselines.llm_endpoints import (
    Ask,
    Endpoint,
    NoAnswer,
    OpenAIEndpoint,
    Parameters,
    Refused,
    known_as,
)
from benchmarks.paper.baselines.llm_prompts import prompts
from benchmarks.paper.baselines.matching import match_labels
from benchmarks.paper.baselines.reading import (
    UNIT_TOKENS,
    Found,
    Labels,
    Tokens,
    read_tokens,
    unit_bounds,
    unit_texts,
)
from benchmarks.paper.logs import Log
from iet.errors import BackendUnavailable, InputError
from iet.scheme import canonical_digest
from iet.tokenizer import Tokenizer

ENDPOINTS: dict[str, OpenAIEndpoint] = {
    "chatgpt": OpenAIEndpoint("gpt-5-mini"),
    "deepseek": OpenAIEndpoint("deepseek-chat", "https://api.deepseek.com", "DEEPSEEK_API_KEY"),
}
"""The models of the paper's table. What a service serves under a name changes; the paper's were gpt-5-mini,
and DeepSeek-v3.1 under this name when it was written."""


@dataclasses.dataclass(frozen=True)
class _Question:
    key: str
    system: str
    user: str
    bounds: list[int]
    speakers: int


def read(
    logs: Sequence[Log],
    tokenizer: Tokenizer,
    seed: int = 123,
    *,
    endpoint: Endpoint,
    tasks: Mapping[int, str],
    cache: str | os.PathLike[str] | None,
    parameters: Parameters = Parameters(),  # noqa: B008 - frozen
    unit_tokens: int = UNIT_TOKENS,
    attempts: int = 3,
    pause: float = 1.0,
    workers: int = 4,
    patience: int = 8,
) -> list[Found]:
    """Attribute every log by asking a model.

    Answers are kept in `cache` as they come, under the digest of (model and address, both prompts,
    parameters). A run that was killed, or whose endpoint died, goes on where it was: a question that has an
    answer is not asked again, and answers that broke a rule count towards `attempts`. Time-outs, lost
    connections and HTTP errors are attempts of this run only: they are not kept, so the next run asks again.
    HTTP 400 and its like (but 408, 409, 425, 429) are not asked again in this run.

    Args:
        logs: any; each text in at least two speakers.
        tokenizer: of the audit.
        seed: unused; the model's temperature is 0.
        endpoint: what is asked.
        tasks: record of a log -> the prompt's task description.
        cache: file of answers, shared by all settings and models; None keeps nothing.
        parameters: of the model.
        unit_tokens: tokens of a unit, at least 1.
        attempts: questions asked per log, at least 1.
        pause: seconds before the next attempt after a time-out or an HTTP error, doubled each time.
        workers: questions under way at once, at least 1.
        patience: logs in a row without an answer after which the endpoint counts as dead, at least 1; so do
            all logs, where they are fewer.

    Returns:
        One entry per log, in order, `matched`, without edges.

    Raises:
        InputError: a record has no task, a text has fewer than two speakers or fewer units than speakers, a
            number is out of range, or the cache is damaged.
        BackendUnavailable: the endpoint refuses the key or has no such model, or it is dead. What was
            answered until then is kept.
    """
    for name, value in (("attempts", attempts), ("workers", workers), ("patience", patience)):
        if value < 1:
            raise InputError(f"{name}: got {value}, expected at least 1")
    tokens = [read_tokens(log, tokenizer) for log in logs]
    questions = [
        _question(log, each, tasks, known_as(endpoint), parameters, unit_tokens)
        for log, each in zip(logs, tokens, strict=True)
    ]
    distinct = {question.key: question for question in questions}
    patience = min(patience, len(distinct) or 1)  # or a dead endpoint would be a baseline of few logs
    with Answers(cache) as answers:
        asker = _Asker(endpoint, answers, parameters, attempts, pause, patience)
        results = asker.all(list(distinct.values()), workers)
    return [
        _found(each, question, *results[question.key])
        for each, question in zip(tokens, questions, strict=True)
    ]


def _question(
    log: Log, tokens: Tokens, tasks: Mapping[int, str], model: str, parameters: Parameters, unit_tokens: int
) -> _Question:
    if log.record not in tasks:
        raise InputError(f"tasks: got none for record {log.record}, expected the description of its task")
    bounds, speakers = unit_bounds(tokens, unit_tokens), len(np.unique(tokens.agents))
    if speakers < 2 or len(bounds) - 1 < speakers:
        raise InputError(
            f"record {log.record}: got {speakers} speakers in {len(bounds) - 1} units, expected at least two"
            " speakers and a unit for each"
        )
    system, user = prompts(unit_texts(log, tokens, bounds), bounds, speakers, unit_tokens, tasks[log.record])
    content = {
        "model": model,
        "system": system,
        "user": user,
        "parameters": dataclasses.asdict(parameters),
    }
    return _Question(canonical_digest(content), system, user, bounds, speakers)


def _found(tokens: Tokens, question: _Question, units: Labels | None, attempts: int) -> Found:
    failed = units is None
    speakers = np.zeros(len(question.bounds) - 1, np.int64) if units is None else units
    labels = match_labels(np.repeat(speakers, np.diff(question.bounds)), tokens.agents)
    return Found(labels, None, matched=True, failures=int(failed), attempts=attempts)


class _Asker:
    """Ask questions, several at once, until each has an answer that counts or its attempts are used up."""

    def __init__(
        self,
        endpoint: Endpoint,
        answers: Answers,
        parameters: Parameters,
        attempts: int,
        pause: float,
        patience: int,
    ) -> None:
        self.endpoint, self.answers, self.parameters = endpoint, answers, parameters
        self.attempts, self.pause, self.patience = attempts, pause, patience
        self._silent = 0  # questions in a row that got no answer
        self._lock = threading.Lock()
        self._over = threading.Event()  # no question will be answered any more

    def all(self, questions: Sequence[_Question], workers: int) -> dict[str, tuple[Labels | None, int]]:
        """Return for every key the speakers of the units (None: failed) and the number of attempts."""
        known = {question.key: self._known(question) for question in questions}
        found = {key: result for key, result in known.items() if result is not None}
        left = [question for question in questions if question.key not in found]
        if not left:
            return found  # no endpoint, and no key, is needed to read what was answered
        ask = self.endpoint.connect()
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            running = {pool.submit(self._one_unless_over, ask, question): question.key for question in left}
            try:
                done = concurrent.futures.as_completed(running)
                for future in tqdm(done, self.endpoint.model, len(left), disable=None, unit="log"):
                    found[running[future]] = future.result()
            except BaseException:
                self._over.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return found

    def _known(self, question: _Question) -> tuple[Labels | None, int] | None:
        """The result of a question as far as the file has it; None if it must be asked."""
        answers = self.answers.of(question.key)
        for number, answer in enumerate(answers, 1):
            try:
                return check(answer, question.bounds, question.speakers), number
            except AnswerError:
                continue
        return (None, len(answers)) if len(answers) >= self.attempts else None

    def _one_unless_over(self, ask: Ask, question: _Question) -> tuple[Labels | None, int]:
        try:
            return self._one(ask, question)
        except BaseException:
            self._over.set()  # before this thread takes the next question
            raise

    def _one(self, ask: Ask, question: _Question) -> tuple[Labels | None, int]:
        heard, wait = False, self.pause
        tried = len(self.answers.of(question.key))
        while tried < self.attempts and not self._over.is_set():
            tried += 1
            try:
                answer = ask(question.system, question.user, self.parameters)
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
            self._heard()
            try:
                units = check(answer, question.bounds, question.speakers)
            except AnswerError as error:
                self.answers.add(question.key, self.endpoint.model, answer, str(error))
                continue
            self.answers.add(question.key, self.endpoint.model, answer, None)
            return units, tried
        return None, tried

    def _heard(self) -> None:
        with self._lock:
            self._silent = 0

    def _unanswered(self, error: NoAnswer | Refused) -> None:
        with self._lock:
            self._silent += 1
            dead = self._silent >= self.patience
        if dead:
            raise BackendUnavailable(
                f"{error}: no answer to {self.patience} logs in a row, expected an endpoint that answers; the"
                " answers so far are kept, start again to go on"
            ) from None
