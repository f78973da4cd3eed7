"""Documents of all kinds for audits in bulk, and a team whose agents wrote some of them."""

from __future__ import annotations

import functools
import pathlib
import re
from typing import Any

from iet.marks.registry import Registry
from iet.marks.tokenizer import Tokenizer
from tests.support import teams
from tests.support.texts import write


def team(folder: pathlib.Path, **scheme: Any) -> Registry:
    """A registry in a file, with an agent of two keys."""
    strength = {} if scheme.get("family") == "gumbel" else {"kappa": 3.0}
    registry = teams.team(path=folder / "team.json", tokenizer="iet:demo", **{**strength, **scheme})
    registry.rotate("critic", secret=teams.secret("critic's second"))
    return registry


@functools.cache
def words() -> list[int]:
    """Ids of the words that the tokenizer has, each with its space: to be read as the same ids again."""
    vocabulary = Tokenizer("iet:demo").backend.get_vocab()
    return sorted(id for token, id in vocabulary.items() if re.fullmatch("Ġ[a-z]{3,}", token))


def marked_text(registry: Registry, turns: list[tuple[str | None, int]], seed: int) -> str:
    return Tokenizer("iet:demo").decode(write(registry, turns, seed, ids=words(), flat=True))


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
