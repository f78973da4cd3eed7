"""The command line: arguments in, results to stdout or files, progress to stderr.

Each file holds a group of commands with their parsers. Whoever asks for help waits for all of them, so none
imports what `import iet` does not, before its command runs.

Exit codes: 0 completed, whatever was found; 1 with `--fail-on`, or a failed self-test or check of a server;
2 usage; 3 failure; 130 interrupted.
"""

from __future__ import annotations

import argparse
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
    serve,
    sign,
    verify,
)
from iet.errors import IetError
from iet.report.lines import harmless


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = _Parser(prog="iet", description=(iet.__doc__ or "").split("\n")[0])
    parser.add_argument("--version", action="version", version=f"iet {iet.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for group in (
        demo,
        audit,
        check,
        serve,
        mcp,
        sign,
        verify,
        keys,
        index,
        calibrate,
        doctor,
    ):
        group.add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed; the file descriptor must not be reused for another file
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open until the process ends
    sys.stdout, sys.stderr = _ignore_broken_pipe(sys.stdout), _ignore_broken_pipe(sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show κ or → is no failure
            stream.reconfigure(errors="backslashreplace")
    parser = command_parser()
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        arguments.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if checks := getattr(arguments, "check", None):
        checks(arguments.parser, arguments)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except (IetError, OSError) as error:
        _discard_output()
        print(f"iet: {harmless(str(error))}", file=sys.stderr)  # the message may quote untrusted input
        return 3
    except KeyboardInterrupt:
        hint = getattr(arguments, "interrupted", None)
        print(f"iet: interrupted{f'; {hint}' if hint else ''}", file=sys.stderr)
        return 130


def _discard_output() -> None:
    """Discard output that cannot be written; otherwise Python would fail again when it flushes at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """Remember which command was asked for, and answer a command without a word with its whole help."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = sys.argv[1:] if args is None else list(args)
        if not words and self._subparsers is not None:
            self.exit(2, self.format_help())
        arguments, unknown = super().parse_known_args(words, namespace)
        if not hasattr(arguments, "parser"):  # that of the command itself comes first
            arguments.parser = self
        return arguments, unknown


class _IgnoresBrokenPipe(io.FileIO):
    """A standard stream whose reader may leave, as `| head` does: the command goes on to its end.

    So its exit code still reports what it found, and bulk work is not lost with its progress bar.
    """

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def _ignore_broken_pipe(stream: TextIO) -> TextIO:
    """Return the stream through `_IgnoresBrokenPipe`, or unchanged if it is no stream of the system."""
    buffer = getattr(stream, "buffer", None)
    if not isinstance(stream, io.TextIOWrapper) or type(getattr(buffer, "raw", buffer)) is not io.FileIO:
        return stream
    raw = _IgnoresBrokenPipe(os.dup(stream.fileno()), "wb")
    return io.TextIOWrapper(
        raw if stream.write_through else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n" if os.linesep == "\n" else None,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
