"""What the head of a request says: of its body, and of the answer that it would have."""

from __future__ import annotations

import contextlib

import fastapi

from iet.service.audits import JSON
from iet.service.limits import Refused

_LOCAL = ("localhost", "127.0.0.1", "[::1]")


def media(request: fastapi.Request) -> str:
    """Return the type of the body, in lower case and without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def refuse_query(request: fastapi.Request) -> None:
    """Refuse options that stand in the query of a request whose body holds them: nobody would read them."""
    if request.scope["query_string"]:
        raise Refused(422, "query: got one beside JSON, expected options in the JSON")


def is_for_this_machine(request: fastapi.Request) -> bool:
    """Tell whether Host is a name of this machine, or the address at which the request came."""
    address, _ = request.scope.get("server") or ("localhost", None)
    names = (*_LOCAL, f"[{address}]" if ":" in address else address)
    host = request.headers.get("host", "")
    return host in names or host.rpartition(":")[0] in names


def wants_page(request: fastapi.Request) -> bool:
    """Tell whether Accept prefers text/html to application/json: each has the weight of what fits it best."""
    weights = dict[str, float]()
    for part in ",".join(request.headers.getlist("accept")).split(","):
        accepted, *parameters = (piece.strip().lower() for piece in part.split(";"))
        given = [
            value.strip() for name, _, value in (p.partition("=") for p in parameters) if name.strip() == "q"
        ]
        with contextlib.suppress(ValueError):
            weights[accepted] = float(given[0]) if given else 1.0

    def weight(wanted: str) -> float:
        ranges = (wanted, wanted.partition("/")[0] + "/*", "*/*")
        return next((weights[name] for name in ranges if name in weights), 0.0)

    return weight("text/html") > weight(JSON)
