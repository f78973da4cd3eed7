"""A run of the experiments on MAMA: model, records, logs on disk, and options tuned on other records."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks import recording
from benchmarks.paper import results
from benchmarks.paper.conversations import generate
from benchmarks.paper.conversations.author import ModelAuthor
from benchmarks.paper.conversations.logs import Log, Setting, summary
from benchmarks.paper.conversations.records import Record, chosen, digest_of
from benchmarks.paper.marks import Keys, Marker
from benchmarks.paper.reading import readers
from benchmarks.paper.reading.scoring import score, true_edges, truth_of
from benchmarks.paper.transforms import Altered
from benchmarks.writing.models import Loaded
from iet.errors import InputError

TUNING = 8
"""Number of records on which options are tuned; none of them is measured."""

MARKED = ("fourier", "gumbel")
"""Default marks of experiments that do not compare marks."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Parameters of a run; all of them are in its results."""

    records: int  # for each setting
    seed: int = 0  # of all draws
    temperature: float = 1.0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    joiner: str = " "
    rounds: int = 3
    turn_tokens: tuple[int, int] | None = None  # None: see `generate.SHORT` and `LONG`
    prompt_tokens: int | None = None
    batch: int = 128  # turns that are sampled together


class Study:
    """Logs of the settings of a run, generated on demand and kept in `out / "logs"`."""

    def __init__(
        self,
        loaded: Loaded,
        records: tuple[Record, ...],
        out: pathlib.Path,
        options: Options,
        tuning: int = TUNING,
    ) -> None:
        if not 1 <= options.records <= len(records) - tuning:
            raise InputError(
                f"records: got {options.records}, expected 1 to {len(records) - tuning}: options are tuned on"
                f" {tuning} of the {len(records)}"
            )
        self.all_records = records
        drawn = chosen(records, options.records + tuning, options.seed)
        self.loaded, self.out, self.options = loaded, out, options
        self.records, self.tuning_records = drawn[: options.records], drawn[options.records :]
        self.inputs: dict[str, dict[str, Any]] = {}
        """Experiment -> its inputs other than the options; part of its configuration."""

    def setting(self, topology: str, agents: int, mark: str, strength: float | None = None) -> Setting:
        """Return a setting; without a strength δ is that of equal KL."""
        fields = {k: v for k, v in dataclasses.asdict(self.options).items() if k not in ("records", "batch")}
        setting = generate.setting_of(
            self.loaded, topology=topology, agents=agents, mark=mark, strength=strength, **fields
        )
        return generate.with_delta(setting, self.loaded, self.tuning_records, self.out / "logs")

    def logs(self, setting: Setting, tuning: bool = False) -> list[Log]:
        """Return the logs of the measured records, or of those on which options are tuned."""
        author = ModelAuthor(self.loaded, setting, batch=self.options.batch)
        records = self.tuning_records if tuning else self.records
        group = max(1, self.options.batch // setting.agents)
        return generate.logs_of(setting, records, author, self.out / "logs", group=group)

    def record(self, log: Log) -> Record:
        return self.all_records[log.record]

    def keys(self, log: Log, spurious: int = 0) -> Keys:
        """Return the keys of a log's agents, followed by keys of agents that did not write."""
        return Marker(log.setting, self.loaded.reader).keys(log.record, spurious)

    def decoder_options(self, decoder: str, setting: Setting) -> dict[str, Any]:
        """Return the options of a decoder: only "cusum" has some, tuned on other records' chains of four."""
        if decoder != "cusum":
            return {}
        setting = dataclasses.replace(setting, topology="chain", agents=4)
        path = self.out / "logs" / f"cusum-{setting.digest[:16]}-{digest_of(self.tuning_records)[:16]}.json"
        reader = self.loaded.reader

        def tuned() -> dict[str, float]:
            logs = self.logs(setting, tuning=True)
            return readers.tune([(log.text, self.keys(log), truth_of(log, reader)) for log in logs], reader)

        return results.cached(path, tuned)

    def figures(
        self,
        log: Log,
        decoder: str,
        options: Mapping[str, Any],
        altered: Altered | None = None,
        *,
        oracle: bool = False,
        spurious: int = 0,
    ) -> dict[str, float | None]:
        """Return the figures of a log, or of its altered text, in forced choice.

        Args:
            oracle: whether the reader gets the true boundaries.
            spurious: number of registered keys that no agent wrote with.
        """
        source, agents, reader = altered or log, log.setting.agents, self.loaded.reader
        boundaries = [end for _, end, _ in source.spans[:-1]] if oracle else None
        reading = readers.read(source.text, self.keys(log, spurious), reader, decoder, options, boundaries)
        edges = true_edges(source, agents)
        truth = truth_of(source, reader)
        return score(truth, reading.labels, agents=agents, edges=edges, found_edges=reading.edges)

    def configuration(self, experiment: str) -> dict[str, Any]:
        """Return everything that the figures of an experiment depend on."""
        lengths = self.setting("chain", 4, "none")
        return {
            "experiment": experiment,
            "model": self.loaded.name,
            "model_digest": self.loaded.digest,
            **dataclasses.asdict(self.options),
            "records_digest": digest_of(self.all_records),
            "turn_tokens": list(lengths.turn_tokens),
            "prompt_tokens": lengths.prompt_tokens,
            "protocol": "round-major",
            "records_measured": [record.index for record in self.records],
            "records_for_options": [record.index for record in self.tuning_records],
            **self.inputs.get(experiment, {}),
        }

    def write(
        self,
        experiment: str,
        header: Sequence[str],
        cells: Sequence[Sequence[recording.Cell]],
        logs: Sequence[Log],
        rows: Iterable[Mapping[str, Any]],
        *,
        note: str = "",
        **more: Any,
    ) -> None:
        """Write the table of an experiment with its configuration, and a row for each text."""
        content = results.content(
            self.configuration(experiment),
            logs=dataclasses.asdict(summary(logs)) if logs else None,
            settings=sorted({log.setting.name for log in logs}),
            **more,
        )
        path = self.out / experiment
        recording.write_table(path, header, cells, content, rows=rows, note=self.note(logs) + note)

    def note(self, logs: Sequence[Log]) -> str:
        o, lengths = self.options, self.setting("chain", 4, "none")
        min_tokens, max_tokens = lengths.turn_tokens
        turns = (
            f"{max_tokens}"
            if min_tokens == max_tokens
            else f"{min_tokens} to {max_tokens}{' drawn' * lengths.drawn_lengths}"
        )
        penalty = f" repetition penalty {o.repetition_penalty:g}," if o.repetition_penalty != 1 else ""
        template = "" if self.loaded.chat else " (no chat template: prompts are plain text to continue)"
        return (
            f"Model {self.loaded.name}{template}, T = {o.temperature:g}, top-p {o.top_p:g},{penalty} turns of"
            f" {turns} tokens from prompts of at most {lengths.prompt_tokens}, joiner {o.joiner!r}:"
            f" {summary(logs)}. Intervals are 95 % bootstraps over records."
        )
