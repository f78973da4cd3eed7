"""Large registries and their candidate agents; known agents; decoy keys."""

from __future__ import annotations

import json
import math
import pathlib
import pickle
from typing import Any

import numpy as np
import pytest

import iet
from iet.errors import InputError
from tests.support.teams import NAMES, team
from tests.support.texts import DECODERS, IDS, agents_of, reader

CROWD = [f"stranger {i}" for i in range(200)]


# On unmarked text, a forced choice of "window" names the agent whose score is highest by chance.
@pytest.mark.parametrize(
    ("decoder", "options"),
    [*((decoder, {}) for decoder in DECODERS), *((d, {"allow_unattributed": False}) for d in DECODERS[:2])],
)
def test_reading_only_candidates_gives_the_same_result(
    decoder: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = team([*CROWD[:100], *NAMES, *CROWD[100:]])
    registry.rotate("critic", secret=bytes(32))
    auditor = reader(registry, decoder, **options)
    ids = IDS[:451] if options else IDS
    few = auditor.audit(token_ids=ids)
    monkeypatch.setattr("iet.audit.plan.ALL_KEYS", 1000)
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
    assert few.posterior.shape == (len(ids), len(few.posterior_agents))
    assert 3 <= len(few.posterior_agents) < 203
    np.testing.assert_allclose(few.posterior, every.posterior[:, few.posterior_agents], atol=1e-6)
    assert every.posterior.sum() == pytest.approx(few.posterior.sum(), rel=1e-6)
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


def test_given_strengths_reach_the_candidates() -> None:
    registry = team([*CROWD, *NAMES])
    strengths = np.linspace(0.5, 2.5, 203)
    report = reader(registry, strengths=strengths).audit(token_ids=IDS)
    for name, strength in report.strengths.items():
        assert strength == strengths[report.agents.index(name)]
    assert "planner" in report.strengths
    assert json.loads(report.to_json())["decoder"]["options"] == {"strengths": strengths.tolist()}


def test_known_agents_and_decoys(tmp_path: pathlib.Path) -> None:
    registry = team(["planner", "critic", "coder"], tmp_path / "team.json", vocab_size=500)
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
    iet.Auditor(registry, decoys=10**6, level=3e-6)
    with pytest.raises(
        InputError, match="decoys: got 1000000, expected 0: with 3 keys no p-value from at most 1000000"
    ):
        iet.Auditor(registry, decoys=10**6, level=2.9e-6)
    keys, second_team = registry.scoring_keys(), team({"planner": 0}, vocab_size=500)
    assert np.array_equal(keys.decoys(3).subkeys, keys.decoys(9).subkeys[:3])
    assert not (keys.decoys(3).subkeys == second_team.scoring_keys().decoys(3).subkeys).all(axis=1).any()
    ranks = math.exp(report.log_p) * 200
    assert ranks == pytest.approx(round(ranks))
    assert 1 <= ranks <= 200
    restored = pickle.loads(pickle.dumps(iet.Auditor(registry, known_agents=iter(["coder"]), decoys=199)))
    assert restored.audit(token_ids=ids).to_json() == report.to_json()
    for known_agents, message in (
        (5, "got 5, expected a list"),
        ([["coder"]], r"got \[\['coder'\]\], expected a list"),
        ("coder", "got 'coder', expected a list"),
        ([], "got none, expected at least one"),
        (["tester"], "got 'tester', expected some of"),
    ):
        with pytest.raises(InputError, match=f"known_agents: {message}"):
            iet.Auditor(registry, known_agents=known_agents)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="weights: got some, expected none: they belong to one text"):
        iet.Auditor(registry, weights=np.ones(700))
    for decoys in (-1, 1.0, True, 1_000_001):
        with pytest.raises(InputError, match=f"decoys: got {decoys}, expected an int from 0 to 1000000"):
            iet.Auditor(registry, decoys=decoys)  # type: ignore[arg-type]
