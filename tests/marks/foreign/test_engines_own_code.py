"""Marks of serving engines against the engines' own detectors and transformers, number for number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import iet
from benchmarks import engine_wheels
from benchmarks.accuracy import engine_answers
from benchmarks.security.foreign_marks import torch_permutation
from iet import evidence
from iet.marks.foreign import engines
from iet.marks.foreign.synthid import synthid_table
from iet.native import load as native
from tests.support.engine_texts import V, keys_of, text

KEYS = (0, 1, 42, 2**31, 2**32 - 1, 2**32, 2**63 + 12345, 2**64 - 1)


def of_wheel(engine: str) -> Any:
    """The module of an engine's detector, out of its wheel."""
    why = engine_wheels.missing(engine)
    if why:
        pytest.skip(why)
    return engine_wheels.detector(engine)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 8, 13])
def test_vllm_scores_equal_its_detector(width: int) -> None:
    vllm, ids = of_wheel("vllm"), text(120)
    ours = iet.score_tokens(ids, iet.EngineKeys.unnamed("vllm-gumbel", list(KEYS), n_gram=width + 1))
    keys = iet.EngineKeys("vllm-gumbel", {f"a{i}": key for i, key in enumerate(KEYS)}, n_gram=width + 1)
    scored, repeated = iet.positions(ids, keys)
    assert scored.all()
    assert repeated.any()
    for column, key in enumerate(KEYS):
        detector = vllm.GumbelWatermarkDetector(key, context_width=width, deduplicate_contexts=False)
        theirs = detector._score_tokens(*detector._prepare_inputs(ids.tolist())).numpy()
        np.testing.assert_allclose(ours[:, column], theirs, rtol=4e-7, atol=2e-7)
        detected = vllm.GumbelWatermarkDetector(key, context_width=width).detect(ids.tolist())
        fresh = ours[~repeated, column].astype(float)
        assert detected.num_scored_tokens == len(fresh)
        assert detected.score == pytest.approx(fresh.sum(), rel=1e-6)
        p = math.exp(evidence.log_tail(fresh.sum(), len(fresh), keys.profile.family))
        assert detected.p_value == pytest.approx(p, rel=1e-4)


def test_vllm_dual_keys_are_two_columns() -> None:
    vllm, ids = of_wheel("vllm"), text(120)
    ours = iet.score_tokens(ids, iet.EngineKeys.unnamed("vllm-gumbel", engines.vllm_dual_keys(42)))
    detector = vllm.DualKeyGumbelWatermarkDetector(42, alpha=0.25, deduplicate_contexts=False)
    theirs = detector._score_tokens(*detector._prepare_inputs(ids.tolist())).numpy()
    np.testing.assert_allclose(ours @ [0.75, 0.25], theirs, rtol=4e-7, atol=2e-7)


@pytest.mark.parametrize(
    "case", engine_answers.CASES, ids=lambda case: f"{case.source} {list(case.parameters.values())}"
)
def test_scores_equal_other_code(case: engine_answers.Case) -> None:
    why = case.missing()
    if why:
        pytest.skip(why)
    row = engine_answers.compare(case, num_keys=6, num_tokens=90, seed=1)
    assert row["scores"] == 8 * (90 - case.first)
    assert row["different"] == 0


@pytest.mark.parametrize("width", [1, 2, 4, 7, 20, 64])
def test_sglang_scores_equal_its_detector(width: int) -> None:
    sglang, ids = of_wheel("sglang"), text(400)
    hexadecimal = [f"{key:x}" for key in KEYS]
    ours = iet.score_tokens(ids, iet.EngineKeys.unnamed("sglang-gumbel", hexadecimal, n_gram=width + 1))
    keys = iet.EngineKeys("sglang-gumbel", {f"a{i}": k for i, k in enumerate(hexadecimal)}, n_gram=width + 1)
    scored, repeated = iet.positions(ids, keys)
    assert (ours[:width] == 0).all()
    assert not scored[:width].any()
    assert repeated.any()
    for column, key in enumerate(hexadecimal):
        detector = sglang.WatermarkDetector("0x" + key, context_window=width)
        theirs = [
            detector._score(detector._key_a, sglang.hash_context(ids[j - width : j].tolist()), int(ids[j]))
            for j in range(width, len(ids))
        ]
        np.testing.assert_allclose(ours[width:, column], theirs, rtol=4e-7, atol=2e-7)
        detected, fresh = detector.detect_tokens(ids.tolist()), ours[scored & ~repeated, column].astype(float)
        assert (detected.combined.num_contexts, detected.repeated_contexts) == (len(fresh), repeated.sum())
        assert detected.combined.score == pytest.approx(fresh.sum(), rel=1e-6)
        log_p = evidence.log_tail(fresh.sum(), len(fresh), keys.profile.family)
        assert detected.combined.log_p_value == pytest.approx(log_p, abs=1e-4)


def test_prompt_tail_is_context() -> None:
    sglang, ids = of_wheel("sglang"), np.arange(100, 160)
    detected = sglang.WatermarkDetector("ab").detect_tokens(
        ids[20:].tolist(), prompt_token_ids=ids[:20].tolist()
    )
    ours = iet.score_tokens(ids, iet.EngineKeys.unnamed("sglang-gumbel", ["ab"]))
    assert detected.combined.score == pytest.approx(float(ours[20:, 0].astype(float).sum()), rel=1e-6)


@pytest.mark.parametrize(("seeding_scheme", "width"), [("lefthash", 1), ("selfhash", 1), ("selfhash", 4)])
@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.9])
def test_kgw_scores_equal_transformers(seeding_scheme: str, width: int, ratio: float) -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    import types

    ids, n_gram = text(60, V), width + (seeding_scheme == "lefthash")
    hashing_keys = [1, 15485863, 2**61 + 12345, 2**63 - 1]
    options: dict[str, Any] = {
        "vocab_size": V, "n_gram": n_gram, "greenlist_ratio": ratio, "seeding_scheme": seeding_scheme,
    }  # fmt: skip
    ours = iet.score_tokens(ids, iet.EngineKeys.unnamed("kgw", hashing_keys, **options))
    model = types.SimpleNamespace(vocab_size=V, bos_token_id=-1, is_encoder_decoder=False)
    for column, key in enumerate(hashing_keys):
        config = transformers.WatermarkingConfig(
            hashing_key=key, context_width=width, greenlist_ratio=ratio, seeding_scheme=seeding_scheme
        )
        detector = transformers.WatermarkDetector(model, "cpu", config, ignore_repeated_ngrams=True)
        tensor = torch.from_numpy(ids)
        for j in range(n_gram - 1, len(ids)):
            seen = tensor[j - n_gram + 1 : j + (seeding_scheme == "selfhash")]
            assert ours[j, column] == detector._get_ngram_score(seen, int(ids[j]))
        detected = detector(tensor[None], return_dict=True)
        keys = iet.EngineKeys("kgw", {"a": key}, **options)
        scored, repeated = iet.positions(ids, keys)
        if seeding_scheme == "lefthash":  # after id 0 there is no evidence, as the lists are the same for all
            assert (scored[1:] == (ids[:-1] != 0)).all()
            continue
        fresh = scored & ~repeated
        if width > 1:  # the detector counts n-grams, whose lists may be one; here a token counts once
            assert fresh.sum() == len(np.unique(ids[scored])) < detected.num_tokens_scored[0]
            continue
        assert (detected.num_tokens_scored[0], detected.num_green_tokens[0]) == (
            fresh.sum(),
            ours[fresh, column].sum(),
        )


@pytest.mark.parametrize(("size", "seed", "depth"), [(1 << 16, 0, 30), (2, 5, 3), (256, 2**32 - 1, 1)])
def test_synthid_scores_equal_transformers(size: int, seed: int, depth: int) -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    ids = text(80)
    agents = np.random.default_rng(1).integers(0, 2**63 - 1, (3, depth)).tolist()
    for n_gram in (2, 5):
        options = {"n_gram": n_gram, "sampling_table_size": size, "sampling_table_seed": seed}
        mean = iet.score_tokens(ids, iet.EngineKeys.unnamed("synthid", agents, **options))
        weighted = iet.score_tokens(ids, iet.EngineKeys.unnamed("synthid", agents, weighted=True, **options))
        for column, key in enumerate(agents):
            processor = transformers.SynthIDTextWatermarkLogitsProcessor(
                n_gram, key, size, seed, context_history_size=1024, device=torch.device("cpu")
            )
            g = processor.compute_g_values(torch.from_numpy(ids)[None])[0].numpy()
            detected = 0.5 + mean[n_gram - 1 :, column] / (2 * math.sqrt(depth))
            np.testing.assert_allclose(detected, g.mean(axis=1), atol=1e-6)
            weights = np.linspace(10, 1, depth)
            scale = np.sqrt((weights**2).sum()) / (2 * weights.sum())
            detected = 0.5 + weighted[n_gram - 1 :, column] * scale
            np.testing.assert_allclose(detected, g @ weights / weights.sum(), atol=1e-6)


def test_synthid_counts_unmasked_tokens_only() -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    ids, key = text(300), keys_of("synthid", 1)[0]
    processor = transformers.SynthIDTextWatermarkLogitsProcessor(
        5, key, 1 << 16, 0, context_history_size=1024, device=torch.device("cpu")
    )
    mask = processor.compute_context_repetition_mask(torch.from_numpy(ids)[None])[0].numpy()
    keys = iet.EngineKeys("synthid", {"a": key})
    scored, repeated = iet.positions(ids, keys)
    assert scored[4:].all()
    assert not scored[:4].any()
    # Ours leaves out n-grams with the hash of an earlier one as well: of 65,536 hashes, some meet.
    assert (repeated[4:] >= ~mask).all()
    assert 0 < (~mask).sum() <= repeated.sum() <= (~mask).sum() + 3


def test_permutations_and_draws_equal_torch() -> None:
    torch = pytest.importorskip("torch")
    for seed in (0, 1, 15485863, 2**32 - 1):
        for count in (1, 2, 31, 1000):
            expected = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).numpy()
            assert np.array_equal(torch_permutation(seed, count), expected)
            if native.cpu is not None:
                permutation = np.empty(count, np.uint32)
                native.cpu.torch_permute(count, seed, permutation.ctypes.data)
                assert np.array_equal(permutation, expected)
            draws = torch.randint(0, 2, (count,), generator=torch.Generator().manual_seed(seed)).numpy()
            assert np.array_equal(synthid_table(count, seed), draws)
