"""What both training programs share: optimizer, steps, checkpoints and the folder of a model."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from benchmarks.lm.tokenizer import BOS_ID, EOS_ID, PAD_ID, save_tokenizer
from iet.marks.files import write_file

COMMON: Mapping[str, Any] = {
    "tie_word_embeddings": True,
    "initializer_range": 0.03,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "pad_token_id": PAD_ID,
    "use_cache": True,
}
"""Part of every configuration."""


def optimizers_of(
    model: PreTrainedModel, lr: float, second_beta: float, weight_decay: float, *, muon: bool = False
) -> list[torch.optim.Optimizer]:
    """AdamW that decays matrices alone; with `muon` the layers' matrices step by Muon, the rest by AdamW."""
    found: Any = model
    embeddings = {id(found.get_input_embeddings().weight), id(found.get_output_embeddings().weight)}
    layers = [weight for weight in model.parameters() if weight.ndim == 2 and id(weight) not in embeddings]
    by_muon = {id(weight) for weight in layers} if muon else set()
    rest = [weight for weight in model.parameters() if id(weight) not in by_muon]
    groups: list[dict[str, Any]] = [
        {"params": [weight for weight in rest if weight.ndim > 1]},
        {"params": [weight for weight in rest if weight.ndim < 2], "weight_decay": 0.0},
    ]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, lr=lr, betas=(0.9, second_beta), weight_decay=weight_decay, fused=True)
    ]
    if muon:
        optimizers.append(
            torch.optim.Muon(layers, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
        )
    return optimizers


def learning_rate(step: int, total: int, peak: float, warmup: int, decay: float) -> float:
    """Warm-up, plateau, then linear decay to a fiftieth over the last ``decay`` share of the steps."""
    if step < warmup:
        return peak * (step + 1) / warmup
    left = (total - step) / (decay * total)
    return peak * max(0.02, min(1.0, left))


def apply(model: PreTrainedModel, optimizers: Sequence[torch.optim.Optimizer], rate: float) -> None:
    """Take a step along the gradients that are there, clipped to 1, and clear them."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()


def save(
    path: Path, model: PreTrainedModel, optimizers: Sequence[torch.optim.Optimizer], **more: Any
) -> None:
    """Write a checkpoint, which is there in whole or not at all."""
    states = [optimizer.state_dict() for optimizer in optimizers]
    state = {"model": model.state_dict(), "optimizers": states, **more}
    write_file(path, lambda file: torch.save(state, file))


def resume(path: Path, model: PreTrainedModel, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Any]:
    """Take up a checkpoint if there is one; return what else it holds, nothing without one."""
    if not path.exists():
        return {}
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state.pop("model"))
    for optimizer, saved in zip(optimizers, state.pop("optimizers"), strict=True):
        optimizer.load_state_dict(saved)
    return state


def export(model: PreTrainedModel, tokenizer: Tokenizer, record: dict[str, Any], out: Path) -> None:
    """Write the model folder; every file appears by a rename, so a reader never sees half of one."""
    staging = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(staging, ignore_errors=True)
    half = copy.deepcopy(model).bfloat16()
    half.config._attn_implementation = "sdpa"
    half.save_pretrained(staging)
    save_tokenizer(tokenizer, staging, model.config.max_position_embeddings)
    (staging / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(staging.iterdir()):
        path.chmod(0o644)
        os.replace(path, out / path.name)
    staging.rmdir()
