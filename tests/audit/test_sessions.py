"""Sessions of a text: findings by session, their level, and rejected input."""

from __future__ import annotations

import json
import math
import pathlib
import pickle
from typing import Any

import jsonschema
import numpy as np
import pytest

import iet
from iet.audit.attribution import _best_of_many
from iet.audit.encode import TokenBatch
from iet.audit.evidence import session_log_p
from iet.errors import InputError
from iet.marks.registry import Registry
from iet.marks.tokenizer import Encoding
from tests.support import teams
from tests.support.texts import DECODERS, spell, write

RUNS = [f"run-{i}" for i in range(40)]
SCHEMES: list[dict[str, Any]] = [
    {},
    {"k_p": "per-agent", "n_gram": 3, "vocab_size": 601, "kappa": 2.0},
    {"family": "gumbel", "kappa": 1.0},
]
SCHEMA = json.loads(pathlib.Path(iet.__file__).with_name("report").joinpath("schema.json").read_text())


@pytest.mark.parametrize("scheme", [{"kappa": 2.0}, {"family": "gumbel"}], ids=str)
def test_a_checked_piece_names_its_session(scheme: dict[str, Any]) -> None:
    registry = teams.team(tokenizer=teams.WORD_TOKENIZER, **scheme)
    turns = [("run-3", "planner"), ("run-9", "critic"), (None, "writer"), ("run-3", "writer"), (None, None)]
    pieces = [spell(joined(registry, *[(None, None, 1)] * d, (*turn, 150))) for d, turn in enumerate(turns)]
    claims = ["planner", "planner", "writer", None, "critic"]
    report = iet.Auditor(registry, sessions=RUNS).check([*pieces, "w1 w2"], [*claims, "critic"])
    assert report.sessions == 40
    assert [(piece.verdict, piece.agent, piece.session) for piece in report.pieces] == [
        ("confirmed", "planner", "run-3"),
        ("contradicted", "critic", "run-9"),
        ("confirmed", "writer", None),
        ("named", "writer", "run-3"),
        ("open", None, None),
        ("open", None, None),
    ]
    assert report.pieces[0].note == "in session run-3"
    assert [event.get("iet.session") for event in report.events()][:3] == ["run-3", "run-9", None]
    plain = iet.Auditor(registry).check(pieces, claims)
    assert plain.sessions is None
    assert "sessions" not in plain.to_dict()
    assert [piece.agent for piece in plain.pieces] == [None, None, "writer", None, None]
    partial = iet.Auditor(registry, sessions=RUNS[:3]).check(pieces, claims)
    assert {piece.session for piece in partial.pieces} == {None}


def test_a_session_is_named_only_with_evidence() -> None:
    registry = teams.team(tokenizer=teams.WORD_TOKENIZER, kappa=2.0)
    auditor = iet.Auditor(registry, level=0.1, sessions=RUNS)
    named = list[str | None]()
    for seed in range(40):  # so short that every second mark is found
        pieces = [spell(write(registry.session("run-3"), [("planner", 14)], 3 * seed + d)) for d in range(3)]
        named += [piece.session for piece in auditor.check(pieces, ["planner"] * 3).pieces]
    assert named.count("run-3") >= 10
    assert named.count(None) >= 10
    assert len(set(named) - {"run-3", None}) <= 4


def joined(registry: Registry, *turns: tuple[str | None, str | None, int]) -> list[int]:
    """Ids of turns (session, agent, tokens)."""
    ids = list[int]()
    for seed, (session, agent, tokens) in enumerate(turns):
        ids += write(registry if session is None else registry.session(session), [(agent, tokens)], seed)
    return ids


@pytest.fixture(scope="module")
def registry() -> Registry:
    return teams.team()


@pytest.fixture(scope="module")
def text(registry: Registry) -> list[int]:
    return joined(registry, ("run-3", "planner", 200), ("run-9", "critic", 200), (None, "writer", 200))


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_report_names_sessions(registry: Registry, text: list[int], decoder: str) -> None:
    report = iet.Auditor(registry, decoder, sessions=RUNS).audit(token_ids=text)
    assert report.sessions is not None
    assert report.sessions.read == 40
    sessions = {(match.agent, match.session) for match in report.sessions.found}
    assert sessions == {("planner", "run-3"), ("critic", "run-9"), ("writer", None)}
    p = [match.log_p for match in report.sessions.found]
    assert p == sorted(p)
    assert p[-1] < math.log(report.level)
    named = {(s.agent, s.session) for s in report.segments if s.agent is not None}
    assert named == sessions if decoder == "posterior" else named <= sessions
    assert report.found == tuple(match.agent for match in report.sessions.found)
    jsonschema.validate(json.loads(report.to_json()), SCHEMA)
    assert "planner in run-3 (p " in str(report)
    assert "writer in none of them" in str(report)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_every_family_with_variants_and_epochs(scheme: dict[str, Any]) -> None:
    registry = teams.team([], **scheme)
    registry.add("planner", secret=teams.secret("planner"))
    registry.rotate("planner", secret=teams.secret("planner 1"))
    registry.add("critic", secret=teams.secret("critic"))
    run = registry.session("run-3")
    ids = write(run, [("planner", 150)], epochs=[1]) + write(registry, [("planner", 150)], 1, epochs=[0])
    registry.rotate("planner", secret=teams.secret("later"))
    report = iet.Auditor(registry, sessions=RUNS).audit(token_ids=ids)
    assert report.sessions is not None
    assert {(match.agent, match.session) for match in report.sessions.found} == {
        ("planner", "run-3"),
        ("planner", None),
    }
    assert {segment.agent for segment in report.segments} == {"planner"}


def test_an_unlisted_session_is_unnamed(registry: Registry, text: list[int]) -> None:
    for sessions in (None, RUNS[:3], [*RUNS[:3], "RUN-3", "run-3x"]):
        report = iet.Auditor(registry, sessions=sessions).audit(token_ids=text[:200])
        assert not report.found
        assert (report.sessions is None) == (sessions is None)
        assert all(segment.agent is None and segment.session is None for segment in report.segments)
    assert "no agent is found; 3 read" in str(
        iet.Auditor(registry, sessions=RUNS[:3]).audit(token_ids=text[:200])
    )


def test_few_keys_are_scored_together_and_many_one_by_one(registry: Registry, text: list[int]) -> None:
    texts = [spell(text[:300]), spell(text[250:])]
    for runs in (["run-3", "run-9"], RUNS):
        auditor = iet.Auditor(registry, sessions=runs)
        assert auditor.plan.many_at_once == (len(runs) == 2)
        for match, report in zip(texts, auditor.audit_many(texts), strict=True):
            assert report.to_dict() == auditor.audit(match).to_dict()


def test_unmarked_texts_rarely_have_a_session() -> None:
    registry, level, tries = teams.team(vocab_size=5000, family="gumbel"), 0.2, 200
    auditor = iet.Auditor(registry, "cusum", level=level, sessions=[f"s{i}" for i in range(60)])
    hits = 0
    for seed in range(tries):
        report = auditor.audit(token_ids=np.random.default_rng(seed).integers(0, 5000, 200))
        assert report.sessions is not None
        hits += bool(report.sessions.found)
        assert bool(report.sessions.found) <= bool(report.found)
    assert hits <= tries * level + 3 * math.sqrt(tries * level * (1 - level))


def test_p_values_are_corrected_for_all_keys_of_all_agents() -> None:
    owners, sessions = np.array([0, 0, 0, 0, 1, 1]), np.array([-1, 0, 0, 1, -1, 0])
    p = np.array([[0.5, 0.01, 0.001, 0.3, 1e-9, 1.0]])
    actual = np.exp(session_log_p(np.log(p), owners, sessions, 2))
    expected = [1.0, 2 * (1 - 0.999**4), 1.0, 1.0, 4e-9, 1.0]
    assert actual[0] == pytest.approx(expected, rel=1e-6)


def test_best_of_many_keys_equals_that_of_all_at_once(
    registry: Registry, text: list[int], monkeypatch: Any
) -> None:
    keys = registry.session_keys(RUNS)
    reading = TokenBatch.of(Encoding(np.array(text)), None, keys, False)
    edges = np.array([0, 100, 300, len(text)])
    expected = reading.sums(edges, keys).argmax(axis=1)
    monkeypatch.setattr("iet.audit.attribution._MANY_KEYS", 7)
    assert np.array_equal(_best_of_many(reading, edges, keys), expected)


def test_known_agents_and_several_profiles(text: list[int]) -> None:
    registry = teams.team()
    word_profile = registry.add_profile(
        tokenizer=teams.WORD_TOKENIZER, scheme=iet.Scheme(n_gram=3, kappa=2.0)
    )
    registry.add("tester", profile=word_profile, secret=teams.secret("tester"))
    auditor = iet.Auditor(registry, sessions=RUNS)
    report = auditor.audit(spell(text))
    assert report.sessions is not None
    assert {match.session for match in report.sessions.found} == {"run-3", "run-9", None}
    restricted = iet.Auditor(registry, known_agents=["critic"], sessions=RUNS).audit(spell(text))
    assert restricted.sessions is not None
    assert [(match.agent, match.session) for match in restricted.sessions.found] == [("critic", "run-9")]


def test_configuration_and_pickles_hold_the_sessions(registry: Registry, tmp_path: pathlib.Path) -> None:
    saved = teams.team(path=tmp_path / "team.json")
    auditor = iet.Auditor(saved, sessions=RUNS)
    restored = pickle.loads(pickle.dumps(auditor))
    assert restored.plan.sessions == tuple(RUNS)
    assert restored.configuration == auditor.configuration
    assert auditor.configuration != iet.Auditor(saved, sessions=RUNS[:-1]).configuration
    assert "sessions" not in iet.Auditor(saved).configuration


@pytest.mark.parametrize(
    ("sessions", "why"),
    [
        ("run-1", "expected a list of ids"),
        ([], "got none"),
        (["a", 7], "got int"),
        (["a\n"], "1 to 200|U\\+000A"),
    ],
)
def test_rejects_invalid_session_lists(registry: Registry, sessions: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        iet.Auditor(registry, sessions=sessions)


def test_keys_of_other_schemes_have_no_sessions() -> None:
    keys = iet.WaterfallKeys({"planner": 42}, vocab_size=600)
    with pytest.raises(InputError, match="keys of other schemes have none"):
        iet.Auditor(keys, sessions=RUNS)
