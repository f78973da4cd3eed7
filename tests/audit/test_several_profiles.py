"""Agents of several tokenizers in one text; and text that was changed after it was generated."""

from __future__ import annotations

import difflib
import functools
import itertools
import math
import pathlib
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import tokenizers

import iet
from iet import kernels
from iet.audit.evidence import log_tail
from iet.errors import InputError, RegistryError, TokenizerMismatch
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from iet.marks.tokenizer import DEMO_SOURCE, Tokenizer
from tests.support.reports import assert_fits_the_schema
from tests.support.teams import byte_tokenizer, secret, team

LICENSE = (pathlib.Path(__file__).parents[2] / "LICENSE").read_text(encoding="utf-8")


@functools.cache
def other_tokenizer() -> tokenizers.Tokenizer:
    """A byte-level BPE of another family: other merges, other ids, a smaller vocabulary."""
    return byte_tokenizer(corpus=[LICENSE], size=900)


class Babbler:
    """A bigram language model of one text."""

    def __init__(self, tokenizer: Tokenizer, text: str = LICENSE) -> None:
        self.tokenizer = tokenizer
        ids = tokenizer.encode(text).token_ids
        self.first = int(ids[0])
        size = tokenizer.vocab_size
        unigram = np.bincount(ids, minlength=size).astype(np.float64)
        self.logits = np.tile(0.15 * unigram / unigram.sum(), (size, 1))
        rows, inverse = np.unique(ids[:-1], return_inverse=True)
        pairs = np.zeros((len(rows), size))
        np.add.at(pairs, (inverse, ids[1:]), 1.0)
        self.logits[rows] += 0.85 * pairs / pairs.sum(axis=1, keepdims=True)
        with np.errstate(divide="ignore"):
            self.logits = np.log(self.logits).astype(np.float32)

    def turn(
        self, registry: Registry, agent: str | None, tokens: int, draw: np.random.Generator
    ) -> list[int]:
        """Ids as an agent's model would sample them."""
        slot, ids = -1, [self.first]
        profile = None
        if agent is not None:
            slot, profile = registry.slot(agent), registry.profile_of(agent).id
        for _ in range(tokens):
            logits = self.logits[ids[-1]][None].copy()
            if agent is not None:
                iet.embed_(logits, [[ids[-1]]], [slot], registry, profile=profile)
            ids.append(int((logits[0] + draw.gumbel(size=len(logits[0]))).argmax()))
        return ids[1:]


@functools.cache
def babbler(source: str) -> Babbler:
    return Babbler(Tokenizer(DEMO_SOURCE if source == "demo" else other_tokenizer()))


NAMES = {"planner": "demo", "critic": "demo", "writer": "other", "lawyer": "other"}
KAPPA = 1.5


def families(kappa: float = KAPPA, names: Mapping[str, str] = NAMES, path: Any = None) -> Registry:
    """Agents of two model families."""
    registry = Registry.create(path, tokenizer=DEMO_SOURCE, scheme=Scheme(kappa=kappa))
    profiles = {"demo": registry.profile.id}
    profiles["other"] = registry.add_profile(tokenizer=other_tokenizer(), scheme=Scheme(kappa=kappa))
    for name, model in names.items():
        registry.add(name, secret=secret(name), profile=profiles[model])
    return registry


TEAM = families()


class Talk(NamedTuple):
    text: str
    turns: list[tuple[int, int, str | None]]

    def accuracy(self, report: iet.Report) -> float:
        """The share of characters that have their true agent."""
        right = sum(
            max(0, min(end, high) - max(start, low))
            for start, end, agent in self.turns
            for low, high, named in report.char_agents
            if agent == named
        )
        return right / len(self.text)


def joined(joiner: str, parts: Sequence[str], agents: Sequence[str | None]) -> Talk:
    """A joiner belongs to the turn before it."""
    ends = list(itertools.accumulate(len(part) + len(joiner) for part in parts))
    ends[-1] -= len(joiner)
    turns = [(*span, agent) for span, agent in zip(itertools.pairwise([0, *ends]), agents, strict=True)]
    return Talk(joiner.join(parts), turns)


def talk(registry: Registry, turns: Sequence[tuple[str | None, int]], seed: int = 0) -> Talk:
    """Turns joined by one space."""
    draw = np.random.default_rng(seed)
    parts: list[str] = []
    for agent, tokens in turns:
        family = "demo" if agent is None or registry.profile_of(agent).tokenizer_source else "other"
        model = babbler(family)
        parts.append(model.tokenizer.decode(model.turn(registry, agent, tokens, draw)).strip())
    return joined(" ", parts, [agent for agent, _ in turns])


TURNS = (("planner", 200), ("writer", 200), (None, 200), ("critic", 200), ("lawyer", 200), ("planner", 200))
TALK = talk(TEAM, TURNS)


def runs(report: iet.Report) -> list[str | None]:
    return [agent for _, _, agent in report.char_agents]


# Several tokenizers in one registry


def test_agents_of_two_families_are_found_in_one_text() -> None:
    report = iet.Auditor(TEAM).audit(TALK.text)
    assert report.agents == ("planner", "critic", "writer", "lawyer")
    assert [agent for agent, _ in itertools.groupby(filter(None, runs(report)))] == [
        *("planner", "writer", "critic", "lawyer", "planner")
    ]
    assert TALK.accuracy(report) > 0.85
    at = 0
    for segment in report.segments:
        assert (segment.char_start, segment.start, segment.end) == (at, None, None)
        at = segment.char_end or 0
        for interval, inner in ((segment.start_interval, at), (segment.end_interval, at)):
            assert 0 <= interval[0] <= interval[1] <= len(TALK.text), inner
        assert segment.start_interval[0] <= segment.char_start <= segment.start_interval[1]  # type: ignore[index]
        assert segment.posterior is not None
    assert at == len(TALK.text)
    assert [start for start, *_ in report.transitions.observed] == [
        b.char_start
        for a, b in itertools.pairwise(report.segments)
        if a.agent and b.agent and a.agent != b.agent
    ]
    assert set(report.strengths) == set(NAMES)


def test_two_families_are_read_as_well_as_one() -> None:
    """The same turns by agents of one family, whose registry has one profile, and of two."""
    single = families(names=dict.fromkeys(NAMES, "demo"))
    turns = [(name, 120) for name in ("planner", "writer", "critic", "lawyer") * 3]
    accuracy = {}
    for name, registry in (("one", single), ("two", TEAM)):
        auditor = iet.Auditor(registry, allow_unattributed=False)
        talks = [talk(registry, turns, seed) for seed in range(3)]
        accuracy[name] = np.mean([example.accuracy(auditor.audit(example.text)) for example in talks])
    assert accuracy["one"] > 0.9
    assert accuracy["two"] > accuracy["one"] - 0.05


def test_unmarked_text_is_unattributed_under_any_profile() -> None:
    text = talk(TEAM, [(None, 600)]).text
    assert iet.Auditor(TEAM).audit(text).coverage == 0
    forced = iet.Auditor(TEAM, allow_unattributed=False).audit(text)
    assert (forced.coverage, None in runs(forced)) == (1.0, False)


def test_a_report_on_several_profiles_has_no_token_agents() -> None:
    report = iet.Auditor(TEAM).audit(TALK.text)
    with pytest.raises(InputError, match=r"token_agents: the text was read in the tokens of 2 profiles"):
        report.token_agents  # noqa: B018
    with pytest.raises(InputError, match="profile: the text was read under"):
        report.profile  # noqa: B018
    assert [profile.id for profile in report.profiles] == list(TEAM.profiles)
    lengths = [len(babbler(model).tokenizer.encode(TALK.text).token_ids) for model in ("demo", "other")]
    assert report.tokens == sum(lengths)
    attributed = sum(end - start for start, end, agent in report.char_agents if agent is not None)
    assert report.coverage == pytest.approx(attributed / len(TALK.text))
    assert_fits_the_schema(report)
    assert f"{report.tokens:,} tokens of 2 profiles" in str(report)
    assert all(f"profile {id}: fourier" in str(report) for id in TEAM.profiles)


def test_pieces_are_named_in_their_agents_tokens_and_corrected_for_all_keys() -> None:
    boundaries = [start for start, _, _ in TALK.turns]
    report = iet.Auditor(TEAM).audit(TALK.text, boundaries=boundaries)
    assert [(s.char_start, s.char_end, s.agent) for s in report.segments] == TALK.turns
    for segment in report.segments:
        if segment.agent is None:
            continue
        profile = TEAM.profile_of(segment.agent)
        encoding = babbler(NAMES[segment.agent]).tokenizer.encode(TALK.text)
        extents = encoding.characters(range(len(encoding.token_ids)))
        inside = (extents[:, 0] >= segment.char_start) & (extents[:, 1] <= segment.char_end)
        pairs = kernels.pair_numbers(encoding.token_ids, TEAM, profile=profile.id, counted=inside)
        first = np.unique(pairs, return_index=True)[1][1:]
        scores = kernels.score_tokens(encoding.token_ids, TEAM, profile=profile.id)
        total = scores[first, TEAM.slot(segment.agent)].sum(dtype=np.float64)
        tail = log_tail(float(total), len(first), profile.family)
        assert segment.log_p == pytest.approx(min(0.0, tail + math.log(4 * len(TURNS))), abs=1e-6)


def test_parts_are_left_out_in_the_tokens_of_every_profile() -> None:
    human = TALK.turns[2][:2]
    report = iet.Auditor(TEAM).audit(TALK.text, skip=[human])
    assert [(s.char_start, s.char_end) for s in report.segments if s.left_out] == [human]
    touched = 0
    for model in ("demo", "other"):
        encoding = babbler(model).tokenizer.encode(TALK.text)
        starts, ends = encoding.char_starts, encoding.char_ends
        touched += int(((starts < human[1]) & (ends > human[0])).sum())
    assert report.left_out == touched
    assert all(end <= human[0] or start >= human[1] for start, end, _ in report.char_agents)
    assert [t.target for t in report.transitions.observed] == ["writer", "critic", "lawyer", "planner"]


def test_many_keys_give_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    few = iet.Auditor(TEAM).audit(TALK.text)
    monkeypatch.setattr("iet.audit.plan.ALL_KEYS", 1)
    many = iet.Auditor(TEAM).audit(TALK.text)
    assert runs(few) == runs(many)
    assert TALK.accuracy(many) > 0.85


def test_profiles_of_one_tokenizer_are_read_together() -> None:
    registry = team(["planner"], tokenizer=DEMO_SOURCE, kappa=KAPPA)
    wide = registry.add_profile(tokenizer=DEMO_SOURCE, scheme=Scheme(kappa=KAPPA, n_gram=2, k_p=3))
    registry.add("critic", secret=secret("critic"), profile=wide)
    both = talk(registry, [("planner", 250), ("critic", 250)])
    report = iet.Auditor(registry).audit(both.text)
    assert [agent for agent in runs(report) if agent] == ["planner", "critic"]
    assert both.accuracy(report) > 0.85


def test_a_profile_without_agents_is_not_read() -> None:
    registry = families(names={"planner": "demo", "critic": "demo"})
    report = iet.Auditor(registry).audit(TALK.text)
    assert report.profile.id == next(iter(registry.profiles))
    assert len(report.token_agents) == report.tokens


def test_known_agents_of_one_profile_exclude_other_profiles() -> None:
    alone, all_known = iet.Auditor(TEAM, known_agents=["critic"]), iet.Auditor(TEAM, known_agents=list(TEAM))
    assert alone.audit(TALK.text).agents == TEAM.names(TEAM.profile_of("critic").id)
    data, same = all_known.audit(TALK.text).to_dict(), iet.Auditor(TEAM).audit(TALK.text).to_dict()
    assert data.pop("decoder")["options"] == {"known_agents": list(TEAM)}
    del same["decoder"]
    assert data == same
    other_profile = next(id for id in TEAM.profiles if id != TEAM.profile_of("critic").id)
    with pytest.raises(InputError, match=rf"known_agents: .*, expected some of profile {other_profile}"):
        iet.Auditor(TEAM, known_agents=["critic"], profile=other_profile)


@pytest.mark.parametrize("options", [{"min_segment": 1}, {"mean_segment": 1}], ids=repr)
def test_characters_of_several_tokens(options: dict[str, int]) -> None:
    # Lengths count tokens; several of them can begin at one character here.
    report = iet.Auditor(TEAM, **options).audit("😀🎉🚀" * 50)
    assert report.segments[-1].char_end == 150


def test_audit_many_reads_all_profiles() -> None:
    auditor = iet.Auditor(TEAM)
    texts = [TALK.text[:400], "", TALK.text]
    assert [r.to_json() for r in auditor.audit_many(texts)] == [auditor.audit(t).to_json() for t in texts]


def test_copies_find_their_tokenizers(tmp_path: pathlib.Path) -> None:
    other_tokenizer().save(str(tmp_path / "other.json"))
    registry = families(path=tmp_path / "team.json")
    with pytest.raises(TokenizerMismatch, match="does not say where it is; pass it"):
        iet.Auditor(Registry.load(tmp_path / "team.json")).audit(TALK.text)
    other_profile = list(registry.profiles)[1]
    auditor = iet.Auditor(
        Registry.load(tmp_path / "team.json"), tokenizer={other_profile: str(tmp_path / "other.json")}
    )
    copied = pickle.loads(pickle.dumps(auditor))
    assert copied.audit(TALK.text).to_json() == auditor.audit(TALK.text).to_json()
    with_file = iet.Auditor(
        registry, profile=other_profile, tokenizer={other_profile: str(tmp_path / "other.json")}
    )
    assert with_file.audit(TALK.text).agents == ("writer", "lawyer")


def test_rejects_options_that_need_one_profile() -> None:
    one_decoder = "2 profiles, which only the decoder 'posterior' reads"
    for options, error, message in (
        ({"decoder": "cusum"}, InputError, one_decoder),
        ({"decoder": "window"}, InputError, one_decoder),
        ({"strengths": [1.0] * 4}, InputError, "strengths"),
        ({"tokenizer": "a.json"}, InputError, r"tokenizer: got str, expected \{profile id: tokenizer\}"),
        ({"tokenizer": {"other": "a.json"}}, RegistryError, "profile 'other' is not in the registry"),
    ):
        with pytest.raises(error, match=message):
            iet.Auditor(TEAM, **options)
    with pytest.raises(InputError, match="token_ids: of which profile"):
        iet.Auditor(TEAM).audit(token_ids=[1, 2, 3])


@pytest.mark.parametrize("text", ["", "a", "\u200b", "naïve 🙂"])
def test_any_text_has_a_report(text: str) -> None:
    for options in ({}, {"boundaries": []}, {"skip": [(0, len(text))]}):
        report = iet.Auditor(TEAM).audit(text, **options)  # type: ignore[arg-type]
        assert report.coverage == 0
        assert sum((s.char_end or 0) - (s.char_start or 0) for s in report.segments) in (0, len(text))


# Text that was changed after it was generated


def lost(original: str, after: str, tokenizer: Tokenizer) -> int:
    """Number of (context, token) pairs, n = 2, that a change of the text destroys."""
    old, new = (
        list(itertools.pairwise(tokenizer.encode(text).token_ids.tolist())) for text in (original, after)
    )
    blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
    return len(old) - sum(block.size for block in blocks)


def test_joining_and_trimming_lose_few_tokens_per_seam() -> None:
    registry = families(names=dict.fromkeys(NAMES, "demo"))
    turns = [(name, 150) for name in ("planner", "writer", "critic", "lawyer") * 2]
    conversation = talk(registry, turns)
    parts = [conversation.text[start:end].strip() for start, end, _ in conversation.turns]
    tokenizer = babbler("demo").tokenizer
    changes = {
        "\n\n".join(parts): 3 * (len(parts) - 1),  # a word without its space may be more tokens
        "".join(parts): 4 * (len(parts) - 1),  # two words may become one
        conversation.text[7:-7]: 2 * (7 + 2),
        "\ufeff  " + conversation.text + "\n\n": 2,
        conversation.text.replace("\n", "\r\n"): 2 * conversation.text.count("\n"),
        "\u200b".join(conversation.text): 0,
    }
    auditor = iet.Auditor(registry, allow_unattributed=False)
    accuracy = conversation.accuracy(auditor.audit(conversation.text))
    for changed, limit in changes.items():
        assert lost(conversation.text, changed, tokenizer) <= limit
    separated = joined("\n\n", parts, [agent for agent, _ in turns])
    assert separated.accuracy(auditor.audit(separated.text)) > accuracy - 0.03
