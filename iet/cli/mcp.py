"""`iet mcp`: audits as tools of agents."""

from __future__ import annotations

import argparse

from iet.cli.options import Commands, add_registry, load_registry
from iet.errors import missing


def add(commands: Commands) -> None:
    """Add `iet mcp`."""
    mcp = commands.add_parser(
        "mcp", help="offer `audit` and `check` as tools to agents (Model Context Protocol, standard streams)"
    )
    add_registry(mcp)
    mcp.add_argument("--tokenizer", metavar="PATH", help="if it is not where the registry found it")
    mcp.add_argument("--profile", help="id of the only profile to read (default: all)")
    mcp.add_argument("--level", type=float, default=0.01, help="of what is said (default: 0.01)")
    mcp.add_argument("--published", metavar="INDEX", help="index of published text, which is no evidence")
    mcp.set_defaults(run=_mcp)


def _mcp(arguments: argparse.Namespace) -> int:
    try:
        from iet.service.tools import server
    except ImportError as error:
        raise missing(f"tools for agents need {error.name}", "mcp") from None
    import iet

    auditor = iet.Auditor(
        load_registry(arguments),
        level=arguments.level,
        profile=arguments.profile,
        tokenizer=arguments.tokenizer,
        published=arguments.published,
    )
    auditor.check(["a"], [None])  # a tokenizer that is not there is said before a client waits
    server(auditor).run("stdio")
    return 0
