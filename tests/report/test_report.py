"""The report: its JSON form, its runs of characters, and its facts in a terminal."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import pathlib
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import iet
from iet.decoding.transitions import Transitions
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from iet.report import REPORT_SCHEMA, Report, Span, terminal
from iet.report.view import AGENTS, agents, curves, style_of
from iet.report.wording import limits, p_value
from tests.support.reports import TEXT, report_of, validator


def empty() -> Report:
    return report_of(
        "",
        segments=(),
        tokens=0,
        scored=0,
        repeated=0,
        seam_share=0.0,
        transitions=Transitions((), ()),
        labels=np.zeros(0, dtype=np.int32),
        posterior=np.zeros((0, 2), dtype=np.float32),
    )


def audited() -> Iterator[Report]:
    """Reports that audits made, of every kind."""
    registry = Registry.create(None, vocab_size=500, scheme=Scheme(k_p="per-agent"))
    registry.add("planner")
    registry.add("critic")
    ids = np.random.default_rng(0).integers(0, 500, 300)
    for decoder in ("posterior", "cusum", "window"):
        for forced in (True, False):
            yield iet.Auditor(registry, decoder, allow_unattributed=not forced).audit(token_ids=ids)
    yield iet.Auditor(registry, "cusum", window=np.int64(32), tau=np.float32(0.5)).audit(token_ids=ids)
    yield iet.Auditor(registry).audit(token_ids=[])


# JSON


def test_reports_fit_the_schema() -> None:
    check = validator()
    assert check.schema["title"] == REPORT_SCHEMA
    assert check.schema["properties"]["schema"]["const"] == REPORT_SCHEMA
    assert check.schema["$id"] == f"urn:uuid:{uuid.UUID(check.schema['$id'])}"  # a name, not a web address
    for report in (report_of(), report_of(None), empty(), *audited()):
        for text in (True, False):
            check.validate(json.loads(report.to_json(text=text)))


def test_reports_of_engine_keys_fit_the_schema() -> None:
    for keys in (
        iet.EngineKeys("vllm-gumbel", {"planner": 42, "critic": 43}),
        iet.EngineKeys("vllm-gumbel", {"planner": 42}, prf="hmac_sha256"),
        iet.EngineKeys("vllm-red-green", {"planner": 42}),
        iet.EngineKeys("vllm-synthid", {"planner": 42}),
        iet.EngineKeys("vllm-sbw", {"planner": 42}),
        iet.EngineKeys("sglang-gumbel", {"planner": "2a"}),
        iet.EngineKeys("kgw", {"planner": 15485863}, vocab_size=1000),
        iet.EngineKeys("kgw", {"planner": 15485863}, vocab_size=1000, seeding_scheme="selfhash"),
        iet.EngineKeys("synthid", {"planner": list(range(1, 31))}),
        iet.WaterfallKeys({"planner": 42}, vocab_size=1000),
    ):
        content = json.loads(iet.Auditor(keys).audit(token_ids=np.arange(200) % 97).to_json())
        assert [error.message for error in validator().iter_errors(content)] == []
        assert content["profiles"][0]["scheme"] == keys.profile.scheme.to_dict()


def change(data: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed: Any = json.loads(json.dumps(data))
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), "iet.report/0"),
        (("secret",), "00"),
        (("tokens",), -1),
        (("level",), 1.0),
        (("segments", 0, "log_p"), 0.5),
        (("segments", 0, "secret"), "00"),
        (("segments", 0, "start_interval"), [1]),
        (("segments", 0, "start_interval"), [1, 2, 3]),
        (("profiles", 0, "subkey"), "00"),
        (("profiles", 0, "scheme", "n_gram"), 1),
        (("transitions", "bitmask"), 2),
        (("transitions", "adjacency", 0, 0), 2),
        (("text_sha256",), "none"),
    ],
)
def test_schema_rejects_invalid_reports(path: tuple[Any, ...], value: Any) -> None:
    assert not validator().is_valid(change(report_of().to_dict(), path, value))


def test_json_equals_the_report() -> None:
    report = report_of()
    data = json.loads(report.to_json())
    assert data["text"] == TEXT
    assert data["coverage"] == pytest.approx(60 / 90)
    assert data["segments"][0] == json.loads(json.dumps(dataclasses.asdict(report.segments[0])))
    assert data["transitions"]["adjacency"] == [[0, 1], [0, 0]]
    assert int(data["transitions"]["bitmask"], 16) == report.transitions.bitmask == 2
    assert set(data["decoder"]["options"]) == set()


def test_text_can_be_omitted() -> None:
    full, without = report_of().to_dict(), report_of().to_dict(text=False)
    assert without.pop("text") is None
    assert full.pop("text") == TEXT
    assert without == full
    assert "disagrees" not in report_of().to_json(text=False)


def test_to_json_replaces_the_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "report.json"
    written = report_of().to_json(path)
    assert path.read_text(encoding="utf-8") == written + "\n"
    path.write_text("an older report, longer than the new one" * 1000)
    assert json.loads(report_of().to_json(path, text=False)) == json.loads(path.read_text(encoding="utf-8"))
    assert os.listdir(tmp_path) == ["report.json"]


# Characters


def test_char_agents_merges_adjacent_segments() -> None:
    first, second = report_of().segments
    third = dataclasses.replace(second, char_start=30, start=70)
    split = (first, dataclasses.replace(second, char_end=30, end=70), third)
    assert report_of(segments=split).char_agents == ((0, 22, "planner"), (22, len(TEXT), None))


# The terminal


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def printed(report: Report, **options: Any) -> str:
    file = io.StringIO()
    terminal.show(report, file, **options)
    return file.getvalue()


def test_terminal_shows_segments_agents_and_caveats(rich: bool, wide: None) -> None:
    output = printed(report_of())
    for part in (
        "planner",
        "unattributed (perhaps critic)",
        "1.6e-109",
        "0-22",
        "60-90",
        "89 to 97%",
        "naïve 🙂",
    ):
        assert part in output
    for part in ("90 tokens (89 scored, 3 repeats)", "2 segments", "67% attributed at level 0.01"):
        assert part in output
    assert "planner → critic ×1 (0.75)" in output
    assert "agents found in the text at level 0.01: planner (p 5.9e-105)" in output
    assert "error is at most 0.01" in output
    by_sums = tuple(dataclasses.replace(s, posterior=None, error=None) for s in report_of().segments)
    assert "false-discovery rate of 0.01" in printed(report_of(segments=by_sums, decoder="cusum"))
    assert "not necessarily every word of them" in output
    assert "[planner] The plan" in output
    assert "[?]" in output
    assert "\x1b" not in output


def test_terminal_shows_reports_without_text_or_segments(rich: bool, wide: None) -> None:
    assert "transitions: none" in printed(empty())
    assert "only 0 scored tokens" in printed(empty())
    by_ids = printed(report_of(None))
    assert "characters, " not in by_ids
    assert "unattributed (perhaps critic)" in by_ids
    nothing = printed(report_of(log_p=-1.3, evidence={"planner": -1.3, "critic": 0.0}, decoys=99))
    assert "agents found in the text at level 0.01: none; lowest p 0.273" in nothing
    assert "99 decoy keys" in nothing
    assert "a segment is attributed" not in printed(report_of(allow_unattributed=False))
    assert " · forced choice\n" in printed(report_of(allow_unattributed=False))


def test_str_omits_the_text() -> None:
    assert "planner → critic" in str(report_of())
    assert "disagrees" not in str(report_of())
    assert "transitions: none" in str(empty())


def test_names_are_not_markup(rich: bool, wide: None) -> None:
    names = ("[red]", "[/x] :smile:")
    output = printed(report_of(agents=names))
    assert "[red]" in output
    assert "unattributed (perhaps [/x] :smile:)" in output
    assert "[b]disagrees[/b]" in output


def test_terminal_colours_equal_the_pages() -> None:
    names = tuple(f"agent {i}" for i in range(20))
    first, second = report_of().segments
    occur = tuple(dataclasses.replace(first, agent=names[i]) for i in (7, 0, *range(1, 7)))
    colours = terminal.styles(report_of(agents=names, segments=(*occur, second)))
    listed = agents(report_of(agents=names, segments=(*occur, second)))
    assert colours == {name: style_of(i)[0] for i, name in enumerate(listed[: len(occur)])}
    assert colours[names[7]] != colours[names[0]]
    assert colours[names[7]] == colours[names[6]]  # the eighth has the first one's again


def test_comparison_shows_each_turns_agents() -> None:
    file = io.StringIO()
    turns = [Span(0, 22, "planner"), Span(22, len(TEXT), "critic"), Span(len(TEXT), len(TEXT), None)]
    terminal.comparison(report_of(), turns, file)
    lines = file.getvalue().splitlines()
    assert "planner 100%" in lines[1]
    assert "unattributed 100%" in lines[2]
    assert "none" in lines[3]


@pytest.mark.parametrize(
    ("log_p", "expected"),
    [
        (0.0, "1"),
        (math.log(0.5), "0.5"),
        (math.log(0.0123), "0.0123"),
        (math.log(3.2e-5), "3.2e-5"),
        (math.log(9.96e-5), "1.0e-4"),  # not 10.0e-5
        (-5000.0, "3.4e-2172"),
        (-1e7, None),
    ],
)
def test_format_of_p_values(log_p: float, expected: str | None) -> None:
    written = p_value(log_p)
    assert expected in (None, written)
    mantissa, _, exponent = written.partition("e")
    assert 0 < float(mantissa) < 10
    value = math.log(float(mantissa)) + int(exponent or 0) * math.log(10)
    assert value == pytest.approx(log_p, abs=0.06)


def test_a_text_that_copies_itself_is_told() -> None:
    words = [f"word{number}" for number in np.random.default_rng(0).integers(0, 1000, 60)]
    told = [
        [line for line in limits(report_of(" ".join(text))) if "stand earlier" in line]
        for text in (words * 4, words, words[:7] * 4)  # the last one is too short
    ]
    assert told[1:] == [[], []]
    (line,) = told[0]
    assert line.startswith("74% of the words stand earlier in the text, in the same order. A model")


def test_weak_guess_is_not_named() -> None:
    report = report_of()
    last = dataclasses.replace(report.segments[-1], log_p=-0.1, error=0.6)
    shown_report = str(dataclasses.replace(report, segments=(*report.segments[:-1], last)))
    assert "unattributed" in shown_report
    assert "perhaps" not in shown_report


def test_short_text_of_many_agents() -> None:
    registry = Registry.create(None, tokenizer="iet:demo", scheme=Scheme(family="gumbel"))
    for number in range(200):
        registry.add(f"agent-{number}", secret=bytes([number]) * 32)
    drawn = 0
    for text in ("A short text of a few words, no more than that.", "We found a flaw, and it is not small."):
        report = iet.Auditor(registry).audit(text)
        drawn_curves = curves(report)
        for index, _ in [] if drawn_curves is None else drawn_curves["scores"]:
            assert 0 <= index < len(agents(report)) == AGENTS
            drawn += 1
        assert "agent-" in str(report)
        assert "agent-" in report.to_html()
    assert drawn
