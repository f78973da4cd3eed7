"""What all experiments share: the model, the records, the logs on disk, and the options chosen on others."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks import recording
from benchmarks.paper import results
from benchmarks.paper.conversations import generate
from benchmarks.paper.conversations.author import Author, ModelAuthor
from benchmarks.paper.conversations.logs import Log, Setting, summary
from benchmarks.paper.conversations.records import Record, chosen, claim, digest_of
from benchmarks.paper.marks import Keys, Marker
from benchmarks.paper.reading import readers
from benchmarks.paper.reading.scoring import score, true_edges, truth_of
from benchmarks.paper.transforms.altered import Altered
from benchmarks.writing.models import Loaded
from iet.errors import InputError

TUNING = 8
"""Records on which options are chosen: behind those that are measured, in the same drawn order."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What a run is asked for; all of it is in what it writes."""

    records: int  # of each setting
    seed: int = 0  # of everything that is drawn
    # See `generate.setting_of`
    temperature: float = 1.0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    protocol: str = "round-major"
    joiner: str = " "
    rounds: int = 3
    turn_tokens: tuple[int, int] | None = None
    prompt_tokens: int | None = None
    batch: int = 128  # turns that are sampled together


class Study:
    """Logs of any setting of one run, made when they are asked for, and kept in `out / "logs"`."""

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
                f"records: got {options.records}, expected 1 to {len(records) - tuning}: {tuning} of the"
                f" {len(records)} are kept to choose options on"
            )
        claim(out / "logs", records)
        self.all_records = records
        drawn = chosen(records, options.records + tuning, options.seed)
        self.loaded, self.out, self.options = loaded, out, options
        self.records, self.others = drawn[: options.records], drawn[options.records :]
        self.given: dict[str, dict[str, Any]] = {}
        """Experiment -> what it was given beside the options; part of its configuration."""

    def setting(self, topology: str, agents: int, mark: str, strength: float | None = None) -> Setting:
        """Return a setting; a δ that is not given is the one of equal KL."""
        asked = {k: v for k, v in dataclasses.asdict(self.options).items() if k not in ("records", "batch")}
        found = generate.setting_of(
            self.loaded, topology=topology, agents=agents, mark=mark, strength=strength, **asked
        )
        return generate.with_delta(found, self.loaded, self.others, self.out / "logs")

    def logs(self, setting: Setting, tuning: bool = False) -> list[Log]:
        """Return the logs of the records that are measured, or of those that options are chosen on."""
        author: Author = ModelAuthor(self.loaded, setting, batch=self.options.batch)
        some = self.others if tuning else self.records
        group = generate.group_of(setting, self.options.batch)
        return generate.logs_of(setting, some, author, self.loaded, self.out / "logs", group=group)

    def record(self, log: Log) -> Record:
        return self.all_records[log.record]

    def keys(self, log: Log, spurious: int = 0) -> Keys:
        """Return the keys of a log's agents, and of some that did not write."""
        return Marker(log.setting, self.loaded.reader).keys(log.record, spurious)

    def cusum(self, setting: Setting) -> dict[str, Any]:
        """Return the options of "cusum" that suit the other records of a setting best."""
        path = self.out / "logs" / f"cusum-{setting.digest[:16]}-{digest_of(self.others)[:16]}.json"
        reader = self.loaded.reader

        def tuned() -> dict[str, float]:
            logs = self.logs(setting, tuning=True)
            return readers.tune([(log.text, self.keys(log), truth_of(log, reader)) for log in logs], reader)

        return results.kept(path, tuned)

    def options_of(self, decoder: str, setting: Setting) -> dict[str, Any]:
        """Return the options of a decoder: those that suit other records, of the one that needs some."""
        return self.cusum(setting) if decoder == "cusum" else {}

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
        """Return the figures of a log, or of what became of it, in forced choice.

        Characters that nobody wrote count in none of them: no reader in forced choice can be right there.
        What is attributed of them where text may stay unattributed is `false_alarms`.

        Args:
            oracle: whether the reader is told the true boundaries.
            spurious: keys in the registry that nobody wrote with.
        """
        text, agents, reader = altered or log, log.setting.agents, self.loaded.reader
        truth = truth_of(text, reader)
        boundaries = [end for _, end, _ in text.spans[:-1]] if oracle else None
        found = readers.read(text.text, self.keys(log, spurious), reader, decoder, options, boundaries)
        known, edges = truth >= 0, true_edges(text, agents)
        figures = score(
            truth[known], found.labels[known], agents=agents, edges=edges, found_edges=found.edges
        )
        if altered is not None and found.free is not None:
            figures["false_alarms"] = float((found.free[~known] >= 0).mean()) if (~known).any() else None
        return figures

    def configuration(self, experiment: str) -> dict[str, Any]:
        """Return all that an experiment's figures depend on, with what was not asked for filled in."""
        lengths = self.setting("chain", 4, "none")
        return {
            "experiment": experiment,
            "model": self.loaded.name,
            "model_digest": self.loaded.digest,
            **dataclasses.asdict(self.options),
            "records_digest": digest_of(self.all_records),
            "turn_tokens": list(lengths.turn_tokens),
            "prompt_tokens": lengths.prompt_tokens,
            "records_measured": [record.index for record in self.records],
            "records_for_options": [record.index for record in self.others],
            **self.given.get(experiment, {}),
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
        """Write the table of an experiment, with its configuration, its logs and a row a text.

        See `recording.write_table`; `note` is what Markdown says behind the line on the logs.
        """
        content = results.content(
            self.configuration(experiment),
            logs=dataclasses.asdict(summary(logs)) if logs else None,
            settings=sorted({log.setting.name for log in logs}),
            **more,
        )
        recording.write_table(
            self.out / experiment, header, cells, content, rows=rows, note=self.note(logs) + note
        )

    def note(self, logs: Sequence[Log]) -> str:
        o, lengths = self.options, self.setting("chain", 4, "none")
        fewest, most = lengths.turn_tokens
        turns = f"{most}" if fewest == most else f"{fewest} to {most}{' drawn' * lengths.drawn_lengths}"
        penalty = f" repetition penalty {o.repetition_penalty:g}," if o.repetition_penalty != 1 else ""
        template = (
            "" if self.loaded.chat else " (no chat template: prompts are plain text, which it continues)"
        )
        return (
            f"Model {self.loaded.name}{template}, T = {o.temperature:g}, top-p {o.top_p:g},"
            f"{penalty} {o.protocol},"
            f" turns of {turns} tokens from prompts of at most {lengths.prompt_tokens}, joiner {o.joiner!r}:"
            f" {summary(logs)}. Intervals are 95 % bootstraps over records."
        )
