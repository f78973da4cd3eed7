"""How much evidence is lost if only a part of an answer is published.

    python -m benchmarks.accuracy.cuts -o benchmarks/results/cuts.json

The shipped model writes answers of 500 tokens under the key of one of six agents. Three parts are published:

* cut: the first 250 tokens, as a limit (`max_tokens`) leaves them;
* stop: the text up to the first full stop after 250 tokens, without it, as an engine removes a stop string;
* thought: the last 250 tokens, as if the text before them were thought that is removed (`<think>`).

ln p is the mean of the agent's corrected log p-value of the published text. Beside it stands that of the same
tokens with the whole answer at hand: the difference is what the part does not show, such as contexts that the
writer counted and the half of a word.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

from benchmarks.accuracy import diversity, texts
from benchmarks.recording import INTERVAL, columns, exit_code, finish, parser
from benchmarks.statistics import summary
from benchmarks.writing.continuations import sample
from iet.audit.auditor import Auditor
from iet.demo.conversation import load_model
from iet.marks.registry import Registry

FAMILIES = ("fourier", "gumbel")
TEMPERATURES = (1.0, 0.7, 0.5)
TOKENS, KEPT, AGENTS, LEVEL = 500, 250, 6, 0.01


def parts(text: str, start: int) -> dict[str, tuple[int, int]]:
    """Return the characters [first, last) of each part, if its second half begins at a character."""
    stop = text.find(".", start)
    return {"cut": (0, start), "stop": (0, stop if stop > 0 else len(text)), "thought": (start, len(text))}


def figures(auditor: Auditor, text: str, start: int, agent: str) -> dict[str, dict[str, float]]:
    """Return ln p of each part by itself, and with the whole answer at hand."""
    found = {}
    for name, (first, last) in parts(text, start).items():
        alone = auditor.audit(text[first:last]).evidence[agent]
        whole = auditor.audit(text, spans=[(first, last)]).evidence[agent]
        found[name] = {"published": alone, "whole": whole}
    return found


def measured(model: Any, family: str, temperature: float) -> list[dict[str, Any]]:
    """Return a row for each part: means with 95 % intervals over one answer to each of 16 prompts."""
    prompts = np.array(diversity.shipped().prompts)
    registry = Registry.create(None, tokenizer=texts.tokenizer("shipped"), scheme=texts.scheme(family))
    for slot in range(AGENTS):
        registry.add(texts.agent_name(slot), secret=bytes([slot + 1]) * 32)
    slots = np.arange(len(prompts))[:, None] % AGENTS
    found = sample(
        model,
        prompts,
        slots,
        registry.marking_keys(),
        tokens=TOKENS,
        temperature=temperature,
        barred=texts.tokenizer("shipped").special_ids,
        seed=texts.integer(f"cuts {family} {temperature}"),
    )
    decode, auditor = texts.tokenizer("shipped").decode, Auditor(registry)
    each = [
        figures(auditor, decode(ids.tolist()), len(decode(ids[:KEPT].tolist())), texts.agent_name(slot))
        for ids, slot in zip(found.ids, slots[:, 0].tolist(), strict=True)
    ]
    rows = []
    for part in each[0]:
        published, whole = ([row[part][name] for row in each] for name in ("published", "whole"))
        rows.append(
            {
                "family": family,
                "T": temperature,
                "nats": float(found.entropy.mean()),
                "part": part,
                "published": summary(published),
                "whole": summary(whole),
                "lost": summary(np.subtract(published, whole).tolist()),
                "found": float(np.mean(np.array(published) <= np.log(LEVEL))),
                "found_whole": float(np.mean(np.array(whole) <= np.log(LEVEL))),
            }
        )
    return rows


def main() -> None:
    line = parser("benchmarks.accuracy.cuts", __doc__)
    given = line.parse_args()
    torch.set_num_threads(1)
    model, _ = load_model(texts.MODELS["shipped"])
    rows = [row for f in FAMILIES for t in TEMPERATURES for row in measured(model, f, t)]
    form = {
        "family": "{family}",
        "T (nats)": "{T} ({nats:.2f})",
        "published part": "{part}",
        "ln p": "{published[0]:.1f}",
        "with the whole answer": "{whole[0]:.1f}",
        "difference": INTERVAL.replace("3f", "1f").format("lost"),
        "found": "{found:.2f}",
        "found with the whole": "{found_whole:.2f}",
    }
    finish(line, given, {"rows": rows}, columns(rows, form))


if __name__ == "__main__":
    sys.exit(exit_code(main))
