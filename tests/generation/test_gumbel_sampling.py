"""Family gumbel in transformers: chosen tokens, unmarked positions, warnings and rejected input."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import pytest

import iet
from iet.errors import InputError, ShapeError
from iet.marks.registry import Registry
from iet.native import reference
from tests.support import generation
from tests.support.generation import (
    MODEL,
    PAD,
    PROMPT,
    V,
    chosen_token,
    raw_logits,
    seed_of,
    team,
    times_before,
    tiny,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("scipy")

from benchmarks.accuracy import unbiased  # noqa: E402 - after the skips

WARPED = {"temperature": 0.7, "top_p": 0.8}
STEPS = 12
TEAM = team(family="gumbel")
generate = functools.partial(generation.generate, do_sample=True, max_new_tokens=STEPS)


def noise(registry: Registry, agent: str, prefix: Any, columns: int = V) -> Any:
    """-log(-log u) [columns] for the position after `prefix`, from the readable definition alone."""
    return torch.tensor(reference.gumbel_noise(np.arange(columns), seed_of(registry, agent, prefix)))


def warped(prefix: Any, model: Any = MODEL) -> Any:
    logits = raw_logits(model, prefix)[None]
    logits = transformers.TemperatureLogitsWarper(WARPED["temperature"])(None, logits)
    return transformers.TopPLogitsWarper(WARPED["top_p"])(None, logits)[0]


NO_FREE = iet.FreeTokens(0, 0.0)


def config(registry: Registry, agents: Any, free: iet.FreeTokens = NO_FREE, **options: Any) -> Any:
    """A config without free tokens, so that every position is marked."""
    return iet.WatermarkingConfig(registry, agents, free=free, **options)


def processor(registry: Registry = TEAM, agents: Any = "planner", columns: int = V) -> Any:
    return config(registry, agents).construct_processor(columns, "cpu")


@pytest.mark.parametrize("registry", [TEAM, team(family="gumbel", n_gram=2)], ids=["n = 4", "n = 2"])
@pytest.mark.parametrize("columns", [V, V + 20], ids=["V", "padded"])
def test_every_step_chooses_the_oracles_token(registry: Registry, columns: int) -> None:
    model, agents = tiny(columns), ["planner", "critic", None]
    output = generate(config(registry, agents), [*PROMPT, PROMPT[0]], model, **WARPED)
    scheme = registry.profile.scheme
    chosen = 0
    for step, scores in enumerate(output.scores):
        for row, agent in enumerate(agents):
            prefix, token = output.sequences[row, : 4 + step], int(output.sequences[row, 4 + step])
            logits_kept = warped(prefix, model)
            if agent is None or int(prefix[1 - scheme.n_gram :].max()) >= V:
                assert torch.equal(scores[row].isneginf(), logits_kept.isneginf())
                torch.testing.assert_close(scores[row], logits_kept, rtol=0, atol=2e-4)
                continue
            chosen += 1
            assert token == int((logits_kept + noise(registry, agent, prefix, columns)).argmax())
            assert chosen_token(scores[row]) == token
            assert float(scores[row, token]) == pytest.approx(float(logits_kept.max()) + 128, abs=2e-4)
    assert chosen > STEPS


def test_repeated_contexts_get_new_noise() -> None:
    ids = torch.tensor([[5, 6, 7, 20, 21, 22, 5, 6, 7], [5, 6, 7, 5, 6, 7, 5, 6, 7], [7] * 9])
    out = processor()(ids, torch.zeros(3, V))
    chosen = [chosen_token(row) for row in out]
    expected = [int(noise(TEAM, "planner", row).argmax()) for row in ids]
    assert chosen == expected
    assert [times_before(row, 4) for row in ids] == [1, 2, 6]


def test_special_ids_and_short_contexts_are_unmarked() -> None:
    logits = torch.randn(3, V)
    out = processor()(torch.tensor([[PAD, 6, 7], [6, PAD, 7], [6, 7, V]]), logits)
    assert torch.equal(out, logits)
    assert processor()(torch.tensor([[6, 7]]), logits[:1]) is not None
    assert torch.equal(processor()(torch.tensor([[6, 7]]), logits[:1]), logits[:1])


def test_left_padding_does_not_change_the_text() -> None:
    padded = [[PAD, PAD, 5, 6, 8, 9], [9, 10, 11, 12, 13, 14]]
    output = generate(config(TEAM, ["planner", "critic"]), padded)
    alone = generate(config(TEAM, "planner"), [[5, 6, 8, 9]])
    assert torch.equal(output.sequences[0, 2:], alone.sequences[0])


def test_without_free_tokens_a_prompt_determines_the_text() -> None:
    marking = config(TEAM, "planner")
    first, second = (generate(marking, PROMPT[:1], seed=seed, **WARPED).sequences for seed in (1, 2))
    assert torch.equal(first, second)
    fresh = generate(marking, [[5, 6, 7, 99]], **WARPED).sequences
    assert not torch.equal(first[:, 4:], fresh[:, 4:])
    free = [generate(None, PROMPT[:1], seed=seed, **WARPED).sequences for seed in (1, 2)]
    assert not torch.equal(*free)


def test_assisted_decoding_writes_the_same_text() -> None:
    marking, prompt = config(TEAM, ["planner"]), PROMPT[:1]
    plain = generate(marking, prompt)
    assert all(chosen_token(scores[0]) is not None for scores in plain.scores)
    for options in ({"assistant_model": tiny(seed=3)}, {"prompt_lookup_num_tokens": 3}):
        assert torch.equal(generate(marking, prompt, **options).sequences, plain.sequences)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_half_precision_logits_are_compared_in_float32(dtype: str) -> None:
    logits = (4 * torch.randn(2, V)).to(getattr(torch, dtype))
    logits[0, 10:] = -torch.inf
    original, ids = logits.clone(), torch.tensor([[5, 6, 7], [8, 9, 10]])
    out = processor(agents=["planner", "critic"])(ids, logits)
    assert out.dtype == logits.dtype
    assert torch.equal(logits, original)
    for row, agent in enumerate(["planner", "critic"]):
        token = int((logits[row].float() + noise(TEAM, agent, ids[row])).argmax())
        assert chosen_token(out[row]) == token
        assert torch.equal(out[row].scatter(0, torch.tensor(token), logits[row, token]), logits[row])
        assert float(out[row].softmax(dim=-1)[token]) == 1


# Greedy decoding and beams: nothing can be marked


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"do_sample": False}, "do_sample is False"),
        ({"num_beams": 3}, "num_beams is 3"),
        ({"num_beams": 3, "do_sample": False}, "num_beams is 3"),
        ({"do_sample": False, "prompt_lookup_num_tokens": 3}, "do_sample is False"),
    ],
)
def test_warns_without_sampling_and_marks_nothing(options: Any, why: str) -> None:
    prompt = PROMPT[:1]
    unmarked = generate(None, prompt, **options)
    with pytest.warns(UserWarning, match=f"nothing is marked: {why}.*pass do_sample=True") as caught:
        output = generate(config(TEAM, "planner"), prompt, **options)
    assert sum("nothing is marked" in str(warning.message) for warning in caught) == 1
    assert torch.equal(output.sequences, unmarked.sequences)
    for step, expected in zip(output.scores, unmarked.scores, strict=True):
        assert torch.equal(step, expected)


@pytest.mark.parametrize("family", ["fourier", "gumbel"])
@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 1},
        {"temperature": 0.009},
        {"top_k": 1, "temperature": 5.0},
        {"top_p": 1e-5},
        {"min_p": 0.999},
    ],
)
def test_warns_if_sampling_has_no_choice(family: str, options: Any) -> None:
    registry = team(family=family)
    name = next(iter(options))
    unmarked = generate(None, **options)
    with pytest.warns(UserWarning, match=f"nothing is marked: {name} is {options[name]:g}, .*pass") as caught:
        output = generate(config(registry, "planner"), **options)
    assert sum("nothing is marked" in str(warning.message) for warning in caught) == 1
    assert torch.equal(output.sequences, unmarked.sequences)


@pytest.mark.parametrize("options", [{"top_k": 2}, {"temperature": 0.01}, {"top_k": 1, "num_beams": 2}])
def test_does_not_warn_if_sampling_has_a_choice(options: Any) -> None:
    marking = config(team(), "planner")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        output = generate(marking, **options)
        greedy = generate(marking, do_sample=False)
    assert not torch.equal(output.scores[0], generate(None, **options).scores[0])
    assert not torch.equal(greedy.scores[0], generate(None, do_sample=False).scores[0])


@pytest.mark.parametrize("options", [{"temperature": 0.09}, {"top_p": 0.09}, {"min_p": 0.91}])
def test_gumbel_needs_more_of_a_choice(options: Any) -> None:
    (name,) = options
    with pytest.warns(UserWarning, match=f"nothing is marked: {name} is {options[name]:g}, .*pass at"):
        output = generate(config(team(family="gumbel"), "planner"), **options)
    assert torch.equal(output.sequences, generate(None, **options).sequences)


def test_do_sample_is_read_from_any_generation_config() -> None:
    marking = config(TEAM, "planner")
    settings = {"top_k": 0, "max_new_tokens": 4, "watermarking_config": marking}
    ids = torch.tensor(PROMPT[:1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MODEL.generate(ids, generation_config=transformers.GenerationConfig(do_sample=True, **settings))
        logits_kept = tiny()
        logits_kept.generation_config = transformers.GenerationConfig(do_sample=True, **settings)
        logits_kept.generate(ids)
        # A processor without a generation config assumes sampling.
        assert chosen_token(processor()(ids, torch.zeros(1, V))[0]) is not None
    with pytest.warns(UserWarning, match="do_sample is"):
        MODEL.generate(ids, generation_config=transformers.GenerationConfig(**settings))


def test_fourier_marks_greedy_text_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        marked = generate(config(team(), "planner"), do_sample=False)
    assert not torch.equal(marked.scores[0], generate(None, do_sample=False).scores[0])


# Refusals


def test_rejects_a_processor_before_the_warpers() -> None:
    with pytest.raises(InputError, match=r"gumbel.*use iet\.WatermarkingConfig"):
        iet.LogitsProcessor(TEAM, "planner", temperature=0.7)


def test_rejects_wrong_shapes_and_placeholders() -> None:
    logits = torch.zeros(2, V)
    with pytest.raises(ShapeError, match="continuous batching"):
        processor()(torch.tensor([1, 2]), logits)
    with pytest.raises(ShapeError, match="one agent per row"):
        processor(agents=["planner", "critic", None])(torch.ones(2, 3, dtype=torch.long), logits)
    with pytest.raises(InputError, match="placeholder"):
        processor()(torch.tensor([[5, 6, 7], [5, -1, 7]]), logits)


# The distribution (benchmarks/accuracy/unbiased.py draws more)


def test_token_distribution_is_unchanged() -> None:
    for case, logits in unbiased.made_logits().items():
        if len(logits) < 1000:
            output = unbiased.tokens(case, "gumbel", unbiased.gumbel, logits, 20_000, 1)
            assert output.p > 1e-3, case
    contrast = unbiased.tokens(case, "fourier", unbiased.fourier, torch.tensor([2.2, 0.0]), 20_000, 1)
    assert contrast.p < 1e-6


def test_counting_contexts_keeps_the_distribution_of_texts() -> None:
    assert unbiased.texts("texts", "gumbel", True, 4000, 1).p > 1e-3
    assert unbiased.texts("texts", "gumbel", True, 4000, 1, unbiased.KNOWN).p > 1e-3
    assert unbiased.texts("texts", "with noise that was met", False, 4000, 1).p < 1e-6
