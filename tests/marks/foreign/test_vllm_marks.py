"""vLLM's HMAC-SHA256, red-green lists, SynthID-Text and SBW: known answers, evidence, rejected input."""

from __future__ import annotations

import hashlib
import hmac
import math
import struct
from typing import Any

import numpy as np
import pytest

import iet
from benchmarks.security import foreign_marks
from iet.errors import InputError
from iet.marks.foreign import engines
from iet.marks.foreign.vllm import VllmRedGreen, VllmSbw, VllmSynthId
from tests.support.engine_texts import text
from tests.support.known_answers import vectors


@pytest.mark.parametrize("case", vectors("engines_v2")["cases"], ids=lambda case: case["name"])
def test_scores_equal_known_answers(case: dict[str, Any]) -> None:
    keys = [int(key) for key in case["keys"]]
    scores = iet.score_tokens(case["ids"], iet.EngineKeys.unnamed(case["scheme"], keys, **case["parameters"]))
    np.testing.assert_allclose(scores[case["first"] :], case["scores"][case["first"] :], rtol=4e-7, atol=2e-6)


@pytest.mark.parametrize(
    ("context", "mantissas"), [((1, 2, 3, 4), (6202050, 16483231)), ((4, 5, 6, 7), (11455363, 10557370))]
)
def test_hmac_equals_the_answers_of_vllms_tests(context: tuple[int, ...], mantissas: tuple[int, int]) -> None:
    # tests/watermarking/test_prf.py of vLLM's repository at 3da8712, key 42, tokens 7 and 8.
    keys = iet.EngineKeys.unnamed("vllm-gumbel", [42], prf="hmac_sha256")
    scores = [iet.score_tokens([*context, token], keys)[-1, 0] for token in (7, 8)]
    uniform = (np.array(mantissas) + 1) / (2**24 + 1)
    np.testing.assert_allclose(scores, -np.log1p(-uniform), rtol=4e-7)


@pytest.mark.parametrize("width", [1, 3, 6, 14, 15, 16])
def test_hmac_equals_the_standard_library(width: int) -> None:
    """The message fills one, two or three blocks of 64 bytes, also to the last byte."""
    ids, key = text(40, 1 << 24), 2**256 - 3**150
    scores = iet.score_tokens(
        ids, iet.EngineKeys.unnamed("vllm-red-green", [key], prf="hmac_sha256", n_gram=width + 1)
    )
    padded = [-1] * width + ids.tolist()
    for j in range(len(ids)):
        message = b"vllm-watermark-hmac-sha256-v1\0" + struct.pack("<I", width)
        message += struct.pack(f"<{width + 1}q", *padded[j : j + width + 1])
        digest = hmac.digest(key.to_bytes(32, "little"), message, hashlib.sha256)
        u = np.float32((int.from_bytes(digest[:4], "little") // 256 + 1) / (2**24 + 1))
        assert scores[j, 0] == (u < 0.25)


@pytest.mark.parametrize("gamma", [0.25, 0.5, 1 / 3, 0.1, 1e-7, 0.9999999, 2**-24, 0.7500000223517418])
def test_share_of_green_ids_is_exact(gamma: float) -> None:
    limit = VllmRedGreen(gamma=gamma).rule().limit
    assert limit % 256 == 0
    mantissas = np.arange(max(0, (limit >> 8) - 40), min(1 << 24, (limit >> 8) + 40))
    uniform = ((mantissas + 1) / (2**24 + 1)).astype(np.float32)
    assert np.array_equal(uniform < np.float32(gamma), mantissas < limit >> 8)
    bits = VllmRedGreen(gamma=gamma).law(50).bits
    assert bits is not None
    assert bits.chance == (limit >> 8) / 2**24
    sbw = VllmSbw(gamma=gamma)
    assert sbw.rule().limit == 2 * int(gamma * 0x7FFFFFFF)


def test_synthid_uses_other_words_than_gumbel() -> None:
    ids = text(500)
    gumbel = iet.score_tokens(ids, iet.EngineKeys.unnamed("vllm-gumbel", [42]))[:, 0]
    depth = iet.score_tokens(ids, iet.EngineKeys.unnamed("vllm-synthid", [42], depth=1))[:, 0]
    assert set(depth.tolist()) == {-1.0, 1.0}
    assert abs(np.corrcoef(gumbel, depth)[0, 1]) < 0.2
    words = np.concatenate([np.full(4, -1), ids]).astype(np.uint32)
    n_grams = np.lib.stride_tricks.sliding_window_view(words, 5)
    hashed = foreign_marks.vllm_hash(n_grams, 42, 0x53594E54 << 32)
    assert np.array_equal(depth == 1, hashed % 2 == 1)


def test_synthid_scores_are_standardised() -> None:
    family = VllmSynthId(depth=40).law(100)
    assert family.variance == pytest.approx(1)
    assert family.mean(0.0) == pytest.approx(0)
    scores = iet.score_tokens(text(300), iet.EngineKeys.unnamed("vllm-synthid", [3, 4], depth=40))
    ones = (scores + math.sqrt(40)) * math.sqrt(40) / 2
    np.testing.assert_allclose(ones, ones.round(), atol=1e-4)


@pytest.mark.parametrize("scheme", ["vllm-red-green", "vllm-synthid"])
def test_only_the_first_token_after_a_context_counts(scheme: str) -> None:
    ids, keys = text(200), iet.EngineKeys(scheme, {"a": 5})
    scored, repeated = iet.positions(ids, keys)
    assert scored.all()
    gumbel = iet.positions(ids, iet.EngineKeys("vllm-gumbel", {"a": 5}))[1]
    assert np.array_equal(repeated, gumbel)
    assert repeated.any()


def test_sbw_counts_what_seeds_alike_once() -> None:
    keys = iet.EngineKeys("vllm-sbw", {"a": 5}, seeding_scheme="lefthash", n_gram=3)
    ids = np.array([1, 4, 9, 2, 3, 9, 4, 1, 9, 0, 0, 7])  # 9 follows sums of 5 three times
    scored, repeated = iet.positions(ids, keys)
    assert scored.tolist() == [False, False, *[True] * 9, False]  # after 0, 0 every key has one list
    assert np.flatnonzero(repeated).tolist() == [5, 8]
    scores = iet.score_tokens(ids, keys)[:, 0]
    assert scores[2] == scores[5] == scores[8]
    selfhash = iet.EngineKeys("vllm-sbw", {"a": 5})
    scored, repeated = iet.positions(ids, selfhash)
    assert scored.tolist() == [False] * 3 + [True] * 9
    assert np.flatnonzero(repeated).tolist() == [
        5 + i for i in (3, 5)
    ]  # 9 and 0 again; the 9 at 2 is not scored


def test_profiles_of_philox_are_as_before() -> None:
    keys = iet.EngineKeys("vllm-gumbel", {"planner": 42})
    assert keys.profile.scheme.to_dict() == {"name": "vllm-gumbel", "n_gram": 5, "version": 1}
    assert keys.profile.id == "937a15d180cdd1dc"
    other = iet.EngineKeys("vllm-gumbel", {"planner": 42}, prf="hmac_sha256")
    assert other.profile.scheme.to_dict()["prf"] == "hmac_sha256"
    assert other.profile.id != keys.profile.id


@pytest.mark.parametrize("prf", ["philox", "hmac_sha256"])
def test_dual_keys_of_both_functions(prf: str) -> None:
    ids, pair = text(60), engines.vllm_dual_keys(42)
    keys = iet.EngineKeys("vllm-gumbel", {"planner": pair}, prf=prf)
    scores = iet.score_tokens(ids, keys)
    single = [iet.score_tokens(ids, iet.EngineKeys.unnamed("vllm-gumbel", [key], prf=prf)) for key in pair]
    assert np.array_equal(scores, np.concatenate(single, axis=1))
    assert keys.owners.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("scheme", "key", "options", "message"),
    [
        ("vllm-gumbel", 7, {"prf": "sha1"}, r"prf: got 'sha1', expected one of \['philox', 'hmac_sha256'\]"),
        ("vllm-gumbel", 7, {"prf": "hmac_sha256", "n_gram": 18}, "expected an integer from 2 to 17"),
        ("vllm-gumbel", 2**256, {"prf": "hmac_sha256"}, "an integer out of range"),
        ("vllm-red-green", 2**64, {}, "an integer out of range"),
        ("vllm-red-green", 7, {"gamma": 1.0}, "gamma: got 1.0, expected a number between 0 and 1"),
        ("vllm-red-green", 7, {"gamma": True}, "gamma: got True"),
        ("vllm-red-green", 7, {"gamma": 1 - 1e-9}, "which makes all ids green or none"),
        ("vllm-red-green", 7, {"gamma": 1e-9}, "which makes all ids green or none"),
        ("vllm-synthid", 7, {"depth": 0}, "depth: got 0, expected an integer from 1 to 100"),
        ("vllm-synthid", 7, {"prf": "philox"}, "prf: scheme 'vllm-synthid' has no such parameter"),
        ("vllm-synthid", [[1, 2]], {}, "expected an integer from 0"),
        ("vllm-sbw", 0, {}, "an integer out of range, expected an integer from 1"),
        ("vllm-sbw", 2**63, {}, "an integer out of range"),
        ("vllm-sbw", 7, {"n_gram": 17}, "n_gram: got 17, expected an integer from 1 to 16"),
        ("vllm-sbw", 7, {"seeding_scheme": "lefthash", "n_gram": 1}, "n_gram: got 1, expected"),
        ("vllm-sbw", 7, {"seeding_scheme": "minhash"}, "seeding_scheme: got 'minhash'"),
        ("vllm-sbw", 7, {"gamma": 1e-10}, "gamma: got 1e-10, which makes no id green"),
    ],
)  # fmt: skip
def test_rejects_invalid_keys_and_options(
    scheme: str, key: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        iet.EngineKeys.unnamed(scheme, [key], **options)


def test_errors_contain_no_key_of_256_bits() -> None:
    secret = 3**160
    with pytest.raises(InputError) as caught:
        iet.EngineKeys("vllm-gumbel", {"a": secret, "b": secret}, prf="hmac_sha256")
    assert str(secret) not in str(caught.value)
    keys = iet.EngineKeys("vllm-gumbel", {"a": secret}, prf="hmac_sha256")
    assert str(secret) not in repr(keys)
    assert str(secret & (1 << 64) - 1) not in repr(keys)
