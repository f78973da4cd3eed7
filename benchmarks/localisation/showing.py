"""The tables of a run: every corpus in the result, kinds of corpora on the page of numbers."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.localisation import readers
from benchmarks.recording import table

KINDS = {
    "gumbel": "Gumbel-max",
    "pf": "permute-and-flip",
    "inverse": "inverse sampling",
    "redgreen": "green lists",
    "short": "green lists, strong but short",
    "long": "green lists, weak but long",
}
"""How the name of a published file ends -> how its mark is called."""

_TITLES = {
    "published": "Published score files",
    "moved": "The same scores at drawn places",
    "drawn": "Drawn scores of several agents",
    "written": "Texts of the shipped model, of which one speaker is not registered",
}


def markdown(content: Mapping[str, Any]) -> str:
    """Return all tables of a run."""
    parts = [
        "Behind the mean IoU of a reader: the 95 % interval of its difference from `posterior`, paired by"
        ' texts; "+" and "-": better or worse beyond it.'
    ]
    for group, title in _TITLES.items():
        found = [row for row in content["corpora"] if row["group"] == group]
        if found:
            parts += [f"# {title}", _sayings(found), _iou(found), "Boundary error in tokens:"]
            parts += [_figure(found, "boundary", "{:.1f}"), "Texts with the right number of intervals:"]
            parts += [_figure(found, "number", "{:.2f}")]
            if group != "moved":
                parts += ["Milliseconds a text (median):", _figure(found, "ms", "{:.2f}")]
    found = [row for row in content["corpora"] if row["group"] == "unmarked"]
    if found:
        parts += ["# Unmarked texts", "Share of texts in which anything is found:"]
        parts += [_figure(found, "found", "{:.2f}")]
    return "\n\n".join(parts)


def _iou(found: Sequence[Mapping[str, Any]]) -> str:
    """The mean IoU, and behind it how a reader differs from `posterior`, paired."""
    rows = []
    for row in found:
        cells: list[str | None] = []
        for name in _names(found):
            result = row["readers"].get(name)
            if result is None:
                cells.append(None)
                continue
            shown = f"{result['iou'][0]:.3f}"
            if "less posterior" in result:
                _, low, high = result["less posterior"]
                shown += f" ({low:+.3f}, {high:+.3f})" + (" +" if low > 0 else " -" if high < 0 else "")
            cells.append(shown)
        rows.append([row["corpus"], str(row["texts"]), *cells])
    return table(["mean IoU", "texts", *_names(found)], rows)


def _names(found: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the readers' names, those of others last."""
    return list(dict.fromkeys([*readers.NAMES, *(name for row in found for name in row["readers"])]))


def _figure(found: Sequence[Mapping[str, Any]], name: str, form: str) -> str:
    shown = [reader for reader in _names(found) if any(reader in row["readers"] for row in found)]
    rows = [
        [row["corpus"], *(_shown(row["readers"].get(reader), name, form) for reader in shown)]
        for row in found
    ]
    means = [
        form.format(np.mean([row["readers"][reader][name] for row in found if reader in row["readers"]]))
        for reader in shown
    ]
    return table([name, *shown], [*rows, ["mean", *means]])


def _shown(result: Mapping[str, Any] | None, name: str, form: str) -> str | None:
    return None if result is None else form.format(result[name])


def _sayings(found: Sequence[Mapping[str, Any]]) -> str:
    """Say over the corpora how `posterior` stands to each other reader."""
    said: list[list[object]] = []
    for name in _names(found)[1:]:
        apart = [row["readers"][name]["less posterior"] for row in found if name in row["readers"]]
        if apart:
            better, worse = sum(low > 0 for _, low, _ in apart), sum(high < 0 for *_, high in apart)
            mean = float(np.mean([each[0] for each in apart]))
            said.append([name, len(apart), worse, len(apart) - better - worse, better, f"{mean:+.3f}"])
    return table(
        ["beside `posterior`", "corpora", "worse", "not told apart", "better", "mean difference"], said
    )


def localisation(results: pathlib.Path) -> str:
    """Return what the page of numbers shows of the run in a folder of results."""
    return page(json.loads((results / "localisation.json").read_text(encoding="utf-8")))


def page(content: Mapping[str, Any]) -> str:
    """Return what the page of numbers shows: means over corpora of a kind, and who leads whom."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for row in content["corpora"]:
        kinds.setdefault(_kind(row), []).append(row)
    rows = []
    for kind, found in sorted(kinds.items(), key=lambda each: each[0].startswith("unmarked")):
        figure = "found" if found[0]["group"] == "unmarked" else "iou"
        cells: list[str | None] = []
        for name in _names(content["corpora"]):
            values = [np.ravel(row["readers"][name][figure])[0] for row in found if name in row["readers"]]
            cells.append(f"{np.mean(values):.3f}" if values else None)
        rows.append([kind, str(len(found)), *cells])
    parts = [table(["mean IoU", "corpora", *_names(content["corpora"])], rows)]
    for group, title in _TITLES.items():
        found = [row for row in content["corpora"] if row["group"] == group]
        if found:
            parts += [f"{title}, corpus by corpus, paired by texts:", _sayings(found)]
    where = "[benchmarks/results/localisation.md](benchmarks/results/localisation.md)"
    parts.append(f"`{content['command']}`: {where}.")
    return "\n\n".join(parts)


def _kind(row: Mapping[str, Any]) -> str:
    name: str = row["corpus"]
    if row["group"] in ("published", "moved"):
        return f"{row['group']}, {KINDS[name.removesuffix(', moved').rpartition('_')[2]]}"
    if row["group"] == "unmarked":
        return "unmarked: share of texts with a finding"
    return name.rpartition(",")[0]
