"""Run the paper's experiments.

    python -m benchmarks.paper table1 --data PATH --records 48 --out DIR
    python -m benchmarks.paper all --quick --data PATH --out DIR
    python -m benchmarks.paper restore --data PATH --out DIR
    python -m benchmarks.paper table2 --data PATH --out DIR --judge-url URL --judge-model NAME
    python -m benchmarks.paper ceilings --data PATH --out DIR
    python -m benchmarks.paper quality --data PATH --out DIR --model PATH_OR_ID

Experiments: table1, kappa, window, spurious, pii, oracle, transforms, or all of these, on MAMA; restore,
table2 and ceilings on Who&When; quality, which has options of its own (`quality --help`). Texts lie in
DIR/logs and are made once: a run that was killed goes on, and experiments share what they can. `--quick` has
few records and short turns, so wide intervals; all of it takes about an hour on two cores with the shipped
model. Tables are written as Markdown, CSV and JSON, plots as SVG; every JSON holds its configuration
and the digest of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import pathlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import recording
from benchmarks.paper import marks, results
from benchmarks.paper.asking.endpoints import BedrockEndpoint, Endpoint, OpenAIEndpoint, Parameters, Sampling
from benchmarks.paper.baselines.llm import ENDPOINTS
from benchmarks.paper.conversations import generate
from benchmarks.paper.conversations.records import ROWS, read_records
from benchmarks.paper.experiments import alterations, sweeps, table1
from benchmarks.paper.experiments.study import TUNING, Options, Study
from benchmarks.paper.failure import ceilings, protocols, restore, table2
from benchmarks.paper.failure.trajectories import SUBSETS
from benchmarks.paper.quality import experiment
from benchmarks.paper.reading.similarity import TF_IDF, Embed, embedder
from benchmarks.paper.transforms.pii import by_presidio
from benchmarks.paper.transforms.translators import APERTIUM, translator
from benchmarks.writing.models import Loaded, load
from iet.decoding.topology import TOPOLOGIES
from iet.errors import InputError


@dataclasses.dataclass(frozen=True)
class _Brought:
    endpoints: Mapping[str, Endpoint]  # key of `BASELINES` -> what is asked
    parameters: Parameters  # of those models
    needs: Mapping[str, Any]  # of `benchmarks.paper.transforms.NEEDS`, and what finds a person's data
    embed: Embed | None  # for SemSim
    some: Mapping[str, Any]  # settings and marks that are asked for, where it is not all

    def of(self, experiment: str) -> dict[str, Any]:
        """Return what of `some` an experiment takes."""
        return {name: value for name, value in self.some.items() if experiment in TAKEN[name]}


EXPERIMENTS: Mapping[str, Callable[[Study, _Brought], object]] = {
    "table1": lambda study, brought: table1.run(study, _asked(study, brought), **brought.of("table1")),
    "kappa": lambda study, _: sweeps.kappa(study),
    "window": lambda study, _: sweeps.window(study),
    "spurious": lambda study, _: sweeps.spurious(study),
    "pii": lambda study, brought: alterations.pii(study, find=brought.needs.get("find"), **brought.of("pii")),
    "oracle": lambda study, brought: alterations.oracle(study, **brought.of("oracle")),
    "transforms": lambda study, brought: alterations.transforms(
        study, brought.needs, brought.embed, **brought.of("transforms")
    ),
}
"""Name -> what runs it, on MAMA."""

FAILURE = ("restore", "table2", "ceilings")
"""Experiments on Who&When."""

OTHERS: Mapping[str, Callable[[Sequence[str]], int]] = {"quality": experiment.main}
"""Name -> command line of an experiment with options of its own; no part of `all`."""

TAKEN = {"settings": ("table1", "pii", "oracle"), "under": ("table1", "pii", "transforms")}
"""Option -> the experiments that take it."""

PAIRS = ("en_fr", "fr_en", "en_zh", "zh_en", "en_es", "es_en")
"""Translations that back-translation takes."""

QUICK: Mapping[str, Any] = {"records": 4, "turn_tokens": (48, 144), "tuning": 2, "judge_tokens": 32}
"""What `--quick` sets where nothing else is said; lengths only for a model without a chat template."""


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments and arguments[0] in OTHERS:
        return OTHERS[arguments[0]](arguments[1:])
    options = _parser().parse_args(arguments)
    return recording.exit_code(functools.partial(_run, options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper",
        description=(__doc__ or "").split("\n")[0],
        epilog=f"With options of their own: {', '.join(OTHERS)}.",
    )
    add = parser.add_argument
    add("experiment", choices=[*EXPERIMENTS, *FAILURE, "all"])
    generate.add_options(parser)
    add("--quick", action="store_true", help="few records, short turns: all in about an hour on two cores")
    what = "of table1, pii and oracle, as chain_4; more than one may be named (default: the paper's nine)"
    add("--settings", nargs="+", type=_setting, metavar="TOPOLOGY_AGENTS", help=what)
    what = (
        "of table1: read texts under these marks and fourier only (default: all); of pii and transforms: the"
        f" marks of the texts that are changed (default: {' '.join(alterations.MARKED)})"
    )
    add("--under", nargs="+", choices=[m for m in marks.MARKS if m != "none"], help=what)
    add("--tuning", type=int, help=f"records that options are chosen on (default: {TUNING})")
    add("--overwrite", action="store_true", help="of results of another configuration, too")
    usual = [SUBSETS[0]]
    add("--subset", nargs="+", choices=SUBSETS, default=usual, help=f"of Who&When (default: {SUBSETS[0]})")
    add = parser.add_argument_group(
        "the judge of table2: the model itself, where nothing else is said"
    ).add_argument
    add("--judge", metavar="PATH_OR_ID", help="model of transformers")
    what = "model of an OpenAI-compatible endpoint; its key is what OPENAI_API_KEY holds"
    add("--judge-model", metavar="NAME", help=what)
    add("--judge-url", metavar="URL", help="where it is served (default: OpenAI)")
    add("--judge-workers", type=int, default=4, help="questions at once there (default: 4)")
    what = (
        "longest question: tokens of a model of transformers (default: what it has positions for), characters"
        " through an endpoint (default: any; one that is refused has no answer)"
    )
    add("--judge-room", type=int, help=what)
    add("--judge-tokens", type=int, help="most of an answer (default: 1024)")
    what = "none leaves it to a model that takes no other than its own (default: 0.6)"
    add("--judge-temperature", type=_temperature, default=0.6, metavar="T", help=what)
    add("--judge-top-p", type=float, default=0.95, help="(default: 0.95)")
    add("--seeds", type=int, help="of the judge (default: 3)")
    add("--protocols", nargs="+", choices=protocols.PROTOCOLS, help="(default: all)")
    what = "of ours (default: all; none: ceilings of the logs as they were published)"
    add("--marks", nargs="*", choices=restore.MARKS, help=what)
    add = parser.add_argument_group("what some rows need, and stay blank without").add_argument
    for name, endpoint in ENDPOINTS.items():
        what = f"ask a model of an OpenAI-compatible endpoint (default: {endpoint.model}); its key is what"
        add(f"--{name}", nargs="?", const="", metavar="MODEL", help=f"{what} {endpoint.key_variable} holds")
        add(f"--{name}-url", metavar="URL", help="where it is served")
    add("--bedrock", metavar="MODEL", help="ask a model of Bedrock, which boto3 reaches")
    what = "of those models; none leaves it to a model that takes no other than its own (default: 0)"
    add("--llm-temperature", type=_temperature, default=0.0, metavar="T", help=what)
    for pair in PAIRS:
        add(f"--{pair.replace('_', '-')}", metavar="PATH_OR_ID", help=f"translation model, or {APERTIUM}")
    add("--embedder", metavar="PATH_OR_ID", help=f"model for SemSim, or {TF_IDF}")
    add("--human", type=pathlib.Path, help="a text that people wrote, to paste parts into")
    add("--presidio", action="store_true", help="find personal data by presidio, not by rules")
    return parser


def _setting(value: str) -> tuple[str, int]:
    topology, _, agents = value.rpartition("_")
    if topology not in TOPOLOGIES or not agents.isdecimal():
        raise argparse.ArgumentTypeError(
            f"got {value!r}, expected one of {', '.join(TOPOLOGIES)}, and the number of agents, as chain_4"
        )
    return topology, int(agents)


def _run(options: argparse.Namespace) -> None:
    if options.tuning is not None and options.tuning < 1:
        raise InputError(f"tuning: got {options.tuning}, expected at least 1")
    if options.seed < 0:
        raise InputError(f"seed: got {options.seed}, expected at least 0")
    for name, takers in TAKEN.items():
        if getattr(options, name) is not None and options.experiment not in (*takers, "all"):
            raise InputError(f"{name}: got one for {options.experiment}, expected {', '.join(takers)} or all")
    if options.experiment in FAILURE and options.repetition_penalty != 1:
        raise InputError(
            f"repetition_penalty: got {options.repetition_penalty:g} for {options.experiment}, expected 1:"
            " failure logs are rewritten without"
        )
    if options.experiment in FAILURE:
        _timed(options, options.experiment, _failure(options))
        return
    names = list(EXPERIMENTS) if options.experiment == "all" else [options.experiment]
    quick = QUICK if options.quick else {}
    count = quick.get("records", 48) if options.records is None else options.records
    if "table1" in names and count == 1:
        raise InputError("records: got 1, expected at least 2: table1's HMM knows agents by other records")
    records = read_records(options.data, rows=None if options.any_rows else ROWS)
    results.writable(options.out)
    brought = _brought(options, names)
    loaded = generate.loaded_for(options)
    lengths = options.turn_tokens
    if not loaded.chat:
        lengths = lengths or quick.get("turn_tokens")  # a chat model ends its turns, or they hold no answer
    asked = {f.name: getattr(options, f.name) for f in dataclasses.fields(Options)}
    asked |= {"records": count, "turn_tokens": None if lengths is None else tuple(lengths)}
    tuning = quick.get("tuning", TUNING) if options.tuning is None else options.tuning
    study = Study(loaded, records, options.out, Options(**asked), tuning)
    for name in names:
        study.given[name] = _given(options, brought, name)
        if not options.overwrite:
            results.keep(options.out / f"{name}.json", study.configuration(name))
    if "transforms" in names and "human" in brought.needs:
        alterations.check_human(study, brought.needs["human"], **brought.of("transforms"))
    for name in results.each(names, str, "experiment"):
        _timed(options, name, functools.partial(EXPERIMENTS[name], study, brought))


def _timed(options: argparse.Namespace, name: str, run: Callable[[], object]) -> None:
    started = time.monotonic()
    print(f"\n{name}\n", flush=True)
    run()
    print(f"\n{name}: {time.monotonic() - started:.0f} s, {options.out / name}.md", flush=True)


# ---------------------------------------------------------------- on Who&When


def _failure(options: argparse.Namespace) -> Callable[[], object]:
    """Return what runs an experiment on Who&When; an endpoint judges, or a model of transformers."""
    results.writable(options.out)
    endpoint = _judge_endpoint(options) if options.experiment == "table2" else None
    loaded = generate.loaded_for(options)
    names = ("seed", "temperature", "top_p", "prompt_tokens", "batch")
    restoring = restore.Options(
        subsets=tuple(dict.fromkeys(options.subset)),
        logs=QUICK["records"] if options.quick and options.records is None else options.records,
        **{name: getattr(options, name) for name in names},
    )
    run: Callable[..., object] = functools.partial(restore.run, loaded, options.data, options.out, restoring)
    if options.experiment == "table2":
        judging = _judging(loaded, options, restoring, endpoint)
        run = functools.partial(table2.run, loaded, options.data, options.out, *judging)
    if options.experiment == "ceilings":
        asked = table2.Options(restoring, _marks(options), _protocols(options))
        run = functools.partial(ceilings.run, loaded, options.data, options.out, asked)
    return functools.partial(run, whole=not options.any_rows, overwrite=options.overwrite)


def _judging(
    loaded: Loaded, options: argparse.Namespace, restoring: restore.Options, endpoint: OpenAIEndpoint | None
) -> tuple[table2.Options, protocols.Judge]:
    tokens = options.judge_tokens or 1024
    if endpoint is not None:
        judge = protocols.Judge(endpoint, room=options.judge_room, workers=options.judge_workers)
    else:
        judging = loaded if options.judge in (None, options.model) else load(options.judge, options.device)
        if options.quick and options.judge_tokens is None and not judging.chat:
            tokens = QUICK["judge_tokens"]
        judge = protocols.local(judging, tokens, options.judge_room)
    asked = table2.Options(
        restoring,
        _marks(options),
        _protocols(options),
        (1 if options.quick else 3) if options.seeds is None else options.seeds,
        Sampling(options.judge_temperature, options.judge_top_p, tokens),
    )
    return asked, judge


def _marks(options: argparse.Namespace) -> tuple[str, ...]:
    usual = ["gumbel"] if options.quick else restore.MARKS
    return tuple(dict.fromkeys(usual if options.marks is None else options.marks))


def _protocols(options: argparse.Namespace) -> tuple[str, ...]:
    return tuple(dict.fromkeys(options.protocols or protocols.PROTOCOLS))


def _judge_endpoint(options: argparse.Namespace) -> OpenAIEndpoint | None:
    """Return the endpoint that judges, which can be reached; None: a model of transformers does."""
    for name in ("seeds", "judge_workers", "judge_room", "judge_tokens"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InputError(f"{name.replace('_', '-')}: got {value}, expected at least 1")
    if not 0 < options.judge_top_p <= 1:
        raise InputError(f"judge-top-p: got {options.judge_top_p}, expected above 0 and at most 1")
    if options.judge and (options.judge_model or options.judge_url):
        raise InputError("judge: got a model and an endpoint, expected one of them")
    if options.judge_url and not options.judge_model:
        raise InputError("judge-model: got none, expected the model's name at judge-url")
    if not options.judge_model:
        return None
    endpoint = OpenAIEndpoint(options.judge_model, options.judge_url)
    _reach(endpoint, options.out / "judge.jsonl")
    return endpoint


def _reach(endpoint: Endpoint, answers: pathlib.Path) -> None:
    if not answers.is_file() or not answers.stat().st_size:  # what was answered needs no key
        endpoint.connect()


def _brought(options: argparse.Namespace, names: Sequence[str]) -> _Brought:
    if options.human is not None and not options.human.is_file():
        raise InputError(f"human: {options.human} is no file")
    needs: dict[str, Any] = {} if options.human is None else {"human": results.text_of(options.human)}
    endpoints: dict[str, Endpoint] = {}
    for name, usual in ENDPOINTS.items():
        model, url = getattr(options, name), getattr(options, f"{name}_url")
        if model is not None:
            more: dict[str, Any] = {"model": model or usual.model, "base_url": url or usual.base_url}
            endpoints[name] = dataclasses.replace(usual, **more)
    if options.bedrock:
        endpoints["bedrock"] = BedrockEndpoint(options.bedrock)
    if "table1" in names:
        for name, endpoint in endpoints.items():
            _reach(endpoint, options.out / f"{name}.jsonl")
    if options.presidio and {"pii", "transforms"} & {*names}:
        needs["find"] = by_presidio()
    embed = None
    if "transforms" in names:
        needs |= {pair: translator(pair, model) for pair in PAIRS if (model := getattr(options, pair))}
        embed = embedder(options.embedder) if options.embedder else None
    some = {
        name: list(dict.fromkeys(asked)) for name in TAKEN if (asked := getattr(options, name)) is not None
    }
    return _Brought(endpoints, Parameters(temperature=options.llm_temperature), needs, embed, some)


def _asked(study: Study, brought: _Brought) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "endpoint": endpoint,
            "tasks": {record.index: record.task for record in study.records},
            "parameters": brought.parameters,
            "cache": study.out / f"{name}.jsonl",
        }
        for name, endpoint in brought.endpoints.items()
    }


def _given(options: argparse.Namespace, brought: _Brought, experiment: str) -> dict[str, Any]:
    given: dict[str, Any] = {"device": options.device, "quick": options.quick}
    if experiment == "table1":
        parameters = dataclasses.asdict(brought.parameters)
        given["endpoints"] = {
            name: {"model": endpoint.model, "address": endpoint.address, **parameters}
            for name, endpoint in brought.endpoints.items()
        }
    given |= brought.of(experiment)
    if experiment in ("pii", "transforms"):
        given["presidio"] = "find" in brought.needs
    if experiment == "transforms":
        human = brought.needs.get("human")
        given["translators"] = {pair: getattr(options, pair) for pair in PAIRS}
        given["embedder"] = options.embedder
        given["human"] = (
            None if human is None else hashlib.blake2b(human.encode(), digest_size=32).hexdigest()
        )
    return given


def _temperature(text: str) -> float | None:
    if text == "none":
        return None
    found = float(text)  # argparse says what was wrong with it
    if not 0 <= found < float("inf"):
        raise argparse.ArgumentTypeError(f"got {text}, expected a number of at least 0, or none")
    return found


if __name__ == "__main__":
    sys.exit(main())
