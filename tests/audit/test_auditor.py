"""The audit, from text to report: what it finds, what it refuses, and where its offsets point."""

from __future__ import annotations

import copy
import itertools
import json
import math
import pathlib
import pickle
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, trainers

import iet
from iet import kernels
from iet.audit.evidence import log_tail
from iet.errors import InputError, RegistryError, ShapeError, TokenizerMismatch
from iet.marks.keys import derive_subkey
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from iet.native.pairs import repeats

WORDS = 600
NAMES = ("planner", "critic", "writer")
DECODERS = ("posterior", "cusum", "window")


def word_tokenizer(words: int = WORDS) -> tokenizers.Tokenizer:
    """One id per word, so that a text has exactly the ids it was made of."""
    vocabulary = {"<unk>": 0, **{f"w{i}": i for i in range(1, words)}}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["<unk>"])
    return backend


def byte_tokenizer(normalizer: Any = None) -> tokenizers.Tokenizer:
    """A byte-level BPE, which spells any text, many characters with several tokens."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(["the planner hands the plan to the critic"] * 5, trainer)
    return backend


WORD_TOKENIZER = word_tokenizer()


def team(names: Sequence[str] = NAMES, **options: Any) -> Registry:
    scheme = Scheme(kappa=options.pop("kappa", 2.0), n_gram=options.pop("n_gram", 2))
    registry = Registry.create(None, **(options or {"tokenizer": WORD_TOKENIZER}), scheme=scheme)
    for name in names:
        registry.add(name, secret=name.encode().ljust(32, b"."))
    return registry


TEAM = team()


def write(registry: Registry, turns: Sequence[tuple[str | None, int]], seed: int = 0) -> list[int]:
    """Ids as a model with bland preferences would sample them under the agents' marks."""
    draw = np.random.default_rng(seed)
    words = registry.profile.scheme.n_gram - 1
    ids = draw.integers(1, WORDS, words).tolist()
    for agent, tokens in turns:
        slots = [-1 if agent is None else registry.slot(agent)]
        for _ in range(tokens):
            logits = draw.normal(size=(1, WORDS)).astype(np.float32)
            iet.embed_(logits, [ids[-words:]], slots, registry)
            noise = draw.gumbel(size=WORDS)
            noise[0] = -np.inf  # <unk>
            ids.append(int((logits[0] + noise).argmax()))
    return ids


def spell(ids: Sequence[int]) -> str:
    return " ".join(f"w{i}" for i in ids)


TURNS = (("planner", 150), ("critic", 150), (None, 200), ("writer", 150))
IDS = write(TEAM, TURNS)
TEXT = spell(IDS)


def reader(registry: Registry = TEAM, decoder: str = "posterior", **options: Any) -> iet.Auditor:
    """An auditor that is handed its tokenizer, which is not in a file."""
    return iet.Auditor(registry, decoder, tokenizer=options.pop("tokenizer", WORD_TOKENIZER), **options)


def agents_of(report: iet.Report) -> list[str | None]:
    return [segment.agent for segment in report.segments]


def assert_tiles(report: iet.Report, text: str) -> None:
    """Segments cover tokens and characters, and the runs of characters cover the text, all without gaps."""
    at = 0
    for start, end, _ in report.char_agents:
        assert (start, end > start) == (at, True)
        at = end
    assert at == len(text)
    agents = [agent for _, _, agent in report.char_agents]
    assert all(a != b for a, b in itertools.pairwise(agents))
    token = char = 0
    for segment in report.segments:
        assert (segment.start, segment.char_start) == (token, char)
        assert segment.end > segment.start
        assert segment.char_end is not None
        assert segment.char_end >= char
        token, char = segment.end, segment.char_end
    assert token == report.tokens == len(report.token_agents)
    assert char == (len(text) if report.segments else 0)


# What it finds


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
    registry = team(vocab_size=WORDS)
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
    assert report.posterior is not None
    assert report.posterior.shape == (len(IDS), 3)
    assert report.posterior_agents is not None
    assert report.posterior_agents.tolist() == [0, 1, 2]
    assert (report.posterior >= 0).all()
    assert (report.posterior.sum(axis=1) <= 1 + 1e-5).all()
    for segment in report.segments:
        assert (segment.agent is not None) == (segment.log_p <= math.log(0.01))
        column = report.agents.index(segment.best_guess)
        span = report.posterior[segment.start : segment.end, column]
        assert segment.posterior == pytest.approx(span.mean(dtype=np.float64), abs=1e-6)
        assert segment.start_interval is not None
        assert segment.end_interval is not None
        assert segment.start_interval[0] <= segment.start <= segment.start_interval[1]
        assert segment.end_interval[0] <= segment.end <= segment.end_interval[1]
    ours = [segment.posterior for segment in report.segments if segment.agent]
    assert min(p for p in ours if p is not None) > 0.8
    assert report.strengths is not None
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


def test_permuted_agents_permute_the_result() -> None:
    order = [2, 0, 1]
    permuted = team([NAMES[i] for i in order])
    first, second = reader().audit(TEXT), reader(permuted).audit(TEXT)
    assert second.agents == tuple(NAMES[i] for i in order)
    for a, b in zip(first.segments, second.segments, strict=True):
        assert (a.start, a.end, a.agent, a.best_guess) == (b.start, b.end, b.agent, b.best_guess)
        assert b.log_p == pytest.approx(a.log_p)
    assert first.posterior is not None
    assert second.posterior is not None
    np.testing.assert_allclose(second.posterior, first.posterior[:, order], atol=1e-4)
    dense = [report.transitions.dense(NAMES).confidence for report in (first, second)]
    np.testing.assert_allclose(dense[1], dense[0])


def test_audit_many_is_audit_one_after_another_and_lazy() -> None:
    texts = [TEXT, "", "w1 w2 w3", TEXT[:500]]
    auditor = reader()
    for many, text in zip(auditor.audit_many(texts), texts, strict=True):
        assert many.to_dict() == auditor.audit(text).to_dict()

    def endless() -> Any:
        yield "w1 w2"
        raise AssertionError("read ahead")

    assert next(iter(auditor.audit_many(endless()))).tokens == 2


@pytest.mark.parametrize("batch", [1, 700, 1 << 18])
def test_audit_many_keeps_the_order_whatever_the_batches(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iet.audit.auditor, "BATCH_CHARACTERS", batch)
    texts = [TEXT[i : i + 90 * i] for i in range(0, 60, 4)]
    auditor = reader()
    for many, text in zip(auditor.audit_many(texts), texts, strict=True):
        assert many.to_dict() == auditor.audit(text).to_dict()


@pytest.mark.parametrize("batch", [1, 1 << 18])
def test_audit_many_raises_at_the_text_that_is_to_blame(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iet.audit.auditor, "BATCH_CHARACTERS", batch)

    def interrupted() -> Any:
        yield from ("w1", "w1 w2")
        raise OSError("the disk is gone")

    for texts, error, message in [
        (["w1", "w1 w2", "w1 \ud83d w2", "w3"], InputError, "lone surrogate"),
        (["w1", "w1 w2", 3, "w3"], InputError, "text: got int, expected str"),
        (["w1", "w1 w2", None, "w3"], InputError, "text: got NoneType, expected str"),
        (interrupted(), OSError, "the disk is gone"),
    ]:
        reports = reader().audit_many(texts)
        assert [next(reports).tokens, next(reports).tokens] == [1, 2]
        with pytest.raises(error, match=message):
            next(reports)
        assert next(reports, None) is None
    with pytest.raises(TokenizerMismatch):
        next(iet.Auditor(team(vocab_size=WORDS)).audit_many(["w1"]))


@pytest.mark.parametrize("texts", ["one text", b"one text", None, 7])
def test_audit_many_refuses_what_is_no_list_at_once(texts: Any) -> None:
    with pytest.raises(InputError, match=rf"texts: got {type(texts).__name__}, expected a list"):
        reader().audit_many(texts)


def test_audit_many_reads_little_ahead_and_ends_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iet.audit.auditor, "BATCH_CHARACTERS", 20)
    read = 0

    def endless() -> Any:
        nonlocal read
        while True:
            read += 1
            yield "w1 w2 w3 w4"  # two of them are a batch

    def tokenizing() -> int:
        return sum(thread.name.startswith("iet-tokenizer") for thread in threading.enumerate())

    reports = reader().audit_many(endless())
    assert (read, tokenizing()) == (0, 0)
    for done in range(1, 8):
        assert next(reports).tokens == 4
        assert read <= done + 5
        assert tokenizing() == 1
    reports.close()
    assert tokenizing() == 0


CROWD = [f"stranger {i}" for i in range(200)]


# A forced choice of "window" where nobody wrote falls on whoever is ahead by chance: any of all keys.
@pytest.mark.parametrize(
    ("decoder", "options"),
    [*((decoder, {}) for decoder in DECODERS), *((d, {"allow_unattributed": False}) for d in DECODERS[:2])],
)
def test_among_many_keys_only_candidates_are_read_and_the_result_is_the_same(
    decoder: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = team([*CROWD[:100], *NAMES, *CROWD[100:]])
    registry.rotate("critic", secret=bytes(32))
    auditor = reader(registry, decoder, **options)
    ids = IDS[:451] if options else IDS
    few = auditor.audit(token_ids=ids)
    monkeypatch.setattr(iet.audit.auditor, "ALL_KEYS", 1000)
    every = auditor.audit(token_ids=ids)
    assert np.array_equal(few.token_agents, every.token_agents)
    assert [s._replace(confidence=0) for s in few.transitions.observed] == [
        s._replace(confidence=0) for s in every.transitions.observed
    ]
    for a, b in zip(few.segments, every.segments, strict=True):
        assert (a.start, a.end, a.agent, a.best_guess) == (b.start, b.end, b.agent, b.best_guess)
        assert (a.start_interval, a.end_interval) == (b.start_interval, b.end_interval)
        assert a.log_p == pytest.approx(b.log_p, rel=1e-9)
        assert a.posterior == pytest.approx(b.posterior, abs=1e-6)
    assert {segment.best_guess for segment in few.segments} >= {"planner", "critic"}
    if (
        decoder != "cusum" or options
    ):  # CUSUM splits this text too late for the critic's part to pass the level
        assert set(agents_of(few)) >= {"planner", "critic"}
    if decoder != "posterior":
        assert few.posterior is few.posterior_agents is None
        return
    assert few.posterior is not None
    assert few.posterior_agents is not None
    assert every.posterior is not None
    assert few.posterior.shape == (len(ids), len(few.posterior_agents))
    assert 3 <= len(few.posterior_agents) < 203
    np.testing.assert_allclose(few.posterior, every.posterior[:, few.posterior_agents], atol=1e-6)
    assert every.posterior.sum() == pytest.approx(few.posterior.sum(), rel=1e-6)
    assert few.strengths is not None
    assert every.strengths is not None
    assert few.strengths.items() <= {n: pytest.approx(v) for n, v in every.strengths.items()}.items()


@pytest.mark.parametrize("decoder", DECODERS)
def test_short_texts_have_a_report_among_many_keys(decoder: str) -> None:
    registry = team([*NAMES, *CROWD])
    for tokens in (0, 1, 2, 8, 15):
        for forced in (False, True):
            auditor = reader(registry, decoder, allow_unattributed=not forced)
            report = auditor.audit(token_ids=IDS[:tokens])
            assert report.tokens == tokens
            assert report.coverage == (1 if forced and tokens else 0)
    assert agents_of(reader(registry, decoder).audit(token_ids=[5])) == [None]


def test_strengths_that_are_given_reach_the_candidates() -> None:
    registry = team([*CROWD, *NAMES])
    strengths = np.linspace(0.5, 2.5, 203)
    report = reader(registry, strengths=strengths).audit(token_ids=IDS)
    assert report.strengths is not None
    for name, strength in report.strengths.items():
        assert strength == strengths[report.agents.index(name)]
    assert "planner" in report.strengths
    assert json.loads(report.to_json())["decoder"]["options"] == {"strengths": strengths.tolist()}


def test_options_of_numpy_are_written_as_json() -> None:
    options = {"strengths": [np.float32(0.5)] * 3, "block": np.int64(8), "repeats": "count"}
    report = reader(level=np.float32(0.01), **options).audit(token_ids=IDS)
    written = json.loads(report.to_json())
    assert written["decoder"]["options"] == {"strengths": [0.5] * 3, "block": 8, "repeats": "count"}
    assert written["level"] == float(np.float32(0.01))


def test_old_and_new_keys_of_an_agent_are_one_agent() -> None:
    registry = Registry.loads(TEAM.dumps())
    registry.rotate("critic", secret=bytes(32))
    text = spell(write(TEAM, [("critic", 150)]) + write(registry, [("critic", 150)], seed=1))
    report = reader(registry).audit(text)
    assert agents_of(report) == ["critic"]
    assert report.agents == NAMES
    assert report.posterior is not None
    assert report.posterior.shape[1] == 3
    assert report.transitions.observed == ()


def test_a_report_names_the_keys_that_were_read_though_the_registry_changes() -> None:
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
    auditor = reader(team(tokenizer=backend), decoder, tokenizer=backend, allow_unattributed=False, **options)

    @settings(max_examples=60, deadline=None)
    @given(st.text(max_size=120) | st.text("aé 漢😀\u0301\u200b\ufe0f\n\tﬁ", max_size=200))
    def check(text: str) -> None:
        report = auditor.audit(text)
        assert_tiles(report, text)
        assert report.seam_share is not None
        assert 0 <= report.seam_share <= 1

    check()


@pytest.mark.parametrize("invisible", ["\u200b", "\ufeff", "\ufe0f", "\u2060\u00ad"])
@pytest.mark.parametrize("every", [1, 3])
def test_invisible_characters_change_no_attribution(invisible: str, every: int) -> None:
    pieces = [TEXT[i : i + every] for i in range(0, len(TEXT), every)]
    text = invisible.join(pieces)
    clean, found = reader().audit(TEXT), reader().audit(text)
    assert found.invisible == len(text) - len(TEXT) > 0
    assert np.array_equal(found.token_agents, clean.token_agents)
    assert_tiles(found, text)
    for a, b in zip(clean.segments, found.segments, strict=True):
        assert (a.agent, a.log_p) == (b.agent, b.log_p)
        part = text[b.char_start : b.char_end]
        for character in invisible:
            part = part.replace(character, "")
        assert part == TEXT[a.char_start : a.char_end]


def test_a_text_of_invisible_characters_alone_is_nobodys() -> None:
    report = reader().audit("\u200b\ufeff")
    assert (report.tokens, report.segments, report.invisible) == (0, (), 2)
    assert report.char_agents == ((0, 2, None),)


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
def test_a_text_shorter_than_the_n_gram_is_nobodys(decoder: str, tokens: int) -> None:
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


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoder": "guess"}, "decoder: got 'guess', expected one of"),
        ({"level": 0}, "level: got 0, expected a number between 0 and 1"),
        ({"level": 1}, "level: got 1,"),
        ({"level": -0.5}, "level: got -0.5"),
        ({"level": float("nan")}, "level: got nan"),
        ({"level": "0.01"}, "level: got '0.01'"),
        ({"level": True}, "level: got True"),
        ({"level": np.float32("nan")}, "level: got "),
        ({"decoder": ["posterior"]}, "decoder: got ['posterior'], expected one of"),
        ({"strengths": "abc"}, "strengths: got 'abc', expected numbers"),
        ({"tau": 0.1}, "options: got 'tau', decoder 'posterior' accepts"),
        ({"decoder": "cusum", "window": 0}, "window: got 0, expected an int of at least 1"),
        ({"profile": "no such id"}, "profile 'no such id' is not in the registry"),
    ],
)
def test_bad_options_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, RegistryError)) as refusal:
        iet.Auditor(TEAM, **options)
    assert message in str(refusal.value)


def test_registries_without_readers_are_refused() -> None:
    with pytest.raises(InputError, match="no agents; expected at least one"):
        iet.Auditor(team([]))
    with pytest.raises(InputError, match=r"registry: got str, expected iet\.Registry"):
        iet.Auditor("team.json")  # type: ignore[arg-type]


def test_one_of_several_profiles_can_be_named() -> None:
    registry = Registry.loads(TEAM.dumps())
    other = registry.add_profile(tokenizer=WORD_TOKENIZER, scheme=Scheme(kappa=1.0))
    registry.add("lawyer", profile=other)
    auditor = iet.Auditor(registry, profile=TEAM.profile.id, tokenizer=WORD_TOKENIZER)
    assert agents_of(auditor.audit(TEXT)) == ["planner", "critic", None, "writer"]
    assert iet.Auditor(registry, profile=other, tokenizer=WORD_TOKENIZER).audit(TEXT).agents == ("lawyer",)
    with pytest.raises(RegistryError, match="profile 'other' is not in the registry"):
        iet.Auditor(registry, profile="other")


def test_what_is_no_text_is_refused() -> None:
    auditor = reader()
    with pytest.raises(InputError, match="neither or both"):
        auditor.audit()
    with pytest.raises(InputError, match="neither or both"):
        auditor.audit(TEXT, token_ids=IDS)
    with pytest.raises(InputError, match="text: got bytes, expected str"):
        auditor.audit(TEXT.encode())  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"character 3 is the lone surrogate U\+D83D"):
        auditor.audit("w1 \ud83d w2")


@pytest.mark.parametrize("ids", [[[1, 2]], [1.5, 2.0], 7, ["w1"], [True, False], [[1], [2, 3]]])
def test_what_are_no_token_ids_is_refused(ids: Any) -> None:
    with pytest.raises(ShapeError, match="token_ids: got"):
        reader().audit(token_ids=ids)


def test_ids_beyond_int64_are_refused() -> None:
    with pytest.raises(InputError, match="token_ids: got 18446744073709551615"):
        reader().audit(token_ids=np.array([1, 2**64 - 1], np.uint64))


def test_another_tokenizer_is_refused(tmp_path: pathlib.Path) -> None:
    for other in (word_tokenizer(WORDS + 1), byte_tokenizer()):
        with pytest.raises(TokenizerMismatch, match=r"got digest .* expects"):
            iet.Auditor(TEAM, tokenizer=other).audit(TEXT)
    with pytest.raises(TokenizerMismatch, match="is not there"):
        iet.Auditor(TEAM, tokenizer=tmp_path / "tokenizer.json").audit(TEXT)
    with pytest.raises(InputError, match="tokenizer: got int"):
        iet.Auditor(TEAM, tokenizer=3).audit(TEXT)
    WORD_TOKENIZER.save(str(tmp_path / "tokenizer.json"))
    assert iet.Auditor(TEAM, tokenizer=tmp_path / "tokenizer.json").audit(TEXT).coverage > 0


def test_a_tokenizer_that_was_replaced_is_noticed(tmp_path: pathlib.Path) -> None:
    word_tokenizer().save(str(tmp_path / "tokenizer.json"))
    registry = team(tokenizer=tmp_path / "tokenizer.json")
    assert iet.Auditor(registry).audit(TEXT).tokens == len(IDS)
    word_tokenizer(WORDS - 1).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerMismatch, match="got digest"):
        iet.Auditor(registry).audit(TEXT)


# Secrets


def test_neither_report_nor_auditor_shows_a_secret(tmp_path: pathlib.Path) -> None:
    registry = team()
    registry.save(tmp_path / "team.json")
    auditor = reader(registry, "cusum", window=32)
    report = auditor.audit(TEXT)
    shown = [
        repr(auditor),
        str(vars(auditor)),
        repr(report),
        str(report),
        report.to_json(),
        report.to_html(),
        report._repr_html_(),
        report.to_prov(),
        report.transitions.to_dot(),
        str(report.evaluation_events()),
        str(vars(report)),
    ]
    pickled = pickle.dumps(auditor)
    for key in (key for name in registry for key in registry.keys(name)):
        for secret in (bytes(key.secret), derive_subkey(key.secret)):
            assert secret not in pickled
            assert not any(secret.hex() in text or repr(secret)[2:-1] in text for text in shown)
    with pytest.raises(RegistryError, match="in memory is not pickled"):
        pickle.dumps(iet.Auditor(team()))


def test_copies_of_an_auditor_find_the_same(tmp_path: pathlib.Path) -> None:
    registry = team()
    registry.save(tmp_path / "team.json")
    auditor = iet.Auditor(registry, "window", 0.05, False, tokenizer=WORD_TOKENIZER, window=32)
    expected = auditor.audit(TEXT).to_dict()
    for again in (copy.deepcopy(auditor), pickle.loads(pickle.dumps(auditor))):
        assert again.audit(TEXT).to_dict() == expected


def test_keys_that_were_rotated_out_do_not_blur_transitions() -> None:
    registry = team()
    ids = write(registry, [("planner", 250), ("critic", 250)])
    before = reader(registry).audit(token_ids=ids).transitions
    for _ in range(12):
        registry.rotate("planner")
        registry.rotate("writer")
    after = reader(registry).audit(token_ids=ids).transitions
    assert [t[:3] for t in after.observed] == [t[:3] for t in before.observed]
    # The planner wrote under its first key; the writer, who wrote nothing, is read under its last one only.
    assert after.observed[0].confidence == pytest.approx(before.observed[0].confidence, abs=0.03)


@pytest.mark.parametrize("decoder", ["cusum", "window"])
def test_the_level_of_the_report_is_that_of_its_decoder(decoder: str) -> None:
    ids = write(TEAM, [("planner", 70), (None, 70), ("critic", 70)])
    strict, lax = (reader(decoder=decoder, level=level).audit(token_ids=ids) for level in (1e-12, 0.4))
    assert strict.coverage < lax.coverage


def test_the_tokens_at_a_boundary_are_the_uncertain_ones() -> None:
    report = reader().audit(TEXT)
    encoding = iet.marks.tokenizer.Tokenizer(WORD_TOKENIZER).encode(TEXT)
    assert len(report.segments) > 1
    touching = [t for segment in report.segments[1:] for t in (segment.start - 1, segment.start)]
    length = sum(int(encoding.char_ends[t] - encoding.char_starts[t]) for t in touching)
    assert report.seam_share == pytest.approx(length / len(TEXT))
    assert reader().audit("w1 w2 w3").seam_share == 0


def test_known_agents_and_decoys(tmp_path: pathlib.Path) -> None:
    registry = Registry.create(tmp_path / "team.json", vocab_size=500)
    for name in ("planner", "critic", "coder"):
        registry.add(name)
    ids = np.random.default_rng(4).integers(0, 500, 700)
    report = iet.Auditor(registry, known_agents=["coder"], decoys=199).audit(token_ids=ids)
    assert report.decoys == 199
    assert list(report.evidence) == ["coder"]
    assert report.to_dict()["decoder"]["options"] == {"known_agents": ["coder"]}
    few = iet.Auditor(registry, decoys=298)  # 1 - (1 - 1/299)^3 < 0.01
    assert min(few.audit(token_ids=ids).evidence.values()) <= 0
    with pytest.raises(InputError, match="decoys: got 297, expected at least 298: with 3 keys"):
        iet.Auditor(registry, decoys=297)
    iet.Auditor(registry, decoys=5, allow_unattributed=False)
    keys, other = registry.scoring_keys(), Registry.create(None, vocab_size=500)
    other.add("planner")
    assert np.array_equal(keys.decoys(3).subkeys, keys.decoys(9).subkeys[:3])
    assert not (keys.decoys(3).subkeys == other.scoring_keys().decoys(3).subkeys).all(axis=1).any()
    ranks = math.exp(report.log_p) * 200
    assert ranks == pytest.approx(round(ranks))
    assert 1 <= ranks <= 200
    again = pickle.loads(pickle.dumps(iet.Auditor(registry, known_agents=iter(["coder"]), decoys=199)))
    assert again.audit(token_ids=ids).to_json() == report.to_json()
    for known, message in (
        (5, "got 5, expected a list"),
        ([["coder"]], r"got \[\['coder'\]\], expected a list"),
        ("coder", "got 'coder', expected a list"),
        ([], "got none, expected at least one"),
        (["tester"], "got 'tester', expected some of"),
    ):
        with pytest.raises(InputError, match=f"known_agents: {message}"):
            iet.Auditor(registry, known_agents=known)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="weights: got some, expected none: they belong to one text"):
        iet.Auditor(registry, weights=np.ones(700))
    for decoys in (-1, 1.0, True):
        with pytest.raises(InputError, match=f"decoys: got {decoys}, expected an int of at least 0"):
            iet.Auditor(registry, decoys=decoys)  # type: ignore[arg-type]
