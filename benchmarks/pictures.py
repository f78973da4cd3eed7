"""Take the pictures of the docs: the page of the demo's report, and that of `iet serve`.

    iet demo --model smollm2 && python -m benchmarks.pictures iet-demo -o docs/images

Headless chromium through playwright, at 390, 500 and 1280 pixels; colours are cut to a palette, so that a
picture has less than 150 kB. Needs `pip install playwright pillow` and chromium.
"""

from __future__ import annotations

import argparse
import io
import pathlib
import shutil
import sys
from typing import Any

from benchmarks.recording import exit_code
from iet.errors import BackendUnavailable, InputError
from iet.service.page import PAGE

WIDTHS = {390: 844, 500: 844, 1280: 1000}
"""Of the window, with its height."""

MAXIMUM = 150_000
"""Bytes of a picture."""


def find_chromium() -> str | None:
    """Return the browser's path, or None."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for path in map(shutil.which, names) if path is not None), None)


def smaller(png: bytes) -> bytes:
    """Return a picture of as many colours as fit into `MAXIMUM`."""
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert("RGB")
    for colours in (256, 128, 64, 32):
        buffer = io.BytesIO()
        image.quantize(colours, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
        if len(buffer.getvalue()) < MAXIMUM:
            return buffer.getvalue()
    size = len(buffer.getvalue())
    raise InputError(f"picture: got {size:,} bytes in {colours} colours, expected fewer than {MAXIMUM:,}")


def take(browser: Any, report: pathlib.Path, out: pathlib.Path) -> list[pathlib.Path]:
    """Write the pictures of both pages at each width, the report in the dark, too; return their paths."""
    kinds = [(name, width, "light") for name in ("report", "serve") for width in WIDTHS]
    paths = []
    for name, width, scheme in [*kinds, ("report", 390, "dark")]:
        tab = browser.new_page(viewport={"width": width, "height": WIDTHS[width]}, color_scheme=scheme)
        if name == "report":
            tab.goto(report.resolve().as_uri())
        else:
            tab.set_content(PAGE)
        path = out / f"{name}-{width}{'' if scheme == 'light' else '-dark'}.png"
        path.write_bytes(smaller(tab.screenshot()))
        tab.close()
        paths.append(path)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("demo", type=pathlib.Path, help="folder that `iet demo` wrote")
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    chromium = find_chromium()
    if chromium is None:
        raise BackendUnavailable("chromium: not found; apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for path in take(browser, arguments.demo / "report.html", arguments.output):
            print(f"{path}: {path.stat().st_size:,} bytes")
        browser.close()


if __name__ == "__main__":
    sys.exit(exit_code(main))
