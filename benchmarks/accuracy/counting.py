"""Measure how well texts are read whose writers did not see each other's turns (family `gumbel`).

    python -m benchmarks.accuracy.counting --work DIR -o benchmarks/results/counting.json

A seed of `gumbel` holds how often its context occurred before in the writer's sequence, prompt included. A
reader has only the joined text, so it must infer the start of a writer's sequence. Four agents write texts in
turns of equal length. A writer's prompt holds one of these parts of the text:

* log: everything before;
* apart: nothing, only an opening;
* own turns: the agent's own earlier turns;
* previous turn: the turn before.

Each text is read as ids, in forced choice, by the decoder `posterior` with

* whole: counts in the whole text, as if every prompt were the log;
* inferred: what `iet.Auditor` does;
* known: the counts that went into the seeds.

Writers are the shipped model, the second model of the benchmarks, SmolLM2-135M-Instruct (only apart), and a
random source that uses 40 words. A tenth of the texts' tokens or so are free (`iet.FreeTokens()`). "Wrong
counts" is the share of tokens whose count in the whole text is not the seed's. DIR keeps the texts.

Null: p-values of single keys that no text was marked with, 60 in a registry and 35 registries a text;
"several hypotheses" is the share of texts whose p-values are corrected for more than one.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import pathlib
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

import iet
from benchmarks.accuracy import texts
from benchmarks.recording import columns, exit_code, finish, parser
from benchmarks.statistics import summary
from benchmarks.writing import sampler
from iet.audit.encode import TokenBatch
from iet.audit.metrics import token_accuracy
from iet.audit.score import score
from iet.decoding import decode
from iet.demo.conversation import load_model
from iet.generation.free import FreeTokens, request_key
from iet.marks.files import write_file
from iet.marks.keys import KeyTable
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from iet.marks.tokenizer import Encoding, Tokenizer
from iet.native.pairs import novelty_weights
from iet.native.texts import Texts

AGENTS = 4
LEVELS = (0.1, 0.01, 0.001, 0.0001)
NULL_REGISTRIES, NULL_KEYS = 35, 60
SPLITS = {"tuning": 1, "evaluation": 2}
TOPICS = (
    "how a small town rebuilt its harbour",
    "the history of the bicycle",
    "why bees matter to farmers",
    "a journey by night train",
    "how to learn a language late in life",
    "the work of a lighthouse keeper",
    "what makes a good public library",
    "the first year of a new school",
    "how bread is made in different countries",
    "a long drought and what came after it",
    "the invention of the telephone",
    "why people collect old maps",
)
"""What SmolLM2 is asked to write about."""

Ids = NDArray[np.int64]
Labels = NDArray[np.int64]
Logits = Callable[[Sequence[Sequence[int]], int, Any], Tensor]
"""(prompts, tokens, mark) -> ids [B, tokens] that continue the prompts."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """Texts of one kind: `turns` of `tokens` tokens by a writer at a temperature."""

    writer: str
    prompts: str
    temperature: float
    turns: int
    tokens: int

    @property
    def name(self) -> str:
        prompts = self.prompts.replace(" ", "-")
        return f"{self.writer}-{prompts}-T{self.temperature:g}-{self.turns}x{self.tokens}"


CELLS = (
    *(Cell("second", p, t, 12, 200) for p in ("apart", "own turns", "previous turn") for t in (0.5, 0.7)),
    *(Cell("second", "log", t, 12, n) for t in (0.5, 0.7, 1.0) for n in (30, 60, 200)),
    Cell("second", "log", 0.7, 4, 512),
    *(Cell("shipped", "apart", t, 12, 200) for t in (0.5, 0.7)),
    *(Cell("smollm2", "apart", t, 12, 200) for t in (0.4, 0.6)),
    Cell("forty words", "apart", 1.0, 12, 200),
)


@dataclasses.dataclass(frozen=True, eq=False)
class Written:
    """N texts of T tokens.

    Attributes:
        ids, owners, counts: int64 [N, T]; the agent and the count in the seed of each token.
        turn: tokens of a turn.
        entropy: nats a token, the mean over all.
    """

    ids: Ids
    owners: Ids
    counts: Ids
    turn: int
    entropy: float


@dataclasses.dataclass(frozen=True)
class Writer:
    """A language model.

    Attributes:
        tokenizer: of it.
        asked: text number -> the ids that a prompt starts with.
        after: ids between what a prompt holds of the text and the answer.
        continued: see `Logits`.
    """

    tokenizer: Any
    asked: Callable[[random.Random], list[int]]
    after: list[int]
    continued: Any


class _Mark:
    """Chooses tokens under the keys of rows; keeps counts and entropies."""

    def __init__(self, keys: KeyTable, slots: Ids, seed: int) -> None:
        self._keys, self._slots = keys, torch.from_numpy(slots)
        self._context = keys.profile.scheme.n_gram - 1
        self._requests = torch.tensor([request_key(seed, row) for row in range(len(slots))])
        self._generator = torch.Generator().manual_seed(seed)
        self._position = 0
        self.counts: list[NDArray[np.int64]] = []
        self.entropy: list[float] = []

    def __call__(self, ids: Tensor, logits: Tensor) -> Tensor:
        """Return logits [B, V] that leave one token."""
        context, counts = ids[:, -self._context :], sampler.times_before(ids, self._context)
        free = FreeTokens().are_free(self._requests, torch.full_like(self._requests, self._position))
        self._position += 1
        self.counts.append(counts.numpy())
        self.entropy.append(float(sampler.entropies(logits).mean()))
        noisy = logits.float().clone()
        slots = torch.where(free, -1, self._slots)
        iet.embed_(noisy, context, slots, self._keys, counts=counts, num_threads=1)
        drawn = torch.multinomial(logits.double().softmax(-1), 1, generator=self._generator)[:, 0]
        chosen = torch.where(free, drawn, noisy.max(-1).indices)
        return torch.full_like(logits, -torch.inf).scatter_(1, chosen[:, None], 0.0)


# ---------------------------------------------------------------- writers


def _of_model(folder: Any, tokenizer: Any, barred: Sequence[int], temperature: float) -> Any:
    model = load_model(folder)[0]

    def continued(prompts: Sequence[Sequence[int]], tokens: int, mark: _Mark) -> Tensor:
        found = sampler.sample(
            model,
            prompts,
            lambda step: torch.zeros(2, len(prompts), 1),
            tokens=tokens,
            temperature=temperature,
            barred=barred,
            pad=int(tokenizer.special_ids[0]) if len(tokenizer.special_ids) else 0,
            marking=lambda rows: mark,
        )
        return found.ids

    return continued


def _grid_model(name: str, temperature: float) -> Writer:
    tokenizer = texts.tokenizer(name)
    encode = tokenizer.backend.encode
    openings = [encode(text, add_special_tokens=False).ids[:24] for text in texts.OPENINGS[name]]
    barred = sorted(tokenizer.special_ids)
    continued = _of_model(texts.MODELS[name], tokenizer, barred, temperature)
    return Writer(tokenizer, lambda draw: list(draw.choice(openings)), [], continued)


def _smollm2(temperature: float) -> Writer:
    import transformers

    from iet.audit import smollm2

    folder = smollm2.folder()
    loaded = transformers.AutoTokenizer.from_pretrained(folder)

    def asked(draw: random.Random) -> list[int]:
        content = f"Write a long essay about {draw.choice(TOPICS)}."
        chat: list[dict[str, str]] = [{"role": "user", "content": content}]
        return list(loaded.apply_chat_template(chat, add_generation_prompt=True, return_dict=False))

    tokenizer = Tokenizer(Tokenizer(folder).backend)
    barred = sorted(tokenizer.special_ids)
    return Writer(tokenizer, asked, [], _of_model(folder, tokenizer, barred, temperature))


def _forty_words(temperature: float) -> Writer:
    """A Markov chain over 40 words with few likely successors each."""
    tokenizer = texts.tokenizer("shipped")
    rng = np.random.default_rng(40)
    words = rng.choice(np.arange(300, tokenizer.vocab_size), 40, replace=False)
    table = torch.full((40, tokenizer.vocab_size), -torch.inf)
    table[:, words] = torch.from_numpy(rng.gumbel(0, 2.0, (40, 40)).astype(np.float32))
    index = {int(word): i for i, word in enumerate(words)}

    def continued(prompts: Sequence[Sequence[int]], tokens: int, mark: _Mark) -> Tensor:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts])
        for _ in range(tokens):
            logits = table[[index[word] for word in ids[:, -1].tolist()]] / temperature
            ids = torch.cat([ids, mark(ids, logits).argmax(-1)[:, None]], dim=1)
        return ids[:, longest:]

    return Writer(tokenizer, lambda draw: [int(word) for word in draw.choices(words, k=8)], [], continued)


WRITERS: dict[str, Callable[[float], Writer]] = {
    "shipped": functools.partial(_grid_model, "shipped"),
    "second": functools.partial(_grid_model, "second"),
    "smollm2": _smollm2,
    "forty words": _forty_words,
}


# ---------------------------------------------------------------- texts


def registry_of(tokenizer: Any, cell: Cell, split: str, text: int) -> Registry:
    """Return the agents of one text."""
    registry = Registry.create(None, tokenizer=tokenizer, scheme=Scheme(family="gumbel"))
    for agent in range(AGENTS):
        name = f"iet counting/{split}/{cell.name}/{text}/{agent}".encode()
        registry.add(texts.agent_name(agent), secret=hashlib.blake2b(name, digest_size=32).digest())
    return registry


def write(writer: Writer, cell: Cell, split: str, number: int) -> Written:
    """Write `number` texts together, turn by turn."""
    tables = [registry_of(writer.tokenizer, cell, split, text).marking_keys() for text in range(number)]
    keys = dataclasses.replace(
        tables[0],
        subkeys=np.concatenate([table.subkeys for table in tables]),
        k_p=np.concatenate([table.k_p for table in tables]),
        owners=np.arange(AGENTS * number, dtype=np.int32),
        names=tuple(map(str, range(AGENTS * number))),
        epochs=np.zeros(AGENTS * number, np.int32),
    )
    seed = texts.integer(f"{split}/{cell.name}")
    said = np.array([texts.speakers(AGENTS, cell.turns, seed + text) for text in range(number)])
    turns: list[list[list[int]]] = [[] for _ in range(number)]
    counts, entropy = [], []
    for turn in range(cell.turns):
        prompts = []
        for text, before in enumerate(turns):
            opening = writer.asked(random.Random(seed + text * cell.turns + turn))
            held = {
                "log": before,
                "apart": [],
                "previous turn": before[-1:],
                "own turns": [t for t, by in zip(before, said[text], strict=False) if by == said[text, turn]],
            }[cell.prompts]
            prompts.append(opening + [id for t in held for id in t] + writer.after)
        slots = (said[:, turn] + AGENTS * np.arange(number)).astype(np.int64)
        mark = _Mark(keys, slots, seed + turn)
        ids = writer.continued(prompts, cell.tokens, mark)
        for before, row in zip(turns, ids.tolist(), strict=True):
            before.append(row)
        counts.append(np.stack(mark.counts, axis=1))
        entropy += mark.entropy
    ids = np.array(turns).reshape(number, -1)
    owners = np.repeat(said, cell.tokens, axis=1).astype(np.int64)
    return Written(ids, owners, np.concatenate(counts, axis=1), cell.tokens, float(np.mean(entropy)))


def load(work: pathlib.Path, cell: Cell, split: str) -> Written | None:
    """Return the texts of a cell; None if they are not there."""
    path = work / split / f"{cell.name}.npz"
    if not path.is_file():
        return None
    with np.load(path) as kept:
        ids, owners, counts = (kept[name].astype(np.int64) for name in ("ids", "owners", "counts"))
        return Written(ids, owners, counts, cell.tokens, float(kept["entropy"]))


def save(work: pathlib.Path, cell: Cell, split: str, written: Written) -> None:
    path = work / split / f"{cell.name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name: getattr(written, name).astype(np.int32) for name in ("ids", "owners", "counts")}
    write_file(path, lambda file: np.savez_compressed(file, entropy=written.entropy, **arrays))


# ---------------------------------------------------------------- reading


def forced(ids: Ids, registry: Registry, counts: Ids) -> Labels:
    """Return the labels of `posterior` with given counts."""
    keys = registry.scoring_keys()
    batch = Texts.single(ids)
    scores = keys.scores(batch, 1, counts.astype(np.int32))
    pairs, _ = keys.pairs(batch)
    labels = decode(scores, "posterior", "gumbel", pairs=pairs, weights=novelty_weights(ids)).token_agents
    return labels.astype(np.int64)


def whole_counts(ids: Ids, registry: Registry) -> Ids:
    counts = registry.scoring_keys().times_before(Texts.single(ids))
    assert counts is not None
    return counts.astype(np.int64)


def null(ids: Ids, tokenizer: Any, name: str) -> dict[str, float]:
    """Return how many unused keys have p-values at or below `LEVELS` in a text, and if they are corrected."""
    counts, corrected = dict.fromkeys(map(str, LEVELS), 0.0), 0.0
    for number in range(NULL_REGISTRIES):
        registry = Registry.create(None, tokenizer=tokenizer, scheme=Scheme(family="gumbel"))
        for key in range(NULL_KEYS):
            secret = hashlib.blake2b(f"iet null/{name}/{number}/{key}".encode(), digest_size=32).digest()
            registry.add(f"key {key}", secret=secret)
        plan = iet.Auditor(registry).plan
        (reader,) = plan.readers
        matrix = score(plan, reader, TokenBatch.of(Encoding(ids), None, reader.keys, None))
        for level in LEVELS:
            counts[str(level)] += float((matrix.log_p <= np.log(level)).sum())
        corrected = float(len(matrix.hypotheses) > 0)
    return {**counts, "corrected": corrected}


def measure(written: Written, registries: Iterator[Registry]) -> dict[str, Any]:
    """Return the figures of a cell."""
    rows, unused = [], []
    for ids, owners, counts in zip(written.ids, written.owners, written.counts, strict=True):
        registry = next(registries)
        whole = whole_counts(ids, registry)
        read = {
            "whole": forced(ids, registry, whole),
            "inferred": iet.Auditor(registry, allow_unattributed=False).audit(token_ids=ids).token_agents,
            "known": forced(ids, registry, counts),
        }
        free = iet.Auditor(registry).audit(token_ids=ids)
        digest = hashlib.blake2b(ids.tobytes(), digest_size=16).hexdigest()
        unused.append(null(ids, registry.open_tokenizer(), digest))
        row = {name: token_accuracy(owners, np.asarray(labels)) for name, labels in read.items()}
        rows.append({**row, "wrong_counts": float((whole != counts).mean()), "coverage": free.coverage})
    gain = [row["inferred"] - row["whole"] for row in rows]
    lost = [row["known"] - row["inferred"] for row in rows]
    return {
        "texts": len(rows),
        "entropy": written.entropy,
        **{name: summary([row[name] for row in rows]) for name in rows[0]},
        "gain": summary(gain),
        "behind_known": summary(lost),
        "null": {name: float(np.sum([row[name] for row in unused])) for name in unused[0]},
        "pairs": len(unused) * NULL_KEYS * NULL_REGISTRIES,
    }


def run(work: pathlib.Path, cells: Sequence[Cell], split: str, number: int) -> list[dict[str, Any]]:
    """Write what is missing, and read all."""
    torch.set_num_threads(1)
    rows = []
    for cell in tqdm(cells, unit="cell"):
        writer = None
        written = load(work, cell, split)
        if written is None:
            writer = WRITERS[cell.writer](cell.temperature)
            written = write(writer, cell, split, number)
            save(work, cell, split, written)
        tokenizer = writer.tokenizer if writer else tokenizer_of(cell.writer)
        registries = (registry_of(tokenizer, cell, split, text) for text in range(len(written.ids)))
        rows.append({**dataclasses.asdict(cell), **measure(written, registries)})
    return rows


def tokenizer_of(writer: str) -> Any:
    """Return the tokenizer of a writer of `WRITERS`."""
    if writer == "smollm2":
        from iet.audit import smollm2

        return Tokenizer(Tokenizer(smollm2.folder()).backend)
    return texts.tokenizer("second" if writer == "second" else "shipped")


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    interval = "{{{0}[0]:.3f}} ({{{0}[1]:.3f}}, {{{0}[2]:.3f}})"
    formats = {
        "writer": "{writer}",
        "prompts hold": "{prompts}",
        "T": "{temperature:g}",
        "turns": "{turns} x {tokens}",
        "texts": "{texts}",
        "nats": "{entropy:.2f}",
        "wrong counts": "{wrong_counts[0]:.0%}",
        "whole": "{whole[0]:.3f}",
        "inferred": "{inferred[0]:.3f}",
        "known": "{known[0]:.3f}",
        "inferred over whole": interval.format("gain"),
        "known over inferred": interval.format("behind_known"),
        "coverage at 0.01": "{coverage[0]:.3f}",
    }
    pairs = sum(row["pairs"] for row in rows)
    rates = [
        {"level": f"{level:g}", "share": sum(row["null"][str(level)] for row in rows) / pairs}
        for level in LEVELS
    ]
    corrected = sum(row["null"]["corrected"] for row in rows) / sum(row["texts"] for row in rows)
    null_rates = columns(rates, {"level": "{level}", "p <= level": "{share:.6f}"})
    heading = f"**Null**: {pairs:,} pairs of a text and an unused key; several hypotheses in {corrected:.0%}"
    return f"{columns(rows, formats)}\n\n{heading} of the texts\n\n{null_rates}"


def main() -> None:
    line = parser("benchmarks.accuracy.counting", __doc__)
    line.add_argument("--work", type=pathlib.Path, required=True, help="folder of the texts")
    line.add_argument("--split", choices=tuple(SPLITS), default="evaluation")
    line.add_argument("--texts", type=int, default=24, help="of a cell")
    line.add_argument("--cells", nargs="+", help="parts of names of cells (default: all)")
    options = line.parse_args()
    cells = [c for c in CELLS if not options.cells or any(part in c.name for part in options.cells)]
    rows = run(options.work, cells, options.split, options.texts)
    finish(line, options, {"rows": rows}, markdown(rows), packages=("torch", "transformers"))


if __name__ == "__main__":
    sys.exit(exit_code(main))
