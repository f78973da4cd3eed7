"""Measure text that was marked by choosing chunks: how it is read, and whether the choice is unbiased.

    python -m benchmarks.accuracy.chunk_marks -o benchmarks/results/chunk_marks.json

* reading: the shipped model draws m chunks of L tokens given an opening and the turn so far, and
  `TextChooser` chooses one. Chunks are not cut at blanks. A conversation has eight turns of four agents, of
  100 or 200 tokens; in every second conversation two turns are unmarked. "Walk" chooses each token among the
  19 likeliest ones, as `iet.generation.hosted` does. The reader is `iet.Auditor` with its default options.
* exactness: chosen chunks of a known source are compared with it (`benchmarks.accuracy.chunk_exactness`).

Cells and parts that the output has already are not measured again. `--quick` checks that it runs.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from tqdm import tqdm

from benchmarks.accuracy import chunk_exactness, promises, regimes, texts
from benchmarks.recording import as_json, columns, command, exit_code, finish, parser, table
from benchmarks.statistics import ratio
from benchmarks.writing.chunks import TOP, Method, Turn, Writer
from iet.audit.auditor import Auditor
from iet.audit.calibration import clustered_interval
from iet.cli.demo import true_labels
from iet.demo.conversation import JOINER, load_model
from iet.generation.selection import TextChooser
from iet.marks.registry import Registry

PARTS = ("reading", "exactness")
MODEL, FAMILY = "shipped", "gumbel"
LEVEL = 0.01
AGENTS, TURNS, UNMARKED_TURNS = 4, 8, 2
SILENT = 8
"""Agents that wrote nothing, in a registry with the four that wrote."""

GRID = tuple(round(40 * 1.15**step) for step in range(20))
"""Tokens of a text of one agent, 569 at most."""

BINS, SHOWN_BINS = 20, 10
CALIBRATED = 0.02
"""Goal for the mean difference between a token's posterior and the share that is right."""

NAMES = (
    *("tokens", "right", "named", "named right", "covered", "silent alone", "silent with writers"),
    *("readings", "segments/0.01/all", "segments/0.01/false", "tokens/0.01/named", "tokens/0.01/wrong"),
)
"""Counts of a conversation: those of `promises.measured` in characters, the others in tokens or readings."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Sizes:
    conversations: int = 12  # of a cell
    turn_tokens: tuple[int, int] = (100, 200)
    singles: int = 20  # texts of one agent, of a cell
    single_turns: int = 3  # of a text of one agent
    registries: int = 10  # drawn for each conversation
    draws: int = 600_000  # of all chunks whose distribution is tested


QUICK = Sizes(2, (24, 48), 2, 1, 1, 3000)


def cells(quick: bool) -> list[Method]:
    temperatures = (1.0,) if quick else (1.0, 0.5)
    sizes = [(16, 4)] if quick else itertools.product((16, 24, 32), (4, 8, 16))
    chosen = [Method(t, "select", *size) for size in sizes for t in temperatures]
    return [Method(t, "walk") for t in temperatures] + chosen


# ---------------------------------------------------------------- writing


def conversations(
    model: Any, cell: Method, sizes: Sizes
) -> tuple[list[regimes.Case], list[regimes.Case], float]:
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
        for turn in draw.sample(range(TURNS), UNMARKED_TURNS * (number % 2)):
            names[turn] = None
        plans.append((registry, names, draw.choices(sizes.turn_tokens, k=TURNS)))
    openings = [texts.prompt(MODEL, "", seed, 0) for seed in range(100)]
    draw = random.Random(cell.name)
    turns = [
        Turn(draw.choice(openings), tokens, None if name is None else TextChooser(registry, name))
        for registry, names, lengths in plans
        for name, tokens in zip(names, lengths, strict=True)
    ]
    writer = Writer(model, texts.tokenizer(MODEL), cell, texts.integer(cell.name))
    written = iter(writer.write(turns))
    cases = [
        regimes.Case(texts.joined([next(written) for _ in names], names, JOINER), registry)
        for registry, names, _ in plans
    ]
    return cases[: sizes.conversations], cases[sizes.conversations :], float(np.mean(writer.nats))


# ---------------------------------------------------------------- reading


def reading(cell: Method, sizes: Sizes, model: Any) -> dict[str, Any]:
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
        free += _calibration(report.posterior, truth)
        counts.append({name: float(row.get(name, 0)) for name in NAMES})
    return {
        **dataclasses.asdict(cell),
        "nats": nats,
        "counts": {name: [row[name] for row in counts] for name in NAMES},
        "free": free.tolist(),
        "forced": forced.tolist(),
        "found_in": _found_in(singles),
    }


def _silent(case: regimes.Case, registries: int) -> dict[str, float]:
    """Return how often agents are found that wrote nothing, alone in a registry and with the writers."""
    alone = with_writers = 0
    for number in range(registries):
        seed = texts.integer(f"silent {number} {case.talk.text}")
        alone += bool(Auditor(texts.keys(MODEL, FAMILY, seed, SILENT)).audit(case.talk.text).found)
        registry = case.registry.export(None, case.registry.names())
        secrets = np.random.default_rng(seed).integers(0, 256, (SILENT, 32), dtype=np.uint8)
        for slot, secret in enumerate(secrets):
            registry.add(f"silent-{slot + 1}", secret=secret.tobytes())
        with_writers += bool(set(Auditor(registry).audit(case.talk.text).found) - set(case.talk.speakers))
    return {"silent alone": alone, "silent with writers": with_writers, "readings": registries}


def _calibration(posterior: NDArray[Any] | None, truth: Ints) -> Floats:
    """Return tokens, the sum of their highest posterior, and how many are right, by bins of it [3, BINS]."""
    assert posterior is not None
    highest, right = posterior.max(axis=1), posterior.argmax(axis=1) == truth
    bins = np.minimum((highest * BINS).astype(np.int64), BINS - 1)
    return np.array([np.bincount(bins, value, BINS) for value in (np.ones(len(bins)), highest, right)])


def _found_in(singles: Sequence[regimes.Case]) -> list[float | None]:
    """Return the first N of `GRID` at which a half and nine tenths of the texts' agents are found."""
    is_found = np.zeros((len(singles), len(GRID)), np.bool_)
    for row, case in zip(is_found, singles, strict=True):
        ends = case.registry.open_tokenizer().encode(case.talk.text).char_ends
        prefixes = [case.talk.text[: ends[min(count, len(ends)) - 1]] for count in GRID]
        reports = Auditor(case.registry).audit_many(prefixes)
        row[:] = [texts.agent_name(0) in report.found for report in reports]
    shares = is_found.mean(axis=0)
    return [next((n for n, x in zip(GRID, shares, strict=True) if x >= share), None) for share in (0.5, 0.9)]


# ---------------------------------------------------------------- results


def rate(hits: float, count: float) -> list[float] | None:
    """Return hits/count with its 95 % interval (Clopper and Pearson)."""
    if not count:
        return None
    low = special.betaincinv(hits, count - hits + 1, 0.025) if hits else 0.0
    high = special.betaincinv(hits + 1, count - hits, 0.975) if hits < count else 1.0
    return [hits / count, float(low), float(high)]


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of one cell, or of several together."""
    counts = {name: [value for row in rows for value in row["counts"][name]] for name in NAMES}

    def share(part: str, total: str) -> list[float] | None:
        of = ratio(counts[part], counts[total], 0, 2000)
        return None if of is None else [of.mean, of.low, of.high]

    result: dict[str, Any] = {
        "conversations": len(counts["tokens"]),
        "accuracy": share("right", "tokens"),
        "coverage": share("covered", "tokens"),
        "precision": share("named right", "named"),
        "segments": sum(counts["segments/0.01/all"]),
        "false": rate(sum(counts["segments/0.01/false"]), sum(counts["segments/0.01/all"])),
        "wrong": share("tokens/0.01/wrong", "tokens/0.01/named"),
        "readings": int(sum(counts["readings"])),
    }
    for name in ("silent alone", "silent with writers"):
        readings = int(counts["readings"][0])
        hits = np.array(counts[name]) / readings
        result[name] = [float(hits.mean()), *clustered_interval(hits, readings)]
    for name in ("free", "forced"):
        tokens, stated, right = np.sum([row[name] for row in rows], axis=0)
        result[name] = float(np.abs(stated - right).sum() / max(1.0, tokens.sum()))
        result[f"{name} bias"] = float((stated - right).sum() / max(1.0, tokens.sum()))
    return result


def broken(summary: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the promises that are not kept: a rate's whole interval above the level, or calibration."""
    lines = []
    for name, cell in summary.items():
        for promise in ("false", "silent alone", "silent with writers"):
            if cell[promise] is not None and cell[promise][1] > LEVEL:
                lines.append(f"{name}: {promise} {cell[promise][0]:.4f}")
        if " T=" in name and " L=" not in name and cell["forced"] > CALIBRATED:
            lines.append(
                f"{name}: calibration, forced, {cell['forced']:.3f} (bias {cell['forced bias']:+.3f})"
            )
    return lines


def reliability(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the highest posteriors, of all cells of a mark together."""
    lines = []
    for mark in dict.fromkeys(row["mark"] for row in rows):
        total = np.sum([row["free"] for row in rows if row["mark"] == mark], axis=0)
        bins = total.reshape(3, SHOWN_BINS, -1).sum(axis=2).T
        for low, (tokens, stated, right) in enumerate(bins.tolist()):
            if tokens:
                edges = f"{low / SHOWN_BINS:.1f} to {(low + 1) / SHOWN_BINS:.1f}"
                lines.append([mark, edges, f"{tokens:,.0f}", stated / tokens, right / tokens])
    return table(("mark", "posterior", "tokens", "mean posterior", "share right"), lines)


def summaries(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the figures of each cell by its name, of all cells of a mark and temperature, and of all."""
    by_name = {_method(row).name: [row] for row in rows}
    for row in rows:
        by_name.setdefault(f"{row['mark']} T={row['temperature']:g}", []).append(row)
    if rows:
        by_name["all"] = list(rows)
    return {name: figures(group) for name, group in by_name.items()}


def _method(row: Mapping[str, Any]) -> Method:
    return Method(*(row[field.name] for field in dataclasses.fields(Method)))


def _plain(sizes: Sizes) -> Any:
    """Return sizes as JSON has them."""
    return json.loads(json.dumps(dataclasses.asdict(sizes)))


def markdown(content: Mapping[str, Any]) -> str:
    rows, sizes = content["cells"], Sizes(**content["sizes"])
    is_quick = content["sizes"] == _plain(QUICK)
    summary = summaries(rows)
    lines = [{**row, **summary[_method(row).name]} for row in rows]
    first = {"T": "{temperature:g}", "mark": "{mark}", "L": "{tokens}", "m": "{drafts}"}
    share = "{{{0}[0]:.{1}f}} ({{{0}[1]:.{1}f}}, {{{0}[2]:.{1}f}})"
    read = {**first, "nats a token": "{nats:.2f}", "TokenAcc, forced": share.format("accuracy", 3)}
    read |= {name: share.format(name, 3) for name in ("coverage", "precision")}
    read |= {"found in 50 %": "{found_in[0]}", "in 90 %": "{found_in[1]}"}
    promised = {"cell": "{name}", "segments": "{segments:,.0f}", "false": share.format("false", 4)}
    promised |= {"wrong, by tokens": share.format("wrong", 4), "readings": "{readings:,}"}
    promised |= {name: share.format(name, 4) for name in ("silent alone", "silent with writers")}
    promised |= {"calibration": "{free:.3f}", "bias": "{free bias:+.3f}"}
    promised |= {"calibration, forced": "{forced:.3f}", "bias, forced": "{forced bias:+.3f}"}
    failed, missing = broken(summary), len(cells(is_quick)) - len(rows)
    sections = [
        "# Text that was marked by choosing chunks",
        f"`{content['command']}`",
        f"The shipped model draws m chunks of L tokens, and `TextChooser` chooses one. Each cell has"
        f" {sizes.conversations} conversations of {TURNS} turns of {AGENTS} agents, of"
        f" {sizes.turn_tokens[0]} or {sizes.turn_tokens[1]} tokens. In every second conversation"
        f" {UNMARKED_TURNS} turns are unmarked. Prompts are openings of {texts.OPENING_TOKENS} tokens; turns"
        f" do not see each other. `iet.Auditor` reads the text alone, with its default options, level"
        f" {LEVEL:g} and {AGENTS} keys."
        f" `walk` chooses tokens among the {TOP} likeliest ones, with the default free tokens."
        + (f" {missing} cells are not measured yet: the same command goes on." if missing else ""),
        "**Reading**, with 95 % intervals over texts. TokenAcc counts the agents' tokens. Coverage is the"
        " share of them that is attributed; precision is the share of attributed tokens that is right. The"
        f" last columns are tokens until an agent is found in 50 and 90 % of {sizes.singles} texts of one"
        f" agent; an empty cell is more than {GRID[-1]} tokens.",
        columns(lines, read),
        f"**Promises** at level {LEVEL:g}. False: attributed segments without a token of that agent. Silent:"
        f" texts in which any of {SILENT} agents with drawn keys is found, alone in the registry or"
        f" with the writers; {sizes.registries} registries a text. Calibration: mean difference of a token's"
        f" highest posterior and the share that is right, in {BINS} bins; the goal is {CALIBRATED:g} in"
        " forced choice, for all cells of a mark and a temperature. Cells of few tokens differ by chance."
        " Bias: posterior minus share right. Forced: nothing may be unattributed, in conversations without"
        " unmarked turns.",
        columns([{"name": name, **value} for name, value in summary.items()], promised),
        f"**Not kept**: {'; '.join(failed) if failed else 'none'}. A rate is not kept if its whole interval"
        f" is above {LEVEL:g}, which chance alone does in one of 40 cells.",
        "**Reliability** of the highest posterior of every token, all cells of a mark together",
        reliability(rows),
        *chunk_exactness.markdown(content["exactness"]),
    ]
    return "\n\n".join(sections)


def main() -> None:
    line = parser("benchmarks.accuracy.chunk_marks", __doc__)
    line.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    line.add_argument("--quick", action="store_true", help="a few short texts and draws")
    options = line.parse_args()
    sizes = QUICK if options.quick else Sizes()
    torch.set_num_threads(1)
    content: dict[str, Any] = {"sizes": _plain(sizes)}
    content |= {"cells": [], "exactness": []}
    if options.output.is_file():
        earlier = json.loads(options.output.read_text(encoding="utf-8"))
        if earlier["sizes"] == content["sizes"]:
            content |= {name: earlier[name] for name in ("cells", "exactness")}
    if "reading" in options.parts:
        model, _ = load_model(texts.MODELS[MODEL])
        done = list(map(_method, content["cells"]))
        for cell in tqdm([cell for cell in cells(options.quick) if cell not in done], desc="cells"):
            content["cells"].append(reading(cell, sizes, model))
            options.output.write_text(as_json(content), encoding="utf-8")
    if "exactness" in options.parts and not content["exactness"]:
        content["exactness"] = chunk_exactness.exactness(sizes.draws)
    content["cells"].sort(key=lambda row: (-row["temperature"], row["mark"], row["tokens"], row["drafts"]))
    results = {**content, "figures": summaries(content["cells"])}
    page = markdown({"command": command(line, options), **content})
    finish(line, options, results, page, packages=("torch", "transformers"))


if __name__ == "__main__":
    sys.exit(exit_code(main))
