"""`iet check`: is each message of a trace by the agent that it names?"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Collection, Mapping, Sequence

from iet.audit import traces
from iet.cli.options import (
    Commands,
    add_audit_options,
    add_registry,
    add_tokenizer,
    auditor_of,
    load_registry,
    refuse_to_replace,
    refuse_uris,
    say,
)
from iet.cli.progress import progress
from iet.cli.texts import read_bytes, shown
from iet.errors import InputError
from iet.marks.files import write_file
from iet.report.lines import harmless

_FORMS = (".json", ".html", ".csv")


def add(commands: Commands) -> None:
    """Add `iet check`."""
    check = commands.add_parser(
        "check", help="is each message of a trace by the agent that it names? Confirmed, contradicted or open"
    )
    check.add_argument(
        "trace",
        metavar="TRACE",
        help=f"JSON or JSON lines, or - for standard input: {traces.NAMES}",
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
        type=pathlib.Path,
        metavar="FILE",
        help=f"also write it to this file; its suffix sets the format: {', '.join(_FORMS)}; may be repeated",
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
    check.set_defaults(run=_check)


def _check(arguments: argparse.Namespace) -> int:
    from iet.report.lines import width_of

    refuse_uris([arguments.trace])
    for path in arguments.output:
        if path.suffix not in _FORMS:
            raise InputError(f"{path}: got an unknown suffix, expected one of {', '.join(_FORMS)}")
        if not path.parent.is_dir():
            raise InputError(f"{path}: no such folder, expected an existing one")
    registry = load_registry(arguments)
    refuse_to_replace(arguments, [arguments.trace], arguments.output, registry)
    auditor = auditor_of(arguments, registry)
    names = _names(arguments.agent, auditor.agents)
    data, name = read_bytes(arguments.trace), shown(arguments.trace)
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
    return int(any(result.of(verdict.replace("-", " ")) for verdict in arguments.fail_on))


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
