"""Measure what free tokens of family `gumbel` change: different answers to a prompt, evidence, attribution.

    python -m benchmarks.accuracy.diversity --work DIR -o benchmarks/results/diversity.json [--models shipped]

`iet.FreeTokens(first, rate)` leaves the first tokens of an answer, and later each one with a probability, to
the sampler. A cell is a model, a temperature and a setting; DIR holds the figures of each, so that a run that
was stopped goes on. Every answer is a request of its own under one key.

* Diversity: distinct-n is the number of different n-grams of tokens over that of all, in the answers to one
  prompt; means over prompts, over that of unmarked answers.
* Evidence: ln p of an answer for the agent that wrote it, among six, and the share of answers with a
  finding at level 0.01; and the tokens that nine of ten answers need for a finding.
* Attribution (shipped model): forced TokenAcc of `posterior` in texts of twelve turns by six agents.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.accuracy import texts
from benchmarks.recording import columns, exit_code, finish, parser
from benchmarks.statistics import summary
from benchmarks.writing.continuations import sample
from iet.audit.auditor import Auditor
from iet.audit.evidence import activity_log_p, holm
from iet.cli.demo import compare
from iet.decoding.activity import LEVELS, WeightedBlocks
from iet.demo.conversation import load_model
from iet.errors import InputError
from iet.generation.free import FreeTokens
from iet.kernels import positions, score_tokens
from iet.marks.files import write_file
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from iet.marks.tokenizer import Tokenizer
from iet.native.pairs import novelty_weights

TEMPERATURES = {"shipped": (1.0, 0.7, 0.4), "smollm2": (1.0, 0.7)}
FIRST, RATES = (0, 4, 8, 16), (0.0, 0.05, 0.1, 0.2)
SETTINGS: tuple[FreeTokens | None, ...] = (None, *(FreeTokens(f, r) for f in FIRST for r in RATES))
"""None: unmarked."""

ATTRIBUTED = tuple(
    FreeTokens(f, r) for f, r in ((0, 0.0), (0, 0.1), (8, 0.0), (8, 0.05), (8, 0.1), (16, 0.1))
)
"""The settings under which texts of several agents are read, and in which SmolLM2 answers."""

ORDERS = (1, 2, 3, 4)
LEVEL, AGENTS, TURNS = 0.01, 6, 12
LENGTHS = (60, 120, 200)

QUESTIONS = (
    "How do I keep a small vegetable garden alive in a dry summer?",
    "Explain to a new colleague why we write tests.",
    "Write a short story about a lighthouse keeper who finds a letter.",
    "What should a town do first after a flood?",
    "Give me three ideas for a birthday party of a ten year old.",
    "Compare trains and planes for a trip of 600 kilometres.",
)
"""Prompts of the instruct model."""

Ids = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Writer:
    """A model that answers prompts.

    Attributes:
        load: returns the model.
        tokenizer: of it.
        prompts: [P] ids each.
        answers, tokens: number of answers to each prompt, and their length.
    """

    load: Callable[[], Any]
    tokenizer: Tokenizer
    prompts: tuple[Ids, ...]
    answers: int
    tokens: int


def shipped() -> Writer:
    """Return the model that ships with the package; its prompts are openings of speeches."""
    encode = texts.tokenizer("shipped").backend.encode
    encoded = [encode(text, add_special_tokens=False).ids for text in texts.OPENINGS["shipped"]]
    prompts = tuple(np.array(ids[: texts.OPENING_TOKENS]) for ids in encoded)
    load = lambda: load_model(texts.MODELS["shipped"])[0]  # noqa: E731
    return Writer(load, texts.tokenizer("shipped"), prompts, 50, 100)


def smollm2() -> Writer:
    """Return SmolLM2-135M-Instruct, which answers questions."""
    import transformers

    from iet.audit import smollm2

    folder = smollm2.folder()
    template = transformers.AutoTokenizer.from_pretrained(folder).apply_chat_template
    template_options: dict[str, Any] = {"add_generation_prompt": True, "return_dict": False}
    prompts = [
        np.array(template([{"role": "user", "content": text}], **template_options)) for text in QUESTIONS
    ]
    tokenizer = Tokenizer(Tokenizer(folder).backend)
    return Writer(lambda: load_model(folder)[0], tokenizer, tuple(prompts), 14, 80)


WRITERS: dict[str, Callable[[], Writer]] = {"shipped": shipped, "smollm2": smollm2}


# ---------------------------------------------------------------- answers


def answers(model: Any, writer: Writer, number: int, temperature: float, free: FreeTokens | None) -> Ids:
    """Return answers [answers, tokens] to a prompt under one key; None: unmarked."""
    registry = registry_of(writer)
    slot = -1 if free is None else number % AGENTS
    return sample(
        model,
        writer.prompts[number][None],
        np.full((1, writer.answers), slot),
        registry.marking_keys(),
        tokens=writer.tokens,
        temperature=temperature,
        barred=writer.tokenizer.special_ids,
        seed=texts.integer(f"diversity {temperature} {number}"),
        free=free or FreeTokens(0, 0.0),
    ).ids


def registry_of(writer: Writer) -> Registry:
    """Return a registry of six agents, the same in every run."""
    registry = Registry.create(None, tokenizer=writer.tokenizer, scheme=Scheme(family="gumbel"))
    for slot in range(AGENTS):
        registry.add(texts.agent_name(slot), secret=bytes([slot + 1]) * 32)
    return registry


def distinct(ids: Ids, n: int) -> float:
    """Return the number of different n-grams in the rows over that of all."""
    grams = np.lib.stride_tricks.sliding_window_view(ids, n, axis=1).reshape(-1, n)
    return len(np.unique(grams, axis=0)) / len(grams)


def log_p_by_length(ids: Ids, registry: Registry, slot: int) -> NDArray[np.float64]:
    """Return the corrected log p-value [T] of an agent in the first 1 to T tokens of a text."""
    scores = score_tokens(ids, registry)
    scored, repeated = positions(ids, registry)
    counted = scored & ~repeated
    # Every beginning of the text is a text of its own.
    ends = np.cumsum(np.arange(1, len(ids) + 1))
    starts = np.append(0, ends[:-1])
    tokens = np.arange(ends[-1]) - np.repeat(starts, ends - starts)
    levels = np.where(counted, np.rint(LEVELS * novelty_weights(ids)), 0).astype(np.uint8)
    blocks, family = WeightedBlocks.of(levels[tokens], starts, ends), registry.profile.family
    log_p = activity_log_p(blocks.log_activity(blocks.sums(scores[tokens]), family), blocks.number, family)
    return np.asarray(holm(log_p)[:, slot])


def answers_of(model: Any, writer: Writer, temperature: float, free: FreeTokens | None) -> dict[str, Any]:
    """Return the figures of a cell: means over prompts, and medians over answers."""
    registry, rows, log_p = registry_of(writer), [], []
    for number in range(len(writer.prompts)):
        drawn = answers(model, writer, number, temperature, free)
        rows.append({f"distinct_{n}": distinct(drawn, n) for n in ORDERS})
        if free is not None:
            log_p += [log_p_by_length(ids, registry, number % AGENTS) for ids in drawn]
    figures: dict[str, Any] = {name: summary([row[name] for row in rows]) for name in rows[0]}
    if log_p:
        table = np.array(log_p)
        last, found_at = table[:, -1], table <= math.log(LEVEL)
        needed = np.where(found_at.any(axis=1), found_at.argmax(axis=1) + 1.0, np.inf)
        ninety = float(np.quantile(needed, 0.9, method="higher"))
        figures |= {
            "log_p": float(np.median(last)),
            "found": float(found_at[:, -1].mean()),
            "tokens_of_nine_in_ten": None if math.isinf(ninety) else int(ninety),
        }
    return figures


# ---------------------------------------------------------------- attribution


def attribution_of(
    model: Any, temperature: float, free: FreeTokens, count: int = 16
) -> dict[str, list[float]]:
    """Return forced TokenAcc in texts of the shipped model, by the length of turns."""
    cell = texts.Cell("shipped", temperature, AGENTS, "gumbel")
    seeds = [texts.text_seed(cell, "diversity", number) for number in range(count)]
    generated = texts.generate(model, cell, seeds, turn_tokens=max(LENGTHS), turns=TURNS, free=free)
    accuracies: dict[str, list[float]] = {}
    for length in LENGTHS:
        rows = []
        for turns in generated:
            talk, registry = turns.conversation(length), turns.registry()
            forced = Auditor(registry, allow_unattributed=False).audit(talk.text)
            rows.append(compare(talk, registry, forced).token_accuracy)
        accuracies[str(length)] = summary(rows)
    return accuracies


# ---------------------------------------------------------------- everything


def cells(models: Sequence[str]) -> Iterator[tuple[str, float, FreeTokens | None]]:
    for model in models:
        settings = SETTINGS if model == "shipped" else (None, *ATTRIBUTED)
        yield from itertools.product([model], TEMPERATURES[model], settings)


def run(work: pathlib.Path, models: Sequence[str]) -> None:
    """Measure the cells whose figures are not in the folder."""
    torch.set_num_threads(1)
    loaded: tuple[str, Any, Any] = ("", None, None)
    for name, temperature, free in cells(models):
        path = path_of(work, name, temperature, free)
        if path.is_file():
            continue
        if loaded[0] != name:
            writer = WRITERS[name]()
            loaded = name, writer, writer.load()
        figures = answers_of(loaded[2], loaded[1], temperature, free)
        if name == "shipped" and free in ATTRIBUTED:
            figures["token_accuracy"] = attribution_of(loaded[2], temperature, free)
        write_file(path, json.dumps(figures).encode())
        print(path.stem, flush=True)


def path_of(work: pathlib.Path, model: str, temperature: float, free: FreeTokens | None) -> pathlib.Path:
    setting = "unmarked" if free is None else f"{free.first}-{free.rate:g}"
    return work / f"{model} T={temperature:g} {setting}.json"


def results(work: pathlib.Path, models: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each cell that was measured."""
    rows = []
    for name, temperature, free in cells(models):
        path = path_of(work, name, temperature, free)
        plain = path_of(work, name, temperature, None)
        if not path.is_file() or not plain.is_file():
            continue
        figures, unmarked = json.loads(path.read_text()), json.loads(plain.read_text())
        over = {"over_3": figures["distinct_3"][0] / unmarked["distinct_3"][0]}
        setting = {} if free is None else {"first": free.first, "rate": free.rate}
        rows.append({"model": name, "temperature": temperature, **setting, "figures": figures, **over})
    return rows


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table of a model's cells."""
    table_rows = []
    for row in rows:
        figures = row["figures"]
        accuracy = figures.get("token_accuracy", {})
        table_rows.append(
            {
                **row,
                "setting": f"{row['first']}, {row['rate']:g}" if "first" in row else "unmarked",
                "log_p": f"{figures['log_p']:.1f}" if "log_p" in figures else "",
                "found": f"{figures['found']:.2f}" if "found" in figures else "",
                "needed": str(figures.get("tokens_of_nine_in_ten") or ("" if "first" not in row else "–")),
                "accuracy": " · ".join(f"{accuracy[str(n)][0]:.3f}" for n in LENGTHS if str(n) in accuracy),
            }
        )
    form = {
        "model": "{model}",
        "T": "{temperature:g}",
        "first, rate": "{setting}",
        **{f"distinct-{n}": f"{{figures[distinct_{n}][0]:.3f}}" for n in ORDERS},
        "distinct-3 over unmarked": "{over_3:.2f}",
        "ln p of an answer": "{log_p}",
        "found": "{found}",
        "tokens until nine in ten are found": "{needed}",
        "TokenAcc, turns of 60 · 120 · 200": "{accuracy}",
    }
    return columns(table_rows, form)


def main() -> None:
    line = parser("benchmarks.accuracy.diversity", __doc__)
    line.add_argument("--work", type=pathlib.Path, required=True, help="folder of the figures of each cell")
    line.add_argument("--models", nargs="+", choices=tuple(WRITERS), default=list(WRITERS))
    options = line.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    run(options.work, options.models)
    rows = results(options.work, tuple(WRITERS))
    if not rows:
        raise InputError(f"{options.work}: got no figures, expected those of unmarked answers at least")
    finish(line, options, {"rows": rows}, markdown(rows), packages=("torch", "transformers"))


if __name__ == "__main__":
    sys.exit(exit_code(main))
