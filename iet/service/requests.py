"""What a client asks for: JSON, or options in a query. Each field is checked before anything is done."""

from __future__ import annotations

import json
import urllib.parse
from typing import Any, Literal

import pydantic

from iet.errors import InputError

MAX_DECOYS = 10_000
"""Fewer than an `Auditor` takes: memory and time grow with them."""

Option = float | int | str | bool | list[float] | None


class AuditOptions(pydantic.BaseModel):
    """How to read: the options of `iet.Auditor`, and of its method `audit`."""

    model_config = pydantic.ConfigDict(
        strict=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False
    )

    decoder: Literal["posterior", "cusum", "window"] = "posterior"
    level: float = 0.01
    allow_unattributed: bool = True
    profile: str | None = None
    decoys: int = pydantic.Field(0, ge=0, le=MAX_DECOYS)
    known_agents: list[str] | None = None
    as_copied: bool = pydantic.Field(False, description="Read the text also as before it was copied.")
    options: dict[str, Option] = pydantic.Field({}, description="The decoder's own.")
    spans: list[tuple[int, int]] | None = pydantic.Field(None, description="[start, end) of what to read.")
    skip: list[tuple[int, int]] | None = pydantic.Field(None, description="[start, end) of what not to read.")
    boundaries: list[int] | None = pydantic.Field(
        None, description="Where a writer may end, if that is known."
    )
    include_text: bool = pydantic.Field(True, description="False: the answer holds the text's digest alone.")


class AuditRequest(AuditOptions):
    """One text, token ids or messages, and how to read them."""

    text: str | None = None
    token_ids: list[int] | None = pydantic.Field(
        None, description="Ids of one tokenizer, in place of a text."
    )
    messages: Any = pydantic.Field(
        None,
        description="A conversation: chat messages (OpenAI's, LangChain's, LangGraph's), OpenTelemetry spans"
        " (OTLP JSON) or Langfuse's observations. Its texts, each once, are joined by an empty line; each is"
        " a piece of one writer's.",
    )
    id: str | int | None = pydantic.Field(None, description="Of a line of a batch: stands in the answer.")


class Named(pydantic.BaseModel):
    """The id of a request, whatever else is in it."""

    model_config = pydantic.ConfigDict(strict=True)

    id: str | int | None = None


class CheckRequest(pydantic.BaseModel):
    """A conversation whose messages name agents, to be told whether they wrote them (`iet.Auditor.check`)."""

    model_config = AuditOptions.model_config

    messages: Any = pydantic.Field(description="As for an audit; names are claims.")
    agents: dict[str, str] = pydantic.Field(
        {}, description="{name in the messages: agent of the registry}, where they differ."
    )
    level: float = 0.01
    profile: str | None = None
    known_agents: list[str] | None = None


_STRINGS = ("decoder", "profile")


def of_query(query: str) -> AuditOptions:
    """Return the options that a query holds: `level=0.05&decoder=cusum&known_agents=["planner"]`.

    Args:
        query: of a URL, as it came. Values are JSON, but those of `decoder` and `profile` stand as they are.

    Raises:
        InputError: it is no query, names an option twice, or has a value that is no JSON.
        pydantic.ValidationError: an option is not known, or has another type.
    """
    try:
        pairs = urllib.parse.parse_qsl(query, keep_blank_values=True, strict_parsing=True, errors="strict")
    except ValueError:
        raise InputError("query: expected name=value&name=value, percent-encoded UTF-8") from None
    given = dict[str, Any]()
    for name, value in pairs:
        if name in given:
            raise InputError(f"query: got {name!r:.80} twice, expected each option once")
        try:
            given[name] = value if name in _STRINGS else json.loads(value)
        except (ValueError, RecursionError):
            raise InputError(f"query: got {name!r:.80} whose value is no JSON, expected JSON") from None
    return AuditOptions.model_validate_json(json.dumps(given))


def parameters() -> list[dict[str, Any]]:
    """Return what OpenAPI says of such a query."""
    described = AuditOptions.model_json_schema()["properties"]
    return [
        {"name": name, "in": "query", "description": schema.pop("description", ""), **_form(name, schema)}
        for name, schema in described.items()
    ]


def _form(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"schema": schema} if name in _STRINGS else {"content": {"application/json": {"schema": schema}}}
