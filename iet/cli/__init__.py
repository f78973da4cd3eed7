"""The command line: arguments in, results to stdout or files, progress to stderr.

Each file holds a group of commands with their parsers. Whoever asks for help waits for all of them, so none
imports what `import iet` does not, before its command runs.

Exit codes: 0 completed, whatever was found; 1 with `--fail-on`, or a failed self-test or check of a server;
2 usage; 3 failure; 130 interrupted.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

import iet
from iet.cli import (
    audit,
    calibrate,
    check,
    demo,
    doctor,
    index,
    keys,
    mcp,
    report,
    serve,
    sign,
    verify,
    warm,
)
from iet.errors import IetError
from iet.report.lines import harmless


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    _replace_closed_streams()
    sys.stdout, sys.stderr = _patient(sys.stdout), _patient(sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show κ or → is no failure
            stream.reconfigure(errors="backslashreplace")
    parser = _Parser(prog="iet", description=(iet.__doc__ or "").split("\n")[0])
    parser.add_argument("--version", action="version", version=f"iet {iet.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for group in (
        demo,
        audit,
        report,
        check,
        serve,
        mcp,
        sign,
        verify,
        keys,
        index,
        calibrate,
        doctor,
        warm,
    ):
        group.add(commands)
    arguments, unknown = parser.parse_known_args(argv)
    arguments.whole = parser
    if unknown:
        arguments.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if checks := getattr(arguments, "check", None):
        checks(arguments.parser, arguments)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except (IetError, OSError) as error:
        where = "standard output: " if _forget_output() or isinstance(error, OutputFull) else ""
        said = _in_flags(str(error), arguments.parser)
        print(f"iet: {where}{harmless(said)}", file=sys.stderr)  # it may quote what it read
        return 3
    except KeyboardInterrupt:
        hint = getattr(arguments, "interrupted", None)
        print(f"iet: interrupted{f'; {hint}' if hint else ''}", file=sys.stderr)
        return 130


_OF_PYTHON = {
    "known_agents": "known",
    "allow_unattributed": "forced",
    "spans": "span",
}
"""Parameters of Python -> options that are called otherwise."""


def _in_flags(message: str, parser: argparse.ArgumentParser) -> str:
    """Return an error that begins with names of parameters as the command line calls these."""
    names, colon, rest = message.partition(": ")
    longest = {action.dest: action.option_strings[-1:] for action in parser._actions}
    flags = [flag for name in names.split(", ") for flag in longest.get(_OF_PYTHON.get(name, name), [])]
    return f"{', '.join(flags)}{colon}{rest}" if colon and len(flags) == names.count(", ") + 1 else message


class _Parser(argparse.ArgumentParser):
    """Remember which command was asked for, and answer a command without a word with its whole help."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        given = sys.argv[1:] if args is None else list(args)
        if not given and self._subparsers is not None:
            self.exit(2, self.format_help())
        found, unknown = super().parse_known_args(given, namespace)
        if not hasattr(found, "parser"):  # that of the command itself comes first
            found.parser = self
        return found, unknown


class _Closed(io.TextIOBase):
    """A standard stream that whoever started this process has closed."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def buffer(self) -> Any:
        return self

    def _refuse(self, *_: Any) -> Any:
        raise OSError(errno.EBADF, "closed", self._name)

    read = readline = write = _refuse


def _replace_closed_streams() -> None:
    """Put a stream in the place of each that is closed: Python has None, and a file would get its number."""
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        continue
    os.close(descriptor)
    sys.stdin = sys.stdin or _Closed("standard input")
    sys.stdout = sys.stdout or _Closed("standard output")
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives


class OutputFull(OSError):
    """A standard stream cannot take what is written."""


class _Patient(io.FileIO):
    """A standard stream that takes what nobody reads any more, as behind `| head`.

    So a command whose reader went away still comes to its end, and its exit code says what it found.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream.fileno(), "wb", closefd=False)
        self._stream = stream  # if nothing held it, it would be closed

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes
        except OSError as error:
            raise OutputFull(error.errno, error.strerror) from None


def _patient(stream: TextIO) -> TextIO:
    """Return the stream, a `_Patient` in place of its file, if it has one of the system."""
    buffer = getattr(stream, "buffer", None)
    if not isinstance(stream, io.TextIOWrapper) or type(getattr(buffer, "raw", buffer)) is not io.FileIO:
        return stream
    stream.flush()
    raw = _Patient(stream)
    return io.TextIOWrapper(
        raw if stream.write_through else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n" if os.linesep == "\n" else None,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _forget_output() -> bool:
    """Drop what standard output cannot take, and tell whether there was any: at exit it would fail again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False
