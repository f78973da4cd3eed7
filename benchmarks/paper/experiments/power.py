"""Power: how many tokens an agent must write to be found, read alone and with a language model.

The text of an agent is what it said in a log, turn after turn, and its first N tokens are audited under its
key alone. An agent among K is found if that p-value, corrected for K keys, is at most `LEVEL`. The length
that a finding needs is the smallest N at which it is found in `SHARE` of the texts of at least N tokens. The
p-values of `fourier` take no weights from a model, so both of its rows are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import iet
from benchmarks import recording
from benchmarks.paper import plots, results
from benchmarks.paper.conversations.logs import Log, summary
from benchmarks.paper.experiments.study import MARKED, Study
from benchmarks.paper.marks import Marker, agent_name
from benchmarks.statistics import Interval, interval
from iet import calibrate
from iet.audit.language_model import LanguageModel
from iet.native.arrays import Int64s

LENGTHS = (32, 48, 64, 96, 128, 192, 256, 384, 512, 768)
"""Tokens at which texts are cut."""

SHORT = 192
"""The length at which the share of found agents is shown, near the 200 of the European code of practice."""

LEVEL, SHARE = 0.01, 0.9
FEWEST_TEXTS = 10
"""Fewest texts of a length."""

KEYS = (1, 6, 100, 10_000)
READERS = ("alone", "with the writer's model")


class _Remembering(LanguageModel):
    """Predicts the longest of several texts once, which must come first and begin with the others."""

    _ids: Int64s = np.zeros(0, np.int64)

    def _predictions(self, ids: Int64s, vocab_size: int) -> Iterator[Any]:
        if not np.array_equal(ids, self._ids[: len(ids)]) or len(ids) == 0:
            self._ids, self._of_text = ids, list(super()._predictions(ids, vocab_size))
        for part in self._of_text:
            rows = len(ids) - part.start
            if rows > 0:
                yield part._replace(**{name: getattr(part, name)[:rows] for name in part._fields[1:]})


def power(study: Study, settings: Sequence[tuple[str, int]] = (("chain", 4),)) -> None:
    """Measure the tokens that a finding needs, in the texts of some settings together."""
    header = ["mark", "read", "nats a token", *(f"tokens, {_agents(keys)}" for keys in KEYS)]
    header += [f"found in {SHORT} tokens", "texts"]
    cells: list[list[recording.Cell]] = []
    rows, all_logs = [], list[Log]()
    shown: dict[str, list[Interval | None]] = {}
    model = _Remembering(study.loaded.model, tokenizer=study.loaded.tokenizer)
    for mark in MARKED:
        logs = [log for setting in settings for log in study.logs(study.setting(*setting, mark))]
        all_logs += logs
        entropy = f"{summary(logs).entropy:.2f}"
        for reader, with_model in zip(READERS, (None, model), strict=True):
            texts: list[dict[str, Any]] = [
                {"mark": mark, "reader": reader, "record": log.record, "agent": agent, "log_p": values}
                for log in results.with_progress(logs, f"log, {mark}, {reader}")
                for agent in range(log.setting.agents)
                if (values := _log_p(study, log, agent, with_model))
            ]
            rows += texts
            log_p: list[list[float]] = [text["log_p"] for text in texts]
            found = {keys: _found(log_p, keys) for keys in KEYS}
            longest = max((n for n, share in zip(LENGTHS, found[1], strict=True) if share), default=0)
            needed = [calibrate.tokens_needed(_needed(found[keys]), longest) for keys in KEYS]
            short = [found[keys][LENGTHS.index(SHORT)] for keys in KEYS]
            shares = " · ".join("-" if share is None else f"{share.mean:.0%}" for share in short)
            cells.append([mark, reader, entropy, *needed, shares, len(texts)])
            shown[f"{mark}, {reader}"] = found[6]
    note = f" Level {LEVEL:g}; found in {SHARE:.0%} of at least {FEWEST_TEXTS} texts of that length."
    regime = {"level": LEVEL, "share": SHARE, "keys": list(KEYS), "short": SHORT}
    study.write("power", header, cells, all_logs, rows, note=note, **regime)
    plots.sweep(
        *(study.out / "power", LENGTHS, shown),
        xlabel="tokens of an agent",
        operating_point=SHORT,
    )


def _agents(keys: int) -> str:
    return f"{keys:,} agent{'s' * (keys > 1)}"


def _log_p(study: Study, log: Log, agent: int, model: LanguageModel | None) -> list[float]:
    """Return the log p-value of an agent in its first tokens, for each length that its text has."""
    said = log.setting.joiner.join(turn.text for turn in log.turns if turn.agent == agent)
    ids = study.loaded.reader.encode(said).token_ids[: LENGTHS[-1]]
    name = agent_name(log.record, agent)
    registry = Marker(log.setting, study.loaded.reader).registry([name])
    assert isinstance(registry, iet.Registry)
    auditor = iet.Auditor(registry, model=model)
    lengths = [length for length in LENGTHS if length <= len(ids)]
    values = [auditor.audit(token_ids=ids[:length]).evidence[name] for length in reversed(lengths)]
    return values[::-1]


def _found(log_p: Sequence[Sequence[float]], keys: int) -> list[Interval | None]:
    """Return how often an agent among `keys` is found at each length, as a share; None: too few texts."""
    bound = calibrate.log_p_of_one(LEVEL, keys)
    of_lengths = [[values[i] <= bound for values in log_p if i < len(values)] for i in range(len(LENGTHS))]
    return [interval(hits) if len(hits) >= FEWEST_TEXTS else None for hits in of_lengths]


def _needed(found: Sequence[Interval | None]) -> int | None:
    reached = (n for n, share in zip(LENGTHS, found, strict=True) if share and share.mean >= SHARE)
    return next(reached, None)
