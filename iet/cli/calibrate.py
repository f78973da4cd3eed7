"""`iet calibrate`: how much text a finding needs, and how often unmarked text is read as marked."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import pathlib
from typing import Any

from iet.cli.options import Commands, add_registry, load_registry
from iet.cli.progress import auditing, progress


def add(commands: Commands) -> None:
    """Add `iet calibrate`."""
    calibrate = commands.add_parser(
        "calibrate",
        help="how much text a finding needs, and how often unmarked text of yours is read as marked",
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
    calibrate.add_argument("--level", type=float, help="of --power (default: 0.01)")
    calibrate.add_argument("--registries", type=int, help="of --null, per text (default: 20)")
    calibrate.add_argument("--profile", help="id of the profile, where the registry has several")
    calibrate.add_argument("--tokenizer", help="where the registry's note of it does not lead there")
    calibrate.add_argument("--seed", type=int, default=0, help="of every draw (default: 0)")
    add_registry(calibrate)
    calibrate.add_argument("--json", action="store_true", help="print as JSON")
    calibrate.set_defaults(run=_calibrate, check=_check)


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    of_null = [arguments.registries, arguments.profile, arguments.tokenizer, arguments.registry]
    if arguments.power and any(option is not None for option in of_null):
        parser.error("--registries, --profile, --tokenizer and --registry go with --null")
    if arguments.null is not None and arguments.level is not None:
        parser.error("--level goes with --power; --null counts at 0.01, 0.001 and 0.0001")


def _calibrate(arguments: argparse.Namespace) -> int:
    from iet.audit import calibration as calibrate

    if arguments.power:
        level = 0.01 if arguments.level is None else arguments.level
        began = itertools.count()
        with progress("calibrating", len(calibrate.ENTROPIES) * (len(calibrate.KAPPAS) + 1)) as move:
            rows = calibrate.power(
                level=level, seed=arguments.seed, progress=lambda line: move(line, next(began))
            )
        found: Any = [dataclasses.asdict(row) for row in rows]
        text = calibrate.power_table(rows)
    else:
        with auditing() as move:
            null = calibrate.null(
                load_registry(arguments),
                calibrate.read_corpus(arguments.null),
                profile=arguments.profile,
                tokenizer=arguments.tokenizer,
                registries=20 if arguments.registries is None else arguments.registries,
                seed=arguments.seed,
                progress=lambda line: move(line, 0),
            )
        found, text = dataclasses.asdict(null), calibrate.null_table(null)
    print(json.dumps(found, indent=1) if arguments.json else text)
    return 0
