"""Several keys of an agent in an audit are one agent, at the cost of the logarithm of their number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from scipy import stats

import iet
from iet.audit.attribution import decode_texts
from iet.audit.evidence import sidak_min_p
from iet.errors import InputError
from iet.marks.registry import Registry
from tests.support.teams import WORDS, secret, team
from tests.support.texts import DECODERS, agents_of, reader, spell, write

SIX = ("planner", "critic", "writer", "coder", "editor", "tester")


def crowd(agents: Mapping[str, int], **scheme: Any) -> Registry:
    """Create a registry with the stated number of keys for each agent."""
    registry = team([], **{"family": "gumbel", "kappa": None, **scheme})
    return with_keys(registry, agents)


def with_keys(registry: Registry, agents: Mapping[str, int], draw: Any = None, **profile: Any) -> Registry:
    """Add agents with the stated number of keys to a registry; `draw` generates their secrets."""
    for name, keys in agents.items():
        for epoch in range(keys):
            drawn = secret(f"{name} {epoch}") if draw is None else draw.bytes(32)
            if epoch:
                registry.rotate(name, secret=drawn)
            else:
                registry.add(name, secret=drawn, **profile)
    return registry


TEAM = crowd(dict.fromkeys(SIX, 16))
TURNS = (("planner", 120), ("critic", 120), (None, 150), ("critic", 120), ("coder", 120), ("coder", 120))
EPOCHS = (3, 15, 0, 7, 9, 2)
IDS = write(TEAM, TURNS, epochs=EPOCHS)


# ---------------------------------------------------------------- evidence


def test_the_p_value_of_an_agent_is_exact_whatever_the_number_of_its_keys() -> None:
    owners = np.repeat([0, 1, 4], [1, 16, 3])
    p = np.random.default_rng(0).random((20_000, 20))
    actual = np.exp(sidak_min_p(np.log(p), owners))
    for agent in range(3):
        assert stats.kstest(actual[:, agent], "uniform").pvalue > 1e-4
    assert np.array_equal(actual[:, 0], np.exp(np.log(p[:, 0])))
    low = sidak_min_p(np.array([-900.0, -5.0, -40.0, -1000.0]), np.array([0, 0, 1, 1]))
    np.testing.assert_allclose(low, [-900 + math.log(2), -1000 + math.log(2)])
    assert sidak_min_p(np.zeros((3, 4)), np.array([0, 0, 2, 2])).tolist() == [[0.0, 0.0]] * 3


@pytest.mark.parametrize("keys", [{"planner": 16, "critic": 16}, {"planner": 12, "critic": 1}])
def test_false_positives_of_absent_agents_match_the_level(keys: Mapping[str, int]) -> None:
    draw, texts, level = np.random.default_rng(1), 700, 0.1
    false_positives = dict.fromkeys(keys, 0)
    texts_with_any = 0
    for _ in range(texts):
        registry = team([], vocab_size=WORDS, family="gumbel")
        with_keys(registry, keys, draw)
        report = iet.Auditor(registry, level=level).audit(token_ids=draw.integers(1, WORDS, 200))
        texts_with_any += bool(report.found)
        for name in report.found:
            false_positives[name] += 1
    assert stats.binom.sf(texts_with_any - 1, texts, 1.15 * level) > 1e-3, texts_with_any / texts
    assert stats.binom.cdf(texts_with_any, texts, 0.7 * level) > 1e-3, texts_with_any / texts
    # More keys do not raise an agent's false-positive rate.
    assert stats.binomtest(false_positives["planner"], sum(false_positives.values()), 0.5).pvalue > 1e-3, (
        false_positives
    )


def test_keys_cost_the_logarithm_of_their_number() -> None:
    ids = write(crowd({"planner": 1, "critic": 1}), [("planner", 120)])
    alone, many, renamed = (
        reader(crowd(keys)).audit(token_ids=ids).evidence
        for keys in (
            {"planner": 1, "critic": 1},
            {"planner": 16, "critic": 16},
            {"planner": 1, "critic": 16},
        )
    )
    assert alone["planner"] < -30
    assert many["planner"] - alone["planner"] == pytest.approx(math.log(16))
    assert renamed["planner"] == alone["planner"]


# ---------------------------------------------------------------- who wrote what


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("family", ["gumbel", "fourier"])
def test_text_under_any_key_is_the_agents(decoder: str, family: str) -> None:
    kappa = None if family == "gumbel" else 2.0
    registry = crowd({"planner": 4, "critic": 2, "writer": 1}, family=family, kappa=kappa)
    turns = [("planner", 300), ("critic", 300), ("planner", 300), ("writer", 300)]
    report = reader(registry, decoder).audit(token_ids=write(registry, turns, epochs=(2, 1, 3, 0)))
    assert set(report.found) == {"planner", "critic", "writer"}
    truth = np.repeat([0, 1, 0, 2], 300)
    assert (report.token_agents[-1200:] == truth).mean() > 0.85
    assert report.agents == ("planner", "critic", "writer")


def test_turns_of_one_agent_under_two_keys_are_one_segment() -> None:
    report = reader(TEAM).audit(spell(IDS))
    assert agents_of(report) == ["planner", "critic", None, "critic", "coder"]
    last = report.segments[-1]
    assert last.end - last.start == pytest.approx(240, abs=10)
    assert last.posterior is not None
    assert last.posterior > 0.95
    assert [(t.source, t.target) for t in report.transitions.observed][-1] == ("critic", "coder")
    assert set(report.evidence) == set(SIX)


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_writer_is_a_candidate_under_its_marking_key(decoder: str) -> None:
    plan, table = reader(TEAM, decoder).plan, TEAM.scoring_keys()
    (columns,) = decode_texts(plan, [plan.encoding_of_ids(IDS)], None, None).matrices
    assert columns.chosen is not None
    assert len(columns.chosen) < len(table) == 96
    looked_at = {(table.owners[k], table.epochs[k]) for k in columns.chosen}
    wrote = {(TEAM.slot(n), v) for (n, _), v in zip(TURNS, EPOCHS, strict=True) if n is not None}
    assert looked_at >= wrote


def test_batch_and_single_audits_agree() -> None:
    registry = crowd({"planner": 4, "critic": 3})
    texts = [
        spell(write(registry, [("planner", 100), ("critic", 100)], seed, epochs=(seed, seed)))
        for seed in range(3)
    ]
    auditor = reader(registry)
    together = list(auditor.audit_many(texts))
    assert [report.to_json() for report in together] == [auditor.audit(text).to_json() for text in texts]
    assert [agents_of(report) for report in together] == [["planner", "critic"]] * 3


def test_pieces_are_attributed_under_any_key_of_an_agent() -> None:
    registry = crowd({"planner": 16, "critic": 1})
    turns = [("planner", 90), ("critic", 90), ("planner", 90)]
    ids = write(registry, turns, epochs=(11, 0, 5))
    report = reader(registry).audit(token_ids=ids, boundaries=[93, 183])
    assert agents_of(report) == ["planner", "critic", "planner"]
    silent = reader(registry, allow_unattributed=False).audit(token_ids=[0] * 40, boundaries=[20])
    assert silent.posterior is not None
    np.testing.assert_allclose(silent.posterior, 0.5, atol=1e-6)


def test_number_of_keys_does_not_raise_an_agents_prior() -> None:
    registry = crowd({"planner": 16, "critic": 1})
    plan = reader(registry).plan
    assert plan.readers[0].shares.tolist() == [1 / 32] * 16 + [1 / 2]
    assert (plan.choices, plan.agents) == (17, 2)
    # Without evidence the two states of an ordinary pair of agents take turns, here as there.
    silent = reader(registry, allow_unattributed=False, null_prior=0).audit(token_ids=[0] * 400)
    assert silent.posterior is not None
    assert silent.posterior.shape == (400, 2)
    assert silent.posterior[:, 0].mean() < 0.75


def test_agents_of_several_profiles_have_several_keys() -> None:
    registry = crowd({"planner": 3, "critic": 1})
    second = registry.add_profile(vocab_size=WORDS, scheme=iet.Scheme(family="gumbel", n_gram=3))
    with_keys(registry, {"writer": 5}, profile=second)
    ids = write(crowd({"planner": 3, "critic": 1}), [("planner", 150)], epochs=(2,))
    word_profile = team([], vocab_size=WORDS, family="gumbel", n_gram=3)
    with_keys(word_profile, {"writer": 5})
    ids += write(word_profile, [("writer", 150)], epochs=(4,), seed=2)
    profiles = [registry.profile_of(name).id for name in ("planner", "writer")]
    shares = [
        reader.shares * plan.share_of(reader)
        for plan in [iet.Auditor(registry).plan]
        for reader in plan.readers
    ]
    np.testing.assert_allclose(np.concatenate(shares), [1 / 9] * 3 + [1 / 3] + [1 / 15] * 5)
    for profile, agent in zip(profiles, ("planner", "writer"), strict=True):
        assert iet.Auditor(registry, profile=profile).audit(token_ids=ids).found == (agent,)


def test_decoys_pay_for_keys_too() -> None:
    registry = crowd({"planner": 4, "critic": 1})
    with pytest.raises(InputError, match="got 700, expected at least 796: with 2 agents of up to 4 keys"):
        iet.Auditor(registry, decoys=700)
    ids = write(registry, [("planner", 200)], epochs=(3,))
    report = reader(registry, decoys=800).audit(token_ids=ids)
    assert report.found == ("planner",)
    # The lowest rank of four keys of one of two agents.
    assert report.evidence["planner"] == pytest.approx(math.log(-math.expm1(8 * math.log1p(-1 / 801))))


def test_agents_can_be_excluded_with_all_their_keys() -> None:
    report = reader(TEAM, known_agents=["critic", "coder"]).audit(token_ids=IDS)
    assert set(report.evidence) == {"critic", "coder"}
    assert set(filter(None, agents_of(report))) == {"critic", "coder"}
