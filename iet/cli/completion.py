"""`iet completion`: a script with which a shell completes commands and options."""

from __future__ import annotations

import argparse

from iet.cli.options import Commands
from iet.errors import missing


def add(commands: Commands) -> None:
    """Add `iet completion`."""
    completion = commands.add_parser(
        "completion", help="print a script with which a shell completes commands and options"
    )
    completion.add_argument(
        "shell", choices=["bash", "zsh", "tcsh"], help='as in: eval "$(iet completion bash)"'
    )
    completion.set_defaults(run=_completion)


def _completion(arguments: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError as error:
        raise missing(f"completion: {error}", "completion") from None
    print(shtab.complete(arguments.whole, shell=arguments.shell))
    return 0
