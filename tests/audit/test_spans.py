"""Excluded parts of a text, known boundaries, and attribution of quotations."""

from __future__ import annotations

import functools
import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import iet
from iet import kernels
from iet.audit.align import TokenBatch
from iet.audit.evidence import log_tail
from iet.audit.parts import Parts
from iet.errors import InputError, ShapeError
from iet.marks.registry import Registry
from iet.marks.tokenizer import DEMO_SOURCE
from iet.report import LEFT_OUT, Report
from iet.report.terminal import marked_text
from tests.support.letters import LETTERS
from tests.support.reports import validator
from tests.support.teams import NAMES, byte_tokenizer, team
from tests.support.texts import DECODERS, TEAM, TEXT, agents_of, reader, spell, write


def joined(turns: list[tuple[str | None, int]], seed: int = 0) -> tuple[str, list[tuple[int, int]]]:
    """A text of turns, and the characters of each; the space before a turn belongs to it."""
    ids = write(TEAM, turns, seed)
    ends = [len(spell(ids[: 1 + count])) for count in itertools.accumulate(tokens for _, tokens in turns)]
    return spell(ids), list(itertools.pairwise([0, *ends]))


DIALOGUE, TURNS = joined([(None, 120), ("planner", 150), (None, 90), ("critic", 150), ("writer", 150)])
HUMAN = [TURNS[0], TURNS[2]]


def assert_covers(report: Report, text: str) -> None:
    """Segments cover all characters and tokens, including excluded ones."""
    char = token = 0
    for segment in report.segments:
        assert (segment.char_start, segment.start) == (char, token)
        char, token = segment.char_end or 0, segment.end or 0
        label = -1 if segment.agent is None else report.agents.index(segment.agent)
        expected = LEFT_OUT if segment.left_out else label
        assert set(report.token_agents[segment.start : segment.end].tolist()) <= {expected}
    assert (char, token) == (len(text), report.tokens)


def left_out(report: Report) -> list[tuple[int | None, int | None]]:
    return [(s.char_start, s.char_end) for s in report.segments if s.left_out]


# Excluded parts


@pytest.mark.parametrize("decoder", DECODERS)
def test_excluded_parts_are_segments_of_their_own_kind(decoder: str) -> None:
    report = reader(TEAM, decoder).audit(DIALOGUE, skip=HUMAN)
    assert left_out(report) == HUMAN
    assert_covers(report, DIALOGUE)
    # Turns end before a space, and the tokenizer has no token for it.
    assert report.left_out == 121 + 90 == (report.token_agents == LEFT_OUT).sum()
    assert report.tokens == 661
    assert report.scored == 661 - 211
    for segment in report.segments:
        if segment.left_out:
            assert (segment.agent, segment.best_guess, segment.log_p, segment.posterior) == (
                None,
                None,
                0.0,
                None,
            )
    runs = report.char_agents
    assert all(end <= low or start >= high for start, end, _ in runs for low, high in HUMAN)
    assert sum(end - start for start, end, _ in runs) == len(DIALOGUE) - sum(b - a for a, b in HUMAN)
    read = report.token_agents[report.token_agents != LEFT_OUT]
    assert report.coverage == pytest.approx((read >= 0).mean())
    truth = np.repeat([0, 1, 2], [150, 150, 150])
    assert (read == truth).mean() > (0.9 if decoder == "posterior" else 0.6)


def test_spans_and_skip_are_equivalent() -> None:
    auditor = reader()
    complement = [TURNS[1], (TURNS[3][0], TURNS[4][1])]
    texts = [
        auditor.audit(DIALOGUE, **parts).to_json()
        for parts in (
            {"skip": HUMAN},
            {"skip": [*HUMAN[::-1], (3, 9)]},
            {"spans": complement},
            {"spans": [*complement[::-1], TURNS[3]]},
            {"spans": [(0, len(DIALOGUE))], "skip": np.array(HUMAN)},
            {"spans": [TURNS[1], TURNS[2], TURNS[3], TURNS[4]], "skip": [TURNS[2]]},
        )
    ]
    assert texts == [texts[0]] * len(texts)
    assert auditor.audit(TEXT, skip=[]).to_json() == auditor.audit(TEXT).to_json()
    assert auditor.audit(TEXT, spans=[(0, len(TEXT))]).to_json() == auditor.audit(TEXT).to_json()


def test_tokens_and_characters_can_be_excluded() -> None:
    ids = write(TEAM, [(None, 120), ("planner", 150), (None, 90), ("critic", 150), ("writer", 150)])
    by_text = reader().audit(DIALOGUE, skip=HUMAN)
    by_ids = reader().audit(token_ids=ids, skip=[(0, 121), (271, 361)])
    assert np.array_equal(by_text.token_agents, by_ids.token_agents)
    for a, b in zip(by_text.segments, by_ids.segments, strict=True):
        assert (a.start, a.end, a.agent, a.log_p, a.start_interval, a.end_interval, a.left_out) == (
            *(b.start, b.end, b.agent, b.log_p, b.start_interval, b.end_interval, b.left_out),
        )
        assert (b.char_start, b.char_end) == (None, None)


def test_contexts_include_excluded_ids() -> None:
    """The first token of a turn is scored under the prompt's last ids, which its writer continued."""
    registry = team(n_gram=4)
    ids = write(registry, [(None, 50), ("planner", 300)])
    keys = registry.scoring_keys()
    text = spell(ids)
    cut = len(spell(ids[:53]))
    parts = Parts.of(len(text), None, [(0, cut)], None)
    reading = TokenBatch.of(registry.open_tokenizer().encode(text), parts, keys, True)
    assert reading.read_indices is not None
    assert reading.read_indices.tolist() == list(range(53, 353))
    assert reading.scored.all()
    assert np.array_equal(reading.scores(keys), kernels.score_tokens(ids, registry)[53:])
    report = reader(registry).audit(text, skip=[(0, cut)])
    assert [(s.agent, s.left_out) for s in report.segments] == [(None, True), ("planner", False)]


def test_a_token_across_a_cut_is_not_scored() -> None:
    words = TEXT.split(" ")
    start = len(" ".join(words[:100]) + " ")  # the first character of word 100
    at_start, inside = (reader().audit(TEXT, skip=[(0, at)]) for at in (start, start + 1))
    assert (at_start.left_out, at_start.scored) == (100, len(words) - 100)
    assert (inside.left_out, inside.scored) == (101, len(words) - 101)
    assert left_out(inside) == [(0, start + 1)]
    assert_covers(inside, TEXT)


def test_a_part_without_a_token_between_two_cuts_is_excluded() -> None:
    words = TEXT.split(" ")
    low, high = len(" ".join(words[:100])), len(" ".join(words[:101]))
    report = reader().audit(TEXT, skip=[(0, low), (low + 2, high), (len(TEXT) - 1, len(TEXT))])
    assert left_out(report) == [(0, high), (len(TEXT) - 1, len(TEXT))]
    assert_covers(report, TEXT)
    everything = reader().audit(TEXT, skip=[(1, len(TEXT) - 1)])
    assert left_out(everything) == [(0, len(TEXT))]
    assert (everything.coverage, everything.scored, everything.char_agents) == (0.0, 0, ())
    assert_covers(everything, TEXT)


def test_a_hand_over_across_an_excluded_part_counts() -> None:
    report = reader().audit(DIALOGUE, skip=HUMAN)
    starts = [s.start for s in report.segments if not s.left_out]
    assert [(t.start, t.source, t.target) for t in report.transitions.observed] == [
        (starts[1], "planner", "critic"),
        (starts[2], "critic", "writer"),
    ]
    text, turns = joined([("planner", 150), (None, 100), ("planner", 150)])
    same = reader().audit(text, skip=[turns[1]])
    assert [(s.agent, s.left_out) for s in same.segments] == [
        ("planner", False),
        (None, True),
        ("planner", False),
    ]
    assert same.transitions.observed == ()


def test_a_boundary_at_a_cut_is_certain() -> None:
    report = reader().audit(DIALOGUE, skip=HUMAN)
    segments = report.segments
    assert [s.left_out for s in segments] == [True, False, True, False, False]
    for left_segment, after in itertools.pairwise(segments[:4]):
        for inner in (left_segment.end_interval, after.start_interval):
            assert inner in (None, (left_segment.end, left_segment.end))
    assert segments[3].end_interval == segments[4].start_interval
    low, high = segments[4].start_interval or (0, 0)
    assert low <= segments[4].start <= high


def test_a_pair_in_an_excluded_part_makes_no_repeat() -> None:
    """An agent that says what the prompt said is evidence: its tokens were sampled under its key."""
    ids = write(TEAM, [("planner", 200)])[1:]
    quoted = reader().audit(token_ids=ids + ids, skip=[(0, len(ids))], boundaries=[])
    alone = reader().audit(token_ids=ids[-1:] + ids, skip=[(0, 1)], boundaries=[])  # the same context
    assert quoted.repeated == alone.repeated < 20
    assert [(s.agent, s.log_p) for s in quoted.segments] == [(s.agent, s.log_p) for s in alone.segments]
    assert quoted.segments[1].agent == "planner"
    assert quoted.segments[1].log_p < -50


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_tokens_are_read_unless_a_cut_touches_them(data: st.DataObject) -> None:
    length = data.draw(st.integers(0, 30))
    position = st.integers(0, length)
    pairs = st.lists(st.tuples(position, position).map(lambda pair: tuple(sorted(pair))), max_size=4)
    spans = data.draw(st.none() | pairs)
    skip, boundaries = data.draw(pairs), data.draw(st.none() | st.lists(position, max_size=4))
    parts = Parts.of(length, spans, skip, boundaries)
    gone = [
        (spans is not None and not any(a <= i < b for a, b in spans)) or any(a <= i < b for a, b in skip)
        for i in range(length)
    ]
    assert [any(a <= i < b for a, b in parts.left_out.tolist()) for i in range(length)] == gone
    tokens = np.array(list(itertools.pairwise(sorted({0, length, *data.draw(st.lists(position))}))))
    tokens = tokens.reshape(-1, 2)
    assert parts.read(tokens).tolist() == [not any(gone[a:b]) for a, b in tokens]
    assert parts.whole(tokens).tolist() == [
        not any(a < cut < b for cut in boundaries or ()) for a, b in tokens.tolist()
    ]
    parts = parts.without_gaps(tokens[parts.read(tokens), 0])
    covered = sorted([*parts.left_out.tolist(), *parts.audited.tolist()])
    assert [a for a, _ in covered] + [length] * bool(covered) == [0] * bool(covered) + [b for _, b in covered]
    if len(parts.left_out) and boundaries is None:
        for low, high in parts.audited.tolist():
            assert any(low <= a < b <= high for a, b in tokens.tolist())


@settings(max_examples=30, deadline=None)
@given(text=st.text(LETTERS, max_size=60), data=st.data())
def test_any_text_is_covered(text: str, data: st.DataObject) -> None:
    position = st.integers(0, len(text))
    pairs = st.lists(st.tuples(position, position).map(lambda pair: tuple(sorted(pair))), max_size=3)
    auditor = reader(bytes_team(), tokenizer=byte_tokenizer())
    parts = {"skip": data.draw(pairs), "boundaries": data.draw(st.none() | st.lists(position, max_size=3))}
    try:
        report = auditor.audit(text, **parts)
    except InputError as error:
        assert "lone surrogate" in str(error)  # noqa: PT017
        return
    if report.segments:
        at = 0
        for segment in report.segments:
            assert segment.char_start == at
            at = segment.char_end or 0
        assert at == len(text)


@functools.cache
def bytes_team() -> Registry:
    return team(tokenizer=byte_tokenizer())


def test_reports_with_excluded_parts_are_written_and_shown() -> None:
    report = reader().audit(DIALOGUE, skip=HUMAN)
    validator().validate(json.loads(report.to_json()))
    assert [s["left_out"] for s in report.to_dict()["segments"]] == [True, False, True, False, False]
    assert f"({report.scored} scored, {report.repeated} repeats, 211 left out)" in str(report)
    rows = [line.split() for line in str(report).splitlines() if "left out" in line and "scored" not in line]
    assert [row[3:] for row in rows] == [["left", "out"]] * 2
    output = marked_text(report)
    assert [line.split("]")[0] for line in output.splitlines()] == [
        "[left out",
        "[planner",
        "[left out",
        "[critic",
        "[writer",
    ]
    assert "".join(line.partition("] ")[2] for line in output.splitlines()) == DIALOGUE


# Boundaries that are known


@pytest.mark.parametrize("decoder", DECODERS)
def test_with_boundaries_each_piece_has_one_agent(decoder: str) -> None:
    boundaries = [start for start, _ in TURNS]
    report = reader(TEAM, decoder).audit(DIALOGUE, boundaries=boundaries)
    assert [(s.char_start, s.char_end) for s in report.segments] == TURNS
    assert agents_of(report) == [None, "planner", None, "critic", "writer"]
    assert_covers(report, DIALOGUE)
    for segment in report.segments:
        if decoder == "posterior":
            assert segment.start_interval == (segment.start, segment.start)
            assert segment.end_interval == (segment.end, segment.end)
    skipped = reader(TEAM, decoder, allow_unattributed=False).audit(
        DIALOGUE, boundaries=boundaries, skip=HUMAN
    )
    assert agents_of(skipped) == [None, "planner", None, "critic", "writer"]
    assert left_out(skipped) == HUMAN
    assert [(t.source, t.target) for t in skipped.transitions.observed] == [
        ("planner", "critic"),
        ("critic", "writer"),
    ]


def test_pieces_of_one_agent_stay_apart() -> None:
    text, turns = joined([("planner", 100), ("planner", 100)])
    report = reader().audit(text, boundaries=[turns[1][0]])
    assert [(s.char_start, s.char_end, s.agent) for s in report.segments] == [
        (*turn, "planner") for turn in turns
    ]
    assert len(report.char_agents) == 1
    assert report.transitions.observed == ()


def test_evidence_of_a_piece_is_corrected_for_keys_and_pieces_alone() -> None:
    report = reader().audit(DIALOGUE, boundaries=[start for start, _ in TURNS])
    ids = np.array([int(word[1:]) for word in DIALOGUE.split(" ")])
    scores = kernels.score_tokens(ids, TEAM)
    pairs = kernels.pair_numbers(ids, TEAM)
    for segment in report.segments:
        here = pairs[segment.start : segment.end]
        distinct = np.unique(here, return_index=True)[1][int(here.min() < 0) :]  # the first is unscored: -1
        column = report.agents.index(str(segment.best_guess))
        total = scores[segment.start : segment.end][distinct, column].sum(dtype=np.float64)
        tail = log_tail(float(total), len(distinct), TEAM.profile.family)
        assert segment.log_p == pytest.approx(min(0.0, tail + math.log(3 * 5)), abs=1e-6)


def test_p_values_of_pieces_are_uniform_on_unmarked_text() -> None:
    """One key and one piece leave nothing to correct for: Kolmogorov and Smirnov's test at 1e-4."""
    registry = team(["planner"], vocab_size=600)
    auditor = iet.Auditor(registry)
    draw = np.random.default_rng(5)
    p = np.sort(
        [
            math.exp(auditor.audit(token_ids=draw.integers(0, 600, 80), boundaries=[]).segments[0].log_p)
            for _ in range(400)
        ]
    )
    steps = np.arange(401) / 400
    distance = max(np.abs(p - steps[:-1]).max(), np.abs(p - steps[1:]).max())
    assert distance < 2.23 / math.sqrt(400)


@pytest.mark.parametrize("decoder", DECODERS)
def test_pieces_are_named_among_many_keys_as_among_few(decoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    boundaries = [start for start, _ in TURNS]
    for options in ({"boundaries": boundaries}, {"skip": HUMAN}):
        reports = []
        for limit in (64, 2):
            monkeypatch.setattr("iet.audit.plan.ALL_KEYS", limit)
            reports.append(reader(TEAM, decoder).audit(DIALOGUE, **options))  # type: ignore[arg-type]
        few, many = reports
        for a, b in zip(few.segments, many.segments, strict=True):
            assert (a.char_start, a.char_end, a.agent, a.best_guess) == (
                *(b.char_start, b.char_end, b.agent, b.best_guess),
            )
            assert a.log_p == pytest.approx(b.log_p)


def test_a_token_that_a_boundary_cuts_is_in_no_piece() -> None:
    words = TEXT.split(" ")
    start = len(" ".join(words[:100]) + " ")
    report = reader().audit(TEXT, boundaries=[start + 1])
    assert report.scored == len(words) - 2  # the first has no context
    assert [s.char_end for s in report.segments] == [start + 1, len(TEXT)]
    empty = reader().audit(TEXT, boundaries=[start + 1, start + 2])
    assert [s.char_end for s in empty.segments] == [start + 1, start + 2, len(TEXT)]
    assert (empty.segments[1].agent, empty.segments[1].log_p) == (None, 0.0)
    assert empty.segments[1].start == empty.segments[1].end == 101


def test_boundaries_at_the_ends_and_twice_change_nothing() -> None:
    auditor = reader()
    once = auditor.audit(TEXT, boundaries=[700, 1500]).to_json()
    assert auditor.audit(TEXT, boundaries=[len(TEXT), 1500, 0, 700, 700]).to_json() == once


def test_given_strengths_are_used_for_pieces() -> None:
    report = reader(strengths=[1.0, 2.0, 3.0]).audit(DIALOGUE, boundaries=[TURNS[1][0]])
    assert report.strengths == dict(zip(NAMES, [1.0, 2.0, 3.0], strict=True))


# Rejected arguments


@pytest.mark.parametrize(
    ("parts", "error", "message"),
    [
        ({"spans": [(0, 10_000)]}, InputError, r"spans: got \(0, 10000\), expected \(start, end\) with 0 <="),
        ({"skip": [(-1, 5)]}, InputError, r"skip: got \(-1, 5\)"),
        ({"skip": [(7, 5)]}, InputError, r"skip: got \(7, 5\)"),
        ({"boundaries": [-(10**20)]}, InputError, f"boundaries: got -{10**20}, expected"),
        ({"boundaries": [5, 99_999]}, InputError, "boundaries: got 99999, expected 0 to"),
        ({"boundaries": [-3]}, InputError, "boundaries: got -3"),
        ({"skip": [(0, 10**20)]}, InputError, "skip: got 100000000000000000000, expected .* of 64 bits"),
        ({"spans": [(0, 2**63)]}, InputError, "spans: got 9223372036854775808, expected .* of 64 bits"),
        ({"boundaries": [1, -(10**20)]}, InputError, "boundaries: got -100000000000000000000, expected"),
        ({"spans": [1, 2]}, ShapeError, r"spans: got int64 \[2\], expected \(start, end\) pairs"),
        ({"spans": [(0, 1, "planner")]}, ShapeError, "spans: got"),
        ({"skip": [(0.5, 2.0)]}, ShapeError, "skip: got float64"),
        ({"skip": [(0, 1), (2,)]}, ShapeError, "skip: got rows of different lengths"),
        ({"boundaries": [(1, 2)]}, ShapeError, r"boundaries: got int64 \[1, 2\], expected integers \[B\]"),
        ({"boundaries": [1.5]}, ShapeError, "boundaries: got float64"),
    ],
)
def test_rejects_invalid_parts(parts: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        reader().audit(TEXT, **parts)
    with pytest.raises(InputError, match="text: got int, expected str"):
        reader().audit(5, **{"skip": [(0, 1)]})  # type: ignore[arg-type]


# The shipped model


@pytest.fixture(scope="module")
def talk() -> tuple[Registry, Any]:
    """Two turns of agents, with text in between that the same model wrote without a mark."""
    pytest.importorskip("transformers")
    from iet.demo.conversation import converse, load_model

    registry = team(("planner", "critic"), tokenizer=DEMO_SOURCE, kappa=1.5)
    rounds = [["planner", None, "critic", None]]
    model, tokenizer = load_model()
    return registry, converse(model, tokenizer, registry, rounds, turn_tokens=(240, 260), seed=3)


def test_human_text_among_the_agents_is_found_unattributed(talk: tuple[Registry, Any]) -> None:
    registry, conversation = talk
    report = iet.Auditor(registry).audit(conversation.text)
    shares = {agent: [0, 0] for agent in (None, *report.agents)}
    for start, end, agent in conversation.spans:
        for low, high, named in report.char_agents:
            overlap = max(0, min(end, high) - max(start, low))
            shares[agent][0] += overlap
            shares[agent][1] += overlap * (named == agent)
    right, total = shares[None][1], shares[None][0]
    assert right / total > 0.85
    skipped = iet.Auditor(registry).audit(
        conversation.text, skip=[(s.start, s.end) for s in conversation.spans if s.agent is None]
    )
    assert [s.left_out for s in skipped.segments].count(True) == 2
    pieces = iet.Auditor(registry).audit(
        conversation.text, boundaries=[span.start for span in conversation.spans]
    )
    assert agents_of(pieces) == [span.agent for span in conversation.spans]


def test_a_verbatim_quotation_is_attributed_to_the_quoted_agent(talk: tuple[Registry, Any]) -> None:
    """Design §3: whose token is it? The agent's whose key was active when it was first sampled."""
    registry, conversation = talk
    planner, human, *_ = (conversation.text[span.start : span.end] for span in conversation.spans)
    quoted = human + " As the planner put it: \u201c" + planner.strip() + "\u201d " + human[::-1]
    report = iet.Auditor(registry).audit(quoted)
    start = quoted.index(planner.strip())
    inside = [run for run in report.char_agents if run.agent is not None]
    assert {run.agent for run in inside} == {"planner"}
    overlap = sum(
        min(run.end, start + len(planner)) - max(run.start, start)
        for run in inside
        if run.end > start and run.start < start + len(planner)
    )
    assert overlap / len(planner) > 0.85
    assert "A verbatim quotation is attributed to the quoted" in " ".join(str(report).split())
