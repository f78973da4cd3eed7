"""Write what one agent publishes, and its later texts: text of the shipped model at temperature 1.

A text continues an opening and sixteen unmarked tokens, so that no two texts begin alike: in family gumbel an
agent whose key has one variant would say the same after the same prompt.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.accuracy import texts
from iet.marks.files import write_file
from iet.marks.keys import KeyTable
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme

SCHEMES = {
    "fourier n=2": Scheme(kappa=0.8, n_gram=2),
    "fourier n=4": Scheme(kappa=0.8, n_gram=4),
    "gumbel n=4": Scheme(family="gumbel", n_gram=4),
}
AGENT, LATECOMER = "planner", "critic"
"""Who publishes; an agent of the same team who never did."""

TOKENS, NEW = 400, 48
"""Tokens of a text; number of texts that are written after all others."""

_OPENING, _UNMARKED = 24, 16

_ROWS = 512
"""Texts of a batch."""


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
    keys = team(scheme).marking_keys()
    ids = _kept(work / f"{scheme.replace(' ', '-')}-{count}.npz", scheme, keys, [0] * (count + NEW))
    return ids[:count], ids[count:]


def name_of_session(number: int) -> str:
    return f"session {number}"


def in_sessions(work: pathlib.Path, scheme: str, tokens: int) -> NDArray[np.int64]:
    """Return texts of the agent as ids [N, 400], at least `tokens` in all, each in a session of its own.

    Text i is in session `name_of_session(i)`. Like `written` they are kept in `work`.
    """
    count = -(-tokens // TOKENS)
    keys = team(scheme).session_keys([name_of_session(number) for number in range(count)])
    assert keys.sessions is not None
    session_slots = np.flatnonzero((keys.owners == 0) & (keys.sessions >= 0)).tolist()
    return _kept(work / f"{scheme.replace(' ', '-')}-{count}-sessions.npz", scheme, keys, session_slots)


def _kept(path: pathlib.Path, scheme: str, keys: KeyTable, slots: Sequence[int]) -> NDArray[np.int64]:
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        ids = _write(scheme, keys, np.array(slots)).astype(np.uint16)
        write_file(path, lambda file: np.savez_compressed(file, ids=ids))
    with np.load(path) as stored:
        stored_ids: NDArray[np.int64] = stored["ids"].astype(np.int64)
    return stored_ids


def _write(scheme: str, keys: KeyTable, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a text under each of the keys that `slots` name."""
    import torch

    from benchmarks.writing.continuations import sample
    from iet.demo.conversation import load_model

    torch.set_num_threads(1)
    model, reader = load_model(texts.MODELS["shipped"])[0], texts.tokenizer("shipped")
    rows = len(slots)
    openings = texts.OPENINGS["shipped"]
    encode = reader.backend.encode
    prompts = np.array(
        [
            encode(openings[row % len(openings)], add_special_tokens=False).ids[:_OPENING]
            for row in range(rows)
        ]
    )
    batches = []
    for first in tqdm(range(0, rows, _ROWS), desc=f"writing {scheme}"):
        ids = prompts[first : first + _ROWS]
        batch_slots = slots[first : first + _ROWS, None]
        for slot, tokens in ((np.full_like(batch_slots, -1), _UNMARKED), (batch_slots, TOKENS)):
            drawn = sample(
                model,
                ids,
                slot,
                keys,
                tokens=tokens,
                temperature=1.0,
                barred=reader.special_ids,
                seed=tokens + 1000 * first,
            )
            ids = np.concatenate([ids, drawn.ids], axis=1)
        batches.append(ids[:, -TOKENS:])
    return np.concatenate(batches)
