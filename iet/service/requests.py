"""Requests to the service: their headers, and JSON, query options or a document as their content."""

from __future__ import annotations

import contextlib
import dataclasses
import email.message
import json
import urllib.parse
from typing import TYPE_CHECKING, Any

import pydantic

from iet.audit import formats, traces
from iet.audit.documents import check_encoding
from iet.audit.options import options
from iet.errors import InputError
from iet.service.limits import RequestRefused

if TYPE_CHECKING:
    import fastapi  # not at run time: workers do without it

JSON, PLAIN = "application/json", "text/plain"

DOCUMENT_SUFFIXES = {
    "application/pdf": ".pdf",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ".docx",
    "text/html": ".html",
    "application/xhtml+xml": ".html",
    "message/rfc822": ".eml",
    "application/x-ipynb+json": ".ipynb",
}
"""Content-Type -> format, as `iet.audit.formats` names it.

Browsers send none of these to another origin without a CORS preflight, in contrast to `text/plain`.
"""

MEDIA_TYPES = {suffix: media for media, suffix in reversed(DOCUMENT_SUFFIXES.items())}
MEDIA_TYPES |= {".htm": MEDIA_TYPES[".html"], ".xhtml": "application/xhtml+xml"}
"""Suffix of a file's name -> Content-Type."""

UNPACKED = 16
"""Maximum size of an unpacked document, as a multiple of the maximum body."""

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_PLAIN_STRINGS = ("decoder", "profile", "attributed")
"""Options whose values in a query are not JSON."""

DecoderOption = float | int | str | bool | list[float] | None


class _Reading(pydantic.BaseModel):
    """Arguments of `Auditor.audit`, not of `Auditor`."""

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
    types: dict[str, Any] = {
        **dict.fromkeys(("known_agents", "sessions"), list[str] | None),
        "decoder_options": dict[str, DecoderOption] | None,
    }
    fields = {}
    for name, (option, default_type, default) in options().items():
        if option.http:
            maximum: dict[str, Any] = {"max_length" if name == "sessions" else "le": option.http_maximum}
            field = pydantic.Field(default, description=option.help, **maximum)
            fields[name] = types.get(name, default_type), field
    return fields


AuditParameters: Any = pydantic.create_model("AuditParameters", __base__=_Reading, **_fields())
"""The options of an audit that a client may set."""


class AuditRequest(AuditParameters):  # type: ignore[misc]
    """One text, token ids or messages, and how to read them."""

    text: str | None = None
    token_ids: list[int] | None = pydantic.Field(
        None, description="Ids of one tokenizer, in place of a text."
    )
    messages: Any = pydantic.Field(
        None,
        description=f"A conversation: {traces.NAMES}. Its texts, each once, are joined by an empty line; each"
        " is a piece of one writer's.",
    )
    id: str | int | None = pydantic.Field(None, description="Of a line of a batch: stands in the answer.")


class RequestId(pydantic.BaseModel):
    """The id of a request whose other fields may be invalid."""

    model_config = pydantic.ConfigDict(strict=True)

    id: str | int | None = None


class CheckRequest(pydantic.BaseModel):
    """A conversation whose messages name agents: check whether they wrote them (`iet.Auditor.check`)."""

    model_config = _Reading.model_config

    messages: Any = pydantic.Field(description="As for an audit; names are claims.")
    agents: dict[str, str] = pydantic.Field(
        {}, description="{name in the messages: agent of the registry}, where they differ."
    )
    level: float = 0.01
    profile: str | None = None
    known_agents: list[str] | None = None


def media_type(request: fastapi.Request) -> str:
    """Return the type of the body, in lower case and without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def refuse_query(request: fastapi.Request) -> None:
    """Refuse a query (422) if the body is JSON, which holds the options itself."""
    if request.scope["query_string"]:
        raise RequestRefused(422, "query: got one beside JSON, expected options in the JSON")


def is_for_this_machine(request: fastapi.Request) -> bool:
    """Return whether Host is a name of this machine, or the address at which the request arrived."""
    address, _ = request.scope.get("server") or ("localhost", None)
    names = (*_LOCAL_HOSTS, f"[{address}]" if ":" in address else address)
    host = request.headers.get("host", "")
    return host in names or host.rpartition(":")[0] in names


def prefers_html(request: fastapi.Request) -> bool:
    """Return whether Accept prefers text/html to JSON. The most specific range sets a type's weight."""
    weights = dict[str, float]()
    for part in ",".join(request.headers.getlist("accept")).split(","):
        accepted, *parameters = (piece.strip().lower() for piece in part.split(";"))
        pairs = (parameter.partition("=") for parameter in parameters)
        quality = [value.strip() for name, _, value in pairs if name.strip() == "q"]
        with contextlib.suppress(ValueError):
            weights[accepted] = float(quality[0]) if quality else 1.0

    def weight(media: str) -> float:
        ranges = (media, media.partition("/")[0] + "/*", "*/*")
        return next((weights[name] for name in ranges if name in weights), 0.0)

    return weight("text/html") > weight(JSON)


def from_query(query: str) -> Any:
    """Return the `AuditParameters` of a query: `level=0.05&decoder=cusum&known_agents=["planner"]`.

    Args:
        query: percent-encoded query of a URL. Values are JSON, except those of `decoder`, `profile` and
            `attributed`.

    Raises:
        InputError: It is malformed, has an option twice, or a value that is not JSON.
        pydantic.ValidationError: An option is unknown or has a value of another type.
    """
    try:
        pairs = urllib.parse.parse_qsl(query, keep_blank_values=True, strict_parsing=True, errors="strict")
    except ValueError:
        raise InputError("query: expected name=value&name=value, percent-encoded UTF-8") from None
    values = dict[str, Any]()
    for name, value in pairs:
        if name in values:
            raise InputError(f"query: got {name!r:.80} twice, expected each option once")
        try:
            values[name] = value if name in _PLAIN_STRINGS else json.loads(value)
        except (ValueError, RecursionError):
            raise InputError(f"query: got {name!r:.80} whose value is no JSON, expected JSON") from None
    return AuditParameters.model_validate_json(json.dumps(values))


def openapi_parameters() -> list[dict[str, Any]]:
    """Return the OpenAPI description of such a query."""
    parameters = []
    for name, schema in AuditParameters.model_json_schema()["properties"].items():
        description = schema.pop("description", "")
        plain = {"schema": schema} if name in _PLAIN_STRINGS else {"content": {JSON: {"schema": schema}}}
        parameters.append({"name": name, "in": "query", "description": description, **plain})
    return parameters


class DocumentTooLong(InputError):
    """A document holds more text than the service accepts."""


@dataclasses.dataclass(frozen=True)
class Upload:
    """A request whose body is a document, without that body.

    Attributes:
        content_type: value of the header.
        query: options, percent-encoded.
        max_bytes: maximum size of the document's text.
    """

    content_type: str
    query: str
    max_bytes: int


def readable_documents() -> tuple[str, ...]:
    """Return the types of documents that the installed packages can read."""
    return tuple(media for media, suffix in DOCUMENT_SUFFIXES.items() if formats.readable(suffix))


def from_document(body: bytes, upload: Upload) -> AuditRequest:
    """Return the request to audit the text of a document.

    A document may also be plain text, UTF-8 unless the header names another charset.

    Raises:
        InputError, pydantic.ValidationError: The options or the document are invalid.
        DocumentTooLong: It has too much text.
        MemoryError: Reading it takes more memory than the process may use.
    """
    parameters = from_query(upload.query)
    header = email.message.Message()
    header["content-type"] = upload.content_type
    try:
        media, charset = header.get_content_type(), header.get_content_charset()
    except (ValueError, TypeError):  # malformed part numbers (RFC 2231)
        raise InputError("content-type: got parameters that cannot be read, expected charset=NAME") from None
    suffix = DOCUMENT_SUFFIXES.get(media, ".txt")
    if suffix not in (".html", ".txt"):
        charset = None  # the other formats declare their encoding themselves
    check_encoding(charset)
    try:
        if suffix == ".txt":
            text = body.decode("utf-8-sig" if charset in (None, "utf-8", "utf8") else charset)
        else:
            text = formats.read(body, suffix, encoding=charset, most=UNPACKED * upload.max_bytes)
        size = len(text.encode())  # some charsets have lone surrogates
    except UnicodeError as error:
        start = getattr(error, "start", 0)
        raise InputError(f"body: byte {start} is no {charset or 'UTF-8'}; expected text") from None
    if size > upload.max_bytes:
        raise DocumentTooLong(
            f"body: got a document with {size:,} bytes of text, expected at most {upload.max_bytes:,}"
        )
    request: AuditRequest = AuditRequest.model_construct(**dict(parameters), text=text)
    return request
