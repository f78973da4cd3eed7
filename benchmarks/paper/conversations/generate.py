"""Generate the logs of a setting.

    python -m benchmarks.paper.conversations.generate --data PATH --out DIR --topology chain --agents 4 \\
        --mark fourier --records 48 [--model PATH_OR_ID] [--temperature 1.0 --top-p 1.0] ...

One file per setting; its name tells which (`Setting.name`). Records are written in groups: a run that was
killed goes on with the group it was at. With the model that ships with the package turns have a fixed
length, because it writes until it is stopped; other models stop themselves.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import recording
from benchmarks.paper import marks, results
from benchmarks.paper.conversations.author import Author, ModelAuthor
from benchmarks.paper.conversations.logs import Log, Setting, Writer, summary
from benchmarks.paper.conversations.protocol import PROTOCOLS, check_setting, converse
from benchmarks.paper.conversations.records import ROWS, Record, chosen, claim, digest_of, read_records
from benchmarks.writing.models import Loaded, load
from iet.decoding.topology import TOPOLOGIES
from iet.demo.conversation import JOINER, MODEL
from iet.errors import InputError

SHORT = {"turn_tokens": (80, 240), "prompt_tokens": 256}
LONG = {"turn_tokens": (1, 512), "prompt_tokens": 3072}
"""Fewest and most tokens of a turn, and tokens of a prompt: of the shipped model, and of others.

A model without a chat template does not end its turns, so their lengths are drawn: were they all alike, a
reader that cuts a text into equal parts would be told where turns end.
"""

_FIELDS = (
    *("topology", "agents", "mark", "strength", "seed", "temperature", "top_p", "protocol", "joiner"),
    *("rounds", "turn_tokens", "prompt_tokens", "repetition_penalty"),
)
_USUAL: Mapping[str, Any] = {
    **{"topology": "chain", "agents": 4, "protocol": "round-major", "temperature": 1.0, "top_p": 1.0},
    **{"joiner": JOINER, "seed": 0},
}
_CALIBRATION_RECORDS, _CALIBRATION_ROWS = 6, 512


def setting_of(
    loaded: Loaded,
    *,
    mark: str = "fourier",
    strength: float | None = None,
    turn_tokens: tuple[int, int] | None = None,
    prompt_tokens: int | None = None,
    **fields: Any,
) -> Setting:
    """Return a setting for a model, with what is not given filled in.

    Without a `strength` κ is 0.8; a δ stays None and must be found (`with_delta`, `logs_of`). `fields` are
    those of `Setting`; else a chain of four agents, round by round, at temperature 1.
    """
    lengths: dict[str, Any] = dict(SHORT if loaded.name == "iet:demo" else LONG)
    if turn_tokens is not None:
        lengths["turn_tokens"] = (int(turn_tokens[0]), int(turn_tokens[1]))
    if prompt_tokens is not None:
        lengths["prompt_tokens"] = prompt_tokens
    made = marks.made_by(loaded, mark, strength)
    setting = Setting(**{**_USUAL, **made, **lengths, "drawn_lengths": not loaded.chat, **fields})
    check_setting(setting)
    return setting


def with_delta(setting: Setting, loaded: Loaded, records: Sequence[Record], work: pathlib.Path) -> Setting:
    """Return the setting with the δ whose KL per token equals that of κ = 0.8, if it needs one.

    The distributions are those of unmarked turns (Genesis and one round, chain, 4 agents) of the first six
    records, at the setting's temperature and top-p, with its lengths. δ is rounded to three decimals and kept
    in a file of `work`, named after those turns and records: a run that goes on elsewhere has the same.
    """
    if marks.MARKS[setting.mark].green is None or setting.strength is not None:
        return setting
    unmarked = dataclasses.replace(
        setting, topology="chain", agents=4, protocol="round-major", rounds=1, mark="none", seed=0
    )
    unmarked = dataclasses.replace(unmarked, joiner=JOINER, early_stop=True, profile="")
    some = records[:_CALIBRATION_RECORDS]
    path = work / f"delta-{unmarked.digest[:16]}-{digest_of(some)[:16]}.json"

    def found() -> dict[str, Any]:
        rows = final_logits(loaded, unmarked, some)
        delta = round(marks.equal_delta(rows), 3)
        kl = marks.mean_kl(rows, marks.KAPPA)
        return {"delta": delta, "kappa": marks.KAPPA, "kl_nats_per_token": kl, "rows": len(rows)}

    delta = float(results.kept(path, found, "remove it, and δ is found again")["delta"])
    return dataclasses.replace(
        setting, strength=delta, profile=marks.profile_digest(setting.mark, delta, loaded.reader)
    )


def final_logits(loaded: Loaded, setting: Setting, records: Sequence[Record]) -> np.ndarray[Any, Any]:
    """Return up to 512 of the distributions that a setting's tokens are drawn from, as logits [N, V].

    They are taken at every eighth token of each turn: of each step as many turns, drawn by the setting's
    seed, as fill the number evenly.
    """
    steps = -(-setting.turn_tokens[1] // 8) * (1 + setting.rounds)
    per_step = max(1, _CALIBRATION_ROWS // steps)
    kept: list[np.ndarray[Any, Any]] = []
    rng = np.random.default_rng(setting.seed)

    def keep(logits: Any, going: Any) -> None:
        rows = rng.permutation(np.flatnonzero(going.cpu().numpy()))[:per_step]
        kept.append(logits[rows].float().cpu().numpy().copy())

    author = ModelAuthor(loaded, setting, on_logits=keep)
    converse(author, setting, records, loaded.reader)
    return np.concatenate(kept)[:_CALIBRATION_ROWS]


def group_of(setting: Setting, batch: int) -> int:
    """Return how many records fill a batch with what they say at once; in a walk each says one turn."""
    return max(1, batch // (setting.agents if setting.protocol == "round-major" else 1))


def logs_of(
    setting: Setting,
    records: Sequence[Record],
    author: Author,
    loaded: Loaded,
    out: pathlib.Path,
    *,
    group: int,
) -> list[Log]:
    """Return the logs of some records, one each, in their order.

    Those that are not in the setting's file (`out / setting.name`) yet are generated; other records in the
    file stay there. `group` records are held and written together (`group_of`); a group that was cut short is
    made again whole, and what was missing is written.
    """
    from tqdm import tqdm

    with Writer(out / setting.name, setting) as writer:
        groups = [records[low : low + group] for low in range(0, len(records), group)]
        todo = [some for some in groups if any(r.index not in writer.records for r in some)]
        turns = sum(map(len, todo)) * setting.agents * (1 + setting.rounds)
        with tqdm(total=turns, desc=setting.name, unit="turn", disable=not turns) as bar:
            for some in todo:
                before = bar.n
                found = converse(author, setting, some, loaded.reader, bar.update)
                writer.append(log for log in found if log.record not in writer.records)
                whole = len(some) * setting.agents * (1 + setting.rounds)
                bar.update(before + whole - bar.n)  # what an early stop left out
        there = {log.record: log for log in writer.logs}
    return [there[record.index] for record in records]


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--data", type=pathlib.Path, required=True, help="the csv of MAMA, or the folder of the data")
    add("--out", type=pathlib.Path, required=True, help="folder of tables, plots and logs")
    add("--model", default=MODEL, help="path or id (default: the shipped model)")
    add("--device", default="cpu", help="(default: cpu)")
    add("--records", "--logs", type=int, help="of each setting (default: 48), or logs (all)")
    add("--seed", type=int, default=0, help="of everything that is drawn (default: 0)")
    add("--temperature", type=float, default=1.0, help="(default: 1.0)")
    add("--top-p", type=float, default=1.0, help="(default: 1.0)")
    add("--repetition-penalty", type=float, default=1.0, help="on ids said before (default: 1.0, none)")
    add("--protocol", default="round-major", choices=sorted(PROTOCOLS), help="(default: round-major)")
    add("--joiner", default=JOINER, help="between turns (default: one space)")
    add("--rounds", type=int, default=3, help="after the Genesis turn (default: 3)")
    add("--turn-tokens", type=int, nargs=2, metavar=("FEWEST", "MOST"))
    add("--prompt-tokens", type=int, help="prompts are cut to so many")
    add("--batch", type=int, default=128, help="turns sampled together (default: 128)")
    add("--any-rows", action="store_true", help="accept an extract of the csv")


def loaded_for(options: argparse.Namespace) -> Loaded:
    """Load the model of a command, and say so if it only continues text."""
    import torch

    loaded = load(options.model, options.device)
    if loaded.name == "iet:demo" and options.device == "cpu":
        torch.set_num_threads(1)  # the matrices are small: more threads would only wait for each other
    if not loaded.chat:
        print(f"{loaded.name} has no chat template: prompts are plain text, which it continues", flush=True)
    return loaded


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add_options(parser)
    parser.add_argument("--topology", default="chain", help=", ".join(TOPOLOGIES))
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--mark", default="fourier", help=", ".join(marks.MARKS))
    parser.add_argument("--strength", type=float, help="κ or δ (default: κ = 0.8, and δ of equal KL)")
    parser.add_argument(
        "--group", type=int, help="records that are held together (default: what fills a batch)"
    )
    return recording.exit_code(functools.partial(_run, parser.parse_args(arguments)))


def _run(options: argparse.Namespace) -> None:
    if options.group is not None and options.group < 1:
        raise InputError(f"group: got {options.group}, expected at least 1")
    asked = {name: getattr(options, name) for name in _FIELDS}
    # First, before anything is read.
    check_setting(Setting(model="", **{name: value for name, value in asked.items() if value is not None}))
    records = read_records(options.data, rows=None if options.any_rows else ROWS)
    some = chosen(records, len(records) if options.records is None else options.records, options.seed)
    claim(options.out, records)
    loaded = loaded_for(options)
    setting = with_delta(setting_of(loaded, **asked), loaded, records[-_CALIBRATION_RECORDS:], options.out)
    print(f"{options.out / setting.name}\n{setting}")
    author = ModelAuthor(loaded, setting, batch=options.batch)
    started = time.monotonic()
    group = options.group or group_of(setting, options.batch)
    logs = logs_of(setting, some, author, loaded, options.out, group=group)
    print(f"{summary(logs)}; {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
