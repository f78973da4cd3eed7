"""The errors of `iet`. A message names the wrong argument, its value, and what is accepted."""

from __future__ import annotations

import numbers
import os
import pathlib
import reprlib
from typing import Any


class IetError(Exception):
    """The base class of all errors that `iet` raises on purpose."""


class InputError(IetError, ValueError):
    """An argument lies outside what is accepted."""


class ShapeError(InputError):
    """An array or tensor has the wrong shape, dtype, stride or device."""

    def __init__(self, subject: str, *, got: object, expected: object) -> None:
        super().__init__(f"{subject}: got {got}, expected {expected}")
        self.got = got
        self.expected = expected


class SchemeMismatch(IetError):
    """A file or a text was made with another scheme, profile or version."""


class RegistryError(IetError):
    """A registry file is unreadable, unsafe or inconsistent, or an agent in it is unknown."""


class TokenizerMismatch(IetError):
    """A tokenizer has another digest than the profile's, or is missing."""


class BackendUnavailable(IetError, RuntimeError):
    """A compiled module, library, device or server is not available."""


class VerificationError(IetError):
    """A signed report was changed, has another signer, or is about another text or registry."""


LARGEST = 2**40
"""Maximum of any count of tokens, windows or bytes, so that sums stay below 2^63 in compiled loops."""


def check_number(name: str, value: Any, low: float, high: float = float("inf"), integer: bool = True) -> None:
    """Raise InputError unless `value` is a number (an int, if `integer`) from `low` to `high`.

    An int must also be at most `LARGEST`; any other number must fit into a float.
    """
    maximum = min(high, LARGEST) if integer else high
    if (type(value) is int or (type(value) is float and not integer)) and low <= value <= min(
        maximum, LARGEST
    ):
        return  # fast path: isinstance with abstract classes is slow
    kind = numbers.Integral if integer else numbers.Real
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    if is_number and low <= _as_float(value) <= maximum:
        return
    bounded = high < float("inf") or (is_number and integer and value > maximum)
    limit = f"from {low} to {maximum}" if bounded else f"of at least {low}"
    raise InputError(f"{name}: got {shown(value)}, expected {'an int' if integer else 'a number'} {limit}")


def _as_float(value: Any) -> float:
    """Return a number as a float, NaN if it is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return float("nan")


def shown(value: object) -> str:
    """Return a short repr of a wrong value of any size or depth; for a very long int, its length."""
    if isinstance(value, int) and value.bit_length() > 128:  # Python refuses to print the longest ones
        return f"an int of {value.bit_length()} bits"
    return _SHOWN.repr(value)[:80]


_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = _SHOWN.maxlong = 60
_SHOWN.maxlevel = 2


def check_path(name: str, value: Any) -> None:
    """Raise InputError unless `value` is a str or a path."""
    if not isinstance(value, (str, os.PathLike)):
        raise InputError(f"{name}: got {type(value).__name__}, expected a path, a str or os.PathLike")


def missing(subject: str, extra: str) -> BackendUnavailable:
    """Return the error for a package that is not installed, with the command that installs an extra."""
    return BackendUnavailable(f"{subject}; {_install_command(extra)}")


def _install_command(extra: str) -> str:
    """Return the command that installs an extra from the checkout or file that this package came from."""
    # Imported here because urllib alone takes longer to load than all of `import iet`.
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
