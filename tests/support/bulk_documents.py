"""Documents of all kinds for audits in bulk, and a team whose agents wrote some of them."""

from __future__ import annotations

import functools
import pathlib
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

import iet
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from iet.marks.tokenizer import Tokenizer

NAMES = ("planner", "critic", "writer")


def team(folder: pathlib.Path, **scheme: Any) -> Registry:
    """A registry in a file, its keys always the same."""
    options = scheme if scheme.get("family") == "gumbel" else {"kappa": 3.0, **scheme}
    registry = Registry.create(folder / "team.json", tokenizer="iet:demo", scheme=Scheme(**options))
    for name in NAMES:
        registry.add(name, secret=name.encode().ljust(32, b"."))
    registry.rotate("critic", secret=b"critic's second".ljust(32, b"."))
    return registry


@functools.cache
def words() -> NDArray[np.int64]:
    """Ids of the words that the tokenizer has, each with its space: to be read as the same ids again."""
    vocabulary = Tokenizer("iet:demo").backend.get_vocab()
    return np.array(sorted(id for token, id in vocabulary.items() if re.fullmatch("Ġ[a-z]{3,}", token)))


def marked_text(registry: Registry, turns: list[tuple[str | None, int]], seed: int) -> str:
    """Words as a model without preferences would sample them, turn by turn."""
    draw, width, profile = np.random.default_rng(seed), len(words()), registry.profile
    before = profile.scheme.n_gram - 1
    ids = draw.choice(words(), before).tolist()
    for agent, count in turns:
        for _ in range(count):
            logits = np.zeros((1, profile.vocab_size), dtype=np.float32)
            iet.embed_(logits, [ids[-before:]], [-1 if agent is None else registry.slot(agent)], registry)
            keyed = profile.family.name == "gumbel" and agent is not None
            noise = 0 if keyed else draw.gumbel(size=width)
            ids.append(int(words()[(logits[0, words()] + noise).argmax()]))
    return Tokenizer("iet:demo").decode(ids)


def documents(registry: Registry) -> list[str]:
    """Return `_documents` of the registry's scheme."""
    return list(_documents(registry.profile.digest, registry))


@functools.lru_cache
def _documents(digest: str, registry: Registry) -> list[str]:
    """Texts short and long, marked and not, beyond ASCII, decomposed, with invisible characters, empty."""
    marked = [
        marked_text(registry, [("planner", 300)], 1),
        marked_text(registry, [("planner", 150), ("critic", 200), (None, 150)], 2),
        marked_text(registry, [(None, 100), ("writer", 250), ("planner", 90)], 3),
        marked_text(registry, [("critic", 40)], 4),
        marked_text(registry, [("writer", 700), ("critic", 300), ("writer", 300)], 5),
    ]
    english = "the planner hands the plan to the critic, who reads it and hands it to the writer. "
    plain = [
        "",
        "a",
        "ab",
        "\u200b",
        english,
        english * 30,
        "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. " * 20,
        "e\u0301le\u0300ve soft\u00adhyphen \u200b zero width 你好世界 🙂🙂 \ufeff" * 15,
        "x" * 2000,
        "".join(chr(33 + (i * i * 7919) % 90) for i in range(3000)),
    ]
    mixed = [text for pair in zip(marked, plain, strict=False) for text in pair]
    return mixed + plain[len(marked) :]
