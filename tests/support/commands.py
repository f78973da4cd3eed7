"""The command line, in this process and in one of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

from iet.cli import main

RunIet: TypeAlias = Callable[..., str]
"""The fixture `run_iet` of the tests of the command line."""


def run(*arguments: Any) -> int:
    """The exit code of the command line, also where argparse exits."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else -1


def spawn(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "iet", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False, **options)
