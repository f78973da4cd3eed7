"""Train the arithmetic model: ``python -m benchmarks.lm.train_arithmetic --out DIR --work DIR``.

It continues a question by steps and answer (`benchmarks.lm.arithmetic`). Half of the rows in the first part
of the training are drills: unrelated steps in the same language, which show more sums and products per row.
For most of the training the terms of a solution come in any order, for the rest in that of the expression.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from benchmarks.lm import training
from benchmarks.lm.arithmetic import Numbers, drill, expressions, question, shown, solution, value
from benchmarks.lm.tokenizer import BOS, EOS, EOS_ID, PAD, PAD_ID, UNKNOWN
from benchmarks.lm.training import COMMON
from benchmarks.recording import environment, exit_code

POSITIONS = 256
DRILL_CHARACTERS = 135
MEASURED, HELD_OUT, WATCHED = (100, 42), (400, 43), (100, 44)
"""Numbers and seeds of the expressions that are kept out of the training: those of the experiment
`python -m benchmarks.paper quality`, more of the kind, and those that a running training is watched on."""


def tokenizer_of_characters() -> Tokenizer:
    """Return a tokenizer with an id for every printable character of ASCII and the line break."""
    alphabet = ["\n", *map(chr, range(32, 127))]
    vocabulary = {token: number for number, token in enumerate((BOS, EOS, PAD, UNKNOWN, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token=UNKNOWN))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in (BOS, EOS, PAD, UNKNOWN)]
    )
    return tokenizer


def config(vocabulary: int) -> LlamaConfig:
    """The architecture: 0.65 million parameters, embeddings tied."""
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=POSITIONS,
        **COMMON,
    )


def rows(
    tokenizer: Tokenizer,
    count: int,
    excluded: Collection[Numbers],
    drills: float,
    seed: Sequence[int],
    *,
    any_order: bool = False,
) -> Tensor:
    """Return the token ids [count, longest] of one optimizer step, padded at the right.

    Args:
        any_order: whether the terms of a solution come in any order.
    """
    rng = np.random.default_rng(seed)
    texts = []
    for number in range(count):
        if number < round(drills * count):
            texts.append(drill(rng, DRILL_CHARACTERS))
            continue
        while (numbers := expressions(1, int(rng.integers(2**63)))[0]) in excluded:
            pass
        texts.append(question(shown(numbers)) + solution(numbers, rng, any_order=any_order) + EOS)
    ids = [torch.tensor(encoding.ids) for encoding in tokenizer.encode_batch(texts)]
    return torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=PAD_ID)


def batch_loss(model: PreTrainedModel, batch: Tensor) -> Tensor:
    """Mean loss of the next tokens; padding does not count."""
    logits = model(input_ids=batch[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), batch[:, 1:].flatten(), ignore_index=PAD_ID
    )


@torch.inference_mode()
def answers(
    model: PreTrainedModel, tokenizer: Tokenizer, asked: Sequence[Numbers], seed: int | None
) -> tuple[list[str], float]:
    """Return the solutions to some expressions, and the mean entropy per token in nats.

    Args:
        seed: of the draws at temperature 1; None: the likeliest token is taken.
    """
    prompts = [tokenizer.encode(question(shown(numbers))).ids for numbers in asked]
    longest = max(map(len, prompts))
    ids = torch.tensor([[PAD_ID] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = (ids != PAD_ID).long()
    generator = torch.Generator().manual_seed(seed or 0)
    ended = torch.zeros(len(asked), dtype=torch.bool)
    entropy, tokens = 0.0, 0
    cache, step = None, ids
    while not bool(ended.all()) and ids.shape[1] < POSITIONS:
        places = (mask.cumsum(1) - 1).clamp(min=0)[:, -step.shape[1] :]
        found = model(
            input_ids=step, attention_mask=mask, position_ids=places, past_key_values=cache, use_cache=True
        )
        cache, p = found.past_key_values, torch.softmax(found.logits[:, -1], -1)
        entropy += float(torch.special.entr(p).sum(-1)[~ended].sum())
        tokens += int((~ended).sum())
        step = p.argmax(-1, keepdim=True) if seed is None else torch.multinomial(p, 1, generator=generator)
        step[ended] = PAD_ID
        ended |= step[:, 0] == EOS_ID
        ids, mask = torch.cat([ids, step], 1), torch.cat([mask, torch.ones_like(step)], 1)
    return tokenizer.decode_batch(ids[:, longest:].tolist()), entropy / tokens


def accuracy(texts: Sequence[str], asked: Sequence[Numbers]) -> float:
    ends = [re.search(r"Answer: (-?[0-9]+)$", text) for text in texts]
    return float(np.mean([m is not None and int(m[1]) == value(n) for m, n in zip(ends, asked, strict=True)]))


def train(arguments: argparse.Namespace) -> None:
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)  # the matrices are small: more threads would only wait for each other
    tokenizer = tokenizer_of_characters()
    watched = expressions(*WATCHED)
    excluded = {*expressions(*MEASURED), *expressions(*HELD_OUT), *watched}
    record = {
        "seed": arguments.seed,
        "steps": arguments.steps,
        "rows_per_step": arguments.rows,
        "drills": arguments.drills,
        "drilled_share_of_steps": arguments.drilled,
        "any_order_share_of_steps": arguments.any_order,
        "peak_learning_rate": arguments.lr,
        "warmup_steps": arguments.warmup,
        "decay_share": arguments.decay,
        "weight_decay": arguments.weight_decay,
        "tokens": 0,
        "seconds": 0.0,
        "processor_seconds": 0.0,
    }
    new: Any = AutoModelForCausalLM
    model: PreTrainedModel = new.from_config(config(tokenizer.get_vocab_size()), attn_implementation="sdpa")
    optimizers = training.optimizers_of(model, arguments.lr, 0.98, arguments.weight_decay)
    arguments.work.mkdir(parents=True, exist_ok=True)
    checkpoint = arguments.work / "checkpoint.pt"
    state = training.resume(checkpoint, model, optimizers)
    if state.get("seed", arguments.seed) != arguments.seed:
        raise SystemExit(f"{checkpoint}: of seed {state['seed']}; name another --work")
    first = state.get("done", 0)
    record.update({key: state[key] for key in ("tokens", "seconds", "processor_seconds") if state})
    before = dict(record)
    started, used = time.monotonic(), time.process_time()

    def timed() -> None:
        record["seconds"] = round(before["seconds"] + time.monotonic() - started, 1)
        record["processor_seconds"] = round(before["processor_seconds"] + time.process_time() - used, 1)

    saved = started
    for step in range(first, arguments.steps):
        drills = arguments.drills if step < arguments.drilled * arguments.steps else 0.0
        any_order = step < arguments.any_order * arguments.steps
        batch = rows(tokenizer, arguments.rows, excluded, drills, [arguments.seed, step], any_order=any_order)
        record["tokens"] += int((batch != PAD_ID).sum())
        rate = training.learning_rate(step, arguments.steps, arguments.lr, arguments.warmup, arguments.decay)
        loss = batch_loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        training.apply(model, optimizers, rate)
        if step % 20 == 0:
            timed()
            print(f"step {step} loss {loss:.4f} {record['processor_seconds']:.0f} s", flush=True)
        if (step + 1) % arguments.watch == 0:
            model.train(False)
            texts, entropy = answers(model, tokenizer, watched, seed=0)
            model.train(True)
            print(
                f"watched {accuracy(texts, watched):.2f} right, {entropy:.3f} nats: {texts[0]!r}", flush=True
            )
        if time.monotonic() - saved > arguments.save_seconds or step + 1 == arguments.steps:
            timed()
            training.save(checkpoint, model, optimizers, **record, done=step + 1)
            saved = time.monotonic()
    training.export(model, tokenizer, record, arguments.out)
    measured: PreTrainedModel = AutoModelForCausalLM.from_pretrained(arguments.out, dtype=torch.float32)
    figures = {}
    for count, seed in (MEASURED, HELD_OUT):
        asked = expressions(count, seed)
        greedy, _ = answers(measured, tokenizer, asked, seed=None)
        drawn, entropy = answers(measured, tokenizer, asked, seed=0)
        figures[f"{count} expressions of seed {seed}"] = {
            "greedy": accuracy(greedy, asked),
            "sampled": accuracy(drawn, asked),
            "entropy_nats": entropy,
        }
    whole = {**record, "measured": figures, "environment": environment("torch", "transformers")}
    (arguments.out / "training.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(whole, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="model folder to write")
    parser.add_argument("--work", type=Path, required=True, help="folder for the checkpoint to resume from")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=2050)
    parser.add_argument("--rows", type=int, default=48, help="texts of an optimizer step")
    parser.add_argument("--drills", type=float, default=0.5, help="share of the rows that are drills")
    parser.add_argument("--drilled", type=float, default=0.4782, help="share of the steps that have drills")
    parser.add_argument(
        "--any-order", type=float, default=0.836, help="share of the steps with terms in any order"
    )
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--warmup", type=int, default=100, help="steps of warm-up")
    parser.add_argument("--decay", type=float, default=0.12, help="share of the steps that decay")
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--watch", type=int, default=250, help="steps between two looks at the answers")
    parser.add_argument("--save-seconds", type=float, default=120.0, help="seconds between checkpoints")
    train(parser.parse_args())


if __name__ == "__main__":
    sys.exit(exit_code(main))
