"""What follows from the numbers that the paper prints, by arithmetic alone.

    python -m benchmarks.paper.implied              # the tables of docs/internals/paper.md

Nothing is measured here: it reads `quoted.json`. With K agents who wrote equal shares of the tokens, let t of
an agent's n tokens be named rightly and f tokens of others carry its name. Then IoU is t / (n + f), which is
at most t / n, and the mean of t / n over agents is TokenAcc: **IoU is never above TokenAcc**. Where every
token is named and errors fall on all agents alike, f = n - t, so a TokenAcc of p means an IoU of p / (2 - p).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.paper.quoted import SETTINGS, TABLE1, TABLE2, WINDOW
from benchmarks.recording import table

WHO_AND_WHEN = {
    "all_at_once": (54.33, 12.50),
    "step_by_step": (35.20, 25.51),
    "binary_search": (44.13, 23.98),
}
"""Who&When (arXiv 2505.00212), Table 1, GPT-4o, with ground truth, algorithm-generated: agent, step in %."""

_RUNS_AT_256 = ((0.767, 0.792), (0.639, 0.777))  # both runs: TokenAcc, IoU


def even_iou(accuracy: float) -> float:
    """Return the IoU of a TokenAcc where shares and errors are spread evenly and every token is named."""
    return accuracy / (2 - accuracy)


def named_share(accuracy: float, iou: float) -> tuple[float, float]:
    """Return which share d of the tokens would have to be named, and how many of them rightly, q.

    It is what reconciles both figures if IoU is taken over named tokens alone, TokenAcc over all:
    iou = q / (2 - q) and accuracy = d q. A share above 1 says that this does not explain them.
    """
    rightly = 2 * iou / (1 + iou)
    return accuracy / rightly, rightly


def all_edges(agents: int, edges: int) -> float:
    """Return EdgeSim between a true graph of so many directed edges and one that has all alike.

    The cosine of a 0/1 matrix with `edges` ones and of a constant off its diagonal is
    sqrt(edges / (K (K - 1))).
    """
    return math.sqrt(edges / (agents * (agents - 1)))


def gaps(method: str) -> list[float]:
    """Return by how much each of the nine printed IoUs is above that of evenly spread errors."""
    printed = TABLE1[method]
    return [
        iou - even_iou(accuracy)
        for iou, accuracy in zip(printed["iou"], printed["token_accuracy"], strict=True)
    ]


def _number(values: Sequence[float]) -> str:
    return f"{min(values):+.3f} to {max(values):+.3f}"


def clean() -> str:
    """Return the "Clean" columns of the paper's Table 2 beside the published ones, in Markdown."""
    rows = [
        [
            protocol.replace("_", "-"),
            *(f"{value:.2f}" for value in TABLE2[protocol]["baseline"]["clean"]),
            *(f"{value:.2f}" for value in published),
        ]
        for protocol, published in WHO_AND_WHEN.items()
    ]
    return table(["protocol", "paper: agent", "step", "Who&When, GPT-4o: agent", "step"], rows)


def agreement() -> str:
    """Return for each method how far IoU is from what its TokenAcc implies, in Markdown."""
    rows = [
        [
            method,
            _number(gaps(method)),
            sum(i > a for i, a in zip(printed["iou"], printed["token_accuracy"], strict=True)),
        ]
        for method, printed in TABLE1.items()
    ]
    return table(["method", "IoU - p / (2 - p), nine settings", "settings with IoU above TokenAcc"], rows)


def reconciled() -> str:
    """Return what share of the tokens would have to be named for IET's two figures to agree, in Markdown."""
    printed = TABLE1["IET"]
    figures = [
        (f"{topology.replace('_pure', '')}, {agents} agents", accuracy, iou)
        for (topology, agents), accuracy, iou in zip(
            SETTINGS, printed["token_accuracy"], printed["iou"], strict=True
        )
    ]
    figures += [
        (f"chain, 4 agents, w = {width}", WINDOW["token_accuracy"][width], WINDOW["iou"][width])
        for width in sorted(WINDOW["token_accuracy"])
    ]
    figures += [("chain, 4 agents, w = 256, a run", *run) for run in _RUNS_AT_256]
    rows = []
    for setting, accuracy, iou in figures:
        share, rightly = named_share(accuracy, iou)
        rows.append([setting, f"{accuracy:.3f}", f"{iou:.3f}", f"{even_iou(accuracy):.3f}", f"{share:.2f}",
                     f"{rightly:.3f}"])  # fmt: skip
    columns = ["setting", "TokenAcc p", "IoU", "p / (2 - p)", "share named, if IoU is of named tokens",
               "of them right"]  # fmt: skip
    return table(columns, rows)


def edges() -> str:
    """Return EdgeSim of the watermarks beside that of a graph that says nothing, in Markdown."""
    rows = []
    for index, (topology, agents) in enumerate(SETTINGS):
        rows.append([
            f"{topology.replace('_pure', '')}, {agents} agents",
            *(f"{TABLE1[method]['edge_similarity'][index]:.3f}" for method in ("IET", "KGW", "Unigram")),
            f"{all_edges(agents, agents):.3f}",
            f"{all_edges(agents, 2 * (agents - 1)):.3f}",
        ])  # fmt: skip
    columns = ["setting", "IET", "KGW", "Unigram", "all edges alike, against a cycle",
               "against a tree, both ways"]  # fmt: skip
    return table(columns, rows)


def main() -> int:
    """Print the tables."""
    print("\n\n".join((clean(), agreement(), reconciled(), edges())))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
