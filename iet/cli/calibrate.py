"""`iet calibrate`: how much text a finding needs, what an audit may find, false findings."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import pathlib
import sys
from typing import Any, get_args

from iet.audit.simulation import MOST_CANDIDATES, MOST_CHUNK_TOKENS, MarkName, Method
from iet.cli.options import Commands, add_registry, load_registry
from iet.cli.progress import progress
from iet.cli.texts import decoded, read_bytes
from iet.marks.families import FAMILIES
from iet.report.lines import harmless


def add(commands: Commands) -> None:
    """Add `iet calibrate`."""
    calibrate = commands.add_parser(
        "calibrate",
        help="how much text a finding needs, what to expect of an audit, and how often unmarked text of yours"
        " is read as marked",
    )
    kind = calibrate.add_mutually_exclusive_group(required=True)
    kind.add_argument(
        "--power",
        action="store_true",
        help="print how many tokens one agent must have written to be found, against entropy, κ and keys",
    )
    kind.add_argument(
        "--null",
        metavar="CORPUS",
        type=pathlib.Path,
        help="audit unmarked text (a file, a folder, or JSON lines with a text each) under drawn keys",
    )
    kind.add_argument(
        "--plan",
        action="store_true",
        help="print the accuracy and coverage to expect of agents' turns, by measured curves, and which"
        " family to take; needs --agents, --turn-tokens, and --entropy or --text",
    )
    _add_plan(calibrate)
    calibrate.add_argument(
        "--mark",
        choices=get_args(MarkName),
        help="mark of --power and --plan: an engine's, or one for models behind an API (default: native)",
    )
    calibrate.add_argument(
        "--candidates", type=int, metavar="M", help="drafts that --mark select chooses from (default: 8)"
    )
    calibrate.add_argument("--chunk-tokens", type=int, metavar="L", help="tokens of a draft (default: 16)")
    calibrate.add_argument("--level", type=float, help="level of --power (default: 0.01)")
    calibrate.add_argument(
        "--registries", type=int, help="drawn registries for each text of --null, 1 to 100000 (default: 20)"
    )
    calibrate.add_argument("--profile", help="id of the profile, if the registry has several")
    calibrate.add_argument("--tokenizer", help="tokenizer.json instead of the registry's path")
    calibrate.add_argument("--seed", type=int, default=0, help="seed of all random draws (default: 0)")
    add_registry(calibrate)
    calibrate.add_argument("--json", action="store_true", help="print as JSON")
    calibrate.set_defaults(run=_calibrate, check=_check)


def _add_plan(calibrate: argparse.ArgumentParser) -> None:
    add = calibrate.add_argument_group("of --plan").add_argument
    add(
        "--entropy",
        type=float,
        metavar="NATS",
        help="entropy of the text in nats per token, after temperature and top-p",
    )
    add(
        "--text",
        type=pathlib.Path,
        metavar="FILE",
        help="instead of --entropy: text that --model wrote",
    )
    add(
        "--model",
        metavar="PATH_OR_ID",
        help="causal language model of --text: folder, Hub id, or iet:demo",
    )
    add("--temperature", type=float, help="sampling temperature of --text (default: 1)")
    add("--agents", type=int, help="number of agents with keys")
    add(
        "--turn-tokens",
        type=int,
        nargs="+",
        metavar="TOKENS",
        help="length of every turn, or the shortest and the longest, uniformly distributed",
    )
    add("--family", choices=[*FAMILIES, "all"], help="family of the mark (default: all)")


_MOST_TOKENS = 1_000_000
_OF_SELECT = (("candidates", 2, MOST_CANDIDATES), ("chunk_tokens", 1, MOST_CHUNK_TOKENS))
_OF_PLAN = ("entropy", "text", "model", "temperature", "agents", "turn_tokens", "family")


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    of_null = [arguments.registries, arguments.profile, arguments.tokenizer, arguments.registry]
    plan_options = [name for name in _OF_PLAN if getattr(arguments, name) is not None]
    if arguments.plan:
        _check_plan(parser, arguments)
        if arguments.level is not None:
            parser.error("--level goes with --power; --plan knows what is attributed at 0.01")
    elif plan_options:
        parser.error(f"--{plan_options[0].replace('_', '-')} goes with --plan")
    _check_mark(parser, arguments)
    if not arguments.null and any(option is not None for option in of_null):
        parser.error("--registries, --profile, --tokenizer and --registry go with --null")
    if arguments.null is not None and arguments.level is not None:
        parser.error("--level goes with --power; --null counts at 0.01, 0.001 and 0.0001")


def _check_mark(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if arguments.null is not None and arguments.mark is not None:
        parser.error("--mark goes with --power and --plan; the null model knows no mark")
    if arguments.mark is not None:
        families = Method(arguments.mark).families
        if arguments.family not in (None, "all", *families):
            parser.error(f"--mark {arguments.mark} goes with --family {' or '.join(families)}")
    for name, low, high in _OF_SELECT:
        flag, value = f"--{name.replace('_', '-')}", getattr(arguments, name)
        if value is None:
            continue
        if arguments.mark != "select":
            parser.error(f"{flag} goes with --mark select")
        if not low <= value <= high:
            parser.error(f"{flag}: got {value}, expected an int from {low} to {high}")


def _marked(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `power` and `plan` that say how text is marked."""
    names = ("mark", *(name for name, _, _ in _OF_SELECT))
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}


def _check_plan(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if (arguments.entropy is None) == (arguments.text is None):
        parser.error("--plan takes one of --entropy and --text")
    if (arguments.text is None) != (arguments.model is None):
        parser.error("--text and --model go together")
    if arguments.temperature is not None and arguments.text is None:
        parser.error("--temperature goes with --text")
    if arguments.agents is None or arguments.turn_tokens is None:
        parser.error("--plan needs --agents and --turn-tokens")
    lengths = arguments.turn_tokens
    if len(lengths) > 2 or lengths[0] > lengths[-1] or not 1 <= lengths[0] <= lengths[-1] <= _MOST_TOKENS:
        parser.error(
            f"--turn-tokens: got {' '.join(map(str, lengths))}, expected a number, or the fewest and the"
            f" most, from 1 to {_MOST_TOKENS:,}"
        )


def _plan(arguments: argparse.Namespace) -> int:
    from iet.audit import calibration as calibrate

    lengths = arguments.turn_tokens
    rows = calibrate.plan(
        _entropy(arguments),
        arguments.agents,
        range(lengths[0], lengths[-1] + 1),
        families=None if arguments.family in (None, "all") else [arguments.family],
        **_marked(arguments),
    )
    take = calibrate.advice(rows)
    content = {"families": [dataclasses.asdict(row) for row in rows], "advice": take}
    print(json.dumps(content, indent=1) if arguments.json else calibrate.plan_table(rows))
    return 0


def _entropy(arguments: argparse.Namespace) -> Any:
    """Return the entropy that was given, or that of the sample."""
    from iet.audit import power_curves

    if arguments.entropy is not None:
        return arguments.entropy
    from iet.audit.language_model import LanguageModel
    from iet.marks.tokenizer import Tokenizer

    text = decoded(read_bytes(arguments.text), None, arguments.text)
    model = LanguageModel(arguments.model)
    ids = Tokenizer(arguments.model).encode(text).token_ids
    temperature = 1.0 if arguments.temperature is None else arguments.temperature
    return power_curves.sample_entropy(power_curves.entropies(model, ids, temperature))


def _calibrate(arguments: argparse.Namespace) -> int:
    from iet.audit import calibration as calibrate

    if arguments.plan:
        return _plan(arguments)
    if arguments.power:
        level = 0.01 if arguments.level is None else arguments.level
        began = itertools.count()
        is_native = arguments.mark in (None, "native")
        series = 1 + is_native * len(calibrate.KAPPAS)
        with progress("calibrating", len(calibrate.ENTROPIES) * series) as move:
            rows = calibrate.power(
                level=level,
                seed=arguments.seed,
                **_marked(arguments),
                progress=lambda line: move(line, next(began)),
            )
        content: Any = [dataclasses.asdict(row) for row in rows]
        text = calibrate.power_table(rows)
    else:
        unread = calibrate.corpus_files(arguments.null)[1]
        if unread:
            kinds = ", ".join(f"{end or 'no end'} {count}" for end, count in sorted(unread.items()))
            message = f"iet: files not read: {kinds}; expected {', '.join(calibrate.CORPUS_ENDS)}"
            print(harmless(message), file=sys.stderr)
        for _ in calibrate.read_corpus(arguments.null):
            pass  # refuse an unreadable text before the audits, which take hours
        with progress("auditing") as move:
            null = calibrate.null(
                load_registry(arguments),
                calibrate.read_corpus(arguments.null),
                profile=arguments.profile,
                tokenizer=arguments.tokenizer,
                registries=20 if arguments.registries is None else arguments.registries,
                seed=arguments.seed,
                progress=lambda line: move(line, 0),
            )
        content, text = dataclasses.asdict(null), calibrate.null_table(null)
    print(json.dumps(content, indent=1) if arguments.json else text)
    return 0
