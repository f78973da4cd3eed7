"""Progress of a run, counted as documents are read and audited."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from iet.bulk.inputs import Chunk
from iet.bulk.sources import Source


@dataclasses.dataclass(frozen=True)
class Progress:
    """Progress of a run.

    Attributes:
        documents: number of documents that this process audited.
        seconds: time since it started to audit.
        share: share of the input's bytes that are audited or skipped for other shards, 0 to 1.
        fresh: share of the input's bytes that this process audited.
    """

    documents: int
    seconds: float
    share: float
    fresh: float

    def __str__(self) -> str:
        rate = self.documents / max(self.seconds, 1e-9)
        remaining = (1 - self.share) * self.seconds / self.fresh if self.fresh else 0.0
        minutes, seconds = divmod(round(remaining), 60)
        hours, minutes = divmod(minutes, 60)
        return (
            f"{self.documents:,} documents, {rate:,.0f}/s, {self.share:.0%} done,"
            f" {hours}:{minutes:02}:{seconds:02} left"
        )


class Tracker:
    """Count what is read and audited, and report it."""

    def __init__(self, sources: Sequence[Source], report: Callable[[Progress], None] | None) -> None:
        sizes = [source.size for source in sources]
        self._before = np.cumsum([0, *sizes])
        self._total = max(1, sum(sizes))
        self._report = report
        self._started = time.monotonic()
        self._documents, self._read, self._fresh = 0, 0, 0
        self._left = dict[int, tuple[int, int]]()
        """Index of an unfinished chunk -> its unfinished bytes and records."""

    def skipping(self, stream: Iterable[Chunk], wanted: Callable[[Chunk], bool]) -> Iterator[Chunk]:
        """Yield the chunks that `wanted` accepts."""
        for chunk in stream:
            last = chunk.records[-1]
            read = int(self._before[last.source]) + last.position
            if wanted(chunk):
                self._left[chunk.index] = read - self._read, len(chunk)
                self._read = read
                yield chunk
            self._read = read

    def audited(self, index: int, records: int) -> None:
        """Count records of a chunk as audited; each has the same share of the chunk's bytes."""
        size, count = self._left.pop(index)
        part = size * records // count
        if records < count:
            self._left[index] = size - part, count - records
        self._documents += records
        self._fresh += part
        if self._report is not None:
            seconds = time.monotonic() - self._started
            done = self._read - sum(remaining for remaining, _ in self._left.values())
            self._report(Progress(self._documents, seconds, done / self._total, self._fresh / self._total))
