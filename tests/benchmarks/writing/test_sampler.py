"""One sampler for all texts of the benchmarks: its steps, its draws, and continuations under keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import iet

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from benchmarks.accuracy import texts  # noqa: E402 - after the skips
from benchmarks.writing import continuations, llama, sampler, shared  # noqa: E402
from benchmarks.writing.models import Loaded  # noqa: E402
from benchmarks.writing.sampler import draw, nucleus, steps  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("architecture", ["shipped", "llama", "gpt_neox"])
def test_batched_steps_equal_single_rows(loaded: Loaded, architecture: str) -> None:
    model = loaded.model if architecture == "shipped" else small_model(architecture)
    rng, size = np.random.default_rng(0), model.config.vocab_size
    prompts = [rng.integers(3, size, length).tolist() for length in (23, 17, 2, 1)]
    more = torch.from_numpy(rng.integers(3, size, (4, 6)))
    ids = torch.zeros(4, 23 + 6, dtype=torch.int64)
    real = torch.ones(4, 23 + 6, dtype=torch.bool)
    for i, prompt in enumerate(prompts):
        real[i, : 23 - len(prompt)] = False
        ids[i, 23 - len(prompt) : 23] = torch.tensor(prompt)
    with torch.inference_mode():
        for t, logits in enumerate(steps(model, ids, real, 23)):
            alone = [torch.tensor([prompt + more[i, :t].tolist()]) for i, prompt in enumerate(prompts)]
            expected = torch.stack([model(row).logits[0, -1] for row in alone])
            assert torch.allclose(logits, expected, atol=2e-4), t
            ids[:, 23 + t] = more[:, t]
    assert t == 5


@pytest.mark.parametrize("architecture", ["shipped", "llama"])
def test_llama_steps_continue_with_the_remaining_rows(loaded: Loaded, architecture: str) -> None:
    model = loaded.model if architecture == "shipped" else small_model(architecture)
    rng, size = np.random.default_rng(0), model.config.vocab_size
    lengths = (23, 17, 2, 1, 20)
    ids = torch.from_numpy(rng.integers(3, size, (5, 23 + 9)))
    real = torch.ones(ids.shape, dtype=torch.bool)
    for i, length in enumerate(lengths):
        real[i, : 23 - length] = False
    here, leave = torch.arange(5), {2: [0, 2, 3, 4], 5: [2, 1], 6: [0]}
    assert llama.fits(model)
    with torch.inference_mode():
        run = llama.steps(model, ids, real, 23)
        for t in range(9):
            logits = next(run)
            if t in leave:
                here = here[leave[t]]
                assert torch.equal(run.send(torch.tensor(leave[t])), logits[leave[t]])
                logits = logits[leave[t]]
            alone = [ids[i : i + 1, 23 - lengths[i] : 23 + t] for i in here.tolist()]
            expected = torch.stack([model(row).logits[0, -1] for row in alone])
            assert torch.allclose(logits, expected, atol=2e-4), t
        assert here.tolist() == [3]
        with pytest.raises(StopIteration):
            next(run)


def test_llama_steps_in_bfloat16_are_near_those_in_float32(loaded: Loaded) -> None:
    model = small_model("llama")
    ids = torch.from_numpy(np.random.default_rng(0).integers(3, model.config.vocab_size, (3, 20)))
    real = torch.ones(ids.shape, dtype=torch.bool)
    with torch.inference_mode():
        exact = list(llama.steps(model, ids, real, 12))
        rough = list(llama.steps(small_model("llama").bfloat16(), ids, real, 12))
    differences = torch.stack([(a - b).abs().max() for a, b in zip(exact, rough, strict=True)])
    assert all(logits.dtype == torch.float32 for logits in rough)
    assert 0 < differences.max() < 0.05 * torch.stack(exact).abs().max()


def test_llama_steps_reject_other_models(loaded: Loaded) -> None:
    assert llama.fits(loaded.model)
    assert not llama.fits(small_model("gpt_neox"))
    assert not llama.fits(small_model("llama").half())
    config = transformers.LlamaConfig(**SHAPE, intermediate_size=64, num_key_value_heads=2, mlp_bias=True)
    assert not llama.fits(transformers.AutoModelForCausalLM.from_config(config))


@pytest.mark.parametrize("architecture", ["llama", "gpt_neox"])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_rows_of_different_lengths_equal_single_rows(architecture: str, penalty: float) -> None:
    model, rng = small_model(architecture), np.random.default_rng(5)
    prompts = [rng.integers(3, 100, length).tolist() for length in (9, 4, 7, 5, 6, 8, 3, 9, 9, 2)]
    max_lengths = torch.tensor([3, 30, 12, 1, 25, 7, 18, 30, 5, 9])
    u = torch.rand(30, 2, 10, 1, generator=torch.Generator().manual_seed(0))
    marked: list[list[int]] = []

    def written(rows: list[int]) -> sampler.Sampled:
        def marking(numbers: Any) -> sampler.Mark:
            marked.append([rows[i] for i in numbers])
            bias = torch.zeros(10, 100).scatter_(1, torch.arange(10)[:, None] * 9 + 5, 4.0)
            return lambda seen, logits: logits + bias[marked[-1]]

        return sampler.sample(
            model,
            [prompts[i] for i in rows],
            lambda t: u[t][:, rows],
            tokens=int(max_lengths[rows].max()),
            temperature=0.8,
            top_p=0.9,
            repetition_penalty=penalty,
            ends=sampler.Ends([50], max_lengths[rows] // 2, max_lengths[rows]),
            marking=marking,
        )

    together = written(list(range(10)))
    assert together.lengths.max() > 20
    assert (len(marked) > 4) == (architecture == "llama")
    for row in range(10):
        alone = written([row])
        (length,) = alone.lengths.tolist()
        assert length == together.lengths[row] <= max_lengths[row]
        assert torch.equal(together.ids[row, :length], alone.ids[0, :length])
        assert together.entropy[row] == pytest.approx(float(alone.entropy[0]), abs=1e-4)
        assert together.marked_entropy[row] == pytest.approx(float(alone.marked_entropy[0]), abs=1e-4)


def test_repetition_penalty_equals_transformers() -> None:
    model, rng = small_model("llama"), np.random.default_rng(3)
    prompts = [rng.integers(3, 100, length).tolist() for length in (6, 2, 9)]
    seen: list[torch.Tensor] = []
    sampled = sampler.sample(
        model,
        prompts,
        lambda t: torch.rand(2, 3, 1, generator=torch.Generator().manual_seed(t)),
        tokens=17,
        temperature=1.0,
        repetition_penalty=1.4,
        on_logits=lambda logits, going: seen.append(logits.clone()),
    )
    process = transformers.RepetitionPenaltyLogitsProcessor(1.4)
    for row, prompt in enumerate(prompts):
        ids = torch.tensor([prompt + sampled.ids[row].tolist()])
        with torch.inference_mode():
            raw = model(ids).logits[0]
        for step, logits in zip((0, 8, 16), seen, strict=True):
            end = len(prompt) + step
            expected = process(ids[:, :end], raw[end - 1 : end])[0]
            assert torch.allclose(logits[row], expected, atol=2e-4)
            assert not torch.allclose(logits[row], raw[end - 1], atol=0.05)


@pytest.mark.parametrize("architecture", ["shipped", "llama", "gpt_neox"])
@pytest.mark.parametrize("copies", [1, 3])
def test_rows_that_share_a_prompt_take_the_same_steps(loaded: Loaded, architecture: str, copies: int) -> None:
    model = loaded.model if architecture == "shipped" else small_model(architecture)
    rng, size = np.random.default_rng(0), model.config.vocab_size
    ids = torch.from_numpy(rng.integers(3, size, (6, 23 + 40)))
    ids[:, :23] = ids[::copies, :23].repeat_interleave(copies, 0)
    with torch.inference_mode():
        expected = model(ids).logits[:, 22:-1]
        stepped = torch.stack([logits.clone() for logits in shared.steps(model, ids, 23, copies)], dim=1)
        assert torch.allclose(stepped, expected, atol=2e-4)
        assert torch.equal(model(ids).logits[:, 22:-1], expected)  # it is left as it was


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
def test_nucleus_is_that_of_transformers(top_p: float) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(12, 2000, generator=generator) * torch.linspace(0.1, 6, 12)[:, None]
    expected = transformers.TopPLogitsWarper(top_p)(None, logits.double())
    result = nucleus(logits, top_p)
    finite = result.isfinite()
    assert (finite != expected.isfinite()).sum() <= 2  # sums of float32 end an id sooner or later
    assert torch.equal(result[finite], logits[finite])
    assert (finite.sum(1) > 64).any()  # beyond the first look
    assert (finite.sum(1) > 512).any() or top_p < 0.9
    assert torch.equal(nucleus(logits, 1.0), logits)


SHAPE = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def small_model(architecture: str) -> Any:
    torch.manual_seed(0)
    if architecture == "llama":
        config = transformers.LlamaConfig(
            **SHAPE, intermediate_size=64, num_key_value_heads=2, initializer_range=0.2
        )
    else:
        config = transformers.GPTNeoXConfig(**SHAPE, intermediate_size=64, initializer_range=0.2)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def registry_of(agents: int, vocab_size: int, family: str = "fourier") -> iet.Registry:
    registry = iet.Registry.create(None, vocab_size=vocab_size, scheme=texts.scheme(family))
    for slot in range(agents):
        registry.add(f"a{slot}", secret=bytes([slot] * 32))
    return registry


@pytest.mark.parametrize("architecture", ["llama", "gpt_neox"])
def test_continuations_of_a_shared_prompt_equal_the_models(architecture: str) -> None:
    # Almost greedy: after the temperature the likeliest token is certain, whatever the draw.
    model = small_model(architecture)
    prompts = np.random.default_rng(0).integers(3, 100, (3, 7))
    slots = np.full((3, 2), -1)
    keys = registry_of(1, 100).marking_keys()
    sampled = continuations.sample(
        model, prompts, slots, keys, tokens=20, temperature=1e-4, barred=(0, 5), seed=0
    )
    ids = torch.from_numpy(prompts)
    expected = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        min_new_tokens=20,
        max_new_tokens=20,
        suppress_tokens=[0, 5],
        pad_token_id=0,
    )[:, 7:].numpy()
    assert np.array_equal(sampled.ids.reshape(3, 2, 20), np.repeat(expected[:, None], 2, axis=1))
    assert len(np.unique(expected)) > 10
    assert np.all(sampled.entropy < 0.1)


def test_draws_nothing_from_nan() -> None:
    logits = torch.zeros(2, 150)
    logits[1, 140] = torch.nan
    with pytest.raises(ValueError, match="got NaN"):
        draw(logits, torch.rand(2, 2, 1, generator=torch.Generator().manual_seed(0)))


def test_draws_follow_the_distribution() -> None:
    stats = pytest.importorskip("scipy.stats")
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(1, 150, generator=generator) * 1.5  # no multiple of the block
    logits[0, [0, 63, 64, 149]] = -torch.inf
    drawn = draw(logits.repeat(100_000, 1), torch.rand(2, 100_000, 1, generator=generator))
    counts = np.bincount(drawn.numpy(), minlength=150)
    expected = torch.softmax(logits[0].double(), -1).numpy() * 100_000
    assert counts[[0, 63, 64, 149]].sum() == 0
    frequent = expected > 5
    assert (
        stats.chisquare(
            counts[frequent], expected[frequent] * counts[frequent].sum() / expected[frequent].sum()
        ).pvalue
        > 1e-3
    )


def test_entropy_equals_the_models_and_marking_lowers_it() -> None:
    model = small_model("llama")
    prompts = np.random.default_rng(1).integers(3, 100, (40, 5))
    keys = registry_of(2, 100).marking_keys()
    slots = np.tile([0, 1], (40, 1))
    sampled = continuations.sample(
        model, prompts, slots, keys, tokens=1, temperature=0.8, barred=(0,), seed=0
    )
    with torch.no_grad():
        logits = model(torch.from_numpy(prompts)).logits[:, -1].double() / 0.8
    logits[:, 0] = -torch.inf
    entropy = torch.special.entr(torch.softmax(logits, -1)).sum(-1).numpy()
    assert sampled.entropy == pytest.approx(np.repeat(entropy, 2), abs=1e-4)
    assert sampled.marked_entropy.mean() < sampled.entropy.mean()


@pytest.mark.parametrize("family", list(texts.SCHEMES))
def test_continuations_carry_the_mark_of_their_key(family: str) -> None:
    model = small_model("llama")
    registry = registry_of(3, 100, family)
    prompts = np.random.default_rng(2).integers(3, 100, (4, 8))
    slots = np.array([[0, 1], [2, -1], [1, 0], [-1, 2]])
    options = {"tokens": 150, "temperature": 3.0, "barred": (0,)}
    sampled = continuations.sample(model, prompts, slots, registry.marking_keys(), seed=1, **options)
    for row, slot in zip(sampled.ids, slots.reshape(-1), strict=True):
        scores = iet.score_tokens(row, registry)[registry.get_profile(None).scheme.n_gram - 1 :].mean(axis=0)
        unmarked_score = registry.get_profile(None).family.mean(0)
        best = int(np.argmax(scores))
        assert (best == slot) if slot >= 0 else (abs(scores - unmarked_score) < 0.35).all()
    repeated = continuations.sample(model, prompts, slots, registry.marking_keys(), seed=1, **options)
    assert np.array_equal(sampled.ids, repeated.ids)


def test_gumbel_tokens_depend_on_the_key_alone() -> None:
    model = small_model("llama")
    registry = registry_of(2, 100, "gumbel")
    prompts = np.array([[3, 4, 5, 6, 3, 4, 5], [9, 8, 7, 6, 5, 4, 3]])  # the first ends as it begins
    slots = np.array([[0, 1], [1, -1]])
    options = {"tokens": 120, "temperature": 0.2, "barred": ()}
    first, second = (
        continuations.sample(model, prompts, slots, registry.marking_keys(), seed=seed, **options)
        for seed in (1, 2)
    )
    assert first.unmarked.all(axis=1).tolist() == first.unmarked.any(axis=1).tolist() == [False] * 3 + [True]
    assert np.array_equal(first.ids[:3], second.ids[:3])
    assert not np.array_equal(first.ids[3], second.ids[3])
