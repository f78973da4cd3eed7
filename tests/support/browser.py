"""Chromium, where playwright and it are installed, with all the time that it may need."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.waiting import PATIENCE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Run the browser until the block ends; skip the test if no browser is installed."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=1000 * PATIENCE
        )
        yield launched
        launched.close()


def tab_of(browser: Any, **options: Any) -> Any:
    """Open a page that is patient."""
    tab = browser.new_page(**options)
    tab.set_default_timeout(1000 * PATIENCE)
    return tab
