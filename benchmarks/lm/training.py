"""Optimizer, steps, checkpoints and the folder of a model."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Mapping
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


def optimizer_of(model: PreTrainedModel, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """Return AdamW, which decays the matrices alone."""
    groups: list[dict[str, Any]] = [
        {"params": [weight for weight in model.parameters() if weight.ndim > 1]},
        {"params": [weight for weight in model.parameters() if weight.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), weight_decay=weight_decay, fused=True)


def learning_rate(step: int, total: int, peak: float, warmup: int, decay: float) -> float:
    """Warm-up, plateau, then linear decay to a fiftieth over the last ``decay`` share of the steps."""
    if step < warmup:
        return peak * (step + 1) / warmup
    share_left = (total - step) / (decay * total)
    return peak * max(0.02, min(1.0, share_left))


def apply(model: PreTrainedModel, optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Take a step along the gradients, clipped to 1, and clear them."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad()


def save(path: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer, **more: Any) -> None:
    """Write a checkpoint atomically."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), **more}
    write_file(path, lambda file: torch.save(state, file))


def resume(path: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Load a checkpoint if it exists; return what else it holds, nothing without one."""
    if not path.exists():
        return {}
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state.pop("model"))
    optimizer.load_state_dict(state.pop("optimizer"))
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
