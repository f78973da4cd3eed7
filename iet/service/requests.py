"""What a client asks for: JSON, or options in a query. Each field is checked before anything is done."""

from __future__ import annotations

import json
import urllib.parse
from typing import Any

import pydantic

from iet.audit.options import options
from iet.errors import InputError

Option = float | int | str | bool | list[float] | None
"""Value of an option of a decoder's own."""


class _Reading(pydantic.BaseModel):
    """What of a text is read, and what the answer holds: arguments of `Auditor.audit`, not of `Auditor`."""

    model_config = pydantic.ConfigDict(
        strict=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False
    )

    spans: list[tuple[int, int]] | None = pydantic.Field(None, description="[start, end) of what to read.")
    skip: list[tuple[int, int]] | None = pydantic.Field(None, description="[start, end) of what not to read.")
    boundaries: list[int] | None = pydantic.Field(
        None, description="Where a writer may end, if that is known."
    )
    include_text: bool = pydantic.Field(True, description="False: the answer holds the text's digest alone.")


def _fields() -> dict[str, Any]:
    """Return the options of `iet.AuditOptions` that a client may set, as fields of pydantic."""
    kinds: dict[str, Any] = {
        **dict.fromkeys(("known_agents", "sessions"), list[str] | None),
        "decoder_options": dict[str, Option] | None,
    }
    fields = {}
    for name, (option, kind, default) in options().items():
        if option.http:
            most: dict[str, Any] = {"max_length" if name == "sessions" else "le": option.http_maximum}
            field = pydantic.Field(default, description=option.help, **most)
            fields[name] = kinds.get(name, kind), field
    return fields


AuditParameters: Any = pydantic.create_model("AuditParameters", __base__=_Reading, **_fields())
"""How to read a text: the options of an audit that a client may set."""


class AuditRequest(AuditParameters):  # type: ignore[misc]
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

    model_config = _Reading.model_config

    messages: Any = pydantic.Field(description="As for an audit; names are claims.")
    agents: dict[str, str] = pydantic.Field(
        {}, description="{name in the messages: agent of the registry}, where they differ."
    )
    level: float = 0.01
    profile: str | None = None
    known_agents: list[str] | None = None


_STRINGS = ("decoder", "profile", "attributed")


def of_query(query: str) -> Any:
    """Return the `AuditParameters` of a query: `level=0.05&decoder=cusum&known_agents=["planner"]`.

    Args:
        query: of a URL, as it came. Values are JSON, except those of `decoder`, `profile` and `attributed`.

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
    return AuditParameters.model_validate_json(json.dumps(given))


def parameters() -> list[dict[str, Any]]:
    """Return what OpenAPI says of such a query."""
    described = AuditParameters.model_json_schema()["properties"]
    return [
        {"name": name, "in": "query", "description": schema.pop("description", ""), **_form(name, schema)}
        for name, schema in described.items()
    ]


def _form(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"schema": schema} if name in _STRINGS else {"content": {"application/json": {"schema": schema}}}
