"""Time how long a browser takes to open the page of a report, beside the same text as a plain page.

    python -m benchmarks.speed.bench_page -o benchmarks/results/page.json

Headless chromium through playwright, a new tab for each sample: from the start of the navigation to the
second frame after the page was loaded, so that it has been laid out and painted once. Pages are files on the
disk. The text is the language reference that CPython carries, unmarked, and cut. In "200 tokens a
turn" six agents' turns are given as boundaries; "forced choice" finds far more segments in such text than
marked text has, each in several shades.
"""

from __future__ import annotations

import functools
import html
import pathlib
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

import iet
from benchmarks.speed import texts
from benchmarks.speed.suite import Contestant, Suite, main
from benchmarks.speed.texts import team
from iet.errors import BackendUnavailable, IetError
from iet.marks.tokenizer import DEMO_SOURCE, Tokenizer
from iet.report import Report

PAGES = ("page, 200 tokens a turn", "page, forced choice")
FLOOR = "the text alone"
TOKENS = 100_000
FRAMES = (
    "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"
)


class Browser:
    """Chromium, started when it is first asked for, and the folder of the pages."""

    def __init__(self) -> None:
        self._open: list[Callable[[], object]] = []

    @functools.cached_property
    def folder(self) -> pathlib.Path:
        folder = tempfile.TemporaryDirectory()
        self._open.append(folder.cleanup)
        return pathlib.Path(folder.name)

    @functools.cached_property
    def _browser(self) -> Any:
        path = find_chromium()
        if path is None:
            raise BackendUnavailable("chromium: not found; apt-get install chromium")
        try:
            from playwright.sync_api import sync_playwright
        except ImportError as error:
            raise BackendUnavailable(f"opening pages: {error}; pip install playwright") from None
        playwright = sync_playwright().start()
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        self._open += [playwright.stop, browser.close]
        return browser

    def open(self, name: str, ask: str = FRAMES) -> Any:
        """Open a page of the folder in a new tab, and return the answer to `ask`."""
        tab = self._browser.new_page(viewport={"width": 1280, "height": 900})
        try:
            tab.goto((self.folder / name).as_uri())
            return tab.evaluate(ask)
        finally:
            tab.close()

    def close(self) -> None:
        while self._open:
            self._open.pop()()


def find_chromium() -> str | None:
    """Return the browser's path, None if there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for path in map(shutil.which, names) if path is not None), None)


@functools.cache
def reports(tokens: int) -> dict[str, Report]:
    """Reports on real text: with turns of 200 tokens, and with all that forced choice finds."""
    registry = team()
    text = texts.text()
    starts = Tokenizer(DEMO_SOURCE).encode(text).char_starts
    text, starts = text[: int(starts[tokens])], starts[:tokens]
    auditor = iet.Auditor(registry, allow_unattributed=False)
    turns = auditor.audit(text, boundaries=np.unique(starts[200::200]))
    return dict(zip(PAGES, (turns, auditor.audit(text)), strict=True))


def suites(quick: bool) -> list[Suite]:
    tokens = 1000 if quick else TOKENS
    browser = Browser()

    def file(name: str) -> str:
        return name.replace(", ", "-").replace(" ", "-") + ".html"

    def validate() -> None:
        made = reports(tokens)
        text = next(iter(made.values())).text or ""
        head = '<!doctype html><meta charset="utf-8"><div style="white-space:pre-wrap">'
        plain = f"{head}{html.escape(text)}</div>"
        (browser.folder / file(FLOOR)).write_text(plain, encoding="utf-8")
        for name, report in made.items():
            report.to_html(browser.folder / file(name))
            shown = browser.open(file(name), "document.querySelectorAll('#text .segment').length")
            if shown != len(report.segments):
                raise IetError(f"{name}: {shown} segments are shown of {len(report.segments)}")

    def sample(name: str) -> Callable[[], float]:
        return lambda: float(browser.open(file(name))) / 1e3

    def details() -> dict[str, Any]:
        made = reports(tokens).items()
        sizes = {name: {"tokens": report.tokens, "segments": len(report.segments)} for name, report in made}
        return {name: {**sizes[name], "bytes": len(report.to_html().encode())} for name, report in made}

    contestants = {name: Contestant(sample(name), "ours") for name in PAGES}
    contestants[FLOOR] = Contestant(sample(FLOOR), "floor")
    name, note = (
        f"open a report of {tokens:,} tokens",
        "Headless chromium, to the second frame after loading.",
    )
    rounds = 2 if quick else 15
    return [
        Suite(name, "ms", contestants, (FLOOR,), validate, rounds, {}, note, details, release=browser.close)
    ]


def bench_page(replay: Callable[[], None]) -> None:
    replay()


if __name__ == "__main__":
    main("benchmarks.speed.bench_page", __doc__, suites, ("playwright",))
