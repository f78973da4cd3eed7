"""Mark, join, forget, audit: how well each decoder recovers who wrote what, on the shipped model.

    python -m benchmarks.accuracy.closed_loop -o benchmarks/results/closed_loop.json

Four agents, twelve turns of 150 to 250 tokens along a walk on a topology, joined by one space; the audit
sees the text alone. τ of `cusum` is chosen on other seeds. Two nulls: text without a mark (κ = 0), and text
marked under keys that the auditor does not have; both are compared with shuffled labels.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import pathlib
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from benchmarks.recording import environment, table, write
from iet.auditor import Auditor
from iet.demo import conversation
from iet.demo.stage import TURN_TOKENS, compare, demo_registry, true_labels
from iet.registry import Registry
from iet.scheme import Scheme

TAUS = (0.00625, 0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8)
TUNING_SEEDS = range(1000, 1010)
METRICS = ("token_accuracy", "mean_iou", "edge_similarity", "boundary_f1")
SAMPLERS = {"T = 1.0": (1.0, 1.0), "T = 0.7, top-p 0.9": (0.7, 0.9)}
NAMES = conversation.ROLES[:4]


class Texts:
    """Conversations, generated once each."""

    def __init__(self, topology: str, rounds: int) -> None:
        self.topology, self.rounds = topology, rounds
        self.model, self.tokenizer = conversation.load_model()

    def make(self, registry: Registry, sampler: str, seed: int) -> conversation.Conversation:
        temperature, top_p = SAMPLERS[sampler]
        speakers = conversation.speakers_of_walk(self.topology, NAMES, self.rounds, seed)
        return conversation.converse(
            self.model,
            self.tokenizer,
            registry,
            speakers,
            temperature=temperature,
            top_p=top_p,
            turn_tokens=TURN_TOKENS,
            seed=seed,
        )


def measure(
    talk: conversation.Conversation, registry: Registry, decoder: str, **options: Any
) -> dict[str, float]:
    """Audit one text twice, with and without forced choice, and compare with the truth."""
    forced = Auditor(registry, decoder, allow_unattributed=False, **options).audit(talk.text)
    free = compare(talk, registry, Auditor(registry, decoder, **options).audit(talk.text))
    chance = shuffled_accuracy(true_labels(talk, registry), forced.token_agents)
    figures = dataclasses.asdict(compare(talk, registry, forced))
    figures |= {
        "coverage": free.coverage,
        "accuracy_where_attributed": free.accuracy_where_attributed,
        "shuffled": chance,
        "above_shuffled": figures["token_accuracy"] - chance,
        "tokens": float(forced.tokens),
        "repeated": forced.repeated / max(1, forced.scored),
    }
    return {name: value for name, value in figures.items() if value is not None}


def shuffled_accuracy(truth: Any, found: Any, draws: int = 200) -> float:
    """Return the mean accuracy when agents' names are dealt anew: what knowing nothing gets on this text."""
    rng = np.random.default_rng(0)
    n = len(NAMES)
    joint = np.bincount(truth * n + found, minlength=n * n).reshape(n, n) / len(truth)
    return float(np.mean([joint[np.arange(n), rng.permutation(n)].sum() for _ in range(draws)]))


def summarise(rows: list[dict[str, float]]) -> dict[str, list[float]]:
    """Return mean, standard error and number of texts of every figure, over the texts that have it."""
    summary = {}
    for key in sorted(set().union(*rows)):
        values = np.array([row[key] for row in rows if key in row])
        error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
        summary[key] = [float(values.mean()), float(error), len(values)]
    return summary


def tune(texts: Texts, sampler: str) -> dict[float, float]:
    """Return TokenAcc of `cusum` on the tuning seeds for every τ."""
    talks = []
    for seed in tqdm(TUNING_SEEDS, desc=f"{sampler}: tuning texts"):
        registry = demo_registry(NAMES, seed)
        talks.append((registry, texts.make(registry, sampler, seed)))
    accuracy = {}
    for tau in TAUS:
        found = [measure(talk, registry, "cusum", tau=tau)["token_accuracy"] for registry, talk in talks]
        accuracy[tau] = float(np.mean(found))
    return accuracy


def run(seeds: range, topology: str, rounds: int) -> dict[str, Any]:
    texts = Texts(topology, rounds)
    results: dict[str, Any] = {"decoders": {}, "tuning": {}, "null": {}}
    for sampler in SAMPLERS:
        accuracy = tune(texts, sampler)
        best = max(accuracy, key=lambda tau: accuracy[tau])
        results["tuning"][sampler] = {"tau": best, "token_accuracy": {str(k): v for k, v in accuracy.items()}}
        rows: dict[str, list[dict[str, float]]] = collections.defaultdict(list)
        nulls: dict[str, list[dict[str, float]]] = collections.defaultdict(list)
        for seed in tqdm(seeds, desc=f"{sampler}: texts"):
            registry = demo_registry(NAMES, seed)
            talk = texts.make(registry, sampler, seed)
            rows["posterior"].append(measure(talk, registry, "posterior"))
            rows["window"].append(measure(talk, registry, "window"))
            rows[f"cusum (τ = {best:g})"].append(measure(talk, registry, "cusum", tau=best))
            rows["cusum (default τ = 0.1)"].append(measure(talk, registry, "cusum"))
            nulls["wrong registry"].append(measure(talk, demo_registry(NAMES, seed + 5000), "posterior"))
            silent = demo_registry(NAMES, seed, Scheme(kappa=0.0))
            nulls["κ = 0"].append(measure(texts.make(silent, sampler, seed), registry, "posterior"))
        results["decoders"][sampler] = {name: summarise(values) for name, values in rows.items()}
        results["null"] |= {f"{name}, {sampler}": summarise(values) for name, values in nulls.items()}
    return results


def markdown(results: dict[str, Any]) -> str:
    def cell(figure: list[float] | None) -> str:
        if figure is None:
            return "none"
        mean, error, count = figure
        return f"{mean:.3f} ± {error:.3f}" if count > 1 else f"{mean:.3f} (1 text)"

    header = [
        "sampler",
        "decoder",
        "TokenAcc",
        "IoU",
        "EdgeSim",
        "boundary F1 (±16)",
        "coverage",
        "TokenAcc there",
    ]
    keys = (*METRICS, "coverage", "accuracy_where_attributed")
    rows = [
        [sampler, name] + [cell(figures.get(key)) for key in keys]
        for sampler, decoders in results["decoders"].items()
        for name, figures in decoders.items()
    ]
    nulls = [
        [
            name,
            cell(f["token_accuracy"]),
            cell(f["shuffled"]),
            f"{f['above_shuffled'][0] / f['above_shuffled'][1]:+.1f} standard errors",
            cell(f["coverage"]),
        ]
        for name, f in results["null"].items()
    ]
    return "\n\n".join(
        [
            "Forced choice; mean ± standard error over texts. Coverage and the accuracy there: with"
            " unattributed text allowed, level 0.01.",
            table(header, rows),
            "Nulls (`posterior`, forced choice): accuracy must be that of shuffled labels.",
            table(["text", "TokenAcc", "shuffled labels", "difference", "coverage"], nulls),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    parser.add_argument("--texts", type=int, default=20, help="seeds (default: 20)")
    parser.add_argument("--topology", default="chain")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = run(range(arguments.texts), arguments.topology, arguments.rounds)
    content = {
        "command": f"python -m benchmarks.accuracy.closed_loop -o {arguments.output}"
        f" --texts {arguments.texts} --topology {arguments.topology} --rounds {arguments.rounds}",
        "environment": environment("torch", "transformers"),
        **results,
    }
    write(arguments.output, content, markdown(results))


if __name__ == "__main__":
    main()
