"""The two prompts of the end-to-end LLM baseline, verbatim: they are the method (§ LLM Baseline Prompts).

Three things the paper leaves open: `{boundary_values}` is written as a JSON list; a unit is one line of
`{unit_lines}` with its index, its token range and its text as a JSON string, so that line breaks inside it
stay inside; the text's characters are those of the log, joiners included.
"""

# ruff: noqa: E501 - the paper's lines

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from iet.errors import InputError

SYSTEM = """\
You assign each token span in a concatenated multi-speaker trace to one of K speakers.
You must reason privately and NEVER reveal your reasoning.
Your final answer must be EXACTLY ONE JSON object and NOTHING ELSE.
Do not output any natural language, analysis, prefacing text, markdown, code fences, bullets, or apologies.
Do not start with phrases like 'Okay', 'Let's', 'Here is', or any sentence.
The ONLY valid output format is:
{"ranges": {"0": [[0, 64]], "1": [[64, 128]], "2": [[128, 192]], "3": [[192, 256]]}}
Example valid output:
{"ranges": {"0": [[0, 64]], "1": [[64, 128], [192, 256]], "2": [[128, 192]], "3": [[256, 320]]}}
Use speaker ids 0..K-1 in order of first appearance in the conversation.
Each [l, r] is a token range in [start, end) format.
Each listed unit is a contiguous chunk of {unit_tokens} tokens, except the final chunk of a message which may be shorter.
Every range boundary must align exactly to a listed unit boundary.
That means every start and every end value must be chosen from the provided unit boundary values.
Do not invent token boundaries inside a unit.
Think of the task as assigning each unit to exactly one speaker, then merging consecutive units with the same speaker.
No unit may belong to more than one speaker.
No unit may be left unassigned.
The top-level object must contain exactly one key: "ranges".
Inside "ranges", there must be exactly K keys: "0", "1", ..., "K-1".
No speaker key may appear outside the "ranges" object.
Ranges for each speaker must be sorted and non-overlapping.
For each speaker, merge all adjacent or touching ranges.
If one range ends at x and the next range starts at x, they must be merged into a single range.
Use the minimum number of ranges possible for each speaker.
Across all speakers, ranges must exactly cover all tokens from 0 to T with no gaps and no overlaps.
Every speaker from 0 to K-1 definitely appears in this trace.
Therefore, no speaker may have an empty range list.
Any output where a speaker has [] is invalid.
Any output where one speaker covers all tokens is invalid.
Before answering, verify that every speaker has at least one non-empty range with positive length.
If you are uncertain, still output your best guess in the required JSON format.
An answer like 'Okay, let me think' is invalid.
Any text before '{' or after '}' is invalid."""

USER = """\
There are K={k} speakers.
There are N={num_units} units, indexed from 0 to {num_units - 1}.
There are T={total_tokens} tokens in total.
Each unit is a contiguous chunk of {unit_tokens} tokens, except the last chunk of a message which may be shorter.
Valid unit boundary values are: {boundary_values}.
You do NOT know the speaker identities in advance.
Speaker 0 must be the first distinct speaker that appears, speaker 1 the next new speaker, and so on.
Return exactly one JSON object with this schema:
{"ranges": {"0": [[start, end]], "1": [[start, end]], "2": [[start, end]], "3": [[start, end]]}}
Concrete example output:
{"ranges": {"0": [[0, 64]], "1": [[64, 128], [192, 256]], "2": [[128, 192]], "3": [[256, 320]]}}
In that example, speaker 1 has two ranges: [64, 128] and [192, 256].
All start/end values in the output must be taken from the valid unit boundary values listed above.
A range like [10, 70] is invalid if 10 or 70 is not a listed unit boundary.
Assign each unit to exactly one speaker before you construct the ranges.
Then merge adjacent units assigned to the same speaker into a single range.
There are exactly K distinct speakers in this trace.
You must include every speaker key from 0 to K-1, and every speaker must have at least one non-empty range.
Every speaker definitely speaks at least once in this trace.
So no speaker may have an empty list [].
The JSON is invalid unless the only top-level key is "ranges" and all speaker keys are inside it.
The JSON is invalid if any speaker key from 0 to K-1 is missing.
The JSON is invalid if any speaker has an empty list.
The JSON is invalid if one speaker covers all tokens.
Do not assign all tokens to a single speaker.
Adjacent or touching ranges for the same speaker must be merged.
Use the minimum number of ranges possible.
Your first character must be '{' and your last character must be '}'.
Do not output anything except this JSON object.

TRACE CONTEXT:
task_description={task_description}

UNITS:
{unit_lines}"""

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
    """Return the system and the user prompt for one log.

    Args:
        units: the text of every unit.
        bounds: 0 .. T, one more than units.
        speakers: K.
        unit_tokens: of a full unit.
        task: the task's description.
    """
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
