"""Run the paper's experiments.

    python -m benchmarks.paper table1 --data PATH --records 48 --out DIR
    python -m benchmarks.paper all --quick --data PATH --out DIR
    python -m benchmarks.paper restore --data PATH --out DIR
    python -m benchmarks.paper table2 --data PATH --out DIR --judge-url URL --judge-model NAME

Experiments: table1, kappa, window, spurious, pii, oracle, transforms, or all of these, on MAMA; restore and
table2 on Who&When. Texts lie in DIR/logs and are made once: a run that was killed goes on, and experiments
share what they can. `--quick` is minutes on two cores: few records and short turns, so wide intervals. Tables
are written as Markdown, CSV and JSON, plots as SVG and PNG; every JSON holds its configuration and the digest
of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import pathlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.paper import alterations, spurious, sweeps, table1
from benchmarks.paper.baselines.llm import ENDPOINTS
from benchmarks.paper.baselines.llm_endpoints import OpenAIEndpoint
from benchmarks.paper.engine import Loaded, load
from benchmarks.paper.failure import judges, protocols, restore, table2
from benchmarks.paper.failure.trajectories import SUBSETS
from benchmarks.paper.protocol import PROTOCOLS
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

FAILURE: Mapping[str, Callable[[Loaded, argparse.Namespace], Any]] = {
    "restore": lambda loaded, options: restore.run(
        loaded, options.data, options.out, _restoring(options), whole=not options.any_rows
    ),
    "table2": lambda loaded, options: table2.run(
        loaded,
        options.data,
        options.out,
        _judging(options),
        _judge(loaded, options),
        whole=not options.any_rows,
    ),
}
"""Name -> what runs it, on Who&When."""

QUICK: Mapping[str, Any] = {"records": 4, "turn_tokens": (96, 96), "tuning": 2, "judge_tokens": 32}
"""What `--quick` sets where nothing else is said."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("experiment", choices=[*EXPERIMENTS, *FAILURE, "all"])
    parser.add_argument(
        "--data", type=pathlib.Path, required=True, help="the csv of MAMA, or the folder of the data"
    )
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of tables, plots and logs")
    parser.add_argument("--model", default=MODEL, help="path or id (default: the shipped model)")
    parser.add_argument("--device", default="cpu", help="(default: cpu)")
    parser.add_argument("--records", "--logs", type=int, help="of each setting (default: 48), or logs (all)")
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
    parser.add_argument(
        "--subset",
        nargs="+",
        choices=SUBSETS,
        default=[SUBSETS[0]],
        help=f"of Who&When (default: {SUBSETS[0]})",
    )
    judged = parser.add_argument_group("the judge of table2: the model itself, where nothing else is said")
    judged.add_argument("--judge", metavar="PATH_OR_ID", help="model of transformers")
    judged.add_argument(
        "--judge-model",
        metavar="NAME",
        help="model of an OpenAI-compatible endpoint; its key is what OPENAI_API_KEY holds",
    )
    judged.add_argument("--judge-url", metavar="URL", help="where it is served (default: OpenAI)")
    judged.add_argument("--judge-workers", type=int, default=4, help="questions at once there (default: 4)")
    judged.add_argument(
        "--judge-room",
        type=int,
        help="longest question: tokens of a model of transformers (default: what it has positions for),"
        " characters through an endpoint (default: any; one that is refused has no answer)",
    )
    judged.add_argument("--judge-tokens", type=int, help="most of an answer (default: 1024)")
    judged.add_argument("--judge-temperature", type=float, default=0.6, help="(default: 0.6)")
    judged.add_argument("--judge-top-p", type=float, default=0.95, help="(default: 0.95)")
    judged.add_argument("--seeds", type=int, help="of the judge (default: 3)")
    judged.add_argument("--protocols", nargs="+", choices=protocols.PROTOCOLS, help="(default: all)")
    judged.add_argument("--marks", nargs="+", choices=restore.MARKS, help="of ours (default: all)")
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

    on_failures = options.experiment in FAILURE
    records = () if on_failures else read_records(options.data, rows=None if options.any_rows else ROWS)
    human = options.human
    if human is not None and not human.is_file():
        raise InputError(f"human: {human} is no file")
    loaded = load(options.model, options.device)
    if loaded.name == "iet:demo" and options.device == "cpu":
        torch.set_num_threads(1)  # the matrices are small: more threads would only wait for each other
    if on_failures:
        _timed(options, options.experiment, lambda: FAILURE[options.experiment](loaded, options))
        return 0
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
        _timed(options, name, functools.partial(EXPERIMENTS[name], study, options))
    return 0


def _timed(options: argparse.Namespace, name: str, run: Callable[[], Any]) -> None:
    started = time.monotonic()
    print(f"\n{name}\n", flush=True)
    run()
    print(f"\n{name}: {time.monotonic() - started:.0f} s, {options.out / name}.md", flush=True)


def _restoring(options: argparse.Namespace) -> restore.Options:
    return restore.Options(
        subsets=tuple(dict.fromkeys(options.subset)),
        logs=QUICK["records"] if options.quick and options.records is None else options.records,
        seed=options.seed,
        temperature=options.temperature,
        top_p=options.top_p,
        prompt_tokens=options.prompt_tokens,
        batch=options.batch,
    )


def _judging(options: argparse.Namespace) -> table2.Options:
    return table2.Options(
        _restoring(options),
        tuple(dict.fromkeys(options.marks or (["gumbel"] if options.quick else restore.MARKS))),
        tuple(dict.fromkeys(options.protocols or protocols.PROTOCOLS)),
        (1 if options.quick else 3) if options.seeds is None else options.seeds,
        protocols.Sampling(options.judge_temperature, options.judge_top_p, _judge_tokens(options)),
    )


def _judge(loaded: Loaded, options: argparse.Namespace) -> protocols.Judge:
    if options.judge and (options.judge_model or options.judge_url):
        raise InputError("judge: got a model and an endpoint, expected one of them")
    if options.judge_url and not options.judge_model:
        raise InputError("judge-model: got none, expected the model's name at judge-url")
    if options.judge_model:
        endpoint = OpenAIEndpoint(options.judge_model, options.judge_url)
        return protocols.Judge(endpoint, room=options.judge_room, workers=options.judge_workers)
    judge = loaded if options.judge in (None, options.model) else load(options.judge, options.device)
    return judges.local(judge, _judge_tokens(options), options.judge_room)


def _judge_tokens(options: argparse.Namespace) -> int:
    usual = QUICK["judge_tokens"] if options.quick else 1024
    return int(usual if options.judge_tokens is None else options.judge_tokens)


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
