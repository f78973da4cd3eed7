"""What a report is: `Report`, its `Segment`s, and its JSON form."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import os
import pathlib
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from iet.decoding.transitions import Transitions
from iet.errors import InputError
from iet.marks.keys import AnyProfile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEFT_OUT = -2
"""The label of a token that was not read, because it lies in a part that was left out, or partly in it."""

REPORT_SCHEMA = "iet.report/1"
"""Name and version of the JSON form; `iet/report/schema.json` describes it."""


class Span(NamedTuple):
    """Characters `[start, end)` of the text as given, and their agent (None: unattributed)."""

    start: int
    end: int
    agent: str | None


@dataclasses.dataclass(frozen=True)
class Segment:
    """One stretch of text, and who wrote it.

    Attributes:
        char_start, char_end: characters `[char_start, char_end)` of the text as given; None where only ids
            were audited. Segments of a text cover it without gaps.
        start, end: tokens `[start, end)`. None where the text was read in the tokens of several profiles.
        agent: who wrote it, None where nobody's key explains it at the report's level (see `Auditor`), or it
            is left out.
        best_guess: the agent whose key explains it best; equal to `agent` unless that is None. None where
            the segment is left out.
        log_p: natural log of the p-value of `best_guess`, corrected for the number of keys and for having
            chosen the segment: how likely unmarked text would yield any segment as telling as this. By
            itself, without what the rest of the text says about the agent. Where the boundaries were given,
            corrected for the number of keys and pieces. 0 where left out.
        posterior: mean posterior of `best_guess` over the tokens, None where the decoder has none.
        error: posterior probability that `best_guess` wrote none of it (at most: 1 - the highest posterior of
            one of its tokens). None where the decoder has none.
        start_interval, end_interval: tokens between which the boundary may lie: towards either side, the
            posterior of that side's agent is below 0.95. Characters where there are several profiles; None
            where the decoder has no posterior.
        left_out: the caller said that this is no agent's text: it was not read, and counts in no share.
            Its tokens are those that lie at least partly in it.
    """

    char_start: int | None
    char_end: int | None
    start: int | None
    end: int | None
    agent: str | None
    best_guess: str | None
    log_p: float
    posterior: float | None
    error: float | None
    start_interval: tuple[int, int] | None
    end_interval: tuple[int, int] | None
    left_out: bool = False


class _Axis(Protocol):
    """What a decoder went along, see `iet.audit.alignment.Axis`."""

    @property
    def starts(self) -> NDArray[np.int64]: ...
    def place(self, indices: NDArray[np.int64], end: int) -> NDArray[np.int64]: ...


@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """What the decoder saw along the text: for pictures, in no file. Positions are computed when asked for.

    Attributes:
        agents: P names, the columns below: those whose keys were looked at.
        axis: the R tokens that were read. With several profiles, the places where a token of any of them
            starts.
        posterior: float32 [R, P], or None where the decoder has none.
        scores: f [W, P], the mean score of each window under each agent's key.
        window, step: that the windows were made with, in tokens.
    """

    agents: tuple[str, ...]
    axis: _Axis = dataclasses.field(repr=False)
    posterior: NDArray[np.float32] | None = dataclasses.field(repr=False)
    scores: NDArray[np.float64] = dataclasses.field(repr=False)
    window: int = 64
    step: int = 16

    @functools.cached_property
    def starts(self) -> NDArray[np.int64]:
        """int64 [R], where each of the tokens starts: its character, or its number where there is no text."""
        return self.axis.starts

    @property
    def tokens(self) -> NDArray[np.int64]:
        """int64 [R], their numbers among all tokens of the text; with several profiles their `starts`."""
        return self.axis.place(np.arange(len(self.starts)), 0)

    @property
    def centres(self) -> NDArray[np.int64]:
        """int64 [W], where the centres of the windows lie, in the unit of `starts`."""
        middle = min(self.window, len(self.starts)) // 2
        return self.starts[np.arange(len(self.scores)) * self.step + middle]


@dataclasses.dataclass(frozen=True, eq=False)
class Report:
    """What an audit found, and under which assumptions.

    `print(report)` shows it as plain text, `iet audit` in colours.

    Attributes:
        text: the text as given, None where only ids were audited.
        profiles: schemes, vocabularies and tokenizers that were assumed.
        registry_digest: commitment to the registry's keys.
        agents: names of the profiles' agents; what `token_agents` indexes.
        decoder: name of the decoder.
        options: its options where they differ from the defaults.
        level: what evidence an attribution needs, see `Auditor` (unless `allow_unattributed` is off).
        allow_unattributed: False is the paper's forced choice.
        decoys: how many keys that nobody holds the p-values were taken from; 0: from the null law.
        log_p: natural log of the p-value of the whole text: how likely a text that no registered agent wrote
            in has an agent who seems to speak in it as much as any does in this.
        evidence: the same for each agent that was read (`known_agents`, else all), corrected for the number
            of keys (Holm). An agent is found in the text if it is at most log `level`.
        tokens, left_out, scored, repeated: T, how many of them are not read because they lie at least partly
            in a part that was left out, how many are scored, how many repeat a (context, token) pair. With
            several profiles, in which the text has other tokens each, the sums over them.
        invisible: characters that were left out before tokenizing (see `iet.marks.tokenizer.INVISIBLE`).
        seam_share: share of the characters in the two tokens that touch each boundary. Where a turn ended
            inside one, its text was generated as other tokens than those read. None without text.
        segments: in order.
        transitions: over the agents that occur, by name.
        labels: `token_agents`, or None with several profiles.
        posterior: float32 [T, P], the probability of each of `posterior_agents` at each token; what is
            missing to 1 is nobody's. 0 where left out. None where the decoder has none, and with several
            profiles.
        posterior_agents: int32 [P], ascending, the columns of `posterior` as indices into `agents`: all of
            them, or with more than 64 keys those that the decoder looked at. The posterior of others is 0.
        strengths: fitted λ of each of those agents, None where the decoder has none.
        model: the language model that helped reading, None without: name, digest (None above 1 GiB),
            temperature, temperature_fitted, share (its weight beside the text itself and chance) and nats
            (mean surprise at a token), see `iet.audit.language_model`.
        trace: scores and posteriors along the text, for pictures.
    """

    text: str | None
    profiles: tuple[AnyProfile, ...]
    registry_digest: str
    agents: tuple[str, ...]
    decoder: str
    options: dict[str, Any]
    level: float
    allow_unattributed: bool
    decoys: int
    log_p: float
    evidence: dict[str, float]
    tokens: int
    left_out: int
    scored: int
    repeated: int
    invisible: int
    seam_share: float | None
    segments: tuple[Segment, ...]
    transitions: Transitions
    labels: NDArray[np.int32] | None = dataclasses.field(repr=False)
    posterior: NDArray[np.float32] | None = dataclasses.field(repr=False)
    posterior_agents: NDArray[np.int32] | None = dataclasses.field(repr=False)
    strengths: dict[str, float] | None
    model: dict[str, Any] | None = None
    trace: Trace | None = dataclasses.field(default=None, repr=False)

    @property
    def profile(self) -> AnyProfile:
        """The only profile. Raises InputError, with the ids, when there are several."""
        if len(self.profiles) > 1:
            raise InputError(f"profile: the text was read under {[p.id for p in self.profiles]}")
        return self.profiles[0]

    @property
    def token_agents(self) -> NDArray[np.int32]:
        """int32 [T], index into `agents`, -1 = unattributed, -2 = left out.

        Raises:
            InputError: the text was read in the tokens of several profiles.
        """
        if self.labels is None:
            raise InputError(
                f"token_agents: the text was read in the tokens of {len(self.profiles)} profiles;"
                " expected char_agents, or Auditor(profile=)"
            )
        return self.labels

    @property
    def char_agents(self) -> tuple[Span, ...]:
        """Runs over the characters of the text: who wrote each, neighbours of one agent in one run.

        What was left out is in no run.

        Raises:
            InputError: only token ids were audited.
        """
        if self.text is None:
            raise InputError("char_agents: the report has no text, only token ids; expected audit(text)")
        runs: list[Span] = []
        for segment in self.segments:
            assert segment.char_start is not None
            assert segment.char_end is not None
            if segment.left_out:
                continue
            if runs and runs[-1][1:] == (segment.char_start, segment.agent):
                runs[-1] = Span(runs[-1].start, segment.char_end, segment.agent)
            elif segment.char_end > segment.char_start:
                runs.append(Span(segment.char_start, segment.char_end, segment.agent))
        if self.text and not self.segments:  # nothing in it is a token: a text of invisible characters alone
            runs.append(Span(0, len(self.text), None))
        return tuple(runs)

    @property
    def found(self) -> tuple[str, ...]:
        """The agents that are found in the text at its level, the surest first."""
        sure = [name for name, log_p in self.evidence.items() if log_p <= math.log(self.level)]
        return tuple(sorted(sure, key=self.evidence.__getitem__))

    @property
    def coverage(self) -> float:
        """The share of what was read that is attributed, 0 if nothing was: of the tokens, or of the
        characters with several profiles."""
        if self.labels is not None:
            return float((self.labels >= 0).sum() / max(1, (self.labels > LEFT_OUT).sum()))
        runs = self.char_agents
        read = sum(end - start for start, end, _ in runs)
        return sum(end - start for start, end, agent in runs if agent is not None) / max(1, read)

    def to_dict(self, *, text: bool = True) -> dict[str, Any]:
        """Return the JSON form; `text=False` leaves the text out, its digest stays."""
        return {
            "schema": REPORT_SCHEMA,
            "draft": any(profile.family.version == 0 for profile in self.profiles),
            "text_sha256": None if self.text is None else hashlib.sha256(self.text.encode()).hexdigest(),
            "text": self.text if text else None,
            "profiles": [
                {**profile.to_dict(), "id": profile.id, "digest": profile.digest} for profile in self.profiles
            ],
            "registry_digest": self.registry_digest,
            "agents": list(self.agents),
            "decoder": {
                "name": self.decoder,
                "options": {name: plain(value) for name, value in self.options.items()},
            },
            "level": self.level,
            "allow_unattributed": self.allow_unattributed,
            "decoys": self.decoys,
            "log_p": self.log_p,
            "evidence": self.evidence,
            "tokens": self.tokens,
            "left_out": self.left_out,
            "scored": self.scored,
            "repeated": self.repeated,
            "invisible": self.invisible,
            "coverage": self.coverage,
            "seam_share": self.seam_share,
            "strengths": self.strengths,
            "model": self.model,
            "segments": [dataclasses.asdict(segment) for segment in self.segments],
            "transitions": {
                "agents": list(self.transitions.agents),
                "adjacency": self.transitions.adjacency.astype(int).tolist(),
                "confidence": self.transitions.confidence.tolist(),
                "bitmask": hex(self.transitions.bitmask),  # a JSON number would lose bits in many readers
                "topology": self.transitions.topology.name,
                "topology_matches": list(self.transitions.topology.matches),
            },
        }

    def to_json(self, path: str | os.PathLike[str] | None = None, *, text: bool = True) -> str:
        """Return the JSON form as a string, and write it to `path`.

        Args:
            path: a file, replaced whole or not at all. None: nothing is written.
            text: False leaves the text out, its digest stays.
        """
        return _written(json.dumps(self.to_dict(text=text), ensure_ascii=False, indent=1), path)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the report as a page that needs nothing but itself, and write it to `path`.

        Args:
            path: a file, replaced whole or not at all. None: nothing is written.
        """
        from iet.report.html import page

        return _written(page(self), path)

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw scores, boundaries and agents along the text (see `iet.report.plot`).

        Args:
            axes: matplotlib's. None: new ones.
        """
        from iet.report.plot import plot

        return plot(self, axes)

    def _repr_html_(self) -> str:
        from iet.report.html import fragment

        return fragment(self)

    def to_prov(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the report as W3C PROV-JSON (see `iet.report.prov`), and write it to `path`.

        Args:
            path: a file, replaced whole or not at all. None: nothing is written.
        """
        from iet.report.prov import document

        return _written(json.dumps(document(self), ensure_ascii=False, indent=1), path)

    def evaluation_events(self, response_id: str | None = None) -> list[dict[str, Any]]:
        """Return the attributes of one OpenTelemetry event a segment (see `iet.report.telemetry`).

        Args:
            response_id: of the response that was audited, as its own span names it.
        """
        from iet.report.telemetry import events

        return events(self, response_id)

    def __str__(self) -> str:
        from iet.report.terminal import plain

        return plain(self)


def _written(data: str, path: str | os.PathLike[str] | None) -> str:
    if path is not None:
        write_file(path, data.encode() + b"\n")
    return data


def write_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file that is replaced whole or not at all."""
    target = pathlib.Path(path)
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def plain(value: Any) -> Any:
    """Return numbers and arrays of NumPy, or lists with such in them, as JSON has them."""
    return value if value is None or isinstance(value, str) else np.asarray(value).tolist()


def extent(segment: Segment) -> tuple[int, int]:
    """Return where a segment lies: its characters, or its tokens where only ids were audited."""
    if segment.char_start is not None and segment.char_end is not None:
        return segment.char_start, segment.char_end
    assert segment.start is not None
    assert segment.end is not None
    return segment.start, segment.end


def p_value(log_p: float) -> str:
    """Return a p-value as people read it, from its natural log, however small."""
    if log_p > math.log(1e-3):
        return f"{math.exp(log_p):.3g}"
    exponent = math.floor(log_p / math.log(10))
    mantissa = f"{math.exp(log_p - exponent * math.log(10)):.1f}"
    return f"1.0e{exponent + 1}" if mantissa == "10.0" else f"{mantissa}e{exponent}"
