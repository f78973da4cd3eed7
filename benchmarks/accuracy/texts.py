"""Generate the marked texts of the accuracy benchmark, and form them for the evaluation.

    python -m benchmarks.accuracy.texts --work DIR              # all that is missing
    python -m benchmarks.accuracy.texts --work DIR --status     # what is there

A cell is a model, a temperature, a number of agents and a family. Each of its texts has 12 turns under keys
of its own. A round is as many turns as there are agents, each agent once, in a drawn order so that no agent
follows himself; its turns are sampled together from the end of the text before the round and an opening
that is drawn for the round. No turn is ever shorter than asked: boundary tokens are not drawn.

**Turns are generated once, with 400 tokens, and a text with turns of 60, 120 or 200 tokens consists of the
first 60, 120 or 200 tokens of the same turns. So cells that differ in the length of turns only share words,
and their figures are not independent.** A turn does not always continue the shortened text before it,
either.

`DIR` holds a folder per cell and in it a file per unit of up to 50 texts, written at once: after a kill at
any moment at most one unit is lost. Everything follows from the names of cell, split and text; sums in
another order (another processor or version of torch) change single draws and with them the words after.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import json
import pathlib
import random
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.recording import exit_code
from iet.demo.conversation import JOINER, Conversation
from iet.demo.conversation import MODEL as SHIPPED_MODEL
from iet.errors import InputError
from iet.generation.free import FreeTokens
from iet.marks.files import write_file
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from iet.marks.tokenizer import Tokenizer
from iet.report import Span

MODELS = {"shipped": SHIPPED_MODEL, "second": pathlib.Path(__file__).parent / "model"}
"""Folders of the models: that of `iet demo`, and one that nothing was tuned on."""

TEMPERATURES = (1.0, 0.7, 0.5)
AGENTS = (4, 6)
SCHEMES = {
    "fourier": {"kappa": 0.8, "n_gram": 2},
    "gumbel": {"family": "gumbel", "n_gram": 4},
}
FAMILIES = tuple(SCHEMES)

TURNS = 12
TURN_TOKENS = (60, 120, 200, 400)
"""Lengths of turns that a text can be formed with; the last one is generated."""

SPLITS = {"tuning": 10, "evaluation": 100}
"""Texts of a cell."""

UNIT_TEXTS = 50
TAIL_TOKENS = 112
OPENING_TOKENS = 24
"""Lengths of the two parts of a prompt."""

OPENINGS: dict[str, list[str]] = json.loads(
    (pathlib.Path(__file__).parent / "openings.json").read_text(encoding="utf-8")
)
"""How the rounds of a model's texts are opened, cut to equal lengths; prompts only, no part of a text."""


@dataclasses.dataclass(frozen=True)
class Cell:
    model: str
    temperature: float
    agents: int
    family: str

    @property
    def name(self) -> str:
        return f"{self.model}-T{self.temperature}-A{self.agents}-{self.family}"


def cells(models: Iterable[str] = tuple(MODELS), families: Iterable[str] = FAMILIES) -> tuple[Cell, ...]:
    families = tuple(families)
    return tuple(
        Cell(model, temperature, agents, family)
        for model in models
        for family in families
        for temperature in TEMPERATURES
        for agents in AGENTS
    )


CELLS = cells()
"""The grid, in the order in which it is generated."""


@dataclasses.dataclass(frozen=True, eq=False)
class Turns:
    """One text before its turns are cut and joined."""

    cell: Cell
    seed: int  # 63 bits, what its keys, its speakers and its openings follow from
    speakers: tuple[int, ...]  # in the order of the turns, as slots of its registry
    ids: NDArray[np.int64]  # [12, 400], what was sampled
    entropy: NDArray[np.float64]  # [12], mean nats per token of the model's distribution at the temperature
    marked_entropy: NDArray[np.float64]  # [12], the same of the distribution drawn from, given the key
    unmarked: NDArray[np.bool_]  # [12, 400], tokens that a family drew without a mark

    def strings(self, turn_tokens: int = TURN_TOKENS[-1]) -> list[str]:
        """Return the turns, each of its first `turn_tokens` tokens, stripped."""
        return [turn_text(self.cell.model, row[:turn_tokens]) for row in self.ids]

    def conversation(self, turn_tokens: int = TURN_TOKENS[-1], joiner: str = JOINER) -> Conversation:
        """Return the text and the truth about it; a joiner belongs to the turn after it."""
        names = [agent_name(speaker) for speaker in self.speakers]
        return joined(self.strings(turn_tokens), names, joiner)

    def registry(self, spurious: int = 0) -> Registry:
        """Return a registry of the true agents, and after them of `spurious` more that do not speak."""
        return keys(self.cell.model, self.cell.family, self.seed, self.cell.agents + spurious)

    def strangers(self, number: int = 0) -> Registry:
        """Return a registry that has nothing to do with the text; every `number` is another one."""
        seed = integer(f"strangers {number} of {self.seed}")
        return keys(self.cell.model, self.cell.family, seed, self.cell.agents)


def form(
    turns: Turns, turn_tokens: int, *, joiner: str = JOINER, spurious: int = 0
) -> tuple[Conversation, Registry]:
    """Return what one audit takes: a text with the truth about its characters, and a registry.

    `spurious` agents are registered and do not speak; the slots of the others stay.
    """
    if not 1 <= turn_tokens <= turns.ids.shape[1]:
        raise InputError(f"turn_tokens: got {turn_tokens}, expected 1 to {turns.ids.shape[1]}")
    return turns.conversation(turn_tokens, joiner), turns.registry(spurious)


def joined(turns: Sequence[str], speakers: Sequence[str | None], joiner: str) -> Conversation:
    """Return the turns as one text, and their positions."""
    text, spans = "", list[Span]()
    for turn, speaker in zip(turns, speakers, strict=True):
        start = len(text)
        text += (joiner if spans else "") + turn
        spans.append(Span(start, len(text), speaker))
    return Conversation(text, tuple(spans), tuple(speakers))


def turn_text(model: str, ids: Iterable[int]) -> str:
    """Return the text of a turn as it is joined with others."""
    # A cut inside a character decodes to U+FFFD, which was not sampled.
    return tokenizer(model).decode([int(i) for i in ids]).strip().strip("\ufffd").strip()


def agent_name(slot: int) -> str:
    return f"agent-{slot + 1}"


def keys(model: str, family: str, seed: int, agents: int) -> Registry:
    """Return a registry in memory whose keys follow from `seed`; the first ones do not depend on `agents`."""
    registry = Registry.create(None, tokenizer=tokenizer(model), scheme=scheme(family))
    for slot in range(agents):
        registry.add(agent_name(slot), secret=_secret(seed, slot))
    return registry


def scheme(family: str) -> Scheme:
    """Return the scheme of a name in `SCHEMES`, what a cell calls its family."""
    return Scheme(**SCHEMES[family])  # type: ignore[arg-type]


@functools.cache
def tokenizer(model: str) -> Tokenizer:
    """Return the tokenizer of a model, read once."""
    # From an object, which a registry keeps, instead of from a path, which every auditor would read again.
    return Tokenizer(Tokenizer(MODELS[model]).backend)


def text_seed(cell: Cell, split: str, index: int) -> int:
    return integer(f"{cell.name}/{split}/{index}")


def speakers(agents: int, turns: int, seed: int) -> tuple[int, ...]:
    """Return who speaks: in every round each agent once, in a drawn order; no two neighbours are the same.

    A round has no agent twice, because keyed Gumbel sampling would let him say the same twice.
    """
    if agents < 2:
        raise InputError(f"agents: got {agents}, expected at least 2")
    draw = random.Random(seed)
    order_of_turns: list[int] = []
    while len(order_of_turns) < turns:
        order = draw.sample(range(agents), agents)
        if not order_of_turns or order[0] != order_of_turns[-1]:
            order_of_turns += order
    return tuple(order_of_turns[:turns])


def units(split: str) -> list[range]:
    count = SPLITS[split]
    return [range(start, min(start + UNIT_TEXTS, count)) for start in range(0, count, UNIT_TEXTS)]


def path_of(work: pathlib.Path, cell: Cell, split: str, texts: range) -> pathlib.Path:
    return work / cell.name / f"{split}-{texts.start:03d}-{texts.stop:03d}.npz"


def generate(
    language_model: Any,
    cell: Cell,
    seeds: Sequence[int],
    *,
    turn_tokens: int,
    turns: int,
    free: FreeTokens = FreeTokens(0, 0.0),  # noqa: B008  # frozen
) -> list[Turns]:
    """Sample texts of one cell together, one per seed, round by round, in whole rounds."""
    from benchmarks.writing.continuations import sample

    if turns % cell.agents:
        raise InputError(f"turns: got {turns}, expected a multiple of the {cell.agents} agents")
    reader = tokenizer(cell.model)
    registry = Registry.create(None, tokenizer=reader, scheme=scheme(cell.family))
    for text, seed in enumerate(seeds):
        for slot in range(cell.agents):
            registry.add(f"{text} {agent_name(slot)}", secret=_secret(seed, slot))
    marking = registry.marking_keys()
    walks = np.array([speakers(cell.agents, turns, seed) for seed in seeds])
    owners = walks + cell.agents * np.arange(len(seeds))[:, None]
    slots = owners.astype(np.int64)
    texts, drawn = [""] * len(seeds), []
    for start in range(0, turns, cell.agents):
        prompts = np.array(
            [
                prompt(cell.model, text, seed, start // cell.agents)
                for text, seed in zip(texts, seeds, strict=True)
            ]
        )
        sampled_turns = sample(
            language_model,
            prompts,
            slots[:, start : start + cell.agents],
            marking,
            tokens=turn_tokens,
            temperature=cell.temperature,
            barred=reader.special_ids,
            free=free,
            seed=integer(f"round {start} of {' '.join(map(str, seeds))}"),
        )
        drawn.append(sampled_turns)
        for text, rows in enumerate(sampled_turns.ids.reshape(len(seeds), cell.agents, turn_tokens)):
            turn_words = [turn_text(cell.model, row) for row in rows]
            texts[text] = JOINER.join([texts[text], *turn_words] if texts[text] else turn_words)

    def of(field: str, text: int) -> Any:
        here = slice(text * cell.agents, (text + 1) * cell.agents)
        return np.concatenate([getattr(part, field)[here] for part in drawn])

    fields = ("ids", "entropy", "marked_entropy", "unmarked")
    return [
        Turns(cell, seed, tuple(walks[text].tolist()), *(of(field, text) for field in fields))
        for text, seed in enumerate(seeds)
    ]


def save(path: pathlib.Path, texts: Sequence[Turns]) -> None:
    """Write a unit: the file is there in whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {
        "seeds": np.array([text.seed for text in texts], dtype=np.int64),
        "speakers": np.array([text.speakers for text in texts], dtype=np.int8),
        "ids": np.array([text.ids for text in texts], dtype=np.uint16),
        "entropy": np.array([text.entropy for text in texts]),
        "marked_entropy": np.array([text.marked_entropy for text in texts]),
        "unmarked": np.packbits([text.unmarked for text in texts], axis=-1),
    }
    write_file(path, lambda file: np.savez_compressed(file, **arrays))


def load(work: pathlib.Path, cell: Cell, split: str = "evaluation") -> list[Turns]:
    """Return the texts of a cell that have been generated, in the order of their index; maybe none yet."""
    return [text for texts in units(split) for text in read(path_of(work, cell, split, texts), cell)]


def entropies(texts: Sequence[Turns]) -> dict[str, float]:
    """Return the means over texts: nats per token, and the share of tokens drawn without a mark."""
    return {
        "entropy_nats": float(np.mean([text.entropy for text in texts])),
        "marked_entropy_nats": float(np.mean([text.marked_entropy for text in texts])),
        "drawn_without_mark": float(np.mean([text.unmarked for text in texts])),
    }


def missing(work: pathlib.Path, cells: Iterable[Cell] = CELLS) -> Iterator[tuple[Cell, str, range]]:
    for cell in cells:
        for split in SPLITS:
            for texts in units(split):
                if not path_of(work, cell, split, texts).is_file():
                    yield cell, split, texts


def read(path: pathlib.Path, cell: Cell) -> list[Turns]:
    """Return the texts of a unit that `save` wrote; none without a file."""
    if not path.is_file():
        return []
    with np.load(path) as unit:
        ids = unit["ids"].astype(np.int64)
        unmarked = np.unpackbits(unit["unmarked"], axis=-1, count=ids.shape[-1]).astype(np.bool_)
        return [
            Turns(cell, int(seed), tuple(map(int, turn_order)), *arrays)
            for seed, turn_order, *arrays in zip(
                unit["seeds"],
                unit["speakers"],
                ids,
                unit["entropy"],
                unit["marked_entropy"],
                unmarked,
                strict=True,
            )
        ]


def prompt(model: str, text: str, seed: int, number: int) -> list[int]:
    """Return what the turns of a round continue: the end of the text so far, and the round's opening.

    The opening comes last. Were it the text, a model that started to repeat itself would do so until the
    end, at low temperatures in most texts.
    """
    encode = tokenizer(model).backend.encode
    openings = OPENINGS[model]
    chosen = random.Random(seed).sample(range(len(openings)), len(openings))[number % len(openings)]
    opening: list[int] = encode(openings[chosen], add_special_tokens=False).ids[:OPENING_TOKENS]
    tail: list[int] = encode(text[-16 * TAIL_TOKENS :], add_special_tokens=False).ids[-TAIL_TOKENS:]
    return tail + opening


def integer(name: str) -> int:
    return (
        int.from_bytes(hashlib.blake2b(f"iet accuracy/{name}".encode(), digest_size=8).digest(), "little")
        >> 1
    )


def _secret(seed: int, slot: int) -> bytes:
    return hashlib.blake2b(f"iet accuracy/{seed}/{slot}".encode(), digest_size=32).digest()


def status(work: pathlib.Path, cells: Iterable[Cell]) -> str:
    lines = []
    for cell in cells:
        counts = {split: load(work, cell, split) for split in SPLITS}
        line = f"{cell.name:<32}" + "".join(f" {len(texts):>3} {split}" for split, texts in counts.items())
        if counts["evaluation"]:
            line += "".join(
                f"  {name} {value:.2f}" for name, value in entropies(counts["evaluation"]).items()
            )
        lines.append(line)
    return "\n".join(lines)


def run(work: pathlib.Path, cells: Sequence[Cell]) -> None:
    import torch

    from iet.demo.conversation import load_model

    torch.set_num_threads(1)  # a second core is better used by a second process
    loaded: tuple[str, Any] = ("", None)
    todo = list(missing(work, cells))
    for done, (cell, split, texts) in enumerate(todo, 1):
        if loaded[0] != cell.model:
            loaded = cell.model, load_model(MODELS[cell.model])[0]
        started = time.monotonic()
        seeds = [text_seed(cell, split, index) for index in texts]
        generated = generate(loaded[1], cell, seeds, turn_tokens=TURN_TOKENS[-1], turns=TURNS)
        save(path_of(work, cell, split, texts), generated)
        speed = len(generated) * TURNS * TURN_TOKENS[-1] / (time.monotonic() - started)
        figures = " ".join(f"{name} {value:.3f}" for name, value in entropies(generated).items())
        print(f"{done}/{len(todo)} {cell.name} {split} {texts}: {speed:.0f} tokens/s, {figures}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder of the texts")
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    parser.add_argument("--families", nargs="+", choices=tuple(SCHEMES), default=FAMILIES)
    parser.add_argument("--temperatures", nargs="+", type=float, choices=TEMPERATURES, default=TEMPERATURES)
    parser.add_argument("--status", action="store_true", help="say what is there, and generate nothing")
    arguments = parser.parse_args()
    chosen = [
        cell
        for cell in cells(arguments.models, arguments.families)
        if cell.temperature in arguments.temperatures
    ]
    if arguments.status:
        print(status(arguments.work, chosen))
    else:
        run(arguments.work, chosen)


if __name__ == "__main__":
    sys.exit(exit_code(main))
