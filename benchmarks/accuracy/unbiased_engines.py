"""Does family gumbel change what a serving engine says? χ² of chosen tokens against the engine's own sampler.

    python -m benchmarks.accuracy.unbiased_engines --engine NAME -o benchmarks/results/unbiased_engines.json

NAME is vllm-v1, vllm-v2, sglang or llama-cpp, each in an environment of its own; rows of the others in the
output stay. Tokens come from our processor for the engine, many requests at once, each under a key
and after its own context, and from made logits; the distribution that they should have comes from the
engine's code, applied to the same logits. Whole texts of a Markov chain, whose contexts return all the
time, are drawn by processor and sampler together, with free tokens. Last, the sampler is given rows with a
token that the processor has forced: it must draw that token, and vLLM's rejection sampler must accept a
draft exactly if it is the token.

The contexts of tokens occur twice in their sequences.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import sys
import time
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from benchmarks.accuracy.engines import ENGINES, open_engine
from benchmarks.accuracy.engines.asked import Asked, Engine, Ids
from benchmarks.accuracy.engines.vllm import V2Rows
from benchmarks.accuracy.unbiased import (
    FREE_FIRST,
    FREE_RATE,
    IDS,
    LENGTH,
    LEVEL,
    WORDS,
    Found,
    compare,
    keys_of,
)
from benchmarks.recording import columns, command, environment, exit_code, parser, write
from iet.generation.free import FreeTokens
from iet.marks.scheme import Scheme

BATCH = 256
LOGITS, CONTEXT_IDS = 500, 100
"""Ids that have a logit, and ids that have none and stand in contexts alone, so that no penalty is theirs."""

PROMPT, OUTPUT = tuple(range(0, 60, 2)), (1, 2, 3, 4, 4, 5, 5, 5, 60, 61, 62, 62)
"""What stands before the contexts where there are penalties."""

ALL: dict[str, Any] = {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.02}
CASES = {
    "T = 1": Asked(),
    "T = 0.7": Asked(temperature=0.7),
    "T = 1.3, top-k 20": Asked(temperature=1.3, top_k=20),
    "T = 0.8, top-p 0.9": Asked(temperature=0.8, top_p=0.9),
    "min-p 0.05": Asked(min_p=0.05),
    "T = 0.8, top-k 50, top-p 0.9, min-p 0.02": Asked(**ALL),
}
PENALTIES = Asked(repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.3)
OF_ONE = {
    "vllm-v1": {
        "penalties": PENALTIES,
        "penalties and the rest": dataclasses.replace(PENALTIES, **ALL),
    },
    "vllm-v2": {
        "T = 1, behind two drafts": Asked(drafts=2),
        "T = 0.8, top-k 50, top-p 0.9, min-p 0.02, behind two drafts": Asked(**ALL, drafts=2),
    },
}
"""Cases of single engines. Under V2 penalties come before the processor, the others have none."""

TEXTS_SHARE = {"vllm-v1": 4, "vllm-v2": 40, "sglang": 4, "llama-cpp": 4}
"""Texts are drawn this many times fewer than tokens; Triton's interpreter takes milliseconds a token."""


@dataclasses.dataclass(frozen=True)
class Left:
    """Rows with a forced token, given to the engine's sampler.

    Attributes:
        exceptions: rows for which another token was drawn, a wrong draft taken, or the right one rejected.
    """

    sampler: str
    rows: int
    exceptions: int


def made_logits() -> torch.Tensor:
    """Return logits [LOGITS + CONTEXT_IDS], the last ones -inf."""
    values = 2 * np.random.default_rng(0).standard_normal(LOGITS)
    return torch.tensor([*values, *[-math.inf] * CONTEXT_IDS], dtype=torch.float32)


def sequences(sampling: Asked, count: int, rng: np.random.Generator) -> tuple[Ids, Ids]:
    """Return prompts [count, P] and outputs [count, O], which end in contexts of their own."""
    words = Scheme(family="gumbel").n_gram - 1
    contexts = rng.integers(LOGITS, LOGITS + CONTEXT_IDS // 2, (count, words))
    contexts = np.tile(contexts, (1, 2))
    if not sampling.penalises:
        return contexts, np.zeros((count, 0), dtype=np.int64)
    output = np.broadcast_to(OUTPUT, (count, len(OUTPUT)))
    return np.broadcast_to(PROMPT, (count, len(PROMPT))), np.concatenate([output, contexts], axis=1)


def one_of(forced: torch.Tensor) -> Ids:
    """Return the token that is forced in each row [B, V]: its logit is far above the others."""
    largest = forced.topk(2, dim=1).values
    assert bool((largest[:, 0] - largest[:, 1] > 100).all())
    return np.asarray(forced.argmax(dim=1))


def tokens(engine: Engine, name: str, case: str, sampling: Asked, draws: int, seed: int) -> Found:
    rng, logits = np.random.default_rng(seed), made_logits()
    counts = np.zeros(len(logits), dtype=np.int64)
    for start in range(0, draws, BATCH):
        count = min(BATCH, draws - start)
        keys = keys_of(Scheme(family="gumbel"), len(logits), rng, count)
        rows = engine.rows(keys, *sequences(sampling, count, rng), sampling)
        if sampling.drafts:
            assert isinstance(rows, V2Rows)
            # Of other ids than the contexts: else a context comes twice in a million draws.
            drafts = rng.integers(LOGITS + CONTEXT_IDS // 2, LOGITS + CONTEXT_IDS, (count, sampling.drafts))
            masked = rows.verify(logits.repeat(count * (1 + sampling.drafts), 1), drafts)
            masked = masked[sampling.drafts :: 1 + sampling.drafts]
        else:
            masked = rows.apply(logits.repeat(count, 1))
        counts += np.bincount(one_of(masked), minlength=len(logits))
    prompts, outputs = sequences(sampling, 1, rng)
    expected = engine.expected(logits, sampling, prompts[0].tolist(), outputs[0].tolist())
    assert not counts[expected == 0].any()
    return compare(case, name, True, expected, counts)


def texts(engine: Engine, name: str, draws: int, seed: int) -> Found:
    """Count whole texts of a Markov chain, with contexts of one id: nearly every text has one twice.

    The first token of a text and a fifth of the others are free: the engine's sampler draws them.
    """
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    chain = torch.tensor(1.5 * np.random.default_rng(1).standard_normal((IDS, IDS)), dtype=torch.float32)
    scheme, sampling = Scheme(family="gumbel", n_gram=WORDS + 1), Asked()
    counts = np.zeros(IDS**LENGTH, dtype=np.int64)
    for start in range(0, draws, BATCH):
        count = min(BATCH, draws - start)
        text = np.zeros((count, 1), dtype=np.int64)
        free = FreeTokens(FREE_FIRST, FREE_RATE)
        rows = engine.rows(keys_of(scheme, IDS, rng, count), text, text[:, :0], sampling, free)
        for _ in range(LENGTH):
            drawn = rows.sample(rows.apply(chain[text[:, -1]]))
            rows.append(drawn)
            text = np.concatenate([text, drawn[:, None]], axis=1)
        powers = IDS ** np.arange(LENGTH - 1, -1, -1)
        counts += np.bincount(text[:, 1:] @ powers, minlength=IDS**LENGTH)
    step = np.array([engine.expected(row, sampling, [0], []) for row in chain])
    expected = np.array(
        [
            math.prod(step[a, b] for a, b in itertools.pairwise((0, *text)))
            for text in itertools.product(range(IDS), repeat=LENGTH)
        ]
    )
    return compare(f"texts of {LENGTH} tokens, {IDS} ids, n = {WORDS + 1}", name, True, expected, counts)


def left_alone(engine: Engine, name: str, count: int, seed: int) -> list[Left]:
    """Give the engine's sampler rows with a token that the processor forced, each with all filters on."""
    rng, logits = np.random.default_rng(seed), made_logits()
    torch.manual_seed(seed)
    sampling = OF_ONE["vllm-v1"]["penalties and the rest"] if name == "vllm-v1" else Asked(**ALL)
    counts_of = {"sampler": [0, 0]}
    for start in range(0, count, BATCH):
        size = min(BATCH, count - start)
        keys = keys_of(Scheme(family="gumbel"), len(logits), rng, size)
        rows = engine.rows(keys, *sequences(sampling, size, rng), sampling)
        masked = rows.apply(logits.repeat(size, 1))
        if not isinstance(rows, V2Rows):
            wrong = rows.sample(masked) != one_of(masked)
            counts_of["sampler"] = [
                counts_of["sampler"][0] + size,
                counts_of["sampler"][1] + int(wrong.sum()),
            ]
            continue
        wrong = rows.sample_all(masked) != one_of(masked)
        counts_of["sampler"] = [counts_of["sampler"][0] + size, counts_of["sampler"][1] + int(wrong.sum())]
        for drafts_kind, proposed in (("drafts looked up", False), ("drafts of a model", True)):
            seen = counts_of.setdefault(f"rejection sampler, {drafts_kind}", [0, 0])
            seen[0], seen[1] = seen[0] + size, seen[1] + rejected(rows, logits, proposed, rng)
    return [Left(sampler, *numbers) for sampler, numbers in counts_of.items()]


def rejected(rows: V2Rows, logits: torch.Tensor, proposed: bool, rng: np.random.Generator) -> int:
    """Verify two drafts a request, half of them the chosen token; return how many requests go wrong."""
    drafts = np.zeros((rows.size, 0), dtype=np.int64)
    for position in range(2):
        masked = rows.verify(logits.repeat(rows.size * (1 + position), 1), drafts)
        chosen = one_of(masked[position :: 1 + position])
        other_ids = rng.integers(0, LOGITS, rows.size)
        drafts = np.column_stack([drafts, np.where(rng.random(rows.size) < 0.5, chosen, other_ids)])
    masked = rows.verify(logits.repeat(rows.size * 3, 1), drafts)
    chosen = one_of(masked).reshape(rows.size, 3)
    of_drafter = torch.from_numpy(rng.normal(0, 2, (rows.size, 2, len(logits))).astype(np.float32))
    tokens, numbers = rows.reject(masked, drafts, of_drafter if proposed else None)
    wrong = 0
    for row in range(rows.size):
        right = next((at for at in range(2) if drafts[row, at] != chosen[row, at]), 2)
        accepted = tokens[row, : numbers[row]].tolist()
        wrong += accepted != chosen[row, : right + 1].tolist()
    return wrong


def run(engine: Engine, name: str, draws: int, text_count: int, rows: int, seed: int) -> dict[str, Any]:
    """Draw everything for one engine: tokens of each case, whole texts, rows with one token left."""
    started, cases = time.perf_counter(), {**CASES, **OF_ONE.get(name, {})}
    seed += 100 * ENGINES.index(name)  # else engines of one distribution would draw the same
    token_rows = [
        tokens(engine, name, case, sampling, draws, seed + number)
        for number, (case, sampling) in enumerate(tqdm(cases.items(), unit="case"))
    ]
    token_rows.append(texts(engine, name, text_count, seed + len(cases)))
    forced_rows = left_alone(engine, name, rows, seed + 1 + len(cases))
    return {
        **{"seconds": round(time.perf_counter() - started, 1), "draws": draws, "texts": text_count},
        "rows": [dataclasses.asdict(row) for row in token_rows],
        "left": [dataclasses.asdict(row) for row in forced_rows],
    }


def verdicts(engines: dict[str, Any]) -> tuple[int, list[str]]:
    """Return how many distributions are meant to be kept, and what is not as it should be."""
    rows = [row for content in engines.values() for row in content["rows"]]
    judged = sum(row["judged"] for row in rows)
    wrong = [f"{r['family']}, {r['case']}" for r in rows if r["p"] < LEVEL / judged]
    wrong += [
        f"{name}, {forced['sampler']}: {forced['exceptions']} rows"
        for name, content in engines.items()
        for forced in content["left"]
        if forced["exceptions"]
    ]
    return judged, wrong


def markdown(engines: dict[str, Any]) -> str:
    judged, wrong = verdicts(engines)
    formats = {
        **{"engine": "{family}", "sampling": "{case}", "nats": "{entropy:.2f}", "draws": "{draws:,}"},
        **{"cells": "{cells}", "χ²/dof": "{chi_square_per_freedom:.3f}"},
        **{"largest shift": "{largest_shift:.1e}", "p": "{p:.2g}"},
    }
    forced_rows = [{"engine": name, **row} for name, content in engines.items() for row in content["left"]]
    of_left = {"engine": "{engine}", "sampler": "{sampler}", "rows": "{rows:,}", "exceptions": "{exceptions}"}
    commands = "\n".join(f"* `{content['command']}`" for content in engines.values())
    verdict = "All are." if not wrong else f"NOT as it should be: {'; '.join(wrong)}."
    return (
        "# Do serving engines draw as they would without family gumbel?\n\n"
        "Tokens that our processor chose, each under a random key and context, against the distribution that"
        " the engine's own sampler forms of the same logits. A distribution is kept if p >="
        f" {LEVEL / judged:.1e}, which is {LEVEL:g} for all {judged}. {verdict}\n\n"
        f"{columns([row for content in engines.values() for row in content['rows']], formats)}\n\n"
        "Rows in which the processor forced a token, given to the engine's sampler: how often it drew"
        " another, and in how many requests the rejection sampler took other tokens than the chosen ones, two"
        " drafts each."
        f"\n\n{columns(forced_rows, of_left)}\n\n"
        f"In the engines' environments (benchmarks/README.md):\n\n{commands}"
    )


def main() -> None:
    line = parser("benchmarks.accuracy.unbiased_engines", __doc__)
    line.add_argument("--engine", choices=ENGINES, required=True)
    line.add_argument("--draws", type=int, default=1_000_000, help="tokens of each case")
    line.add_argument(
        "--texts", type=int, help="whole ones (default: a quarter of the tokens, V2: a fortieth)"
    )
    line.add_argument("--rows", type=int, default=1024, help="with a forced token, given to the sampler")
    line.add_argument("--seed", type=int, default=0)
    options = line.parse_args()

    torch.set_num_threads(1)  # rows are short: more threads would wait for each other
    text_count = options.draws // TEXTS_SHARE[options.engine] if options.texts is None else options.texts
    engine = open_engine(options.engine)
    content = {
        "command": command(line, options),
        "environment": environment("scipy", *engine.packages),
        **run(engine, options.engine, options.draws, text_count, options.rows, options.seed),
    }
    previous = json.loads(options.output.read_text("utf-8")) if options.output.is_file() else {}
    engines = {**previous.get("engines", {}), options.engine: content}
    engines = {name: engines[name] for name in ENGINES if name in engines}
    write(options.output, {"passed": not verdicts(engines)[1], "engines": engines}, markdown(engines))
    if verdicts({options.engine: content})[1]:
        raise SystemExit(1)


if __name__ == "__main__":
    sys.exit(exit_code(main))
