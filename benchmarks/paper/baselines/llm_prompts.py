"""The prompts of the end-to-end LLM baseline, verbatim, and the rules of an answer (§ LLM Baseline Prompts).

The prompts are the method.

Three things the paper leaves open: `{boundary_values}` is written as a JSON list; a unit is one line of
`{unit_lines}` with its index, its token range and its text as a JSON string, so that line breaks inside it
stay inside; the text's characters are those of the log, joiners included.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.paper.asking.asker import AnswerError
from benchmarks.paper.baselines.reading import Labels
from iet.errors import InputError

SYSTEM, USER = (
    pathlib.Path(__file__).with_name(name).read_text(encoding="utf-8").removesuffix("\n")
    for name in ("llm_system.txt", "llm_user.txt")
)

_PLACEHOLDER = re.compile(
    r"\{(unit_tokens|k|num_units - 1|num_units|total_tokens|boundary_values|task_description|unit_lines)\}"
)


def fill(template: str, fields: Mapping[str, object]) -> str:
    """Return a template with its placeholders filled, in one pass; all other braces stay."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in fields:
            raise InputError(f"fields: got {sorted(fields)}, expected {match[1]!r} among them")
        return str(fields[match[1]])

    return _PLACEHOLDER.sub(value, template)


def prompts(
    units: Sequence[str], bounds: Sequence[int], speakers: int, unit_tokens: int, task: str
) -> tuple[str, str]:
    if len(bounds) != len(units) + 1:
        raise InputError(f"bounds: got {len(bounds)} for {len(units)} units, expected one more")
    lines = [
        f"[{i}] tokens [{bounds[i]}, {bounds[i + 1]}): {json.dumps(unit, ensure_ascii=False)}"
        for i, unit in enumerate(units)
    ]
    fields = {
        "unit_tokens": unit_tokens,
        "k": speakers,
        "num_units": len(units),
        "num_units - 1": len(units) - 1,
        "total_tokens": bounds[-1],
        "boundary_values": json.dumps(list(bounds)),
        "task_description": task,
        "unit_lines": "\n".join(lines),
    }
    return fill(SYSTEM, fields), fill(USER, fields)


def check(answer: str, boundaries: Sequence[int], speakers: int) -> Labels:
    """Return the speaker of every unit, int64 [N], if an answer keeps every rule of the prompts.

    It is strict: the first character is "{" and the last "}" (not even blanks are around them), one JSON
    object without a repeated key, one key "ranges", a key for every speaker and no other, no empty list,
    whole numbers from `boundaries`, ranges of positive length, sorted and merged, every token once, not all
    of them one speaker's, and speakers numbered in the order in which they first appear.

    >>> check('{"ranges": {"0": [[0, 64], [128, 130]], "1": [[64, 128]]}}', [0, 64, 128, 130], 2).tolist()
    [0, 1, 0]
    """
    ranges = _ranges(_parsed(answer), speakers)
    unit_of = {bound: i for i, bound in enumerate(boundaries)}
    labels = np.full(len(boundaries) - 1, -1, np.int64)
    for speaker, spans in enumerate(ranges):
        for start, end in spans:
            for bound in (start, end):
                if bound not in unit_of:
                    raise AnswerError(f"speaker {speaker}: {bound} is no unit boundary")
            if start >= end:
                raise AnswerError(f"speaker {speaker}: [{start}, {end}] has no positive length")
        if spans == [(0, boundaries[-1])]:
            raise AnswerError(f"speaker {speaker}: one speaker covers all tokens")
        for (_, end), (start, _) in itertools.pairwise(spans):
            if start == end:
                raise AnswerError(f"speaker {speaker}: ranges that touch at {end} are not merged")
            if start < end:
                raise AnswerError(f"speaker {speaker}: ranges overlap or are not sorted at {start}")
        for start, end in spans:
            units = slice(unit_of[start], unit_of[end])
            if (labels[units] >= 0).any():
                first = boundaries[units.start + int((labels[units] >= 0).argmax())]
                raise AnswerError(f"speaker {speaker}: tokens from {first} on are another speaker's, too")
            labels[units] = speaker
    if (labels < 0).any():
        raise AnswerError(f"tokens from {boundaries[int((labels < 0).argmax())]} on are nobody's")
    firsts = [spans[0][0] for spans in ranges]
    if firsts != sorted(firsts):
        raise AnswerError(f"speakers first appear at {firsts}, not in the order of their ids")
    return labels


def _parsed(answer: str) -> Any:
    if not answer.startswith("{") or not answer.endswith("}"):
        raise AnswerError("text before '{' or after '}'")

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            raise AnswerError(f"a key occurs twice among {names}")
        return dict(pairs)

    try:
        return json.loads(answer, object_pairs_hook=distinct)
    except AnswerError:
        raise
    except json.JSONDecodeError as error:
        raise AnswerError(f"not one JSON object: {error}") from None
    except (RecursionError, ValueError):  # nested or numbers too deep or long to be read
        raise AnswerError("not one JSON object that can be read") from None


def _ranges(content: Any, speakers: int) -> list[list[tuple[int, int]]]:
    if list(content) != ["ranges"]:
        raise AnswerError(f"top-level keys are {list(content)}, not 'ranges' alone")
    ranges = content["ranges"]
    if not isinstance(ranges, dict):
        raise AnswerError("'ranges' is no object")
    names = [str(speaker) for speaker in range(speakers)]
    missing, extra = [n for n in names if n not in ranges], [n for n in ranges if n not in names]
    if missing:
        raise AnswerError(f"speaker {missing[0]} is missing")
    if extra:
        raise AnswerError(f"there is no speaker {extra[0]!r}")
    found = []
    for name in names:
        spans = ranges[name]
        if not isinstance(spans, list):
            raise AnswerError(f"speaker {name}: no list of ranges")
        if not spans:
            raise AnswerError(f"speaker {name}: an empty list")
        for span in spans:
            # bool is an int to Python, but true is no token.
            if not (isinstance(span, list) and len(span) == 2 and all(type(bound) is int for bound in span)):
                raise AnswerError(f"speaker {name}: {span!r} is no range of two whole numbers")
        found.append([(start, end) for start, end in spans])
    return found
