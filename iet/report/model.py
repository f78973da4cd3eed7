"""`Report`, its JSON form, and the names of its other forms.

The module of another form is imported when that form is made.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from iet.errors import InputError, check_path
from iet.marks.files import write_file
from iet.native.arrays import Float32s, Float64s, Int32s, Int64s
from iet.report.segments import Segment, Sessions, Span, Trace, extent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from iet.decoding.transitions import Transitions
    from iet.marks.keys import AnyProfile


def found_agents(log_p: Float64s, level: float) -> Int64s:
    """Return the agents whose log p-value [A] is at most log `level`, the lowest first; NaN is not found."""
    found = np.flatnonzero(log_p <= math.log(level))
    return found[np.argsort(log_p[found], kind="stable")]


REPORT_SCHEMA = "iet.report/1"
"""Name and version of the JSON form; `iet/report/schema.json` describes it."""


@dataclasses.dataclass(frozen=True, eq=False)
class Report:
    """The result of an audit of one text, and its assumptions.

    `print(report)` shows it as plain text, `iet audit` in colours.

    Attributes:
        text: the text as given; None if only ids were audited.
        profiles: the assumed schemes, vocabularies and tokenizers.
        registry_digest: commitment to the registry's keys.
        agents: names of the profiles' agents; `token_agents` holds indices into them.
        decoder: name of the decoder.
        options: its options that differ from the defaults.
        level: level of the tests, see `Auditor` (not used without `allow_unattributed`).
        allow_unattributed: False is the paper's forced choice.
        decoys: number of decoy keys that the p-values come from; 0: they come from the null law.
        log_p: natural log of the p-value of the whole text, the lowest of `evidence`.
        evidence: log p-value of each agent that was read (`known_agents`, else all), corrected for the number
            of keys (Holm). An agent is found in the text if it is at most log `level`.
        tokens, left_out, scored, repeated: T, and the numbers of tokens that lie at least partly in a part
            that was left out, that are scored, and that repeat a (context, token) pair. With several
            profiles, the sums over their tokens.
        invisible: characters that were left out before tokenizing (see `iet.marks.tokenizer.INVISIBLE`).
        coverage: share of what was read that is attributed, 0 if nothing was read: of the tokens, or of the
            characters with several profiles.
        seam_share: share of the characters in the two tokens that touch each boundary. A turn that ended
            inside one of them was generated as other tokens than those read. None without text.
        segments: in order.
        transitions: over the agents that occur, by name.
        labels: `token_agents`; None if profiles have different tokens.
        posterior: float32 [T, P], the probability of each of `posterior_agents` at each token; the rest to 1
            is the probability of no mark. 0 for tokens that are left out. None if the decoder has no
            posterior, or profiles have different tokens.
        posterior_agents: int32 [P], ascending, the columns of `posterior` as indices into `agents`: all
            agents, or with more than 64 keys the decoder's candidates. Other agents have posterior 0.
        strengths: fitted λ of each of those agents; None if the decoder has none.
        model: the language model that weighed tokens; None without: name, digest (None above 1 GiB),
            temperature, temperature_fitted, share (its weight in the mixture) and nats (mean surprise at a
            token), see `iet.audit.language_model`.
        published: number of tokens without a score only because their (context, token) pair was published
            before; None: no index was read.
        restored: names of the steps that were undone before reading
            (`iet.audit.layout_restoration.restored`), empty if the text reads best as given; None: no other
            reading was tried.
        sessions: the sessions that were read, and those that agents are found in; None: none were read.
        trace: scores and posteriors along the text, for plots.
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
    coverage: float
    seam_share: float | None
    segments: tuple[Segment, ...]
    transitions: Transitions
    labels: Int32s | None = dataclasses.field(repr=False)
    posterior: Float32s | None = dataclasses.field(repr=False)
    posterior_agents: Int32s | None = dataclasses.field(repr=False)
    strengths: dict[str, float] | None
    model: dict[str, Any] | None = None
    published: int | None = None
    restored: tuple[str, ...] | None = None
    sessions: Sessions | None = None
    trace: Trace | None = dataclasses.field(default=None, repr=False)

    @property
    def profile(self) -> AnyProfile:
        """The only profile. Raises InputError, with the ids, when there are several."""
        if len(self.profiles) > 1:
            raise InputError(f"profile: the text was read under {[p.id for p in self.profiles]}")
        return self.profiles[0]

    @property
    def token_agents(self) -> Int32s:
        """int32 [T], index into `agents`, -1 = unattributed, -2 = left out.

        Raises:
            InputError: the text was read in tokens of several kinds.
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
            start, end = extent(segment)
            if segment.left_out:
                continue
            if runs and runs[-1][1:] == (start, segment.agent):
                runs[-1] = Span(runs[-1].start, end, segment.agent)
            elif end > start:
                runs.append(Span(start, end, segment.agent))
        if self.text and not self.segments:  # nothing in it is a token: a text of invisible characters alone
            runs.append(Span(0, len(self.text), None))
        return tuple(runs)

    @property
    def found(self) -> tuple[str, ...]:
        """The agents that are found in the text at its level, the surest first."""
        names, log_p = list(self.evidence), np.array(list(self.evidence.values()))
        return tuple(names[a] for a in found_agents(log_p, self.level))

    def redact_guesses(self, segment: Segment) -> Segment:
        """Return a segment without its guess, unless that agent is found in the text.

        Without evidence in the whole text, a guess is only the nearest key by chance, and naming it would
        accuse its agent. Then the guess and its figures are None.
        """
        guess = segment.best_guess
        if (
            guess is None
            or segment.agent is not None
            or self.evidence.get(guess, 0.0) <= math.log(self.level)
        ):
            return segment
        return dataclasses.replace(
            segment, best_guess=None, posterior=None, error=None, share=None, share_interval=None
        )

    def _stated(self, segment: Segment) -> dict[str, Any]:
        redacted = self.redact_guesses(segment)
        stated = dataclasses.asdict(redacted)
        if redacted is not segment:
            stated["not_found_in_text"] = {
                "nearest_key": segment.best_guess,
                "posterior": segment.posterior,
                "error": segment.error,
            }
        return stated

    def to_dict(self, *, text: bool = True) -> dict[str, Any]:
        """Return the JSON form; `text=False` leaves the text out, its digest stays."""
        return {
            "schema": REPORT_SCHEMA,
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
            "published": self.published,
            **({} if self.restored is None else {"restored": list(self.restored)}),
            **({} if self.sessions is None else {"sessions": dataclasses.asdict(self.sessions)}),
            "segments": [self._stated(segment) for segment in self.segments],
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

    def to_html(self, path: str | os.PathLike[str] | None = None, *, about: Sequence[str] = ()) -> str:
        """Return the report as a page that needs nothing else, and write it to `path` as `to_json` does.

        `about` is lines for its head, such as the name of the text, which is the first, and of the registry.
        """
        from iet.report.html import page

        return _written(page(self, about), path)

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw scores, boundaries and agents along the text on matplotlib `axes` (see `iet.report.plot`)."""
        from iet.report.plot import plot

        return plot(self, axes)

    def _repr_html_(self) -> str:
        from iet.report.html import fragment

        return fragment(self)

    def to_prov(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return W3C PROV-JSON (see `iet.report.prov`), and write it to `path` as `to_json` does."""
        from iet.report.prov import document

        return _written(json.dumps(document(self), ensure_ascii=False, indent=1), path)

    def evaluation_events(self, response_id: str | None = None) -> list[dict[str, Any]]:
        """Return the attributes of one OpenTelemetry event a segment (see `iet.report.telemetry.events`)."""
        from iet.report.telemetry import events

        return events(self, response_id)

    def __str__(self) -> str:
        from iet.report.terminal import plain

        return plain(self)


def _written(data: str, path: str | os.PathLike[str] | None) -> str:
    if path is not None:
        check_path("path", path)
        write_file(path, data.encode() + b"\n")
    return data


def plain(value: Any) -> Any:
    """Return numbers and arrays of NumPy, also inside lists, as JSON has them."""
    return value if value is None or isinstance(value, str) else np.asarray(value).tolist()
