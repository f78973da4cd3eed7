"""Run the paper's experiments.

    python -m benchmarks.paper table1 --data PATH --records 48 --out DIR
    python -m benchmarks.paper all --quick --data PATH --out DIR

Experiments: table1, kappa, window, spurious, pii, oracle, transforms, or all of them; and quality, which has
options of its own (`quality --help`). Texts lie in DIR/logs
and are made once: a run that was killed goes on, and experiments share what they can. `--quick` is minutes on
two cores: few records and short turns, so wide intervals. Tables are written as Markdown, CSV and JSON, plots
as SVG and PNG; every JSON holds its configuration and the digest of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.paper import alterations, spurious, sweeps, table1
from benchmarks.paper.baselines.llm import ENDPOINTS
from benchmarks.paper.engine import load
from benchmarks.paper.protocol import PROTOCOLS
from benchmarks.paper.quality import quality
from benchmarks.paper.records import ROWS, read_records
from benchmarks.paper.similarity import Embedder
from benchmarks.paper.study import TUNING, Options, Study
from benchmarks.paper.transforms import Translator
from iet.demo.conversation import JOINER, MODEL
from iet.errors import IetError, InputError

EXPERIMENTS: Mapping[str, Callable[[Study, argparse.Namespace], Any]] = {
    "table1": lambda study, options: table1.run(study, _asked(study, options)),
    "kappa": lambda study, _: sweeps.kappa(study),
    "window": lambda study, _: sweeps.window(study),
    "spurious": lambda study, _: spurious.run(study),
    "pii": lambda study, _: alterations.pii(study),
    "oracle": lambda study, _: alterations.oracle(study),
    "transforms": lambda study, options: alterations.transforms(
        study, _needs(options), Embedder(options.embedder) if options.embedder else None
    ),
}
"""Name -> what runs it."""

OTHERS: Mapping[str, Callable[[Sequence[str]], int]] = {"quality": quality.main}
"""Name -> command line of an experiment without MAMA's records; no part of `all`."""

QUICK: Mapping[str, Any] = {"records": 4, "turn_tokens": (96, 96), "tuning": 2}
"""What `--quick` sets where nothing else is said."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments and arguments[0] in OTHERS:
        return OTHERS[arguments[0]](arguments[1:])
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper",
        description=(__doc__ or "").split("\n")[0],
        epilog=f"With options of their own: {', '.join(OTHERS)}.",
    )
    parser.add_argument("experiment", choices=[*EXPERIMENTS, "all"])
    parser.add_argument("--data", type=pathlib.Path, required=True, help="the csv of MAMA, or its folder")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of tables, plots and logs")
    parser.add_argument("--model", default=MODEL, help="path or id (default: the shipped model)")
    parser.add_argument("--device", default="cpu", help="(default: cpu)")
    parser.add_argument("--records", type=int, help="of each setting (default: 48)")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn (default: 0)")
    parser.add_argument("--temperature", type=float, default=1.0, help="(default: 1.0)")
    parser.add_argument("--top-p", type=float, default=1.0, help="(default: 1.0)")
    parser.add_argument(
        "--protocol", default="round-major", choices=sorted(PROTOCOLS), help="(default: round-major)"
    )
    parser.add_argument("--joiner", default=JOINER, help="between turns (default: one space)")
    parser.add_argument("--rounds", type=int, default=3, help="after the Genesis turn (default: 3)")
    parser.add_argument("--turn-tokens", type=int, nargs=2, metavar=("FEWEST", "MOST"))
    parser.add_argument("--prompt-tokens", type=int, help="prompts are cut to so many")
    parser.add_argument("--batch", type=int, default=128, help="turns sampled together (default: 128)")
    parser.add_argument("--quick", action="store_true", help="minutes on two cores")
    parser.add_argument("--any-rows", action="store_true", help="accept an extract of the csv")
    asked = parser.add_argument_group("what some rows need, and stay blank without")
    for name, usual in ENDPOINTS.items():
        asked.add_argument(
            f"--{name}",
            nargs="?",
            const="",
            metavar="MODEL",
            help=f"ask a model of an OpenAI-compatible endpoint (default: {usual.model}); its key is what"
            f" {usual.key_variable} holds",
        )
        asked.add_argument(f"--{name}-url", metavar="URL", help="where it is served")
    for pair in ("en-fr", "fr-en", "en-zh", "zh-en"):
        asked.add_argument(f"--{pair}", metavar="PATH_OR_ID", help="translation model")
    asked.add_argument("--embedder", metavar="PATH_OR_ID", help="model for SemSim")
    asked.add_argument("--human", type=pathlib.Path, help="a text that people wrote, to paste parts into")
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except IetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    import torch

    records = read_records(options.data, rows=None if options.any_rows else ROWS)
    human = options.human
    if human is not None and not human.is_file():
        raise InputError(f"human: {human} is no file")
    loaded = load(options.model, options.device)
    if loaded.name == "iet:demo" and options.device == "cpu":
        torch.set_num_threads(1)  # the matrices are small: more threads would only wait for each other
    quick = QUICK if options.quick else {}
    lengths = options.turn_tokens or quick.get("turn_tokens")
    study = Study(
        loaded,
        records,
        options.out,
        Options(
            records=quick.get("records", 48) if options.records is None else options.records,
            seed=options.seed,
            temperature=options.temperature,
            top_p=options.top_p,
            protocol=options.protocol,
            joiner=options.joiner,
            rounds=options.rounds,
            turn_tokens=None if lengths is None else (lengths[0], lengths[1]),
            prompt_tokens=options.prompt_tokens,
            batch=options.batch,
        ),
        quick.get("tuning", TUNING),
    )
    for name in EXPERIMENTS if options.experiment == "all" else [options.experiment]:
        started = time.monotonic()
        print(f"\n{name}\n", flush=True)
        EXPERIMENTS[name](study, options)
        print(f"\n{name}: {time.monotonic() - started:.0f} s, {options.out / name}.md", flush=True)
    return 0


def _asked(study: Study, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, usual in ENDPOINTS.items():
        model, url = getattr(options, name), getattr(options, f"{name}_url")
        if model is not None:
            found[name] = {
                "endpoint": dataclasses.replace(
                    usual, model=model or usual.model, base_url=url or usual.base_url
                ),
                "tasks": {record.index: record.task for record in study.records},
                "cache": study.out / f"{name}.jsonl",
            }
    return found


def _needs(options: argparse.Namespace) -> dict[str, Any]:
    needs: dict[str, Any] = {}
    for pair in ("en_fr", "fr_en", "en_zh", "zh_en"):
        model = getattr(options, pair)
        if model:
            needs[pair] = Translator(model)
    if options.human is not None:
        needs["human"] = options.human.read_text(encoding="utf-8")
    return needs


if __name__ == "__main__":
    sys.exit(main())
