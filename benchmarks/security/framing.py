"""Framing: new text that is attributed to an agent, written by somebody who has read what it published.

    python -m benchmarks.security.framing --work DIR -o benchmarks/results/security.json

**The attack.** A forger without a key has N tokens of one agent's texts (the shipped model at temperature
1) and writes 300 new tokens of (context, token) pairs that occur in them, the most frequent ones first, each
once. No 12 tokens in a row are copied from what was published: another seen pair is taken first, and
without one, another position of the published text follows, which costs n - 1 tokens without evidence. The
attack succeeds if a segment is attributed to the agent at level 0.01. It is tried with and without an index
of what was published. Tries differ in the texts that are seen (but for the largest N: there are no more) and
in the draws of the forger; the key is the same in all. `security_million*.json` are of a forger who knows
a million tokens.

**What it costs.** Four texts that the agent writes later are joined: which share of their
scored pairs was published before, and after how many tokens is the agent found, in steps of 10?
"""

from __future__ import annotations

import collections
import contextlib
import math
import pathlib
import random
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.recording import INTERVAL, columns, exit_code, finish, parser
from benchmarks.security.writing import AGENT, SCHEMES, TOKENS, team, written
from benchmarks.statistics import summary
from iet.audit.auditor import Auditor
from iet.marks.published import PublishedIndex
from iet.marks.registry import Registry

SEEN = (400, 1_200, 10_000, 30_000, 100_000)
FORGED, COPIED, LEVEL = 300, 12, 0.01
STEP, JOINED = 10, 4
_STEPS_BACK = 400

Ids = NDArray[np.int64]


class Forger:
    """A writer who has read some texts and combines their pairs."""

    def __init__(self, texts: Sequence[Sequence[int]], n_gram: int, seed: int) -> None:
        self._back = n_gram - 1
        self.begin(seed)
        counts = collections.Counter(
            tuple(text[t - self._back : t + 1]) for text in texts for t in range(self._back, len(text))
        )
        self._next: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for pair, count in counts.items():
            self._next.setdefault(pair[:-1], []).append((count, pair[-1]))
        self._copied = {tuple(text[t : t + COPIED]) for text in texts for t in range(len(text) - COPIED + 1)}
        self._contexts = list(self._next)

    def begin(self, seed: int) -> None:
        """Draw from now on as with this seed."""
        self._draw = random.Random(seed)

    def write(self, tokens: int) -> list[int]:
        """Return new text of pairs that were seen, as far as that goes."""
        written_ids = list(self._draw.choice(self._contexts))
        while len(written_ids) < tokens:
            if not self._go_on(written_ids, tokens):
                written_ids += self._draw.choice(self._contexts)
                while tuple(written_ids[-COPIED:]) in self._copied:
                    written_ids[-1:] = [self._draw.choice(self._contexts)[0]]
        return written_ids[:tokens]

    def _go_on(self, written_ids: list[int], tokens: int) -> bool:
        """Write the longest stretch of seen pairs of a bounded search; return whether there is one."""
        used = {tuple(written_ids[t - self._back : t + 1]) for t in range(self._back, len(written_ids))}
        start, best, steps = len(written_ids), list(written_ids), 0
        open_: list[list[int]] = [self._choices(written_ids, used)]
        while open_ and len(written_ids) < tokens and steps < _STEPS_BACK + len(best):
            steps += 1
            if open_[-1]:
                written_ids.append(open_[-1].pop())
                used.add(tuple(written_ids[-self._back - 1 :]))
                if len(written_ids) > len(best):
                    best = list(written_ids)
                open_.append(self._choices(written_ids, used))
            else:
                open_.pop()
                if open_:
                    used.discard(tuple(written_ids[-self._back - 1 :]))
                    written_ids.pop()
        written_ids[:] = best
        return len(best) > start

    def _choices(self, written_ids: list[int], used: set[tuple[int, ...]]) -> list[int]:
        """Return the tokens that may come next, the best one last."""
        context, copied = tuple(written_ids[-self._back :]), tuple(written_ids[-COPIED + 1 :])
        candidates = [
            (count, self._draw.random(), token)
            for count, token in self._next.get(context, ())
            if (*context, token) not in used and (*copied, token) not in self._copied
        ]
        return [token for _, _, token in sorted(candidates)]


def attributed(auditor: Auditor, ids: Sequence[int]) -> bool:
    """Tell whether a segment of the text is the agent's."""
    return any(segment.agent == AGENT for segment in auditor.audit(token_ids=ids).segments)


def until_found(auditor: Auditor, ids: Ids) -> float:
    """Return the number of tokens of a text that a finding needs; infinity without one."""
    for tokens in range(STEP, len(ids) + 1, STEP):
        if AGENT in auditor.audit(token_ids=ids[:tokens]).found:
            return tokens
    return math.inf


def index_of(folder: str, registry: Registry, texts: Ids) -> PublishedIndex:
    """Return an index of texts of the agent."""
    index = PublishedIndex(pathlib.Path(folder) / "published.idx", registry, create=True)
    index.add(AGENT, token_ids=texts)
    return index


def tried(registry: Registry, texts: Ids, seen: int, tries: int) -> list[dict[str, float]]:
    """Return what each try of the attack comes to."""
    rows, without, n_gram = [], Auditor(registry, level=LEVEL), registry.profile.scheme.n_gram
    uses_all_texts = seen // TOKENS >= len(texts)  # then all tries see the same
    with contextlib.ExitStack() as folders:
        for seed in range(tries):
            if not (uses_all_texts and seed):
                chosen = np.random.default_rng(seed).permutation(len(texts))[: seen // TOKENS]
                forger = Forger(texts[chosen].tolist(), n_gram, seed)
                folders.close()
                index = index_of(
                    folders.enter_context(tempfile.TemporaryDirectory()), registry, texts[chosen]
                )
                guarded = Auditor(registry, level=LEVEL, published=index)
            forger.begin(seed)
            forged = forger.write(FORGED)
            report = guarded.audit(token_ids=forged)
            rows.append(
                {
                    "without": float(attributed(without, forged)),
                    "with": float(any(segment.agent == AGENT for segment in report.segments)),
                    "seen pairs": (report.published or 0) / (report.scored + (report.published or 0)),
                }
            )
    return rows


def lost(registry: Registry, texts: Ids, later: Ids, seen: int) -> dict[str, Any]:
    """Return what honest new text loses, where `seen` tokens were published before."""
    joined = later.reshape(-1, JOINED * later.shape[1])
    with tempfile.TemporaryDirectory() as folder:
        index = index_of(folder, registry, texts[: seen // TOKENS])
        guarded = Auditor(registry, "cusum", level=LEVEL, published=index)
        shares = []
        for ids in later:
            report = guarded.audit(token_ids=ids)
            shares.append((report.published or 0) / (report.scored + (report.published or 0)))
        return {
            "share": summary(shares),
            "before": [until_found(Auditor(registry, "cusum", level=LEVEL), ids) for ids in joined],
            "after": [until_found(guarded, ids) for ids in joined],
        }


def run(
    work: pathlib.Path, seen: Sequence[int], tries: int, schemes: Sequence[str] = tuple(SCHEMES)
) -> list[dict[str, Any]]:
    rows = []
    for scheme in schemes:
        registry = team(scheme)
        texts, later = written(work, scheme, max(seen))
        for tokens in tqdm(seen, desc=scheme):
            tries_made = tried(registry, texts, tokens, tries)
            honest = lost(registry, texts, later, tokens)
            rows.append(
                {
                    "scheme": scheme,
                    "seen": tokens,
                    "tries": tries,
                    **{name: summary([row[name] for row in tries_made]) for name in tries_made[0]},
                    "successes": {name: sum(row[name] for row in tries_made) for name in ("without", "with")},
                    "published": honest["share"],
                    "honest texts": len(honest["after"]),
                    **{
                        f"found {when}": sum(map(math.isfinite, honest[when])) for when in ("before", "after")
                    },
                    **{f"tokens {when}": _median(honest[when]) for when in ("before", "after")},
                }
            )
    return rows


def _median(values: Sequence[float]) -> float | None:
    """Return the median, None where half of the texts are not found."""
    middle = sorted(values)[len(values) // 2]
    return middle if math.isfinite(middle) else None


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    table_rows = [
        {**row, **{name: row[name] or "not found" for name in ("tokens before", "tokens after")}}
        for row in rows
    ]
    attack = {
        **{"scheme": "{scheme}", "tokens seen": "{seen:,}", "tries": "{tries}"},
        "of pairs that were seen": INTERVAL.format("seen pairs"),
        "attributed": "{without[0]:.2f}",
        "with the index": "{with[0]:.2f}",
    }
    honest = {
        **{"scheme": "{scheme}", "tokens published": "{seen:,}", "texts": "{honest texts}"},
        "of pairs that were published": INTERVAL.format("published"),
        "found": "{found before}",
        "with the index": "{found after}",
        "tokens until found, median": "{tokens before}",
        "with the index, median": "{tokens after}",
    }
    return "\n\n".join(
        [
            f"**The attack**: {FORGED} new tokens, no {COPIED} in a row copied, of seen pairs as far as they"
            f" go; share of tries that are attributed to the agent at level {LEVEL}.",
            columns(table_rows, attack),
            f"**What honest text loses**: texts of {JOINED * TOKENS:,} tokens that the agent wrote later.",
            columns(table_rows, honest),
        ]
    )


def main() -> None:
    line = parser("benchmarks.security.framing", __doc__)
    line.add_argument("--work", type=pathlib.Path, required=True, help="folder of the texts")
    line.add_argument("--seen", type=int, nargs="+", default=list(SEEN), help="tokens that are published")
    line.add_argument("--tries", type=int, default=100, help="of the attack, each (default: 100)")
    line.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES), help="(default: all)")
    options = line.parse_args()
    rows = run(options.work, options.seen, options.tries, options.schemes)
    finish(line, options, {"rows": rows}, markdown(rows))


if __name__ == "__main__":
    sys.exit(exit_code(main))
