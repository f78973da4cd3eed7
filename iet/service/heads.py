"""What the head of a request says: of its body, and of the answer that it would have."""

from __future__ import annotations

import contextlib

import fastapi

from iet.service.audits import JSON
from iet.service.limits import Refused


def media(request: fastapi.Request) -> str:
    """Return the type of the body, in lower case and without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def refuse_query(request: fastapi.Request) -> None:
    """Refuse options that stand in the query of a request whose body holds them: nobody would read them."""
    if request.scope["query_string"]:
        raise Refused(422, "query: got one beside JSON, expected options in the JSON")


def wants_page(request: fastapi.Request) -> bool:
    """Tell whether Accept prefers text/html to application/json."""
    weights = {"text/html": 0.0, JSON: 0.0}
    for part in request.headers.get("accept", "").split(","):
        media, _, parameters = part.partition(";")
        weight = parameters.strip().removeprefix("q=") if parameters.strip().startswith("q=") else "1"
        with contextlib.suppress(ValueError):
            weights[media.strip().lower()] = float(weight)
    return weights["text/html"] > weights[JSON]
