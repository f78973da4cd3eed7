"""Variants of a key in transformers: which rows draw, which share a draw, and that texts differ."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import numpy as np
import pytest

import iet
from iet.errors import InputError
from iet.marks.derivation import derive_subkey
from iet.marks.registry import Registry
from iet.native import reference
from tests.support import generation, teams
from tests.support.generation import MODEL, PAD, PROMPT, STEPS, V, assert_close, raw_logits

torch = pytest.importorskip("torch")

VARIANTS = 16


def team(**scheme: Any) -> Registry:
    registry = teams.team([], vocab_size=V, unmarked_ids=[PAD], **scheme)
    for number, name in enumerate(("planner", "critic"), 1):
        registry.add(name, secret=bytes([number]) * 32, variants=VARIANTS)
    return registry


GUMBEL, FOURIER = team(family="gumbel"), team()
generate = functools.partial(generation.generate, do_sample=True, max_new_tokens=STEPS)


def seed_of(registry: Registry, agent: str, variant: int, prefix: Any) -> Any:
    """k_π of the position after `prefix`, from the readable definition alone."""
    context = np.asarray(prefix)[len(prefix) - registry.profile.scheme.n_gram + 1 :]
    subkey = np.frombuffer(derive_subkey(registry.keys(agent)[-1].secret, variant), dtype=np.uint8)
    return reference.context_seed(subkey, context)


def variants_of(registry: Registry, agent: str, sequence: Any) -> list[int]:
    """The variants whose noise chose every token of a sequence, of a prompt of 4, by the oracle."""
    found = []
    for variant in range(VARIANTS):
        for step in range(STEPS):
            prefix = sequence[: 4 + step]
            noise = reference.gumbel_noise(np.arange(V), seed_of(registry, agent, variant, prefix))
            if int((raw_logits(MODEL, prefix) + torch.tensor(noise)).argmax()) != int(sequence[4 + step]):
                break
        else:
            found.append(variant)
    return found


def test_every_row_is_marked_under_the_variant_that_its_seed_draws() -> None:
    agents = ["planner", "critic"] * 3
    found = generate(iet.WatermarkingConfig(GUMBEL, agents, seed=3), PROMPT * 3).sequences
    table = GUMBEL.marking_keys()
    rows = table.rows_of([GUMBEL.slot(agent) for agent in agents], seed=3)
    assert len(set(rows.tolist())) == 6  # of two rows that drew alike one would be left to the sampler
    for agent, row, sequence in zip(agents, rows, found, strict=True):
        assert variants_of(GUMBEL, agent, sequence) == [table.variants[row]]


def test_a_prompt_that_comes_again_gets_another_text_unless_a_seed_is_given() -> None:
    marking = iet.WatermarkingConfig(GUMBEL, "planner")
    texts = [tuple(generate(marking, PROMPT[:1]).sequences[0].tolist()) for _ in range(12)]
    drawn = [variants_of(GUMBEL, "planner", text) for text in texts]
    assert all(len(variants) == 1 for variants in drawn)
    assert len(set(texts)) == len({variants[0] for variants in drawn}) > 3  # 16^-8·1820 for fewer
    seeded = [
        tuple(generate(iet.WatermarkingConfig(GUMBEL, "planner", seed=s), PROMPT[:1], seed=t).sequences[0])
        for s, t in ((3, 1), (3, 2))
    ]
    assert [int(i) for i in seeded[0]] == [int(i) for i in seeded[1]]


def test_returned_sequences_of_one_prompt_draw_each_for_themselves() -> None:
    marking = iet.WatermarkingConfig(GUMBEL, ["planner", None], seed=1)
    found = generate(marking, num_return_sequences=8).sequences
    drawn = [variants_of(GUMBEL, "planner", sequence) for sequence in found[:8]]
    rows = GUMBEL.marking_keys().rows_of([0] * 8, seed=1)
    expected = GUMBEL.marking_keys().variants[rows].tolist()
    for number, (variants, variant) in enumerate(zip(drawn, expected, strict=True)):
        # Rows that drew alike stand at the same context, and the second one is left to the sampler.
        assert variants == [variant] or variant in expected[:number]
    assert sum(len(variants) for variants in drawn) == len(set(expected)) > 3


def test_beams_of_a_prompt_share_a_variant() -> None:
    options: dict[str, Any] = {"num_beams": 3, "num_return_sequences": 2, "do_sample": False}
    agents = ["planner", "critic"]
    found = generate(iet.WatermarkingConfig(FOURIER, agents, seed=9), **options)
    table = FOURIER.marking_keys()
    variants = table.variants[table.rows_of([0, 1], seed=9)]
    for row, sequence in enumerate(found.sequences):
        for step in range(STEPS):
            prefix = sequence[: 4 + step]
            seed = seed_of(FOURIER, agents[row // 2], int(variants[row // 2]), prefix)
            phi = reference.phi(reference.permute(np.arange(V), seed, V), 1, V)
            shift = torch.tensor(np.float32(0.8) * phi)
            shift[PAD] = 0
            scores = found.scores[step][found.beam_indices[row, step]]
            assert_close(scores, torch.log_softmax(raw_logits(MODEL, prefix), -1) + shift)


def test_a_processor_draws_once_and_its_copies_mark_alike(tmp_path: Any) -> None:
    registry = team()
    registry.save(tmp_path / "team.json")
    processor = iet.LogitsProcessor(registry, ["planner", "critic"], 1.0)
    again = pickle.loads(pickle.dumps(processor))
    texts = [generate(logits_processor=[p], do_sample=False).sequences for p in (processor, processor, again)]
    assert torch.equal(texts[0], texts[1])
    assert torch.equal(texts[0], texts[2])
    seeded = [iet.LogitsProcessor(registry, "planner", 1.0, seed=seed) for seed in (1, 1, 2)]
    scores = [generate(logits_processor=[p], do_sample=False).scores[0] for p in seeded]
    assert torch.equal(scores[0], scores[1])
    assert not torch.equal(scores[0], scores[2])


def test_seeds_are_saved_and_those_that_are_none_refused(tmp_path: Any) -> None:
    registry = team(family="gumbel")
    registry.save(tmp_path / "team.json")
    marking = iet.WatermarkingConfig(registry, ["planner", None], seed=11)
    assert marking.to_dict()["seed"] == 11
    assert iet.WatermarkingConfig.from_dict(marking.to_dict()) == marking
    assert "seed" not in iet.WatermarkingConfig(registry, "planner").to_dict()
    for seed in ("11", 1.0, True):
        with pytest.raises(InputError, match=f"seed: got {seed!r}, expected an int or None"):
            iet.WatermarkingConfig(registry, "planner", seed=seed)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="seed: got"):
            iet.LogitsProcessor(FOURIER, "planner", 1.0, seed=seed)  # type: ignore[arg-type]
