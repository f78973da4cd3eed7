"""The page in a real browser: drawing, keyboard, widths, contrast and print."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from iet.report import Report
from iet.report.claims import COLUMNS as CLAIMED
from iet.report.index import COLUMNS, Row, index
from iet.report.wording import verdict
from tests.support.browser import chromium, tab_of
from tests.support.texts import IDS, TEXT, reader, spell


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as launched:
        yield launched


@pytest.fixture
def opened(browser: Any, report: Report, tmp_path: pathlib.Path) -> Iterator[Any]:
    """The page in a browser; checks at the end that nothing was logged and no other file was requested."""
    path = tmp_path / "report.html"
    report.to_html(path)
    tab = tab_of(browser, viewport={"width": 1200, "height": 800})
    trouble: list[str] = []
    requests: list[str] = []
    tab.on("console", lambda message: trouble.append(message.text))
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(path.as_uri())
    yield tab
    assert trouble == []
    assert requests == [path.as_uri()]
    tab.close()


def test_page_links_text_table_and_curves(opened: Any, report: Report) -> None:
    assert opened.locator("#text .segment").count() == len(report.segments)
    assert opened.locator("h1").inner_text() == verdict(report)
    assert opened.locator("#segments tbody tr").count() == len(report.segments)
    assert opened.locator("#curves path.curve").count() == len({s.agent for s in report.segments} - {None})
    opened.locator("#text .segment").nth(1).hover()
    assert opened.locator("#card h3").inner_text().startswith("2. ")
    assert "current" in opened.locator("#segments tbody tr").nth(1).get_attribute("class")
    opened.locator("#segments tbody tr").nth(2).click()
    assert opened.locator("#card h3").inner_text().startswith("3. ")
    opened.locator("#curves figure svg").hover(position={"x": 2, "y": 20})
    assert opened.locator("#card h3").inner_text().startswith("1. ")
    strip = opened.locator("#curves .strip span")
    assert strip.all_inner_texts() == [segment.agent or "unattributed" for segment in report.segments]
    strip.nth(1).hover()
    assert opened.locator("#card h3").inner_text().startswith("2. ")
    edges = [
        box["x"]
        for box in (opened.locator(f).bounding_box() for f in ("#curves .strip", "#curves figure svg"))
    ]
    assert edges[0] == edges[1]


def test_arrow_keys_move_between_segments(opened: Any) -> None:
    opened.locator("#text .segment").first.focus()
    opened.keyboard.press("ArrowRight")
    assert opened.locator("#card h3").inner_text().startswith("2. ")
    assert opened.evaluate("document.activeElement.id") == "s2"
    opened.keyboard.press("End")
    last = opened.locator("#text .segment").count()
    assert opened.locator("#card h3").inner_text().startswith(f"{last}. ")
    opened.keyboard.press("Home")
    assert opened.locator("#card h3").inner_text().startswith("1. ")
    assert opened.locator("#text .segment[tabindex='0']").count() == 1


def test_enter_in_the_table_focuses_the_segment(opened: Any) -> None:
    opened.locator("#segments tbody a").nth(2).focus()
    opened.keyboard.press("Enter")
    assert opened.evaluate("document.activeElement.id") == "s3"
    assert opened.locator("#card h3").inner_text().startswith("3. ")


def test_screen_reader_gets_text_and_agents(opened: Any, report: Report) -> None:
    tree = opened.locator("#text").aria_snapshot()
    for number, segment in enumerate(report.segments, 1):
        assert f'group "segment {number}, {segment.agent or "unattributed"}"' in tree
    assert " ".join(TEXT.split()[10:20]) in tree


def test_page_is_complete_without_its_script(browser: Any, report: Report, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "report.html"
    report.to_html(path)
    tab = browser.new_context(java_script_enabled=False).new_page()
    tab.goto(path.as_uri())
    assert tab.locator("#text .segment:visible").count() == len(report.segments)
    assert tab.locator("#why article:visible").count() == len(report.segments)
    assert tab.locator("#segments tbody tr:visible").count() == len(report.segments)
    assert tab.locator("#filters:visible, #card:visible").count() == 0
    assert "need the script" in tab.locator("noscript").inner_text()
    tab.context.close()


def test_filter_shows_one_agent(opened: Any, report: Report) -> None:
    opened.locator("#filters button", has_text="critic").click()
    visible = opened.locator("#segments tbody tr:visible")
    assert visible.count() == sum(segment.agent == "critic" for segment in report.segments)
    assert opened.locator("#filters button[aria-pressed='true']").inner_text().startswith("critic")
    assert opened.locator("path.curve.faint").count() == opened.locator("path.curve").count() - 1
    opened.locator("#filters button", has_text="critic").click()
    assert opened.locator("path.curve.faint").count() == 0
    assert visible.count() == len(report.segments)
    assert opened.locator("#filters button[aria-pressed='true']").count() == 0


@pytest.mark.parametrize("width", [360, 800, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_any_width(opened: Any, width: int, scheme: str) -> None:
    opened.set_viewport_size({"width": width, "height": 900})
    opened.emulate_media(color_scheme=scheme)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    ink, paper = (
        opened.evaluate(f"getComputedStyle(document.body).{name}") for name in ("color", "backgroundColor")
    )
    assert contrast(ink, paper) > 7  # AAA


CUT = """() => {
  const name = (e) => `${e.tagName} of ${e.closest("[id]").id}: ${e.textContent.slice(0, 30)}`;
  const kinds = ".scroll, figure, .strip span, .name, td, p, dd, h1, h2, h3, summary";
  const boxes = [...document.querySelectorAll(kinds)];
  const beyond = [...document.querySelectorAll("figure svg text")].filter((e) => {
    const [own, all] = [e, e.closest("svg")].map((each) => each.getBoundingClientRect());
    return own.left < all.left - 1 || own.right > all.right + 1 || own.top < all.top - 1;
  });
  const off = boxes.filter((e) => e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0);
  return [...off, ...beyond].map(name);
}"""
"""JavaScript that returns the elements that are cut off or exceed their box."""


@pytest.mark.parametrize("width", [390, 500, 1280])
def test_no_label_or_table_is_cut_off(opened: Any, width: int) -> None:
    opened.set_viewport_size({"width": width, "height": 844})
    for is_open in (False, True):
        opened.evaluate(
            "open => document.querySelectorAll('details').forEach(e => { e.open = open; })", is_open
        )
        opened.wait_for_function("() => new Promise(done => requestAnimationFrame(() => done(true)))")
        assert opened.evaluate(CUT) == []
        assert opened.evaluate("document.documentElement.scrollWidth") <= width


def test_technical_terms_are_in_disclosures(opened: Any, report: Report) -> None:
    def visible() -> str:
        words: str = opened.locator("body").inner_text()
        return words.replace(opened.locator("#text").inner_text(), "")

    terms = (
        "posterior",
        "log p",
        "p alone",
        "f(t, a)",
        "bitmask",
        "κ",
        " level ",
        "scored",
        "p-value",
        "digest",
    )
    assert [term for term in terms if term in visible()] == []
    opened.locator("summary").evaluate_all("all => all.forEach(e => e.click())")
    assert [term for term in terms if term not in visible()] == []
    opened.keyboard.press("Escape")
    opened.locator("#text .segment").nth(1).click()
    assert opened.locator("#card details[open] dt", has_text="posterior").count() == 1  # it stays open


@pytest.mark.parametrize("width", [360, 1600])
def test_page_of_64_agents_fits_any_width(
    browser: Any, width: int, many: Callable[[int], Report], tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "many.html"
    many(64).to_html(path)
    tab = tab_of(browser, viewport={"width": width, "height": 900})
    trouble: list[str] = []
    tab.on("console", lambda message: trouble.append(message.text))
    tab.goto(path.as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.locator("#curves path.curve").count() == 64
    assert trouble == []
    tab.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_have_enough_contrast(
    browser: Any, scheme: str, many: Callable[[int], Report], tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "many.html"
    many(7).to_html(path)
    tab = tab_of(browser, color_scheme=scheme)
    tab.goto(path.as_uri())
    drawn = tab.evaluate(
        """() => {
          const canvas = document.createElement("canvas").getContext("2d");
          const over = (...colours) => {
            for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
            return `rgb(${canvas.getImageData(0, 0, 1, 1).data.slice(0, 3).join(",")})`;
          };
          const style = (element) => getComputedStyle(element);
          const paper = style(document.getElementById("text")).backgroundColor;
          return [...document.querySelectorAll("#text .segment.agent")].map((segment) => [
            over(paper, style(segment.querySelector("i")).backgroundColor), over(style(segment).color),
            over(paper), over(style(segment).borderBottomColor)]);
        }"""
    )
    assert len({shade for shade, *_ in drawn}) == 7
    for shade, ink, paper, line in drawn:
        assert contrast(shade, ink) >= 4.5  # WCAG 2, AA: text
        assert contrast(paper, line) >= 3  # and graphical objects
    tab.close()


def contrast(first: str, second: str) -> float:
    """The contrast ratio of two colours as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_print_shows_the_whole_text_and_names(opened: Any) -> None:
    opened.emulate_media(media="print")
    assert not opened.locator("#filters").is_visible()
    assert opened.locator("#why article").count() == opened.locator("#why article:visible").count() > 1
    assert opened.locator("#text").evaluate("e => e.scrollHeight <= e.clientHeight + 1")
    assert opened.locator(".segment .name").first.is_visible()
    assert opened.locator(
        "#assumed td", has_text="registry digest"
    ).is_visible()  # its disclosure is closed on the screen
    assert opened.pdf(format="A4").startswith(b"%PDF")


def test_hostile_text_runs_no_script(browser: Any, hostile: Report, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "hostile.html"
    hostile.to_html(path)
    tab = tab_of(browser)
    requests: list[str] = []
    tab.on("request", lambda request: requests.append(request.url))
    tab.on("dialog", lambda dialog: requests.append(dialog.message))
    tab.goto(path.as_uri())
    assert tab.title().startswith("iet: ")
    assert "<img src=x" in tab.locator("#text").inner_text()
    assert tab.locator("img").count() == 0
    assert requests == [path.as_uri()]
    tab.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_tables_of_documents_and_claims_fit_and_label_cells(
    browser: Any, width: int, tmp_path: pathlib.Path
) -> None:
    rows = [Row("a-long-name-of-a-file" * 5 + ".txt", ["planner", "critic"], 0.5, -30.0, 1234, "1.html")]
    rows += [Row("broken.txt", problem="not UTF-8: byte 2 is 0x92, which is no beginning of a character")]
    claims = reader().check([spell(IDS[:150]), spell(IDS[150:300])], ["planner", "writer"])
    path = tmp_path / "page.html"
    for page, columns in ((index(rows), COLUMNS), (claims.to_html(), CLAIMED)):
        path.write_text(page, encoding="utf-8")
        tab = tab_of(browser, viewport={"width": width, "height": 900})
        tab.goto(path.as_uri())
        for part in ("html", ".scroll"):
            assert tab.locator(part).evaluate("part => part.scrollWidth <= part.clientWidth")
        cells = tab.locator("td:not(:empty)").all()
        assert len(cells) > len(columns)
        for cell in cells:
            assert cell.is_visible()
            named = cell.evaluate("cell => getComputedStyle(cell, '::before').content")
            column = columns[cell.evaluate("cell => cell.cellIndex")]
            assert named == (f'"{column}"' if width == 390 else "none")
        tab.close()
