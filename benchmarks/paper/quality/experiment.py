"""What marking costs: answers to problems clean against marked, and what texts show without a task.

    python -m benchmarks.paper quality --data PATH --out DIR [--model PATH_OR_ID] [--quick]

*Answers.* Each strategy solves the same problems clean and marked (fourier κ = 0.8, gumbel), over several
seeds; a seed has its own draws and its own keys. A problem's figure is the mean over seeds; differences are
paired by problems, with 95 % bootstrap intervals over them. A second clean run with other draws shows what
differences chance alone makes. The arithmetic model (`model/`) can only continue a question: it takes part in
Single and Majority. Reflection, Debate and GSM8K need an instruction model (`--model`) and are "not run"
without one.

*Texts*, of any model: perplexity under the unmarked model, length, distinct n-grams, beside unmarked texts of
the same prompts; KL divergence per token against κ.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import recording, statistics
from benchmarks.paper import marks, plots, results
from benchmarks.paper.asking.asker import Answers
from benchmarks.paper.quality import answers, strategies, texts
from benchmarks.paper.quality.answers import (
    CLEAN,
    CONDITIONS,
    REPEATED,
    SHORT,
    Options,
    Solved,
    Speaker,
    solve,
    spoken,
)
from benchmarks.paper.quality.strategies import STRATEGIES, WITHOUT_INSTRUCTIONS, Call
from benchmarks.paper.quality.tasks import Problem, arithmetic, gsm8k
from benchmarks.recording import Cell
from benchmarks.statistics import Interval
from benchmarks.writing.models import load
from iet.demo.conversation import MODEL

ARITHMETIC_MODEL = pathlib.Path(__file__).with_name("model")
NOT_RUN = "not run"
QUICK: Mapping[str, Any] = {"problems": 20, "seeds": 2, "model_seeds": 1, "text_seeds": 1}
"""What `--quick` sets where nothing else is said."""


@dataclasses.dataclass(frozen=True)
class Part:
    model: str  # as tables call them; task likewise
    task: str
    problems: Sequence[Problem]  # that were asked
    solved: Solved | None  # None: not run
    names: Sequence[str]  # strategies


@dataclasses.dataclass(frozen=True)
class _Run:
    options: Options
    out: pathlib.Path
    content: Mapping[str, Any]  # of every JSON
    calculator: Speaker  # the arithmetic model
    writer: Speaker  # the other one
    expressions: Sequence[Problem]
    stories: Sequence[Problem]

    def write(
        self, name: str, header: Sequence[str], cells: Sequence[Sequence[Cell]], rows: Any, **fields: object
    ) -> None:
        """Write a table with its note."""
        path = pathlib.Path(__file__).with_name(f"{name}_note.md")
        note = results.note(path, **dataclasses.asdict(self.options), **fields)
        recording.write_table(self.out / name, header, cells, self.content, rows=rows, note=note)


def run(
    options: Options,
    data: pathlib.Path,
    out: pathlib.Path,
    model: str | None = None,
    device: str = "cpu",
    arithmetic_model: pathlib.Path = ARITHMETIC_MODEL,
    *,
    overwrite: bool = False,
) -> None:
    """Measure answers and texts, and write tables and figures; what was generated lies in `out / "logs"`.

    `model` is an instruction model; what needs one is "not run" without it.
    """
    expressions, stories = arithmetic(options.problems), gsm8k(data, options.problems)
    small = load(arithmetic_model)
    other = load(MODEL if model is None else model, device)
    if model is not None and not other.chat:
        print(f"{other.name} has no chat template: it continues plain text and is given no instructions")
    configuration: dict[str, Any] = {
        "experiment": "quality",
        **dataclasses.asdict(options),
        "arithmetic_model_digest": small.digest,
        "model": other.name,
        "model_digest": other.digest,
        "device": str(other.model.device),
        "instruction_model": model is not None,
        "arithmetic": [p.expression for p in expressions],
        "gsm8k_lines": [p.number for p in stories],
    }
    if not overwrite:
        for name in ("quality", "quality_texts", "quality_kl"):
            results.keep(out / f"{name}.json", configuration)
    content = results.content(configuration)
    with Answers(out / "logs" / "quality.jsonl") as kept:
        calculator = Speaker(small, options, kept, SHORT)
        writer = Speaker(other, options, kept, answers.PLAIN if model is None else None)
        names: Sequence[str] = WITHOUT_INSTRUCTIONS
        solved: Solved | None = solve(calculator, expressions, names, options.seeds, spoken)
        parts = [Part("arithmetic model", "Arithmetic", expressions, solved, names)]
        title, names = "instruction model" if model is None else other.name, list(STRATEGIES)
        for task, problems in (("Arithmetic", expressions), ("GSM8K", stories)):
            solved = None if model is None else solve(writer, problems, names, options.model_seeds)
            parts.append(Part(title, task, problems, solved, names))
        this = _Run(options, out, content, calculator, writer, expressions, stories)
        _write_answers(this, parts)
        _write_texts(this, parts[0])
        _write_divergences(this)


def difference(solved: Solved, strategy: str, name: str, seed: int) -> Interval | None:
    """Return the accuracy under a condition less the clean one, paired by problems."""
    ours, theirs = (np.mean(solved.right[cell, strategy], axis=0).tolist() for cell in (name, CLEAN))
    return statistics.difference(ours, theirs, seed)


def _write_answers(this: _Run, parts: Sequence[Part]) -> None:
    header = ["task", "model", "strategy", "condition", "accuracy", "accuracy - clean", "no answer"]
    cells: list[list[Cell]] = []
    rows: list[dict[str, Any]] = []
    panels: dict[str, dict[str, list[Interval | None]]] = {}
    for part in parts:
        if part.solved is None:
            cells += [[part.task, part.model, name, "", NOT_RUN, NOT_RUN, NOT_RUN] for name in part.names]
            continue
        series = panels.setdefault(f"{part.task}\n{part.model}", {})
        for strategy in part.names:
            for name in CONDITIONS:
                right, none = (
                    np.mean(figures[name, strategy], axis=0).tolist()
                    for figures in (part.solved.right, part.solved.none)
                )
                gap: Cell = ""
                if name != CLEAN:
                    gap = found = difference(part.solved, strategy, name, this.options.seed)
                    series.setdefault(name, []).append(found)
                cell = (part.task, part.model, strategy, name)
                accuracy = statistics.interval(right, this.options.seed)
                cells.append([*cell, accuracy, gap, float(np.mean(none))])
                for problem, r, n in zip(part.problems, right, none, strict=True):
                    row = dict(zip(header[:4], cell, strict=True))
                    rows.append({**row, "problem": problem.number, "right": r, "none": n})
    alike = "; ".join(
        f"{part.model}, {part.task}: " + ", ".join(f"{n} {s:.1%}" for n, s in part.solved.alike.items())
        for part in parts
        if part.solved is not None
    )
    this.write("quality", header, cells, rows, alike=alike)
    plots.differences(this.out / "quality", [part.names for part in parts if part.solved is not None], panels)


def _write_texts(this: _Run, first: Part) -> None:
    options, calculator, writer = this.options, this.calculator, this.writer
    header = [
        *("texts of", "condition", "perplexity", "log perplexity - clean", "entropy", "tokens"),
        *("tokens - clean", "distinct-2", "distinct-4", "distinct-4 - clean", "own key first of 4"),
    ]
    cells: list[list[Cell]] = []
    rows: list[dict[str, Any]] = []

    def add(of: str, name: str, found: dict[str, list[float | None]], clean: Any, told: float | None) -> None:
        def gap(figure: str) -> Cell:
            if name == CLEAN:
                return ""
            return statistics.difference(found[figure], clean[figure], options.seed)

        def mean(figure: str) -> float | None:
            value = statistics.interval(found[figure], options.seed)
            return None if value is None else value.mean

        log_ppl = mean("log perplexity")
        perplexity = None if log_ppl is None else float(np.exp(log_ppl))
        cells.append(
            [
                *(of, name, perplexity, gap("log perplexity"), mean("entropy"), mean("length")),
                *(gap("length"), mean("distinct-2"), mean("distinct-4"), gap("distinct-4")),
                "" if told is None else told,
            ]
        )
        for i, values in enumerate(zip(*found.values(), strict=True)):
            rows.append(
                {"texts": of, "condition": name, "prompt": i, **dict(zip(found, values, strict=True))}
            )

    assert first.solved is not None
    asked = texts.prompt_ids(calculator, [Call(p, 0, 0, spoken(p, 0)) for p in first.problems])
    clean: dict[str, list[float | None]] = {}
    for name, condition in CONDITIONS.items():
        written = first.solved.texts[name]
        found = texts.figures_of_texts(calculator.loaded, [asked] * options.seeds, written)
        clean = clean or found
        told = texts.told_apart(calculator, condition, first.problems, written)
        add("arithmetic model, Arithmetic", name, found, clean, told)
    clean = {}
    for name, condition in {**CONDITIONS, **REPEATED}.items():
        if condition.nonce and writer.loaded.chat:
            continue  # a chat template's last tokens stand behind the nonce
        prompts, written = texts.plain_texts(writer, this.stories, condition, options.text_seeds)
        found = texts.figures_of_texts(writer.loaded, prompts, written)
        clean = clean or found
        told = texts.told_apart(writer, condition, this.stories, written)
        add(f"{writer.loaded.name}, GSM8K's questions", name, found, clean, told)
    this.write("quality_texts", header, cells, rows)


def _write_divergences(this: _Run) -> None:
    questions = [Call(p, 0, 0, spoken(p, 0)) for p in this.expressions]
    asked = [Call(p, 0, 0, strategies.first_prompt(p, 0)) for p in this.stories]
    measured = {
        "arithmetic model": texts.divergences(this.calculator, questions),
        this.writer.loaded.name: texts.divergences(this.writer, asked),
    }
    series = {
        name: [statistics.interval(found[kappa], this.options.seed) for kappa in texts.KAPPAS]
        for name, found in measured.items()
    }
    cells: list[list[Cell]] = [
        ["fourier", kappa, *(values[i] for values in series.values())] for i, kappa in enumerate(texts.KAPPAS)
    ]
    cells.append(["gumbel", "", *("0 by construction" for _ in series)])
    rows = (
        {"texts": name, "kappa": kappa, "text": i, "kl_nats_per_token": value}
        for name, found in measured.items()
        for kappa, values in found.items()
        for i, value in enumerate(values)
    )
    this.write("quality_kl", ["mark", "κ", *series], cells, rows)
    plots.sweep(this.out / "quality_kl", texts.KAPPAS, series, xlabel="κ", operating_point=marks.KAPPA)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper quality", description=(__doc__ or "").split("\n")[0]
    )
    usual = Options()
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder that holds gsm8k/test.jsonl")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of tables, plots and logs")
    parser.add_argument("--model", help="path or id of an instruction model (default: none)")
    parser.add_argument("--device", default="cpu", help="of the instruction model (default: cpu)")
    parser.add_argument("--arithmetic-model", type=pathlib.Path, default=ARITHMETIC_MODEL, help="folder")
    for name, what in (
        ("problems", "of each task"),
        ("seeds", "of the arithmetic model"),
        ("model_seeds", "of --model"),
        ("text_seeds", "texts a prompt"),
        ("seed", "the first"),
        ("temperature", "of the sampler"),
        ("top_p", "of the sampler"),
        ("prompt_tokens", "prompts are cut to so many"),
        ("batch", "texts sampled together"),
    ):
        value = getattr(usual, name)
        shown = f"{what} (default: {value})"
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), help=shown)
    parser.add_argument("--turn-tokens", type=int, nargs=2, metavar=("FEWEST", "MOST"))
    parser.add_argument("--quick", action="store_true", help="minutes on two cores")
    parser.add_argument("--overwrite", action="store_true", help="of results of another configuration, too")
    return recording.exit_code(functools.partial(_run, parser.parse_args(arguments)))


def _run(asked: argparse.Namespace) -> None:
    names = [field.name for field in dataclasses.fields(Options)]
    said = {name: value for name in names if (value := getattr(asked, name)) is not None}
    if "turn_tokens" in said:
        said["turn_tokens"] = tuple(said["turn_tokens"])
    started = time.monotonic()
    options = Options(**{**(QUICK if asked.quick else {}), **said})
    results.writable(asked.out)
    import torch

    if asked.device == "cpu" and asked.model is None:
        torch.set_num_threads(1)  # the matrices are small: more threads would only wait for each other
    models = asked.model, asked.device, asked.arithmetic_model
    run(options, asked.data, asked.out, *models, overwrite=asked.overwrite)
    print(f"\nquality: {time.monotonic() - started:.0f} s, {asked.out / 'quality'}.md", flush=True)


if __name__ == "__main__":
    sys.exit(main())
