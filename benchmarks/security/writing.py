"""What one agent publishes, and what it writes later: text of the shipped model at temperature 1.

A text continues an opening and sixteen unmarked tokens, so that no two texts begin alike: in family gumbel an
agent whose key has one variant would say the same after the same prompt.
"""

from __future__ import annotations

import pathlib

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import texts
from iet.marks.files import write_file
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme

SCHEMES = {
    "fourier n=2": Scheme(kappa=0.8, n_gram=2),
    "fourier n=4": Scheme(kappa=0.8, n_gram=4),
    "gumbel 1 n=4": Scheme(family="gumbel", n_gram=4, version=1),
    "gumbel n=4": Scheme(family="gumbel", n_gram=4),
}
AGENT, LATECOMER = "planner", "critic"
"""Who publishes; an agent of the same team who never did."""

TOKENS, NEW = 400, 48
"""Tokens of a text; number of texts that are written after all others."""

_OPENING, _UNMARKED = 24, 16


def team(scheme: str) -> Registry:
    """Return the registry of both agents; keys are the same at every run."""
    registry = Registry.create(None, tokenizer=texts.tokenizer("shipped"), scheme=SCHEMES[scheme])
    for slot, name in enumerate((AGENT, LATECOMER)):
        registry.add(name, secret=bytes([7 + slot]) * 32)
    return registry


def written(work: pathlib.Path, scheme: str, tokens: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the agent's texts as ids [N, 400], at least `tokens` in all, and later ones [48, 400].

    They are written once, and kept in `work`.
    """
    count = -(-tokens // TOKENS)
    path = work / f"{scheme.replace(' ', '-')}-{count}.npz"
    if not path.is_file():
        work.mkdir(parents=True, exist_ok=True)
        ids = _write(scheme, count + NEW).astype(np.uint16)
        write_file(path, lambda file: np.savez_compressed(file, ids=ids))
    with np.load(path) as stored:
        found = stored["ids"].astype(np.int64)
    return found[:count], found[count:]


def _write(scheme: str, rows: int) -> NDArray[np.int64]:
    import torch

    from benchmarks.writing.continuations import sample
    from iet.demo.conversation import load_model

    torch.set_num_threads(1)
    model, reader = load_model(texts.MODELS["shipped"])[0], texts.tokenizer("shipped")
    keys = team(scheme).marking_keys()
    openings = texts.OPENINGS["shipped"]
    encode = reader.backend.encode
    prompts = np.array(
        [
            encode(openings[row % len(openings)], add_special_tokens=False).ids[:_OPENING]
            for row in range(rows)
        ]
    )
    for slot, tokens in ((-1, _UNMARKED), (0, TOKENS)):
        found = sample(
            model,
            prompts,
            np.full((rows, 1), slot),
            keys,
            tokens=tokens,
            temperature=1.0,
            barred=reader.special_ids,
            seed=tokens,
        )
        prompts = np.concatenate([prompts, found.ids], axis=1)
    return prompts[:, -TOKENS:]
