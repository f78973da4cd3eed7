"""What a language model adds to reading family gumbel, and what the other likely tokens add to that.

    python -m benchmarks.accuracy.with_model -o benchmarks/results/with_model.json

Texts of twelve turns of 120 tokens by four agents, written by each of the benchmarks' models and read with
the one that wrote them, which sees neither prompts nor temperature. Two readers with a model: one reads the
noise of the token that stands in the text (`gumbel_log_ratios`), the other also that of the 64 likeliest
tokens, any of which could have won (`choice_log_ratios`). Nats a token are the mean log-likelihood ratio of
the agent who wrote it, over all tokens; those of a stranger the log of the mean ratio of the other agents,
which is 0 or less if no reader is fooled. TokenAcc is that of `posterior` in forced choice.
"""

from __future__ import annotations

import contextlib
import sys
import unittest.mock
from collections.abc import Iterator
from typing import Any

import numpy as np

import iet
from benchmarks.accuracy import texts
from benchmarks.accuracy.decoders import Text, form
from benchmarks.recording import INTERVAL, columns, exit_code, finish, parser
from benchmarks.statistics import summary
from iet.audit import language_model, mixture
from iet.audit.auditor import Auditor
from iet.audit.metrics import token_accuracy
from iet.demo.conversation import load_model
from iet.kernels import positions, score_tokens

FAMILY, AGENTS, TURNS = "gumbel", 4, 12


@contextlib.contextmanager
def chosen_alone() -> Iterator[None]:
    """Read the noise of the chosen token alone while this lasts."""

    def without(scores: Any, q: Any, counted: Any, choices: Any) -> Any:
        return mixture.gumbel_log_ratios(scores, q, counted)

    with unittest.mock.patch.object(language_model, "gumbel_log_ratios", without):
        yield


def figures_of(text: Text, reader: iet.LanguageModel) -> dict[str, float]:
    """Return the figures of one text."""

    def accuracy(**options: Any) -> float:
        report = Auditor(text.registry, allow_unattributed=False, **options).audit(text.talk.text)
        return token_accuracy(text.truth, report.token_agents)

    keys, named = text.registry.scoring_keys(), text.truth >= 0
    scored, _ = positions(text.ids, text.registry)
    scores, writer = score_tokens(text.ids, keys), text.truth[named, None] == np.arange(len(keys))
    found = {"without/accuracy": accuracy()}
    for name, how in (("chosen", chosen_alone()), ("likely", contextlib.nullcontext())):
        with how:
            read = reader.log_ratios(text.ids, keys, scores, scored).values[named]
            found[f"{name}/nats"] = float(read[writer].mean())
            found[f"{name}/strangers"] = float(np.log(np.exp(read[~writer].astype(np.float64)).mean()))
            found[f"{name}/accuracy"] = accuracy(model=reader)
    found["gain/accuracy"] = found["likely/accuracy"] - found["chosen/accuracy"]
    return found


def run(count: int, turn_tokens: int, models: dict[str, Any], temperatures: tuple[float, ...]) -> Any:
    """Return a row for each model and temperature."""
    rows = []
    for name, path in models.items():
        model, reader = load_model(path)[0], iet.LanguageModel(path)
        for temperature in temperatures:
            cell = texts.Cell(name, temperature, AGENTS, FAMILY)
            seeds = [texts.text_seed(cell, "with model", number) for number in range(count)]
            written = texts.generate(model, cell, seeds, turn_tokens=turn_tokens, turns=TURNS)
            each = [figures_of(form(turns, turn_tokens), reader) for turns in written]
            figures = {key: summary([row[key] for row in each]) for key in each[0]}
            rows.append(
                {
                    "model": name,
                    "temperature": temperature,
                    "texts": count,
                    "turn_tokens": turn_tokens,
                    **texts.entropies(written),
                    "figures": figures,
                }
            )
            print(name, temperature, {key: round(mean, 4) for key, (mean, _, _) in figures.items()})
    return {"rows": rows}


def markdown(content: dict[str, Any]) -> str:
    said = {
        "without/accuracy": "TokenAcc without a model",
        "chosen/accuracy": "with one, chosen token",
        "likely/accuracy": "and the likely ones",
        "gain/accuracy": "gain of these",
    }
    nats = {
        f"{name}/{what}": f"{name}: {what}" for name in ("chosen", "likely") for what in ("nats", "strangers")
    }
    formats = {
        "model": "{model}",
        "T (nats)": "{temperature:g} ({entropy_nats:.2f})",
        "texts": "{texts}",
        **{head: f"{{figures[{key}][0]:.3f}}" for key, head in nats.items()},
        **{head: INTERVAL.format(f"figures[{key}]") for key, head in said.items()},
    }
    return columns(content["rows"], formats)


def main() -> None:
    line = parser("benchmarks.accuracy.with_model", __doc__)
    line.add_argument("--texts", type=int, default=24, help="of each model and temperature")
    line.add_argument("--turn-tokens", type=int, default=120)
    given = line.parse_args()
    content = run(given.texts, given.turn_tokens, dict(texts.MODELS), texts.TEMPERATURES)
    finish(line, given, content, markdown(content))


if __name__ == "__main__":
    sys.exit(exit_code(main))
