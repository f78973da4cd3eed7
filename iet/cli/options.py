"""Options that several commands take, and how they read files and print."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import typing
from collections.abc import Iterable
from typing import Any, TypeAlias

from iet.audit.options import options
from iet.bulk.storage import is_uri
from iet.cli.texts import decoded, read_bytes
from iet.errors import InputError
from iet.marks.files import refuse_to_lose_keys
from iet.marks.registry import ENVIRONMENT_VARIABLE, Registry
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
    """Add the option that names the registry file."""
    parser.add_argument("-r", "--registry", help="the registry file (default: $IET_REGISTRY)")


def add_audit_options(parser: argparse.ArgumentParser, *names: str, **helps: str) -> None:
    """Add the flags of the `AuditOptions` with these names, or of all that have one.

    `helps`: texts that replace an option's own.
    """
    for name, (option, kind, default) in options().items():
        if option.flag is None or (names and name not in names):
            continue
        more: dict[str, Any] = {"default": default, "metavar": option.metavar}
        if kind is bool:
            more = {"action": "store_false" if default else "store_true"}
        elif typing.get_origin(kind) is typing.Literal:
            more |= {"choices": typing.get_args(kind)}
        elif option.lines_of_file:
            more |= {"type": pathlib.Path}
        elif kind in (int, float):
            more |= {"type": kind}
        elif name == "decoder_options":
            more |= {"action": "append", "type": name_and_value, "default": []}
        elif name == "known_agents":
            more |= {"action": "append"}
        text = helps.get(name, option.help)
        if isinstance(default, (int, float, str)) and kind is not bool and "(default" not in text:
            text += f" (default: {default})"
        parser.add_argument(option.flag, dest=name, help=text, **more)


def audit_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the `AuditOptions` among the arguments, without the tokenizer."""
    names = [name for name, (option, _, _) in options().items() if option.flag and hasattr(arguments, name)]
    values = {name: getattr(arguments, name) for name in names}
    if values.get("sessions") is not None:
        values["sessions"] = read_sessions(values["sessions"])
    if "decoder_options" in values:
        values["decoder_options"] = dict(values["decoder_options"])
    return values


def name_and_value(word: str) -> tuple[str, Any]:
    """Return the parts of NAME=VALUE; the value is JSON, or else a string."""
    name, equals, value = word.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"got {word!r:.80}, expected NAME=VALUE, such as n_gram=5")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def secret_mount() -> bool:
    """Return whether key files may have any mode on a read-only mount: `IET_SECRET_MOUNT=1`."""
    from iet.generation.checks import switch

    return switch("IET_SECRET_MOUNT")


def load_registry(arguments: argparse.Namespace) -> Any:
    """Return the registry that the arguments name."""
    import iet

    return iet.Registry.load(arguments.registry, secret_mount=secret_mount())


def refuse_uris(files: Iterable[str]) -> None:
    """Raise an InputError if one is a URI. The message quotes nothing of it, since it may hold a password."""
    for file in files:
        if is_uri(file):
            scheme = file.partition("://")[0]
            raise InputError(
                f"{scheme}://...: got a URI, expected files of this machine; iet audit reads it, into a"
                " folder: -o OUT/"
            )


def some_path(value: str) -> str:
    """Return the path of an option; argparse refuses an empty one, as of a variable that is not set."""
    if not value:
        raise argparse.ArgumentTypeError("got '', expected a path")
    return value


def whole(word: str) -> int | None:
    """Return the number that the digits spell; None if the word is no number or is too long for Python."""
    try:
        return int(word) if word.isdecimal() else None
    except ValueError:
        return None


def add_tokenizer(parser: argparse.ArgumentParser) -> None:
    """Add --tokenizer, which `tokenizers_of` reads."""
    parser.add_argument(
        "--tokenizer",
        action="append",
        metavar="[PROFILE=]PATH",
        help="tokenizer.json, its folder or a model on the Hub (owner/name), instead of the registry's path;"
        " once for each profile",
    )


def tokenizers_of(arguments: argparse.Namespace, registry: Any) -> Any:
    """Return the tokenizer that is given, or {profile id: tokenizer}."""
    entries, named = arguments.tokenizer or [], {}
    several = len(entries) > 1 or (len(getattr(registry, "profiles", ())) > 1 and arguments.profile is None)
    for value in entries:
        profile, equals, path = value.partition("=")
        if equals and profile in registry.profiles:
            named[profile] = path
        elif several:
            raise InputError(
                f"--tokenizer: got {value!r}, expected PROFILE=PATH with one of {list(registry.profiles)}"
            )
        else:
            return value
    return named or None


def auditor_of(arguments: argparse.Namespace, registry: Any) -> Any:
    """Return the auditor that the options describe."""
    import iet

    is_foreign = getattr(arguments, "scheme", None) is not None  # the keys have their tokenizer
    tokenizer = None if is_foreign else tokenizers_of(arguments, registry)
    return iet.Auditor(registry, tokenizer=tokenizer, **audit_options(arguments))


_FILES = ("registry", "keys", "tokenizer", "sessions", "sign", "public")
"""Options that name files to read; what they name otherwise (URIs, models, keys themselves) is no file."""


def refuse_to_replace(
    arguments: argparse.Namespace,
    inputs: Iterable[str],
    outputs: Iterable[str | pathlib.Path],
    registry: Any = None,
) -> None:
    """Raise an error if an output is a file that is read, or holds keys.

    Args:
        arguments: of the command. Files that its options name are read, too.
        inputs: what else is read.
        outputs: what is written.
        registry: whose tokenizers are read, too, if it is a `Registry`.
    """
    read = [*inputs, os.environ.get(ENVIRONMENT_VARIABLE, "")]
    for entries in (getattr(arguments, name, None) or [] for name in _FILES):
        for value in map(os.fspath, entries if isinstance(entries, list) else [entries]):
            read += [value, value.partition("=")[2]]  # a tokenizer may follow its profile, PROFILE=PATH
    if isinstance(registry, Registry):
        folder = registry.path.parent if registry.path else pathlib.Path()
        read += [str(folder / (profile.tokenizer_source or "")) for profile in registry.profiles.values()]
    read += [os.path.join(path, "tokenizer.json") for path in read]
    for output in map(pathlib.Path, outputs):
        if output.is_file() and any(_same(output, path) for path in read):
            raise InputError(f"{output}: it is what is read, and would be lost; expected another path")
        refuse_to_lose_keys(output)


def _same(path: pathlib.Path, other_path: str) -> bool:
    try:
        return path.samefile(pathlib.Path(other_path).expanduser())
    except (OSError, ValueError, RuntimeError):  # no file, or no name of one
        return False


def add_encoding(parser: argparse.ArgumentParser) -> None:
    """Add how text files are decoded."""
    parser.add_argument(
        "--encoding",
        metavar="NAME",
        help="of text files, such as cp1252 (default: UTF-8, or what its byte order mark says)",
    )


def read_sessions(path: pathlib.Path) -> list[str]:
    """Return ids of sessions, one a line; empty lines count for nothing."""
    from iet.marks.names import checked_session

    lines, values = decoded(read_bytes(path), None, path).removeprefix("\ufeff").split("\n"), []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                values.append(checked_session(line.strip()))
            except InputError as error:
                raise InputError(f"{path}, line {number}: {error}") from None
    if not values:
        raise InputError(f"{path}: got no ids of sessions, expected at least one")
    return values
