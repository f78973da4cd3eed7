"""Write the tables of the docs from the committed results, between their markers.

python -m benchmarks.tables            rewrite them
python -m benchmarks.tables --check    exit 1 where they differ from the results
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.accuracy import served
from benchmarks.accuracy.claims import checked
from benchmarks.accuracy.copying import copied
from benchmarks.accuracy.curve import evidence
from benchmarks.accuracy.decoders import CUSUM, PAPERS_CUSUM
from benchmarks.accuracy.promises import promises
from benchmarks.localisation.showing import localisation
from benchmarks.paper.experiments import table1
from benchmarks.paper.quoted import TABLE1
from benchmarks.paper.reading.scoring import FIGURES
from benchmarks.recording import number, quartiles, table
from benchmarks.security import framing, sessions
from benchmarks.speed.showing import UNREAD, bulk
from iet.audit.calibration import SHORT_TEXT, tokens_needed

ROOT = pathlib.Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
FEWEST_RECORDS = 48
"""A setting, for a run of Table 1 to be shown."""

READERS = ("cusum", "window", "posterior", "oracle")

# benchmark -> tables: title, pattern of the suites in it (its group names each), kinds of lines, lines out
SHOWN: dict[str, list[tuple[str, str, tuple[str, ...], str]]] = {
    "embed": [
        ("`embed_` float32 [64, 128256], new contexts", r"float32 .*random ids", ("ours", "peer"), ""),
        ("`embed_` float32 [64, 128256], n = 4", "families gumbel", ("ours",), r"baseline|[2-9]\d* threads"),
        ("`embed_`, half precision", r"(float16|bfloat16) ", ("ours",), "baseline|threads"),
        ("`embed_` float32 [1, 32000] through Python", r"one call", ("ours",), "array|registry|unmarked"),
    ],
    "score": [
        ("`score_tokens`, K = 16", r"score_tokens (n = \d(?:, \w+)?), T = \d+, K", ("ours",), ""),
        ("`score_tokens` beside peers, K = 1", r"beside peers.*random", ("peer",), ""),
        ("`score_spans`", r"score_spans", ("ours",), "baseline"),
    ],
    "decode": [("Decoders alone, one thread", r"decoders, (A = \d+)", ("ours",), r"T = 10{3}\b|T = 10{5}\b")],
    "audit": [],
    "generate": [("A step of `model.generate`, B = 32", r"(torch threads: \d+)", ("ours",), "alone")],
    "import": [("Importing", "", ("ours",), "cli")],
    "page": [("Opening the page of a report of 100,000 tokens", "", ("ours",), "")],
}
RATE = "million token·keys/s"


def speed(results: pathlib.Path) -> str:
    """Return the tables of all speeds that are there, each line with what measured it and where."""
    found = {name: _content(results, name) for name in SHOWN if (results / f"{name}.json").is_file()}
    parts = [
        "Medians with quartiles, over rounds in which all contestants run in turn; ratios are formed within"
        " rounds. *Peers* are in italics. Floors and peers run on one thread."
    ]
    for name, content in found.items():
        parts += (_audit_tables if name == "audit" else _tables)(name, content)
    parts += ["Measured by, on, and all of it in:"]
    lines = [
        f"* `{content['command']}`: {content['environment']['processor']}; {_link(name)}."
        for name, content in found.items()
    ]
    return "\n\n".join([*parts, "\n".join(lines)])


def _link(name: str) -> str:
    return f"[benchmarks/results/{name}.md](benchmarks/results/{name}.md)"


def _tables(name: str, content: Mapping[str, Any]) -> Iterator[str]:
    for title, pattern, kinds, left_out in SHOWN[name]:
        suites = [suite for suite in content["suites"] if re.search(pattern, suite["suite"])]
        if not suites:
            continue
        floors, rows = suites[0]["floors"], []
        unit = RATE if suites[0]["unit"] == "ns per token·key" else suites[0]["unit"]
        for suite in suites:
            found = re.search(pattern, suite["suite"])
            within = f"{found[1]}: " if found and found.groups() else ""
            for result in suite["results"]:
                if result["kind"] in kinds and not (left_out and re.search(left_out, result["what"])):
                    what = f"*{result['what']}*" if result["kind"] == "peer" else result["what"]
                    note = f" ({result['note']})" if result["note"] else ""
                    ratios = [number(result["over"][floor]["median"]) for floor in floors]
                    rows.append([f"{within}{what}{note}", _value(unit, result["value"]), *ratios])
            for what, share in suite["details"].items():
                if isinstance(share, dict) and set(share) == {"low", "median", "high"}:
                    rows.append([f"{within}{what}", _value("%", share), *("" for _ in floors)])
        yield table((title, unit, *(f"over {f}" for f in floors)), rows)


def _audit_tables(name: str, content: Mapping[str, Any]) -> Iterator[str]:
    """Yield what `bench_audit` records, which has parts of its own."""
    cells = []
    for r in content["six_agents"]:
        if r["what"].startswith("audit"):
            over = number(r["over_encode_batch"])
            cells.append([f"{r['text']}, T = {r['tokens']}: {r['what']}", number(r["milliseconds"]), over])
    for r in content["many_keys"]:
        audit = f"audit, {r['decoder']} (peak {r['peak_mb']:.0f} MB)"
        what = f"10,000 keys, T = {r['tokens']}, all cores: {audit}"
        cells.append([what, number(1e3 * r["seconds"]), ""])
    cells += [[f"whole process: {r['what']}", number(1e3 * r["seconds"]), ""] for r in content["processes"]]
    head = ("A whole audit, six agents, one thread", "ms", "over `encode_batch` with offsets, alone")
    yield table(head, cells)


def power(results: pathlib.Path) -> str:
    """Return how many tokens of one agent a finding takes: series over the sizes of registries."""
    content = _content(results, "power")
    rows = sorted(content["simulated"], key=lambda row: float(row["entropy"]))
    first = rows[0]
    sizes = " · ".join(f"{int(keys):,}" for keys in first["tokens"])
    parts = [
        f"Tokens of one agent after which it is found in {first['share']:.0%} of texts at level"
        f" {first['level']:g}, if the registry holds {sizes} agents (`iet calibrate --power`):",
        _pivot("nats per token", {(_scheme(row), f"{row['entropy']:g}"): _needed(row) for row in rows}),
        f"Share of texts of {SHORT_TEXT} tokens in which it is found, likewise:",
        _pivot("nats per token", {(_scheme(row), f"{row['entropy']:g}"): _in_short(row) for row in rows}),
    ]
    if content["real"]:
        cells = {
            (f"{row['model']} model, T = {row['temperature']:g}", _scheme(row)): f"{_needed(row)}"
            f" ({row['entropy']:.1f} nats)"
            for row in content["real"]
        }
        said = f"The same in texts of the models of the benchmarks, {_link('power')}:"
        parts += [said, _pivot("text", cells)]
    return "\n\n".join(parts)


def _pivot(corner: str, cells: Mapping[tuple[str, str], str]) -> str:
    """Return a table of cells by (first cell of their row, heading)."""
    names, heads = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
    rows = [[name, *(cells.get((name, head), "") for head in heads)] for name in names]
    return table((corner, *heads), rows)


def _scheme(row: Mapping[str, Any]) -> str:
    return str(row["family"]) if row["family"] == "gumbel" else f"{row['family']}, κ {row['kappa']:g}"


def _needed(row: Mapping[str, Any]) -> str:
    """Return the series of one row, shorter where its end says nothing more."""
    shown = [tokens_needed(count, row["most"]) for count in row["tokens"].values()]
    return shown[0] if len(set(shown)) == 1 else " · ".join(shown)


def _in_short(row: Mapping[str, Any]) -> str:
    shown = [f"{found:.0%}" for found in row["in_short"].values()]
    return shown[0] if len(set(shown)) == 1 else " · ".join(shown)


def accuracy(results: pathlib.Path) -> str:
    """Return who wrote what by every decoder, and rates on unmarked text."""
    decoders, null = (_content(results, name) for name in ("decoders", "null"))
    lengths = sorted({result["cell"]["turn_tokens"] for result in decoders["cells"]})
    parts = [
        f"TokenAcc in forced choice, for turns of {' · '.join(map(str, lengths))} tokens; the oracle is told"
        " where turns begin and end. Coverage and accuracy there: what `posterior` attributes at level 0.01,"
        f" and how much of it is right. Intervals, IoU, EdgeSim and calibration: {_link('decoders')}"
        f" (`{decoders['command']}`).",
        table(
            ("text (nats per token)", "agents", *READERS, "coverage", "accuracy there"),
            [
                [_cell(cells[0]), cells[0]["cell"]["agents"], *(_series(cells, name) for name in _FIGURES)]
                for cells in _by_cell(decoders["cells"])
            ],
        ),
    ]
    levels = list(null["null"]["all"]["levels"])
    parts += [
        _compared(decoders["cells"]),
        "![TokenAcc against the length of turns, and calibration](benchmarks/results/decoders.svg)",
        "How often keys that had no part in a text are found in it, by level, with 95 % intervals over"
        f" texts: {_link('null')} (`{null['command']}`).",
        table(
            ("text", "texts", "pairs of text and registry", *(f"at {float(v):g}" for v in levels)),
            [
                [name, f"{group['texts']:,}", f"{group['pairs']:,}", *map(_rate, group["levels"].values())]
                for name, group in null["null"].items()
            ],
        ),
        "![P-values, rates and power](benchmarks/results/null.svg)",
    ]
    return "\n\n".join(parts)


def _compared(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return how `posterior` stands to the others, and what keys that nobody used do to it."""

    def of(cell: Mapping[str, Any], name: str) -> float:
        return float(cell["figures"][name][0])

    def lead(reader: str) -> list[float]:
        name = "token_accuracy"
        return [of(cell, f"posterior/{name}") - of(cell, f"{reader}/{name}") for cell in cells]

    window, cusum, papers = lead("window"), lead(CUSUM), lead(PAPERS_CUSUM)
    changes: dict[bool, list[float]] = {True: [0.0], False: [0.0]}
    for cell in cells:
        own = of(cell, f"posterior of {cell['cell']['agents']} keys")
        found = "posterior/coverage" in cell["figures"] and of(cell, "posterior/coverage") >= 0.95
        changes[found] += [abs(of(cell, k) - own) for k in cell["figures"] if k.endswith(" keys")]
    return (
        f"Over the {len(cells)} cells and lengths `posterior` leads `window` by {min(window):.3f} to"
        f" {max(window):.3f}, and `cusum` by {_mean(cusum):.3f} on average, or by {_mean(papers):.3f} with"
        " the paper's number for the least length of a segment. Two to eight keys that nobody used change its"
        f" TokenAcc by at most {max(changes[True]):.3f} where coverage is 0.95 or more, and by up to"
        f" {max(changes[False]):.3f} elsewhere."
    )


def paper(results: pathlib.Path) -> str:
    """Return Table 1 of the runs in `results`/paper beside the paper's, as means over the settings."""
    runs = [(path, _content(path.parent, path.stem)) for path in sorted(results.glob("paper/*/table1.json"))]
    runs = [run for run in runs if run[1]["configuration"]["records"] >= FEWEST_RECORDS]
    if not runs:
        return f"(No run of {FEWEST_RECORDS} records a setting is in benchmarks/results/paper yet.)"
    runs.sort(key=lambda run: float(run[1]["logs"]["entropy"]))
    names = [_run_name(run["configuration"]) for _, run in runs]
    rows = []
    for method in table1.METHODS:
        quoted = TABLE1.get(method.quoted or "", {})
        cells = [_triple([quoted.get(figure, ()) for figure in table1.PAIRED])]
        cells += [
            _triple([_means(run, method.name, FIGURES[figure]) for figure in table1.PAIRED])
            for _, run in runs
        ]
        if any(cells[1:]):
            rows.append([method.name, *cells])
    columns = [f"{n} ({run['logs']['entropy']:.2f} nats)" for n, (_, run) in zip(names, runs, strict=True)]
    parts = [table(("TokenAcc · IoU · EdgeSim", "the paper", *columns), rows)]
    parts += [_against(name, run, path) for name, (path, run) in zip(names, runs, strict=True)]
    return "\n\n".join(parts)


def _run_name(configuration: Mapping[str, Any]) -> str:
    top_p = float(configuration["top_p"])
    return f"T = {configuration['temperature']:g}" + (f", top-p {top_p:g}" if top_p < 1 else "")


def _against(name: str, run: Mapping[str, Any], path: pathlib.Path) -> str:
    """Say how ours stands to each other method at no more KL per token, with every cell that is not a win."""
    own = {method.name for method in table1.METHODS if method.ours}
    said = []
    for ours in table1.EQUAL_KL[:2]:
        compared = [
            (theirs, figure, row)
            for theirs, figures in run["against"].get(ours, {}).items()
            if theirs not in own
            for figure, row in figures.items()
        ]
        won, tied, lost = (
            sum(row[key] for _, _, row in compared) for key in ("better in", "not told apart", "worse in")
        )
        rest = [
            f"{theirs} in {figure} ({row['not told apart']}, {row['worse in']})"
            for theirs, figure, row in compared
            if row["not told apart"] or row["worse in"]
        ]
        hmm = sum(row["better in"] for theirs, _, row in compared if theirs == "HMM / Viterbi")
        low = min((row["mean difference"][0] for _, _, row in compared), default=math.nan)
        said.append(
            f"`{ours}` is better in {won} of {won + tied + lost} cells (settings x figures x methods; {hmm}"
            f" of them against HMM, which is at chance), not told apart in {tied}, worse in {lost}; its"
            f" smallest mean lead is {low:+.3f}."
            + (f" Not told apart from, and worse than: {'; '.join(rest)}." if rest else "")
        )
    link = path.with_suffix(".md").relative_to(path.parents[4]).as_posix()
    return (
        f"{name}, {run['configuration']['records']} records a setting: {' '.join(said)} [All of it]({link})."
    )


def _means(run: Mapping[str, Any], method: str, figure: str) -> list[float]:
    rows = (row for row in run["table"] if (row["method"], row["figure"]) == (method, figure))
    return [cell[0] for row in rows for cell in row.values() if isinstance(cell, list)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _triple(series: Sequence[Sequence[float]]) -> str:
    """Return the mean of each series, or nothing where none has any."""
    if not any(map(len, series)):
        return ""
    return " · ".join(f"{_mean(values):.3f}" if len(values) else "-" for values in series)


_FIGURES = (*(f"{reader}/token_accuracy" for reader in READERS), "posterior/coverage", "posterior/there")


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


def _value(unit: str, value: Mapping[str, float]) -> str:
    if unit == RATE:  # high where the time is low
        value = {"low": 1e3 / value["high"], "median": 1e3 / value["median"], "high": 1e3 / value["low"]}
    if unit == "%":
        value = {key: 100 * part for key, part in value.items()}
    return f"{number(value['median'])}{' %' if unit == '%' else ''} ({quartiles(value)})"


def summary(results: pathlib.Path) -> str:
    """Return the few figures that answer most questions, each with the command that measured it."""
    speeds, rates = ("embed", "generate", "score", "audit", "bulk"), ("null", "decoders")
    contents = {name: _content(results, name) for name in (*speeds, *rates, "on_gpu")}
    rows: list[list[str]] = []

    def row(name: str, what: str, value: str) -> None:
        rows.append([f"[{what}](benchmarks/results/{name}.md)", value, f"`{contents[name]['command']}`"])

    def result(name: str, suite: str, what: str) -> Any:
        suites = [found for found in contents[name]["suites"] if re.search(suite, found["suite"])]
        return next(found for found in suites[0]["results"] if found["what"] == what)

    step = result("generate", "threads: 1", "step with our mark")["over"]["step without"]
    row("generate", "a step of `model.generate` with the mark, B = 32, over one without", _times(step))

    ours, embedding = "avx512, 1 thread", "float32 .*random ids"
    peers = ("transformers KGW", "Waterfall", "MarkLLM KGW")
    behind = [f"{result('embed', embedding, peer)['over'][ours]['median']:.0f}" for peer in peers]
    row(
        "embed",
        f"marking 64 rows of 128,256 logits, over adding another such array; {', '.join(peers)} over that",
        f"{_times(result('embed', embedding, ours)['over']['float32 add [B, V]'])}; {', '.join(behind)} x",
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
    for found in contents["audit"]["six_agents"]:
        ratios.setdefault(found["what"], []).append(float(found["over_encode_batch"]))
    whats = ("audit, posterior", "audit, cusum", UNREAD)
    spread = [(min(ratios[what]), max(ratios[what])) for what in whats]
    row(
        "audit",
        "a whole audit for six agents, over tokenizing the text (three texts, whose words were read before):"
        " `posterior`, `cusum`; `posterior` where none was",
        ", ".join(f"{low:.2f} to {high:.2f} x" for low, high in spread),
    )
    many = {found["what"]: found for found in contents["bulk"]["results"]}
    each = [_times(many[f"audit, {name}"]["over_encode_batch"]) for name in ("posterior", "cusum")]
    two = _times(many["audit, cusum, two workers"]["times_one_worker"])
    row(
        "bulk",
        f"{contents['bulk']['documents']:,} documents of 1,000 tokens to tables, over tokenizing them:"
        " `posterior`, `cusum`; two workers over one",
        f"{', '.join(each)}; {two}",
    )
    group = contents["null"]["null"]["all"]
    what = f"{group['texts']:,} texts that no key of a registry marked: somebody found at level 0.01"
    row("null", what, _rate(group["levels"]["0.01"]))

    cell = {"model": "shipped", "agents": 6, "turn_tokens": 200}
    there = [found for found in contents["decoders"]["cells"] if cell.items() <= found["cell"].items()]
    for family in dict.fromkeys(found["cell"]["family"] for found in there):
        of = [found for found in there if found["cell"]["family"] == family]
        entropies = ", ".join(f"{found['entropy_nats']:.1f}" for found in of)
        right = ", ".join(f"{found['figures']['posterior/token_accuracy'][0]:.3f}" for found in of)
        what = f"tokens given to their agent, six agents, turns of 200 tokens, `{family}`, at"
        row("decoders", f"{what} {entropies} nats a token", right)
    places = dict.fromkeys(contents[name]["environment"]["processor"] for name in speeds)
    return "\n\n".join([table(("what", "measured", "by"), rows), f"Speeds: {'; '.join(places)}."])


def _times(ratio: Mapping[str, float]) -> str:
    return f"{ratio['median']:.2f} x"


def engines(results: pathlib.Path) -> str:
    """Return what scores of engines' marks cost, beside the engines' own detectors."""
    content, rows = _content(results, "engines"), []
    for suite in sorted(content["suites"], key=lambda suite: str(suite["suite"])):
        ours, (peer,) = suite["floors"][0], (r for r in suite["results"] if r["kind"] == "peer")
        (own,) = (result for result in suite["results"] if result["what"] == ours)
        costs = [number(result["value"]["median"]) for result in (own, peer)]
        where = suite["suite"].removesuffix(", random ids")
        rows.append([where, ours, costs[0], peer["what"], costs[1], f"{peer['over'][ours]['median']:,.0f}"])
    heads = ("scheme", "`iet`", "ns per token and key", "the engine", "ns", "ratio")
    return f"{table(heads, rows)}\n\n`{content['command']}`: {_link('engines')}."


TABLES: Mapping[str, Mapping[str, Callable[[pathlib.Path], str]]] = {
    "docs/guides/bulk.md": {"bulk": bulk},
    "docs/internals/foreign_marks.md": {"engines": engines},
    "docs/internals/gumbel.md": {"served": lambda results: served.table(_content(results, "served"))},
    "docs/concepts/limits.md": {"framing": framing.framing, "sessions": sessions.sessions},
    "docs/reference/numbers.md": {
        f.__name__: f
        for f in (summary, power, evidence, accuracy, promises, checked, copied, localisation, paper, speed)
    },
}
"""File -> its tables, by the name in their markers."""


def replaced(file: str, text: str, name: str, tables: str) -> str:
    """Return the text of `file` with `tables` between the markers of `name`."""
    start, end = f"<!-- {name} table -->", f"<!-- /{name} table -->"
    if text.count(start) != 1 or text.count(end) != 1 or text.index(start) > text.index(end):
        raise ValueError(f"{file}: expected {start} and {end}, once each and in this order")
    (before, _), after = text.split(start), text.split(end)[1]
    linked = tables.replace("](benchmarks/", f"]({'../' * file.count('/')}benchmarks/")
    return f"{before}{start}\n\n{linked}\n\n{end}{after}"


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
