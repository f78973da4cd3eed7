"""The report as a page: its content, escaping of untrusted text, and its size."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html.parser
import json
import pathlib
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from iet.errors import InputError
from iet.report import Report, Segment, view, wording
from iet.report.html import page
from tests.support.reports import report_of
from tests.support.teams import team
from tests.support.texts import DECODERS, TEXT, reader, spell, write


class Parsed(html.parser.HTMLParser):
    """Tags, attributes that name other files, the content of scripts, and the text of each segment."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.segments: list[str] = []
        self._inside: dict[str, str | None] | None = None
        self._open: list[str] = []  # classes of the open elements around a segment's text
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


def page_data(report: Report) -> dict[str, Any]:
    """The data that the page's script reads, after a check of its curves and boundaries."""
    [data] = [text for attributes, text in Parsed(page(report)).scripts if attributes.get("id") == "data"]
    drawn: dict[str, Any] = json.loads(data)
    assert drawn["length"] == (len(report.text) if report.text is not None else report.tokens)
    for name in ("boundaries", "doubts", "curves", "graph"):
        assert drawn[name] == json.loads(json.dumps(getattr(view, name)(report)))
    return drawn


def why(report: Report, segment: int = 0) -> list[str]:
    """The sentences on one segment."""
    shown = view.Page(report)
    return shown.why(shown.segments[segment])


def test_page_equals_the_report(report: Report) -> None:
    data = page_data(report)
    names = [agent["name"] for agent in data["agents"]]
    for segment, drawn in zip(report.segments, data["segments"], strict=True):
        assert (None if drawn["agent"] is None else names[drawn["agent"]]) == segment.agent
        assert (drawn["start"], drawn["end"]) == (segment.char_start, segment.char_end)
        runs = view.runs(report, segment)
        ends = [segment.char_start, *(end for _, _, end in runs)]
        assert [start for _, start, _ in runs] == ends[:-1]
        assert ends[-1] == segment.char_end
    assert Parsed(page(report)).segments == [TEXT[s.char_start : s.char_end] for s in report.segments]
    assert wording.verdict(report).startswith(", ".join(report.found))
    assert view.shares_of(report)[None] == pytest.approx(1 - report.coverage, abs=0.02)
    digests = [value for _, value in wording.assumptions(report)]
    assert report.registry_digest in digests
    assert hashlib.sha256(TEXT.encode()).hexdigest() in digests


def test_text_is_shaded_by_the_posterior(report: Report) -> None:
    assert report.posterior is not None
    assert report.posterior_agents is not None
    starts = report.trace.starts if report.trace else None
    assert starts is not None
    columns = {report.agents[a]: k for k, a in enumerate(report.posterior_agents.tolist())}
    for segment in report.segments:
        for depth, start, end in view.runs(report, segment):
            if segment.agent is None:
                assert depth == 0
            else:
                tokens = (starts >= start) & (starts < end)
                values = report.posterior[tokens, columns[segment.agent]]
                assert ((1 + np.minimum(values * view.DEPTHS, view.DEPTHS - 1).astype(int)) == depth).all()


def test_curves_equal_window_means(report: Report) -> None:
    assert report.trace is not None
    curves = page_data(report)["curves"]
    assert len(curves["positions"]) == len(report.trace.scores) == (len(TEXT.split()) - 64) // 16 + 1
    assert curves["positions"][3] == len(" ".join(TEXT.split()[: 3 * 16 + 32])) + 1
    names = [agent["name"] for agent in page_data(report)["agents"]]
    for agent, values in curves["scores"]:
        column = report.trace.agents.index(names[agent])
        np.testing.assert_allclose(values, report.trace.scores[:, column], atol=6e-4)


def test_stated_level_would_remove_the_attribution(report: Report) -> None:
    segment = next(s for s in report.segments if s.agent is not None)
    sentences = " ".join(why(report, report.segments.index(segment)))
    among = float(re.search(r"if a chance of \D+ 1 in ([\d,]+) were too much", sentences)[1].replace(",", ""))  # type: ignore[index]
    assert segment.error is not None
    assert 1.05 / among >= segment.error
    if among < 1e6:
        stricter = reader(level=0.9 / among).audit(TEXT)
        same = next(s for s in stricter.segments if s.char_start == segment.char_start)
        assert same.agent is None


@pytest.mark.parametrize("decoder", DECODERS)
def test_page_of_every_decoder(decoder: str) -> None:
    for options in ({}, {"allow_unattributed": False}):
        data = page_data(reader(decoder=decoder, **options).audit(TEXT))
        assert data["curves"]["scores"]


def test_page_of_token_ids_and_of_empty_text() -> None:
    ids = reader().audit(token_ids=write(team(), (("planner", 200),)))
    data = page_data(ids)
    assert "there is no text to show" in page(ids)
    assert data["length"] == 201
    assert not any(view.runs(ids, segment) for segment in ids.segments)
    for empty in ("", "\ufeff"):
        nothing = reader().audit(empty)
        assert page_data(nothing)["segments"] == []
        assert wording.verdict(nothing) == "Nothing in this text could be read"


def test_excluded_parts_are_labelled() -> None:
    report = reader().audit(TEXT, skip=[(0, 300)])
    first = page_data(report)["segments"][0]
    assert first == {"agent": None, "title": "left out", "start": 0, "end": 300}


def test_hostile_text_is_escaped(hostile: Report) -> None:
    text = page(hostile)
    parsed = Parsed(text)
    assert parsed.tags.count("script") == 3
    assert "img" not in parsed.tags
    drawn = "".join(parsed.segments)
    assert "\u202e" not in drawn  # characters that change the direction of text are shown as symbols
    assert '</script><script>document.title="owned"' in drawn
    assert "{{data}} {{script}} & ' \" \u2400" in drawn


def test_page_loads_nothing_and_its_policy_allows_its_scripts_only(report: Report) -> None:
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
def test_page_of_5000_tokens_is_below_300_kilobytes(turn: int) -> None:
    registry = team()
    turns = [(name, turn) for name in ("planner", "critic", "writer", "planner") * (5000 // 4 // turn)]
    text = spell(write(registry, turns)).replace("7 ", "7\n")
    report = reader(registry).audit(text)
    assert len(report.segments) > 0.7 * len(turns)
    assert len(page(report).encode()) < 300_000


@pytest.mark.parametrize("windows", [3_747, 3_748, 3_749])
def test_curves_of_long_texts_are_thinned(windows: int) -> None:
    rng = np.random.default_rng(0)
    text = spell(rng.integers(1, 600, 64 + 16 * (windows - 1)).tolist())
    report = reader(allow_unattributed=False).audit(text)
    assert report.trace is not None
    assert len(report.trace.scores) == windows
    curves = view.curves(report)
    assert curves is not None
    assert len(curves["positions"]) == len(curves["margin"]) == 1 + (windows - 1) // 3
    assert all(len(values) == len(curves["positions"]) for _, values in curves["scores"])
    assert (np.diff([0, *curves["positions"], len(text)]) > 0).all()


def test_curves_of_many_agents_are_thinned(many: Callable[[int], Report]) -> None:
    curves = view.curves(many(64))
    assert curves is not None
    assert len(curves["scores"]) == 64
    assert sum(len(values) for _, values in curves["scores"]) <= view.VALUES


PARAGRAPHS: tuple[tuple[str, list[str]], ...] = (
    ("One.\n\nTwo,\nstill two.\n \n\n  Three.\n\n", ["One.", "Two,", "Three."]),
    ("\n\nOne.\r\n\r\nTwo.", ["One.", "Two."]),
    ("One,\nand no blank line:\n  three.\n", ["One,", "and ", "three."]),
    ("All in one", ["All "]),
    (" \n ", []),
    ("", []),
)


@pytest.mark.parametrize(("text", "begin"), PARAGRAPHS)
def test_paragraph_starts(text: str, begin: list[str]) -> None:
    starts = view.paragraph_starts(text)
    assert [text[start : start + len(words)] for start, words in zip(starts, begin, strict=True)] == begin


def test_paragraphs_have_numbers_and_agents() -> None:
    first, second = (
        "Planner's one.\n\nPlanner's two.\n\nPlanner's three, ",
        "Critic's three.\n\nCritic's four.",
    )
    base = report_of()
    segments = (
        dataclasses.replace(base.segments[0], char_end=len(first)),
        dataclasses.replace(
            base.segments[0], char_start=len(first), char_end=len(first + second), agent="critic"
        ),
    )
    report = dataclasses.replace(base, text=first + second, segments=segments)
    badges = re.findall(r'class="(name|paragraph)"[^>]*>([^<]*)<', page(report))
    assert [value for _, value in badges] == [
        *("1", "planner", "2", "planner", "3", "planner"),
        *("critic", "4", "critic"),
    ]
    assert [view.Page(report).row(segment)[0] for segment in segments] == ["1 to 3", "3 to 4"]
    assert Parsed(page(report)).segments == [first, second]


@pytest.mark.parametrize(
    ("level", "words"), [(0.2, "20%"), (0.05, "1 in 20"), (0.03, "1 in 33.33"), (1e-6, "1 in 1,000,000")]
)
def test_levels_in_words(level: float, words: str) -> None:
    report = dataclasses.replace(report_of(), level=level)
    assert f"at most {words} is reported to contain one" in wording.promise(report)
    assert f"wrote none of it is at most {words}." in wording.summary(report)


def test_certainty_in_words() -> None:
    base = report_of()
    sure, unattributed = base.segments

    def card(segment: Segment, **changes: Any) -> str:
        changed = dataclasses.replace(segment, **changes)
        return "\n".join(why(dataclasses.replace(base, segments=(changed,))))

    sentences = card(sure)
    assert (
        "very sure that planner wrote in here. The chance that it wrote none of this is about 1 in 1"
        in sentences
    )
    assert "How sure: sure that planner" in card(sure, error=0.004)
    assert "about 1 in 250," in card(sure, error=0.004)
    assert "less than 1 in 1,000,000," in card(sure, error=1e-9)
    assert "too weak" not in sentences
    weak = "By itself this passage is too weak to show it: the chance of as much without the mark is 37%."
    assert weak in card(sure, log_p=-1.0)
    assert "About 89 to 97% of these words are planner's." in sentences
    assert "Nearly all of these words are planner's." in card(sure, share_interval=(0.998, 1.0))
    assert "About 70% of these words" in card(sure, share_interval=(0.701, 0.699))
    assert "of these words" not in card(sure, share_interval=None)
    assert "of these words" not in card(unattributed)
    assert "perhaps it was critic" in card(unattributed)
    assert "better than chance" in card(unattributed, log_p=-0.1, error=0.9)
    assert "What would change that" in card(unattributed)


def test_end_interval_in_words(report: Report) -> None:
    first = report.segments[0]
    assert first.end_interval is not None
    low, high = first.end_interval
    assert 0 < high - low < 12
    sentences = why(report)
    assert f"It ends somewhere in “{' '.join(TEXT.split()[low:high])}”." in sentences
    assert not any("begins" in line for line in sentences)
    without = why(dataclasses.replace(report, trace=None))
    assert not any("ends somewhere" in line for line in without)  # the positions of its tokens are unknown


def test_page_is_deterministic_and_survives_pickling(report: Report, tmp_path: pathlib.Path) -> None:
    assert report.to_html(tmp_path / "report.html") == page(reader().audit(TEXT))
    for written in (report.to_html, report.to_json, report.to_prov):
        with pytest.raises(InputError, match="path: got int, expected a path"):
            written(5)  # type: ignore[arg-type]
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page(report) + "\n"
    assert page(pickle.loads(pickle.dumps(report))) == page(report)
    assert dataclasses.replace(report, trace=None).to_html()  # without the trace that only an audit has


def test_notebook_shows_escaped_text(report: Report, hostile: Report) -> None:
    text = report._repr_html_()
    assert "<script" not in text
    for segment in report.segments:
        assert TEXT[segment.char_start : segment.char_end] in text
    assert "<script" not in hostile._repr_html_()
    assert "<img" not in hostile._repr_html_()
    assert report_of(text=None)._repr_html_().startswith("<p><b>")


def test_plot_has_one_curve_per_agent(report: Report) -> None:
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


@pytest.mark.parametrize("name", ["$\\frac{$", "$x$ and $y", "_planner", "a_{b}^\\alpha"])
def test_plot_shows_names_literally(name: str, tmp_path: pathlib.Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    registry = team([name, "critic"])
    axes = reader(registry).audit(spell(write(registry, [(name, 200), ("critic", 200)]))).plot()
    axes.figure.savefig(tmp_path / "report.svg")
    axes.figure.savefig(tmp_path / "report.png")
    assert {text.get_text() for text in axes.get_legend().get_texts()} == {name, "critic"}
