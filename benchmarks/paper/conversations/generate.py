"""Make settings for a model, calibrate δ, and generate the logs of a setting or read them from disk."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.paper import marks, results
from benchmarks.paper.conversations.author import ModelAuthor
from benchmarks.paper.conversations.logs import Log, LogFile, Setting
from benchmarks.paper.conversations.protocol import check_setting, converse
from benchmarks.paper.conversations.records import Record, digest_of
from benchmarks.writing.models import Loaded, load
from iet.demo.conversation import JOINER

SHORT = {"turn_tokens": (80, 240), "prompt_tokens": 256}
LONG = {"turn_tokens": (1, 512), "prompt_tokens": 3072}
"""Fewest and most tokens of a turn, and tokens of a prompt: of the shipped model, and of others.

A model without a chat template does not end its turns, so their lengths are drawn. With equal lengths, a
method that cuts a text into equal parts would know the boundaries.
"""

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
    """Return a setting for a model; by default a chain of four agents at temperature 1.

    Without a `strength` κ is 0.8, and a δ stays None until `with_delta` sets it.
    """
    lengths: dict[str, Any] = dict(SHORT if loaded.name == "iet:demo" else LONG)
    if turn_tokens is not None:
        lengths["turn_tokens"] = (int(turn_tokens[0]), int(turn_tokens[1]))
    if prompt_tokens is not None:
        lengths["prompt_tokens"] = prompt_tokens
    made = marks.made_by(loaded, mark, strength)
    defaults: dict[str, Any] = {"topology": "chain", "agents": 4, "temperature": 1.0, "top_p": 1.0}
    defaults |= {"joiner": JOINER, "seed": 0, "drawn_lengths": not loaded.chat}
    setting = Setting(**{**defaults, **made, **lengths, **fields})
    check_setting(setting)
    return setting


def with_delta(setting: Setting, loaded: Loaded, records: Sequence[Record], work: pathlib.Path) -> Setting:
    """Return the setting with the δ whose KL divergence per token equals that of κ = 0.8, if it needs a δ.

    The distributions are those of unmarked turns (Genesis and one round, chain, 4 agents) of the first six
    records, with the setting's sampler and lengths. δ is rounded to three decimals and cached in `work`.
    """
    if marks.MARKS[setting.mark].green is None or setting.strength is not None:
        return setting
    unmarked = dataclasses.replace(
        setting, topology="chain", agents=4, rounds=1, mark="none", seed=0, joiner=JOINER, profile=""
    )
    calibration_records = records[:_CALIBRATION_RECORDS]
    path = work / f"delta-{unmarked.digest[:16]}-{digest_of(calibration_records)[:16]}.json"

    def compute() -> dict[str, Any]:
        rows = final_logits(loaded, unmarked, calibration_records)
        delta = round(marks.equal_delta(rows), 3)
        kl = marks.mean_kl(rows, marks.KAPPA)
        return {"delta": delta, "kappa": marks.KAPPA, "kl_nats_per_token": kl, "rows": len(rows)}

    delta = float(results.cached(path, compute)["delta"])
    return dataclasses.replace(
        setting, strength=delta, profile=marks.profile_digest(setting.mark, delta, loaded.reader)
    )


def final_logits(loaded: Loaded, setting: Setting, records: Sequence[Record]) -> np.ndarray[Any, Any]:
    """Return up to 512 final distributions of a setting, as logits [N, V], from every eighth token."""
    steps = -(-setting.turn_tokens[1] // 8) * (1 + setting.rounds)
    per_step = max(1, _CALIBRATION_ROWS // steps)
    rows: list[np.ndarray[Any, Any]] = []
    rng = np.random.default_rng(setting.seed)

    def keep(logits: Any, going: Any) -> None:
        drawn = rng.permutation(np.flatnonzero(going.cpu().numpy()))[:per_step]
        rows.append(logits[drawn].float().cpu().numpy().copy())

    author = ModelAuthor(loaded, setting, on_logits=keep)
    converse(author, setting, records)
    return np.concatenate(rows)[:_CALIBRATION_ROWS]


def logs_of(
    setting: Setting,
    records: Sequence[Record],
    author: ModelAuthor,
    out: pathlib.Path,
    *,
    group: int,
) -> list[Log]:
    """Return the logs of records, in their order; generate those that are not in `out / setting.name`.

    `group` records are generated and written together. A group that a kill interrupted is generated again
    as a whole, so that batches, and with them the texts, are the same.
    """
    from tqdm import tqdm

    file = LogFile(out / setting.name, setting)
    groups = [records[low : low + group] for low in range(0, len(records), group)]
    missing = [
        group_records for group_records in groups if any(r.index not in file.records for r in group_records)
    ]
    turns = sum(map(len, missing)) * setting.agents * (1 + setting.rounds)
    with tqdm(total=turns, desc=setting.name, unit="turn", disable=not turns) as bar:
        for group_records in missing:
            logs = converse(author, setting, group_records, bar.update)
            existing = file.records
            file.append(log for log in logs if log.record not in existing)
    by_record = {log.record: log for log in file.logs}
    return [by_record[record.index] for record in records]


def loaded_for(model: str | pathlib.Path, device: str) -> Loaded:
    """Load a model by its path or id; report if it only continues text.

    "smollm2" is SmolLM2, in bfloat16: on CPUs with AVX-512 that takes half of the time of float32.
    """
    import torch

    from iet.audit import smollm2

    if model == "smollm2":
        loaded = load(smollm2.folder(), device, torch.bfloat16)
        loaded = dataclasses.replace(loaded, name=f"{smollm2.PACKAGE}, bfloat16")
    else:
        loaded = load(model, device)
    if loaded.name == "iet:demo" and device == "cpu":
        torch.set_num_threads(1)  # the matrices are too small for more threads
    if not loaded.chat:
        print(f"{loaded.name} has no chat template: prompts are plain text, which it continues", flush=True)
    return loaded
