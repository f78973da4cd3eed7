"""Agents of several tokenizers in one text; and text that was changed after it was generated."""

from __future__ import annotations

import difflib
import functools
import itertools
import json
import math
import pathlib
import pickle
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

import iet
from iet import kernels
from iet.audit.evidence import log_tail
from iet.errors import InputError, RegistryError, TokenizerMismatch
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from iet.marks.tokenizer import DEMO_SOURCE, Tokenizer
from tests.report.test_report import validator

LICENSE = (pathlib.Path(__file__).parents[2] / "LICENSE").read_text(encoding="utf-8")


@functools.cache
def other_tokenizer() -> tokenizers.Tokenizer:
    """A byte-level BPE of another family: other merges, other ids, a smaller vocabulary."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([LICENSE], trainer)
    return backend


class Babbler:
    """A language model: the pairs of neighbouring tokens of a text, as often as they stand there."""

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


def team(kappa: float = KAPPA, names: Mapping[str, str] = NAMES, path: Any = None) -> Registry:
    """Agents of two model families."""
    registry = Registry.create(path, tokenizer=DEMO_SOURCE, scheme=Scheme(kappa=kappa))
    profiles = {"demo": registry.profile.id}
    profiles["other"] = registry.add_profile(tokenizer=other_tokenizer(), scheme=Scheme(kappa=kappa))
    for name, model in names.items():
        registry.add(name, secret=name.encode().ljust(32, b"."), profile=profiles[model])
    return registry


TEAM = team()


class Talk(NamedTuple):
    text: str
    turns: list[tuple[int, int, str | None]]

    def accuracy(self, report: iet.Report) -> float:
        """The share of characters that have their true agent."""
        right = sum(
            max(0, min(end, high) - max(start, low))
            for start, end, agent in self.turns
            for low, high, found in report.char_agents
            if agent == found
        )
        return right / len(self.text)


def talk(registry: Registry, turns: Sequence[tuple[str | None, int]], seed: int = 0) -> Talk:
    """Turns joined by one space, which belongs to the turn before it."""
    draw = np.random.default_rng(seed)
    parts: list[str] = []
    for agent, tokens in turns:
        family = "demo" if agent is None or registry.profile_of(agent).tokenizer_source else "other"
        model = babbler(family)
        parts.append(model.tokenizer.decode(model.turn(registry, agent, tokens, draw)).strip())
    ends = list(itertools.accumulate(len(part) + 1 for part in parts))
    ends[-1] -= 1
    spans = itertools.pairwise([0, *ends])
    return Talk(" ".join(parts), [(a, b, who) for (a, b), (who, _) in zip(spans, turns, strict=True)])


TURNS = (("planner", 200), ("writer", 200), (None, 200), ("critic", 200), ("lawyer", 200), ("planner", 200))
TALK = talk(TEAM, TURNS)


def runs(report: iet.Report) -> list[str | None]:
    return [agent for _, _, agent in report.char_agents]


# Several tokenizers in one registry


def test_agents_of_two_families_are_found_in_one_text() -> None:
    report = iet.Auditor(TEAM).audit(TALK.text)
    assert report.agents == ("planner", "critic", "writer", "lawyer")
    assert [agent for agent, _ in itertools.groupby(filter(None, runs(report)))] == [
        *("planner", "writer", "critic", "lawyer", "planner"),
    ]
    assert TALK.accuracy(report) > 0.85
    at = 0
    for segment in report.segments:
        assert (segment.char_start, segment.start, segment.end) == (at, None, None)
        at = segment.char_end or 0
        for interval, inner in ((segment.start_interval, at), (segment.end_interval, at)):
            assert interval is not None
            assert 0 <= interval[0] <= interval[1] <= len(TALK.text), inner
        assert segment.start_interval[0] <= segment.char_start <= segment.start_interval[1]  # type: ignore[index]
        assert segment.posterior is not None
    assert at == len(TALK.text)
    assert [start for start, *_ in report.transitions.observed] == [
        b.char_start
        for a, b in itertools.pairwise(report.segments)
        if a.agent and b.agent and a.agent != b.agent
    ]
    assert report.strengths is not None
    assert set(report.strengths) == set(NAMES)


def test_two_families_are_read_as_well_as_one() -> None:
    """The same turns by agents of one family, whose registry has one profile, and of two."""
    single = team(names=dict.fromkeys(NAMES, "demo"))
    turns = [(name, 120) for name in ("planner", "writer", "critic", "lawyer") * 3]
    accuracy = {}
    for name, registry in (("one", single), ("two", TEAM)):
        auditor = iet.Auditor(registry, allow_unattributed=False)
        talks = [talk(registry, turns, seed) for seed in range(3)]
        accuracy[name] = np.mean([one.accuracy(auditor.audit(one.text)) for one in talks])
    assert accuracy["one"] > 0.9
    assert accuracy["two"] > accuracy["one"] - 0.05


def test_unmarked_text_is_nobodys_under_any_profile() -> None:
    text = talk(TEAM, [(None, 600)]).text
    assert iet.Auditor(TEAM).audit(text).coverage == 0
    forced = iet.Auditor(TEAM, allow_unattributed=False).audit(text)
    assert (forced.coverage, None in runs(forced)) == (1.0, False)


def test_a_report_on_several_profiles_has_no_tokens_of_one_kind() -> None:
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
    validator().validate(json.loads(report.to_json()))
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


def test_among_many_keys_the_same_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    few = iet.Auditor(TEAM).audit(TALK.text)
    monkeypatch.setattr(iet.audit.auditor, "ALL_KEYS", 1)
    many = iet.Auditor(TEAM).audit(TALK.text)
    assert runs(few) == runs(many)
    assert TALK.accuracy(many) > 0.85


def test_rotated_keys_stay_with_their_agent() -> None:
    registry = team()
    registry.rotate("writer", secret=b"new".ljust(32, b"."))
    both = talk(registry, [("planner", 200), ("writer", 200)])
    auditor = iet.Auditor(registry)
    assert [a for a in runs(auditor.audit(both.text)) if a] == ["planner", "writer"]
    assert [a for a in runs(auditor.audit(TALK.text)) if a][:2] == ["planner", "writer"]


def test_profiles_of_one_tokenizer_are_read_together() -> None:
    registry = Registry.create(None, tokenizer=DEMO_SOURCE, scheme=Scheme(kappa=KAPPA))
    registry.add("planner", secret=b"planner".ljust(32, b"."))
    wide = registry.add_profile(tokenizer=DEMO_SOURCE, scheme=Scheme(kappa=KAPPA, n_gram=2, family="square"))
    registry.add("critic", secret=b"critic".ljust(32, b"."), profile=wide)
    both = talk(registry, [("planner", 250), ("critic", 250)])
    report = iet.Auditor(registry).audit(both.text)
    assert [agent for agent in runs(report) if agent] == ["planner", "critic"]
    assert both.accuracy(report) > 0.85


def test_a_profile_without_agents_is_not_read() -> None:
    registry = team(names={"planner": "demo", "critic": "demo"})
    report = iet.Auditor(registry).audit(TALK.text)
    assert report.profile.id == next(iter(registry.profiles))
    assert len(report.token_agents) == report.tokens


def test_known_agents_of_one_profile_leave_the_others_out() -> None:
    alone, whole = iet.Auditor(TEAM, known_agents=["critic"]), iet.Auditor(TEAM, known_agents=list(TEAM))
    assert alone.audit(TALK.text).agents == TEAM.names(TEAM.profile_of("critic").id)
    found, same = whole.audit(TALK.text).to_dict(), iet.Auditor(TEAM).audit(TALK.text).to_dict()
    assert found.pop("decoder")["options"] == {"known_agents": list(TEAM)}
    del same["decoder"]
    assert found == same
    other = next(id for id in TEAM.profiles if id != TEAM.profile_of("critic").id)
    with pytest.raises(InputError, match=rf"known_agents: .*, expected some of profile {other}"):
        iet.Auditor(TEAM, known_agents=["critic"], profile=other)


@pytest.mark.parametrize("options", [{"min_segment": 1}, {"mean_segment": 1}], ids=repr)
def test_characters_of_several_tokens(options: dict[str, int]) -> None:
    # Lengths count tokens, of which there are more here than places where one begins.
    report = iet.Auditor(TEAM, **options).audit("😀🎉🚀" * 50)
    assert report.segments[-1].char_end == 150


def test_audit_many_reads_all_profiles() -> None:
    auditor = iet.Auditor(TEAM)
    texts = [TALK.text[:400], "", TALK.text]
    assert [r.to_json() for r in auditor.audit_many(texts)] == [auditor.audit(t).to_json() for t in texts]


def test_copies_find_their_tokenizers(tmp_path: pathlib.Path) -> None:
    other_tokenizer().save(str(tmp_path / "other.json"))
    registry = team(path=tmp_path / "team.json")
    with pytest.raises(TokenizerMismatch, match="does not say where its tokenizer is: pass it"):
        iet.Auditor(Registry.load(tmp_path / "team.json")).audit(TALK.text)
    other = list(registry.profiles)[1]
    auditor = iet.Auditor(
        Registry.load(tmp_path / "team.json"), tokenizer={other: str(tmp_path / "other.json")}
    )
    copied = pickle.loads(pickle.dumps(auditor))
    assert copied.audit(TALK.text).to_json() == auditor.audit(TALK.text).to_json()
    one = iet.Auditor(registry, profile=other, tokenizer={other: str(tmp_path / "other.json")})
    assert one.audit(TALK.text).agents == ("writer", "lawyer")


def test_what_several_profiles_cannot_be_asked_is_refused() -> None:
    for decoder in ("cusum", "window"):
        with pytest.raises(InputError, match="2 profiles, which only the decoder 'posterior' reads"):
            iet.Auditor(TEAM, decoder)
    with pytest.raises(InputError, match="strengths"):
        iet.Auditor(TEAM, strengths=[1.0, 1.0, 1.0, 1.0])
    with pytest.raises(InputError, match="token_ids: of which profile"):
        iet.Auditor(TEAM).audit(token_ids=[1, 2, 3])
    with pytest.raises(InputError, match=r"tokenizer: got str, expected \{profile id: tokenizer\}"):
        iet.Auditor(TEAM, tokenizer="tokenizer.json")
    with pytest.raises(RegistryError, match="profile 'other' is not in the registry"):
        iet.Auditor(TEAM, tokenizer={"other": "tokenizer.json"})


@pytest.mark.parametrize("text", ["", "a", "\u200b", "naïve 🙂"])
def test_any_text_has_a_report(text: str) -> None:
    for options in ({}, {"boundaries": []}, {"skip": [(0, len(text))]}):
        report = iet.Auditor(TEAM).audit(text, **options)  # type: ignore[arg-type]
        assert report.coverage == 0
        assert sum((s.char_end or 0) - (s.char_start or 0) for s in report.segments) in (0, len(text))


# Text that was changed after it was generated

FRENCH = (
    "Le café était fermé à Noël, où l’été n’est qu’un rêve… La mère d’Élodie préfère le thé glacé ; "
    "«\u00a0c’est très léger\u00a0», dit-elle. Après la forêt, le chœur répète ½ mesure, puis ¾, et le "
    "maître s’arrête… Où êtes-vous allés, François ? À l’hôtel, près du théâtre, là où Zoë a perdu sa clé. "
    "Il fêtait déjà son anniversaire… Le garçon reçut un cadeau : une flûte à ½ prix, et le numéro "
    "2² gravé dessus. "
)


def pairs_of(ids: Sequence[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(ids))


def lost(before: str, after: str, tokenizer: Tokenizer) -> int:
    """How many (context, token) pairs of a text, n = 2, are not read any more where it was changed."""
    old, new = (pairs_of(tokenizer.encode(text).token_ids.tolist()) for text in (before, after))
    blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
    return len(old) - sum(block.size for block in blocks)


@functools.cache
def french() -> tuple[Registry, str]:
    registry = Registry.create(None, tokenizer=DEMO_SOURCE, scheme=Scheme(kappa=2.0))
    registry.add("planner", secret=b"planner".ljust(32, b"."))
    model = Babbler(Tokenizer(DEMO_SOURCE), FRENCH)
    ids = model.turn(registry, "planner", 1500, np.random.default_rng(0))
    return registry, model.tokenizer.decode(ids).strip("\ufffd").strip()


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_normalising_costs_the_tokens_around_what_it_exchanged(form: str) -> None:
    registry, text = french()
    changed = unicodedata.normalize(form, text)
    tokenizer = registry.open_tokenizer()
    ids = tokenizer.encode(text).token_ids
    # What composes is read composed. "…", "½" and the like are not told apart from what replaces them.
    exchanged = [c for c in text if unicodedata.normalize("NFKC", c) != c] if "K" in form else []
    touched = sum(len(tokenizer.encode(c).token_ids) + 2 for c in exchanged)
    assert lost(text, changed, tokenizer) <= touched
    assert len(ids) > 1000
    assert (touched > 0) == ("K" in form)
    report = iet.Auditor(registry).audit(changed)
    assert runs(report) == ["planner"]
    assert report.segments[0].char_end == len(changed)


def test_joining_and_trimming_cost_a_few_tokens_a_seam() -> None:
    registry = team(names=dict.fromkeys(NAMES, "demo"))
    turns = [(name, 150) for name in ("planner", "writer", "critic", "lawyer") * 2]
    whole = talk(registry, turns)
    parts = [whole.text[start:end].strip() for start, end, _ in whole.turns]
    tokenizer = babbler("demo").tokenizer
    changes = {
        "\n\n".join(parts): 3 * (len(parts) - 1),  # a word without its space may be more tokens
        "".join(parts): 4 * (len(parts) - 1),  # two words may become one
        whole.text[7:-7]: 2 * (7 + 2),
        "\ufeff  " + whole.text + "\n\n": 2,
        whole.text.replace("\n", "\r\n"): 2 * whole.text.count("\n"),
        "\u200b".join(whole.text): 0,
    }
    auditor = iet.Auditor(registry, allow_unattributed=False)
    before = whole.accuracy(auditor.audit(whole.text))
    for changed, most in changes.items():
        assert lost(whole.text, changed, tokenizer) <= most
    joined = "\n\n".join(parts)
    ends = list(itertools.accumulate(len(part) + 2 for part in parts))
    ends[-1] -= 2
    spans = [(a, b, who) for (a, b), (who, _) in zip(itertools.pairwise([0, *ends]), turns, strict=True)]
    assert Talk(joined, spans).accuracy(auditor.audit(joined)) > before - 0.03
