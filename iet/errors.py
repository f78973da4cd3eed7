"""The errors of `iet`: a message names what was wrong, its value, and what is accepted."""

from __future__ import annotations

import numbers
import os
import pathlib
from typing import Any


class IetError(Exception):
    """The parent of every error that `iet` raises on purpose."""


class InputError(IetError, ValueError):
    """An argument lies outside what is accepted."""


class ShapeError(InputError):
    """An array or tensor has the wrong shape, dtype, stride or device."""

    def __init__(self, what: str, *, got: object, expected: object) -> None:
        super().__init__(f"{what}: got {got}, expected {expected}")
        self.got = got
        self.expected = expected


class SchemeMismatch(IetError):
    """A file or a text was made with a scheme, profile or version that is not the one at hand."""


class RegistryError(IetError):
    """A registry file is unreadable, unsafe or inconsistent, or an agent in it is unknown."""


class TokenizerMismatch(IetError):
    """A tokenizer is not the one whose digest the profile carries, or none can be found."""


class BackendUnavailable(IetError, RuntimeError):
    """The compiled module, library, device or server that was asked for is not there."""


class VerificationError(IetError):
    """A signed report was changed, is not the signer's, or is not about the text or registry given."""


LARGEST = 2**40
"""No count of tokens, windows or bytes is larger; sums of some stay below 2^63, where compiled loops end."""


def check_number(name: str, value: Any, low: float, high: float = float("inf"), integer: bool = True) -> None:
    """Raise InputError unless `value` is a number (an int, if `integer`) from `low` to `high`.

    An int is at most `LARGEST`, too; any other number is one that a float holds.
    """
    most = min(high, LARGEST) if integer else high
    if (type(value) is int or (type(value) is float and not integer)) and low <= value <= min(most, LARGEST):
        return  # asking the abstract classes takes longer than most of what is checked
    kind = numbers.Integral if integer else numbers.Real
    known = isinstance(value, kind) and not isinstance(value, bool)
    if known and low <= _as_float(value) <= most:
        return
    bounded = high < float("inf") or (known and integer and value > most)
    limit = f"from {low} to {most}" if bounded else f"of at least {low}"
    raise InputError(f"{name}: got {shown(value)}, expected {'an int' if integer else 'a number'} {limit}")


def _as_float(value: Any) -> float:
    """Return a number as a float, NaN where it is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return float("nan")


def shown(value: object) -> str:
    """Return the repr of a value that is refused; of an int that is too long to read, its length."""
    if isinstance(value, int) and value.bit_length() > 128:  # the longest have no repr at all
        return f"an int of {value.bit_length()} bits"
    return repr(value)


def check_path(name: str, value: Any) -> None:
    """Raise InputError unless `value` is a str or a path."""
    if not isinstance(value, (str, os.PathLike)):
        raise InputError(f"{name}: got {type(value).__name__}, expected a path, a str or os.PathLike")


def missing(what: str, extra: str) -> BackendUnavailable:
    """Return the error for a package that is not installed, with the command that installs an extra."""
    return BackendUnavailable(f"{what}; {_install_command(extra)}")


def _install_command(extra: str) -> str:
    """Return how this very package gets an extra: from the checkout or the file that it came from."""
    # Needed where something is missing only; urllib alone takes longer to load than all of `import iet`.
    import importlib.metadata
    import json
    import urllib.request

    name = "implicit-execution-tracing"
    checkout = pathlib.Path(__file__).resolve().parent.parent
    if (checkout / "pyproject.toml").is_file():
        return f'pip install -e "{checkout}[{extra}]"'
    try:
        origin = json.loads(importlib.metadata.distribution(name).read_text("direct_url.json") or "{}")
        url = str(origin.get("url", ""))
    except (importlib.metadata.PackageNotFoundError, ValueError, AttributeError):
        url = ""
    if url.startswith("file://"):
        return f'pip install "{urllib.request.url2pathname(url.removeprefix("file://"))}[{extra}]"'
    return f'pip install "{name}[{extra}]"'
