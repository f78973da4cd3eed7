"""The public detector: a text in, one of three results out, without names, p-values or positions.

The result depends on the text, the keys and the index of published text only, so a repeated question reveals
nothing new. Both levels are far below those of an audit, because an attacker who reaches the higher one by
chance can climb from there, one question at a time (`benchmarks/security/public_detector.py`).
"""

from __future__ import annotations

import math
import urllib.parse
from typing import Any, Literal

import numpy as np
import pydantic

from iet.audit.attribution import evidence_of
from iet.audit.auditor import Auditor
from iet.errors import InputError
from iet.report import html

JSON, FORM = "application/json", "application/x-www-form-urlencoded"

MIN_TOKENS = 200
"""Length from which texts are read: the shortest that must be marked under the EU's code of practice."""

FOUND_LEVEL, UNCLEAR_LEVEL = 1e-9, 1e-6
"""False-positive rates on unmarked text: of the result `found`, and of `found` and `unclear` together."""

MEANINGS = {
    "found": "The text carries a mark that this service knows. Of a billion unmarked texts, at most about one"
    " gets this result.",
    "unclear": "The text may carry a mark, but the evidence is weak, or too little of the text is evidence.",
    "not_found": "No mark was found. This does not prove that the text is unmarked or written by a person:"
    " editing, paraphrase and predictable wording remove marks.",
}
"""Result -> what it means."""

_TEMPLATE = html.environment("iet.service").get_template("public.html")


class Question(pydantic.BaseModel):
    """A text whose mark is asked for."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)

    text: str = pydantic.Field(description=f"At least {MIN_TOKENS} tokens of the detector's tokenizer.")


class Answer(pydantic.BaseModel):
    """The answer of the public detector."""

    result: Literal["found", "unclear", "not_found"]
    meaning: str = pydantic.Field(description="What the result means, in English.")
    tokens: int = pydantic.Field(description="Length of the text in tokens; it depends on no key.")
    min_tokens: int = pydantic.Field(description="Length from which texts are read.")


def detect(auditor: Auditor, text: str) -> dict[str, Any]:
    """Return the fields of an `Answer` about one text.

    `found` and `unclear` have p-values of the whole text of at most `FOUND_LEVEL` and `UNCLEAR_LEVEL`. Other
    texts are `unclear` too if fewer than half of `MIN_TOKENS` tokens are evidence, which depends on no key.

    Raises:
        InputError: the text is shorter than `MIN_TOKENS` tokens, or no valid Unicode.
        TokenizerMismatch: no tokenizer with a profile's digest.

    Deterministic. O(T·K) for T tokens and K keys. Nothing is decoded, so the time depends on no position.
    """
    encodings = auditor.plan.encode([text])[0]
    tokens = sum(len(encoding.token_ids) for encoding in encodings) // len(encodings)
    if tokens < MIN_TOKENS:
        raise InputError(f"text: got {tokens:,} tokens, expected at least {MIN_TOKENS}")
    evidence, counted = evidence_of(auditor.plan, text, encodings)
    log_p = float(np.nanmin(evidence))
    result = "not_found"
    if log_p <= math.log(FOUND_LEVEL):
        result = "found"
    elif log_p <= math.log(UNCLEAR_LEVEL) or counted // len(encodings) < MIN_TOKENS // 2:
        result = "unclear"
    return {"result": result, "meaning": MEANINGS[result], "tokens": tokens, "min_tokens": MIN_TOKENS}


def answer(auditor: Auditor, body: bytes, media_type: str) -> dict[str, Any]:
    """Return `detect` of a request's body.

    Raises:
        pydantic.ValidationError: it is JSON and no `Question`.
        InputError: it is no UTF-8, no form with one text, or `detect` refuses the text.
    """
    return detect(auditor, _text(body, media_type))


def _text(body: bytes, media_type: str) -> str:
    if media_type == JSON:
        return Question.model_validate_json(body).text
    try:
        text = body.decode()
        if media_type == FORM:
            (text,) = urllib.parse.parse_qs(text, errors="strict", max_num_fields=1)["text"]
            text = text.replace("\r\n", "\n")  # as browsers send the lines of a form
    except (ValueError, KeyError):
        raise InputError("text: expected UTF-8, in a form the field text alone") from None
    return text


def page(answer: dict[str, Any] | None = None) -> str:
    """Return the page with the form, and with an `Answer` or {"error": message} if there is one."""
    return _TEMPLATE.render(answer=answer or {}, min_tokens=MIN_TOKENS)
