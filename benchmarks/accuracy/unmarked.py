"""Unmarked text for the null: disjoint stretches of public corpora, repetitive text, samples of models.

    python -m benchmarks.accuracy.unmarked --work DIR     # samples the models; `texts` needs nothing else

Nobody's key had a hand in any of it. Repetitive text is there because a repeated (context, token) pair gives
a key the same score again, which is what a null that takes tokens for independent gets wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import pathlib
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.accuracy import texts as marked
from benchmarks.lm.corpus import SOURCES, clean_solution, load_documents
from benchmarks.recording import exit_code
from iet.marks.files import write_file

CHARACTERS = (450, 10_000)
"""Length of a text, drawn log-uniformly: about 100 to 3,000 tokens of either model."""

SAMPLE_TEMPERATURES = (0.2, 0.5)
SAMPLES, SAMPLE_TOKENS = 208, 600
"""Per model and temperature; the text is cut to a drawn length of at least 100 tokens."""

_EVERY = 24  # one of this number of stretches is repeated in small pieces, and one is said twice
_PIECE = (15, 400)  # characters of what is repeated


@dataclasses.dataclass(frozen=True)
class Unmarked:
    """A text without a mark."""

    # The corpus, "pieces" (one piece over and over), "twice" (half of the text said again), or the model and
    # temperature of a sample
    kind: str
    text: str


def texts(data: pathlib.Path, work: pathlib.Path | None = None, *, seed: int = 0) -> list[Unmarked]:
    """Return all unmarked texts, in an order that the seed draws. No two share a stretch of a corpus.

    `data` holds `corpus/`, `gsm8k/`, `mama/` and `who_and_when/`; `work` what `generate` wrote (None: no
    samples).
    """
    all_texts = [text for source, stream in corpora(data) for text in stretches(source, stream, seed)]
    if work is not None:
        all_texts += samples(work)
    all_texts = list({text.text: text for text in all_texts}.values())
    random.Random(seed).shuffle(all_texts)
    return all_texts


def corpora(data: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Yield every source of the data folder as one long text."""
    documents = load_documents(data, SOURCES)
    for source in dict.fromkeys(document.source for document in documents):
        yield source, "\n".join(document.text for document in documents if document.source == source)
    yield "gsm8k test", "\n".join(_questions(data / "gsm8k" / "test.jsonl"))
    for folder in ("Algorithm-Generated", "Hand-Crafted"):
        yield f"who_and_when {folder}", "\n\n".join(_logs(data / "who_and_when" / folder))


def stretches(source: str, stream: str, seed: int = 0) -> Iterator[Unmarked]:
    """Cut a long text into disjoint ones; a few are made repetitive, out of their own characters alone."""
    draw = random.Random(f"{seed} {source}")
    start = 0
    while len(stream) - start >= CHARACTERS[0]:
        end = start + _log_uniform(draw, *CHARACTERS)
        while end < len(stream) and not stream[end].isspace():
            end += 1
        text, start = stream[start:end].strip(), end
        if len(text) < CHARACTERS[0]:
            continue
        repeated_at = draw.randrange(_EVERY)
        if repeated_at == 0:
            piece = text[: _log_uniform(draw, *_PIECE)].strip() + draw.choice([" ", "\n", "\n\n"])
            yield Unmarked("pieces", (piece * (len(text) // len(piece) + 1))[: len(text)].strip())
        elif repeated_at == 1:
            yield Unmarked("twice", f"{text[: len(text) // 2]} {text[: len(text) // 2]}")
        else:
            yield Unmarked(source, text)


def samples(work: pathlib.Path) -> list[Unmarked]:
    """Return what `generate` has written, cut to drawn lengths."""
    sampled = []
    for model, temperature, path in _sample_files(work):
        if not path.is_file():
            continue
        draw = random.Random(path.stem)
        for row in np.load(path):
            length = _log_uniform(draw, min(100, len(row)), len(row))
            sampled.append(Unmarked(f"{model} T={temperature}", marked.turn_text(model, row[:length])))
    return sampled


def generate(
    work: pathlib.Path,
    models: Sequence[str] = tuple(marked.MODELS),
    *,
    rows: int = SAMPLES,
    tokens: int = SAMPLE_TOKENS,
) -> None:
    """Sample the models without a mark at low temperatures; files that are there are kept."""
    import torch

    from benchmarks.writing.continuations import sample
    from iet.demo.conversation import load_model

    torch.set_num_threads(1)
    for model, temperature, path in _sample_files(work):
        if model not in models or path.is_file():
            continue
        language_model: Any = load_model(marked.MODELS[model])[0]
        count = len(marked.OPENINGS[model])
        prompts = np.array([marked.prompt(model, "", 0, number) for number in range(count)])
        drawn = sample(
            language_model,
            prompts,
            np.full((count, rows // count), -1),
            marked.keys(model, "fourier", 0, 1).marking_keys(),
            tokens=tokens,
            temperature=temperature,
            barred=marked.tokenizer(model).special_ids,
            seed=0,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        ids = drawn.ids.astype(np.uint16)
        write_file(path, functools.partial(np.save, arr=ids))
        print(f"{path.name}: entropy {drawn.entropy.mean():.3f} nats", flush=True)


def _sample_files(work: pathlib.Path) -> Iterator[tuple[str, float, pathlib.Path]]:
    for model in marked.MODELS:
        for temperature in SAMPLE_TEMPERATURES:
            yield model, temperature, work / "unmarked" / f"{model}-T{temperature}.npy"


def _questions(path: pathlib.Path) -> Iterator[str]:
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            yield f"Question: {record['question'].strip()}\n\nAnswer: {clean_solution(record['answer'])}\n"


def _logs(folder: pathlib.Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.json"), key=lambda path: int(path.stem)):
        for turn in json.loads(path.read_text(encoding="utf-8"))["history"]:
            yield f"{turn.get('name') or turn['role']}: {turn['content'].strip()}"


def _log_uniform(draw: random.Random, low: int, high: int) -> int:
    length: float = low * (high / low) ** draw.random()
    return round(length)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder of the texts")
    parser.add_argument("--models", nargs="+", choices=tuple(marked.MODELS), default=tuple(marked.MODELS))
    arguments = parser.parse_args()
    generate(arguments.work, arguments.models)


if __name__ == "__main__":
    sys.exit(exit_code(main))
