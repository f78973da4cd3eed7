"""A small random model of transformers, two agents, and what `generate` is expected to return."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from iet.marks.derivation import derive_subkey
from iet.marks.registry import Registry
from iet.native import reference
from tests.support import teams
from tests.support.models import tiny_model

torch = pytest.importorskip("torch")

V = 300
PAD = 0
PROMPT = [[5, 6, 7, 8], [9, 10, 11, 12]]
STEPS = 6


def tiny(columns: int = V, seed: int = 0) -> Any:
    """A random Llama whose next tokens are neither certain nor all alike."""
    return tiny_model(columns, seed=seed, pad_token_id=PAD)


def team(**scheme: Any) -> Registry:
    return teams.team(["planner", "critic"], numbered=1, vocab_size=V, unmarked_ids=[PAD], **scheme)


MODEL = tiny()
TEAM = team()


def generate(
    marking: Any = None, prompt: Any = PROMPT, model: Any = MODEL, seed: int = 1, **options: Any
) -> Any:
    """Everything `generate` returns, by default from greedy search."""
    torch.manual_seed(seed)
    ids = torch.tensor(prompt)
    defaults = {
        "attention_mask": (ids != PAD).long(),
        "max_new_tokens": STEPS,
        "do_sample": False,
        "top_k": 0,
        "output_scores": True,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    if marking is not None:
        defaults["watermarking_config"] = marking
    return model.generate(ids, **{**defaults, **options})


def seed_of(registry: Registry, agent: str, prefix: Any) -> Any:
    """k_π of the position after `prefix`, from the readable definition alone."""
    scheme = registry.profile.scheme
    context = np.asarray(prefix)[len(prefix) - scheme.n_gram + 1 :]
    subkey = np.frombuffer(derive_subkey(registry.keys(agent)[-1].secret), dtype=np.uint8)
    return reference.context_seed(subkey, context, times_before(prefix, scheme.n_gram) * scheme.counted)


def times_before(prefix: Any, n_gram: int) -> int:
    """Number of earlier occurrences in `prefix` of the context of the position after it."""
    return int(reference.times_before([*np.asarray(prefix).tolist(), 0], n_gram)[-1])


def shift(registry: Registry, agent: str | None, prefix: Any, columns: int = V) -> Any:
    """κ·φ(P(v)) [columns] for the position after `prefix`, from the readable definition alone."""
    scheme = registry.profile.scheme
    shifts = np.zeros(columns, dtype=np.float32)
    context = np.asarray(prefix)[len(prefix) - scheme.n_gram + 1 :]
    if agent is None or len(prefix) < scheme.n_gram - 1 or (context >= V).any() or (context == PAD).any():
        return torch.tensor(shifts)
    ranks = reference.permute(np.arange(V), seed_of(registry, agent, prefix), V)
    shifts[:V] = np.float32(scheme.kappa) * reference.phi(ranks, scheme.k_p, V)
    shifts[PAD] = 0
    return torch.tensor(shifts)


def raw_logits(model: Any, prefix: Any) -> Any:
    """The model's logits [columns] for the position after `prefix`, left padding cut off, without a cache."""
    ids = torch.as_tensor(prefix)
    start = int((ids != PAD).nonzero()[0])
    with torch.no_grad():
        return model(ids[None, start:], use_cache=False).logits[0, -1].float()


def assert_close(actual: Any, expected: Any) -> None:
    assert torch.equal(torch.isinf(actual), torch.isinf(expected))
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-4)


def chosen_token(row: Any) -> int | None:
    """Return the token whose logit family gumbel has raised, None if none is."""
    first, second = row.float().topk(2).values.tolist()
    return int(row.argmax()) if first - second > 90 and first > 100 else None
