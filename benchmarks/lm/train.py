"""Train a small model: ``python -m benchmarks.lm.train --data PATH --out DIR --work DIR``."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    GPTNeoXConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from benchmarks.lm import training
from benchmarks.lm.corpus import SOURCES, Document, digest, load_documents, split
from benchmarks.lm.tokenizer import (
    BOS_ID,
    CONTEXT,
    EOS_ID,
    UNIGRAM_VOCABULARY_SIZE,
    VOCABULARY_SIZE,
    train_tokenizer,
    train_unigram,
)
from benchmarks.lm.training import COMMON
from benchmarks.recording import exit_code

ROPE_THETA = 100_000.0
_ATTENTION = "blockwise_causal"
_QUERY_BLOCK = 128
_LOSS_ROWS = 512
_MICRO_TOKENS = 4096


@dataclass(frozen=True)
class Stage:
    context: int
    steps: int


def parse_stages(text: str) -> list[Stage]:
    """Stages from ``context:steps,context:steps``."""
    return [Stage(*(int(number) for number in part.split(":"))) for part in text.split(",")]


def _llama(**fields: Any) -> LlamaConfig:
    return LlamaConfig(
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA}, **{**COMMON, **fields}
    )


def demo_config() -> LlamaConfig:
    """The architecture of the demo model: about 2.8 million parameters, embeddings tied."""
    return _llama(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=5,
        num_attention_heads=6,
        num_key_value_heads=3,
        max_position_embeddings=CONTEXT,
    )


def second_config() -> GPTNeoXConfig:
    """Another architecture (parallel residuals, layer norms, GELU): about 1.06 million parameters."""
    return GPTNeoXConfig(
        vocab_size=UNIGRAM_VOCABULARY_SIZE,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=2048,
        **COMMON,
    )


@dataclass(frozen=True)
class Recipe:
    """The data, tokenizer and architecture of a model.

    Attributes:
        shares: share of the training rows that each source gets; only these sources are read.
        train_tokenizer: texts -> tokenizer.
        config: the architecture.
        stages: of the training, unless the command names others.
        batch: tokens per optimizer step, unless the command names another number.
        boundaries: documents are enclosed by ``<s>`` and ``</s>``; else a blank line separates them, and
            text that is sampled without boundary tokens goes from one document to the next.
    """

    shares: Mapping[str, float]
    train_tokenizer: Callable[[Iterable[str]], Tokenizer]
    config: Callable[[], PreTrainedConfig]
    stages: str
    batch: int = 16384
    boundaries: bool = True

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(source for source in SOURCES if source in self.shares)


RECIPES = {
    "demo": Recipe(
        shares={
            "peps": 0.53,
            "gsm8k": 0.16,
            "solutions": 0.05,
            "speeches": 0.175,
            "shakespeare": 0.07,
            "tasks": 0.015,
        },
        train_tokenizer=train_tokenizer,
        config=demo_config,
        stages="512:2020,2048:170,4096:110",
    ),
    "second": Recipe(
        shares={"gsm8k": 1.0},
        train_tokenizer=train_unigram,
        config=second_config,
        stages="512:1480,2048:160",
        batch=8192,
        boundaries=False,
    ),
}
"""The model of `iet demo`, and one that shares neither architecture nor tokenizer with it."""


def blockwise_causal_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention over blocks of queries: on a CPU faster in bfloat16 than the fused kernel."""
    batch, heads, length, width = query.shape
    groups = key.shape[1]
    query = (query * scaling).view(batch, groups, heads // groups, length, width)
    outputs = []
    for start in range(0, length, _QUERY_BLOCK):
        stop = min(start + _QUERY_BLOCK, length)
        rows = query[:, :, :, start:stop].reshape(batch, groups, -1, width)
        scores = rows @ key[:, :, :stop].transpose(-1, -2)
        future = torch.ones(stop - start, stop - start, dtype=torch.bool).triu_(1)
        scores[..., start:].masked_fill_(future.repeat(heads // groups, 1), -math.inf)
        mixed = torch.softmax(scores, -1) @ value[:, :, :stop]
        outputs.append(mixed.view(batch, heads, stop - start, width))
    return torch.cat(outputs, 2).transpose(1, 2).contiguous(), None


AttentionInterface.register(_ATTENTION, blockwise_causal_attention)


class OutputLoss(torch.autograd.Function):
    """Mean cross-entropy of ``hidden @ weight.T``, a few rows at a time to stay in the cache."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        half_hidden, half_weight = hidden.to(torch.bfloat16), weight.to(torch.bfloat16)
        grad_hidden = torch.empty_like(half_hidden)
        grad_weight = torch.zeros_like(weight)
        total = torch.zeros(())
        for start in range(0, hidden.shape[0], _LOSS_ROWS):
            rows = half_hidden[start : start + _LOSS_ROWS]
            wanted = targets[start : start + _LOSS_ROWS, None]
            probability = torch.softmax(rows @ half_weight.T, -1, dtype=torch.float32)
            total -= probability.gather(1, wanted).log_().sum()
            probability.scatter_add_(1, wanted, torch.full(wanted.shape, -1.0))
            error = probability.to(torch.bfloat16)
            grad_hidden[start : start + _LOSS_ROWS] = error @ half_weight
            grad_weight += error.T @ rows
        ctx.save_for_backward(grad_hidden, grad_weight)
        return total / hidden.shape[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        scale = grad / grad_hidden.shape[0]
        return grad_hidden.float() * scale, grad_weight * scale, None


def boundaries(tokenizer: Tokenizer, recipe: Recipe) -> tuple[list[int], list[int]]:
    return ([BOS_ID], [EOS_ID]) if recipe.boundaries else ([], tokenizer.encode("\n").ids)


def encode_streams(
    tokenizer: Tokenizer, documents: Sequence[Document], recipe: Recipe, seed: int
) -> dict[str, NDArray[np.uint16]]:
    """Per source its documents, shuffled, each between its boundaries, as one row of tokens."""
    opening, after = boundaries(tokenizer, recipe)
    streams = {}
    for number, source in enumerate(SOURCES):
        texts = [document.text for document in documents if document.source == source]
        order = np.random.default_rng([seed, number]).permutation(len(texts))
        encodings = tokenizer.encode_batch([texts[index] for index in order])
        tokens = [token for encoding in encodings for token in (*opening, *encoding.ids, *after)]
        streams[source] = np.array(tokens, dtype=np.uint16)
    return streams


def rows(
    streams: dict[str, NDArray[np.uint16]], shares: Mapping[str, float], context: int, seed: int
) -> Iterator[NDArray[np.int64]]:
    """Endless rows of ``context + 1`` tokens: source by share, then its chunks without repetition."""
    chunks = {
        source: _chunks(streams[source], context + 1, [seed, context, number])
        for number, source in enumerate(SOURCES)
    }
    generator = np.random.default_rng([seed, context])
    weights = [shares.get(source, 0.0) for source in SOURCES]
    while True:
        yield next(chunks[SOURCES[generator.choice(len(SOURCES), p=weights)]])


def _chunks(stream: NDArray[np.uint16], length: int, seed: list[int]) -> Iterator[NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    while True:
        shift = int(generator.integers(length))
        for index in generator.permutation((len(stream) - shift) // length):
            start = shift + int(index) * length
            yield stream[start : start + length].astype(np.int64)


def batch_loss(model: Any, batch: Tensor) -> Tensor:
    with torch.autocast(batch.device.type, torch.bfloat16):
        hidden = model.base_model(input_ids=batch[:, :-1], use_cache=False).last_hidden_state
        flat = hidden.reshape(-1, hidden.shape[-1])
        targets = batch[:, 1:].reshape(-1)
        weight = model.get_output_embeddings().weight
    loss: Tensor = OutputLoss.apply(flat, weight, targets)  # type: ignore[no-untyped-call]
    return loss


def train(arguments: argparse.Namespace) -> None:
    """Train from the start or from the last checkpoint in the work folder, and export the model."""
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(arguments.threads)
    recipe = RECIPES[arguments.recipe]
    documents, held_out = split(load_documents(arguments.data, recipe.sources))
    arguments.work.mkdir(parents=True, exist_ok=True)
    saved_tokenizer = arguments.work / "tokenizer.json"
    if not saved_tokenizer.exists():  # a run that goes on needs the same pieces
        trained = recipe.train_tokenizer(document.text for document in documents)
        trained.save(str(saved_tokenizer.with_suffix(".new")))
        os.replace(saved_tokenizer.with_suffix(".new"), saved_tokenizer)
    tokenizer = Tokenizer.from_file(str(saved_tokenizer))
    streams = encode_streams(tokenizer, documents, recipe, arguments.seed)
    print({source: len(stream) for source, stream in streams.items()}, flush=True)

    arguments.stages = arguments.stages or recipe.stages
    arguments.batch = arguments.batch or recipe.batch
    stages = parse_stages(arguments.stages)
    total = sum(stage.steps for stage in stages)
    record = {
        "recipe": arguments.recipe,
        "train_digest": digest(documents),
        "held_out_digest": digest(held_out),
        "seed": arguments.seed,
        "stages": arguments.stages,
        "tokens_per_step": arguments.batch,
        "peak_learning_rate": arguments.lr,
        "warmup_steps": arguments.warmup,
        "decay_share": arguments.decay,
        "weight_decay": arguments.weight_decay,
        "device": "cpu",
        "shares": dict(recipe.shares),
        "steps": 0,
        "seconds": 0.0,
    }
    new: Any = AutoModelForCausalLM
    model: PreTrainedModel = new.from_config(recipe.config(), attn_implementation=_ATTENTION)
    optimizer = training.optimizer_of(model, arguments.lr, arguments.weight_decay)
    checkpoint = arguments.work / "checkpoint.pt"
    record.update(training.resume(checkpoint, model, optimizer))
    first = record["steps"]
    seconds_before = record["seconds"]
    started = saved = time.monotonic()

    def save() -> None:
        record.update(steps=step + 1, seconds=round(seconds_before + time.monotonic() - started, 1))
        training.save(checkpoint, model, optimizer, steps=record["steps"], seconds=record["seconds"])
        training.export(model, tokenizer, record, arguments.out)

    step = -1
    for stage in stages:
        source = rows(streams, recipe.shares, stage.context, arguments.seed)
        micro_rows = max(1, _MICRO_TOKENS // stage.context)
        micro_batches = arguments.batch // (micro_rows * stage.context)
        for _ in range(stage.steps):
            step += 1
            batches = [
                torch.from_numpy(np.stack([next(source) for _ in range(micro_rows)]))
                for _ in range(micro_batches)
            ]
            if step < first:
                continue
            rate = training.learning_rate(step, total, arguments.lr, arguments.warmup, arguments.decay)
            loss = torch.zeros(())
            for batch in batches:
                part = batch_loss(model, batch) / micro_batches
                part.backward()
                loss += part.detach()
            training.apply(model, optimizer, rate)
            if step % 10 == 0:
                speed = (step + 1 - first) * arguments.batch / (time.monotonic() - started)
                print(
                    f"step {step}/{total} context {stage.context} loss {loss.item():.4f} "
                    f"lr {rate:.2e} {speed:.0f} tokens/s",
                    flush=True,
                )
            if time.monotonic() - saved > arguments.save_seconds:
                save()
                saved = time.monotonic()
    save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder that holds corpus/, gsm8k/ and mama/"
    )
    parser.add_argument("--out", type=Path, required=True, help="model folder to write")
    parser.add_argument("--work", type=Path, required=True, help="folder for the checkpoint to resume from")
    parser.add_argument("--recipe", choices=tuple(RECIPES), default="demo")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stages", help="context:steps,context:steps,... (default: the recipe's)")
    parser.add_argument("--batch", type=int, help="tokens per optimizer step (default: the recipe's)")
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--warmup", type=int, default=100, help="steps of warm-up")
    parser.add_argument("--decay", type=float, default=0.35, help="share of the steps that decay")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save-seconds", type=float, default=300.0, help="seconds between checkpoints")
    train(parser.parse_args())


if __name__ == "__main__":
    sys.exit(exit_code(main))
