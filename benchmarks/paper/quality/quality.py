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
import hashlib
import json
import pathlib
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import recording, statistics
from benchmarks.paper import marks, plots, results
from benchmarks.paper.author import Author, Generated, ModelAuthor, Row
from benchmarks.paper.baselines.llm_answers import Answers
from benchmarks.paper.logs import Setting
from benchmarks.paper.marks import Marker, agent_name
from benchmarks.paper.prompts import Prompt
from benchmarks.paper.quality import strategies
from benchmarks.paper.quality.strategies import AGENTS, STRATEGIES, WITHOUT_INSTRUCTIONS, Call
from benchmarks.paper.quality.tasks import COUNT, Problem, arithmetic, gsm8k
from benchmarks.recording import Cell, environment
from benchmarks.statistics import Interval
from benchmarks.writing.models import Loaded, load
from iet.demo.conversation import MODEL
from iet.errors import IetError, InputError
from iet.marks.scheme import canonical_digest

ARITHMETIC_MODEL = pathlib.Path(__file__).with_name("model")
KAPPAS = (0.2, 0.4, 0.8, 1.2, 1.6, 2.0)
NOT_RUN = "not run"
_AGAIN = 1 << 16  # added to the seed of the second clean run
_SCORED_ROWS = 16  # texts whose probabilities are computed at once


@dataclasses.dataclass(frozen=True)
class Condition:
    """How texts are made.

    Attributes:
        mark: a key of `MARKS`.
        again: with other draws than the rest.
        one_key: the key of the first seed in all seeds.
        nonce: in the last tokens of the prompt, another one for every seed.
    """

    mark: str
    again: bool = False
    one_key: bool = False
    nonce: bool = False


CLEAN = "clean"
CONDITIONS: Mapping[str, Condition] = {
    CLEAN: Condition("none"),
    "clean, other draws": Condition("none", again=True),
    "fourier": Condition("fourier"),
    "gumbel": Condition("gumbel"),
}
"""Name -> condition, of answers and of texts."""

REPEATED: Mapping[str, Condition] = {
    "gumbel, one key": Condition("gumbel", one_key=True),
    "gumbel, one key, nonce": Condition("gumbel", one_key=True, nonce=True),
}
"""What texts alone are made with: the same prompt several times under one key."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What a run is asked for; all of it is in what it writes.

    Attributes:
        problems: of each task.
        seeds: runs over all problems of a model that ships here.
        model_seeds: of an instruction model.
        text_seeds: texts of each prompt where no task is solved.
        seed: the first.
        temperature, top_p: of the sampler.
        turn_tokens: fewest and most tokens of an answer; of the arithmetic model it is `SHORT`.
        prompt_tokens: prompts are cut to so many.
        batch: answers that are sampled together.
    """

    problems: int = COUNT
    seeds: int = 40
    model_seeds: int = 3
    text_seeds: int = 4
    seed: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    turn_tokens: tuple[int, int] = (1, 512)
    prompt_tokens: int = 3072
    batch: int = 128


SHORT: Mapping[str, Any] = {"turn_tokens": (1, 180), "prompt_tokens": 40}
"""Of the arithmetic model, whose longest solutions have some 130 characters."""
PLAIN: Mapping[str, Any] = {"turn_tokens": (1, 160), "prompt_tokens": 256}
"""Of the shipped model."""

QUICK: Mapping[str, Any] = {"problems": 20, "seeds": 2, "model_seeds": 1, "text_seeds": 1}
"""What `--quick` sets where nothing else is said."""


# ---------------------------------------------------------------- generation


def spoken(problem: Problem, agent: int) -> Prompt:
    """Return what the arithmetic model is asked with: a question in the language that it was trained on."""
    return Prompt(f"Q: {problem.expression}", (), "", "A:")


class Speaker:
    """Writes the answers of a model, and keeps them.

    Args:
        loaded: the model.
        options: of the run.
        answers: where they are kept; what is there is not written again.
        limits: `turn_tokens` and `prompt_tokens` where they are not those of the options.
    """

    def __init__(
        self, loaded: Loaded, options: Options, answers: Answers, limits: Mapping[str, Any] | None = None
    ) -> None:
        self.loaded, self.options, self._answers = loaded, options, answers
        self._limits = {
            "turn_tokens": options.turn_tokens,
            "prompt_tokens": options.prompt_tokens,
            **(limits or {}),
        }

    def setting(self, condition: Condition, number: int) -> Setting:
        """Return the setting of a run; `number` counts seeds from 0."""
        o = self.options
        entry = marks.mark_of(condition.mark)
        return Setting(
            topology="none",
            agents=AGENTS + 1,
            protocol="quality",
            mark=condition.mark,
            model=self.loaded.digest,
            temperature=o.temperature,
            top_p=o.top_p,
            joiner="",
            seed=o.seed + (0 if condition.one_key else number),
            rounds=strategies.ROUNDS,
            strength=entry.strength,
            profile=marks.profile_digest(condition.mark, entry.strength, self.loaded.reader),
            model_name=self.loaded.name,
            early_stop=False,
            **self._limits,
        )

    def say(self, calls: Sequence[Call], condition: Condition, number: int) -> list[Generated]:
        """Return one text per call, each under the key of its problem's agent."""
        setting = self.setting(condition, number)
        author: Author = ModelAuthor(self.loaded, setting, batch=self.options.batch)
        fewest, most = setting.turn_tokens
        shift = _AGAIN if condition.again else 0
        found: list[Generated] = []
        for start in range(0, len(calls), self.options.batch):
            some = calls[start : start + self.options.batch]
            rows = [
                Row(call.prompt, _seed(self.options.seed + number + shift, call), fewest, most)
                for call in some
            ]
            names = [agent_name(call.problem.number, call.agent) for call in some]
            key = canonical_digest(
                {"setting": setting.digest, "rows": [dataclasses.asdict(row) for row in rows], "names": names}
            )
            kept = self._answers.of(key)
            if not kept:
                written = author.generate(rows, names)
                line = json.dumps([[list(one.ids), one.entropy] for one in written])
                self._answers.add(key, self.loaded.name, line, None)
                kept = [line]
            found += [self._read(ids, entropy) for ids, entropy in json.loads(kept[0])]
        return found

    def _read(self, ids: list[int], entropy: float) -> Generated:
        return Generated(tuple(ids), self.loaded.reader.decode(ids).strip(), entropy)


def _seed(seed: int, call: Call) -> int:
    text = f"{seed}/{call.problem.task}/{call.problem.number}/{call.agent}/{call.number}/{call.branch}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


# ---------------------------------------------------------------- answers


@dataclasses.dataclass
class Solved:
    """What came of a task: figures [seeds][problems] by condition and strategy.

    Attributes:
        right: 1 where the answer is right; for Single the mean over the agents, each of which is one.
        none: 1 where there is none, likewise.
        texts: condition -> agent 0's first answers, [seeds][problems].
        alike: condition -> share of pairs of first answers of two agents that are the same text.
    """

    right: dict[tuple[str, str], list[list[float]]] = dataclasses.field(default_factory=dict)
    none: dict[tuple[str, str], list[list[float]]] = dataclasses.field(default_factory=dict)
    texts: dict[str, list[list[Generated]]] = dataclasses.field(default_factory=dict)
    alike: dict[str, float] = dataclasses.field(default_factory=dict)


def solve(
    speaker: Speaker,
    problems: Sequence[Problem],
    names: Sequence[str],
    seeds: int,
    first: strategies.First = strategies.first_prompt,
) -> Solved:
    """Let every strategy solve all problems under all conditions, once per seed.

    Args:
        speaker: the model.
        problems: of one task.
        names: of `STRATEGIES`.
        seeds: how many.
        first: what agents are told before their first answers.
    """
    solved = Solved()
    for name, condition in CONDITIONS.items():
        same: list[bool] = []
        for number in range(seeds):
            written: list[list[Generated]] = []

            def ask(
                calls: Sequence[Call], condition: Condition = condition, number: int = number
            ) -> list[str]:
                return [one.text for one in speaker.say(calls, condition, number)]

            def ask_first(
                calls: Sequence[Call],
                condition: Condition = condition,
                number: int = number,
                written: list[list[Generated]] = written,
            ) -> list[str]:
                written.append(speaker.say(calls, condition, number))
                return [one.text for one in written[0]]

            said = strategies.first_answers(problems, ask_first, first)
            solved.texts.setdefault(name, []).append(written[0][::AGENTS])
            same += [texts[i] == texts[j] for texts in said for i in range(AGENTS) for j in range(i)]
            for strategy in names:
                alone = [[[texts[agent]] for texts in said] for agent in range(AGENTS)]
                answers = [
                    STRATEGIES[strategy](problems, some, ask)
                    for some in (alone if strategy == "Single" else [said])
                ]
                right = [[a == p.answer for a, p in zip(row, problems, strict=True)] for row in answers]
                none = [[answer is None for answer in row] for row in answers]
                solved.right.setdefault((name, strategy), []).append(np.mean(right, axis=0).tolist())
                solved.none.setdefault((name, strategy), []).append(np.mean(none, axis=0).tolist())
        solved.alike[name] = float(np.mean(same))
    return solved


# ---------------------------------------------------------------- texts


def log_probabilities(
    loaded: Loaded, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]
) -> list[npt.NDArray[np.float64]]:
    """Return log p of every token of some texts in nats, each behind its prompt, under the unmarked model.

    The distribution is the model's at temperature 1 over what the author may draw: special tokens other
    than the ends have probability 0.
    """
    import torch

    model = loaded.model
    ends = model.generation_config.eos_token_id
    ends = [ends] if isinstance(ends, int) else list(ends or ())
    barred = sorted({*loaded.reader.special_ids} - {*ends})
    found: list[npt.NDArray[np.float64]] = []
    with torch.inference_mode():
        for low in range(0, len(texts), _SCORED_ROWS):
            both = list(zip(prompts[low : low + _SCORED_ROWS], texts[low : low + _SCORED_ROWS], strict=True))
            longest = max(len(prompt) + len(text) for prompt, text in both)
            ids = torch.zeros(len(both), longest, dtype=torch.int64)
            for row, (prompt, text) in enumerate(both):
                ids[row, : len(prompt) + len(text)] = torch.tensor([*prompt, *text])
            # Padding stands behind the texts, where causal attention does not look.
            logits = model(input_ids=ids.to(model.device), use_cache=False).logits
            for row, (prompt, text) in enumerate(both):
                behind = logits[row, len(prompt) - 1 : len(prompt) + len(text) - 1].float().cpu()
                behind[:, barred] = -torch.inf
                log_p = torch.log_softmax(behind, -1)
                found.append(log_p[torch.arange(len(text)), torch.tensor(text)].double().numpy())
    return found


def distinct(texts: Iterable[Sequence[int]], n: int) -> float | None:
    """Return the share of distinct n-grams among all of some texts; None if they have none.

    >>> distinct([(1, 2, 1, 2)], 2)
    0.6666666666666666
    """
    grams = [tuple(ids[i : i + n]) for ids in texts for i in range(len(ids) - n + 1)]
    return len(set(grams)) / len(grams) if grams else None


def figures_of_texts(
    loaded: Loaded, prompts: Sequence[Sequence[Sequence[int]]], texts: Sequence[Sequence[Generated]]
) -> dict[str, list[float | None]]:
    """Return figures prompt by prompt, each over all texts of the prompt.

    Args:
        loaded: the model that wrote them.
        prompts: ids, [seeds][prompts].
        texts: [seeds][prompts].

    Returns:
        "log perplexity": mean -log p per token, nats; "length": mean tokens; "entropy": mean nats of the
        distribution before the mark; "distinct-2", "distinct-4": over the texts of one prompt.
    """
    flat = [
        (p, t.ids) for row, some in zip(prompts, texts, strict=True) for p, t in zip(row, some, strict=True)
    ]
    log_p = log_probabilities(loaded, [p for p, _ in flat], [t for _, t in flat])
    width = len(texts[0])
    found: dict[str, list[float | None]] = {
        name: [] for name in ("log perplexity", "length", "entropy", "distinct-2", "distinct-4")
    }
    for i in range(width):
        of_prompt = [some[i] for some in texts]
        values = np.concatenate(log_p[i::width])
        found["log perplexity"].append(float(-values.mean()))
        found["length"].append(float(np.mean([len(one.ids) for one in of_prompt])))
        found["entropy"].append(float(np.mean([one.entropy for one in of_prompt])))
        for n in (2, 4):
            found[f"distinct-{n}"].append(distinct([one.ids for one in of_prompt], n))
    return found


def told_apart(
    speaker: Speaker, condition: Condition, problems: Sequence[Problem], texts: Sequence[Sequence[Generated]]
) -> float | None:
    """Return the share of agent 0's texts whose scores are highest under its key, of four; None: no mark."""
    if not marks.mark_of(condition.mark).marks:
        return None
    won = []
    for number, some in enumerate(texts):
        marker = Marker(speaker.setting(condition, number), speaker.loaded.reader)
        for problem, one in zip(problems, some, strict=True):
            keys = marker.keys(problem.number)
            # Where a context has come before, gumbel leaves no mark, and the rest would count twice.
            pairs = keys.pairs(one.ids)
            _, fresh = np.unique(pairs, return_index=True)
            fresh = fresh[pairs[fresh] >= 0]
            won.append(int(keys.scores(one.ids)[fresh].sum(axis=0).argmax()) == 0)
    return float(np.mean(won))


def plain_texts(
    speaker: Speaker, problems: Sequence[Problem], condition: Condition, seeds: int
) -> tuple[list[list[list[int]]], list[list[Generated]]]:
    """Return prompts (as ids) and texts [seeds][problems]: first answers of agent 0."""
    prompts, texts = [], []
    for number in range(seeds):
        calls = []
        for problem in problems:
            prompt = strategies.first_prompt(problem, 0)
            if condition.nonce:
                prompt = dataclasses.replace(
                    prompt, opening=f"Answer {_nonce(speaker.options.seed + number)}:"
                )
            calls.append(Call(problem, 0, 0, prompt))
        texts.append(speaker.say(calls, condition, number))
        prompts.append(_prompt_ids(speaker, calls))
    return prompts, texts


def _nonce(number: int) -> str:
    rng = np.random.default_rng([number, 7])
    return "".join("abcdefghijklmnopqrstuvwxyz"[i] for i in rng.integers(26, size=3))


def _prompt_ids(speaker: Speaker, calls: Sequence[Call]) -> list[list[int]]:
    author = ModelAuthor(speaker.loaded, speaker.setting(CONDITIONS[CLEAN], 0))
    return [author.prompt_ids(call.prompt) for call in calls]


def divergences(
    speaker: Speaker, calls: Sequence[Call], kappas: Sequence[float] = KAPPAS
) -> dict[float, list[float]]:
    """Return κ -> KL(marked ‖ unmarked) in nats per token of each unmarked text, over every eighth token."""
    kept: list[list[npt.NDArray[np.float32]]] = [[] for _ in calls]

    def keep(logits: Any, going: Any) -> None:
        for row in going.nonzero()[:, 0].tolist():
            kept[row].append(logits[row].float().cpu().numpy().copy())

    setting = speaker.setting(CONDITIONS[CLEAN], 0)
    author = ModelAuthor(speaker.loaded, setting, batch=len(calls), on_logits=keep)
    fewest, most = setting.turn_tokens
    rows = [Row(call.prompt, _seed(speaker.options.seed, call), fewest, most) for call in calls]
    author.generate(rows, [None] * len(rows))
    return {
        kappa: [marks.mean_kl(np.stack(rows), kappa, seed=number) for number, rows in enumerate(kept) if rows]
        for kappa in kappas
    }


# ---------------------------------------------------------------- the experiment


@dataclasses.dataclass(frozen=True)
class Part:
    """A model on a task, and what is known of it.

    Attributes:
        model: as tables call it.
        task: likewise.
        problems: that were asked.
        solved: None: not run.
        names: strategies.
    """

    model: str
    task: str
    problems: Sequence[Problem]
    solved: Solved | None
    names: Sequence[str]


def run(
    options: Options,
    data: pathlib.Path,
    out: pathlib.Path,
    model: str | None = None,
    device: str = "cpu",
    arithmetic_model: pathlib.Path = ARITHMETIC_MODEL,
    *,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Measure answers and texts, and write tables and figures.

    Args:
        options: of the run.
        data: folder that holds GSM8K's `test.jsonl`, also as `gsm8k/`.
        out: folder of tables and plots; what was generated lies in `out / "logs"`.
        model: path or id of an instruction model; None: what needs one is "not run".
        device: of the instruction model, "cpu" or as torch calls it.
        arithmetic_model: folder of a model in the language of `benchmarks.lm.arithmetic`.
        overwrite: of results of another configuration, too.

    Returns:
        What the JSON of the answers holds.
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
    content = {
        "configuration": configuration,
        "digest": canonical_digest(configuration),
        "environment": environment("torch", "transformers"),
    }
    with Answers(out / "logs" / "quality.jsonl") as answers:
        calculator = Speaker(small, options, answers, SHORT)
        writer = Speaker(other, options, answers, PLAIN if model is None else None)
        names = WITHOUT_INSTRUCTIONS
        parts = [
            Part(
                "arithmetic model",
                "Arithmetic",
                expressions,
                solve(calculator, expressions, names, options.seeds, spoken),
                names,
            )
        ]
        for task, problems in (("Arithmetic", expressions), ("GSM8K", stories)):
            found = (
                solve(writer, problems, list(STRATEGIES), options.model_seeds) if model is not None else None
            )
            parts.append(
                Part(
                    "instruction model" if model is None else other.name,
                    task,
                    problems,
                    found,
                    list(STRATEGIES),
                )
            )
        answered = _write_answers(out, parts, options, content)
        _write_texts(out, calculator, writer, parts, stories, options, content)
        _write_divergences(out, calculator, writer, expressions, stories, options, content)
    return answered


def _difference(solved: Solved, strategy: str, name: str, seed: int) -> Interval | None:
    ours, theirs = (np.mean(solved.right[cell, strategy], axis=0).tolist() for cell in (name, CLEAN))
    return statistics.difference(ours, theirs, seed)


def _write_answers(
    out: pathlib.Path, parts: Sequence[Part], options: Options, content: Mapping[str, Any]
) -> dict[str, Any]:
    header = ["task", "model", "strategy", "condition", "accuracy", "accuracy - clean", "no answer"]
    rows: list[list[Cell]] = []
    figures: list[dict[str, Any]] = []
    panels: dict[str, dict[str, list[Interval | None]]] = {}
    for part in parts:
        if part.solved is None:
            rows += [[part.task, part.model, name, "", NOT_RUN, NOT_RUN, NOT_RUN] for name in part.names]
            continue
        series = panels.setdefault(f"{part.task}\n{part.model}", {})
        for strategy in part.names:
            for name in CONDITIONS:
                right = np.array(part.solved.right[name, strategy])
                none = np.array(part.solved.none[name, strategy])
                found = None if name == CLEAN else _difference(part.solved, strategy, name, options.seed)
                accuracy = statistics.interval(right.mean(axis=0).tolist(), options.seed)
                gap: Cell = "" if name == CLEAN else found
                rows.append([part.task, part.model, strategy, name, accuracy, gap, float(none.mean())])
                if name != CLEAN:
                    series.setdefault(name, []).append(found)
                figures.append(
                    {
                        "task": part.task,
                        "model": part.model,
                        "strategy": strategy,
                        "condition": name,
                        "seeds": len(right),
                        "right": right.mean(axis=0).tolist(),
                        "none": none.mean(axis=0).tolist(),
                        "difference": None if found is None else dataclasses.asdict(found),
                        "texts_alike_among_agents": part.solved.alike[name],
                    }
                )
    note = (
        f"{options.problems} problems a task, {options.seeds} seeds of the arithmetic model and"
        f" {options.model_seeds} of an instruction model, T = {options.temperature:g}, top-p"
        f" {options.top_p:g}. A seed has draws and keys of its own, and every agent of every problem its own"
        " key; Single is the mean over the three agents' first answers. Differences are those of a problem's"
        ' mean over seeds, with 95 % bootstrap intervals over problems; "clean, other draws" is the noise.'
        ' Reflection, Debate and GSM8K need an instruction model (--model) and are "not run" without one.'
        " Majority needs no nonce with gumbel: its agents have different keys. Pairs of agents that gave the"
        " same text: "
        + "; ".join(
            f"{part.model}, {part.task}: " + ", ".join(f"{n} {s:.1%}" for n, s in part.solved.alike.items())
            for part in parts
            if part.solved is not None
        )
        + "."
    )
    whole = {**content, "figures": figures}
    recording.write_table(out / "quality", header, rows, whole, note=note)
    plots.differences(out / "quality", [part.names for part in parts if part.solved is not None], panels)
    return whole


def _write_texts(
    out: pathlib.Path,
    calculator: Speaker,
    writer: Speaker,
    parts: Sequence[Part],
    stories: Sequence[Problem],
    options: Options,
    content: Mapping[str, Any],
) -> None:
    header = [
        *(
            "texts of",
            "condition",
            "perplexity",
            "log perplexity - clean",
            "entropy",
            "tokens",
            "tokens - clean",
        ),
        *("distinct-2", "distinct-4", "distinct-4 - clean", "own key first of 4"),
    ]
    rows: list[list[Cell]] = []
    figures: list[dict[str, Any]] = []

    def add(of: str, name: str, found: dict[str, list[float | None]], clean: Any, told: float | None) -> None:
        seed = options.seed
        gaps = {
            figure: None if name == CLEAN else statistics.difference(found[figure], clean[figure], seed)
            for figure in found
        }
        shown: dict[str, Cell] = {f: "" if name == CLEAN else gap for f, gap in gaps.items()}
        mean = {f: statistics.interval(values, seed) for f, values in found.items()}
        log_ppl = mean["log perplexity"]
        rows.append(
            [
                of,
                name,
                None if log_ppl is None else float(np.exp(log_ppl.mean)),
                shown["log perplexity"],
                None if mean["entropy"] is None else mean["entropy"].mean,
                None if mean["length"] is None else mean["length"].mean,
                shown["length"],
                None if mean["distinct-2"] is None else mean["distinct-2"].mean,
                None if mean["distinct-4"] is None else mean["distinct-4"].mean,
                shown["distinct-4"],
                "" if told is None else told,
            ]
        )
        figures.append(
            {
                "texts": of,
                "condition": name,
                "by_prompt": found,
                "differences": {
                    f: None if gap is None else dataclasses.asdict(gap) for f, gap in gaps.items()
                },
                "told_apart": told,
            }
        )

    first = parts[0]
    assert first.solved is not None
    calls = [Call(p, 0, 0, spoken(p, 0)) for p in first.problems]
    asked = [_prompt_ids(calculator, calls)] * options.seeds
    clean: dict[str, list[float | None]] = {}
    for name, condition in CONDITIONS.items():
        texts = first.solved.texts[name]
        found = figures_of_texts(calculator.loaded, asked, texts)
        clean = clean or found
        told = told_apart(calculator, condition, first.problems, texts)
        add("arithmetic model, Arithmetic", name, found, clean, told)
    clean = {}
    for name, condition in {**CONDITIONS, **REPEATED}.items():
        if condition.nonce and writer.loaded.chat:
            continue  # a chat template's last tokens stand behind the nonce
        prompts, texts = plain_texts(writer, stories, condition, options.text_seeds)
        found = figures_of_texts(writer.loaded, prompts, texts)
        clean = clean or found
        told = told_apart(writer, condition, stories, texts)
        add(f"{writer.loaded.name}, GSM8K's questions", name, found, clean, told)
    note = (
        "Figures of a prompt, over all its texts"
        f" ({options.seeds} of the arithmetic model, {options.text_seeds} of the other), averaged over"
        f" {options.problems} prompts; differences are paired by prompts, with 95 % bootstrap intervals."
        " Perplexity: of the text under the unmarked model at temperature 1. Entropy: nats per token before"
        ' the mark. Distinct-n: share of different n-grams of tokens among the texts of a prompt. "One key":'
        " an agent is asked the same several times, and gumbel writes nearly the same text again; a nonce in"
        ' the last tokens of the prompt gives other texts. "Own key first of 4": chance is 0.25.'
    )
    recording.write_table(out / "quality_texts", header, rows, {**content, "figures": figures}, note=note)


def _write_divergences(
    out: pathlib.Path,
    calculator: Speaker,
    writer: Speaker,
    expressions: Sequence[Problem],
    stories: Sequence[Problem],
    options: Options,
    content: Mapping[str, Any],
) -> None:
    measured = {
        "arithmetic model": divergences(calculator, [Call(p, 0, 0, spoken(p, 0)) for p in expressions]),
        writer.loaded.name: divergences(
            writer, [Call(p, 0, 0, strategies.first_prompt(p, 0)) for p in stories]
        ),
    }
    series = {
        name: [statistics.interval(found[kappa], options.seed) for kappa in KAPPAS]
        for name, found in measured.items()
    }
    rows: list[list[Cell]] = [
        ["fourier", kappa, *(values[i] for values in series.values())] for i, kappa in enumerate(KAPPAS)
    ]
    rows.append(["gumbel", "", *("0 by construction" for _ in series)])
    note = (
        "KL(marked ‖ unmarked) in nats per token, mean over keys, at T ="
        f" {options.temperature:g}, top-p {options.top_p:g}, over every eighth token of unmarked texts; 95 %"
        " bootstrap intervals over texts. Over keys, gumbel draws from the unmarked distribution itself; what"
        " can be measured of it is in quality_texts."
    )
    figures = {
        name: {str(kappa): values for kappa, values in found.items()} for name, found in measured.items()
    }
    recording.write_table(
        out / "quality_kl", ["mark", "κ", *series], rows, {**content, "figures": figures}, note=note
    )
    plots.sweep(out / "quality_kl", KAPPAS, series, xlabel="κ", operating_point=marks.KAPPA)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper quality", description=(__doc__ or "").split("\n")[0]
    )
    usual = Options()
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder that holds gsm8k/test.jsonl")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of tables, plots and logs")
    parser.add_argument("--model", help="path or id of an instruction model (default: none)")
    parser.add_argument("--device", default="cpu", help="of the instruction model (default: cpu)")
    parser.add_argument("--arithmetic-model", type=pathlib.Path, default=ARITHMETIC_MODEL, help="folder")
    parser.add_argument("--problems", type=int, help=f"of each task (default: {usual.problems})")
    parser.add_argument("--seeds", type=int, help=f"of the arithmetic model (default: {usual.seeds})")
    parser.add_argument("--model-seeds", type=int, help=f"of --model (default: {usual.model_seeds})")
    parser.add_argument("--text-seeds", type=int, help=f"texts a prompt (default: {usual.text_seeds})")
    parser.add_argument("--seed", type=int, default=usual.seed, help="the first (default: 0)")
    parser.add_argument("--temperature", type=float, default=usual.temperature, help="(default: 1.0)")
    parser.add_argument("--top-p", type=float, default=usual.top_p, help="(default: 1.0)")
    parser.add_argument(
        "--turn-tokens", type=int, nargs=2, metavar=("FEWEST", "MOST"), default=usual.turn_tokens
    )
    parser.add_argument(
        "--prompt-tokens", type=int, default=usual.prompt_tokens, help="prompts are cut to so many"
    )
    parser.add_argument(
        "--batch", type=int, default=usual.batch, help="texts sampled together (default: 128)"
    )
    parser.add_argument("--quick", action="store_true", help="minutes on two cores")
    parser.add_argument("--overwrite", action="store_true", help="of results of another configuration, too")
    asked = parser.parse_args(arguments)
    chosen = {field.name: getattr(asked, field.name) for field in dataclasses.fields(Options)}
    fallback = QUICK if asked.quick else {}
    filled = {n: fallback.get(n, getattr(usual, n)) if v is None else v for n, v in chosen.items()}
    started = time.monotonic()
    try:
        options = checked(Options(**{**filled, "turn_tokens": tuple(filled["turn_tokens"])}))
        results.writable(asked.out)
        import torch

        if asked.device == "cpu" and asked.model is None:
            torch.set_num_threads(1)  # the matrices are small: more threads would only wait for each other
        run(
            options,
            asked.data,
            asked.out,
            asked.model,
            asked.device,
            asked.arithmetic_model,
            overwrite=asked.overwrite,
        )
    except IetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"\nquality: {time.monotonic() - started:.0f} s, {asked.out / 'quality'}.md", flush=True)
    return 0


def checked(options: Options) -> Options:
    """Return the options, or refuse them."""
    if options.seed < 0:
        raise InputError(f"seed: got {options.seed}, expected at least 0")
    for name in ("problems", "seeds", "model_seeds", "text_seeds", "prompt_tokens", "batch"):
        if getattr(options, name) < 1:
            raise InputError(f"{name}: got {getattr(options, name)}, expected at least 1")
    fewest, most = options.turn_tokens
    if not 1 <= fewest <= most:
        raise InputError(f"turn_tokens: got {fewest} and {most}, expected 1 <= fewest <= most")
    if not options.temperature > 0:
        raise InputError(f"temperature: got {options.temperature}, expected above 0")
    if not 0 < options.top_p <= 1:
        raise InputError(f"top_p: got {options.top_p}, expected above 0 and at most 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
