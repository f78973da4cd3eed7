"""Who failed at which step, asked of a model: three protocols behind one interface.

* `all_at_once`: one question about the whole log; agent and step are what the answer names.
* `step_by_step`: is this step a mistake, from the first step on; ends at the first that is.
* `binary_search`: which half holds the mistake, until one step is left.

The last two predict a step, and the agent is who spoke there in the log that is shown: where IDs were removed
that is nobody, and AgentAcc 0 by construction.

An answer is sampled once for every question and seed, and kept: a run that was killed goes on, a question is
asked once, and an answer that cannot be read is not asked for again but ends the log without a prediction.
Where the endpoint gave no answer (after `attempts`), refuses the question, or the question does not fit into
the judge's context even without contents, the log has no prediction either, and the next run asks again. Both
readings (`verdicts.STRICT`, `LEGACY`) follow the same answers; where they part, each asks what it needs.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Mapping, Sequence

from benchmarks.paper.asking.asker import AnswerError, Answers, Asker, Question
from benchmarks.paper.asking.endpoints import Endpoint, Sampling
from benchmarks.paper.failure import questions
from benchmarks.paper.failure.questions import Words, shown_name
from benchmarks.paper.failure.trajectories import Trajectory
from benchmarks.paper.failure.verdicts import LEGACY, STRICT, Prediction, Reading
from benchmarks.writing.models import Loaded
from iet.errors import InputError


@dataclasses.dataclass(frozen=True)
class Judge:
    endpoint: Endpoint  # where it is asked (`local.LocalEndpoint`, or an OpenAI-compatible endpoint)
    # Of a question, in the units of `room`
    length: Callable[[Words], int] = lambda words: len(words.system) + len(words.user)
    room: int | None = None  # the longest question; None if there is no limit, or nobody knows it
    workers: int = 1  # questions under way at once


def local(loaded: Loaded, max_tokens: int, room: int | None = None) -> Judge:
    """Return the judge of a loaded model; without a room, questions may fill what it has positions for."""
    most = loaded.positions - max_tokens
    if max_tokens < 1 or not 1 <= (most if room is None else room) <= most:
        raise InputError(
            f"room, max_tokens: got {room} and {max_tokens}, expected at least 1 each and at most"
            f" {loaded.positions} together, the model's positions"
        )
    from benchmarks.paper.asking.local import LocalEndpoint

    endpoint = LocalEndpoint(loaded)
    return Judge(
        endpoint, lambda words: endpoint.tokens(words.system, words.user), most if room is None else room
    )


@dataclasses.dataclass(frozen=True)
class Outcome:
    prediction: Prediction | None  # as the answers are read strictly; None if there is none
    reason: str  # why there is none
    legacy: Prediction | None  # as the public programs read
    legacy_reason: str
    unanswered: bool  # a question got no answer, or did not fit even without contents
    calls: int  # questions
    cut: int  # of them, those that did not fit and lost contents


Asking = Callable[[questions.Ask], str]
"""Question -> answer; raises AnswerError where there is none."""


def _all_at_once(log: Trajectory, ask: Asking, reading: Reading) -> Prediction:
    answer = ask(functools.partial(questions.all_at_once, log))
    return reading.prediction(answer, len(log.turns))


def _step_by_step(log: Trajectory, ask: Asking, reading: Reading) -> Prediction:
    for step, turn in enumerate(log.turns):
        answer = ask(functools.partial(questions.step_by_step, log, step))
        if reading.mistaken(answer):
            return reading.turn(shown_name(turn), step)
    raise AnswerError("no step was found to be a mistake")


def _binary_search(log: Trajectory, ask: Asking, reading: Reading) -> Prediction:
    start, end = 0, len(log.turns) - 1
    while start < end:
        answer = ask(functools.partial(questions.binary_search, log, start, end))
        half = questions.middle(start, end)
        start, end = (start, half) if reading.upper(answer) else (half + 1, end)
    return reading.turn(shown_name(log.turns[start]), start)


PROTOCOLS: Mapping[str, Callable[[Trajectory, Asking, Reading], Prediction]] = {
    "all_at_once": _all_at_once,
    "step_by_step": _step_by_step,
    "binary_search": _binary_search,
}
"""Name -> (log, what asks, reading) -> prediction; raises AnswerError where there is none."""


def judge(
    logs: Sequence[Trajectory],
    judge: Judge,
    *,
    cache: str | os.PathLike[str] | None,
    protocols: Sequence[str] = tuple(PROTOCOLS),
    seeds: Sequence[int] = (0,),
    sampling: Sampling = Sampling(),  # noqa: B008 - frozen
    attempts: int = 3,
    pause: float = 1.0,
    patience: int = 8,
) -> dict[tuple[str, int], list[Outcome]]:
    """Ask a judge about every log, in every protocol, under every seed; return an outcome per log, in order.

    `cache` is a file of answers, which may hold those of other judges and logs; None keeps nothing. A
    question counts as unanswered after so many `attempts`, with pauses that double from `pause` seconds on,
    and the endpoint as dead after `patience` questions in a row without an answer, or after one for each log,
    protocol and seed, where they are fewer.
    """
    unknown = [name for name in protocols if name not in PROTOCOLS]
    if unknown:
        raise InputError(f"protocols: got {unknown[0]!r}, expected some of {list(PROTOCOLS)}")
    tasks = list(itertools.product(protocols, seeds, logs))
    patience = min(patience, len(tasks) or 1)  # or a dead endpoint would be a judge of few logs
    with Answers(cache) as answers:
        asker = Asker(judge.endpoint, answers, attempts=attempts, pause=pause, patience=patience)

        def one(task: tuple[str, int, Trajectory]) -> Outcome:
            protocol, seed, log = task
            session = _Session(asker, judge, dataclasses.replace(sampling, seed=seed), log)
            return session.outcome(PROTOCOLS[protocol])

        found = iter(asker.over_all(one, tasks, judge.workers, "log"))
    return {
        (protocol, seed): list(itertools.islice(found, len(logs)))
        for protocol, seed in itertools.product(protocols, seeds)
    }


class _Session:
    """The questions about one log under one seed."""

    def __init__(self, asker: Asker, judge: Judge, sampling: Sampling, log: Trajectory) -> None:
        self.asker, self.judge, self.sampling, self.log = asker, judge, sampling, log
        self.longest = max(len(turn.content) for turn in log.turns)
        self._fitted: dict[Words, tuple[Words, bool] | None] = {}
        self._answers: dict[Words, str | None] = {}

    def outcome(self, protocol: Callable[[Trajectory, Asking, Reading], Prediction]) -> Outcome:
        strict, legacy = (self._read(protocol, reading) for reading in (STRICT, LEGACY))
        unfit = any(fitted is None for fitted in self._fitted.values())
        return Outcome(
            *strict,
            *legacy,
            unanswered=unfit or None in self._answers.values(),
            calls=len(self._answers),
            cut=sum(fitted is not None and fitted[1] for fitted in self._fitted.values()),
        )

    def _read(
        self, protocol: Callable[[Trajectory, Asking, Reading], Prediction], reading: Reading
    ) -> tuple[Prediction | None, str]:
        try:
            return protocol(self.log, self._ask, reading), ""
        except AnswerError as error:
            return None, str(error)

    def _ask(self, ask: questions.Ask) -> str:
        whole = ask(None)
        if whole not in self._fitted:
            self._fitted[whole] = questions.fitted(ask, self.longest, self._fits)
        fitted = self._fitted[whole]
        if fitted is None:
            raise AnswerError(f"longer than the judge's {self.judge.room} without any contents")
        words, _ = fitted
        if words not in self._answers:
            said, _ = self.asker(Question(words.system, words.user, self.sampling, str))
            self._answers[words] = said
        answer = self._answers[words]
        if answer is None:
            raise AnswerError("the endpoint gave no answer")
        return answer

    def _fits(self, words: Words) -> bool:
        return self.judge.room is None or self.judge.length(words) <= self.judge.room
