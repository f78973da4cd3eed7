"""Measure text that was marked by choosing chunks: how it is read, and whether the choice is unbiased.

    python -m benchmarks.accuracy.chunk_marks -o benchmarks/results/chunk_marks.json

* reading: the shipped model draws m chunks of L tokens given an opening and the turn so far, and
  `TextChooser` chooses one. Chunks are not cut at blanks. A conversation has eight turns of four agents, of
  100 or 200 tokens; in every second conversation two turns are unmarked. "Walk" chooses each token among the
  19 likeliest ones, as `iet.HostedModel` does. The reader is `iet.Auditor` with its default options.
* exactness: chunks of a Markov chain of words and texts of eight words are counted, each draw with a key of
  its own, and compared with the distribution that the drafts come from.

Cells and parts that the output has already are not measured again. `--quick` checks that it runs.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from tqdm import tqdm

from benchmarks.accuracy import promises, regimes, texts
from benchmarks.recording import as_json, columns, exit_code, finish, parser
from benchmarks.statistics import chi_square, ratio
from benchmarks.writing import sampler
from benchmarks.writing.shared import steps
from iet.audit.auditor import Auditor
from iet.audit.calibration import clustered_interval
from iet.cli.demo import true_labels
from iet.demo.conversation import JOINER, load_model
from iet.generation import selection
from iet.generation.free import FreeTokens
from iet.generation.selection import TextChooser
from iet.generation.sessions import keys_of_rows
from iet.kernels import score_tokens
from iet.marks.registry import Registry

PARTS = ("reading", "exactness")
MODEL, FAMILY = "shipped", "gumbel"
LEVEL = 0.01
AGENTS, TURNS, UNMARKED = 4, 8, 2
SILENT = 8
"""Agents that wrote nothing, in a registry with the four that wrote."""

TOP = 19
"""Tokens that `walk` chooses among."""

ROWS = 512
"""Drafts that are written at once."""

GRID = tuple(round(40 * 1.15**step) for step in range(20))
"""Tokens of a text of one agent, 569 at most."""

BINS = 20
CALIBRATED = 0.02
"""Goal for the mean difference between a token's posterior and the share that is right."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Sizes:
    conversations: int = 12  # of a cell
    turn_tokens: tuple[int, int] = (100, 200)
    singles: int = 20  # texts of one agent, of a cell
    single_turns: int = 3  # of a text of one agent
    registries: int = 10  # drawn for each conversation
    draws: int = 1_000_000  # of all chunks whose distribution is tested


QUICK = Sizes(2, (24, 48), 2, 1, 1, 3000)


@dataclasses.dataclass(frozen=True)
class Cell:
    temperature: float
    mark: str = "select"
    tokens: int = 1  # of a chunk
    drafts: int = 1

    @property
    def name(self) -> str:
        return f"{self.mark} T={self.temperature:g} L={self.tokens} m={self.drafts}"


def cells(quick: bool) -> list[Cell]:
    temperatures = (1.0,) if quick else (1.0, 0.5)
    sizes = [(16, 4)] if quick else itertools.product((16, 24, 32), (4, 8, 16))
    chosen = [Cell(t, "select", *size) for size in sizes for t in temperatures]
    return chosen + [Cell(t, "walk") for t in temperatures]


class Turn(NamedTuple):
    """A turn to be written; without a chooser it is unmarked."""

    prompt: list[int]
    tokens: int
    chooser: TextChooser | None


# ---------------------------------------------------------------- writing


class Writer:
    """Writes turns of one cell with the shipped model.

    Attributes:
        nats: entropy of the model's distribution at the temperature, of every eighth token.
    """

    def __init__(self, model: Any, cell: Cell, seed: int) -> None:
        self._model, self._cell, self._tokenizer = model, cell, texts.tokenizer(MODEL)
        self._generator = torch.Generator().manual_seed(seed)
        self.nats: list[float] = []

    def write(self, turns: Sequence[Turn]) -> list[str]:
        """Return the text of each turn."""
        marked = [number for number, turn in enumerate(turns) if turn.chooser is not None]
        plain = [number for number, turn in enumerate(turns) if turn.chooser is None]
        written = [""] * len(turns)
        unmarked = Cell(self._cell.temperature, "select", max(turn.tokens for turn in turns), 1)
        for numbers, cell in ((marked, self._cell), (plain, unmarked)):
            some = [turns[number] for number in numbers]
            ids = self._walk(some) if cell.mark == "walk" else self._chunks(some, cell)
            for number, row in zip(numbers, ids, strict=True):
                written[number] = texts.turn_text(MODEL, row)
        return written

    def _chunks(self, turns: Sequence[Turn], cell: Cell) -> list[list[int]]:
        ids, said = [list[int]() for _ in turns], [""] * len(turns)
        for done in range(0, max((turn.tokens for turn in turns), default=0), cell.tokens):
            unfinished = [number for number, turn in enumerate(turns) if turn.tokens > done]
            for group in _groups(unfinished, ROWS // cell.drafts):
                prompts = [[*turns[number].prompt, *ids[number]] for number in group]
                for number, drafts in zip(group, self._drafts(prompts, cell), strict=True):
                    turn = turns[number]
                    drafts = [draft[: turn.tokens - done] for draft in drafts]
                    options = [self._text([*ids[number], *draft])[len(said[number]) :] for draft in drafts]
                    chosen = 0
                    if turn.chooser is not None:
                        chosen = turn.chooser.choose(said[number], options, [1.0] * len(options)).index
                    ids[number] += drafts[chosen]
                    said[number] += options[chosen]
        return ids

    def _drafts(self, prompts: Sequence[Sequence[int]], cell: Cell) -> list[list[list[int]]]:
        """Return the drafts of chunks that continue each prompt, all prompts of one length."""
        start = len(prompts[0])
        ids = torch.tensor(prompts).repeat_interleave(cell.drafts, 0)
        ids = torch.cat([ids, ids.new_zeros(len(ids), cell.tokens)], dim=1)
        for position, logits in self._logits(ids, start, cell.drafts):
            ids[:, start + position] = self._draw(logits)
        drafts: list[list[list[int]]] = ids[:, start:].view(len(prompts), cell.drafts, -1).tolist()
        return drafts

    @torch.inference_mode()
    def _logits(self, ids: torch.Tensor, start: int, copies: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield each position and its logits at the temperature; the caller writes the id into `ids`."""
        for position, raw in enumerate(steps(self._model, ids, start, copies)):
            raw[:, list(self._tokenizer.special_ids)] = -torch.inf
            raw /= self._cell.temperature
            if position % sampler.ENTROPY_EVERY == 0:
                self.nats.append(float(sampler.entropies(raw).mean()))
            yield position, raw

    def _draw(self, logits: torch.Tensor) -> torch.Tensor:
        return sampler.draw(logits, torch.rand(2, len(logits), 1, generator=self._generator))

    def _walk(self, turns: Sequence[Turn]) -> list[list[int]]:
        prompts = torch.tensor([turn.prompt for turn in turns])
        start, longest = prompts.shape[1], max(turn.tokens for turn in turns)
        ids = torch.cat([prompts, prompts.new_zeros(len(prompts), longest)], dim=1)
        free, requests, said = FreeTokens(), torch.arange(len(turns)), [""] * len(turns)
        for position, logits in self._logits(ids, start, 1):
            drawn, top = self._draw(logits), logits.topk(TOP)
            is_free = free.are_free(requests, torch.full_like(requests, position)).tolist()
            for number, turn in enumerate(turns):
                if position >= turn.tokens:
                    continue
                token, likeliest = int(drawn[number]), top.indices[number].tolist()
                if token in likeliest and not is_free[number] and turn.chooser is not None:
                    weights = (top.values[number] - top.values[number, 0]).exp().tolist()
                    options = {one: self._tokenizer.decode([one]) for one in likeliest}
                    known = [one for one in likeliest if "\ufffd" not in options[one]]
                    if token in known:
                        shares = [weights[likeliest.index(one)] for one in known]
                        chosen = turn.chooser.choose(said[number], [options[one] for one in known], shares)
                        token = known[chosen.index]
                ids[number, start + position] = token
                said[number] = self._text(ids[number, start : start + position + 1].tolist())
        return [ids[number, start : start + turn.tokens].tolist() for number, turn in enumerate(turns)]

    def _text(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids)).rstrip("\ufffd")


def _groups(numbers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for first in range(0, len(numbers), size):
        yield numbers[first : first + size]


def conversations(model: Any, cell: Cell, sizes: Sizes) -> tuple[list[regimes.Case], list[regimes.Case], float]:
    """Return conversations of four agents, texts of one agent, and the mean entropy in nats a token."""
    plans: list[tuple[Registry, list[str | None], list[int]]] = []
    for number in range(sizes.conversations + sizes.singles):
        seed = texts.integer(f"chunk marks, {cell.name}, {number}")
        registry, draw = texts.keys(MODEL, FAMILY, seed, AGENTS), random.Random(seed)
        if number >= sizes.conversations:
            count = sizes.single_turns
            plans.append((registry, [texts.agent_name(0)] * count, [sizes.turn_tokens[1]] * count))
            continue
        names: list[str | None] = list(map(texts.agent_name, texts.speakers(AGENTS, TURNS, seed)))
        for turn in draw.sample(range(TURNS), UNMARKED * (number % 2)):
            names[turn] = None
        plans.append((registry, names, draw.choices(sizes.turn_tokens, k=TURNS)))
    openings = [texts.prompt(MODEL, "", seed, 0) for seed in range(100)]
    draw = random.Random(cell.name)
    turns = [
        Turn(draw.choice(openings), tokens, None if name is None else TextChooser(registry, name))
        for registry, names, lengths in plans
        for name, tokens in zip(names, lengths, strict=True)
    ]
    writer = Writer(model, cell, texts.integer(cell.name))
    written = iter(writer.write(turns))
    cases = [
        regimes.Case(texts.joined([next(written) for _ in names], names, JOINER), registry)
        for registry, names, _ in plans
    ]
    return cases[: sizes.conversations], cases[sizes.conversations :], float(np.mean(writer.nats))


# ---------------------------------------------------------------- reading


def reading(cell: Cell, sizes: Sizes, model: Any) -> dict[str, Any]:
    """Return what the auditor makes of a cell."""
    cases, singles, nats = conversations(model, cell, sizes)
    counts, free, forced = [], np.zeros((3, BINS)), np.zeros((3, BINS))
    for case in cases:
        row = {**promises.measured(case), **_silent(case, sizes.registries)}
        truth = true_labels(case.talk, case.registry)
        report = Auditor(case.registry, allow_unattributed=False).audit(case.talk.text)
        row |= {"tokens": (truth >= 0).sum(), "right": (report.token_agents == truth).sum()}
        if (truth >= 0).all():
            forced += _calibration(report.posterior, truth)
        report = Auditor(case.registry).audit(case.talk.text)
        named = report.token_agents >= 0
        row |= {"named": named.sum(), "named right": (named & (report.token_agents == truth)).sum()}
        row["covered"] = (named & (truth >= 0)).sum()
        row |= {"agents": len(set(case.talk.speakers) - {None}), "unmarked": (truth < 0).sum()}
        free += _calibration(report.posterior, truth)
        counts.append({name: float(value) for name, value in row.items()})
    names = sorted(set().union(*counts))
    return {
        **dataclasses.asdict(cell),
        "nats": nats,
        "counts": {name: [row.get(name, 0.0) for row in counts] for name in names},
        "free": free.tolist(),
        "forced": forced.tolist(),
        "found_in": _found_in(singles),
    }


def _silent(case: regimes.Case, registries: int) -> dict[str, float]:
    """Return how often agents are found that wrote nothing, alone in a registry and beside the writers."""
    alone = beside = 0
    for number in range(registries):
        seed = texts.integer(f"silent {number} {case.talk.text}")
        alone += bool(Auditor(texts.keys(MODEL, FAMILY, seed, SILENT)).audit(case.talk.text).found)
        registry = case.registry.export(None, case.registry.names())
        secrets = np.random.default_rng(seed).integers(0, 256, (SILENT, 32), dtype=np.uint8)
        for slot, secret in enumerate(secrets):
            registry.add(f"silent-{slot + 1}", secret=secret.tobytes())
        beside += bool(set(Auditor(registry).audit(case.talk.text).found) - set(case.talk.speakers))
    return {"silent alone": alone, "silent beside": beside, "readings": registries}


def _calibration(posterior: NDArray[Any] | None, truth: Ints) -> Floats:
    """Return tokens, the sum of their highest posterior, and how many are right, by bins of it [3, BINS]."""
    assert posterior is not None
    highest, right = posterior.max(axis=1), posterior.argmax(axis=1) == truth
    bins = np.minimum((highest * BINS).astype(np.int64), BINS - 1)
    return np.array([np.bincount(bins, value, BINS) for value in (np.ones(len(bins)), highest, right)])


def _found_in(singles: Sequence[regimes.Case]) -> list[float | None]:
    """Return the first N of `GRID` at which a half and nine tenths of the texts' agents are found."""
    found = np.zeros((len(singles), len(GRID)), np.bool_)
    for row, case in zip(found, singles, strict=True):
        ends = case.registry.open_tokenizer().encode(case.talk.text).char_ends
        prefixes = [case.talk.text[: ends[min(count, len(ends)) - 1]] for count in GRID]
        reports = Auditor(case.registry).audit_many(prefixes)
        row[:] = [texts.agent_name(0) in report.found for report in reports]
    shares = found.mean(axis=0)
    return [next((n for n, x in zip(GRID, shares, strict=True) if x >= share), None) for share in (0.5, 0.9)]


# ---------------------------------------------------------------- exactness

SIMULATED = 63
"""Simulated keys of a choice: the choice is exact for any number, and fewer take less time."""

BEFORE = " the small answer of the"
"""Text before every chunk: its last three tokens are the context of the first token."""

CHAIN = (" water", " budget", " library", " number", " report", " people")
"""Words of one token. A word is followed by one of the next three, in a circle."""

SHARES = (0.85, 0.1, 0.05)
"""Probabilities of the three."""

DRAFTS, CHUNK, LAST = 4, 4, 4
"""Drafts of a choice, their tokens, and the words of a chunk that are counted, from its end."""

MIN_EXPECTED = 10.0
"""Draws in a cell of χ²; rarer outcomes share one."""

SHORT = (" class", " school", " house", " teacher", " water", " budget", " library", " number")
LONG = ((" coun", "cil"), (" mark", "et"), (" let", "ter"), (" st", "ation"))
LONG += ((" fore", "st"), (" sum", "mer"), (" w", "inter"), (" se", "ed"))
"""Words of one token and of two: each word of a text is one of a pair, with equal probability."""

TREE, PLAIN = "TextChooser", "argmax log F(S)/n"
Choice = Callable[[str, Sequence[str]], int]
"""(session, drafts) -> index of the chosen one."""


def choices(registry: Registry) -> dict[str, Choice]:
    """Return rules that choose among drafts, each draw with the keys of its own session."""
    agent, reader = registry.names()[0], registry.open_tokenizer()

    def tree(session: str, options: Sequence[str]) -> int:
        return TextChooser(registry, agent, session).choose(BEFORE, options, [1.0] * len(options)).index

    def plain(session: str, options: Sequence[str]) -> int:
        table, (row,) = keys_of_rows(registry, registry.marking_keys(), [0], [session])
        keys, counts = table.subset(np.array([row])), np.array([options.count(text) for text in options])
        ids = [reader.encode(BEFORE + text).token_ids for text in options]
        sums = np.array([score_tokens(one, keys)[-CHUNK:].sum(dtype=np.float64) for one in ids])
        return int(np.argmax(np.log(special.gammainc(CHUNK, sums)) / counts))

    return {TREE: tree, PLAIN: plain}


def chunks(choice: Choice, length: int, draws: int, seed: int) -> tuple[NDArray[np.float64], Ints]:
    """Return probabilities and counts of the last words of chosen chunks, with the word before them."""
    rng, words = np.random.default_rng(seed), len(CHAIN)
    counts = np.zeros((words, len(SHARES) ** LAST), dtype=np.int64)
    powers = len(SHARES) ** np.arange(LAST)[::-1]
    for draw in range(draws):
        steps = rng.choice(len(SHARES), (DRAFTS, length), p=SHARES)
        numbers = np.cumsum(steps + 1, axis=1) % words
        options = ["".join(CHAIN[word] for word in row) for row in numbers]
        chosen = choice(f"{seed} {draw}", options)
        first = 0 if length == LAST else numbers[chosen, -LAST - 1]
        counts[first, steps[chosen, -LAST:] @ powers] += 1
    first_word = np.eye(words)[0]
    step = sum(share * np.roll(np.eye(words), i + 1, axis=1) for i, share in enumerate(SHARES))
    first_word = first_word @ np.linalg.matrix_power(np.asarray(step), length - LAST)
    last = np.array([math.prod(path) for path in itertools.product(SHARES, repeat=LAST)])
    return np.outer(first_word, last).ravel(), counts.ravel()


def eight_words(
    registry: Registry, drafts: int, is_cut: bool, draws: int, seed: int
) -> tuple[NDArray[np.float64], Ints]:
    """Return probabilities and counts of texts of eight words, written chunk by chunk.

    Args:
        drafts: of a chunk; with one there is nothing to choose.
        is_cut: whether drafts end before their last blank.
    """
    rng, size = np.random.default_rng(seed), len(SHORT)
    counts = np.zeros(2**size, dtype=np.int64)
    for draw in range(draws):
        chooser = TextChooser(registry, registry.names()[0], f"{seed} {draw}")
        text, is_long, pending = BEFORE, list[bool](), False  # pending: the last word lacks its second token
        while len(is_long) - pending < size:
            ends = []
            for _ in range(drafts):
                words = [*is_long, *(rng.random(CHUNK) < 0.5).tolist()]
                ends.append(_draft(words, len(is_long), pending, is_cut))
            options = [option for option, _, _ in ends]
            chosen = chooser.choose(text, options, [1.0] * drafts).index if drafts > 1 else 0
            option, is_long, pending = ends[chosen]
            text += option
        counts[int("".join(map(str, map(int, is_long[:size]))), 2)] += 1
    return np.full(2**size, 0.5**size), counts


def _draft(words: list[bool], begun: int, pending: bool, is_cut: bool) -> tuple[str, list[bool], bool]:
    """Return a draft of `CHUNK` tokens, the words that are begun after it, and whether the last is partial."""
    pieces = [LONG[(begun - 1) % len(LONG)][1]] if pending else []
    for number in range(begun, len(words)):
        place = number % len(SHORT)
        pieces += LONG[place] if words[number] else (SHORT[place],)
    draft = pieces[:CHUNK]
    count = begun + sum(piece.startswith(" ") for piece in draft)
    if is_cut:
        return "".join(draft).rpartition(" ")[0], words[: count - 1], False
    return "".join(draft), words[:count], words[count - 1] and draft[-1].startswith(" ")


def exactness(sizes: Sizes, seed: int = 0) -> list[dict[str, Any]]:
    """Return χ² of chosen chunks and texts against the distribution of the drafts."""
    selection._SIMULATED, kept = SIMULATED, selection._SIMULATED
    registry = texts.keys(MODEL, FAMILY, seed, 1)
    rules = choices(registry)
    cases: list[tuple[str, str, float, Any]] = [
        (f"chunks of {length} tokens", rule, share, (chunks, rules[rule], length))
        for rule, length, share in ((TREE, CHUNK, 0.6), (PLAIN, CHUNK, 0.2), (TREE, 3 * CHUNK, 0.1))
    ]
    for rule, drafts, is_cut in (
        (f"{TREE}, not cut", DRAFTS, False),
        (f"{TREE}, cut at the last blank", DRAFTS, True),
        ("one draft, cut at the last blank", 1, True),
    ):
        cases.append(("texts of 8 words", rule, 1 / 30, (eight_words, registry, drafts, is_cut)))
    rows = []
    for number, (case, rule, share, (measure, *arguments)) in enumerate(tqdm(cases, desc="exactness")):
        draws = round(sizes.draws * share)
        probabilities, counts = measure(*arguments, draws, seed + number)
        is_common = probabilities * draws >= MIN_EXPECTED
        cells = [np.append(of[is_common], of[~is_common].sum()) for of in (counts, probabilities)]
        statistic, freedom, p = chi_square(*cells)
        distance = np.abs(counts / draws - probabilities).sum() / 2
        exact = np.sqrt(probabilities * (1 - probabilities) / draws / (2 * math.pi)).sum()
        row = {"case": case, "rule": rule, "draws": draws, "freedom": freedom, "p": p}
        row |= {"z": (statistic - freedom) / math.sqrt(2 * freedom) if freedom else 0.0}
        rows.append({**row, "total_variation": float(distance), "of_exact_draws": float(exact)})
    selection._SIMULATED = kept
    return rows


# ---------------------------------------------------------------- results

NAMES = (
    *("tokens", "right", "named", "named right", "covered", "readings", "silent alone", "silent beside"),
    *("segments/0.01/all", "segments/0.01/false"),
)


def rate(hits: float, count: float) -> list[float] | None:
    """Return hits/count with its 95 % interval (Clopper and Pearson)."""
    if not count:
        return None
    low = special.betaincinv(hits, count - hits + 1, 0.025) if hits else 0.0
    high = special.betaincinv(hits + 1, count - hits, 0.975) if hits < count else 1.0
    return [hits / count, float(low), float(high)]


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of one cell, or of several together."""
    counts = {name: [v for row in rows for v in row["counts"].get(name, ())] for name in NAMES}

    def share(part: str, whole: str) -> list[float] | None:
        of = ratio(counts[part], counts[whole], 0, 2000)
        return None if of is None else [of.mean, of.low, of.high]

    result: dict[str, Any] = {
        "conversations": len(counts["tokens"]),
        "accuracy": share("right", "tokens"),
        "coverage": share("covered", "tokens"),
        "precision": share("named right", "named"),
        "segments": sum(counts["segments/0.01/all"]),
        "false": rate(sum(counts["segments/0.01/false"]), sum(counts["segments/0.01/all"])),
        "readings": int(sum(counts["readings"])),
    }
    for name in ("silent alone", "silent beside"):
        readings = int(counts["readings"][0])
        hits = np.array(counts[name]) / readings
        result[name] = [float(hits.mean()), *clustered_interval(hits, readings)]
    for name in ("free", "forced"):
        tokens, stated, right = np.sum([row[name] for row in rows], axis=0)
        result[name] = float(np.abs(stated - right).sum() / max(1.0, tokens.sum()))
        result[f"{name} bias"] = float((stated - right).sum() / max(1.0, tokens.sum()))
    return result


def broken(pooled: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the promises that cells do not keep: whole intervals above the level, or calibration."""
    lines = []
    for name, cell in pooled.items():
        for promise in ("false", "silent alone", "silent beside"):
            if cell[promise] is not None and cell[promise][1] > LEVEL:
                lines.append(f"{name}: {promise} {cell[promise][0]:.4f}")
        if len(name.split()) == 2 and max(cell["free"], cell["forced"]) > CALIBRATED:
            lines.append(f"{name}: calibration {max(cell['free'], cell['forced']):.4f}")
    return lines


def summaries(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the figures of each cell by its name, and of all cells of a mark and a temperature."""
    by_name = {Cell(*(row[field.name] for field in dataclasses.fields(Cell))).name: [row] for row in rows}
    for row in rows:
        by_name.setdefault(f"{row['mark']} T={row['temperature']:g}", []).append(row)
    return {name: figures(group) for name, group in by_name.items()}


def markdown(content: Mapping[str, Any]) -> str:
    rows, sizes = content["cells"], Sizes(**content["sizes"])
    summary = summaries(rows)
    cells = [{**row, **summary[Cell(*(row[f.name] for f in dataclasses.fields(Cell))).name]} for row in rows]
    first = {"T": "{temperature:g}", "mark": "{mark}", "L": "{tokens}", "m": "{drafts}"}
    share = "{{{0}[0]:.{1}f}} ({{{0}[1]:.{1}f}}, {{{0}[2]:.{1}f}})"
    read = {**first, "nats a token": "{nats:.2f}", "TokenAcc, forced": share.format("accuracy", 3)}
    read |= {name: share.format(name, 3) for name in ("coverage", "precision")}
    read |= {"found in 50 %": "{found_in[0]}", "in 90 %": "{found_in[1]}"}
    promised = {"cell": "{name}", "segments": "{segments:,.0f}", "false": share.format("false", 4)}
    promised |= {"readings": "{readings:,}"}
    promised |= {name: share.format(name, 4) for name in ("silent alone", "silent beside")}
    promised |= {"calibration": "{free:.3f}", "bias": "{free bias:+.3f}"}
    promised |= {"calibration, forced": "{forced:.3f}", "bias, forced": "{forced bias:+.3f}"}
    tested = {"drafts": "{case}", "rule": "{rule}", "draws": "{draws:,}", "χ² cells - 1": "{freedom}"}
    tested |= {"z of χ²": "{z:+.1f}", "p": "{p:.1e}", "total variation": "{total_variation:.4f}"}
    tested |= {"of exact draws": "{of_exact_draws:.4f}"}
    failed = broken(summary)
    sections = [
        "# Text that was marked by choosing chunks",
        f"`{content['command']}`",
        f"The shipped model draws m chunks of L tokens, and `TextChooser` chooses one. Each cell has"
        f" {sizes.conversations} conversations of {TURNS} turns of {AGENTS} agents, of"
        f" {sizes.turn_tokens[0]} or {sizes.turn_tokens[1]} tokens. In every second conversation {UNMARKED}"
        f" turns are unmarked. Prompts are openings of 24 tokens; turns do not see each other. `iet.Auditor`"
        f" reads the text alone, with its default options, level {LEVEL:g} and {AGENTS} keys."
        f" `walk` chooses tokens among the {TOP} likeliest ones, with the default free tokens.",
        "**Reading**, with 95 % intervals over texts. TokenAcc counts the agents' tokens. Coverage is the"
        " share of them that is attributed; precision is the share of attributed tokens that is right. The"
        f" last columns are tokens until an agent is found in 50 and 90 % of {sizes.singles} texts of one"
        f" agent; an empty cell is more than {GRID[-1]} tokens.",
        columns(cells, read),
        f"**Promises** at level {LEVEL:g}. False: attributed segments without a token of that agent. Silent:"
        f" texts in which any of {SILENT} agents with drawn keys is found, alone in the registry or beside"
        f" the writers; {sizes.registries} registries a text. Calibration: mean difference of a token's"
        f" highest posterior and the share that is right, in {BINS} bins; the goal is {CALIBRATED:g} for all"
        " cells of a mark and a temperature. Cells of few tokens differ by chance. Bias: posterior minus"
        " share right. Forced: in conversations without unmarked turns.",
        columns([{"name": name, **value} for name, value in summary.items()], promised),
        f"**Not kept**: {'; '.join(failed) if failed else 'none'}. A rate is not kept if its whole interval"
        f" is above {LEVEL:g}.",
        f"**Exactness**: {DRAFTS} drafts from a known source, each draw with a new key, χ² against the"
        f" source. Words have probabilities {', '.join(map(str, SHARES))}; of longer chunks the last {LAST}"
        f" words are counted. Texts of 8 words consist of chunks of {CHUNK} tokens, and half of their words"
        " have two tokens. The last column is the total variation that exact draws have.",
        columns(content["exactness"], tested),
        f"F is the distribution of the sum of scores, n the number of equal drafts. The rule {PLAIN} ignores"
        " that drafts share tokens. A cut at the last blank keeps a word only if the draft goes on after it,"
        " which short words allow more often: even a single draft is biased.",
    ]
    return "\n\n".join(sections)


def main() -> None:
    line = parser("benchmarks.accuracy.chunk_marks", __doc__)
    line.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    line.add_argument("--quick", action="store_true", help="a few short texts and draws")
    options = line.parse_args()
    sizes = QUICK if options.quick else Sizes()
    torch.set_num_threads(1)
    content: dict[str, Any] = {"sizes": json.loads(as_json(dataclasses.asdict(sizes)))}
    content |= {"cells": [], "exactness": []}
    if options.output.is_file():
        earlier = json.loads(options.output.read_text(encoding="utf-8"))
        if earlier["sizes"] == content["sizes"]:
            content |= {name: earlier[name] for name in ("cells", "exactness")}
    if "reading" in options.parts:
        model, _ = load_model(texts.MODELS[MODEL])
        for cell in tqdm(cells(options.quick), desc="cells"):
            if not any(dataclasses.asdict(cell).items() <= row.items() for row in content["cells"]):
                content["cells"].append(reading(cell, sizes, model))
                options.output.write_text(as_json(content), encoding="utf-8")
    if "exactness" in options.parts and not content["exactness"]:
        content["exactness"] = exactness(sizes)
    content["cells"].sort(key=lambda row: (-row["temperature"], row["mark"], row["tokens"], row["drafts"]))
    command = {"command": "python -m benchmarks.accuracy.chunk_marks -o " + options.output.name}
    results = {**content, "figures": summaries(content["cells"])}
    finish(line, options, results, markdown({**command, **content}), packages=("torch", "transformers"))


if __name__ == "__main__":
    sys.exit(exit_code(main))
