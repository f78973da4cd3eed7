"""Family gumbel: known answers, rejected parameters, its null law, scores and noise."""

from __future__ import annotations

import hashlib
import math
import re
from typing import Any

import numpy as np
import pytest

from iet import kernels
from iet.errors import InputError
from iet.marks.families import FAMILIES
from iet.marks.registry import Registry
from iet.marks.scheme import Profile, Scheme
from iet.native import reference
from tests.support import teams
from tests.support.known_answers import FOLDER, from_bits, vectors

FAMILY = FAMILIES["gumbel"]
VECTORS = vectors("gumbel_v1")
V, PAD = 300, 0


def team(vocab_size: int = V, unmarked_ids: tuple[int, ...] = (PAD,), **scheme: Any) -> Registry:
    scheme = {"vocab_size": vocab_size, "unmarked_ids": unmarked_ids, "family": "gumbel", **scheme}
    return teams.team(["planner", "critic"], numbered=1, **scheme)


# ---------------------------------------------------------------- known answers


def test_specification_states_digests_of_the_vectors() -> None:
    page = (FOLDER.parent.parent / "docs" / "internals" / "scheme.md").read_text()
    for path in FOLDER.glob("*.json"):
        assert f"{path.name}  {hashlib.blake2b(path.read_bytes(), digest_size=32).hexdigest()}" in page


def test_counts_equal_the_definition() -> None:
    from iet.native.pairs import times_before

    for entry in VECTORS["counts"]:
        ids, n_gram = np.array(entry["token_ids"]), entry["n_gram"]
        contexts = [tuple(ids[max(0, j - n_gram + 1) : j]) for j in range(len(ids))]
        plain = [contexts[n_gram - 1 : j].count(contexts[j]) for j in range(len(ids))]
        assert entry["counts"] == plain
        assert times_before(ids, n_gram).tolist() == plain
        assert reference.times_before(ids, n_gram).tolist() == plain


def test_hash_equals_plain_integers() -> None:
    word = (1 << 32) - 1
    for entry in VECTORS["uniform"]:
        seed = int(entry["seed"], 16)
        for v, numerator in zip(entry["ids"], entry["numerators"], strict=True):
            h = (v * 0x9E3779B1 + seed) & word
            h ^= h >> 16
            h = (h * 0x7FEB352D + (seed >> 32)) & word
            h ^= h >> 15
            h = (h * 0x846CA68B) & word
            h ^= h >> 16
            assert numerator == 2 * (h >> 9) + 1  # u = ((h >> 9) + 0.5)·2^-23, times 2^24
        assert reference.uniform(entry["ids"], np.uint64(seed)).tolist() == entry["numerators"]


def test_specification_gives_exact_logarithms() -> None:
    page = (FOLDER.parent.parent / "docs" / "internals" / "scheme.md").read_text()
    text = page.split("where mlog(x)")[1].split("in the same arithmetic")[0]
    carry, exponent_mask, root, *bits = (int(word, 16) for word in re.findall("0x[0-9A-Fa-f]+", text))
    *c, c8 = (np.uint32(word).view(np.float32) for word in bits)
    assert len(c) == 8

    def mlog(x: np.float32) -> np.float32:
        j = (int(x.view(np.uint32)) + carry) % (1 << 32)
        e = np.float32((j >> 23) - 127)
        t = np.uint32((j & exponent_mask) + root).view(np.float32) - np.float32(1)
        total = c[7]
        for coefficient in reversed(c[:7]):
            total = total * t + coefficient
        return np.float32(total * t + e * c8)

    noise_vectors = VECTORS["noise"]
    noise, score = from_bits(noise_vectors["noise"]), from_bits(noise_vectors["score"])
    for i, numerator in enumerate(noise_vectors["numerators"]):
        u = np.float32(numerator * 2.0**-24)
        assert mlog(mlog(u)) == noise[i]
        assert mlog(np.float32(1) - u) == score[i]


def test_logarithm_error_is_bounded_for_every_input() -> None:
    numerators = np.arange(1, 1 << 24, 2, dtype=np.uint32)
    x = numerators.astype(np.float32) * np.float32(2.0**-24)
    exact = -np.log1p((numerators.astype(np.float64) - 2**24) * 2.0**-24)
    logarithms = reference.minus_log(x)
    assert np.abs(logarithms / exact - 1).max() < 2.8e-7
    assert np.abs(reference.minus_log(logarithms) + np.log(exact)).max() < 1.2e-6
    assert np.mean(logarithms, dtype=np.float64) == pytest.approx(1, abs=1e-6)  # the null mean


# ---------------------------------------------------------------- choices


def test_defaults() -> None:
    scheme = Scheme(family="gumbel")
    assert (scheme.n_gram, scheme.kappa, scheme.k_p, scheme.placement) == (4, 1.0, 1, "final")
    assert (scheme.version, Scheme().version) == (1, 1)
    assert (Scheme().n_gram, Scheme().kappa) == (2, 0.8)
    assert Scheme(family="gumbel", n_gram=2, kappa=1).n_gram == 2
    assert Scheme(**scheme.to_dict()) == scheme
    assert Profile.from_dict(Profile(scheme, 99).to_dict()) == Profile(scheme, 99)


@pytest.mark.parametrize(
    ("field", "value"),
    [("kappa", 0.8), ("kappa", 0.0), ("k_p", 2), ("k_p", "per-agent"), ("placement", "raw")],
)
def test_rejects_parameters_without_meaning(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{field}: got {value!r}, expected .*gumbel"):
        Scheme(family="gumbel", **{field: value})


def test_null_law_is_exponential() -> None:
    x = -np.log1p(-(np.arange(1 << 20) + 0.5) / (1 << 20))  # quantiles of Exp(1)
    assert x.mean() == pytest.approx(FAMILY.mean(0.0), abs=1e-5)
    assert x.var() == pytest.approx(FAMILY.variance, abs=1e-4)
    for strength in (-2.0, 0.0, 0.1, 0.4):
        weights = np.exp(strength * x)
        assert FAMILY.log_mgf(strength) == pytest.approx(np.log(weights.mean()), abs=1e-3)
        assert FAMILY.mean(strength) == pytest.approx((x * weights).sum() / weights.sum(), abs=2e-2)
    for strength in np.linspace(-5, 0.95, 50):
        step = 1e-6
        slope = (FAMILY.log_mgf(strength + step) - FAMILY.log_mgf(strength - step)) / (2 * step)
        assert FAMILY.mean(strength) == pytest.approx(slope, rel=1e-4)
    assert FAMILY.strength_limit == 1.0
    assert FAMILIES["fourier"].strength_limit == math.inf


# ---------------------------------------------------------------- scores and noise


def test_embed_and_score_use_the_same_uniforms(isa: str) -> None:
    registry = team(500, ())
    for slot, context in enumerate(([7, 8, 9], [499, 0, 499])):
        noise = np.zeros((500, 500), dtype=np.float32)
        tokens = np.array([[*context, v] for v in range(500)]).ravel()
        counts = reference.times_before(tokens, 4)[3::4]
        kernels.embed_(noise, [context] * 500, [slot] * 500, registry, counts=counts)
        scores = kernels.score_tokens(tokens, registry)[3::4, slot]
        met = noise.diagonal().astype(np.float64)
        np.testing.assert_allclose(scores, -np.log1p(-np.exp(-np.exp(-met))), rtol=3e-5)
        assert met.argmax() == scores.argmax()
        assert len(np.unique(noise[:, 7])) == 500  # the context returns every time


def test_rejects_counts_of_fourier_and_negative_counts() -> None:
    logits = np.zeros((2, V), dtype=np.float32)
    fourier = teams.team(["planner"], numbered=1, vocab_size=V, n_gram=4)
    with pytest.raises(InputError, match="counts: got some under family"):
        kernels.embed_(logits, [[1, 2, 3]] * 2, [0, 0], fourier, counts=[0, 0])
    with pytest.raises(InputError, match="counts: row 1 holds -1, expected at least 0"):
        kernels.embed_(logits, [[1, 2, 3]] * 2, [0, 0], team(), counts=[0, -1])
    assert not logits.any()


def test_noise_covers_all_columns_of_marked_rows(isa: str) -> None:
    registry = team(257, (0, 5, 256))
    logits = np.zeros((5, 290), dtype=np.float32)
    logits[0, [3, 280]], logits[0, 4], logits[0, 288] = -np.inf, np.nan, np.inf
    original = logits.copy()
    kernels.embed_(
        logits, [[1, 2, 3], [1, 2, 5], [1, 2, 3], [1, 257, 3], [1, 2, 3]], [0, 0, -1, 0, 0], registry
    )
    assert np.array_equal(logits[1:4], original[1:4])
    assert np.array_equal(np.flatnonzero(np.isneginf(logits[0])), [3, 280])
    assert np.isnan(logits[0, 4])
    assert np.isposinf(logits[0, 288])
    ordinary = np.setdiff1d(np.arange(290), [3, 280, 4, 288])
    assert np.array_equal(logits[0, ordinary], logits[4, ordinary])
    assert len(np.unique(logits[4])) == 290  # special, padding and padded columns as well
    kernels.embed_(original[4:], [[1, 2, 3]], [0], registry, temperature=0.5)
    assert np.array_equal(original[4], logits[4] * np.float32(0.5))  # before a sampler that divides by 0.5
