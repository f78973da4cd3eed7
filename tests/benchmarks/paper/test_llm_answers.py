"""The end-to-end LLM baseline: the rules of an answer, and the prompts."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from iet.errors import InputError

pytest.importorskip("openai")

from benchmarks.paper.asking.asker import AnswerError
from benchmarks.paper.baselines import llm_prompts
from benchmarks.paper.baselines.llm_prompts import check

# Rules of an answer

BOUNDS = [0, 64, 100, 164, 200]
"""Two messages of 100 tokens."""


def answer_of(**ranges: Any) -> str:
    return json.dumps({"ranges": {name[1:]: spans for name, spans in ranges.items()}})


def test_an_answer_that_keeps_the_rules_names_the_speaker_of_every_unit():
    assert check(answer_of(s0=[[0, 64], [164, 200]], s1=[[64, 164]]), BOUNDS, 2).tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("answer", "speakers", "reason"),
    [
        ("Okay, let me think", 2, "text before '{' or after '}'"),
        ("", 2, "text before"),
        ("\n" + answer_of(s0=[[0, 100]], s1=[[100, 200]]), 2, "text before"),
        ("```json\n" + answer_of(s0=[[0, 100]], s1=[[100, 200]]) + "\n```", 2, "text before"),
        (answer_of(s0=[[0, 100]], s1=[[100, 200]]) + " Done.", 2, "or after '}'"),
        ("{} {}", 2, "not one JSON object: Extra data"),
        ('{"ranges": {"0": [[0, 100]], "1": [[100, 200]]}', 2, "not one JSON object"),
        ("{" * 100_000 + "}", 2, "not one JSON object"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, 2, "not one JSON object"),
        ('{"ranges": {"0": [[0, ' + "9" * 5000 + ']]}}', 2, "not one JSON object|no unit boundary|missing"),
        ("{}", 2, "top-level keys are [], not 'ranges' alone"),
        ('{"ranges": {"0": [[0, 100]], "1": [[100, 200]]}, "why": 1}', 2, "['ranges', 'why']"),
        ('{"ranges": {"0": [[0, 100]]}, "1": [[100, 200]]}', 2, "['ranges', '1']"),
        ('{"ranges": [[0, 100]]}', 2, "'ranges' is no object"),
        (answer_of(s0=[[0, 200]]), 2, "speaker 1 is missing"),
        (answer_of(s0=[[0, 100]], s1=[[100, 164]], s2=[[164, 200]]), 2, "there is no speaker '2'"),
        (answer_of(s0=[[0, 100]], s01=[[100, 200]]), 2, "speaker 1 is missing"),
        ('{"ranges": {"0": [[0, 100]], "0": [[0, 64]], "1": [[100, 200]]}}', 2, "a key occurs twice"),
        (answer_of(s0=[[0, 200]], s1=[]), 2, "speaker 1: an empty list"),
        (answer_of(s0=[[0, 200]], s1=None), 2, "speaker 1: no list"),
        (answer_of(s0=[0, 100], s1=[[100, 200]]), 2, "speaker 0: 0 is no range of two whole numbers"),
        (answer_of(s0=[[0, 64, 100]], s1=[[100, 200]]), 2, "[0, 64, 100] is no range"),
        (answer_of(s0=[[0.0, 100]], s1=[[100, 200]]), 2, "[0.0, 100] is no range"),
        (answer_of(s0=[[False, 100]], s1=[[100, 200]]), 2, "[False, 100] is no range"),
        (answer_of(s0=[["0", 100]], s1=[[100, 200]]), 2, "is no range"),
        (answer_of(s0=[[0, 70]], s1=[[70, 200]]), 2, "speaker 0: 70 is no unit boundary"),
        (answer_of(s0=[[0, 100]], s1=[[100, 201]]), 2, "speaker 1: 201 is no unit boundary"),
        (answer_of(s0=[[0, 100]], s1=[[100, 200], [200, 200]]), 2, "[200, 200] has no positive length"),
        (answer_of(s0=[[100, 0]], s1=[[100, 200]]), 2, "[100, 0] has no positive length"),
        (answer_of(s0=[[0, 64], [64, 100]], s1=[[100, 200]]), 2, "touch at 64 are not merged"),
        (answer_of(s0=[[164, 200], [0, 64]], s1=[[64, 164]]), 2, "ranges overlap or are not sorted"),
        (answer_of(s0=[[0, 100], [64, 164]], s1=[[164, 200]]), 2, "speaker 0: ranges overlap"),
        (answer_of(s0=[[0, 100]], s1=[[64, 200]]), 2, "speaker 1: tokens from 64 on are another speaker's"),
        (answer_of(s0=[[0, 200]], s1=[[164, 200]]), 2, "speaker 0: one speaker covers all tokens"),
        (answer_of(s0=[[0, 164]], s1=[[100, 200]]), 2, "tokens from 100 on are another speaker's"),
        (answer_of(s0=[[0, 64]], s1=[[100, 200]]), 2, "tokens from 64 on are nobody's"),
        (answer_of(s0=[[0, 64]], s1=[[64, 164]]), 2, "tokens from 164 on are nobody's"),
        (answer_of(s0=[[100, 200]], s1=[[0, 100]]), 2, "speakers first appear at [100, 0]"),
    ],
)  # fmt: skip
def test_an_answer_that_breaks_a_rule_is_refused_with_the_reason(answer, speakers, reason):
    with pytest.raises(AnswerError) as raised:
        check(answer, BOUNDS, speakers)
    assert any(part in str(raised.value) for part in reason.split("|"))


# Prompts


def test_the_prompts_are_the_papers():
    """Known answers, taken from the paper's source: the templates are the method."""
    digests = [hashlib.sha256(t.encode()).hexdigest() for t in (llm_prompts.SYSTEM, llm_prompts.USER)]
    assert digests == [
        "f7f6c4411c25a5c55b8c522915c344ad3a4a423588324d299c6e36a6845fb647",
        "68927aa7b1ab25429c8c92b418260d15411c74d1417c6e930a9dd1016bd16f45",
    ]


def test_placeholders_are_filled_once_and_other_braces_stay():
    system, user = llm_prompts.prompts(["one {k}\n", "{unit_lines}"], [0, 64, 70], 2, 64, "Say {num_units}.")
    assert "chunk of 64 tokens, except the final chunk" in system
    assert system.replace("64 tokens, except", "{unit_tokens} tokens, except") == llm_prompts.SYSTEM
    assert user.startswith(
        "There are K=2 speakers.\nThere are N=2 units, indexed from 0 to 1.\n"
        "There are T=70 tokens in total.\n"
    )
    assert "Valid unit boundary values are: [0, 64, 70].\n" in user
    assert '{"ranges": {"0": [[start, end]], "1": [[start, end]], "2": [[start, end]]' in user
    assert user.endswith(
        "TRACE CONTEXT:\ntask_description=Say {num_units}.\n\nUNITS:\n"
        '[0] tokens [0, 64): "one {k}\\n"\n[1] tokens [64, 70): "{unit_lines}"'
    )
    with pytest.raises(InputError, match="expected 'k'"):
        llm_prompts.fill("{k}", {})
