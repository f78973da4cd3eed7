"""What texts show without a task: likelihood without a mark, length, distinct n-grams, divergence."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.paper import marks
from benchmarks.paper.conversations.author import Generated, ModelAuthor
from benchmarks.paper.marks import Marker
from benchmarks.paper.quality import answers, strategies
from benchmarks.paper.quality.answers import CLEAN, CONDITIONS, Condition, Speaker
from benchmarks.paper.quality.strategies import Call
from benchmarks.paper.quality.tasks import Problem
from benchmarks.writing.models import Loaded

KAPPAS = (0.2, 0.4, 0.8, 1.2, 1.6, 2.0)
_SCORED_ROWS = 16  # texts whose probabilities are computed at once


def log_probabilities(
    loaded: Loaded, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]
) -> list[npt.NDArray[np.float64]]:
    """Return log p of every token of some texts in nats, each behind its prompt, under the unmarked model.

    The distribution is the model's at temperature 1 over what may be drawn: special tokens other than the
    ends have probability 0.
    """
    import torch

    found: list[npt.NDArray[np.float64]] = []
    with torch.inference_mode():
        for low in range(0, len(texts), _SCORED_ROWS):
            both = list(zip(prompts[low : low + _SCORED_ROWS], texts[low : low + _SCORED_ROWS], strict=True))
            rows = [torch.tensor([*prompt, *text]) for prompt, text in both]
            # Padding stands behind the texts, where causal attention does not look.
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
            logits = loaded.model(input_ids=ids.to(loaded.model.device), use_cache=False).logits
            for row, (prompt, text) in zip(logits, both, strict=True):
                behind = row[len(prompt) - 1 : len(prompt) + len(text) - 1].float().cpu()
                behind[:, loaded.barred] = -torch.inf
                log_p = torch.log_softmax(behind, -1)
                found.append(log_p[torch.arange(len(text)), torch.tensor(text)].double().numpy())
    return found


def distinct(texts: Iterable[Sequence[int]], n: int) -> float | None:
    """Return the share of distinct n-grams among all of some texts; None if they have none.

    >>> distinct([(1, 2, 1, 2)], 2)
    0.6666666666666666
    """
    grams = [tuple(ids[i : i + n]) for ids in texts for i in range(len(ids) - n + 1)]
    return len(set(grams)) / len(grams) if grams else None


def figures_of_texts(
    loaded: Loaded, prompts: Sequence[Sequence[Sequence[int]]], texts: Sequence[Sequence[Generated]]
) -> dict[str, list[float | None]]:
    """Return figures prompt by prompt, each over all texts of the prompt; prompts and texts are
    [seeds][prompts].

    "log perplexity": mean -log p per token, nats; "length": mean tokens; "entropy": mean nats of the
    distribution before the mark; "distinct-2", "distinct-4": over the texts of one prompt.
    """
    ids = [one.ids for some in texts for one in some]
    log_p = log_probabilities(loaded, [prompt for some in prompts for prompt in some], ids)
    found: dict[str, list[float | None]] = {
        name: [] for name in ("log perplexity", "length", "entropy", "distinct-2", "distinct-4")
    }
    for i, of_prompt in enumerate(zip(*texts, strict=True)):
        found["log perplexity"].append(float(-np.concatenate(log_p[i :: len(texts[0])]).mean()))
        found["length"].append(float(np.mean([len(one.ids) for one in of_prompt])))
        found["entropy"].append(float(np.mean([one.entropy for one in of_prompt])))
        for n in (2, 4):
            found[f"distinct-{n}"].append(distinct([one.ids for one in of_prompt], n))
    return found


def told_apart(
    speaker: Speaker, condition: Condition, problems: Sequence[Problem], texts: Sequence[Sequence[Generated]]
) -> float | None:
    """Return the share of agent 0's texts whose scores are highest under its key, of four; None: no mark."""
    if not marks.mark_of(condition.mark).marks:
        return None
    won = []
    for number, some in enumerate(texts):
        marker = Marker(speaker.setting(condition, number), speaker.loaded.reader)
        for problem, one in zip(problems, some, strict=True):
            keys = marker.keys(problem.number)
            # Where a context has come before, gumbel leaves no mark, and the rest would count twice.
            pairs = keys.pairs(one.ids)
            _, fresh = np.unique(pairs, return_index=True)
            fresh = fresh[pairs[fresh] >= 0]
            won.append(int(keys.scores(one.ids)[fresh].sum(axis=0).argmax()) == 0)
    return float(np.mean(won))


def plain_texts(
    speaker: Speaker, problems: Sequence[Problem], condition: Condition, seeds: int
) -> tuple[list[list[list[int]]], list[list[Generated]]]:
    """Return prompts (as ids) and texts [seeds][problems]: first answers of agent 0."""
    prompts, texts = [], []
    for number in range(seeds):
        calls = [Call(problem, 0, 0, strategies.first_prompt(problem, 0)) for problem in problems]
        if condition.nonce:
            opening = f"Answer {_nonce(speaker.options.seed + number)}:"
            calls = [
                dataclasses.replace(call, prompt=dataclasses.replace(call.prompt, opening=opening))
                for call in calls
            ]
        texts.append(speaker.say(calls, condition, number))
        prompts.append(prompt_ids(speaker, calls))
    return prompts, texts


def _nonce(number: int) -> str:
    rng = np.random.default_rng([number, 7])
    return "".join("abcdefghijklmnopqrstuvwxyz"[i] for i in rng.integers(26, size=3))


def prompt_ids(speaker: Speaker, calls: Sequence[Call]) -> list[list[int]]:
    author = ModelAuthor(speaker.loaded, speaker.setting(CONDITIONS[CLEAN], 0))
    return [author.prompt_ids(call.prompt) for call in calls]


def divergences(
    speaker: Speaker, calls: Sequence[Call], kappas: Sequence[float] = KAPPAS
) -> dict[float, list[float]]:
    """Return κ -> KL(marked ‖ unmarked) in nats per token of each unmarked text, over every eighth token."""
    kept: list[list[npt.NDArray[np.float32]]] = [[] for _ in calls]

    def keep(logits: Any, going: Any) -> None:
        for row in going.nonzero()[:, 0].tolist():
            kept[row].append(logits[row].float().cpu().numpy().copy())

    setting = speaker.setting(CONDITIONS[CLEAN], 0)
    author = ModelAuthor(speaker.loaded, setting, batch=len(calls), on_logits=keep)
    rows = [answers.row(call, speaker.options.seed, setting) for call in calls]
    author.generate(rows, [None] * len(rows))
    return {
        kappa: [marks.mean_kl(np.stack(rows), kappa, seed=number) for number, rows in enumerate(kept) if rows]
        for kappa in kappas
    }
