"""Every family: its laws agree, the reference follows them, and each list of families has it.

A failure names a step of docs/internals/extending.md, "A family".
"""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
from scipy import stats

import iet
from iet.audit.evidence import LOG_TAILS, log_tails
from iet.marks.families import FAMILIES, BernoulliSum, Family, sum_family
from iet.native import reference
from tests.support.keys import key_table

BITS = sum_family("bits", BernoulliSum((1, 1, 3), 0.3, -1.0, 0.5))
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)


@pytest.mark.parametrize("family", [*FAMILIES.values(), BITS], ids=lambda family: family.name)
def test_laws_agree(family: Family) -> None:
    count, rng = 400_000, np.random.default_rng(3)
    unmarked = family.draw(rng, count, 0.0)
    assert unmarked.var() == pytest.approx(family.variance, rel=0.02)
    assert max(family.strengths) < family.strength_limit
    for strength in (0.0, *family.strengths):
        step = 1e-5
        slope = (family.log_mgf(strength + step) - family.log_mgf(strength - step)) / (2 * step)
        assert family.mean(strength) == pytest.approx(slope, rel=1e-4, abs=1e-4)
        scores = family.draw(rng, count, strength)
        assert scores.mean() == pytest.approx(family.mean(strength), abs=5 * scores.std() / np.sqrt(count))
    small = min(family.strengths) / 2
    assert np.log(np.exp(small * unmarked).mean()) == pytest.approx(family.log_mgf(small), abs=5e-3)


@every_family
def test_scores_of_the_reference_follow_the_null_law(family: Family) -> None:
    rng = np.random.default_rng(4)
    ids = rng.integers(0, 32003, 20_000)
    scores = reference.score_tokens(key_table(32003, family=family.name).marking, ids)[:, 0]
    scored = reference.is_scored(ids, family.n_gram, 32003)
    assert stats.ks_2samp(scores[scored], family.draw(rng, 200_000, 0.0)).pvalue > 1e-3


@every_family
def test_tails_follow_the_null_law(family: Family) -> None:
    rng, count, texts = np.random.default_rng(5), 40, 100_000
    sums = family.draw(rng, (texts, count), 0.0).sum(axis=1)
    for share in (0.5, 0.1, 0.01):
        total = np.quantile(sums, 1 - share)
        p = np.exp(log_tails(np.array([total]), np.array([count]), family)[0])
        assert p == pytest.approx(share, rel=0.05 + 5 * np.sqrt(1 / (share * texts)))


def test_every_list_has_every_family() -> None:
    package = pathlib.Path(iet.__file__).parent
    schema = json.loads((package / "report" / "schema.json").read_text())
    table = json.loads((package / "audit" / "activity_null.json").read_text())
    lists = {
        "LOG_TAILS in iet/audit/tails.py": LOG_TAILS,
        "own_scheme in iet/report/schema.json": schema["$defs"]["own_scheme"]["properties"]["family"]["enum"],
        "iet/audit/activity_null.json": table["log_p"],
    }
    wrong = {place: sorted(set(FAMILIES) ^ set(names)) for place, names in lists.items()}
    assert {place: names for place, names in wrong.items() if names} == {}
    assert [name for name, family in FAMILIES.items() if name != family.name or not family.summary] == []
    assert len({family.code for family in FAMILIES.values()}) == len(FAMILIES)
