"""`iet mcp`: audits as tools of agents."""

from __future__ import annotations

import argparse

from iet.cli.options import (
    Commands,
    add_audit_options,
    add_registry,
    add_tokenizer,
    auditor_of,
    load_registry,
)
from iet.errors import missing


def add(commands: Commands) -> None:
    """Add `iet mcp`."""
    mcp = commands.add_parser(
        "mcp", help="offer `audit` and `check` as tools to agents (Model Context Protocol, standard streams)"
    )
    add_registry(mcp)
    add_tokenizer(mcp)
    add_audit_options(mcp, "profile", "level", "published")
    mcp.set_defaults(run=_mcp)


def _mcp(arguments: argparse.Namespace) -> int:
    try:
        from iet.service.tools import server
    except ImportError as error:
        raise missing(f"tools for agents need {error.name}", "mcp") from None

    registry = load_registry(arguments)
    auditor = auditor_of(arguments, registry)
    auditor.check(["a"], [None])  # report a missing tokenizer before a client waits
    server(auditor).run("stdio")
    return 0
