"""End-to-end LLM baseline: a model is asked which tokens each speaker wrote (§ LLM Baseline Prompts).

The paper's two prompts are used verbatim, with `unit_mode = assistant_response`, units of 64 tokens,
temperature 0 and top-p 1. **The units contain the true ends of the turns**: no unit crosses the end of a
message, and the prompt says so. The model also gets the number of speakers and the task. Speaker ids carry no
names; the best one-to-one assignment maps them to agents ("oracle-matched"). The paper has no EdgeSim here.

The paper leaves open how invalid answers are handled. Here an answer that breaks a rule of the prompts is
discarded and the question is asked again, at most three times. If all answers are invalid, the log counts as
a failure and every token goes to speaker 0. Tokens are those of the auditor's tokenizer. `{boundary_values}`
is a JSON list; a unit is a line with its index, its token range and its text as a JSON string.
"""

from __future__ import annotations

import functools
import itertools
import json
import pathlib
import re
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.paper.asking import (
    AnswerError,
    Answers,
    Asker,
    OpenAIEndpoint,
    Question,
    Sampling,
    in_threads,
)
from benchmarks.paper.baselines import reading
from benchmarks.paper.conversations.logs import Log
from benchmarks.paper.reading.readers import Reading
from iet.marks.tokenizer import Tokenizer

ATTEMPTS = 3

ENDPOINTS: dict[str, OpenAIEndpoint] = {
    "chatgpt": OpenAIEndpoint("gpt-5-mini"),
    "deepseek": OpenAIEndpoint("deepseek-chat", "https://api.deepseek.com", "DEEPSEEK_API_KEY"),
}
"""The models of the paper's table, gpt-5-mini and DeepSeek-v3.1. Services change what a name stands for."""

SYSTEM, USER = (
    pathlib.Path(__file__).with_name(name).read_text(encoding="utf-8").removesuffix("\n")
    for name in ("llm_system.txt", "llm_user.txt")
)

_PLACEHOLDER = re.compile(
    r"\{(unit_tokens|k|num_units - 1|num_units|total_tokens|boundary_values|task_description|unit_lines)\}"
)


def read(
    logs: Sequence[Log],
    tokenizer: Tokenizer,
    seed: int = 123,
    *,
    endpoint: OpenAIEndpoint,
    tasks: Mapping[int, str],
    cache: pathlib.Path | None,
    sampling: Sampling = Sampling(),  # noqa: B008 - frozen
    workers: int = 4,
) -> list[Reading]:
    """Attribute every log by asking a model.

    Args:
        tasks: record of a log -> task description in the prompt.
        cache: file of answers; questions with an answer there are not asked again.
        workers: questions asked at once.
    """
    tokens = [reading.read_tokens(log, tokenizer) for log in logs]
    bounds = [reading.unit_bounds(log_tokens) for log_tokens in tokens]
    questions = []
    for log, log_tokens, edges in zip(logs, tokens, bounds, strict=True):
        speakers = len(np.unique(log_tokens.agents))
        system, user = prompts(reading.unit_texts(log, log_tokens, edges), edges, speakers, tasks[log.record])
        parse = functools.partial(parse_answer, bounds=edges, speakers=speakers)
        questions.append(Question(system, user, sampling, parse))
    asker = Asker(endpoint, Answers(cache), ATTEMPTS)
    answers = in_threads(asker, questions, workers, endpoint.model)
    readings = []
    for log_tokens, edges, units in zip(tokens, bounds, answers, strict=True):
        speakers_of_units = np.zeros(len(edges) - 1, np.int64) if units is None else units
        labels = reading.match_labels(np.repeat(speakers_of_units, np.diff(edges)), log_tokens.agents)
        readings.append(Reading(labels, None, failures=int(units is None)))
    return readings


def prompts(units: Sequence[str], bounds: Sequence[int], speakers: int, task: str) -> tuple[str, str]:
    """Return the system and the user prompt; braces that are not placeholders stay."""
    lines = [
        f"[{i}] tokens [{bounds[i]}, {bounds[i + 1]}): {json.dumps(unit, ensure_ascii=False)}"
        for i, unit in enumerate(units)
    ]
    fields = {
        "unit_tokens": reading.UNIT_TOKENS,
        "k": speakers,
        "num_units": len(units),
        "num_units - 1": len(units) - 1,
        "total_tokens": bounds[-1],
        "boundary_values": json.dumps(list(bounds)),
        "task_description": task,
        "unit_lines": "\n".join(lines),
    }
    system, user = (_PLACEHOLDER.sub(lambda match: str(fields[match[1]]), text) for text in (SYSTEM, USER))
    return system, user


def parse_answer(answer: str, bounds: Sequence[int], speakers: int) -> reading.Labels:
    """Return the speaker of every unit, int64 [N], if the answer keeps every rule of the prompts.

    The rules leave one valid answer for each labelling of the units. So the labels are read leniently, and
    the answer must equal the one that they imply.

    >>> parse_answer('{"ranges": {"0": [[0, 64]], "1": [[64, 130]]}}', [0, 64, 128, 130], 2).tolist()
    [0, 1, 1]
    """
    unit_of = {bound: i for i, bound in enumerate(bounds)}
    labels = np.full(len(bounds) - 1, -1, np.int64)
    try:
        content = json.loads(answer)
        for speaker, spans in content["ranges"].items():
            for start, end in spans:
                labels[unit_of[start] : unit_of[end]] = int(speaker)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise AnswerError(f"not an object of ranges between unit boundaries ({error!r})") from None
    ranges: dict[str, list[list[int]]] = {}  # keys in the order of first appearance
    position = 0
    for speaker, run in itertools.groupby(labels.tolist()):
        end = position + len(list(run))
        ranges.setdefault(str(speaker), []).append([bounds[position], bounds[end]])
        position = end
    if list(ranges) != [str(speaker) for speaker in range(speakers)]:
        raise AnswerError(f"speakers in the order of appearance: got {list(ranges)}, expected all {speakers}")
    if content != {"ranges": ranges} or answer[0] != "{" or answer[-1] != "}":
        raise AnswerError("expected merged, sorted, disjoint ranges and nothing else")
    return labels
