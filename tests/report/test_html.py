"""The report as a page: its content, that strangers' text stays text, and how a real browser shows it."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html.parser
import json
import pathlib
import pickle
import re
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from iet.errors import InputError
from iet.report import Report, Segment
from iet.report.html import DEPTHS, VALUES, content, page
from tests.audit.test_auditor import DECODERS, TEXT, reader, spell, team, write
from tests.report.test_report import report_of

NASTY = (
    '</script><script>document.title="owned"</script><img src=x onerror=alert(1)>'
    " <!-- <script> \u2028 \u202e {{data}} {{script}} & ' \" \0"
)


class Parsed(html.parser.HTMLParser):
    """Tags, attributes that name other files, the content of scripts, and the text of each segment."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.segments: list[str] = []
        self._inside: dict[str, str | None] | None = None
        self._open: list[str] = []  # classes of the elements inside of which a segment's text stands
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [
            value or "" for name, value in attrs if name in ("src", "href", "action", "data", "srcset")
        ]
        self._inside = dict(attrs) if tag == "script" else None
        kind = dict(attrs).get("class") or ""
        if kind.startswith("segment "):
            self.segments.append("")
        if self._open or kind.startswith("segment "):
            self._open.append(kind)

    def handle_endtag(self, tag: str) -> None:
        if self._open:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._inside is not None:
            self.scripts.append((self._inside, data))
            self._inside = None
        if self._open and self._open[-1] not in ("name", "paragraph"):
            self.segments[-1] += data


@pytest.fixture(scope="module")
def report() -> Report:
    return reader().audit(TEXT)


def shown(report: Report) -> dict[str, Any]:
    """What the page shows, of which the script has a part; in JSON and back."""
    [data] = [text for attributes, text in Parsed(page(report)).scripts if attributes.get("id") == "data"]
    found: dict[str, Any] = json.loads(json.dumps(content(report)))
    drawn: dict[str, Any] = json.loads(data)
    for name, value in drawn.items():
        if name in ("agents", "segments"):
            parts = [{key: part[key] for key in value[0]} for part in found[name]] if value else []
            assert value == parts
        else:
            assert value == found[name]
    return found


def test_the_page_holds_what_the_report_says(report: Report) -> None:
    data = shown(report)
    names = [agent["name"] for agent in data["agents"]]
    for segment, drawn in zip(report.segments, data["segments"], strict=True):
        assert (None if drawn["agent"] is None else names[drawn["agent"]]) == segment.agent
        assert (drawn["start"], drawn["end"]) == (segment.char_start, segment.char_end)
        ends = [segment.char_start, *(end for _, _, end in drawn["runs"])]
        assert [start for _, start, _ in drawn["runs"]] == ends[:-1]
        assert ends[-1] == segment.char_end
    assert Parsed(page(report)).segments == [TEXT[s.char_start : s.char_end] for s in report.segments]
    assert data["verdict"].startswith(", ".join(report.found))
    assert data["unattributed"] == pytest.approx(1 - report.coverage, abs=0.02)
    digests = [value for _, value in data["assumed"]]
    assert report.registry_digest in digests
    assert hashlib.sha256(TEXT.encode()).hexdigest() in digests


def test_the_text_is_shaded_by_the_posterior(report: Report) -> None:
    assert report.posterior is not None
    assert report.posterior_agents is not None
    starts = report.trace.starts if report.trace else None
    assert starts is not None
    columns = {report.agents[a]: k for k, a in enumerate(report.posterior_agents.tolist())}
    for segment, drawn in zip(report.segments, shown(report)["segments"], strict=True):
        for depth, start, end in drawn["runs"]:
            if segment.agent is None:
                assert depth == 0
            else:
                tokens = (starts >= start) & (starts < end)
                values = report.posterior[tokens, columns[segment.agent]]
                assert ((1 + np.minimum(values * DEPTHS, DEPTHS - 1).astype(int)) == depth).all()


def test_the_curves_are_the_window_means(report: Report) -> None:
    assert report.trace is not None
    curves = shown(report)["curves"]
    assert len(curves["positions"]) == len(report.trace.scores) == (len(TEXT.split()) - 64) // 16 + 1
    assert curves["positions"][3] == len(" ".join(TEXT.split()[: 3 * 16 + 32])) + 1
    names = [agent["name"] for agent in shown(report)["agents"]]
    for agent, values in curves["scores"]:
        column = report.trace.agents.index(names[agent])
        np.testing.assert_allclose(values, report.trace.scores[:, column], atol=6e-4)


def test_what_would_change_its_mind(report: Report) -> None:
    segment = next(s for s in report.segments if s.agent is not None)
    said = " ".join(content(report)["segments"][report.segments.index(segment)]["why"])
    level = float(re.search(r"unattributed at a level below (< )?([\d.e-]+),", said).group(2))  # type: ignore[union-attr]
    assert segment.error is not None
    assert level >= segment.error
    if level > 1e-6:
        stricter = reader(level=level * 0.9).audit(TEXT)
        same = next(s for s in stricter.segments if s.char_start == segment.char_start)
        assert same.agent is None


@pytest.mark.parametrize("decoder", DECODERS)
def test_every_decoder_and_forced_choice_have_a_page(decoder: str) -> None:
    for options in ({}, {"allow_unattributed": False}):
        data = shown(reader(decoder=decoder, **options).audit(TEXT))
        assert data["curves"]["scores"]


def test_ids_alone_and_nothing_at_all() -> None:
    ids = reader().audit(token_ids=write(team(), (("planner", 200),)))
    data = shown(ids)
    assert "there is no text to show" in page(ids)
    assert data["length"] == 201
    assert all(segment["runs"] is None for segment in data["segments"])
    for empty in ("", "\ufeff"):
        assert shown(reader().audit(empty))["verdict"] == "Nothing in this text could be read"


def test_left_out_parts_are_shown_as_such() -> None:
    report = reader().audit(TEXT, skip=[(0, 300)])
    first = shown(report)["segments"][0]
    assert first["left_out"] is True
    assert (first["start"], first["end"]) == (0, 300)


def test_strangers_text_stays_text() -> None:
    hostile = report_of(text=NASTY + "x" * 40, agents=(NASTY[:60], "critic"))
    text = page(hostile)
    parsed = Parsed(text)
    assert parsed.tags.count("script") == 3
    assert "img" not in parsed.tags
    drawn = "".join(parsed.segments)
    assert "\u202e" not in drawn  # what turns the order of text around is shown as a symbol
    assert '</script><script>document.title="owned"' in drawn
    assert "{{data}} {{script}} & ' \" \u2400" in drawn


def test_nothing_is_loaded_and_the_policy_names_the_script(report: Report) -> None:
    text = page(report)
    parsed = Parsed(text)
    assert [link for link in parsed.links if not link.startswith("#")] == []
    assert "url(" not in text.replace("url(#arrow)", "")
    assert "@import" not in text
    scripts = [source for attributes, source in parsed.scripts if not attributes]
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    named = " ".join(f"'sha256-{digest}'" for digest in digests)
    assert len(digests) == 2
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src {named}\"" in text


@pytest.mark.parametrize("turn", [250, 40])
def test_five_thousand_tokens_are_below_300_kilobytes(turn: int) -> None:
    registry = team()
    turns = [(name, turn) for name in ("planner", "critic", "writer", "planner") * (5000 // 4 // turn)]
    text = spell(write(registry, turns)).replace("7 ", "7\n")
    report = reader(registry).audit(text)
    assert len(report.segments) > 0.7 * len(turns)
    assert len(page(report).encode()) < 300_000


@pytest.mark.parametrize("windows", [3_747, 3_748, 3_749])
def test_long_texts_have_few_points(windows: int) -> None:
    rng = np.random.default_rng(0)
    text = spell(rng.integers(1, 600, 64 + 16 * (windows - 1)).tolist())
    report = reader(allow_unattributed=False).audit(text)
    assert report.trace is not None
    assert len(report.trace.scores) == windows
    curves = content(report)["curves"]
    assert len(curves["positions"]) == len(curves["margin"]) == 1 + (windows - 1) // 3
    assert all(len(values) == len(curves["positions"]) for _, values in curves["scores"])
    assert (np.diff([0, *curves["positions"], len(text)]) > 0).all()


def many(count: int = 64) -> Report:
    """A long team of agents who write one turn each."""
    registry = team([f"agent-{i:02}" for i in range(count)])
    return reader(registry).audit(spell(write(registry, [(name, 100) for name in registry])))


def test_the_curves_of_many_agents_are_coarser() -> None:
    curves = content(many())["curves"]
    assert len(curves["scores"]) == 64
    assert sum(len(values) for _, values in curves["scores"]) <= VALUES


PARAGRAPHS: tuple[tuple[str, list[str]], ...] = (
    ("One.\n\nTwo,\nstill two.\n \n\n  Three.\n\n", ["One.", "Two,", "Three."]),
    ("\n\nOne.\r\n\r\nTwo.", ["One.", "Two."]),
    ("One,\nand no blank line:\n  three.\n", ["One,", "and ", "three."]),
    ("All in one", ["All "]),
    (" \n ", []),
    ("", []),
)


@pytest.mark.parametrize(("text", "begin"), PARAGRAPHS)
def test_paragraphs_start_where_people_see_them(text: str, begin: list[str]) -> None:
    starts = content(report_of(text=text, segments=()))["paragraphs"]
    assert [text[start : start + len(words)] for start, words in zip(starts, begin, strict=True)] == begin


def test_each_paragraph_has_its_number_and_its_agent() -> None:
    first, second = (
        "Planner's one.\n\nPlanner's two.\n\nPlanner's three, ",
        "Critic's three.\n\nCritic's four.",
    )
    one = report_of()
    segments = (
        dataclasses.replace(one.segments[0], char_end=len(first)),
        dataclasses.replace(
            one.segments[0], char_start=len(first), char_end=len(first + second), agent="critic"
        ),
    )
    report = dataclasses.replace(one, text=first + second, segments=segments)
    badges = re.findall(r'class="(name|paragraph)"[^>]*>([^<]*)<', page(report))
    assert [value for _, value in badges] == [
        *("1", "planner", "2", "planner", "3", "planner"),
        *("critic", "4", "critic"),
    ]
    assert [segment["row"][2] for segment in content(report)["segments"]] == ["1 to 3", "3 to 4"]
    assert Parsed(page(report)).segments == [first, second]


def test_how_sure_in_plain_words() -> None:
    one = report_of()
    sure, nobody = one.segments

    def card(segment: Segment, **changes: Any) -> str:
        changed = dataclasses.replace(segment, **changes)
        return "\n".join(content(dataclasses.replace(one, segments=(changed,)))["segments"][0]["why"])

    said = card(sure)
    assert (
        "very sure that planner wrote in here. The chance that it wrote none of this is about 1 in 1" in said
    )
    assert "How sure: sure that planner" in card(sure, error=0.004)
    assert "about 1 in 250," in card(sure, error=0.004)
    assert "less than 1 in 1,000,000," in card(sure, error=1e-9)
    assert "too weak" not in said
    assert "By itself this passage is too weak to show it (p 0.368)" in card(sure, log_p=-1.0)
    assert "less sure: 62% on average" in card(sure, posterior=0.62)
    assert "perhaps it was critic" in card(nobody)
    assert "better than chance" in card(nobody, log_p=-0.1, error=0.9)
    assert "What would change that" in card(nobody)


def test_where_it_ends_in_words(report: Report) -> None:
    first = report.segments[0]
    assert first.end_interval is not None
    low, high = first.end_interval
    assert 0 < high - low < 12
    said = content(report)["segments"][0]["why"]
    assert f"It ends somewhere in “{' '.join(TEXT.split()[low:high])}”." in said
    assert not any("begins" in line for line in said)
    without = content(dataclasses.replace(report, trace=None))["segments"][0]["why"]
    assert not any("ends somewhere" in line for line in without)  # where its tokens lie is not known


def test_it_is_the_same_each_time_and_survives_a_pickle(report: Report, tmp_path: pathlib.Path) -> None:
    assert report.to_html(tmp_path / "report.html") == page(reader().audit(TEXT))
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page(report) + "\n"
    assert page(pickle.loads(pickle.dumps(report))) == page(report)
    assert dataclasses.replace(report, trace=None).to_html()  # without what only an audit has


def test_a_notebook_shows_the_coloured_text(report: Report) -> None:
    text = report._repr_html_()
    assert "<script" not in text
    for segment in report.segments:
        assert TEXT[segment.char_start : segment.char_end] in text
    hostile = report_of(text=NASTY + "x" * 40, agents=(NASTY[:60], "critic"))._repr_html_()
    assert "<script" not in hostile
    assert "<img" not in hostile
    assert report_of(text=None)._repr_html_().startswith("<p><b>")


def test_the_picture_has_a_curve_an_agent(report: Report) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    assert report.trace is not None
    axes = report.plot()
    curves = {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}
    assert set(curves) == {segment.agent for segment in report.segments} - {None}
    for name, line in curves.items():
        column = report.trace.agents.index(name)
        np.testing.assert_array_equal(line.get_ydata(), report.trace.scores[:, column])
        np.testing.assert_array_equal(line.get_xdata(), report.trace.centres)
    assert len({line.get_linestyle() for line in curves.values()}) == len(curves) == 3
    assert axes.get_xlim() == (0, len(TEXT))
    assert report.plot(axes) is axes
    axes.figure.canvas.draw()
    with pytest.raises(InputError, match="report: got one without scores"):
        report_of().plot()


# In a browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def opened(browser: Any, report: Report, tmp_path: pathlib.Path) -> Iterator[Any]:
    """The page, in a browser; at the end nothing was logged, and nothing but the file was asked for."""
    path = tmp_path / "report.html"
    report.to_html(path)
    tab = browser.new_page(viewport={"width": 1200, "height": 800})
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


def test_it_is_drawn_and_linked(opened: Any, report: Report) -> None:
    assert opened.locator("#text .segment").count() == len(report.segments)
    assert opened.locator("h1").inner_text() == content(report)["verdict"]
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
    places = [
        box["x"]
        for box in (opened.locator(f).bounding_box() for f in ("#curves .strip", "#curves figure svg"))
    ]
    assert places[0] == places[1]


def test_the_keyboard_walks_through_the_segments(opened: Any) -> None:
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


def test_the_keyboard_goes_from_the_table_to_the_text(opened: Any) -> None:
    opened.locator("#segments tbody a").nth(2).focus()
    opened.keyboard.press("Enter")
    assert opened.evaluate("document.activeElement.id") == "s3"
    assert opened.locator("#card h3").inner_text().startswith("3. ")


def test_a_screen_reader_has_the_text_and_who_wrote_it(opened: Any, report: Report) -> None:
    tree = opened.locator("#text").aria_snapshot()
    for number, segment in enumerate(report.segments, 1):
        assert f'group "segment {number}, {segment.agent or "unattributed"}"' in tree
    assert " ".join(TEXT.split()[10:20]) in tree


def test_without_the_script_there_are_text_words_and_tables(
    browser: Any, report: Report, tmp_path: pathlib.Path
) -> None:
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


def test_filters_show_one_agent(opened: Any, report: Report) -> None:
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
def test_nothing_sticks_out_at_any_width(opened: Any, width: int, scheme: str) -> None:
    opened.set_viewport_size({"width": width, "height": 900})
    opened.emulate_media(color_scheme=scheme)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    ink, paper = (
        opened.evaluate(f"getComputedStyle(document.body).{name}") for name in ("color", "backgroundColor")
    )
    assert contrast(ink, paper) > 7  # AAA


@pytest.mark.parametrize("width", [360, 1600])
def test_a_team_of_64_does_not_stick_out_either(browser: Any, width: int, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "many.html"
    many().to_html(path)
    tab = browser.new_page(viewport={"width": width, "height": 900})
    trouble: list[str] = []
    tab.on("console", lambda message: trouble.append(message.text))
    tab.goto(path.as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.locator("#curves path.curve").count() == 64
    assert trouble == []
    tab.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_read_on_every_colour_and_lines_are_seen(
    browser: Any, scheme: str, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "many.html"
    many(7).to_html(path)
    tab = browser.new_page(color_scheme=scheme)
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


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_it_prints_the_whole_text_and_the_names(opened: Any) -> None:
    opened.emulate_media(media="print")
    assert not opened.locator("#filters").is_visible()
    assert opened.locator("#why article").count() == opened.locator("#why article:visible").count() > 1
    assert opened.locator("#text").evaluate("e => e.scrollHeight <= e.clientHeight + 1")
    assert opened.locator(".segment .name").first.is_visible()
    assert opened.pdf(format="A4").startswith(b"%PDF")


def test_hostile_text_does_nothing(browser: Any, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "hostile.html"
    report_of(text=NASTY + "x" * 40, agents=(NASTY[:60], "critic")).to_html(path)
    tab = browser.new_page()
    requests: list[str] = []
    tab.on("request", lambda request: requests.append(request.url))
    tab.on("dialog", lambda dialog: requests.append(dialog.message))
    tab.goto(path.as_uri())
    assert tab.title().startswith("iet: ")
    assert "<img src=x" in tab.locator("#text").inner_text()
    assert tab.locator("img").count() == 0
    assert requests == [path.as_uri()]
    tab.close()
