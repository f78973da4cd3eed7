"""Where results are written, and that one run does not write over another's."""

from __future__ import annotations

import json
import math
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from benchmarks.recording import environment
from iet.errors import InputError
from iet.marks.files import write_file
from iet.marks.scheme import canonical_digest

_Item = TypeVar("_Item")


def writable(out: pathlib.Path) -> None:
    """Make a folder, and refuse it if nothing can be written there."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise InputError(f"out: nothing can be written to {out} ({error.strerror})") from None


def text_of(path: pathlib.Path) -> str:
    """Return the text of a file in UTF-8."""
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is no UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def each(items: Iterable[_Item], named: Callable[[_Item], str], what: str = "setting") -> Iterator[_Item]:
    """Yield items, and say on stderr before each which of how many it is, and how long the rest may take."""
    some, started = list(items), time.monotonic()
    for done, item in enumerate(some):
        left = ""
        if done:
            minutes = math.ceil((time.monotonic() - started) / done * (len(some) - done) / 60)
            left = f"; about {minutes} min left" if minutes > 1 else "; about a minute left"
        if len(some) > 1:
            print(f"{what} {done + 1} of {len(some)}: {named(item)}{left}", file=sys.stderr, flush=True)
        yield item


def content(configuration: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return what a result's JSON holds: configuration and its digest, environment, and what was measured."""
    return {
        "configuration": configuration,
        "digest": canonical_digest(dict(configuration)),
        "environment": environment("torch", "transformers"),
        **more,
    }


def kept(
    path: pathlib.Path, make: Callable[[], dict[str, Any]], advice: str = "remove it, and it is made again"
) -> dict[str, Any]:
    """Return what a file of JSON holds; where there is none, what is made, which it holds from then on."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, (json.dumps(make()) + "\n").encode())
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise InputError(f"{path}: damaged ({error}); {advice}") from None


def keep(path: pathlib.Path, configuration: Mapping[str, Any]) -> None:
    """Refuse to write over the result of another configuration: its JSON holds it, and the digest of it."""
    if not path.is_file():
        return
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        other, digest = dict(found["configuration"]), str(found["digest"])
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{path}: no result of an experiment; choose another --out, or --overwrite"
        ) from None
    own = canonical_digest(dict(configuration))
    if digest != own:
        this = json.loads(json.dumps(configuration))  # as that comes back: a tuple is a list
        names = [k for k in {**other, **this} if k not in other or k not in this or other[k] != this[k]]
        raise InputError(
            f"{path}: holds a run of configuration {digest[:16]}, this one is {own[:16]}; they differ in"
            f" {', '.join(names)}; choose another --out, or --overwrite"
        )


def note(path: pathlib.Path, **fields: object) -> str:
    """Return the text of a file with its fields filled in, as in `str.format`."""
    return path.read_text(encoding="utf-8").rstrip("\n").format(**fields)
