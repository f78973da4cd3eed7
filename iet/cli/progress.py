"""What is at work, and how far, on stderr: where a person looks on, and for what takes over a second."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

DELAY = 0.8
"""Seconds after which something is shown."""

Update = Callable[[str, float], object]
"""Takes what is being done now, and how much is done, in the unit of `total`."""


@contextlib.contextmanager
def progress(line: str, total: float | None = None) -> Iterator[Update]:
    """Show a bar on stderr while the block runs, and take it away at its end.

    Nothing is written unless stderr is a terminal and the block takes longer than `DELAY`. Without rich the
    bar is a line that is written over, and where the terminal cannot do that (TERM=dumb) one that stays.

    Args:
        line: what is being done.
        total: how much there is to do. None: unknown, and the bar only moves.

    Yields:
        A function (line, done) that moves the bar.
    """
    if not sys.stderr.isatty():
        yield lambda line, done: None
        return
    bar = _rich_bar(line, total) or _Lines(line, total)
    timer = threading.Timer(DELAY, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield bar.move
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


@contextlib.contextmanager
def auditing(total: float | None = None) -> Iterator[Update]:
    """Show `progress` of an audit, which says so while loops are compiled: once on a machine, for seconds."""
    from iet.native.jit import compiling, without_blas

    without_blas()
    line = "compiling the loops of an audit, once on this machine"
    with progress("auditing", total) as move, compiling(lambda: move(line, 0.0)):
        yield move


class _RichBar:
    def __init__(self, shown: Any, line: str, total: float | None) -> None:
        self.start, self.stop = shown.start, shown.stop
        self._shown, self._task = shown, shown.add_task(line, total=total)

    def move(self, line: str, done: float) -> None:
        self._shown.update(self._task, description=line, completed=done)


def _rich_bar(line: str, total: float | None) -> _RichBar | None:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        return None
    console = Console(file=sys.stderr)
    if not console.is_interactive or console.is_dumb_terminal:
        return None
    bar = BarColumn(min(20, console.width // 10))  # the words come first
    columns = (TextColumn("iet: {task.description}", markup=False), bar, TimeElapsedColumn())
    # What is printed meanwhile is a result: it belongs to stdout.
    return _RichBar(Progress(*columns, console=console, transient=True, redirect_stdout=False), line, total)


class _Lines:
    """One line, written over; on a terminal that cannot do that, the first one only."""

    def __init__(self, line: str, total: float | None) -> None:
        self._line, self._total, self._started = line, total, False
        self._over = os.environ.get("TERM", "dumb") != "dumb"

    def start(self) -> None:
        self._started = True
        self._write(self._line)
        if not self._over:
            print(file=sys.stderr, flush=True)

    def move(self, line: str, done: float) -> None:
        self._line = line if self._total is None else f"{line}, {done / self._total:.0%}"
        if self._started and self._over:
            self._write(self._line)

    def stop(self) -> None:
        if self._started and self._over:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _write(self, line: str) -> None:
        room = shutil.get_terminal_size().columns - 1
        start, end = ("\r", "\x1b[K") if self._over else ("", "")
        print(f"{start}{f'iet: {line}'[:room]}{end}", end="", file=sys.stderr, flush=True)
