"""Terminals that tests write to, and what they show."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import unicodedata

import pytest

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def of_256_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say that terminals have colours, and nothing of their width."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def cells(line: str) -> int:
    """Cells of a line in a terminal: not the implementation's own count."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line
    )


def in_terminal(columns: int, *command: str) -> tuple[int, str]:
    """The exit code of a process whose stdout and stderr are a terminal, and what it wrote there."""
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = dict(os.environ)  # given: else readline's COLUMNS, which Python does not see, goes along
    process = subprocess.Popen(
        [sys.executable, *command], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    written = b""
    try:
        while chunk := os.read(ours, 4096):
            written += chunk
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    return process.wait(), written.decode()
