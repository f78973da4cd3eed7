"""End-to-end LLM: a model is asked which tokens are which speaker's (§ Baselines, § LLM Baseline Prompts).

The paper's two prompts, verbatim (`llm_prompts`), `unit_mode = assistant_response`, units of 64 tokens,
temperature 0, top-p 1. **The units give the model the true ends of the turns as unit boundaries**: no unit
crosses the end of a message, and the prompt says so. It is also told the number of speakers K (those that
speak in the log) and the task. Speaker ids carry no name; they are mapped to agents by the best one-to-one
assignment ("oracle-matched"). EdgeSim is N/A as in the paper.

The paper leaves open what becomes of a bad answer. Here `llm_prompts.check` refuses one that breaks any rule
of the prompts, and the same question is asked again, without the reason, up to 3 times in all. If all fail,
the log counts as a failure (`Found.failures`), and every token goes to speaker 0, who is mapped like any
other, so to the agent that wrote the most: no log is left out, and the baseline gets what knowing nothing is
worth.

Tokens are those of the auditor's tokenizer, not of the model that is asked.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.paper.asking.asker import Answers, Asker, Question
from benchmarks.paper.asking.endpoints import Endpoint, OpenAIEndpoint, Parameters, known_as
from benchmarks.paper.baselines.llm_prompts import check, prompts
from benchmarks.paper.baselines.reading import (
    UNIT_TOKENS,
    Found,
    Labels,
    Tokens,
    match_labels,
    read_tokens,
    unit_bounds,
    unit_texts,
)
from benchmarks.paper.conversations.logs import Log
from iet.errors import InputError
from iet.marks.tokenizer import Tokenizer

ENDPOINTS: dict[str, OpenAIEndpoint] = {
    "chatgpt": OpenAIEndpoint("gpt-5-mini"),
    "deepseek": OpenAIEndpoint("deepseek-chat", "https://api.deepseek.com", "DEEPSEEK_API_KEY"),
}
"""The models of the paper's table. What a service serves under a name changes; the paper's were gpt-5-mini,
and DeepSeek-v3.1 under this name when it was written."""


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
    """Attribute every log by asking a model; each text has at least two speakers.

    Answers are kept in `cache` (None: nowhere) as they come, under the digest of (model and address, both
    prompts, parameters). A run that was killed, or whose endpoint died, goes on where it was: a question that
    has an answer is not asked again, and answers that broke a rule count towards `attempts`. Time-outs, lost
    connections and HTTP errors are attempts of this run only: they are not kept, so the next run asks again.
    HTTP 400 and its like (but 408, 409, 425, 429) are not asked again in this run. The endpoint counts as
    dead after `patience` questions in a row without an answer, or after all, where they are fewer.

    Args:
        tasks: record of a log -> the prompt's task description.
        pause: seconds before the next attempt after a time-out or an HTTP error, doubled each time.
        workers: questions under way at once.
    """
    for name, value in (("attempts", attempts), ("workers", workers), ("patience", patience)):
        if value < 1:
            raise InputError(f"{name}: got {value}, expected at least 1")
    tokens = [read_tokens(log, tokenizer) for log in logs]
    bounds = [unit_bounds(each, unit_tokens) for each in tokens]
    questions = [
        _question(log, each, some, tasks, parameters, unit_tokens)
        for log, each, some in zip(logs, tokens, bounds, strict=True)
    ]
    keys = [question.key(known_as(endpoint)) for question in questions]
    distinct = dict(zip(keys, questions, strict=True))
    patience = min(patience, len(distinct) or 1)  # or a dead endpoint would be a baseline of few logs
    with Answers(cache) as answers:
        asker = Asker(endpoint, answers, attempts=attempts, pause=pause, patience=patience)
        told = asker.over_all(asker, list(distinct.values()), workers, "log")
    results = dict(zip(distinct, told, strict=True))
    return [_found(each, some, *results[key]) for each, some, key in zip(tokens, bounds, keys, strict=True)]


def _question(
    log: Log,
    tokens: Tokens,
    bounds: list[int],
    tasks: Mapping[int, str],
    parameters: Parameters,
    unit_tokens: int,
) -> Question[Labels]:
    if log.record not in tasks:
        raise InputError(f"tasks: got none for record {log.record}, expected the description of its task")
    speakers = len(np.unique(tokens.agents))
    if speakers < 2 or len(bounds) - 1 < speakers:
        raise InputError(
            f"record {log.record}: got {speakers} speakers in {len(bounds) - 1} units, expected at least two"
            " speakers and a unit for each"
        )
    system, user = prompts(unit_texts(log, tokens, bounds), bounds, speakers, unit_tokens, tasks[log.record])
    return Question(system, user, parameters, functools.partial(check, boundaries=bounds, speakers=speakers))


def _found(tokens: Tokens, bounds: list[int], units: Labels | None, attempts: int) -> Found:
    speakers = np.zeros(len(bounds) - 1, np.int64) if units is None else units
    labels = match_labels(np.repeat(speakers, np.diff(bounds)), tokens.agents)
    return Found(labels, None, matched=True, failures=int(units is None), attempts=attempts)
