"""Does a mark change what a model says? χ² of drawn tokens against the sampler's own distribution.

    python -m benchmarks.accuracy.unbiased -o benchmarks/results/unbiased.json

Tokens are drawn through the processor that `generate` uses, each under a key and a context of its own, from
fixed final logits: made ones, and those of the shipped model in the middle of a text. Whole texts come from
a small Markov chain, where contexts return all the time, and are counted as texts: there seeds must hold
counts. Draws without counts are shown for comparison.
Family `fourier` is drawn for contrast: its mark moves probabilities about, and their mean over keys moves,
too.

A fifth of the tokens, and the first one of a text, are free: drawn by the sampler.

The contexts of tokens occurred up to three times before, and whole texts are drawn once more after a prompt
that holds all contexts.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.recording import columns, exit_code, finish, parser
from benchmarks.statistics import chi_square
from iet.demo import conversation
from iet.generation.free import FreeTokens
from iet.generation.processors import KeyedSampler
from iet.kernels import embed_
from iet.marks.keys import KeyTable
from iet.marks.scheme import Profile, Scheme

LEVEL = 1e-3
BATCH = 64  # what fits a cache
MIN_EXPECTED = 10.0  # draws in a cell of χ²; rarer tokens share one
PROMPT = 40  # tokens of text before a position of the shipped model
IDS, LENGTH, WORDS = 4, 6, 1  # of the Markov chain, its texts and their contexts
FREE_FIRST, FREE_RATE = 1, 0.2  # free tokens: the first of a text, and a fifth of the others
KNOWN = (1, 2, 0, 3, 0, 1, 0)  # a prompt with every id in it
CHAIN_SHARE = 4  # texts are drawn this many times fewer than tokens

Floats = NDArray[np.float64]
Draw = Callable[[torch.Tensor, int, np.random.Generator], NDArray[np.int64]]


@dataclasses.dataclass(frozen=True)
class Found:
    """Draws against a distribution.

    Attributes:
        judged: whether the distribution is meant to be kept.
        largest_shift: of the probability of one outcome.
        p: two-sided, of χ².
    """

    case: str
    family: str
    judged: bool
    entropy: float
    draws: int
    cells: int
    chi_square_per_freedom: float
    largest_shift: float
    p: float


def keys_of(scheme: Scheme, vocab_size: int, rng: np.random.Generator, count: int = BATCH) -> KeyTable:
    """Return random keys, one a row."""
    return KeyTable(
        Profile(scheme, vocab_size),
        subkeys=rng.integers(0, 256, (count, 16), dtype=np.uint8),
        k_p=np.ones(count, dtype=np.int64),
        owners=np.arange(count, dtype=np.int32),
        names=tuple(map(str, range(count))),
        epochs=np.zeros(count, dtype=np.int32),
    )


def sampled(logits: torch.Tensor, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return one draw from each row of softmax(logits) [B, V]."""
    generator = torch.Generator().manual_seed(int(rng.integers(1 << 62)))
    return torch.multinomial(torch.softmax(logits.double(), -1), 1, generator=generator)[:, 0].numpy()


def gumbel(logits: torch.Tensor, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return tokens [count] that the processor chooses from logits [V]."""
    scheme, V = Scheme(family="gumbel"), len(logits)
    slots, free = np.arange(count, dtype=np.int32), FreeTokens(0, FREE_RATE)
    sampler = KeyedSampler(keys_of(scheme, V, rng, count), slots, False, free, int(rng.integers(1 << 62)))
    contexts = torch.from_numpy(rng.integers(0, V, (count, scheme.n_gram - 1)))
    ids = contexts.repeat(1, int(rng.integers(1, 5)))
    return sampled(sampler(ids, logits.expand(count, -1)), rng)  # type: ignore[arg-type]


def fourier(logits: torch.Tensor, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return tokens [count] that are sampled from logits [V] marked with κ = 0.8."""
    keys, V = keys_of(Scheme(), len(logits), rng, count), len(logits)
    marked = logits.repeat(count, 1)
    embed_(marked, rng.integers(0, V, (count, 1)), np.arange(count), keys)
    return sampled(marked, rng)


def compare(case: str, family: str, judged: bool, probabilities: Floats, counts: NDArray[np.int64]) -> Found:
    draws = int(counts.sum())
    common = probabilities * draws >= MIN_EXPECTED
    expected = np.append(probabilities[common] * draws, probabilities[~common].sum() * draws)
    seen = np.append(counts[common], counts[~common].sum())
    if expected[-1] < MIN_EXPECTED:  # too little for a cell of its own
        expected, seen = expected[:-1], seen[:-1]
    statistic, freedom, p = chi_square(seen, expected / draws)
    positive = probabilities[probabilities > 0]
    entropy = float(-(positive * np.log(positive)).sum())
    shift = float(np.abs(seen - expected).max() / draws)
    return Found(case, family, judged, entropy, draws, len(expected), statistic / freedom, shift, p)


# ---------------------------------------------------------------- tokens


def made_logits() -> dict[str, torch.Tensor]:
    """Return name -> final logits [V]."""
    rng = np.random.default_rng(0)
    even = np.full(300, -np.inf)
    even[rng.choice(300, 8, replace=False)] = 1.5
    made = {
        "two tokens, 0.9 and 0.1": np.log([0.9, 0.1]),
        "8 equal of 300": even,
        "Zipf, 4096 ids": -np.log(1.0 + rng.permutation(4096)),
        "normal logits, σ = 4, 4096 ids": 4 * rng.standard_normal(4096),
    }
    return {name: torch.tensor(logits, dtype=torch.float32) for name, logits in made.items()}


def model_logits() -> dict[str, torch.Tensor]:
    """Return the shipped model's final logits, warped by a sampler, at three positions of a text of its own.

    The positions are those of the lowest, the middle and the highest entropy among all after `PROMPT`.
    """
    model, tokenizer = conversation.load_model()
    ids = torch.tensor([tokenizer(conversation.TASK, add_special_tokens=False).input_ids])
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        text = model.generate(ids, do_sample=True, top_k=0, max_new_tokens=100, pad_token_id=0)
        logits = model(text).logits[0, PROMPT:].float()
    by_position = {}
    for name, temperature, top_p in (("T = 1", 1.0, 1.0), ("T = 0.7, top-p 0.9", 0.7, 0.9)):
        final = transformers.TopPLogitsWarper(top_p)(text, logits / temperature)
        log_p = torch.log_softmax(final, -1)
        entropies = torch.special.entr(log_p.exp()).sum(-1)
        order = entropies.argsort()
        order = order[entropies[order] > 0.05]  # a certain next token leaves nothing to count
        for position, index in (("low", 0), ("middle", len(order) // 2), ("high", -1)):
            by_position[f"shipped model, {name}, {position} entropy"] = final[order[index]]
    return by_position


def tokens(case: str, family: str, draw: Draw, logits: torch.Tensor, draws: int, seed: int) -> Found:
    rng = np.random.default_rng(seed)
    counts = np.zeros(len(logits), dtype=np.int64)
    for start in range(0, draws, BATCH):
        counts += np.bincount(draw(logits, min(BATCH, draws - start), rng), minlength=len(logits))
    probabilities = torch.softmax(logits.double(), -1).numpy()
    assert not counts[probabilities == 0].any()
    return compare(case, family, family != "fourier", probabilities, counts)


# ---------------------------------------------------------------- texts


def texts(
    case: str,
    family: str,
    careful: bool,
    draws: int,
    seed: int,
    prompt: Sequence[int] = (0,),
) -> Found:
    """Count whole texts of a Markov chain, with contexts of one id: nearly every text has one twice.

    Not `careful`: with noise that holds no counts.
    """
    rng = np.random.default_rng(seed)
    chain = torch.tensor(1.5 * np.random.default_rng(1).standard_normal((IDS, IDS)), dtype=torch.float32)
    scheme = Scheme(family="gumbel", n_gram=WORDS + 1)
    counts = np.zeros(IDS**LENGTH, dtype=np.int64)
    for start in range(0, draws, BATCH):
        count = min(BATCH, draws - start)
        keys = keys_of(scheme, IDS, rng, count)
        slots = np.arange(count, dtype=np.int32)
        free = FreeTokens(FREE_FIRST, FREE_RATE)
        sampler = KeyedSampler(keys, slots, False, free, int(rng.integers(1 << 62)))
        ids = torch.tensor(prompt).repeat(count, 1)
        for _ in range(LENGTH):
            logits = chain[ids[:, -1]]
            if careful:
                chosen: Any = sampler(ids, logits)  # type: ignore[arg-type]
            else:
                chosen = logits.clone()
                embed_(chosen, ids[:, -WORDS:], slots, keys)
                chosen = torch.where(chosen == chosen.max(-1, keepdim=True).values, logits, -torch.inf)
            ids = torch.cat([ids, torch.from_numpy(sampled(chosen, rng))[:, None]], dim=1)
        powers = IDS ** np.arange(LENGTH - 1, -1, -1)
        counts += np.bincount(ids[:, len(prompt) :].numpy() @ powers, minlength=IDS**LENGTH)
    step = torch.softmax(chain.double(), -1).numpy()
    probabilities = np.array(
        [
            math.prod(step[a, b] for a, b in itertools.pairwise((prompt[-1], *text)))
            for text in itertools.product(range(IDS), repeat=LENGTH)
        ]
    )
    return compare(case, family, careful, probabilities, counts)


# ---------------------------------------------------------------- everything


def run(draws: int, seed: int) -> list[Found]:
    """Draw everything."""
    cases = {**made_logits(), **model_logits()}
    jobs: list[Callable[[int], Found]] = [
        lambda s, c=case, f=family, d=draw: tokens(c, f, d, cases[c], draws, s)  # type: ignore[misc]
        for case in cases
        for family, draw in (("gumbel", gumbel), ("fourier", fourier))
        if family == "gumbel" or case.startswith(("two", "shipped model, T = 1, middle"))
    ]
    texts_name, chains = f"texts of {LENGTH} tokens, {IDS} ids, n = {WORDS + 1}", draws // CHAIN_SHARE
    jobs.append(lambda s: texts(texts_name, "gumbel", True, chains, s))
    jobs.append(lambda s: texts(texts_name, "gumbel without counts", False, chains, s))
    prompt_name = f"{texts_name}, contexts in the prompt"
    jobs.append(lambda s: texts(prompt_name, "gumbel", True, chains, s, KNOWN))
    return [job(seed + number) for number, job in enumerate(tqdm(jobs, unit="case"))]


def failures(rows: list[Found]) -> list[Found]:
    """Return the rows whose distribution is meant to be kept, and is not."""
    judged = [row for row in rows if row.judged]
    return [row for row in judged if row.p < LEVEL / len(judged)]


def markdown(rows: list[Found], draws: int) -> str:
    failed, judged = failures(rows), sum(row.judged for row in rows)
    verdict_of = [("no" if row in failed else "yes") if row.judged else "for contrast" for row in rows]
    formats = {
        **{"logits": "{case}", "family": "{family}", "nats": "{entropy:.2f}", "draws": "{draws:,}"},
        **{"cells": "{cells}", "χ²/dof": "{chi_square_per_freedom:.3f}"},
        **{"largest shift": "{largest_shift:.1e}", "p": "{p:.1e}", "kept": "{kept}"},
    }
    cells = [
        {**dataclasses.asdict(row), "kept": verdict} for row, verdict in zip(rows, verdict_of, strict=True)
    ]
    return (
        f"# Is the distribution of tokens kept?\n\n{draws:,} tokens a case, each under a random key and"
        f" context. A distribution is kept if p >= {LEVEL / judged:.1e}, which is {LEVEL:g} for all {judged}"
        f" that are meant to be. {'All are.' if not failed else f'{len(failed)} are NOT.'}\n\n"
        f"{columns(cells, formats)}"
    )


def main() -> None:
    line = parser("benchmarks.accuracy.unbiased", __doc__)
    line.add_argument("--draws", type=int, default=1_000_000)
    line.add_argument("--seed", type=int, default=0)
    options = line.parse_args()

    torch.set_num_threads(1)  # rows are short: more threads would wait for each other
    started, rows = time.perf_counter(), run(options.draws, options.seed)
    content: dict[str, Any] = {
        **{
            "draws": options.draws,
            "seed": options.seed,
            "seconds": round(time.perf_counter() - started, 1),
        },
        **{"passed": not failures(rows), "rows": [dataclasses.asdict(row) for row in rows]},
    }
    packages = ("torch", "transformers", "scipy")
    finish(line, options, content, markdown(rows, options.draws), packages=packages)
    if failures(rows):
        raise SystemExit(1)


if __name__ == "__main__":
    sys.exit(exit_code(main))
