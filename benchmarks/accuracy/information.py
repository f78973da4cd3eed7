"""How much of the entropy of marked text a reader of family gumbel gets, in versions 1 and 2.

    python -m benchmarks.accuracy.information -o benchmarks/results/information.json

Four agents write a text of eight turns with the shipped model, each turn under its agent's key. Prompts are
the demo's task and all of the text so far, as in a conversation ("the log"), or an opening alone, so that
nobody sees what others wrote. The texts are read as ids, without their prompts, and once more with a tenth of
the tokens left out at random.

In version 1 of the family a context that stood before is left to the sampler. In version 2 its seed holds
how often it stood before: in prompt and text, as it is specified, or, for comparison, in what the turn has
written. A reader counts in the text that it has: "index right" is the share of tokens for which that gives
the seed (in version 1: that are marked, and stand behind a context that is new to the text).

    reader      nats a token for the right key, of the score alone: Σ over classes of (m - 1) - log m, m the
                mean score of the tokens of a class; classes are those of `novelty_weights`. In version 1
                contexts of the last 256 tokens do not count, as in the decoder "posterior".
    score       H - (1 - Σ p²): who knows the probability of each token that was drawn, and its score
    entropy     H: who has the model and the prompt, and so the very token that the key chooses

Intervals are 95 % bootstraps over texts; a gain is of the shares of the entropy, version 2 over version 1.
`--work DIR` reads, in place of texts that it writes, those of the grid (`benchmarks.accuracy.texts`) that
are there in both versions: twelve turns of 400 tokens, each behind the end of the text so far and an opening,
the turns of a round written at once. There, "found in" is the fewest tokens of a grid after which nine of ten
agents are found at level 0.01 among 1, 6, 100 and 10,000, and "found in 200 tokens" the share of agents found
in so many; an agent's tokens are read where they stand in the whole text.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import random
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

import iet
from benchmarks.accuracy import power, texts
from benchmarks.recording import columns, exit_code, finish, parser
from benchmarks.writing import sampler
from iet import calibrate
from iet.demo.conversation import TASK, load_model
from iet.generation.sampling import times_before
from iet.kernels import pair_numbers, score_tokens
from iet.marks.keys import KeyTable
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from iet.native.pairs import fresh_weights, novelty_weights, number_pairs, repeats
from iet.native.pairs import times_before as times_of_ids

TEMPERATURES = (0.5, 0.7, 1.0)
PROMPTS = ("the log", "an opening")
AGENTS, TURNS, TOKENS = 4, 8, 100
LEFT_OUT = 0.1
DRAWS = 2_000  # of a bootstrap
_GAIN = "{gain:+.0%} [{gain_low:+.0%}, {gain_high:+.0%}]"

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Way:
    """How a text is marked."""

    version: int
    n_gram: int
    counted_in: str = "prompt and text"  # or "turn"

    @property
    def scheme(self) -> Scheme:
        return Scheme(family="gumbel", version=self.version, n_gram=self.n_gram)


WAYS = (Way(1, 4), Way(2, 4), Way(2, 4, "turn"), Way(1, 5), Way(2, 5))


@dataclasses.dataclass(frozen=True, eq=False)
class Written:
    """Texts and what they were drawn from, [N, T] each."""

    ids: Ids
    entropy: Floats
    collisions: Floats  # Σ p²
    counts: Ids  # that went into the seeds
    marked: NDArray[np.bool_]
    owners: Ids  # agent of each token


class _Mark:
    """Chooses tokens under the keys of rows, and keeps what they were chosen from."""

    def __init__(self, way: Way, keys: KeyTable, slots: Ids, lengths: Sequence[int], generator: Any) -> None:
        self._way, self._keys, self._slots = way, keys, torch.from_numpy(slots)
        self._generator = generator
        self._padding = max(lengths) - torch.tensor(lengths)
        self._prompt = max(lengths)
        self.kept: dict[str, list[Any]] = {name: [] for name in ("entropy", "collisions", "counts", "marked")}

    def __call__(self, ids: Tensor, logits: Tensor) -> Tensor:
        words = self._way.n_gram - 1
        context, ends = ids[:, -words:], torch.full((len(ids),), ids.shape[1])
        if self._way.counted_in == "turn":  # contexts that stand in the turn from their first id on
            written = ids[:, self._prompt :]
            counts = times_before(written, ends - self._prompt, context)
        else:
            # Padding is an id that no context of the text holds.
            counts = times_before(ids, ends, context)
        marked = (counts == 0) | (self._way.version > 1)
        final = logits.float()
        shares = final.double().softmax(-1)
        self.kept["entropy"].append(torch.special.entr(shares).sum(-1).numpy())
        self.kept["collisions"].append((shares**2).sum(-1).numpy())
        self.kept["counts"].append(counts.numpy())
        self.kept["marked"].append(marked.numpy())
        noisy = final.clone()
        given = counts if self._way.version > 1 else None
        iet.embed_(noisy, context, torch.where(marked, self._slots, -1), self._keys, counts=given)
        chosen = noisy.argmax(-1)
        drawn = torch.multinomial(shares, 1, generator=self._generator)[:, 0]
        chosen = torch.where(marked, chosen, drawn)
        return torch.full_like(logits, -torch.inf).scatter_(1, chosen[:, None], 0.0)


def registry_of(way: Way, text: int, seed: int) -> Registry:
    """Return the agents of one text."""
    registry = Registry.create(None, tokenizer=texts.tokenizer("shipped"), scheme=way.scheme)
    for agent in range(AGENTS):
        name = f"information {seed}/{text}/{agent}"
        registry.add(texts.agent_name(agent), secret=texts.integer(name).to_bytes(32, "little"))
    return registry


def write(model: Any, way: Way, prompt: str, temperature: float, number: int, seed: int) -> Written:
    """Write `number` texts together, turn by turn."""
    reader = texts.tokenizer("shipped")

    def encoded(text: str) -> list[int]:
        ids: list[int] = reader.backend.encode(text, add_special_tokens=False).ids
        return ids

    task, openings = encoded(TASK), [encoded(text)[:24] for text in texts.OPENINGS["shipped"]]
    tables = [registry_of(way, text, seed).marking_keys() for text in range(number)]
    keys = dataclasses.replace(
        tables[0],
        subkeys=np.concatenate([table.subkeys for table in tables]),
        k_p=np.concatenate([table.k_p for table in tables]),
        owners=np.arange(AGENTS * number, dtype=np.int32),
        names=tuple(map(str, range(AGENTS * number))),
        epochs=np.zeros(AGENTS * number, np.int32),
    )
    said = np.array([texts.speakers(AGENTS, TURNS, seed + text) for text in range(number)])
    logs: list[list[int]] = [[] for _ in range(number)]
    generator, parts = torch.Generator().manual_seed(seed), []
    for turn in range(TURNS):
        if prompt == "the log":
            prompts = [task + log for log in logs]
        else:
            prompts = [random.Random(seed + text * TURNS + turn).choice(openings) for text in range(number)]
        slots = said[:, turn] + AGENTS * np.arange(number)
        mark = _Mark(way, keys, slots, [len(ids) for ids in prompts], generator)
        found = sampler.sample(
            model,
            prompts,
            lambda step: torch.zeros(2, number, 1),
            tokens=TOKENS,
            temperature=temperature,
            barred=reader.special_ids,
            pad=int(model.config.pad_token_id),
            marking=functools.partial(_always, mark),
        )
        ids = found.ids.numpy()
        for log, row in zip(logs, ids.tolist(), strict=True):
            log += row
        parts.append({"ids": ids, **{name: np.stack(kept, 1) for name, kept in mark.kept.items()}})
    joined = {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}
    return Written(**joined, owners=np.repeat(said, TOKENS, axis=1))


def _always(mark: _Mark, rows: Sequence[int]) -> _Mark:
    return mark


def read(
    way: Way,
    ids_of: Ids,
    owners_of: Ids,
    registries: Sequence[Registry],
    seed: int,
    left_out: float = 0.0,
) -> tuple[Floats, Floats]:
    """Return the nats [N] that a reader gets in each text, and how many tokens of it he has [N]."""
    rng = np.random.default_rng(seed)
    scores, classes = [], []
    for whole, speakers, registry in zip(ids_of, owners_of, registries, strict=True):
        kept = rng.random(len(whole)) >= left_out
        ids, owners = whole[kept], speakers[kept]
        every = score_tokens(ids, registry)
        counts = np.arange(len(ids)) >= way.n_gram - 1
        if way.version == 1:
            counts &= fresh_weights(number_pairs(ids, counts, way.n_gram, contexts=True)) > 0
        scores.append(every[np.arange(len(ids)), owners].astype(np.float64))
        classes.append(np.where(counts, novelty_weights(ids), 0))
    found = np.zeros(len(scores))
    for each in np.unique(np.concatenate(classes)):
        mean = np.concatenate([x[c == each] for x, c in zip(scores, classes, strict=True)]).mean()
        if each > 0 and mean > 1:  # λ = 1 - 1/m: what a token tells is λ·x + log(1 - λ)
            found += [
                ((1 - 1 / mean) * x - np.log(mean))[c == each].sum()
                for x, c in zip(scores, classes, strict=True)
            ]
    return found, np.array([len(x) for x in scores], np.float64)


def share(nats: Floats, tokens: Floats, entropy: Floats, rows: Any) -> Any:
    """Return nats a token over entropy a token, of the texts in `rows` [..., N]."""
    return nats[rows].sum(-1) / tokens[rows].sum(-1) / entropy[rows].mean(-1)


def figures(way: Way, written: Written, seed: int) -> dict[str, Any]:
    entropy = written.entropy.mean(axis=1)
    rows = np.random.default_rng(0).integers(0, len(entropy), (DRAWS, len(entropy)))
    scored = np.arange(written.ids.shape[1]) >= way.n_gram - 1
    there = np.array([times_of_ids(ids, way.n_gram) for ids in written.ids])
    right = written.marked & (there == written.counts if way.version > 1 else there == 0)
    registries = [registry_of(way, text, seed) for text in range(len(entropy))]
    (nats, tokens), (fewer, rest) = (
        read(way, written.ids, written.owners, registries, seed, left_out) for left_out in (0.0, LEFT_OUT)
    )
    drawn = share(nats, tokens, entropy, rows)
    return {
        "tokens": int(written.ids.size),
        "entropy": float(entropy.mean()),
        "seen_before": float((written.counts > 0).mean()),
        "marked": float(written.marked.mean()),
        "index_right": float(right[:, scored].mean()),
        "reader": float(nats.sum() / tokens.sum()),
        "share": float(share(nats, tokens, entropy, np.arange(len(entropy)))),
        "low": float(np.quantile(drawn, 0.025)),
        "high": float(np.quantile(drawn, 0.975)),
        "share_left_out": float(share(fewer, rest, entropy, np.arange(len(entropy)))),
        "score_bound": float((written.entropy - 1 + written.collisions).mean() / entropy.mean()),
        "drawn": drawn,
    }


def cells(
    model: Any, temperature: float, prompt: str, number: int, seed: int, ways: Sequence[Way] = WAYS
) -> list[dict[str, Any]]:
    """Write and read texts in all ways, at one temperature and behind prompts of one kind."""
    rows, first = [], dict[int, NDArray[np.float64]]()
    for way in ways:
        row = figures(way, write(model, way, prompt, temperature, number, seed), seed)
        drawn = row.pop("drawn")
        before = first.setdefault(way.n_gram, drawn)  # of version 1, which comes first
        if way.version > 1:
            row |= _gain(drawn, before)
        rows.append({"temperature": temperature, "prompt": prompt, **dataclasses.asdict(way), **row})
    return rows


def run(
    number: int, seed: int, temperatures: Sequence[float], prompts: Sequence[str], ways: Sequence[Way]
) -> list[dict[str, Any]]:
    """Write and read everything."""
    model, _ = load_model()
    groups = tqdm([(t, p) for t in temperatures for p in prompts], unit="group")
    return [row for t, p in groups for row in cells(model, t, p, number, seed, ways)]


def of_grid(work: pathlib.Path) -> list[dict[str, Any]]:
    """Read the texts of the grid that are there in both versions; a row for each of a cell."""
    rows = []
    for first in texts.cells(families=("gumbel",)):
        second = dataclasses.replace(first, family="gumbel-v2")
        sets = [(Way(version, 4), texts.load(work, cell)) for version, cell in ((1, first), (2, second))]
        if not all(some for _, some in sets):
            continue
        before = None
        for way, some in sets:
            ids = np.array([turns.ids.reshape(-1) for turns in some])
            owners = np.array([np.repeat(turns.speakers, turns.ids.shape[1]) for turns in some])
            entropy = np.array([turns.entropy.mean() for turns in some])
            registries = [turns.registry() for turns in some]
            drawing = np.random.default_rng(way.version).integers(0, len(some), (DRAWS, len(some)))
            nats, tokens = read(way, ids, owners, registries, 0)
            fewer, rest = read(way, ids, owners, registries, 0, LEFT_OUT)
            drawn, all_texts = share(nats, tokens, entropy, drawing), np.arange(len(some))
            row = {
                **dataclasses.asdict(first),
                **dataclasses.asdict(way),
                "texts": len(some),
                "entropy": float(entropy.mean()),
                "marked": 1 - texts.entropies(some)["drawn_without_mark"],
                "reader": float(nats.sum() / tokens.sum()),
                "share": float(share(nats, tokens, entropy, all_texts)),
                "low": float(np.quantile(drawn, 0.025)),
                "high": float(np.quantile(drawn, 0.975)),
                "share_left_out": float(share(fewer, rest, entropy, all_texts)),
            }
            row |= power_of(ids, owners, registries)
            if before is not None:
                row |= _gain(drawn, before)
            before = drawn
            rows.append(row)
    return rows


def power_of(ids: Ids, owners: Ids, registries: Sequence[Registry]) -> dict[str, Any]:
    """Return how many tokens of an agent find it, and the share of agents found in 200, by keys."""
    rows = []
    grid = (*power.GRID, calibrate.SHORT_TEXT)
    for whole, speakers, registry in zip(ids, owners, registries, strict=True):
        pairs, scores = pair_numbers(whole, registry), score_tokens(whole, registry)
        first = (pairs >= 0) & ~repeats(pairs)
        for slot in np.unique(speakers):
            own = speakers == slot
            rows.append(power.log_p_of(scores[own, slot : slot + 1], first[own], registry, grid))
    log_p = np.array(rows)
    short = {
        keys: float((log_p[:, -1] <= calibrate.log_p_of_one(power.LEVEL, keys)).mean())
        for keys in calibrate.KEYS
    }
    tokens = {keys: power.tokens_needed(log_p[:, :-1], keys) for keys in calibrate.KEYS}
    return {"found_in": tokens, "found_in_short": short}


def _gain(drawn: Floats, before: Floats) -> dict[str, float]:
    gains = drawn / before - 1
    low, middle, high = np.quantile(gains, [0.025, 0.5, 0.975])
    return {"gain": float(middle), "gain_low": float(low), "gain_high": float(high)}


def markdown(rows: Sequence[dict[str, Any]], number: int) -> str:
    shown = [{**row, "gained": _GAIN.format(**row) if "gain" in row else ""} for row in rows]
    grid = "model" in rows[0]
    for row in shown:
        row["count"] = "" if row["version"] == 1 else row["counted_in"]
        if grid:
            most = power.GRID[-1]
            needed = [calibrate.tokens_needed(count, most) for count in row["found_in"].values()]
            row["needed"] = " · ".join(needed)
            row["in_short"] = " · ".join(f"{found:.0%}" for found in row["found_in_short"].values())
    formats = {
        **({"model": "{model}", "T": "{temperature}", "A": "{agents}"} if grid else {"T": "{temperature}"}),
        **({"texts": "{texts}"} if grid else {"prompt": "{prompt}"}),
        **{"version": "{version}", "n": "{n_gram}"},
        **{"count of": "{count}", "nats a token": "{entropy:.2f}", "seen before": "{seen_before:.0%}"},
        **{"marked": "{marked:.0%}", "index right": "{index_right:.1%}", "reader, nats": "{reader:.3f}"},
        **{"reader, of the entropy": "{share:.1%} [{low:.1%}, {high:.1%}]", "over version 1": "{gained}"},
        **{"a tenth left out": "{share_left_out:.1%}", "score bound": "{score_bound:.0%}"},
        **({"found in": "{needed}", "found in 200 tokens": "{in_short}"} if grid else {}),
    }
    for name in ("seen before", "index right", "score bound") if grid else ():  # not kept with the texts
        del formats[name]
    what = (
        "Texts of the grid"
        if grid
        else f"{number} texts a row, of {TURNS} turns of {TOKENS} tokens by {AGENTS} agents, shipped model"
    )
    return (
        f"# Information in family gumbel\n\n{what}. What the columns are: the docstring of"
        " `benchmarks.accuracy.information`. The bound with model and prompt is 100 %.\n\n"
        f"{columns(shown, formats)}"
    )


def main() -> None:
    line = parser("benchmarks.accuracy.information", __doc__)
    line.add_argument("--texts", type=int, default=24)
    line.add_argument("--seed", type=int, default=0)
    line.add_argument("--temperatures", type=float, nargs="+", default=TEMPERATURES)
    line.add_argument("--prompts", nargs="+", choices=PROMPTS, default=PROMPTS)
    line.add_argument("--specified", action="store_true", help="both versions as they are specified, n = 4")
    line.add_argument("--work", type=pathlib.Path, help="read the texts of the grid there")
    given = line.parse_args()
    torch.set_num_threads(1)
    if given.work:
        rows = of_grid(given.work)
        if not rows:
            line.error(f"--work: {given.work} holds no cell in both versions of gumbel")
    else:
        ways = WAYS[:2] if given.specified else WAYS
        rows = run(given.texts, given.seed, given.temperatures, given.prompts, ways)
    content = {"texts": given.texts, "seed": given.seed, "rows": rows}
    finish(line, given, content, markdown(rows, given.texts), packages=("torch", "transformers"))


if __name__ == "__main__":
    sys.exit(exit_code(main))
