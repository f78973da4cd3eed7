"""Texts to mark and read: text that every CPython carries, text of the shipped model, and agents' logs."""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import pydoc_data.topics
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from benchmarks import timing
from iet.demo import conversation
from iet.demo.conversation import MODEL, ROLES
from iet.marks.registry import Registry
from iet.marks.tokenizer import DEMO_SOURCE

AGENTS = ROLES

NOTE = (
    "Real text: the language reference that CPython carries, as ids of the demo's tokenizer of 4,096 tokens."
    " So few tokens repeat contexts more often than a large vocabulary would, which favours peers that"
    " remember contexts; ours remembers none."
)


def text() -> str:
    """Return about 460,000 characters of English prose with code."""
    return "\n\n".join(topic for _, topic in sorted(pydoc_data.topics.topics.items()))


@functools.cache
def real_ids() -> NDArray[np.int64]:
    """Return the text as ids [T], T about 140,000."""
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    return np.array(tokenizer.encode(text(), add_special_tokens=False).ids, dtype=np.int64)


def team(names: tuple[str, ...] = AGENTS, tokenizer: Any = DEMO_SOURCE) -> Registry:
    return timing.team(None, names, tokenizer=tokenizer)


def marked_text(registry: Registry, tokens: int) -> str:
    """A conversation of the shipped model with all six agents, of at least `tokens` tokens."""
    model, tokenizer = conversation.load_model()
    texts: list[str] = []
    while sum(len(tokenizer(text).input_ids) for text in texts) < tokens:
        seed = len(texts)
        speakers = conversation.speakers_of_walk("complete", AGENTS, 3, seed)
        texts.append(conversation.converse(model, tokenizer, registry, speakers, seed=seed).text)
    return " ".join(texts)


def given_logs(line: argparse.ArgumentParser, data: pathlib.Path | None) -> list[str]:
    """Return the hand-crafted logs of Who&When in --data, unmarked; refuse a folder that has none."""
    if data is None:
        return []
    files = sorted((data / "who_and_when" / "Hand-Crafted").glob("*.json"), key=lambda path: int(path.stem))
    if not files:
        line.error(f"--data: {data} has no who_and_when/Hand-Crafted/*.json")
    logs = (json.loads(path.read_text(encoding="utf-8"))["history"] for path in files)
    return ["\n".join(turn["content"] for turn in log) for log in logs]
