"""Progress on stderr: for a person at a terminal, while work takes more than about a second."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator

from iet.report.lines import cut, harmless, width_of

DELAY = 0.8
"""Seconds of work after which a bar is shown; 0: at once."""

REFRESH = 0.1
"""Seconds between two updates of a bar."""

Update = Callable[[str, float], object]
"""Takes what is being done now, and how much is done, in the unit of `total`."""


@contextlib.contextmanager
def progress(line: str, total: float | None = None) -> Iterator[Update]:
    """Show a bar on stderr while the block runs, and take it away at its end.

    Nothing is written unless stderr is a terminal and the block takes longer than `DELAY`. A terminal that
    cannot write over a line (TERM=dumb) gets the line alone, which stays.

    Args:
        line: what is being done.
        total: how much there is to do. None: unknown, and only the time moves.

    Yields:
        A function (line, done) that moves the bar.
    """
    if not sys.stderr.isatty():
        yield lambda line, done: None
        return
    bar = _Bar(line, total)
    bar.thread.start()
    try:
        yield bar.move
    finally:
        bar.over.set()
        bar.thread.join()


class _Bar:
    """A bar drawn by a thread of its own, so that the time on it moves while the work is silent."""

    def __init__(self, line: str, total: float | None) -> None:
        self._now, self._total = (line, 0.0), total
        self._file = sys.stderr  # as it is now: loading a model redirects it
        self.over, self.thread = threading.Event(), threading.Thread(target=self._draw, daemon=True)

    def move(self, line: str, done: float) -> None:
        self._now = line, done

    def _draw(self) -> None:
        if DELAY > 0 and self.over.wait(DELAY):
            return
        if os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
            line = harmless(f"iet: {self._now[0]}")
            print(cut(line, (width_of(self._file) or 80) - 1), file=self._file, flush=True)
            return
        from tqdm import tqdm

        counted = "{elapsed} {bar:1}" if self._total is None else "|{bar:8}| {percentage:.0f}% {elapsed}"
        with tqdm(
            desc=harmless(self._now[0]),
            total=self._total,
            bar_format="iet: {desc} " + counted,
            file=self._file,
            leave=False,
        ) as bar:
            bar.start_t -= DELAY
            done = False
            while not done:
                done = self.over.wait(REFRESH)
                bar.ncols = width_of(self._file)
                bar.desc, bar.n = harmless(self._now[0]), self._now[1]
                bar.refresh()
