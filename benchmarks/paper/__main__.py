"""Run the paper's experiments.

    python -m benchmarks.paper table1 --data PATH --records 48 --out DIR
    python -m benchmarks.paper all --quick --data PATH --out DIR
    python -m benchmarks.paper table2 --data PATH --out DIR --judge-url URL --judge-model NAME

On MAMA: table1, order, kappa, window, spurious, power, pii, oracle, transforms, and `all` of these. On
Who&When: restore and table2. On Arithmetic and GSM8K: quality. Generated texts are kept in DIR/logs: a killed
run continues, and experiments share texts. `--quick` takes few records and short turns, so its intervals are
wide. Tables are written as Markdown, CSV and JSON with the configuration, plots as SVG.
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

from benchmarks import recording
from benchmarks.paper import marks, results, transforms
from benchmarks.paper.asking import OpenAIEndpoint, Sampling
from benchmarks.paper.baselines.llm import ENDPOINTS
from benchmarks.paper.conversations import generate
from benchmarks.paper.conversations.records import ROWS, read_records
from benchmarks.paper.experiments import alterations, order, power, sweeps, table1
from benchmarks.paper.experiments.study import MARKED, TUNING, Options, Study
from benchmarks.paper.failure import judging, restore, table2
from benchmarks.paper.failure.trajectories import SUBSETS
from benchmarks.paper.quality import experiment as quality
from benchmarks.paper.reading.similarity import embedder
from iet.decoding.topology import TOPOLOGIES
from iet.demo.conversation import JOINER
from iet.demo.conversation import MODEL as SHIPPED
from iet.errors import InputError

MAMA: Mapping[str, Callable[..., object]] = {
    "table1": table1.run,
    "order": order.order,
    "kappa": sweeps.kappa,
    "window": sweeps.window,
    "spurious": sweeps.spurious,
    "power": power.power,
    "pii": alterations.pii,
    "oracle": alterations.oracle,
    "transforms": alterations.transformations,
}
"""Experiments on MAMA: name -> function (study, **arguments of `ACCEPTS`)."""

ACCEPTS = {
    "settings": ("table1", "order", "pii", "oracle", "power"),
    "marks": ("table1", "order", "pii", "oracle", "transforms"),
}
"""Option -> the experiments on MAMA that accept it."""

PAIRS = ("en_fr", "fr_en", "en_zh", "zh_en")
"""Translations for back-translation by models."""

APERTIUM = {"en_es": "eng-spa", "es_en": "spa-eng"}
"""Translations by Apertium -> its modes."""

QUICK: Mapping[str, Any] = {"records": 4, "turn_tokens": (48, 144), "tuning": 2}
"""Defaults with `--quick`; lengths only for a model without a chat template."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    return recording.exit_code(functools.partial(_run, options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper", description=(__doc__ or "").split("\n")[0]
    )
    add = parser.add_argument
    add("experiment", choices=[*MAMA, "restore", "table2", "quality", "all"])
    add("--data", type=pathlib.Path, required=True, help="folder of the data, or the csv of MAMA")
    add("--out", type=pathlib.Path, required=True, help="folder of tables, plots and logs")
    add("--model", help="path, id, or smollm2 (default: the shipped model; for quality none)")
    add("--device", default="cpu", help="(default: cpu)")
    text = "for each setting (default: 48), logs of Who&When (all), problems of a task (100)"
    add("--records", type=int, help=text)
    add("--seed", type=int, default=0, help="of all draws (default: 0)")
    add("--temperature", type=float, default=1.0, help="(default: 1.0)")
    add("--top-p", type=float, default=1.0, help="(default: 1.0)")
    add("--repetition-penalty", type=float, default=1.0, help="on MAMA (default: 1.0, none)")
    add("--joiner", default=JOINER, help="between turns (default: one space)")
    add("--rounds", type=int, default=3, help="after the Genesis turn (default: 3)")
    add("--turn-tokens", type=int, nargs=2, metavar=("FEWEST", "MOST"))
    add("--prompt-tokens", type=int, help="prompts are cut to so many")
    add("--batch", type=int, default=128, help="turns sampled together (default: 128)")
    add("--quick", action="store_true", help="few records, short turns: all in about an hour on two cores")
    text = "such as chain_4, of table1, order, pii, oracle (default: the paper's nine), power (chain_4)"
    add("--settings", nargs="+", type=_setting, metavar="TOPOLOGY_AGENTS", help=text)
    text = f"marks of the texts (default: all for table1, else {' '.join(MARKED)})"
    add("--marks", nargs="+", choices=[mark for mark in marks.MARKS if mark != "none"], help=text)
    add("--tuning", type=int, help=f"records on which options are tuned (default: {TUNING})")
    add("--extract", action="store_true", help="accept a part of the data")
    add("--overwrite", action="store_true", help="also results of another configuration")
    add("--subset", nargs="+", choices=SUBSETS, default=[SUBSETS[0]], help="of Who&When")
    text = "on Who&When: write turns without showing the original ones to the model"
    add("--continues", action="store_true", help=text)
    add = parser.add_argument_group("the judge of table2").add_argument
    add("--judge-model", metavar="NAME", help="model of an OpenAI-compatible server; key: OPENAI_API_KEY")
    add("--judge-url", metavar="URL", help="address of the server (default: OpenAI)")
    add("--judge-workers", type=int, default=4, help="questions asked at once (default: 4)")
    add("--judge-tokens", type=int, default=1024, help="longest answer (default: 1024)")
    add("--judge-temperature", type=_temperature, default=0.6, metavar="T", help="or none (default: 0.6)")
    add("--judge-top-p", type=float, default=0.95, help="(default: 0.95)")
    add("--seeds", type=int, help="of the judge (default: 3), of quality (40; 3 of --model)")
    add("--protocols", nargs="+", choices=judging.PROTOCOLS, default=list(judging.PROTOCOLS))
    add = parser.add_argument_group("inputs of some rows, which stay blank without them").add_argument
    for name, endpoint in ENDPOINTS.items():
        text = f"ask a model (default: {endpoint.model}); key: {endpoint.key_variable}"
        add(f"--{name}", nargs="?", const="", metavar="MODEL", help=text)
        add(f"--{name}-url", metavar="URL", help="address of an OpenAI-compatible server")
    add("--llm-temperature", type=_temperature, default=0.0, metavar="T", help="or none (default: 0)")
    for pair in PAIRS:
        add(f"--{pair.replace('_', '-')}", metavar="PATH_OR_ID", help="translation model of transformers")
    add("--apertium", action="store_true", help="translate to Spanish and back by Apertium")
    add("--embedder", metavar="PATH_OR_ID", help="model of sentence-transformers for SemSim, or tf-idf")
    add("--presidio", action="store_true", help="redact also what presidio finds")
    return parser


def _setting(value: str) -> tuple[str, int]:
    topology, _, agents = value.rpartition("_")
    if topology not in TOPOLOGIES or not agents.isdecimal():
        names = ", ".join(TOPOLOGIES)
        raise argparse.ArgumentTypeError(
            f"got {value!r}, expected one of {names} and a number, such as chain_4"
        )
    return topology, int(agents)


def _temperature(text: str) -> float | None:
    return None if text == "none" else float(text)


def _run(options: argparse.Namespace) -> None:
    for name, experiments in ACCEPTS.items():
        accepted = (*experiments, "all", *(("restore", "table2") if name == "marks" else ()))
        if getattr(options, name) is not None and options.experiment not in accepted:
            raise InputError(f"{name}: {options.experiment} does not accept it; {', '.join(accepted)} do")
    for name in ("tuning", "seeds", "judge_workers", "judge_tokens", "batch"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InputError(f"{name}: got {value}, expected at least 1")
    if options.seed < 0:
        raise InputError(f"seed: got {options.seed}, expected at least 0")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out: {options.out} cannot be created ({error.strerror})") from None
    if options.experiment == "quality":
        _timed(options, "quality", functools.partial(_quality, options))
    elif options.experiment in ("restore", "table2"):
        _timed(options, options.experiment, functools.partial(_who_and_when, options))
    else:
        _mama(options)


def _timed(options: argparse.Namespace, name: str, run: Callable[[], object]) -> None:
    started = time.monotonic()
    run()
    print(f"\n{name}: {time.monotonic() - started:.0f} s, {options.out / name}.md", flush=True)


def _mama(options: argparse.Namespace) -> None:
    names = list(MAMA) if options.experiment == "all" else [options.experiment]
    quick = QUICK if options.quick else {}
    count = quick.get("records", 48) if options.records is None else options.records
    arguments, inputs = _arguments(options, names)
    records = read_records(options.data, rows=None if options.extract else ROWS)
    loaded = generate.loaded_for(options.model or SHIPPED, options.device)
    lengths = options.turn_tokens
    if not loaded.chat:
        lengths = lengths or quick.get("turn_tokens")  # a chat model ends its turns
    fields = {f.name: getattr(options, f.name) for f in dataclasses.fields(Options)}
    fields |= {"records": count, "turn_tokens": None if lengths is None else tuple(lengths)}
    tuning = quick.get("tuning", TUNING) if options.tuning is None else options.tuning
    study = Study(loaded, records, options.out, Options(**fields), tuning)
    if "table1" in names and count == 1:
        raise InputError("records: got 1, expected at least 2: HMM learns agents from other records")
    for name in names:
        study.inputs[name] = {"device": options.device, "quick": options.quick, **inputs.get(name, {})}
        if not options.overwrite:
            results.check_overwrite(options.out / f"{name}.json", study.configuration(name))
    if "endpoints" in arguments.get("table1", {}):
        tasks = {record.index: record.task for record in study.records}
        arguments["table1"]["endpoints"] = {
            k: {**v, "tasks": tasks} for k, v in arguments["table1"]["endpoints"].items()
        }
    for name in results.with_progress(names, "experiment"):
        _timed(options, name, functools.partial(MAMA[name], study, **arguments.get(name, {})))


def _arguments(
    options: argparse.Namespace, names: Sequence[str]
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the arguments of each experiment, and the entries of its configuration about them.

    Endpoints without a key and models that cannot be loaded raise an error here, before texts are generated.
    """
    arguments: dict[str, dict[str, Any]] = {name: {} for name in names}
    inputs: dict[str, dict[str, Any]] = {name: {} for name in names}
    for option, experiments in ACCEPTS.items():
        value = getattr(options, option)
        for name in names:
            if value is not None and name in experiments:
                arguments[name][option] = inputs[name][option] = list(dict.fromkeys(value))
    if "table1" in names:
        endpoints: dict[str, dict[str, Any]] = {}
        for key, default in ENDPOINTS.items():
            model, url = getattr(options, key), getattr(options, f"{key}_url")
            if model is None:
                continue
            endpoint = dataclasses.replace(
                default, model=model or default.model, base_url=url or default.base_url
            )
            endpoint.client()
            sampling = Sampling(temperature=options.llm_temperature)
            endpoints[key] = {
                "endpoint": endpoint,
                "sampling": sampling,
                "cache": options.out / f"{key}.jsonl",
            }
            described = {"model": endpoint.model, "address": endpoint.address, **dataclasses.asdict(sampling)}
            inputs["table1"].setdefault("endpoints", {})[key] = described
        if endpoints:
            arguments["table1"]["endpoints"] = endpoints
    if "pii" in names and options.presidio:
        arguments["pii"]["find"] = transforms.presidio()
        inputs["pii"]["presidio"] = True
    if "transforms" in names:
        models = {pair: model for pair in PAIRS if (model := getattr(options, pair))}
        translators: dict[str, transforms.Translate] = {
            pair: transforms.Translator(model) for pair, model in models.items()
        }
        if options.apertium:
            translators |= {pair: transforms.Apertium(mode) for pair, mode in APERTIUM.items()}
            models |= {pair: f"apertium {mode}" for pair, mode in APERTIUM.items()}
        arguments["transforms"]["translators"] = translators
        if options.embedder:
            arguments["transforms"]["embed"] = embedder(options.embedder)
        inputs["transforms"] |= {"translators": models, "embedder": options.embedder}
    return arguments, inputs


def _who_and_when(options: argparse.Namespace) -> None:
    if options.repetition_penalty != 1:
        raise InputError(f"repetition_penalty: {options.experiment} does not accept it")
    chosen = tuple(dict.fromkeys(options.marks or (["gumbel"] if options.quick else restore.MARKS)))
    if not set(chosen) <= set(restore.MARKS):
        raise InputError(f"marks: got {list(chosen)}, expected some of {list(restore.MARKS)}")
    endpoint = OpenAIEndpoint(options.judge_model or "", options.judge_url)
    if options.experiment == "table2":
        if not options.judge_model:
            raise InputError("judge-model: missing, expected a model of an OpenAI-compatible server")
        endpoint.client()  # refuse a missing key before logs are rewritten
    loaded = generate.loaded_for(options.model or SHIPPED, options.device)
    shared = ("seed", "temperature", "top_p", "prompt_tokens", "batch", "continues")
    restoring = restore.Options(
        subsets=tuple(dict.fromkeys(options.subset)),
        logs=QUICK["records"] if options.quick and options.records is None else options.records,
        **{name: getattr(options, name) for name in shared},
    )
    flags = {"complete": not options.extract, "overwrite": options.overwrite}
    if options.experiment == "restore":
        restore.run(loaded, options.data, options.out, restoring, marks=chosen, **flags)
        return
    judge = judging.Judge(endpoint, options.judge_workers)
    sampling = Sampling(options.judge_temperature, options.judge_top_p, options.judge_tokens, 0)
    seeds = (1 if options.quick else 3) if options.seeds is None else options.seeds
    selected = table2.Options(restoring, chosen, tuple(dict.fromkeys(options.protocols)), seeds, sampling)
    table2.run(loaded, options.data, options.out, selected, judge, **flags)


def _quality(options: argparse.Namespace) -> None:
    values = {"seed": options.seed, "temperature": options.temperature, "top_p": options.top_p}
    values |= {"batch": options.batch, "problems": options.records, "prompt_tokens": options.prompt_tokens}
    values["seeds"] = options.seeds
    values["turn_tokens"] = None if options.turn_tokens is None else tuple(options.turn_tokens)
    quick: dict[str, Any] = {} if options.model is None else {"seeds": 3}
    if options.quick:
        quick = {"problems": 20, "seeds": 2 if options.model is None else 1}
    set_values = {name: value for name, value in values.items() if value is not None}
    if options.model is None:
        import torch

        torch.set_num_threads(1)  # the matrices are too small for more threads
    selected = quality.Options(**{**quick, **set_values})
    quality.run(
        selected, options.data, options.out, options.model, options.device, overwrite=options.overwrite
    )


if __name__ == "__main__":
    sys.exit(main())
