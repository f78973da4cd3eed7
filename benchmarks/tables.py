"""Write the tables of docs/ from the committed results, between their markers.

python -m benchmarks.tables            rewrite them
python -m benchmarks.tables --check    exit 1 if they differ from the results
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.accuracy.promises import promises
from benchmarks.paper.experiments import table1
from benchmarks.paper.experiments.table1 import NEW, TITLES, UNATTRIBUTED
from benchmarks.paper.quoted import TABLE1
from benchmarks.paper.reading.scoring import SHOWN
from benchmarks.recording import number, table
from benchmarks.security import framing
from benchmarks.speed.showing import UNREAD, bulk
from iet.audit.calibration import tokens_needed

ROOT = pathlib.Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
_PAIRED = ("token_accuracy", NEW, "iou", "edge_similarity")
"""Figures of Table 1 in the order in which they are shown."""

FORGER_TOKENS = 10_000
"""Published tokens of the attacks in the table for auditors."""

AGENTS = 6
"""Agents of the texts of which the accuracy is shown."""


def _link(name: str) -> str:
    return f"[benchmarks/results/{name}.md](benchmarks/results/{name}.md)"


def power(results: pathlib.Path) -> str:
    """Return how many tokens of one agent a finding takes: series over the sizes of registries."""
    content = _content(results, "power")
    rows = sorted(filter(_usual, content["simulated"]), key=lambda row: float(row["entropy"]))
    first = rows[0]
    sizes = " · ".join(f"{int(keys):,}" for keys in first["tokens"])
    parts = [
        f"Tokens that an agent must write to be found in {first['share']:.0%} of texts at level"
        f" {first['level']:g}, if the registry holds {sizes} agents (`iet calibrate --power`):",
        _pivot("nats per token", {(_scheme(row), f"{row['entropy']:g}"): _needed(row) for row in rows}),
    ]
    if content["real"]:
        cells = {
            (f"{row['model']} model, T = {row['temperature']:g}", _scheme(row)): f"{_needed(row)}"
            f" ({row['entropy']:.1f} nats)"
            for row in content["real"]
        }
        caption = f"The same in generated texts, {_link('power')}:"
        parts += [caption, _pivot("text", cells)]
    return "\n\n".join(parts)


def _pivot(corner: str, cells: Mapping[tuple[str, str], str]) -> str:
    """Return a table of cells by (first cell of their row, heading)."""
    names, heads = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
    rows = [[name, *(cells.get((name, head), "") for head in heads)] for name in names]
    return table((corner, *heads), rows)


def _usual(row: Mapping[str, Any]) -> bool:
    """Return whether the row has the default strength of its family."""
    return bool(row["family"] == "gumbel" or row["kappa"] == 0.8)


def _scheme(row: Mapping[str, Any]) -> str:
    return str(row["family"]) if row["family"] == "gumbel" else f"{row['family']}, κ {row['kappa']:g}"


def _needed(row: Mapping[str, Any]) -> str:
    """Return the series of one row, shorter where its end says nothing more."""
    needed = [tokens_needed(count, row["most"]) for count in row["tokens"].values()]
    return needed[0] if len(set(needed)) == 1 else " · ".join(needed)


def accuracy(results: pathlib.Path) -> str:
    """Return the accuracy of the decoders by text and length of turns, with `AGENTS` agents."""
    content = _content(results, "decoders")
    cells = [result for result in content["cells"] if result["cell"]["agents"] == AGENTS]
    lengths = sorted({result["cell"]["turn_tokens"] for result in cells})
    rows = [[_cell(group[0]), *(_series(group, name) for name in _FIGURES)] for group in _by_cell(cells)]
    return "\n\n".join(
        [
            "TokenAcc of `posterior` in forced choice; then the share of tokens that it attributes unforced,"
            f" at level 0.01, and how much of it is right. {AGENTS} agents, turns of"
            f" {' · '.join(map(str, lengths))} tokens, {_link('decoders')}:",
            table(("text (nats per token)", "TokenAcc", "attributed", "right"), rows),
        ]
    )


def null(results: pathlib.Path) -> str:
    """Return how often keys without a part in a text are found in it."""
    content = _content(results, "null")["null"]
    levels = list(content["all"]["levels"])
    rows = [
        [name, f"{group['texts']:,}", *map(_rate, group["levels"].values())]
        for name, group in content.items()
    ]
    heads = ("text", "texts", *(f"at level {float(level):g}" for level in levels))
    return f"{table(heads, rows)}\n\nEach text is read under many drawn registries: {_link('null')}."


def paper(results: pathlib.Path) -> str:
    """Return Table 1 of the runs in `results`/paper/smollm2 and of the paper, as means over the settings."""
    paths = sorted(results.glob("paper/smollm2/*/table1.json"))
    runs = [_content(path.parent, path.stem) for path in paths]
    names = [_run_name(run["configuration"]) for run in runs]
    heads = ["method", "the paper", *(f"{n}, {part}" for n in names for part in ("all turns", "unforced"))]
    rows = []
    for method in table1.METHODS:
        quoted = TABLE1.get(method.quoted or "", {})
        cells = [_triple([quoted.get(figure, ()) for figure in SHOWN])]
        for run in runs:
            right, new, *others = ([*_means(run, method.name, TITLES[name])] for name in _PAIRED)
            of_new = f" ({_mean(new):.2f})" if new else ""
            cells.append(f"{_mean(right):.2f}{of_new} · {_triple(others)}" if right else "")
            unforced = [_free(run, method.name, name) for name in UNATTRIBUTED]
            cells.append(" · ".join(f"{_mean(values):.2f}" for values in unforced if values))
        if any(cells[1:]):
            rows.append([method.name, *cells])
    texts = "; ".join(f"{n}: {_texts(run)}" for n, run in zip(names, runs, strict=True))
    links = ", ".join(_link(path.relative_to(results).with_suffix("").as_posix()) for path in paths)
    return f"{table(heads, rows)}\n\nTexts: {texts}. All figures: {links}."


def _texts(run: Mapping[str, Any]) -> str:
    """Return what the texts of a run are like."""
    marks = [mark for mark in run["texts"] if mark in ("fourier", "gumbel")]
    of = [cell for mark in marks for cell in run["texts"][mark].values()]
    nats, repeated, turn = (_mean([cell[name] for cell in of]) for name in ("entropy", "repeated", "turn"))
    records, settings = run["configuration"]["records"], len(run["texts"][marks[0]])
    return (
        f"{settings} settings of {records} records, {nats:.1f} nats a token, turns of {turn:.0f} tokens,"
        f" {repeated:.0%} of the tokens repeat earlier ones"
    )


def _run_name(configuration: Mapping[str, Any]) -> str:
    penalty = float(configuration["repetition_penalty"])
    name = f"T = {configuration['temperature']:g}"
    return name + (f", penalty {penalty:g}" if penalty != 1 else "")


def _free(run: Mapping[str, Any], method: str, figure: str) -> list[float]:
    rows = (row for row in run["free"] if (row["method"], row["figure"]) == (method, TITLES[figure]))
    return [cell[0] for row in rows for cell in row.values() if isinstance(cell, list)]


def _means(run: Mapping[str, Any], method: str, figure: str) -> list[float]:
    rows = (row for row in run["table"] if (row["method"], row["figure"]) == (method, figure))
    return [cell[0] for row in rows for cell in row.values() if isinstance(cell, list)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _triple(series: Sequence[Sequence[float]]) -> str:
    """Return the mean of each series, or nothing if all are empty."""
    if not any(map(len, series)):
        return ""
    return " · ".join(f"{_mean(values):.2f}" if len(values) else "-" for values in series)


_FIGURES = ("posterior/token_accuracy", "posterior/coverage", "posterior/there")


def _content(results: pathlib.Path, name: str) -> Any:
    return json.loads((results / f"{name}.json").read_text(encoding="utf-8"))


def _by_cell(cells: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Return the cells that differ in the length of turns only, together and by it."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for result in sorted(cells, key=lambda result: result["cell"]["turn_tokens"]):
        cell = result["cell"]
        key = tuple(cell[field] for field in ("model", "family", "temperature", "agents"))
        groups.setdefault(key, []).append(result)
    return [groups[key] for key in sorted(groups, key=lambda k: (k[0] != "shipped", k[1], -k[2], k[3]))]


def _cell(result: Mapping[str, Any]) -> str:
    cell = result["cell"]
    nats = f"{result['entropy_nats']:.2f}"
    return f"{cell['model']} model, {cell['family']}, T = {cell['temperature']:g} ({nats})"


def _series(cells: Sequence[Mapping[str, Any]], name: str) -> str:
    figures = [result["figures"].get(name) for result in cells]
    return " · ".join("-" if figure is None else f"{figure[0]:.2f}" for figure in figures)


def _rate(level: Mapping[str, float]) -> str:
    return f"{level['found']:.2g} ({level['low']:.2g} to {level['high']:.2g})"


def summary(results: pathlib.Path) -> str:
    """Return the few figures that answer most questions, each with a link to its result."""
    speeds, rates = ("embed", "generate", "score", "audit", "bulk"), ("null", "decoders")
    contents = {name: _content(results, name) for name in (*speeds, *rates, "on_gpu")}
    rows: list[list[str]] = []

    def row(name: str, label: str, value: str) -> None:
        rows.append([f"[{label}](benchmarks/results/{name}.md)", value])

    def result(name: str, suite: str, contestant: str) -> Any:
        suites = [entry for entry in contents[name]["suites"] if re.search(suite, entry["suite"])]
        return next(entry for entry in suites[0]["results"] if entry["what"] == contestant)

    step = result("generate", "threads: 1", "step with our mark")["over"]["step without"]
    row("generate", "a step of `model.generate` with the mark, B = 32, over one without", _times(step))

    ours, embedding = "avx512, 1 thread", "float32 .*random ids"
    peers = ("transformers KGW", "Waterfall", "MarkLLM KGW")
    ratios_of_peers = (result("embed", embedding, peer)["over"][ours]["median"] for peer in peers)
    over_ours = ", ".join(f"{ratio:.0f}" for ratio in ratios_of_peers)
    row(
        "embed",
        f"marking 64 rows of 128,256 logits, over adding another such array; {', '.join(peers)} over that",
        f"{_times(result('embed', embedding, ours)['over']['float32 add [B, V]'])}; {over_ours} x",
    )
    over = {line["what"]: line["over"] for line in contents["on_gpu"]["lines"]}
    dtypes, batch = ("float32", "bfloat16"), "[256, 128256], fourier, n = 2, cuda: embed_"
    device = contents["on_gpu"]["where"]["device"]
    row(
        "on_gpu",
        f"marking 256 such rows on an {device}, over adding another such array: {', '.join(dtypes)}",
        ", ".join(f"{number(over[f'embed_ {dtype} {batch}'])} x" for dtype in dtypes),
    )
    rate = 1e3 / result("score", "n = 2", "avx512, 2 threads")["value"]["median"]
    row("score", "scores of tokens under keys, n = 2, two cores", f"{rate:.0f} million a second")

    ratios: dict[str, list[float]] = {}
    for record in contents["audit"]["six_agents"]:
        ratios.setdefault(record["what"], []).append(float(record["over_encode_batch"]))
    whats = ("audit, posterior", "audit, cusum", UNREAD)
    spread = [(min(ratios[caption]), max(ratios[caption])) for caption in whats]
    row(
        "audit",
        "a whole audit for six agents, over tokenizing the text (three texts, tokenized before): `posterior`,"
        " `cusum`; `posterior` on new text",
        ", ".join(f"{low:.2f} to {high:.2f} x" for low, high in spread),
    )
    many = {record["what"]: record for record in contents["bulk"]["results"]}
    bulk_ratios = [_times(many[f"audit, {name}"]["over_encode_batch"]) for name in ("posterior", "cusum")]
    two = _times(many["audit, cusum, two workers"]["times_one_worker"])
    row(
        "bulk",
        f"{contents['bulk']['documents']:,} documents of 1,000 tokens to tables over tokenizing:"
        " `posterior`, `cusum`; two workers over one",
        f"{', '.join(bulk_ratios)}; {two}",
    )
    group = contents["null"]["null"]["all"]
    caption = f"{group['texts']:,} texts without a mark of the registry: share with a finding at level 0.01"
    row("null", caption, _rate(group["levels"]["0.01"]))

    cell = {"model": "shipped", "agents": 6, "turn_tokens": 200}
    cells_of = [record for record in contents["decoders"]["cells"] if cell.items() <= record["cell"].items()]
    for family in dict.fromkeys(record["cell"]["family"] for record in cells_of):
        of = [record for record in cells_of if record["cell"]["family"] == family]
        entropies = ", ".join(f"{record['entropy_nats']:.1f}" for record in of)
        right = ", ".join(f"{record['figures']['posterior/token_accuracy'][0]:.3f}" for record in of)
        caption = f"tokens with the right agent, forced choice, turns of 200 tokens of six agents, `{family}`"
        row("decoders", f"{caption}, shipped model, at {entropies} nats a token", right)
    processors = dict.fromkeys(contents[name]["environment"]["processor"] for name in speeds)
    return "\n\n".join([table(("what", "measured"), rows), f"Speeds: {'; '.join(processors)}."])


def auditor(results: pathlib.Path) -> str:
    """Return the error rates that an auditor asks for, with their regimes and intervals."""
    null_levels = _content(results, "null")["null"]["all"]
    regimes = _content(results, "promises")["regimes"]
    rates = ", ".join(_rate(null_levels["levels"][level]) for level in ("0.01", "0.001"))
    caption = "unmarked or foreign text: an agent is found at level 0.01, 0.001"
    rows = [[caption, f"{rates} of {null_levels['texts']:,} texts"]]
    named = {}
    for family in ("gumbel", "fourier"):
        figures = {name: of[family]["0.01"] for name, of in regimes.items()}
        total = sum(figure["segments"] for figure in figures.values())
        worst = max(figures, key=lambda name: float(figures[name]["false"][0]))
        share, low, high = figures[worst]["false"]
        without = sum(round(figure["false"][0] * figure["segments"]) for figure in figures.values())
        named[f"`{family}`"] = f"{figures['turns of 200']['named'][0]:.2f}"
        rows.append(
            [
                f"`{family}`: attributed segments without a token of the named agent",
                f"{without} of {total:,}; most in {worst!r}: {share:.2g} ({low:.2g} to {high:.2g})",
            ]
        )
    caption = f"turns of 200 tokens: share of the agents' text that is named, {', '.join(named)}"
    rows.append([caption, ", ".join(named.values())])
    attacks = [row for row in _content(results, "security")["rows"] if row["seen"] == FORGER_TOKENS]
    tries = sum(row["tries"] for row in attacks)
    forged = [sum(row["successes"][name] for row in attacks) for name in ("without", "with")]
    rows.append(
        [
            f"forged from {FORGER_TOKENS:,} published tokens: attributed, without and with an index",
            f"{forged[0]:.0f} and {forged[1]:.0f} of {tries}",
        ]
    )
    links = ", ".join(f"[{name}](benchmarks/results/{name}.md)" for name in ("null", "promises", "security"))
    return f"{table(('event', 'measured'), rows)}\n\nMeasured: {links}."


def _times(ratio: Mapping[str, float]) -> str:
    return f"{ratio['median']:.2f} x"


TABLES: Mapping[str, Mapping[str, Callable[[pathlib.Path], str]]] = {
    "docs/reference/numbers.md": {
        f.__name__: f for f in (summary, power, accuracy, null, promises, framing.framing, bulk, paper)
    },
    "docs/concepts/guarantees.md": {"auditor": auditor},
}
"""File -> its tables, by the name in their markers."""


def replaced(file: str, text: str, name: str, tables: str) -> str:
    """Return the text of `file` with `tables` between the markers of `name`."""
    start, end = f"<!-- {name} table -->", f"<!-- /{name} table -->"
    if text.count(start) != 1 or text.count(end) != 1 or text.index(start) > text.index(end):
        raise ValueError(f"{file}: expected {start} and {end}, once each and in this order")
    (head, _), after = text.split(start), text.split(end)[1]
    linked = tables.replace("](benchmarks/", f"]({'../' * file.count('/')}benchmarks/")
    return f"{head}{start}\n\n{linked}\n\n{end}{after}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if it would")
    arguments = parser.parse_args(argv)
    differ = []
    for file, tables in TABLES.items():
        path = ROOT / file
        new = old = path.read_text(encoding="utf-8")
        for name, render in tables.items():
            new = replaced(file, new, name, render(RESULTS))
        if new != old:
            differ.append(file)
            if not arguments.check:
                path.write_text(new, encoding="utf-8")
    if arguments.check and differ:
        print(f"{', '.join(differ)}: not the results: python -m benchmarks.tables", file=sys.stderr)
    return int(arguments.check and bool(differ))


if __name__ == "__main__":
    raise SystemExit(main())
