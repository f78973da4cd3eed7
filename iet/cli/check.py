"""`iet check`: is each message of a trace by the agent that it names?"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from iet.audit import traces
from iet.cli.many import add_many, are_many, check_many, refuse_file, run_many
from iet.cli.options import (
    Commands,
    add_audit_options,
    add_registry,
    add_tokenizer,
    auditor_of,
    load_registry,
    refuse_to_replace,
    say,
    some_path,
)
from iet.cli.progress import progress
from iet.cli.texts import read_bytes, shown
from iet.errors import InputError
from iet.marks.files import write_file
from iet.report.lines import harmless

if TYPE_CHECKING:
    from iet.report.claims import ClaimReport

_FORMS = (".json", ".html", ".csv")


def add(commands: Commands) -> None:
    """Add `iet check`."""
    check = commands.add_parser(
        "check", help="is each message of a trace by the agent that it names? Confirmed, contradicted or open"
    )
    check.add_argument(
        "inputs",
        nargs="+",
        metavar="TRACE",
        help="the record of a conversation, or - for standard input; or, to check many conversations into a"
        " folder (-o OUT/): .json, .jsonl and Parquet files, folders of them, patterns, URIs (s3://...). Read"
        f" are {traces.NAMES}",
    )
    check.add_argument(
        "--per-line",
        action="store_true",
        help="each line of JSON lines is a conversation (default: all lines are one)",
    )
    add_registry(check)
    add_tokenizer(check)
    add_audit_options(
        check,
        *("profile", "level", "published", "sessions"),
        level="largest probability of any wrong confirmation, and of any wrong contradiction",
    )
    check.add_argument(
        "--agent",
        action="append",
        default=[],
        metavar="NAME=AGENT",
        help="the name, or role, NAME in the trace is this agent of the registry; may be repeated, each NAME"
        " once",
    )
    check.add_argument("--json", action="store_true", help="print the result as JSON")
    check.add_argument(
        "-o",
        "--output",
        action="append",
        default=[],
        type=some_path,
        metavar="FILE",
        help=f"also write it to this file; its suffix sets the format: {', '.join(_FORMS)}; may be repeated."
        " Of many conversations: write tables to this folder or URI",
    )
    check.add_argument(
        "--otel",
        action="store_true",
        help="also emit an OpenTelemetry event for each message (opentelemetry-instrument iet check ...)",
    )
    check.add_argument(
        "--fail-on",
        action="append",
        default=[],
        choices=["contradicted", "unknown-name", "open"],
        help="exit 1 if any message is so; may be repeated",
    )
    many = add_many(check, "conversations")
    many.add_argument(
        "--column",
        action="append",
        type=_column,
        default=[],
        metavar="KIND=NAME",
        help='column of Parquet files that holds the conversations (messages=NAME; default: "messages"), and'
        ' of their names (id=NAME; default: "id")',
    )
    check.set_defaults(run=_check, check=_check_options)


def _column(value: str) -> tuple[str, str]:
    kind, equals, name = value.partition("=")
    if not equals or kind not in _COLUMNS:
        raise argparse.ArgumentTypeError(f"got {value!r:.80}, expected messages=NAME or id=NAME")
    return _COLUMNS[kind], name


_COLUMNS = {"messages": "column", "id": "id_column"}


def _are_many(arguments: argparse.Namespace) -> bool:
    return arguments.inputs[0].lower().endswith(".parquet") or are_many(
        arguments, arguments.inputs, arguments.output
    )


def _check_options(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """End with a usage error if options are given that do not go together."""
    if _are_many(arguments):
        check_many(parser, arguments, arguments.inputs, "conversations")
        if arguments.otel:
            parser.error("--otel goes with one conversation")
    elif arguments.per_line and (arguments.output or arguments.otel):
        parser.error("--per-line goes with -o OUT/, a folder, and without --otel")


def _check(arguments: argparse.Namespace) -> int:
    from iet.report.lines import width_of

    if _are_many(arguments):
        return _check_many(arguments)
    file = arguments.inputs[0]
    arguments.output = [pathlib.Path(path) for path in arguments.output]
    for path in arguments.output:
        if path.suffix not in _FORMS:
            raise InputError(f"{path}: got an unknown suffix, expected one of {', '.join(_FORMS)}")
        if not path.parent.is_dir():
            raise InputError(f"{path}: no such folder, expected an existing one")
    registry = load_registry(arguments)
    refuse_to_replace(arguments, [file], arguments.output, registry)
    auditor = auditor_of(arguments, registry)
    names = _names(arguments.agent, auditor.agents)
    data, name = read_bytes(file), shown(file)
    if arguments.per_line:
        return _check_lines(arguments, auditor, names, data.split(b"\n"), name)
    try:
        trace = traces.read(traces.parse(data), agents=[*auditor.agents, *names])
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    _tell_unknown(names, trace.pieces)
    with progress("auditing"):
        result = auditor.check_trace(trace, names)
    if arguments.otel:
        from iet.report import telemetry

        telemetry.emit(result.events())
    forms = {
        ".json": lambda: json.dumps(result.to_dict(), indent=1) + "\n",
        ".html": lambda: result.to_html((name,)),
        ".csv": result.to_csv,
    }
    for path in arguments.output:
        write_file(path, forms[path.suffix]().encode())
    if arguments.json:
        print(json.dumps(result.to_dict(), indent=1))
    else:
        say(result.text(width_of(sys.stdout)))
    return int(_fails(arguments, result))


def _fails(arguments: argparse.Namespace, result: ClaimReport) -> bool:
    return any(result.of(verdict.replace("-", " ")) for verdict in arguments.fail_on)


def _check_lines(
    arguments: argparse.Namespace, auditor: Any, names: Mapping[str, str], lines: Sequence[bytes], file: str
) -> int:
    """Check the conversation in each line. Lines that cannot be read raise an InputError at the end."""
    unread, fails = 0, False
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            trace = traces.read(traces.parse(line.strip()), agents=[*auditor.agents, *names])
            result = auditor.check_trace(trace, names)
            shown_line, data = result.headline, result.to_dict()
            fails |= _fails(arguments, result)
        except InputError as error:
            unread += 1
            shown_line, data = str(error), {"problem": str(error)}
        if arguments.json:
            print(json.dumps({"line": number, **data}))
        else:
            say(f"line {number}: {shown_line}")
    if unread:
        raise InputError(f"{file}: got {unread} lines that are no conversations, expected one in each")
    return int(fails)


def _check_many(arguments: argparse.Namespace) -> int:
    refuse_file(arguments.output[0])
    auditor = auditor_of(arguments, load_registry(arguments))
    names = _names(arguments.agent, auditor.agents)

    def work(out: str, **options: Any) -> Any:
        from iet.bulk.claims import check_files

        return check_files(
            auditor, arguments.inputs, out, names=names, per_line=arguments.per_line, **options
        )

    summary = run_many(arguments, work, **dict(arguments.column))
    return int(any(summary.verdicts[verdict.replace("-", "_")] for verdict in arguments.fail_on))


def _names(values: Sequence[str], agents: Sequence[str]) -> Mapping[str, str]:
    """Return {name in the trace: agent}."""
    result = dict[str, str]()
    for pair in values:
        name, equals, agent = pair.rpartition("=")
        if not equals or not name:
            raise InputError(f"--agent: got {pair!r}, expected NAME=AGENT")
        if agent not in agents:
            raise InputError(f"--agent: got {agent!r}, expected one of {', '.join(agents)}")
        if name in result:
            raise InputError(f"--agent: got {name!r} twice, expected each name once")
        result[name] = agent
    return result


def _tell_unknown(names: Collection[str], pieces: Sequence[traces.Piece]) -> None:
    """Say on stderr which of the names are under no message: one may be silent, or its name wrong."""
    existing = {piece.claim: None for piece in pieces if piece.claim is not None}
    unknown = [name for name in names if name not in existing]
    if unknown:
        choices = f"there are {', '.join(map(repr, existing))}" if existing else "no message has a name"
        message = f"iet: --agent: no message has the name {', '.join(map(repr, unknown))}; {choices}"
        print(harmless(message), file=sys.stderr)
