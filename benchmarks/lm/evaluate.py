"""Measure a saved model: ``python -m benchmarks.lm.evaluate --data PATH --model DIR -o FILE``.

All figures are of the exported bfloat16 weights on documents that no training step saw. A held-out text
is scored without its boundary tokens, so that model and n-gram baselines account for the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.lm.corpus import SOURCES, Document, byte_counts, digest, load_documents, split
from benchmarks.lm.kneser_ney import USUAL_ORDER, KneserNey, largest_order
from benchmarks.lm.tokenizer import BOS_ID
from benchmarks.lm.train import RECIPES, Recipe, boundaries, encode_streams, rows
from benchmarks.recording import exit_code, write
from benchmarks.writing.sampler import nucleus, penalised

MOST_HELD_OUT = 1 << 20
"""Bytes of held-out text that are measured, at most about."""

SAMPLES = 100
SAMPLE_TOKENS = 300
PROMPT_TOKENS = 32
POSITION_BUCKET = 512
POSITION_WINDOWS = 160
SAMPLERS = {
    "demo": (("T=1.0", 1.0, 1.0, 1.0), ("T=0.7 top-p 0.9", 0.7, 0.9, 1.0)),
    "second": (("T=1.0", 1.0, 1.0, 1.0), ("T=0.7", 0.7, 1.0, 1.0), ("T=0.5", 0.5, 1.0, 1.0)),
    "larger": (
        ("T=1.0", 1.0, 1.0, 1.0),
        ("T=0.67 top-p 0.9", 0.67, 0.9, 1.0),
        ("T=0.7 top-p 0.9 penalty 1.2", 0.7, 0.9, 1.2),
        ("T=0.5 top-p 0.9 penalty 1.2", 0.5, 0.9, 1.2),
        ("T=0.35 top-p 0.9 penalty 1.2", 0.35, 0.9, 1.2),
    ),
}
"""Name, temperature, top-p and penalty on repetition of what the models are sampled with."""

SEEN = (1, 2, 4)
"""Numbers of tokens that are looked for earlier in the same text."""

_BYTE_BOUNDARY = 256
_LOSS_ROWS = 1024
_FIRST_LETTERS = 200


@dataclass(frozen=True)
class Packed:
    """Held-out documents in one row: tokens, the text bytes of each, and its source's number."""

    tokens: NDArray[np.int64]
    sizes: NDArray[np.int64]
    sources: NDArray[np.int64]


def pack(tokenizer: Tokenizer, documents: Sequence[Document], recipe: Recipe) -> Packed:
    """Every document between what bounds it in training, which counts for no bytes."""
    sizes_of = token_bytes(tokenizer)
    before, after = boundaries(tokenizer, recipe)
    tokens: list[int] = []
    sizes: list[int] = []
    sources: list[int] = []
    for document in documents:
        ids = encode(tokenizer, document.text)
        tokens += [*before, *ids, *after]
        sizes += [0] * len(before) + sizes_of[ids].tolist() + [0] * len(after)
        sources += [SOURCES.index(document.source)] * (len(before) + len(ids) + len(after))
    row = np.array(tokens, dtype=np.int64)
    return Packed(row, np.array(sizes, dtype=np.int64), np.array(sources, dtype=np.int64))


def token_bytes(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Bytes of text that each id stands for; none for special tokens."""
    byte_level = isinstance(tokenizer.pre_tokenizer, ByteLevel)  # a character of such a piece is a byte
    sizes = np.zeros(tokenizer.get_vocab_size(), dtype=np.int64)
    for token, index in tokenizer.get_vocab().items():
        if index not in special_ids(tokenizer):
            sizes[index] = len(token) if byte_level else len(token.replace("▁", " ").encode())
    return sizes


def special_ids(tokenizer: Tokenizer) -> list[int]:
    """Ids that no text is encoded to."""
    return [index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special]


def thinned(documents: Sequence[Document], most: int = MOST_HELD_OUT) -> list[Document]:
    """Every second document, or third, and so on, so that they have at most about so many bytes."""
    return list(documents[:: max(1, -(-sum(byte_counts(documents).values()) // most))])


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


@torch.inference_mode()
def token_bits(model: PreTrainedModel, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Bits of each token but the first, given those before it in the same row."""
    row = torch.from_numpy(tokens)[None]
    hidden = model.base_model(input_ids=row[:, :-1], use_cache=False).last_hidden_state[0]
    found: Any = model
    parts, head = [], found.get_output_embeddings()
    for start in range(0, len(hidden), _LOSS_ROWS):
        logits = head(hidden[start : start + _LOSS_ROWS]).float()
        targets = row[0, 1 + start : 1 + start + len(logits)]
        parts.append(torch.nn.functional.cross_entropy(logits, targets, reduction="none"))
    bits: NDArray[np.float64] = torch.cat(parts).double().numpy() / np.log(2.0)
    return bits


def model_bits(model: PreTrainedModel, packed: Packed) -> NDArray[np.float64]:
    """Bits of every token in consecutive windows of the full context; zero for boundary tokens."""
    context = model.config.max_position_embeddings
    bits = np.zeros(len(packed.tokens))
    for start in range(0, len(packed.tokens) - 1, context):
        window = packed.tokens[start : start + context + 1]
        bits[start + 1 : start + len(window)] = token_bits(model, window)
    return np.where(packed.sizes > 0, bits, 0.0)


def position_bits(model: PreTrainedModel, packed: Packed) -> dict[str, float]:
    """Bits per byte by position in the window, each bucket over the same tokens.

    Windows start one bucket apart, so that every token away from the ends is scored once in each. The
    first ``POSITION_WINDOWS`` windows are measured, which is some eighty thousand tokens.
    """
    context = model.config.max_position_embeddings
    buckets = context // POSITION_BUCKET
    starts = range(0, len(packed.tokens) - context, POSITION_BUCKET)[:POSITION_WINDOWS]
    first, last = context - POSITION_BUCKET + 1, starts[-1] + POSITION_BUCKET
    bits = np.zeros(buckets)
    for start in starts:
        window = slice(start + 1, start + context + 1)
        place = np.arange(window.start, window.stop)
        counted = (place >= first) & (place <= last) & (packed.sizes[window] > 0)
        scored = token_bits(model, packed.tokens[start : start + context + 1])
        bits += np.where(counted, scored, 0.0).reshape(buckets, POSITION_BUCKET).sum(1)
    size = packed.sizes[first : last + 1].sum()
    return {
        f"{bucket * POSITION_BUCKET}-{(bucket + 1) * POSITION_BUCKET - 1}": float(bits[bucket] / size)
        for bucket in range(buckets)
    }


def baseline(
    encoded: Callable[[Document], NDArray[np.integer]],
    size: int,
    boundary: int,
    train: Sequence[Document],
    held_out: Sequence[Document],
) -> float:
    """Held-out bits per byte of a Kneser-Ney n-gram over bytes or tokens."""
    train_rows = [encoded(document) for document in train]
    model = KneserNey(train_rows, vocabulary=size, boundary=boundary, order=order_of(size))
    bits = -sum(float(model.log2_probabilities(encoded(document)).sum()) for document in held_out)
    return bits / sum(byte_counts(held_out).values())


def order_of(vocabulary: int) -> int:
    """Return the order of the n-gram baseline: 5, or the most that there is of a larger vocabulary."""
    return min(USUAL_ORDER, largest_order(vocabulary))


def prompts(
    tokenizer: Tokenizer, held_out: Sequence[Document], shares: Mapping[str, float], seed: int
) -> NDArray[np.int64]:
    """The first tokens of held-out passages, sources drawn as in training."""
    generator = np.random.default_rng(seed)
    weights = [shares.get(source, 0.0) for source in SOURCES]
    chosen: list[list[int]] = []
    while len(chosen) < SAMPLES:
        source = SOURCES[generator.choice(len(SOURCES), p=weights)]
        texts = [document.text for document in held_out if document.source == source]
        text = texts[generator.integers(len(texts))]
        start = int(generator.integers(max(1, len(text) - _FIRST_LETTERS)))
        tokens = encode(tokenizer, text[start : start + _FIRST_LETTERS])
        if len(tokens) >= PROMPT_TOKENS:
            chosen.append(tokens[:PROMPT_TOKENS])
    return np.array(chosen, dtype=np.int64)


@torch.inference_mode()
def sample(
    model: PreTrainedModel,
    prompt: NDArray[np.int64],
    *,
    temperature: float,
    top_p: float,
    penalty: float,
    barred: Sequence[int],
    seed: int,
    tokens: int = SAMPLE_TOKENS,
) -> tuple[NDArray[np.int64], float]:
    """Continuations of a batch of prompts without `barred` ids, and the mean entropy in nats."""
    generator = torch.Generator().manual_seed(seed)
    step = torch.from_numpy(prompt)
    said = torch.zeros(len(prompt), model.config.vocab_size, dtype=torch.bool)
    cache = None
    drawn = []
    entropy = 0.0
    for _ in range(tokens):
        output = model(input_ids=step, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = output.past_key_values
        said.scatter_(1, step, torch.ones_like(step, dtype=torch.bool))
        logits = penalised(output.logits[:, -1].float(), said, penalty)
        logits[:, list(barred)] = -torch.inf
        probabilities = torch.softmax(nucleus(logits / temperature, top_p), -1)
        entropy += float(torch.special.entr(probabilities).sum(-1).mean())
        step = torch.multinomial(probabilities, 1, generator=generator)
        drawn.append(step)
    return torch.cat(drawn, 1).numpy(), entropy / tokens


def distinct(samples: NDArray[np.int64], length: int) -> float:
    """Share of distinct n-grams among all n-grams of all samples."""
    grams = np.lib.stride_tricks.sliding_window_view(samples, length, axis=1).reshape(-1, length)
    return len(np.unique(grams, axis=0)) / len(grams)


def seen_before(texts: NDArray[np.integer], length: int) -> float:
    """Share of places in texts [N, L], each by itself, whose last `length` tokens stood earlier in the text.

    One token is what a mark takes for a context; four that come back are a text that goes round in circles.
    """
    grams = np.lib.stride_tricks.sliding_window_view(texts, length, axis=1)
    return float(np.mean([1.0 - len(np.unique(of_one, axis=0)) / len(of_one) for of_one in grams]))


def evaluate(arguments: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(arguments.threads)
    started = time.monotonic()
    folder: Path = arguments.model
    record = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    name = record.get("recipe", "demo")
    recipe = RECIPES[name]
    train, held_out = split(load_documents(arguments.data, recipe.sources))
    if (record["train_digest"], record["held_out_digest"]) != (digest(train), digest(held_out)):
        raise SystemExit("the model was trained on another corpus or split than this one")
    held_out = thinned(held_out)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    packed = pack(tokenizer, held_out, recipe)
    size = int(packed.sizes.sum())
    if size != sum(byte_counts(held_out).values()):
        raise AssertionError("the tokens do not add up to the held-out bytes")

    bits = model_bits(model, packed)
    by_source = {
        source: float(bits[packed.sources == number].sum() / packed.sizes[packed.sources == number].sum())
        for number, source in enumerate(SOURCES)
        if source in recipe.sources
    }
    rounded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    bits_per_byte = float(bits.sum() / size)
    over_bytes = baseline(_bytes, _BYTE_BOUNDARY + 1, _BYTE_BOUNDARY, train, held_out)
    over_tokens = baseline(
        lambda document: np.array(encode(tokenizer, document.text)),
        *(tokenizer.get_vocab_size(), BOS_ID, train, held_out),
    )
    results: dict[str, Any] = {
        "model": {
            "parameters": sum(weight.numel() for weight in model.parameters()),
            "safetensors_bytes": (folder / "model.safetensors").stat().st_size,
            "safetensors_sha256": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
            "training": record,
        },
        "corpus": {
            "train_documents": len(train),
            "held_out_documents": len(held_out),
            "train_bytes": byte_counts(train),
            "held_out_bytes": byte_counts(held_out),
            "held_out_tokens": int((packed.sizes > 0).sum()),
        },
        "bits_per_byte": {
            "model": bits_per_byte,
            "model_computed_in_bfloat16": float(model_bits(rounded, packed).sum() / size),
            "kneser_ney_5_bytes": over_bytes,
            f"kneser_ney_{order_of(tokenizer.get_vocab_size())}_tokens": over_tokens,
            "below_bytes": 1.0 - bits_per_byte / over_bytes,
            "below_tokens": 1.0 - bits_per_byte / over_tokens,
            "model_by_source": by_source,
            "model_by_position": position_bits(model, pack(tokenizer, _mixed(held_out), recipe)),
        },
        "samples": {},
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "numpy": np.__version__,
        },
    }
    real = rows(
        encode_streams(tokenizer, held_out, recipe, arguments.seed), recipe.shares, SAMPLE_TOKENS - 1, 0
    )
    texts = {"held-out texts": np.stack([next(real) for _ in range(SAMPLES)])}
    before, after = boundaries(tokenizer, recipe)
    first = [*before, *after][0]
    starts = {
        "held_out_prompts": prompts(tokenizer, held_out, recipe.shares, arguments.seed),
        "start_of_text": np.full((SAMPLES, 1), first, dtype=np.int64),
    }
    for start, prompt in starts.items():
        for sampler, temperature, top_p, penalty in SAMPLERS[name]:
            drawn, entropy = sample(
                model,
                prompt,
                temperature=temperature,
                top_p=top_p,
                penalty=penalty,
                barred=special_ids(tokenizer),
                seed=arguments.seed,
            )
            texts[f"{start}, {sampler}"] = drawn
            results["samples"][f"{start}, {sampler}"] = {
                "distinct_4": distinct(drawn, 4),
                "entropy_nats": entropy,
            }
    results["seen_before"] = {
        name: {f"{length} tokens": seen_before(text, length) for length in SEEN}
        for name, text in texts.items()
    }
    results["seconds"] = round(time.monotonic() - started, 1)
    return results


def table(results: dict[str, Any]) -> str:
    bits = results["bits_per_byte"]
    order = next(n for n in range(USUAL_ORDER, 0, -1) if f"kneser_ney_{n}_tokens" in bits)
    lines = [
        f"parameters {results['model']['parameters']}, {results['model']['safetensors_bytes']} bytes on disk",
        "",
        "held-out bits per byte",
        f"  model                      {bits['model']:.4f}",
        f"  model, bfloat16 arithmetic {bits['model_computed_in_bfloat16']:.4f}",
        f"  Kneser-Ney 5-gram, bytes   {bits['kneser_ney_5_bytes']:.4f}"
        f"  (model {bits['below_bytes']:.1%} below)",
        f"  Kneser-Ney {order}-gram, tokens  {bits[f'kneser_ney_{order}_tokens']:.4f}"
        f"  (model {bits['below_tokens']:.1%} below)",
        "by source",
        *(f"  {source:<26} {value:.4f}" for source, value in bits["model_by_source"].items()),
        "by position in the window, the same tokens in each row",
        *(f"  {positions:<26} {value:.4f}" for positions, value in bits["model_by_position"].items()),
        "",
        f"{f'{SAMPLES} samples of {SAMPLE_TOKENS} tokens':<47}   distinct-4  entropy (nats)",
        *(
            f"  {name:<47} {row['distinct_4']:.4f}  {row['entropy_nats']:.3f}"
            for name, row in results["samples"].items()
        ),
        "",
        f"share of the last {', '.join(map(str, SEEN))} tokens that stood earlier in the same text",
        *(
            f"  {name:<47} {'  '.join(f'{share:.3f}' for share in row.values())}"
            for name, row in results["seen_before"].items()
        ),
    ]
    return "\n".join(lines)


def _mixed(documents: Sequence[Document]) -> list[Document]:
    """The documents in an order that has nothing to do with their source."""
    return sorted(documents, key=lambda document: hashlib.sha256(document.text.encode("utf-8")).digest())


def _bytes(document: Document) -> NDArray[np.uint8]:
    return np.frombuffer(document.text.encode("utf-8"), dtype=np.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder that holds corpus/, gsm8k/ and mama/"
    )
    parser.add_argument("--model", type=Path, required=True, help="model folder")
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    results = evaluate(arguments)
    write(arguments.output, results, f"```\n{table(results)}\n```")


if __name__ == "__main__":
    sys.exit(exit_code(main))
