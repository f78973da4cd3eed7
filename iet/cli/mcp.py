"""`iet mcp`: audits as tools of agents."""

from __future__ import annotations

import argparse

from iet.cli.options import Commands, add_registry, add_tokenizer, load_registry, tokenizers_of
from iet.errors import missing


def add(commands: Commands) -> None:
    """Add `iet mcp`."""
    mcp = commands.add_parser(
        "mcp", help="offer `audit` and `check` as tools to agents (Model Context Protocol, standard streams)"
    )
    add_registry(mcp)
    add_tokenizer(mcp)
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

    registry = load_registry(arguments)
    auditor = iet.Auditor(
        registry,
        level=arguments.level,
        profile=arguments.profile,
        tokenizer=tokenizers_of(arguments, registry),
        published=arguments.published,
    )
    auditor.check(["a"], [None])  # a tokenizer that is not there is said before a client waits
    server(auditor).run("stdio")
    return 0
