"""The options of commands that read many documents or conversations into a folder, and their run."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from iet.bulk.storage import is_uri
from iet.cli.options import say
from iet.cli.outputs import FORMATS
from iet.cli.progress import progress
from iet.errors import InputError, missing

MANY = ("shard", "resume", "reread", "workers", "chunk_rows", "strict", "csv")
"""Options that `add_many` adds."""


def add_many(parser: argparse.ArgumentParser, what: str) -> argparse._ArgumentGroup:
    """Add the options of `MANY`, and return their group. `what` are the records in the plural."""
    many = parser.add_argument_group(f"many {what}")
    many.add_argument("--shard", type=_shard, metavar="I/N", help="audit the I-th of N parts of the input")
    many.add_argument("--resume", action="store_true", help="continue a run that was stopped")
    many.add_argument("--reread", action="store_true", help="with --resume: audit changed files again")
    many.add_argument("--workers", type=int, metavar="N", help="processes, 1 to 1024 (default: 1)")
    many.add_argument("--chunk-rows", type=int, metavar="N", help=f"{what} in an output file (default: 4096)")
    many.add_argument(
        "--strict",
        action="store_true",
        help="fail if a file of a folder has another format, or a file cannot be read to its end",
    )
    many.add_argument("--csv", action="store_true", help="also write the tables as CSV")
    return many


def _shard(value: str) -> tuple[int, int]:
    index, slash, count = value.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise argparse.ArgumentTypeError(f"got {value!r}, expected I/N with I from 1 to N, such as 1/4")
    return int(index), int(count)


def are_many(arguments: argparse.Namespace, inputs: list[str], outputs: list[str]) -> bool:
    """Tell whether the inputs are many by their number, their kind, the output or an option of `MANY`."""
    first = inputs[0]
    return (
        len(inputs) > 1
        or is_uri(first)
        or bool(arguments.column)
        or any(getattr(arguments, name) not in (None, False) for name in MANY)
        or os.path.isdir(first)
        or (any(c in first for c in "*?[") and not os.path.exists(first))
        or any(out.endswith(("/", os.sep)) or os.path.isdir(out) or is_uri(out) for out in outputs)
    )


def check_many(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, inputs: list[str], what: str
) -> None:
    """End with a usage error unless the results of many inputs go to one folder."""
    if len(arguments.output or ()) != 1:
        parser.error(f"many {what} take one folder for the results: -o OUT/")
    if "-" in inputs:
        parser.error(f"- is one text; many {what} come from files")


def refuse_file(output: str) -> None:
    """Raise an InputError if the folder of results has the suffix of a report's file."""
    if output.endswith(FORMATS) and not os.path.isdir(output) and not is_uri(output):
        raise InputError(
            f"{output}: got a file for many inputs, expected a folder, such as OUT/; iet audit --pages writes"
            " HTML there"
        )


def run_many(arguments: argparse.Namespace, work: Callable[..., Any], **options: Any) -> Any:
    """Run `work(out, progress=, ...)` with the options of `MANY`, print its summary, and return it.

    Args:
        arguments: of the command.
        work: function of `iet.bulk` without its auditor and inputs.
        options: its other options; None: the default.
    """
    try:
        from iet.audit.worker_pool import ONE_THREAD
        from iet.bulk import workers
        from iet.bulk.progress import Progress
    except ImportError as error:
        raise missing(f"many documents need {error.name}", "bulk") from None

    # A worker has one thread, and this process is the only one.
    for name, value in ONE_THREAD.items():
        os.environ.setdefault(name, value)
    workers.without_pandas()
    last = 0.0

    def tell(state: Progress) -> None:
        nonlocal last
        move(str(state), state.share)
        if not sys.stderr.isatty() and state.seconds - last >= 60:  # a log keeps a line a minute
            last = state.seconds
            print(f"iet: {state}", file=sys.stderr, flush=True)

    arguments.interrupted = "what is done is kept, and the same command with --resume goes on from there"
    options |= {name: getattr(arguments, name) for name in MANY}
    chosen = {name: value for name, value in options.items() if value is not None}
    with progress("auditing", 1.0) as move:
        summary = work(arguments.output[0], progress=tell, **chosen)
    if summary.not_read:
        print(f"iet: {summary.lines_of_unread()[-1]}", file=sys.stderr)
    if arguments.json:
        print(json.dumps(dataclasses.asdict(summary), indent=1))
    else:
        say("\n".join(summary.lines()))
    return summary
