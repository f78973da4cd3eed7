"""Schemes and profiles: accepted values, digests and null laws."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iet.errors import InputError, SchemeMismatch
from iet.marks.families import FAMILIES
from iet.marks.scheme import MAX_VOCAB_SIZE, Profile, Scheme, canonical_digest


def with_values(field: str, *values: Any) -> list[tuple[str, Any]]:
    """One case for each value of a field."""
    return [(field, value) for value in values]


PROFILE = Profile(Scheme(), 1000, "d" * 64, (3, 1))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *with_values("kappa", -0.1, 20.1, math.nan, math.inf, "1", True),
        *with_values("n_gram", 0, 1, 17, 2.0, True, "2"),
        *with_values("k_p", 0, -1, 1.0, True, "per_agent", None),
        *with_values("family", "Fourier", "", None, [], {}),
        *with_values("placement", "Raw", None, []),
    ],
)
def test_rejects_invalid_choices(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{field}: got .*, expected"):
        Scheme(**{field: value})


@pytest.mark.parametrize("version", [0, 2, -1, "1", True, 1.0, None])
def test_rejects_other_versions(version: Any) -> None:
    for family in FAMILIES:
        with pytest.raises(SchemeMismatch, match="of a draft or a later release; this release reads 1"):
            Scheme(version=version, kappa=99, family=family)


def test_rejects_a_single_permutation() -> None:
    with pytest.raises(InputError, match="one permutation for all text"):
        Scheme(n_gram=1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *with_values("vocab_size", 0, -1, MAX_VOCAB_SIZE + 1, 1000.0, True, "1000", None),
        *with_values("unmarked_ids", (-1,), (1000,), (1.0,), (True,), ("a", 1)),
        *with_values("tokenizer_digest", 3, b"d", []),
        ("tokenizer_source", 3),
    ],
)
def test_rejects_invalid_profiles(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{field}: got .*, expected"):
        dataclasses.replace(PROFILE, **{field: value})


@pytest.mark.parametrize(
    ("vocab_size", "largest"), [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2), (1000, 499), (1001, 500)]
)
def test_largest_frequency_depends_on_the_vocabulary(vocab_size: int, largest: int) -> None:
    assert Profile(Scheme(k_p=largest), vocab_size).max_frequency == largest
    with pytest.raises(InputError, match=f"k_p: got {largest + 1}, expected at most {largest}"):
        Profile(Scheme(k_p=largest + 1), vocab_size)


def test_profile_round_trip() -> None:
    for scheme in (Scheme(), Scheme(0.1, 16, "per-agent", "fourier", "raw")):
        profile = Profile(scheme, 1000, "d" * 64, (3, 1, 3), "tokenizer.json")
        assert profile.unmarked_ids == (1, 3)
        assert Profile.from_dict(profile.to_dict()) == profile
        assert Scheme(**scheme.to_dict()) == scheme


@pytest.mark.parametrize("data", [None, 3, "profile", [], {}, {"scheme": {}}, {"scheme": 3, "vocab_size": 5}])
def test_rejects_other_data(data: Any) -> None:
    with pytest.raises(InputError, match="profile"):
        Profile.from_dict(data)


def test_rejects_unknown_fields() -> None:
    with pytest.raises(InputError, match="profile: fields"):
        Profile.from_dict({**PROFILE.to_dict(), "extra": 1})
    with pytest.raises(InputError, match="profile: fields"):
        Profile.from_dict({**PROFILE.to_dict(), "scheme": {"extra": 1}})


def test_digest_covers_all_that_changes_a_mark() -> None:
    changes: list[dict[str, Any]] = [
        {"vocab_size": 1001},
        {"tokenizer_digest": None},
        {"unmarked_ids": (1,)},
        *(
            {"scheme": scheme}
            for scheme in (
                Scheme(kappa=0.9),
                Scheme(n_gram=3),
                Scheme(k_p=2),
                Scheme(k_p="per-agent"),
                Scheme(placement="raw"),
                Scheme(family="gumbel"),
            )
        ),
    ]
    digests = {PROFILE.digest, *(dataclasses.replace(PROFILE, **change).digest for change in changes)}
    assert len(digests) == len(changes) + 1


def test_digest_ignores_equivalent_spellings() -> None:
    assert dataclasses.replace(PROFILE, tokenizer_source="elsewhere.json").digest == PROFILE.digest
    assert dataclasses.replace(PROFILE, unmarked_ids=(1, 3, 3)).digest == PROFILE.digest
    assert Profile(Scheme(kappa=1), 9).digest == Profile(Scheme(kappa=1.0), 9).digest
    assert Profile(Scheme(kappa=-0.0), 9).digest == Profile(Scheme(kappa=0), 9).digest
    assert PROFILE.digest.startswith(PROFILE.id)
    assert len(PROFILE.id) == 16


# Families: theory against the null law that φ has on a uniform rank.


def test_null_law_is_the_law_of_phi() -> None:
    family = FAMILIES["fourier"]
    x = np.cos(2 * np.pi * np.arange(100_000) / 100_000)  # φ on every rank of a large vocabulary
    assert x.var() == pytest.approx(family.variance, rel=1e-6)
    for strength in (0.0, 0.1, 0.8, 3.0, 20.0):
        assert family.log_mgf(strength) == pytest.approx(np.log(np.exp(strength * x).mean()), abs=1e-9)
        tilted = np.exp(strength * x)
        assert family.mean(strength) == pytest.approx((x * tilted).sum() / tilted.sum(), abs=1e-9)


@given(strength=st.floats(-490, 490))
def test_mean_is_the_derivative_of_log_mgf(strength: float) -> None:
    family = FAMILIES["fourier"]
    step = 1e-3
    slope = (family.log_mgf(strength + step) - family.log_mgf(strength - step)) / (2 * step)
    assert family.mean(strength) == pytest.approx(slope, abs=1e-5)


def test_specification_shows_the_digests_json() -> None:
    page = (pathlib.Path(__file__).parents[2] / "docs" / "internals" / "scheme.md").read_text()
    example = page.split("keys sorted, no spaces, UTF-8:")[1].split("κ is written")[0]
    example = example.split("v is")[0]
    profile = Profile(Scheme(kappa=1.0, n_gram=3, k_p="per-agent"), vocab_size=99, unmarked_ids=(4, 7))
    values = iter(['"fourier"', '"per-agent"', "1.0", "3", '"final"', "null", "[4, 7]", "99"])
    filled = re.sub(r"\bv\b|… or null|\[…\]|…", lambda _: next(values), example)
    assert canonical_digest(json.loads(filled)) == profile.digest
