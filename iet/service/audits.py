"""What a worker does: a request's bytes in, the bytes of its answer out.

Everything that a client wrote is parsed here, in a process that may be lost, and nowhere else.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import pathlib
import traceback
from collections.abc import Collection, Mapping
from typing import Any

import pydantic

from iet.audit import formats, traces
from iet.audit.auditor import Auditor
from iet.audit.options import options
from iet.errors import BackendUnavailable, IetError, InputError, TokenizerMismatch
from iet.marks.published import MANIFEST, PublishedIndex
from iet.marks.registry import Registry
from iet.marks.scheme import canonical_digest
from iet.marks.tokenizer import Tokenizer
from iet.report.claims import ClaimReport
from iet.report.model import Report
from iet.service import documents
from iet.service.requests import AuditRequest, CheckRequest, Named
from iet.service.watched import Watched

JSON, HTML = "application/json", "text/html; charset=utf-8"

AUDITORS = 16
"""Number of sets of options for which a worker keeps an auditor."""

_OWN_TEXT = __doc__ * 4
"""What a worker reads once before it is ready, so that no client waits for loops to be compiled or loaded."""

_OPTIONS = tuple(name for name, (option, _, _) in options().items() if option.http)
"""Names of the options of an audit that a client may set."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What is sent to a worker.

    Attributes:
        body: JSON of an `AuditRequest` or a `CheckRequest`, or a document, as it came.
        check: whether it is a `CheckRequest`.
        html: whether the page is asked for.
        line: number of the line in a batch, None outside of one.
        document: what is said of a document, None where the body is JSON.
    """

    body: bytes
    check: bool = False
    html: bool = False
    line: int | None = None
    document: documents.Upload | None = None


@dataclasses.dataclass(frozen=True)
class Answer:
    """What comes back.

    Attributes:
        status: of HTTP.
        media: type of the body.
        body: the report, or {"error": ...}; of a line of a batch, a line.
        damage: of the files that texts are read with, for the log; empty if there is none.
        note: what failed with this text, for the log; empty if nothing did. No text and no secret is in it.
    """

    status: int
    media: str
    body: bytes
    damage: str = ""
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Audits:
    """Make a worker's `Reader`; pickled, it holds no key.

    Attributes:
        registry: path of the registry file.
        secret_mount: as in `iet.Registry.load`.
        tokenizers: profile id, or "" for the only one -> path, where the registry's note does not lead there.
        published: folder of an index of what agents published, None without.
    """

    registry: pathlib.Path
    secret_mount: bool = False
    tokenizers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    published: pathlib.Path | None = None

    def load(self) -> Registry:
        """Return the registry as its file holds it now."""
        return Registry.load(self.registry, secret_mount=self.secret_mount)

    def __call__(self) -> Reader:
        """Return a reader that has read a text."""
        from iet.native.loops import compiling

        reader = Reader(self)
        for end in documents.MEDIA.values():
            formats.readable(end)  # loads what reads it
        with compiling(lambda: None):
            for asked in ({"text": _OWN_TEXT}, {"messages": [{"role": "user", "content": _OWN_TEXT}] * 2}):
                reader(Job(json.dumps(asked).encode(), html=True))
        return reader


class Reader:
    """Audits one request after another, with auditors that it keeps until registry or index is changed."""

    def __init__(self, audits: Audits) -> None:
        self._audits = audits
        self._opened = dict[str, Tokenizer]()  # by digest
        self._file = Watched(audits.registry, audits.load)
        self._changes, self._tokenizers = 0, dict[str, Tokenizer]()
        self._auditors: collections.OrderedDict[str, Auditor] = collections.OrderedDict()
        self._index: Watched[PublishedIndex] | None = None
        if audits.published is not None:
            self._index = Watched(audits.published / MANIFEST, self._open_index)
        self._current()

    def __call__(self, job: Job) -> Answer:
        """Return the answer to a request, whatever is in it."""
        damage, id = self._current(), None
        try:
            if job.check:
                claims = CheckRequest.model_validate_json(job.body)
                checked = self._check(claims)
                if job.html:
                    return Answer(200, HTML, checked.to_html().encode(), damage)
                return self._said(job, 200, checked.to_dict(), id, damage)
            if job.document is not None:
                asked = documents.request(job.body, job.document)
            else:
                asked = AuditRequest.model_validate_json(job.body)
            id = asked.id
            report = self._audit(asked)
            if job.html:
                return Answer(200, HTML, report.to_html().encode(), damage)
            found = report.to_dict(text=asked.include_text)
            return self._said(job, 200, {"report": found} if job.line is not None else found, id, damage)
        except pydantic.ValidationError as error:
            status, why = _refusal(error)
            if job.line is not None:
                with contextlib.suppress(pydantic.ValidationError):
                    id = Named.model_validate_json(job.body).id
            return self._said(job, status, {"error": why}, id, damage)
        except (TokenizerMismatch, BackendUnavailable) as error:  # the operator's to mend: paths are in it
            said = "the service cannot read texts of this registry; its log says why"
            return self._said(job, 500, {"error": said}, id, damage, f"{type(error).__name__}: {error}")
        except documents.TooLong as error:
            return self._said(job, 413, {"error": str(error)}, id, damage)
        except IetError as error:
            return self._said(job, 422, {"error": str(error)}, id, damage)
        except MemoryError:  # ends the worker
            raise
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            note = (
                f"{type(error).__name__} in {place.filename}, line {place.lineno}"  # not what it says: text
            )
            return self._said(job, 500, {"error": "the service failed on this text"}, id, damage, note)

    def _said(
        self,
        job: Job,
        status: int,
        content: dict[str, Any],
        id: str | int | None,
        damage: str,
        note: str = "",
    ) -> Answer:
        if job.line is not None:
            named = {"line": job.line, "status": status} | ({} if id is None else {"id": id})
            content = {**named, **content}
        return Answer(status, JSON, json.dumps(content, ensure_ascii=False).encode() + b"\n", damage, note)

    def _audit(self, asked: AuditRequest) -> Report:
        given = [asked.text, asked.token_ids, asked.messages]
        if sum(value is not None for value in given) != 1:
            raise InputError("request: expected one of text, token_ids and messages")
        text, boundaries = asked.text, asked.boundaries
        if asked.messages is not None:
            if boundaries is not None:
                raise InputError("boundaries: got some and messages, expected one of them")
            text, boundaries = traces.joined(_trace(asked.messages).pieces)
        return self._auditor(asked).audit(
            text, token_ids=asked.token_ids, spans=asked.spans, skip=asked.skip, boundaries=boundaries
        )

    def _check(self, asked: CheckRequest) -> ClaimReport:
        auditor = self._kept(level=asked.level, profile=asked.profile, known_agents=asked.known_agents)
        for agent in asked.agents.values():
            if agent not in auditor.agents:
                raise InputError(f"agents: got {agent!r:.80}, expected agents of the registry")
        return auditor.check_trace(_trace(asked.messages, {*auditor.agents, *asked.agents}), asked.agents)

    def _auditor(self, asked: AuditRequest) -> Auditor:
        return self._kept(**{name: getattr(asked, name) for name in _OPTIONS})

    def _kept(self, **arguments: Any) -> Auditor:
        """Return the auditor with these arguments, made if it is not among those that were last used."""
        key = canonical_digest(arguments)
        auditor = self._auditors.get(key)
        if auditor is None:
            registry = self._file.last
            index = None if self._index is None else self._index.last
            auditor = Auditor(registry, tokenizer=self._tokenizers, published=index, **arguments)
            self._auditors[key] = auditor
            if len(self._auditors) > AUDITORS:
                self._auditors.popitem(last=False)
        self._auditors.move_to_end(key)
        return auditor

    def _current(self) -> str:
        """Take notice of what was changed; return what is wrong with it, empty if nothing is."""
        notes = [_problem("the registry", self._file)]
        changed = self._changes != self._file.changes
        if self._index is not None:
            if changed and self._changes:
                self._index.forget()  # it is opened with the registry
            before = self._index.last
            notes.append(_problem("the index of published text", self._index))
            changed = changed or self._index.last is not before
        if changed:
            self._changes = self._file.changes
            self._auditors.clear()
            self._tokenizers = self._open(self._file.last)
        return "; ".join(filter(None, notes))

    def _open_index(self) -> PublishedIndex:
        if self._index is not None and self._index.last.registry is self._file.last:
            self._index.last.refresh()
            return self._index.last  # which the auditors hold
        assert self._audits.published is not None
        return PublishedIndex(self._audits.published, self._file.last)

    def _open(self, registry: Registry) -> dict[str, Tokenizer]:
        """Return the tokenizers of the registry's profiles; one that is not found is missed by its texts."""
        found = dict[str, Tokenizer]()
        for id, profile in registry.profiles.items():
            digest = profile.tokenizer_digest
            if digest is None:
                continue
            given = self._audits.tokenizers.get(id) or self._audits.tokenizers.get("")
            with contextlib.suppress(TokenizerMismatch, BackendUnavailable):
                if digest not in self._opened:
                    self._opened[digest] = registry.open_tokenizer(id, given)
                found[id] = self._opened[digest]
        return found


def _problem(what: str, watched: Watched[Any]) -> str:
    """Look for a change; return what is wrong with it, empty if nothing is."""
    try:
        watched.get()
    except (IetError, OSError) as error:
        return f"{what} was changed and cannot be read, the one before is in use: {error}"
    return ""


def _trace(messages: Any, agents: Collection[str] = ()) -> traces.Trace:
    try:
        return traces.read(messages, agents=agents)
    except InputError as error:
        raise InputError(f"messages: {error}") from None


def _refusal(error: pydantic.ValidationError) -> tuple[int, str]:
    """Return the status, and what is wrong first, without what the client wrote."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    first = problems[0]
    if first["type"] == "json_invalid":
        return 400, f"request: {first['msg']}"
    place = ".".join(map(str, first["loc"][:6])) or "request"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return 422, f"{place[:120]}: {first['msg']}{more}"
