"""What variants of a key give, and what they cost: other answers to the same prompt, evidence, attribution.

    python -m benchmarks.accuracy.variants -o benchmarks/results/variants.json

Family gumbel, the shipped model, with 1, 4 and 16 variants of each key. Every row is a request of its own,
which draws its variant. Three questions:

* answers: 100 of 100 tokens to each of 16 prompts, each prompt under a key of its own. distinct-n is the
  number of different n-grams of tokens over that of all, in the answers to one prompt; "apart after" how many
  tokens two answers to one prompt have in common at their start, over all pairs. Beside unmarked answers.
* evidence: the first number of tokens after which the one agent who wrote is found among six, at level 0.01.
* attribution: texts of twelve turns of 120 and 200 tokens by six agents, read as an auditor does. Words
  depend on keys, so texts under 1 and under 16 variants are other texts. Beside them those under one variant
  are read with sixteen keys for each agent, of which fifteen are in none of them: the price of reading alone.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.accuracy import texts
from benchmarks.recording import INTERVAL, columns, exit_code, finish, parser
from benchmarks.statistics import summary
from benchmarks.writing.continuations import sample
from iet.audit.auditor import Auditor
from iet.audit.evidence import activity_log_p, over_keys, over_variants
from iet.cli.demo import compare
from iet.decoding import log_activity
from iet.decoding.activity import evidence_blocks_of
from iet.demo.conversation import load_model
from iet.kernels import positions, score_tokens
from iet.marks.registry import Registry

MODEL, FAMILY = "shipped", "gumbel"
TEMPERATURES = (1.0, 0.7)
VARIANTS = (1, 4, 16)
ORDERS = (1, 2, 3)
LEVEL, AGENTS = 0.01, 6

Ids = NDArray[np.int64]


def openings() -> Ids:
    """Return the prompts, [16, 24]."""
    encode = texts.tokenizer(MODEL).backend.encode
    found = [encode(text, add_special_tokens=False).ids for text in texts.OPENINGS[MODEL]]
    return np.array([ids[: texts.OPENING_TOKENS] for ids in found])


# ---------------------------------------------------------------- answers


def answers(
    model: Any, prompt: Ids, temperature: float, variants: int | None, *, count: int, tokens: int, seed: int
) -> Ids:
    """Return `count` answers [count, tokens] to one prompt; None variants: unmarked."""
    registry = texts.keys(MODEL, FAMILY, seed, 1, variants or 1)
    table = registry.marking_keys()
    rows = table.rows_of([-1 if variants is None else 0] * count, seed)
    return sample(
        model,
        prompt[None],
        rows.astype(np.int64)[None],
        table,
        tokens=tokens,
        temperature=temperature,
        barred=texts.tokenizer(MODEL).special_ids,
        seed=seed,
    ).ids


def distinct(found: Ids, n: int) -> float:
    """Return the number of different n-grams in the rows over that of all."""
    grams = np.lib.stride_tricks.sliding_window_view(found, n, axis=1).reshape(-1, n)
    return len(np.unique(grams, axis=0)) / len(grams)


def common_starts(found: Ids) -> NDArray[np.int64]:
    """Return how many tokens each two rows have in common at their start."""
    pairs = np.array(list(itertools.combinations(range(len(found)), 2)))
    same = found[pairs[:, 0]] == found[pairs[:, 1]]
    return np.asarray(np.where(same.all(axis=1), found.shape[1], (~same).argmax(axis=1)))


def answers_of(
    model: Any, temperature: float, variants: int | None, prompts: Ids, count: int, tokens: int
) -> dict[str, Any]:
    """Return what the answers to each prompt have in common, as means over prompts."""
    rows = []
    for number, prompt in enumerate(prompts):
        seed = texts.integer(f"variants {temperature} {number}")
        found = answers(model, prompt, temperature, variants, count=count, tokens=tokens, seed=seed)
        starts = common_starts(found)
        rows.append(
            {
                **{f"distinct_{n}": distinct(found, n) for n in ORDERS},
                "distinct_answers": len(np.unique(found, axis=0)) / count,
                "apart_after": float(np.mean(starts)),
                "apart_after_median": float(np.median(starts)),
            }
        )
    figures = {name: summary([row[name] for row in rows]) for name in rows[0]}
    return {"temperature": temperature, "variants": variants, "prompts": len(prompts), "figures": figures}


# ---------------------------------------------------------------- evidence


def tokens_until_found(ids: Ids, registry: Registry, slot: int) -> int | None:
    """Return after how many tokens of a text its agent is found among those of the registry; None: never."""
    scores, owners = score_tokens(ids, registry), registry.scoring_keys().owners.astype(np.int64)
    scored, repeated = positions(ids, registry)
    counted = scored & ~repeated
    ends = np.arange(1, len(ids) + 1)
    # Every beginning of the text is a text of its own.
    sums, counts, edges = evidence_blocks_of(scores, counted, np.zeros(len(ids), np.int64), ends)
    family = registry.profile.family
    log_p = activity_log_p(log_activity(sums, counts, family, edges), np.cumsum(counted), family)
    found = over_keys(over_variants(log_p, owners))[:, slot] <= np.log(LEVEL)
    return int(ends[found.argmax()]) if found.any() else None


def evidence_of(
    model: Any, temperature: float, variants: int, prompts: Ids, count: int, tokens: int
) -> dict[str, Any]:
    """Return after how many tokens an agent is found, over `count` texts of one each."""
    table = Registry.create(None, tokenizer=texts.tokenizer(MODEL), scheme=texts.scheme(FAMILY))
    seeds = [texts.integer(f"variants found {temperature} {number}") for number in range(count)]
    registries = [texts.keys(MODEL, FAMILY, seed, AGENTS, variants) for seed in seeds]
    for number, registry in enumerate(registries):
        (key,) = registry.keys(texts.agent_name(number % AGENTS))
        table.add(f"{number}", secret=key.secret, variants=variants)
    rows = table.marking_keys().rows_of(range(count), seeds[0]).astype(np.int64)
    written = sample(
        model,
        prompts[np.arange(count) % len(prompts)],
        rows[:, None],
        table.marking_keys(),
        tokens=tokens,
        temperature=temperature,
        barred=texts.tokenizer(MODEL).special_ids,
        seed=seeds[0],
    )
    found = [
        tokens_until_found(ids, registry, number % AGENTS)
        for number, (ids, registry) in enumerate(zip(written.ids, registries, strict=True))
    ]
    needed = np.array([np.inf if each is None else each for each in found])
    quantiles = np.quantile(needed, (0.25, 0.5, 0.75, 0.9), method="higher").tolist()
    return {
        "temperature": temperature,
        "variants": variants,
        "texts": count,
        "entropy": float(written.entropy.mean()),
        "tokens": tokens,
        "not_found": int(np.isinf(needed).sum()),
        **{
            name: None if np.isinf(value) else int(value)
            for name, value in zip(("lower", "median", "upper", "ninety"), quantiles, strict=True)
        },
    }


# ---------------------------------------------------------------- attribution


def read(turns: texts.Turns, length: int, variants: int) -> dict[str, float | None]:
    """Return the figures of one text, under keys with so many variants."""
    talk = turns.conversation(length)
    registry = texts.keys(MODEL, FAMILY, turns.seed, AGENTS, variants)
    forced = compare(talk, registry, Auditor(registry, allow_unattributed=False).audit(talk.text))
    free = compare(talk, registry, Auditor(registry, level=LEVEL).audit(talk.text))
    return {
        "token_accuracy": forced.token_accuracy,
        "coverage": free.coverage,
        "there": free.accuracy_where_attributed,
    }


def attribution_of(
    model: Any, temperature: float, written: int, count: int, lengths: Sequence[int], turns: int
) -> list[dict[str, Any]]:
    """Return how well texts under so many variants are read, for turns of each length."""
    cell = texts.Cell(MODEL, temperature, AGENTS, FAMILY)
    seeds = [texts.text_seed(cell, "variants", number) for number in range(count)]
    found = texts.generate(model, cell, seeds, turn_tokens=max(lengths), turns=turns, variants=written)
    results = []
    for length in lengths:
        for under in sorted({written, max(VARIANTS)}):
            rows = [read(each, length, under) for each in found]
            results.append(
                {
                    **{"temperature": temperature, "variants": written, "read_under": under},
                    **{"turn_tokens": length, "texts": count},
                    "entropy": float(np.mean([each.entropy for each in found])),
                    "figures": {name: summary([row[name] for row in rows]) for name in rows[0]},
                }
            )
    return results


# ---------------------------------------------------------------- everything


def run(
    *,
    prompts: int = 16,
    count: int = 100,
    tokens: int = 100,
    texts_found: int = 200,
    tokens_found: int = 256,
    talks: int = 48,
    lengths: Sequence[int] = (120, 200),
    turns: int = texts.TURNS,
) -> dict[str, Any]:
    """Measure everything."""
    model, given = load_model(texts.MODELS[MODEL])[0], openings()
    content: dict[str, Any] = {"answers": [], "evidence": [], "attribution": [], "level": LEVEL}
    for temperature in TEMPERATURES:
        for variants in (None, *VARIANTS):
            content["answers"].append(
                answers_of(model, temperature, variants, given[:prompts], count, tokens)
            )
        for variants in VARIANTS:
            content["evidence"].append(
                evidence_of(model, temperature, variants, given, texts_found, tokens_found)
            )
        for variants in (VARIANTS[0], VARIANTS[-1]):
            content["attribution"] += attribution_of(model, temperature, variants, talks, lengths, turns)
        print(f"T = {temperature}: done", flush=True)
    return {**content, "count": count, "tokens": tokens}


def markdown(content: dict[str, Any]) -> str:
    """Return the three tables."""

    def interval(name: str) -> str:
        return INTERVAL.format(f"figures[{name}]")

    told = [{**row, "what": _variants(row["variants"])} for row in content["answers"]]
    apart = INTERVAL.replace("3f", "1f").format("figures[apart_after]")
    answered = {
        **{"T": "{temperature:g}", "variants": "{what}", "prompts": "{prompts}"},
        **{f"distinct-{n}": interval(f"distinct_{n}") for n in ORDERS},
        **{"different answers": interval("distinct_answers"), "apart after": apart},
    }
    found = {
        **{"T": "{temperature:g}", "nats per token": "{entropy:.2f}", "variants": "{variants}"},
        **{"texts": "{texts}", "median": "{median}", "quartiles": "{lower} to {upper}", "90 %": "{ninety}"},
        "not found": "{not_found}",
    }
    attributed = {
        **{"T": "{temperature:g}", "nats per token": "{entropy:.2f}", "turns": "{turn_tokens}"},
        **{"texts": "{texts}", "variants": "{variants}", "read under": "{read_under}"},
        **{"TokenAcc": interval("token_accuracy"), "coverage": interval("coverage")},
        "accuracy there": interval("there"),
    }
    return "\n\n".join(
        [
            f"**Answers**: {content['count']} of {content['tokens']} tokens to each prompt, shipped model,"
            " family `gumbel`; means over prompts (95 % intervals). Apart after: tokens that two answers to a"
            " prompt have in common at their start, mean over all pairs.",
            columns(told, answered),
            f"**Evidence**: tokens after which the agent who wrote is found among {AGENTS}, level"
            f" {content['level']:g}.",
            columns(content["evidence"], found),
            f"**Attribution**: {AGENTS} agents, `posterior`. TokenAcc in forced choice; coverage and accuracy"
            f" there at level {content['level']:g} (95 % intervals over texts). Read under: variants of each"
            " key in the registry that reads.",
            columns(content["attribution"], attributed),
        ]
    )


def _variants(count: int | None) -> str:
    return "unmarked" if count is None else str(count)


def main() -> None:
    line = parser("benchmarks.accuracy.variants", __doc__)
    given = line.parse_args()
    torch.set_num_threads(1)
    content = run()
    finish(line, given, content, markdown(content), packages=("torch", "transformers"))


if __name__ == "__main__":
    sys.exit(exit_code(main))
