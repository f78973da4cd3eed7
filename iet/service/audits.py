"""The work of a worker process: the bytes of a request in, the bytes of its answer out.

Untrusted input is parsed only here, in a process whose loss costs one request.
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
from iet.audit.language_model import LanguageModel
from iet.audit.options import AuditOptions, options
from iet.decoding import DECODERS
from iet.errors import BackendUnavailable, IetError, InputError, TokenizerMismatch
from iet.marks.published import MANIFEST, PublishedIndex
from iet.marks.registry import Registry
from iet.marks.scheme import canonical_digest
from iet.marks.tokenizer import Tokenizer
from iet.report.claims import ClaimReport
from iet.report.model import Report
from iet.service import detection
from iet.service.reloading import ReloadingFile
from iet.service.requests import (
    DOCUMENT_SUFFIXES,
    JSON,
    AuditRequest,
    CheckRequest,
    DocumentTooLong,
    RequestId,
    Upload,
    from_document,
)

HTML = "text/html; charset=utf-8"

MAX_AUDITORS = 16
"""Number of sets of options for which a worker caches an auditor."""

_WARM_UP_TEXT = __doc__ * 8
"""Audited before a worker is ready, so that no client waits for loops to be compiled or loaded."""

_OPTIONS = tuple(name for name, (option, _, _) in options().items() if option.http)
"""Names of the options of an audit that a client may set."""


@dataclasses.dataclass(frozen=True)
class AuditJob:
    """One request for a worker.

    Attributes:
        body: JSON of an `AuditRequest` or a `CheckRequest`, or a document, unparsed.
        check: whether it is a `CheckRequest`.
        html: whether the answer is a page.
        line: number of the line in a batch, None outside of one.
        document: headers and query of a document; None if the body is JSON.
        question: media type of the body if it is a question to the public detector; else empty.
    """

    body: bytes
    check: bool = False
    html: bool = False
    line: int | None = None
    document: Upload | None = None
    question: str = ""


@dataclasses.dataclass(frozen=True)
class AuditResponse:
    """The answer to an `AuditJob`.

    Attributes:
        status: HTTP status.
        media_type: type of the body.
        body: the report, or {"error": ...}; for a line of a batch one line of JSON.
        file_problem: what is wrong with the service's files, for the log; empty if nothing is.
        failure: why this request failed, for the log; empty if it did not. It quotes no text and no secret.
    """

    status: int
    media_type: str
    body: bytes
    file_problem: str = ""
    failure: str = ""


def json_response(
    job: AuditJob,
    status: int,
    content: dict[str, Any],
    id: str | int | None = None,
    file_problem: str = "",
    failure: str = "",
) -> AuditResponse:
    """Return a response whose body is JSON; in a batch with the line's number, status and id.

    The public detector's answer is a page if the job asks for one.
    """
    if job.question and job.html:
        return AuditResponse(status, HTML, detection.page(content).encode(), file_problem, failure)
    if job.line is not None:
        content = {"line": job.line, "status": status} | ({} if id is None else {"id": id}) | content
    body = json.dumps(content, ensure_ascii=False).encode() + b"\n"
    return AuditResponse(status, JSON, body, file_problem, failure)


@dataclasses.dataclass(frozen=True)
class AuditFiles:
    """The files that a worker reads. Called in a worker, it returns the worker's `AuditHandler`.

    Attributes:
        registry: path of the registry file.
        secret_mount: as in `iet.Registry.load`.
        tokenizers: profile id, or "" for all profiles -> path of a tokenizer, instead of the registry's.
        published: folder of an index of published text, None without one.
        model: language model that decoders with a posterior read with, as `iet.LanguageModel` takes it; None:
            none. Each worker holds a copy.
    """

    registry: pathlib.Path
    secret_mount: bool = False
    tokenizers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    published: pathlib.Path | None = None
    model: str | None = None

    def load(self) -> Registry:
        """Return the registry as its file holds it now."""
        return Registry.load(self.registry, secret_mount=self.secret_mount)

    def __call__(self) -> AuditHandler:
        """Return a handler that has audited a text."""
        handler = AuditHandler(self)
        for suffix in DOCUMENT_SUFFIXES.values():
            formats.readable(suffix)  # imports its parser
        messages = [{"role": "user", "content": _WARM_UP_TEXT}] * 2
        for request in ({"text": _WARM_UP_TEXT}, {"messages": messages}):
            handler(AuditJob(json.dumps(request).encode(), html=True))
        return handler


class AuditHandler:
    """Answers one request after another. Auditors are cached until the registry or the index changes."""

    def __init__(self, files: AuditFiles) -> None:
        self._files = files
        self._registry = ReloadingFile(files.registry, files.load)
        self._loads = 0  # of the registry, when the auditors were made
        self._opened = dict[str, Tokenizer]()  # by digest
        self._tokenizers = dict[str, Tokenizer]()  # by profile
        self._auditors: collections.OrderedDict[str, Auditor] = collections.OrderedDict()
        self._model = None if files.model is None else LanguageModel(files.model)
        self._index: ReloadingFile[PublishedIndex] | None = None
        if files.published is not None:
            self._index = ReloadingFile(files.published / MANIFEST, self._open_index)
        self._reload()

    def __call__(self, job: AuditJob) -> AuditResponse:
        """Return the response to a request with any content."""
        problem, id, failure = self._reload(), None, ""
        try:
            if job.question:
                content = detection.answer(self._auditor(), job.body, job.question)
                return json_response(job, 200, content, file_problem=problem)
            report: Report | ClaimReport
            if job.check:
                report = self._check(CheckRequest.model_validate_json(job.body))
            else:
                if job.document is not None:
                    request = from_document(job.body, job.document)
                else:
                    request = AuditRequest.model_validate_json(job.body)
                id = request.id
                report = self._audit(request)
            if job.html:
                return AuditResponse(200, HTML, report.to_html().encode(), problem)
            status = 200
            if isinstance(report, ClaimReport):
                content = report.to_dict()
            else:
                content = report.to_dict(text=request.include_text)
                content = content if job.line is None else {"report": content}
        except pydantic.ValidationError as error:
            status, message = _refusal(error)
            content = {"error": message}
            if job.line is not None:
                with contextlib.suppress(pydantic.ValidationError):
                    id = RequestId.model_validate_json(job.body).id
        except (TokenizerMismatch, BackendUnavailable) as error:
            # The message has paths, so only the log shows it.
            status, failure = 500, f"{type(error).__name__}: {error}"
            content = {"error": "the service cannot read texts of this registry; its log says why"}
        except IetError as error:
            status, content = 413 if isinstance(error, DocumentTooLong) else 422, {"error": str(error)}
        except MemoryError:  # ends the worker
            raise
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            failure = f"{type(error).__name__} in {frame.filename}, line {frame.lineno}"
            status, content = 500, {"error": "the service failed on this text"}
        return json_response(job, status, content, id, problem, failure)

    def _audit(self, request: AuditRequest) -> Report:
        contents = [request.text, request.token_ids, request.messages]
        if sum(content is not None for content in contents) != 1:
            raise InputError("request: expected one of text, token_ids and messages")
        text, boundaries = request.text, request.boundaries
        if request.messages is not None:
            if boundaries is not None:
                raise InputError("boundaries: got some and messages, expected one of them")
            text, boundaries = traces.joined(_trace(request.messages).pieces)
        auditor = self._auditor(**{name: getattr(request, name) for name in _OPTIONS})
        return auditor.audit(
            text, token_ids=request.token_ids, spans=request.spans, skip=request.skip, boundaries=boundaries
        )

    def _check(self, request: CheckRequest) -> ClaimReport:
        auditor = self._auditor(
            level=request.level, profile=request.profile, known_agents=request.known_agents
        )
        for agent in request.agents.values():
            if agent not in auditor.agents:
                raise InputError(f"agents: got {agent!r:.80}, expected agents of the registry")
        trace = _trace(request.messages, {*auditor.agents, *request.agents})
        return auditor.check_trace(trace, request.agents)

    def _auditor(self, **arguments: Any) -> Auditor:
        """Return the auditor with these arguments, from the cache of those that were used last."""
        key = canonical_digest(arguments)
        auditor = self._auditors.get(key)
        if auditor is None:
            index = None if self._index is None else self._index.last
            decoder = DECODERS.get(arguments.get("decoder", AuditOptions.decoder))
            model = self._model if decoder is not None and decoder.has_posterior else None
            files: dict[str, Any] = {"tokenizer": self._tokenizers, "published": index, "model": model}
            auditor = Auditor(self._registry.last, **files, **arguments)
            self._auditors[key] = auditor
            if len(self._auditors) > MAX_AUDITORS:
                self._auditors.popitem(last=False)
        self._auditors.move_to_end(key)
        return auditor

    def _reload(self) -> str:
        """Load changed files; return what is wrong with them, empty if nothing is."""
        problems = [_problem("the registry", self._registry)]
        is_changed = self._loads != self._registry.loads
        if self._index is not None:
            if is_changed and self._loads:
                self._index.invalidate()  # it depends on the registry
            index = self._index.last
            problems.append(_problem("the index of published text", self._index))
            is_changed = is_changed or self._index.last is not index
        if is_changed:
            self._loads = self._registry.loads
            self._auditors.clear()
            self._tokenizers = self._open_tokenizers(self._registry.last)
        return "; ".join(filter(None, problems))

    def _open_index(self) -> PublishedIndex:
        if self._index is not None and self._index.last.registry is self._registry.last:
            self._index.last.refresh()  # the auditors hold this object
            return self._index.last
        assert self._files.published is not None
        return PublishedIndex(self._files.published, self._registry.last)

    def _open_tokenizers(self, registry: Registry) -> dict[str, Tokenizer]:
        """Return the tokenizers of the profiles. Requests that need a missing one fail one by one."""
        tokenizers = dict[str, Tokenizer]()
        for id, profile in registry.profiles.items():
            digest = profile.tokenizer_digest
            if digest is None:
                continue
            path = self._files.tokenizers.get(id) or self._files.tokenizers.get("")
            with contextlib.suppress(TokenizerMismatch, BackendUnavailable):
                if digest not in self._opened:
                    self._opened[digest] = registry.open_tokenizer(id, path)
                tokenizers[id] = self._opened[digest]
        return tokenizers


def _problem(name: str, file: ReloadingFile[Any]) -> str:
    """Load a file again if it changed; return what is wrong with it, empty if nothing is."""
    try:
        file.get()
    except (IetError, OSError) as error:
        return f"{name} was changed and cannot be read, the one before is in use: {error}"
    return ""


def _trace(messages: Any, agents: Collection[str] = ()) -> traces.Trace:
    try:
        return traces.read(messages, agents=agents)
    except InputError as error:
        raise InputError(f"messages: {error}") from None


def _refusal(error: pydantic.ValidationError) -> tuple[int, str]:
    """Return the status and the first problem, without what the client wrote."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    first = problems[0]
    if first["type"] == "json_invalid":
        return 400, f"request: {first['msg']}"
    field = ".".join(map(str, first["loc"][:6])) or "request"
    unknown = first["type"] == "extra_forbidden"
    problem = "unknown field, expected one of those in /openapi.json" if unknown else first["msg"]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return 422, f"{field[:120]}: {problem}{more}"
