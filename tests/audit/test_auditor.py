"""The audit, from text to report: its findings and its offsets."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

import iet
from iet import kernels
from iet.audit.certainty import temper_posteriors
from iet.audit.evidence import log_tail
from iet.errors import InputError, TokenizerMismatch
from iet.native.pairs import repeats
from tests.support.letters import LETTERS
from tests.support.teams import NAMES, WORD_TOKENIZER, WORDS, byte_tokenizer, team, word_tokenizer
from tests.support.texts import DECODERS, IDS, TEAM, TEXT, agents_of, assert_tiles, reader, spell, write


@pytest.mark.parametrize("decoder", DECODERS)
def test_agents_are_found_in_order(decoder: str) -> None:
    text = spell(write(TEAM, [("planner", 400), ("critic", 400)]))
    report = reader(TEAM, decoder).audit(text)
    assert [agent for agent, _ in itertools.groupby(filter(None, agents_of(report)))] == ["planner", "critic"]
    gap = np.flatnonzero(report.token_agents < 0)
    if decoder == "window" and len(gap):  # its windows hold both agents there: no passage is seen
        assert 401 - 64 <= gap.min() <= gap.max() <= 401 + 64
        assert report.transitions.observed == ()
    else:
        assert agents_of(report) == ["planner", "critic"]
        assert [(t.source, t.target) for t in report.transitions.observed] == [("planner", "critic")]
    assert_tiles(report, text)
    assert (report.token_agents == np.repeat([0, 1], [401, 400])).mean() > 0.9


def test_unmarked_text_between_agents_is_left_out() -> None:
    report = reader().audit(TEXT)
    assert [agent for agent, _ in itertools.groupby(agents_of(report))] == [
        "planner",
        "critic",
        None,
        "writer",
    ]
    assert_tiles(report, TEXT)
    truth = np.repeat([0, 1, -1, 2], [151, 150, 200, 150])
    assert (report.token_agents == truth).mean() > 0.85


def test_token_ids_give_the_tokens_of_the_text_and_no_characters() -> None:
    auditor = reader()
    by_text, by_ids = auditor.audit(TEXT), auditor.audit(token_ids=IDS)
    assert np.array_equal(by_ids.token_agents, by_text.token_agents)
    for a, b in zip(by_ids.segments, by_text.segments, strict=True):
        assert (a.char_start, a.char_end) == (None, None)
        assert (a.start, a.end, a.agent, a.log_p) == (b.start, b.end, b.agent, b.log_p)
        assert b.char_start is not None
        assert TEXT[b.char_start : b.char_end].split() == [f"w{i}" for i in IDS[b.start : b.end]]
    assert (by_ids.text, by_ids.seam_share) == (None, None)
    with pytest.raises(InputError, match="only token ids"):
        by_ids.char_agents  # noqa: B018


def test_token_ids_need_no_tokenizer() -> None:
    registry = team(vocab_size=WORDS, kappa=2.0)
    ids = write(registry, [("critic", 200)])
    assert agents_of(iet.Auditor(registry).audit(token_ids=ids)) == ["critic"]
    with pytest.raises(TokenizerMismatch, match="token ids only"):
        iet.Auditor(registry).audit("w1 w2")


@pytest.mark.parametrize("decoder", DECODERS)
def test_forced_choice_leaves_no_token_unattributed(decoder: str) -> None:
    unmarked = spell(write(TEAM, [(None, 300)]))
    report = reader(TEAM, decoder, allow_unattributed=False).audit(unmarked)
    assert report.coverage == 1
    assert None not in agents_of(report)
    assert reader(TEAM, decoder).audit(unmarked).coverage == 0


def test_evidence_decides_and_the_posterior_is_that_of_the_segment() -> None:
    report = reader(level=0.01).audit(TEXT)
    assert report.posterior.shape == (len(IDS), 3)
    assert report.posterior_agents.tolist() == [0, 1, 2]
    assert (report.posterior >= 0).all()
    assert (report.posterior.sum(axis=1) <= 1 + 1e-5).all()
    evidence = np.array([[report.evidence[name] for name in report.agents]])
    posterior = temper_posteriors(report.posterior, np.zeros(len(IDS), np.int64), evidence)
    for segment in report.segments:
        assert (segment.agent is not None) == (segment.log_p <= math.log(0.01))
        column = report.agents.index(segment.best_guess)
        span = posterior[segment.start : segment.end, column]
        assert segment.posterior == pytest.approx(span.mean(dtype=np.float64), abs=1e-6)
        assert segment.start_interval[0] <= segment.start <= segment.start_interval[1]
        assert segment.end_interval[0] <= segment.end <= segment.end_interval[1]
    ours = [segment.posterior for segment in report.segments if segment.agent]
    assert min(p for p in ours if p is not None) > 0.8
    assert set(report.strengths) == set(NAMES)


def test_a_stricter_level_attributes_no_more() -> None:
    text = spell(write(team(kappa=0.8), [("planner", 120), ("critic", 60), ("writer", 40)], seed=3))
    registry = team(kappa=0.8)
    reports = [reader(registry, level=level).audit(text) for level in (0.5, 1e-2, 1e-4, 1e-300)]
    shares = [report.coverage for report in reports]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[-1] == 0


def test_repeating_a_text_adds_no_evidence() -> None:
    auditor = reader()
    once, thrice = auditor.audit(token_ids=IDS[:150]), auditor.audit(token_ids=IDS[:150] * 3)
    # A segment's inside on its grid is another one now, but never holds more than all distinct pairs do.
    pairs = kernels.pair_numbers(IDS[:150], TEAM)
    distinct = np.flatnonzero((pairs >= 0) & ~repeats(pairs))
    totals = kernels.score_tokens(IDS[:150], TEAM)[distinct].sum(axis=0, dtype=np.float64)
    everything = log_tail(float(totals.max()), len(distinct), TEAM.profile.family)
    assert min(s.log_p for s in thrice.segments) >= everything
    assert min(s.log_p for s in once.segments) >= everything
    assert thrice.repeated >= 2 * 149


def test_a_report_names_its_keys_after_the_registry_changes() -> None:
    registry = team()
    auditor, digest = reader(registry), registry.digest
    registry.add("late")
    report = auditor.audit(TEXT)
    assert (report.registry_digest, report.agents) == (digest, NAMES)


@pytest.mark.parametrize("decoder", DECODERS)
def test_one_agent_alone_is_found(decoder: str) -> None:
    registry = team(["planner"])
    ids = write(registry, [("planner", 200)])
    assert agents_of(iet.Auditor(registry, decoder).audit(token_ids=ids)) == ["planner"]
    assert iet.Auditor(registry, decoder).audit(token_ids=write(registry, [(None, 200)])).coverage == 0


def test_rotated_out_keys_leave_transitions_unchanged() -> None:
    registry = team()
    ids = write(registry, [("planner", 250), ("critic", 250)])
    earlier = reader(registry).audit(token_ids=ids).transitions
    for number in range(12):
        registry.rotate("planner", secret=bytes([100 + number]) * 32)
        registry.rotate("writer", secret=bytes([200 + number]) * 32)
    after = reader(registry).audit(token_ids=ids).transitions
    assert [t[:3] for t in after.observed] == [t[:3] for t in earlier.observed]
    # The planner wrote under its first key; the writer, who wrote nothing, is read under its last one only.
    assert after.observed[0].confidence == pytest.approx(earlier.observed[0].confidence, abs=0.03)


@pytest.mark.parametrize("decoder", ["cusum", "window"])
def test_the_level_of_the_report_is_that_of_its_decoder(decoder: str) -> None:
    ids = write(TEAM, [("planner", 70), (None, 70), ("critic", 70)])
    strict, lax = (reader(decoder=decoder, level=level).audit(token_ids=ids) for level in (1e-12, 0.4))
    assert strict.coverage < lax.coverage


# Characters


@pytest.mark.parametrize("decoder", ["posterior", "window"])
@pytest.mark.parametrize(
    "backend",
    [byte_tokenizer(), byte_tokenizer(normalizers.NFKC()), word_tokenizer()],
    ids=["bytes", "NFKC", "words"],
)
def test_runs_tile_any_text(decoder: str, backend: tokenizers.Tokenizer) -> None:
    # A window of one token and forced choice: boundaries everywhere, also inside characters.
    options = {"window": 1} if decoder == "window" else {}
    auditor = reader(
        team(tokenizer=backend, kappa=2.0), decoder, tokenizer=backend, allow_unattributed=False, **options
    )

    @settings(max_examples=60, deadline=None)
    @given(st.text(LETTERS, max_size=120) | st.text("aé 漢😀\u0301\u200b\ufe0f\n\tﬁ", max_size=200))
    def check(text: str) -> None:
        report = auditor.audit(text)
        assert_tiles(report, text)
        assert 0 <= report.seam_share <= 1

    check()


@pytest.mark.parametrize("invisible", ["\u200b", "\ufeff", "\ufe0f", "\u2060\u00ad"])
@pytest.mark.parametrize("every", [1, 3])
def test_invisible_characters_change_no_attribution(invisible: str, every: int) -> None:
    pieces = [TEXT[i : i + every] for i in range(0, len(TEXT), every)]
    text = invisible.join(pieces)
    clean, with_invisible = reader().audit(TEXT), reader().audit(text)
    assert with_invisible.invisible == len(text) - len(TEXT) > 0
    assert np.array_equal(with_invisible.token_agents, clean.token_agents)
    assert_tiles(with_invisible, text)
    for a, b in zip(clean.segments, with_invisible.segments, strict=True):
        assert (a.agent, a.log_p) == (b.agent, b.log_p)
        part = text[b.char_start : b.char_end]
        for character in invisible:
            part = part.replace(character, "")
        assert part == TEXT[a.char_start : a.char_end]


def test_a_text_of_invisible_characters_is_unattributed() -> None:
    report = reader().audit("\u200b\ufeff")
    assert (report.tokens, report.segments, report.invisible) == (0, (), 2)
    assert report.char_agents == ((0, 2, None),)


def test_the_tokens_at_a_boundary_are_the_uncertain_ones() -> None:
    report = reader().audit(TEXT)
    encoding = iet.marks.tokenizer.Tokenizer(WORD_TOKENIZER).encode(TEXT)
    assert len(report.segments) > 1
    touching = [t for segment in report.segments[1:] for t in (segment.start - 1, segment.start)]
    length = sum(int(encoding.char_ends[t] - encoding.char_starts[t]) for t in touching)
    assert report.seam_share == pytest.approx(length / len(TEXT))
    assert reader().audit("w1 w2 w3").seam_share == 0


def test_ten_megabytes_are_audited() -> None:
    filler = " w1 w2 incomprehensibilities w3 incomprehensibilities"
    text = TEXT + filler * ((10_000_000 - len(TEXT)) // len(filler))
    assert len(text) > 9_999_000
    report = reader().audit(text)
    assert report.tokens > 900_000
    assert len(IDS) - 10 < report.scored - report.repeated < len(IDS) + 10
    assert_tiles(report, text)
    assert [agent for agent in agents_of(report)[:4] if agent] == ["planner", "critic", "writer"]
    start, end, agent = report.char_agents[-1]
    assert (agent, end - start > 9_900_000) == (None, True)


# Short texts


@pytest.mark.parametrize("decoder", DECODERS)
def test_an_empty_text_has_a_report(decoder: str) -> None:
    for report in (reader(TEAM, decoder).audit(""), reader(TEAM, decoder).audit(token_ids=[])):
        assert (report.tokens, report.scored, report.coverage, report.segments) == (0, 0, 0.0, ())
        assert report.transitions.observed == ()
        assert report.token_agents.shape == (0,)
    assert reader(TEAM, decoder).audit("").char_agents == ()


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("tokens", [1, 2, 3, 4])
def test_a_text_shorter_than_the_n_gram_is_unattributed(decoder: str, tokens: int) -> None:
    registry = team(n_gram=4)
    text = spell(range(5, 5 + tokens))
    report = reader(registry, decoder).audit(text)
    assert (report.tokens, report.scored) == (tokens, max(0, tokens - 3))
    assert agents_of(report) == [None]
    assert report.segments[0].log_p == 0
    assert_tiles(report, text)


def test_ids_that_carry_no_mark_are_not_scored() -> None:
    ids = [5, -1, 6, 7, WORDS, 8, 0, 9, 10, 1 << 40, 11]
    report = reader().audit(token_ids=ids)
    assert (report.tokens, report.scored) == (len(ids), 2)  # (6, 7) and (9, 10)
