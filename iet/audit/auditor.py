"""`Auditor`: text → ids → scores → decoder → segments → evidence → transitions → report."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from iet.audit.attribution import attribute
from iet.audit.claims import check_claims, check_trace
from iet.audit.options import AuditOptions
from iet.audit.parts import Parts
from iet.audit.plan import Plan, Source
from iet.audit.traces import Trace
from iet.errors import InputError
from iet.marks.files import shown_path
from iet.marks.keys import AnyProfile
from iet.marks.sessions import sessions_digest
from iet.marks.tokenizer import Encoding
from iet.report import Report
from iet.report.claims import ClaimReport
from iet.report.model import plain

if TYPE_CHECKING:
    import pyarrow

BATCH_CHARACTERS, BATCH_TEXTS = 1 << 16, 256
"""Maximum that `audit_many` gives the tokenizer at once. More costs processor time: memory is not reused."""


class Auditor:
    """Recover from text alone which agent wrote which part (§ Agent Attribution).

    Args:
        registry: the keys of the possible writers: an `iet.Registry`, `iet.WaterfallKeys` for text that the
            Waterfall package marked, or `iet.EngineKeys` for text that a serving engine marked. Or a list of
            these with different agent names, if each marked a part of the text.
        decoder: name of the decoder, or `AuditOptions`.
        options: fields of `AuditOptions` (docs/reference/options.md), and the decoder's own options
            (`iet.decoding.decode`).

    Raises:
        InputError: an option is out of range or unknown, or there are no agents, or there is no index.
        RegistryError: the profile is unknown, or the index is another registry's.
        ShapeError: the model's vocabulary is smaller than the profile's.
        BackendUnavailable: a model, but neither torch nor transformers.
        TokenizerMismatch: on the first text, if the tokenizer is another one or cannot be found.

    Deterministic. O(T·K) time for T tokens and K keys, apart from tokenizing.

    With several profiles agents are scored in the tokens of their own, and decoded on one axis of characters;
    lengths (`mean_segment`, `min_segment`) count tokens of the average profile. The evidence of a segment is
    taken in its agent's own tokens, and corrected for the keys of all profiles.

    With more than 64 keys, all are read as sums over blocks of tokens, and only the decoder's `candidates`
    (256 at most) token by token: memory is T·256 scores, and T·K/16 sums with `posterior`. Other agents have
    posterior 0, are never named by the decoder, and do not compete in P_ij. For `best_guess`, unattributed
    text is compared with every key, and log_p is corrected for all K.
    docs/internals/decoding.md says what this changes: nothing for "posterior".
    """

    def __init__(
        self,
        registry: Source | Sequence[Source],
        decoder: str | AuditOptions = "posterior",
        **options: Any,
    ) -> None:
        sources = list(registry) if isinstance(registry, (list, tuple)) else [registry]
        self.plan = Plan.of(sources, AuditOptions.of(decoder, options))  # type: ignore[arg-type]
        self._registry = registry

    @property
    def options(self) -> AuditOptions:
        """The options, checked."""
        return self.plan.options

    @property
    def agents(self) -> tuple[str, ...]:
        """Names of the agents of all profiles that are read; what `Report.token_agents` indexes."""
        return self.plan.names

    @property
    def profiles(self) -> tuple[AnyProfile, ...]:
        """Schemes, vocabularies and tokenizers that are assumed."""
        return self.plan.profiles

    @property
    def registry_names(self) -> tuple[str, ...]:
        """Display names of the key files, without their folders."""
        sources = self._registry if isinstance(self._registry, (list, tuple)) else [self._registry]
        paths = [getattr(source, "path", None) for source in sources]
        kinds = [type(source).__name__ for source in sources]
        return tuple(
            f"{kind} in memory" if path is None else shown_path(path.name)
            for path, kind in zip(paths, kinds, strict=True)
        )

    @property
    def configuration(self) -> dict[str, Any]:
        """The settings that affect the result, for JSON; digests replace keys, profiles and tokenizers."""
        plan, options = self.plan, self.options
        return {
            "registry_digest": plan.registry_digest,
            "profiles": [profile.digest for profile in plan.profiles],
            "decoder": options.decoder,
            "options": {name: plain(value) for name, value in plan.shown_options.items()},
            "level": options.level,
            "allow_unattributed": options.allow_unattributed,
            "decoys": options.decoys,
            "model": None if plan.model is None else plan.model.name,
            **({} if plan.published is None else {"published": plan.published.digest}),
            **({} if not plan.sessions else {"sessions": sessions_digest(plan.sessions)}),
        }

    def audit_batch(
        self, batch: pyarrow.RecordBatch, *, text_column: str | None = None, ids_column: str | None = None
    ) -> pyarrow.RecordBatch:
        """Audit each document of an Arrow `batch` as `audit` does: its `text_column`, or `ids_column`.

        See `iet.audit.arrow.audit_batch`.
        """
        from iet.audit.arrow import audit_batch  # here, because it imports pyarrow

        return audit_batch(self, batch, text_column=text_column, ids_column=ids_column)

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle finds the keys through the registry's file and holds none.
        plan = self.plan
        options = dataclasses.replace(self.options, model=plan.model, published=plan.published)
        return type(self), (self._registry, options)

    def audit(
        self,
        text: str | None = None,
        *,
        token_ids: ArrayLike | None = None,
        spans: ArrayLike | None = None,
        skip: ArrayLike | None = None,
        boundaries: ArrayLike | None = None,
    ) -> Report:
        """Audit one text, or the parts of it that are agents' text.

        Args:
            text: str, any length, at some 100 bytes of memory a character under four keys; invisible
                characters in it are skipped and counted.
            token_ids: integer ids [T] instead: no tokenizer is needed, and the report has no characters.
            spans: (start, end) [N, 2] of the only parts to audit, in characters of `text` or in tokens of
                `token_ids`, in any order. None: everything.
            skip: (start, end) [M, 2] of parts to leave out, also within `spans`: prompts, tool output, text
                by people. None: nothing.
            boundaries: [B] known positions at which an agent may end and the next one start (the oracle).
                The decoder searches for no other, and each piece between two of them, or between one and a
                part that is left out, gets one agent. None: the decoder finds them. See below.

        The text is tokenized as a whole. A context holds the ids that precede a token, including those of a
        part that is left out, because the writer continued them. A token that a cut divides is not scored; a
        gap with no other token is left out as well. A part that is left out becomes a segment
        (`Segment.left_out`) without an agent, and counts in no share. The rest is decoded as one text: a
        hand-over across a part that is left out counts as a hand-over.

        With `boundaries`, "posterior" names for each piece the agent with the highest log-likelihood ratio,
        at strengths fitted on the pieces; the other decoders name the agent with the highest sum of scores.
        The p-value is corrected for the numbers of keys and pieces only, since the ends of a piece were not
        chosen. `level` decides as usual whether the piece is attributed. The `model` is not used.

        Raises:
            InputError: neither or both are given, or `text` is not valid Unicode, or a part lies outside.
            ShapeError: `token_ids` is not a vector of integers, or a part is no pair of them.
            InputError: an id is beyond int64, or ids are given for several tokenizers.
            TokenizerMismatch: no tokenizer with the profile's digest.
        """
        if (text is None) == (token_ids is None):
            raise InputError("audit: got neither or both of text and token_ids, expected one")
        divided = not (spans is None and skip is None and boundaries is None)
        if self.plan.options.as_copied and (divided or token_ids is not None):
            what = "token_ids" if token_ids is not None else "spans, skip or boundaries"
            raise InputError(f"audit: got {what} and as_copied, which reads whole texts; expected text alone")
        encodings = None if token_ids is None else self.plan.encoding_of_ids(token_ids)
        parts = None
        if divided:
            if text is not None and not isinstance(text, str):
                raise InputError(f"text: got {type(text).__name__}, expected str")
            length = len(text) if encodings is None else len(encodings[0].token_ids)  # type: ignore[arg-type]
            parts = Parts.of(length, spans, skip, boundaries)
        if encodings is not None:
            return self._report(None, encodings, parts)
        assert text is not None
        return self._audit_text(text, parts)

    def audit_many(self, texts: Iterable[str]) -> Iterator[Report]:
        """Audit texts one after another, each as `audit` does, while the next ones are tokenized.

        Args:
            texts: read lazily, in the caller's thread, and ahead of the reports by at most three batches of
                256 texts or 2^16 characters (or one longer text), so memory does not grow with their number.

        Returns:
            An iterator of reports in the order of `texts`. An exception from reading or
            auditing a text is raised after the reports of all texts before it.

        Raises:
            InputError: `texts` is one text, or nothing that can be iterated over.

        Deterministic: the reports are those of `audit`, whatever the number of threads. A second thread
        tokenizes, in one call per batch that does not hold the interpreter's lock; it ends with the iterator.
        """
        try:
            source = None if isinstance(texts, (str, bytes, bytearray)) else iter(texts)
        except TypeError:
            source = None
        if source is None:
            raise InputError(f"texts: got {type(texts).__name__}, expected a list (or iterable) of texts")
        return self._audit_many(source)

    def _audit_many(self, texts: Iterator[str]) -> Iterator[Report]:
        if self.plan.options.as_copied:  # each in ways of its own
            yield from map(self._audit_copied, texts)
            return
        pending: collections.deque[tuple[list[str], concurrent.futures.Future[list[tuple[Encoding, ...]]]]]
        pending, failure = collections.deque(), None
        batches = _batches(texts)
        worker = concurrent.futures.ThreadPoolExecutor(1, "iet-tokenizer")
        try:
            while True:
                while failure is None and len(pending) < 2:
                    batch, failure = next(batches)
                    if batch:
                        pending.append((batch, worker.submit(self.plan.encode, batch)))
                if not pending:
                    break
                batch, encodings = pending.popleft()
                if encodings.exception() is None:
                    yield from map(self._report, batch, encodings.result())
                else:  # some text of the batch is to blame: those before it have reports
                    yield from map(self._audit_text, batch)
        finally:
            worker.shutdown(cancel_futures=True)
        if not isinstance(failure, StopIteration):
            assert failure is not None
            raise failure

    def check(
        self,
        pieces: Sequence[str],
        claims: Sequence[str | None],
        *,
        skip: Collection[int] | Mapping[int, str] = (),
    ) -> ClaimReport:
        """Check for each piece of a conversation whether the claimed agent wrote in it.

        Two hypotheses are tested for each piece, each corrected by Holm's steps over all pieces. First: the
        claimed agent wrote nothing in it; if refuted, the verdict is "confirmed". Second: no other agent
        wrote in it; if refuted, the verdict is "contradicted", or "named" if no agent was claimed. So the
        probability of a false confirmation among all pieces is at most `level`, and so is that of a false
        contradiction, for any number of pieces. Other pieces are "open". A piece's p-value is the tail of
        the null law at the sum of its scores, without a search for boundaries; scores of "gumbel" are
        weighted by how predictable the token is (`novelty_weights`). If seeds hold counts of contexts, it is
        twice the lower of two: with counts in the piece, and in all pieces up to there.

        Args:
            pieces: D texts in the order of writing. Words that occurred in an earlier piece with the same
                context are evidence for no agent, so a quotation does not count for the quoted agent.
            claims: for each piece the name of an agent; None if no agent is claimed. A name without a key in
                the registry is neither confirmed nor contradicted: its verdict is "unknown name".
            skip: numbers of the pieces that no agent wrote, such as those of users and tools, or a mapping of
                these numbers to reasons. They are not judged, and later repetitions of them are no evidence.

        Raises:
            InputError: `claims` are not as many as pieces, or a value is of another type or no valid Unicode.
            TokenizerMismatch: no tokenizer with the profile's digest.

        A quotation from a source that is no piece counts for the quoted agent: pass such sources as pieces
        to skip. Of the auditor's options its keys, `level`, `known_agents`, `tokenizer`, `published` and
        `sessions` matter: an agent is the same in all of its sessions, and pays for their number.
        Deterministic. O(T·K) time; memory grows with T and with K, not with D·K.
        """
        return check_claims(self.plan, pieces, claims, skip)

    def check_trace(self, trace: Trace, names: Mapping[str, str] | None = None) -> ClaimReport:
        """Check for each message of a recorded conversation whether its agent wrote it, as `check` does.

        Args:
            trace: as `iet.audit.traces.read(document, agents=[*auditor.agents, *names])` returns it.
            names: {name in the record: agent of the registry}, for names that differ.

        Raises:
            InputError: a message is no valid Unicode.
            TokenizerMismatch: no tokenizer with the profile's digest.
        """
        return check_trace(self.plan, trace, names or {})

    def _audit_text(self, text: str, parts: Parts | None = None) -> Report:
        if self.plan.options.as_copied:
            return self._audit_copied(text)
        return self._report(text, self.plan.encode([text])[0], parts)

    def _audit_copied(self, text: str) -> Report:
        ways = self.plan.encode_copied(text)
        plan = dataclasses.replace(self.plan, num_readings=len(ways))
        results = [(attribute(plan, [text], [encodings], details=True), way) for way, encodings in ways]
        # `min` returns the first of equals, which is the text as given.
        best, way = min(results, key=lambda result: float(np.nansum(result[0].evidence)))
        return dataclasses.replace(best.report(0), restored=way.steps)

    def _report(
        self, text: str | None, encodings: tuple[Encoding, ...], parts: Parts | None = None
    ) -> Report:
        texts = None if text is None else [text]
        return attribute(self.plan, texts, [encodings], parts, details=True).report(0)


def _batches(texts: Iterator[str]) -> Iterator[tuple[list[str], Exception | None]]:
    """Return batches of texts, the last one with what ended them: StopIteration, or what `texts` raised."""
    batch: list[str] = []
    size = 0
    while True:
        try:
            text = next(texts)
        except Exception as end:
            yield batch, end
            return
        batch.append(text)
        size += len(text) if isinstance(text, str) else 0
        if size >= BATCH_CHARACTERS or len(batch) == BATCH_TEXTS:
            yield batch, None
            batch, size = [], 0
