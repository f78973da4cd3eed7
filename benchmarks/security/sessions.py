"""Framing across sessions: what was published in some sessions, written again to pass in another.

    python -m benchmarks.security.sessions --work DIR -o benchmarks/results/security_sessions.json

The stranger is that of `benchmarks.security.framing`, and writes 300 new tokens; but each text that was
published was marked in a session of its own (`Registry.session`). Three audits of what is forged: given the
one session that it is to pass in, of which nothing was seen; given all sessions, the seen ones and 100
others: does it pass at all, and is one of the others named? And as it was: by agents' own keys where the same
stranger reads as many texts that were marked under them.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.recording import INTERVAL, columns, exit_code, finish, parser
from benchmarks.security.framing import FORGED, LEVEL, Stranger, attributed
from benchmarks.security.writing import AGENT, SCHEMES, TOKENS, in_sessions, name_of_session, team, written
from benchmarks.statistics import summary
from iet.audit.auditor import Auditor
from iet.marks.registry import Registry

SEEN = (1_200, 10_000, 30_000)
OTHERS = tuple(f"unseen {number}" for number in range(100))
"""Sessions of which nothing was published."""

OUTCOMES = ("own keys", "asked of one unseen", "asked of all", "an unseen one named")


def tried(
    registry: Registry, own: NDArray[np.int64], texts: NDArray[np.int64], seen: int, tries: int
) -> list[dict[str, float]]:
    """Return what each try of the attack comes to: 1 where it passes.

    Args:
        registry: of the agent.
        own: texts under its own key [N, 400].
        texts: text i [N, 400] in session i.
        seen: number of tokens that the stranger has read.
        tries: their number.
    """
    rows, n_gram = [], registry.profile.scheme.n_gram
    plain, unseen = Auditor(registry, level=LEVEL), Auditor(registry, level=LEVEL, sessions=OTHERS[:1])
    count = seen // TOKENS
    for seed in range(tries):
        chosen = np.random.default_rng(seed).permutation(len(texts))[:count]
        known = [name_of_session(int(number)) for number in chosen]
        forged = Stranger(texts[chosen].tolist(), n_gram, seed).write(FORGED)
        every = Auditor(registry, level=LEVEL, sessions=[*known, *OTHERS])
        named = {s.session for s in every.audit(token_ids=forged).segments if s.agent == AGENT}
        rows.append(
            {
                "own keys": float(
                    attributed(plain, Stranger(own[chosen].tolist(), n_gram, seed).write(FORGED))
                ),
                "asked of one unseen": float(attributed(unseen, forged)),
                "asked of all": float(bool(named)),
                "an unseen one named": float(bool(named.intersection(OTHERS))),
            }
        )
    return rows


def run(work: pathlib.Path, schemes: Sequence[str], seen: Sequence[int], tries: int) -> list[dict[str, Any]]:
    rows = []
    for scheme in schemes:
        registry, texts = team(scheme), in_sessions(work, scheme, max(seen))
        own, _ = written(work, scheme, max(seen))
        for tokens in tqdm(seen, desc=scheme):
            each = tried(registry, own, texts, tokens, tries)
            found = {name: [row[name] for row in each] for name in OUTCOMES}
            rows.append(
                {
                    **{"scheme": scheme, "seen": tokens, "sessions": tokens // TOKENS, "tries": tries},
                    **{name: summary(values) for name, values in found.items()},
                    "successes": {name: sum(values) for name, values in found.items()},
                }
            )
    return rows


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    formats = {
        **{"marked with": "{scheme}", "tokens published": "{seen:,}", "in sessions": "{sessions}"},
        "tries": "{tries}",
        **{name: INTERVAL.format(name) for name in OUTCOMES},
    }
    return (
        f"Share of tries in which {FORGED} new tokens of seen pairs are attributed to the agent at level"
        f" {LEVEL}: with its own keys, and in a session.\n\n{columns(rows, formats)}"
    )


def sessions(results: pathlib.Path) -> str:
    """Return the table for the docs."""
    content = json.loads((results / "security_sessions.json").read_text(encoding="utf-8"))
    formats = {
        **{"marked with": "{scheme}", "tokens published": "{seen:,}", "in sessions": "{sessions}"},
        "forgeries attributed, without sessions": "{own keys[0]:.0%}",
        "asked of one session, of which nothing was seen": "{asked of one unseen[0]:.0%}",
        "asked of all sessions": "{asked of all[0]:.0%}",
        "and an unseen one named": "{an unseen one named[0]:.0%}",
    }
    return f"{columns(content['rows'], formats)}\n\n`{content['command']}`."


def main() -> None:
    line = parser("benchmarks.security.sessions", __doc__)
    line.add_argument("--work", type=pathlib.Path, required=True, help="folder of the texts")
    line.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES), help="those to try")
    line.add_argument("--seen", type=int, nargs="+", default=list(SEEN), help="tokens that are published")
    line.add_argument("--tries", type=int, default=100, help="of the attack, each (default: 100)")
    given = line.parse_args()
    rows = run(given.work, given.schemes, given.seen, given.tries)
    finish(line, given, {"rows": rows}, markdown(rows))


if __name__ == "__main__":
    sys.exit(exit_code(main))
