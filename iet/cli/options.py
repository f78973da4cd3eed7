"""Options that several commands take, and how they read files and print."""

from __future__ import annotations

import argparse
import pathlib
import sys
from typing import Any, TypeAlias

from iet.errors import InputError
from iet.report.lines import width_of, wrapped

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""The subparsers to which a command adds its own.

A parser's defaults hold `run`, which takes the arguments and returns the exit code, and perhaps `check`,
which takes the parser of all commands and the arguments, and calls its `error` if they do not go together.
"""


def say(text: str) -> None:
    """Print lines that fit a terminal and cannot steer it."""
    print("\n".join(wrapped(text, width_of(sys.stdout))))


def add_registry(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where the registry is."""
    parser.add_argument("-r", "--registry", help="the registry file (default: $IET_REGISTRY)")
    parser.add_argument(
        "--secret-mount", action="store_true", help="accept a read-only mount of any file mode"
    )


def add_decoder(parser: argparse.ArgumentParser) -> None:
    """Add the option --decoder."""
    parser.add_argument(
        "--decoder",
        default="posterior",
        choices=["posterior", "cusum", "window"],
        help="(default: posterior)",
    )


def load_registry(arguments: argparse.Namespace) -> Any:
    """Return the registry that the arguments name."""
    import iet

    return iet.Registry.load(arguments.registry, secret_mount=arguments.secret_mount)


def read_bytes(path: pathlib.Path) -> bytes:
    """Return the content of a file, or raise an InputError that names it."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
