"""Print docs/reference/commands.md: every command of `iet` with its options, from the parsers.

python docs/commands.py > docs/reference/commands.md
"""

from __future__ import annotations

import argparse
import collections
from collections.abc import Iterable, Iterator

from iet.audit.options import options
from iet.cli import command_parser

SHARED_BY = 2
"""Commands that must have an option, with the same help, for it to be listed once for all of them."""

Row = tuple[str, str, str]
"""Name of an option, its value, its help."""


def reference() -> str:
    """Return the page docs/reference/commands.md."""
    commands = list(_commands(command_parser(), "iet"))
    rows = {name: list(map(_row, _options(parser))) for name, _, parser in commands}
    audit = [row for row in rows["iet audit"] if _is_audit_option(row)]
    users = {
        row: tuple(name for name in rows if row in rows[name])
        for all_rows in rows.values()
        for row in all_rows
    }
    groups: dict[tuple[str, ...], list[Row]] = collections.defaultdict(list)
    for row, names in users.items():
        if len(names) >= SHARED_BY and row not in audit:
            groups[names].append(row)
    shared = {row for group in groups.values() for row in group}
    lines = [
        "# Commands",
        "",
        "Generated from the parsers by `python docs/commands.py > docs/reference/commands.md`.",
        "",
        "Exit codes: 0 done; 1 a finding that `--fail-on` asked for, or a failed check; 2 wrong usage;"
        " 3 failure; 130 interrupted.",
        "",
        "## Options of several commands",
    ]
    for names, group in groups.items():
        short = ", ".join(f"`{name.removeprefix('iet ')}`" for name in names)
        lines += ["", f"{short}:", "", *_list(group)]
    for name, text, parser in commands:
        arguments = [action for action in parser._actions if not action.option_strings]
        usage = " ".join([name, *(_metavar(action) for action in arguments)])
        sentence = f"`{usage}`: {text}." if arguments else f"{text[0].upper()}{text[1:]}."
        lines += ["", f"## {name}", "", sentence]
        lines += [f"\n`{_metavar(action)}`: {action.help}." for action in arguments if action.help]
        if flags := [row[0] for row in rows[name] if row in audit]:
            all_of_them = len(flags) == len(audit)
            listed = "all that have a flag" if all_of_them else ", ".join(f"`{flag}`" for flag in flags)
            lines += ["", f"[Options of an audit](options.md): {listed}."]
        if remaining := [row for row in rows[name] if row not in shared and row not in audit]:
            lines += ["", *_list(remaining)]
    return "\n".join(lines) + "\n"


def _is_audit_option(row: Row) -> bool:
    return any(
        row[0] == option.flag and row[2].startswith(option.help) for option, _, _ in options().values()
    )


def _commands(
    parser: argparse.ArgumentParser, name: str
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Yield the name, the help and the parser of each command."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for command, child in action.choices.items():
                inner = list(_commands(child, f"{name} {command}"))
                yield from inner or [(f"{name} {command}", helps[command], child)]


def _options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [
        action
        for action in parser._actions
        if action.option_strings
        and action.help != argparse.SUPPRESS
        and not isinstance(action, argparse._HelpAction)
    ]


def _row(action: argparse.Action) -> Row:
    value = "" if action.nargs == 0 else _metavar(action)
    text = argparse.HelpFormatter("iet")._expand_help(action) if action.help else ""
    return max(action.option_strings, key=len), value, text


def _metavar(action: argparse.Action) -> str:
    if action.choices is not None and action.option_strings:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return str(action.metavar or (action.dest.upper() if action.option_strings else action.dest))


def _list(rows: Iterable[Row]) -> list[str]:
    return [f"* `{f'{name} {value}'.strip()}`: {text}" for name, value, text in rows]


if __name__ == "__main__":
    print(reference(), end="")
