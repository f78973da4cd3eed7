"""The two prompts of the end-to-end LLM baseline, verbatim: they are the method (§ LLM Baseline Prompts).

Three things the paper leaves open: `{boundary_values}` is written as a JSON list; a unit is one line of
`{unit_lines}` with its index, its token range and its text as a JSON string, so that line breaks inside it
stay inside; the text's characters are those of the log, joiners included.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Mapping, Sequence

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
