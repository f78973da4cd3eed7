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

from benchmarks.paper.experiments import table1
from benchmarks.paper.experiments.table1 import NEW, TITLES
from benchmarks.paper.quoted import TABLE1
from benchmarks.recording import number, table
from benchmarks.speed.bench_audit import UNREAD

ROOT = pathlib.Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
FORGER_TOKENS = 10_000
"""Published tokens of the attacks in the table for auditors."""


def _link(name: str, words: str | None = None) -> str:
    return f"[{words or f'benchmarks/results/{name}.md'}](benchmarks/results/{name}.md)"


_SIZES = ("6", "10,000")
"""Registries of the table of `power`, in agents."""


def power(results: pathlib.Path) -> str:
    """Return how many tokens a finding takes in generated texts, alone and with the writer's model."""
    paths = _runs(results, "power")
    rows, heads, caption = [], list[str](), ""
    for path in paths:
        content = _content(path.parent, path.stem)
        by_mark: dict[str, list[Mapping[str, Any]]] = {}
        for row in content["table"]:
            by_mark.setdefault(row["mark"], []).append(row)
        for mark, of in by_mark.items():
            needed = [[str(row[f"tokens, {size} agents"]) for size in _SIZES] for row in of]
            text = f"{_run_name(content['configuration'])} ({of[0]['texts']})"
            cells = [text, mark, of[0]["nats a token"]]
            rows.append([*cells, *(" · ".join(counts) for counts in needed)])
            heads = ["texts (number)", "mark", "nats a token", "without a model", "with the writer's model"]
        caption = (
            "Tokens of an agent, its turns in chains of four joined, until it is found in"
            f" {content['share']:.0%} of texts at level {content['level']:g}, among"
            f" {' · '.join(_SIZES)} agents:"
        )
    links = ", ".join(_link(path.relative_to(results).with_suffix("").as_posix()) for path in paths)
    return f"{caption}\n\n{table(heads, rows)}\n\nMeasured: {links}."


def paper(results: pathlib.Path) -> str:
    """Return Table 1 of the runs in `results`/paper/smollm2 and of the paper, as means over the settings."""
    paths, runs = _runs(results, "table1"), dict[str, list[Mapping[str, Any]]]()
    for path in paths:
        run = _content(path.parent, path.stem)
        runs.setdefault(_run_name(run["configuration"]), []).append(run)
    heads = ["method", "the paper", *runs]
    rows = []
    for method in table1.METHODS:
        quoted = TABLE1.get(method.quoted or "", {})
        cells = [f"{_mean(quoted['token_accuracy']):.2f}" if quoted else ""]
        for alike in runs.values():
            measured = (run for run in alike if any(row["method"] == method.name for row in run["table"]))
            first = next(measured, None)
            cells.append("" if first is None else _of_method(first, method.name))
        if any(cells[1:]):
            rows.append([method.name, *cells])
    texts = "; ".join(f"{name}: {'; '.join(map(_texts, alike))}" for name, alike in runs.items())
    name, (first, *_) = next(iter(runs.items()))
    others = [f"the paper {_mean(TABLE1['IET']['iou']):.2f}, {_mean(TABLE1['IET']['edge_similarity']):.2f}"]
    for ours in ("IET fourier, cusum", "IET gumbel, posterior"):
        iou, edges = (_mean(_means(first, ours, figure)) for figure in ("IoU", "EdgeSim"))
        others.append(f"{ours} {iou:.2f}, {edges:.2f}")
    more = f"IoU, EdgeSim, {name}: {'; '.join(others)}."
    return f"{table(heads, rows)}\n\n{more}\n\nTexts: {TEXTS}: {texts}."


TEXTS = "settings × records, nats a token, tokens a turn, repeated share"
"""What `_texts` returns."""


def _of_method(run: Mapping[str, Any], method: str) -> str:
    """Return a method's TokenAcc, and that of new text."""
    right, new = (_mean(_means(run, method, TITLES[name])) for name in ("token_accuracy", NEW))
    return f"{right:.2f} ({new:.2f})"


def _texts(run: Mapping[str, Any]) -> str:
    """Return what the texts of a run are like, of the marks that only this run has."""
    others = [mark for mark in run["texts"] if mark not in ("fourier", "gumbel")]
    of = [cell for mark in others or run["texts"] for cell in run["texts"][mark].values()]
    nats, turn = (_mean([cell[name] for cell in of]) for name in ("entropy", "turn"))
    by_mark = run["texts"].items()
    shares = [
        _mean([c["repeated"] for c in cells.values()]) for m, cells in by_mark if not others or m in others
    ]
    several = len(others) > 1
    repeated = f"{min(shares):.0%} to {max(shares):.0%}" if several else f"{_mean(shares):.0%}"
    records, settings = run["configuration"]["records"], len(next(iter(run["texts"].values())))
    label = "other marks: " if several else "".join(f"{mark}: " for mark in others)
    return f"{label}{settings} × {records}, {nats:.1f}, {turn:.0f}, {repeated}"


def _runs(results: pathlib.Path, name: str) -> list[pathlib.Path]:
    """Return the results of an experiment with SmolLM2: high temperatures first, and those with a penalty."""

    def place(path: pathlib.Path) -> tuple[float, float, str]:
        configuration = _content(path.parent, path.stem)["configuration"]
        return -configuration["temperature"], -configuration["repetition_penalty"], str(path)

    return sorted(results.glob(f"paper/smollm2/*/{name}.json"), key=place)


def _run_name(configuration: Mapping[str, Any]) -> str:
    penalty = float(configuration["repetition_penalty"])
    name = f"T = {configuration['temperature']:g}"
    return name + (f", penalty {penalty:g}" if penalty != 1 else "")


def _means(run: Mapping[str, Any], method: str, figure: str) -> list[float]:
    rows = (row for row in run["table"] if (row["method"], row["figure"]) == (method, figure))
    return [cell[0] for row in rows for cell in row.values() if isinstance(cell, list)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _content(results: pathlib.Path, name: str) -> Any:
    return json.loads((results / f"{name}.json").read_text(encoding="utf-8"))


def _rate(level: Mapping[str, float]) -> str:
    return f"{level['found']:.2g} ({level['low']:.2g} to {level['high']:.2g})"


def speed(results: pathlib.Path) -> str:
    """Return what each operation costs over its floor, with a link to its result."""
    speeds = ("embed", "generate", "score", "audit", "bulk", "service", "server", "start")
    contents = {name: _content(results, name) for name in (*speeds, "on_gpu")}
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
        f"marking 256 such rows on an {device}, over such an add: {', '.join(dtypes)}",
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
        "an audit of six agents' text, over `encode_batch` (three texts): `posterior`, `cusum`; `posterior`,"
        " no word seen before",
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
    requests = {record["what"]: record for record in contents["service"]["results"]}
    one = requests["one worker, one client"]
    row(
        "service",
        "`iet serve`, one client and worker: processor time of a request of 1,000 tokens, over an `Auditor`",
        f"{one['processor_ms']['median'] / requests['bare Auditor']['processor_ms']['median']:.2f} x",
    )
    served = [result("server", "SmolLM2", f)["over"]["unmarked"] for f in ("fourier", "gumbel")]
    caption = "a token of SmolLM2 on vLLM's server on a CPU, 8 requests at once, over an unmarked one"
    of_rounds = (f"{_times(over)} ({over['low']:.2f} to {over['high']:.2f})" for over in served)
    row("server", f"{caption}: `fourier`, `gumbel` (quartiles)", ", ".join(of_rounds))
    started = result("start", "processor", "audit, posterior")["over"]["import numpy, tokenizers"]
    row(
        "start",
        "`iet audit` of a page in a fresh process, over importing numpy and tokenizers",
        _times(started),
    )
    processors = dict.fromkeys(contents[name]["environment"]["processor"] for name in speeds)
    return "\n\n".join([table(("what", "measured"), rows), f"Speeds on CPUs: {'; '.join(processors)}."])


def auditor(results: pathlib.Path) -> str:
    """Return the error rates that an auditor asks for, with their regimes and intervals."""
    null_levels = _content(results, "null")["null"]["all"]
    rates = ", ".join(_rate(null_levels["levels"][level]) for level in ("0.01", "0.001"))
    caption = "unmarked or foreign text: an agent is found at level 0.01, 0.001"
    rows = [[caption, f"{rates} of {null_levels['texts']:,} texts"], *_of_marked_text(results)]
    links = ", ".join(_link(name, name) for name in ("null", "promises", "security"))
    return f"{table(('event', 'measured'), rows)}\n\nMeasured: {links}."


def errors(results: pathlib.Path) -> str:
    """Return how often an agent is named that should not be: by kind of text."""
    rows = []
    groups = _content(results, "null")["null"]
    for name, group in ((name, groups[name]) for name in ("unmarked: corpora", "marked under other keys")):
        rates = ", ".join(_rate(level) for level in group["levels"].values())
        texts = f"{group['texts']:,} texts under {group['pairs'] // group['texts']} keys"
        rows.append([f"{name}: found at level 0.01, 0.001, 0.0001", f"{rates} of {texts}"])
    links = ", ".join(_link(name, name) for name in ("null", "promises", "security"))
    return f"{table(('event', 'measured'), [*rows, *_of_marked_text(results)])}\n\nMeasured: {links}."


def _of_marked_text(results: pathlib.Path) -> list[list[str]]:
    """Return how often segments are wrong, and how much is named, by family; and what forgeries reach."""
    regimes, false, named = _content(results, "promises")["regimes"], list[str](), list[str]()
    families = ("gumbel", "fourier")
    for family in families:
        figures = {name: of[family]["0.01"] for name, of in regimes.items()}
        total = sum(figure["segments"] for figure in figures.values())
        worst = max(figures, key=lambda name: float(figures[name]["false"][0]))
        share, low, high = figures[worst]["false"]
        without = sum(round(figure["false"][0] * figure["segments"]) for figure in figures.values())
        named.append(f"{figures['turns of 200']['named'][0]:.2f}")
        most = f"most in {worst!r}: {share:.2g} ({low:.2g} to {high:.2g})"
        false.append(f"{without} of {total:,}, {most}")
    of = ", ".join(f"`{family}`" for family in families)
    rows = [
        [f"attributed segments without a token of the named agent, {of}", "; ".join(false)],
        [f"turns of 200 tokens: share of the agents' text that is named, {of}", ", ".join(named)],
    ]
    attacks = [row for row in _content(results, "security")["rows"] if row["seen"] == FORGER_TOKENS]
    tries = sum(row["tries"] for row in attacks)
    forged = [sum(row["successes"][name] for row in attacks) for name in ("without", "with")]
    caption = f"forged from {FORGER_TOKENS:,} published tokens: attributed, without and with an index"
    return [*rows, [caption, f"{forged[0]:.0f} and {forged[1]:.0f} of {tries}"]]


def _times(ratio: Mapping[str, float]) -> str:
    return f"{ratio['median']:.2f} x"


TABLES: Mapping[str, Mapping[str, Callable[[pathlib.Path], str]]] = {
    "docs/reference/numbers.md": {f.__name__: f for f in (paper, power, errors, speed)},
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
