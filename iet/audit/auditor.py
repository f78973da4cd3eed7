"""`Auditor`: text → ids → scores → decoder → segments → evidence → transitions → report."""

from __future__ import annotations

import bisect
import collections
import concurrent.futures
import dataclasses
import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iet.audit.alignment import Axis, Reading, decode_over_rests
from iet.audit.evidence import (
    activity_log_p,
    decoy_log_p,
    discoveries,
    over_keys,
    piece_log_p,
    segment_log_p,
)
from iet.audit.language_model import LanguageModel, LogRatios
from iet.audit.parts import Parts
from iet.decoding import (
    DECODERS,
    Segmentation,
    boundary_intervals,
    candidates,
    column_summary,
    decode,
    log_activity,
    span_sums,
    windows,
)
from iet.decoding.activity import evidence_blocks
from iet.decoding.breaks import break_odds as odds_of
from iet.decoding.breaks import check_break_odds
from iet.decoding.candidates import sum_activity
from iet.decoding.pieces import piece_posterior, piece_ratios
from iet.decoding.posterior import evidence_weight, log_ratios
from iet.decoding.transitions import transitions
from iet.errors import InputError
from iet.kernels import check_token_ids, score_tokens
from iet.marks.foreign.keys import ForeignKeys, ForeignProfile
from iet.marks.keys import KeyTable
from iet.marks.registry import Registry
from iet.marks.scheme import FEWEST_ODD, FEWEST_VALUES, Profile, few_values
from iet.marks.tokenizer import Encoding, Tokenizer
from iet.report import LEFT_OUT, Report, Segment, Trace
from iet.report.model import plain

if TYPE_CHECKING:
    import pyarrow

ALL_KEYS = 64
"""With more keys, only the decoder's candidates among them are scored token by token."""

_NOWHERE = np.zeros(0, np.int64)

BATCH_CHARACTERS, BATCH_TEXTS = 1 << 16, 256
"""What `audit_many` gives the tokenizer at once, at most. More costs processor time: memory is not reused."""


class Auditor:
    """Recover from text alone which agent wrote which part (§ Agent Attribution).

    Args:
        registry: who may have written the text: an `iet.Registry`, `iet.WaterfallKeys` for text that the
            Waterfall package marked, or `iet.EngineKeys` for text that a serving engine marked.
        decoder: a key of `iet.decoding.DECODERS`: "posterior" (ours, the default), "cusum" (the paper's) or
            "window".
        level: 0 < level < 1. Of texts that none of the registered agents wrote in, at most this share has an
            agent found in it (`Report.log_p`); and with decoder "posterior" a segment is attributed if its
            agent is found and `Segment.error`, the posterior probability that the agent wrote none of it, is
            at most this. The other decoders have no posterior: there segments are attributed by the
            false-discovery rate of their own p-values (`iet.evidence.discoveries`).
        allow_unattributed: False is the paper's forced choice: every token gets an agent.
        profile: id of the profile. None: all that have agents. Text then is read in the tokens of each of
            them; only "posterior" can do so.
        tokenizer: path or object, where the registry's own note of it does not lead there. Its digest must
            be the profile's. Where there are several profiles, {profile id: path or object} of some of them.
        model: a causal language model of transformers with this tokenizer, or a path or id of one, or an
            `iet.LanguageModel` of it, which has options. "posterior" then weighs every token by how likely
            the model finds it, so that predictable text counts for nothing. Best is the model that wrote the
            text. p-values rest on the scores alone. One profile only. None: no model.
        decoys: keys that nobody holds, scored on every text to see how chance looks there. With some, agents'
            p-values are ranks among them, free of any assumption about scores but, corrected for K keys, no
            lower than about K / (1 + decoys); 0: p-values come from the null law itself.
        known_agents: names of the agents who may have written the text, where not all of the registry may
            have; the others' keys are not read, and p-values are not corrected for them. None: all.
        break_odds: let "posterior" expect hand-overs where the text has a paragraph break, a line break or
            the end of a sentence: {"paragraph": odds, "line": odds, "sentence": odds} against a place inside
            a sentence (what is left out: 1), or True for `iet.decoding.breaks.BREAK_ODDS`. It helps where
            turns begin at such breaks and costs where they do not, and a joiner that nothing else in the text
            contains gives the boundaries away: False, the default, reads the marks alone. p-values do not
            depend on it. With `boundaries` nothing is searched for, and it has no effect.
        options: the decoder's, see `iet.decoding.decode`.

    Raises:
        InputError: a parameter is out of range, or an option unknown, or no agents are there.
        RegistryError: the profile is unknown.
        ShapeError: the model's vocabulary is smaller than the profile's.
        BackendUnavailable: a model, but neither torch nor transformers.
        TokenizerMismatch: on the first text, if the tokenizer is another one or cannot be found.

    Deterministic. O(T·K) time for T tokens and K keys, apart from tokenizing.

    With several profiles every agent is scored in the tokens of its own. Its strength is fitted there, where
    the text of other profiles' agents is nobody's; then the log-likelihood ratios of all agents meet on one
    axis, on which a token's evidence stands at its first character, and are decoded together. Lengths
    (`mean_segment`, `min_segment`) count tokens of the average profile. The evidence of a segment is taken
    in its agent's own tokens, and corrected for the keys of all profiles.

    With more than 64 keys, all are read as sums over blocks of tokens, and only the decoder's `candidates`
    (256 at most, unless more are likelier than not somewhere) token by token: memory is T·256 scores, and
    T·K/16 sums with `posterior`. Other agents have posterior 0, are never named by the decoder, and are no
    competitor in P_ij (whose maximum is over the candidates' agents). What nobody wrote is still compared
    with every key for `best_guess`, and log_p is corrected for all K. "posterior" would leave the same agents
    out of all scores. The candidates of the others are first or second in some window (for "window" one every
    16 tokens). So where nobody wrote, "cusum" may miss the agent with the highest sum of a long segment, by
    which `refine` goes and which a forced choice names, and "window" in forced choice one that leads only
    between two windows.
    """

    def __init__(
        self,
        registry: Registry | ForeignKeys,
        decoder: str = "posterior",
        level: float = 0.01,
        allow_unattributed: bool = True,
        *,
        profile: str | None = None,
        tokenizer: Any = None,
        model: Any = None,
        decoys: int = 0,
        known_agents: Iterable[str] | None = None,
        break_odds: bool | Mapping[str, float] = False,
        **options: Any,
    ) -> None:
        if not isinstance(registry, (Registry, ForeignKeys)):
            raise InputError(
                f"registry: got {type(registry).__name__}, expected iet.Registry, iet.WaterfallKeys or"
                " iet.EngineKeys"
            )
        if not isinstance(decoder, str) or decoder not in DECODERS:
            raise InputError(f"decoder: got {decoder!r}, expected one of {sorted(DECODERS)}")
        if not isinstance(level, (int, float, np.floating)) or not 0 < level < 1:
            raise InputError(f"level: got {level!r}, expected a number between 0 and 1")
        if isinstance(decoys, bool) or not isinstance(decoys, (int, np.integer)) or decoys < 0:
            raise InputError(f"decoys: got {decoys!r}, expected an int of at least 0")
        if decoys and isinstance(registry, ForeignKeys):
            raise InputError(f"decoys: got {decoys}, expected 0: keys of other schemes have none")
        self._break_odds = check_break_odds(break_odds)
        if self._break_odds is not None and decoder != "posterior":
            raise InputError(f"break_odds: got decoder {decoder!r}, expected 'posterior', which reads them")
        if "weights" in options:
            raise InputError(
                "weights: got some, expected none: they belong to one text (iet.decoding.decode)"
            )
        if model is not None and decoder != "posterior":
            raise InputError(f"model: got decoder {decoder!r}, expected 'posterior', which reads with it")
        self._registry = registry
        self._decoys = int(decoys)
        self._known = None if known_agents is None else _known(registry, known_agents)
        self._registry_digest = registry.digest  # of the keys that are read, whatever is added later
        self._profile_id = profile
        self._decoder = decoder
        self._level = float(level)
        self._allow_unattributed = bool(allow_unattributed)
        self._options = options
        self._source = tokenizer
        # Decoders without a model of nobody have a level of their own: it is the report's.
        takes_level = "level" in inspect.signature(DECODERS[decoder]).parameters
        decoder_options = {**options, "level": min(self._level, 0.5)} if takes_level else options
        chosen = _profiles(registry, profile, self._known)
        readers, agents = [], 0
        for id, source in zip(chosen, _sources(tokenizer, registry, chosen), strict=True):
            reader = _Reader(
                registry, id, source, decoder, decoder_options, agents, self._known, self._decoys
            )
            readers.append(reader)
            agents += len(reader.keys.names)
        self._readers = tuple(readers)
        if not agents:
            raise InputError("registry: the profile has no agents; expected at least one (registry.add)")
        self._choices = sum(len(reader.keys) for reader in self._readers)
        # The lowest p-value there is, 1 - (1 - 1 / (1 + M))^K, must reach the level.
        needed = math.ceil(1 / -math.expm1(math.log1p(-self._level) / self._choices)) - 1
        if 0 < self._decoys < needed and allow_unattributed:
            raise InputError(
                f"decoys: got {self._decoys}, expected at least {needed}: with {self._choices} keys"
                f" no p-value from fewer reaches level {self._level:g}"
            )
        if len(self._readers) > 1 and (decoder != "posterior" or options.get("strengths") is not None):
            raise InputError(
                f"registry: its agents have {len(chosen)} profiles, which only the decoder 'posterior' reads"
                f" together, with strengths of its own; name one of them (profile=): {chosen}"
            )
        self._model: LanguageModel | None = None
        if model is not None:
            if len(self._readers) > 1:
                raise InputError(
                    f"model: the registry's agents have {len(chosen)} profiles, a model has one tokenizer;"
                    f" name a profile (profile=): {chosen}"
                )
            self._model = model if isinstance(model, LanguageModel) else LanguageModel(model)
            self._model.check(self._readers[0].keys)
        # Refuse bad options now, not after the first text has been tokenized and scored.
        for reader in self._readers:
            empty = np.zeros((0, len(reader.keys)), dtype=np.float32)
            ratios = None if self._model is None else empty
            reader.decode(empty, _NOWHERE, None, self._allow_unattributed, ratios is not None)

    @property
    def agents(self) -> tuple[str, ...]:
        """Names of the agents of all profiles that are read; what `Report.token_agents` indexes."""
        return tuple(name for reader in self._readers for name in reader.keys.names)

    @property
    def profiles(self) -> tuple[Profile | ForeignProfile, ...]:
        """Schemes, vocabularies and tokenizers that are assumed."""
        return tuple(reader.keys.profile for reader in self._readers)

    @property
    def configuration(self) -> dict[str, Any]:
        """All that changes what a text is read as, for JSON: digests stand for keys, profiles, tokenizers."""
        return {
            "registry_digest": self._registry_digest,
            "profiles": [profile.digest for profile in self.profiles],
            "decoder": self._decoder,
            "options": {name: plain(value) for name, value in self._shown_options.items()},
            "level": self._level,
            "allow_unattributed": self._allow_unattributed,
            "decoys": self._decoys,
            "model": None if self._model is None else self._model.name,
        }

    def audit_batch(
        self, batch: pyarrow.RecordBatch, *, text_column: str | None = None, ids_column: str | None = None
    ) -> pyarrow.RecordBatch:
        """Audit the documents of an Arrow batch, each as `audit` does; see `iet.bulk.arrow.audit_batch`.

        Args:
            batch: with a column of strings, or of lists of token ids.
            text_column: name of the texts' column. None: "text", if it is there.
            ids_column: name of the column of token ids. None: "token_ids", if there is no "text".

        Returns:
            RecordBatch of `iet.bulk.arrow.SCHEMA`, a row for each of the batch.

        Raises:
            InputError: no such column.
            ShapeError: the column holds neither.
            TokenizerMismatch: no tokenizer with the profile's digest.
        """
        from iet.bulk.arrow import audit_batch  # here, because it imports pyarrow

        return audit_batch(self, batch, text_column=text_column, ids_column=ids_column)

    @property
    def _shown_options(self) -> dict[str, Any]:
        """Options of the decoder, and what else of the arguments changes what is read."""
        more = {"break_odds": self._break_odds, "known_agents": self._known}
        return {**self._options, **{name: value for name, value in more.items() if value is not None}}

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle finds the keys through the registry's file and holds none.
        options = dict(
            self._options,
            profile=self._profile_id,
            tokenizer=self._source,
            model=self._model,
            decoys=self._decoys,
            known_agents=self._known,
            break_odds=self._break_odds or False,
        )
        rebuild = functools.partial(type(self), allow_unattributed=self._allow_unattributed, **options)
        return rebuild, (self._registry, self._decoder, self._level)

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
            text: str, any length; invisible characters in it are skipped and counted.
            token_ids: integer ids [T] instead: no tokenizer is needed, and the report has no characters.
            spans: (start, end) [N, 2] of the only parts to audit, in characters of `text` or in tokens of
                `token_ids`, in any order. None: everything.
            skip: (start, end) [M, 2] of parts to leave out, also within `spans`: prompts, tool output, what
                people wrote. None: nothing.
            boundaries: [B] places at which an agent may end and the next one start, where they are known
                (the oracle): nothing is searched for, and each piece between two of them, or between one and
                a part that is left out, gets one agent. None: they are to be found. See below.

        The text is tokenized as a whole, and a context holds the ids that really stand before a token, also
        those of a part that is left out: they are what its writer continued. A token that a cut goes through
        is not scored; where nothing else is left between two cuts, that is left out as well. What is left out
        is a segment of its own kind (`Segment.left_out`), is attributed to nobody, and counts in no share.
        The rest is decoded as if it followed on: a hand-over across a part that was left out is one.

        With `boundaries`, "posterior" names for each piece the agent of the highest log-likelihood ratio, at
        strengths fitted on the pieces, the other decoders that of the highest sum of scores. Its p-value is
        corrected for the number of keys and of pieces, for nothing else: nobody chose where a piece ends.
        Whether it is attributed is decided as elsewhere (`level`). A `model` is not asked then.

        Raises:
            InputError: neither or both are given, or `text` is not valid Unicode, or a part lies outside.
            ShapeError: `token_ids` is not a vector of integers, or a part is no pair of them.
            InputError: an id is beyond int64, or ids are given for several profiles or with `break_odds`.
            TokenizerMismatch: no tokenizer with the profile's digest.
        """
        if (text is None) == (token_ids is None):
            raise InputError("audit: got neither or both of text and token_ids, expected one")
        ids = None if token_ids is None else check_token_ids(token_ids)
        if ids is not None and self._break_odds is not None:
            raise InputError("token_ids: got ids and break_odds, expected text: ids have no line breaks")
        if ids is not None and len(self._readers) > 1:
            known = [reader.keys.profile.id for reader in self._readers]
            raise InputError(
                f"token_ids: of which profile? Got no profile, expected Auditor(profile=) of {known}"
            )
        parts = None
        if not (spans is None and skip is None and boundaries is None):
            if text is not None and not isinstance(text, str):
                raise InputError(f"text: got {type(text).__name__}, expected str")
            parts = Parts.of(len(text if ids is None else ids), spans, skip, boundaries)  # type: ignore[arg-type]
        if ids is not None:
            return self._report(None, (Encoding(ids),), parts)
        assert text is not None
        return self._audit_text(text, parts)

    def audit_many(self, texts: Iterable[str]) -> Iterator[Report]:
        """Audit texts one after another, each as `audit` does, while the next ones are tokenized.

        Args:
            texts: read lazily, in the caller's thread, and ahead of the reports by at most three batches of
                256 texts or 2^16 characters (or one longer text), so memory does not grow with their number.

        Returns:
            An iterator of reports in the order of `texts`. What reading or auditing a text raises is raised
            after the reports of all texts before it.

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
        pending: collections.deque[tuple[list[str], concurrent.futures.Future[list[tuple[Encoding, ...]]]]]
        pending, failure = collections.deque(), None
        batches = _batches(texts)
        worker = concurrent.futures.ThreadPoolExecutor(1, "iet-tokenizer")
        try:
            while True:
                while failure is None and len(pending) < 2:
                    batch, failure = next(batches)
                    if batch:
                        pending.append((batch, worker.submit(self._encode, batch)))
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

    def _audit_text(self, text: str, parts: Parts | None = None) -> Report:
        return self._report(text, self._encode([text])[0], parts)

    def _encode(self, texts: list[str]) -> list[tuple[Encoding, ...]]:
        """Return every text in the tokens of every profile."""
        tokenizers = [reader.open_tokenizer() for reader in self._readers]
        encodings = {t.digest: t.encode_batch(texts) for t in {t.digest: t for t in tokenizers}.values()}
        return list(zip(*(encodings[t.digest] for t in tokenizers), strict=True))

    def _report(
        self, text: str | None, encodings: tuple[Encoding, ...], parts: Parts | None = None
    ) -> Report:
        axis = Axis.of(
            [Reading.of(text, e, parts, r.keys) for e, r in zip(encodings, self._readers, strict=True)]
        )
        at, gone = _NOWHERE, np.zeros((0, 2), np.int64)
        if parts is not None:
            parts = parts.without_gaps(axis.starts)
            at, gone = np.searchsorted(axis.starts, parts.left_out[:, 0]), axis.tokens_between(parts)
        # Every key is decoded as an agent of its own, and only then named after its owner: text of an old
        # and of the current key can stand side by side, and no score is a maximum over several keys.
        # An agent is its index in `names`.
        names = self.agents
        pieces = None if parts is None or parts.boundaries is None else parts.audited
        if pieces is None:
            each = {}
            if text is not None and self._break_odds is not None:
                each["break_odds"] = odds_of(text, axis.starts, self._break_odds)
            voices, found = self._decode(axis, at, np.diff(gone)[:, 0], **each)
            spans = _split(_merge(found, _owners(voices)), at)
        else:
            voices, found, spans = self._name(axis, pieces)
        starts, ends, agents = np.array(spans, dtype=np.int64).reshape(-1, 3).T
        guesses, log_p = self._explain(axis, voices, starts, ends, agents, pieces is not None)
        evidence = self._evidence(axis, voices)
        # Columns of the posterior, and of scores by agent, are the owners of the keys that were looked at.
        present, local = np.unique(_owners(voices), return_inverse=True)
        posterior = None if found.posterior is None else _sum_columns(found.posterior, local)
        columns = np.where(agents >= 0, np.searchsorted(present, agents), -1)
        spans = list(zip(starts.tolist(), ends.tolist(), columns.tolist(), strict=True))
        certainty = _certainty(posterior, present, spans, guesses)
        attributed = agents >= 0
        if self._allow_unattributed and certainty.error is not None:
            attributed &= (evidence[guesses] <= math.log(self._level)) & (certainty.error <= self._level)
        elif self._allow_unattributed:
            attributed[attributed] = discoveries(log_p[attributed], self._level)
        single = len(axis.readings) == 1
        # Between two spans the decoder chose a boundary, unless pieces are given or something is left out.
        chosen = ~np.isin(starts[1:], at) & (pieces is None)
        extents = None if text is None else _extents(len(text), axis, starts, pieces, parts, at)
        segments = _segments(
            extents,
            axis.tokens(starts, ends),
            [names[guess] for guess in guesses.tolist()],
            attributed.tolist(),
            log_p.tolist(),
            certainty,
            chosen,
            functools.partial(axis.place, end=0 if text is None else len(text)),
        )
        if parts is not None:
            segments = _with_left_out(segments, parts, gone if single else None, text is not None)
        reading, decided = axis.readings[0], np.where(attributed, guesses, -1).astype(np.int32)
        scores = self._window_scores(axis.spread([voice.scores for voice in voices]), found, local)
        sizes = {k: v for k, v in self._options.items() if k in ("window", "step")}
        observed = transitions(
            [
                (start, end, who if yes else -1)
                for (start, end, who), yes in zip(spans, attributed, strict=True)
            ],
            scores,
            **sizes,
        )
        passed = [t.start for t in observed.observed]
        return Report(
            text=text,
            profiles=self.profiles,
            registry_digest=self._registry_digest,
            agents=names,
            decoder=self._decoder,
            options=self._shown_options,
            level=self._level,
            allow_unattributed=self._allow_unattributed,
            decoys=self._decoys,
            log_p=float(np.nanmin(evidence)),
            evidence={name: p for name, p in zip(names, evidence.tolist(), strict=True) if not math.isnan(p)},
            tokens=sum(len(encoding.token_ids) for encoding in encodings),
            left_out=sum(len(r.encoding.token_ids) - len(r) for r in axis.readings),
            scored=sum(int(r.scored.sum()) for r in axis.readings),
            repeated=sum(int(r.repeated.sum()) for r in axis.readings),
            invisible=encodings[0].skipped,
            seam_share=None if text is None else self._seam_share(text, axis, starts, guesses, chosen),
            segments=tuple(segments),
            transitions=observed.rename({i: names[agent] for i, agent in enumerate(present.tolist())}).moved(
                dict(zip(passed, axis.place(np.array(passed, np.int64), end=0).tolist(), strict=True))
            ),
            labels=reading.among_all(np.repeat(decided, ends - starts), LEFT_OUT) if single else None,
            posterior=reading.among_all(posterior, 0) if single and posterior is not None else None,
            posterior_agents=present.astype(np.int32) if single and posterior is not None else None,
            strengths=_strengths(found, _owners(voices), names),
            model=self._model.describe(voices[0].read) if self._model and voices[0].read else None,
            trace=Trace(tuple(names[agent] for agent in present.tolist()), axis, posterior, scores, **sizes),
        )

    def _decode(
        self,
        axis: Axis,
        at: NDArray[np.int64],
        lengths: NDArray[np.int64],
        **each: NDArray[np.float64],
    ) -> tuple[list[_Voices], Segmentation]:
        """Return the scores of every profile's keys, and who wrote what; its agents are keys.

        Before the indices `at` parts of some `lengths` in tokens are left out. `each` are options with a
        number for every index. With several profiles they count when all are decoded together.
        """
        several = len(self._readers) > 1
        # To the agents of one profile the text of the others is nobody's, also in forced choice.
        nobodys = several or self._allow_unattributed
        decoded = [
            reader.voices(reading, nobodys, _NOWHERE, _NOWHERE)
            if several
            else reader.voices(reading, nobodys, at, lengths, self._model, **each)
            for reader, reading in zip(self._readers, axis.readings, strict=True)
        ]
        voices = [voices for voices, _ in decoded]
        if not several:
            return voices, decoded[0][1]
        ratios, counted, strengths = [], np.zeros(axis.length, np.bool_), list[NDArray[np.float64]]()
        for reader, reading, cells, (voice, found) in zip(
            self._readers, axis.readings, axis.cells, decoded, strict=True
        ):
            assert found.strengths is not None
            weights = reader.weights(reading)
            ratios.append(log_ratios(voice.scores, weights, found.strengths, reader.keys.profile.family))
            counted[cells[weights > 0]] = True
            strengths.append(found.strengths)
        defaults = inspect.signature(DECODERS["posterior"]).parameters
        tokens = sum(len(reading) for reading in axis.readings) / len(axis.readings)
        scale = axis.length / tokens if tokens else 1.0
        given = {
            name: self._options.get(name, defaults[name].default) for name in ("mean_segment", "min_segment")
        }
        # A character of several tokens makes the axis shorter than a text in tokens.
        sizes = {name: max(1, scale * value) for name, value in given.items() if value is not None}
        sizes["min_segment"] = round(sizes["min_segment"])
        options = {name: value for name, value in self._options.items() if name != "strengths"}

        def together(values: NDArray[np.float32], pairs: NDArray[np.int64], **more: Any) -> Segmentation:
            return decode(
                values,
                scored=pairs >= 0,
                allow_unattributed=self._allow_unattributed,
                agents=self._choices,
                log_ratios=values,
                **{**options, **sizes, **more},
            )

        distinct = np.where(counted, np.cumsum(counted) - 1, -1)
        found = decode_over_rests(together, axis.gather(ratios), distinct, at, lengths, **each)
        return voices, dataclasses.replace(found, strengths=np.concatenate(strengths))

    def _name(
        self, axis: Axis, pieces: NDArray[np.int64]
    ) -> tuple[list[_Voices], Segmentation, list[tuple[int, int, int]]]:
        """Return what `_decode` does, and the spans of the pieces [S, 2], each under its best key."""
        nobody = float(self._options.get("nobody", 0.5)) if self._allow_unattributed else 0.0
        weighed = [
            reader.weigh(reading, _edges(reading.starts, pieces), nobody, self._choices)
            for reader, reading in zip(self._readers, axis.readings, strict=True)
        ]
        ratios = np.concatenate([part for part, _ in weighed], axis=1)
        best = ratios.argmax(axis=1)
        voices, columns, low = [], [], 0
        for reader, reading, (part, _) in zip(self._readers, axis.readings, weighed, strict=True):
            some = np.arange(part.shape[1])
            if len(some) > ALL_KEYS:  # those that compete for a piece
                some = np.unique(np.append(np.argpartition(part, -2, axis=1)[:, -2:], 0))
            voices.append(reader.under(reading, reader.keys.subset(some)))
            columns.append(some + low)
            low += part.shape[1]
        looked_at = np.concatenate(columns)
        edges = _edges(axis.starts, pieces)
        lengths, labels = np.diff(edges), np.searchsorted(looked_at, best)
        posterior = strengths = None
        if self._decoder == "posterior":
            shares = piece_posterior(ratios, nobody, self._choices)[:, looked_at].astype(np.float32)
            posterior = np.repeat(shares, lengths, axis=0)
            strengths = np.concatenate([fitted for _, fitted in weighed if fitted is not None])[looked_at]
        found = Segmentation(np.repeat(labels, lengths).astype(np.int32), posterior, strengths)
        owners = _owners(voices)[labels]
        return voices, found, list(zip(edges[:-1].tolist(), edges[1:].tolist(), owners.tolist(), strict=True))

    def _evidence(self, axis: Axis, voices: list[_Voices]) -> NDArray[np.float64]:
        """Return the log p-value of every agent [A], corrected for the number of keys; NaN if not read."""
        log_p = [
            reader.key_log_p(reading, voice)
            for reader, reading, voice in zip(self._readers, axis.readings, voices, strict=True)
        ]
        owners = [
            reader.keys.owners.astype(np.int64) + voice.first
            for reader, voice in zip(self._readers, voices, strict=True)
        ]
        lowest = np.full(sum(len(reader.keys.names) for reader in self._readers), np.inf)
        np.minimum.at(lowest, np.concatenate(owners), over_keys(np.concatenate(log_p)))
        return np.where(np.isinf(lowest), np.nan, lowest)

    def _explain(
        self,
        axis: Axis,
        voices: list[_Voices],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        agents: NDArray[np.int64],
        given: bool,
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return who explains each span best (its own agent, if it has one), and the corrected log p.

        In the agent's own tokens. What is nobody's is compared with the keys of all profiles.
        """
        guesses, log_p = np.zeros(len(starts), np.int64), np.full(len(starts), np.inf)
        choices = self._choices * (max(1, len(starts)) if given else 1)
        for reader, reading, cells, voice in zip(
            self._readers, axis.readings, axis.cells, voices, strict=True
        ):
            low, high = voice.first, voice.first + len(reader.keys.names)
            mine = np.flatnonzero((agents < 0) | ((agents >= low) & (agents < high)))
            guess, p = reader.explain(
                reading,
                voice,
                np.searchsorted(cells, starts[mine]),
                np.searchsorted(cells, ends[mine]),
                np.where(agents[mine] < 0, -1, agents[mine] - low),
                choices,
                given,
            )
            better = p < log_p[mine]
            guesses[mine[better]], log_p[mine[better]] = guess[better] + low, p[better]
        return guesses, log_p

    def _window_scores(
        self, scores: NDArray[np.float32], found: Segmentation, owners: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return f [W, P] by agent. One score per agent and token: under the key that the decoder chose where
        it chose this agent, under the last key elsewhere. So keys that were rotated out raise nobody's f.
        """
        last = np.flatnonzero(np.append(owners[1:] != owners[:-1], True))
        if len(last) < len(owners):
            by_agent = scores[:, last]
            for start, end, column in found.segments:
                if column >= 0:
                    by_agent[start:end, owners[column]] = scores[start:end, column]
            scores = by_agent
        elif found.window_scores is not None:
            return found.window_scores
        return windows(scores, **{k: v for k, v in self._options.items() if k in ("window", "step")})

    def _seam_share(
        self,
        text: str,
        axis: Axis,
        starts: NDArray[np.int64],
        guesses: NDArray[np.int64],
        chosen: NDArray[np.bool_],
    ) -> float:
        """Return the share of characters in the two tokens that touch each boundary that was chosen.

        A turn may have ended inside one of them: then its text was generated as other tokens than those read.
        """
        uncertain = 0.0
        firsts = np.cumsum([0, *(len(reader.keys.names) for reader in self._readers)])
        boundaries = starts[1:][chosen]
        for i, (reading, cells) in enumerate(zip(axis.readings, axis.cells, strict=True)):
            ours = np.searchsorted(firsts, guesses, "right") - 1 == i
            lefts = np.searchsorted(cells, boundaries[ours[:-1][chosen]]) - 1
            rights = np.searchsorted(cells, boundaries[ours[1:][chosen]])
            tokens = np.unique(np.append(lefts, rights))
            tokens = tokens[(tokens >= 0) & (tokens < len(reading))]
            uncertain += float(np.diff(reading.encoding.characters(reading.of_all(tokens)), axis=1).sum())
        return min(1.0, uncertain / len(text)) if text else 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class _Voices:
    """Some keys of one profile, and the scores [R, K] under them; `first` is the profile's first agent.

    `activity` is log Λ of all its keys, None where it was not needed yet; `read` what a model makes of the
    text.
    """

    keys: KeyTable | ForeignKeys
    scores: NDArray[np.float32]
    first: int
    activity: NDArray[np.float64] | None = None
    read: LogRatios | None = None

    @property
    def owners(self) -> NDArray[np.int64]:
        """Agents [K] of the auditor, ascending."""
        return self.keys.owners.astype(np.int64) + self.first


class _Reader:
    """The keys of one profile, and how a reading is decoded under them; its agents are the profile's."""

    def __init__(
        self,
        registry: Registry | ForeignKeys,
        profile: str | None,
        source: Any,
        decoder: str,
        options: dict[str, Any],
        first: int,
        known: tuple[str, ...] | None,
        decoys: int,
    ) -> None:
        self.keys: KeyTable | ForeignKeys = registry.scoring_keys(profile)
        self._decoys = self.keys.decoys(decoys) if isinstance(self.keys, KeyTable) and decoys else None
        if known is not None:
            names = self.keys.names
            self.keys = self.keys.subset(
                np.flatnonzero([names[owner] in known for owner in self.keys.owners.tolist()])
            )
        _refuse_few_values(self.keys)
        self._registry = registry
        self._profile_id = profile
        self._source = source
        self._tokenizer: Tokenizer | None = None
        self._decoder = decoder
        self._options = options
        self._first = first
        # How well the text foretells a token hardly matters where κ bounds what the mark can do.
        self._novelty = self.keys.profile.family.name == "gumbel"

    def open_tokenizer(self) -> Tokenizer:
        """Return the profile's tokenizer."""
        if self._tokenizer is None:
            self._tokenizer = self._registry.open_tokenizer(self._profile_id, self._source)
        return self._tokenizer

    def decode(
        self,
        scores: NDArray[np.float32],
        pairs: NDArray[np.int64],
        columns: NDArray[np.int64] | None,
        allow_unattributed: bool,
        ratios: bool = False,
        **more: Any,
    ) -> Segmentation:
        """Return who wrote what. `columns` are the keys that the scores are under, None for all.

        With `ratios` the scores are log-likelihood ratios. `more` are options of this text alone.
        """
        options = {**self._options, **more}
        if columns is not None and options.get("strengths") is not None:
            options = {**options, "strengths": np.asarray(options["strengths"])[columns]}
        return decode(
            scores,
            self._decoder,
            self.keys.profile.family,
            None,
            None,
            allow_unattributed,
            None if columns is None else len(self.keys),
            pairs,
            scores if ratios else None,
            **options,
        )

    def _candidates(
        self, reading: Reading, allow_unattributed: bool, activity: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """Return the columns of the keys that the decoder has to look at token by token."""
        return candidates(
            functools.partial(_sums, reading, self.keys),
            len(self.keys),
            self._decoder,
            self.keys.profile.family,
            reading.scored,
            reading.repeated,
            allow_unattributed,
            activity,
            **self._options,
        )

    def key_log_p(self, reading: Reading, voice: _Voices) -> NDArray[np.float64]:
        """Return the log p-value of every key by itself, [K]."""
        activity = self._activity(reading, self.keys) if voice.activity is None else voice.activity
        if self._decoys is not None:
            return decoy_log_p(activity, self._activity(reading, self._decoys))
        distinct = int((reading.scored & ~reading.repeated).sum())
        return activity_log_p(activity, distinct, self.keys.profile.family)

    def _activity(self, reading: Reading, keys: KeyTable | ForeignKeys) -> NDArray[np.float64]:
        return sum_activity(
            functools.partial(_sums, reading, keys),
            len(keys),
            keys.profile.family,
            reading.scored,
            reading.repeated,
        )

    def under(self, reading: Reading, keys: KeyTable | ForeignKeys) -> _Voices:
        """Score a reading under some keys of the profile."""
        return _Voices(keys, reading.scores(keys), self._first)

    def voices(
        self,
        reading: Reading,
        allow_unattributed: bool,
        at: NDArray[np.int64],
        lengths: NDArray[np.int64],
        model: LanguageModel | None = None,
        **each: NDArray[Any],
    ) -> tuple[_Voices, Segmentation]:
        """Score and decode a reading; before the tokens `at` so many are left out."""
        keys, columns = self.keys, None
        if len(keys) > ALL_KEYS:
            activity = self._activity(reading, keys)
            columns = self._candidates(reading, allow_unattributed, activity)
            voices = self.under(reading, keys.subset(columns))
        else:
            voices = self.under(reading, keys)
            blocks = evidence_blocks(voices.scores, reading.scored & ~reading.repeated)
            activity = log_activity(*blocks, keys.profile.family)
        values, read = voices.scores, None
        if model is not None:
            read, values = self._ask(model, reading, voices)
        voices = dataclasses.replace(voices, activity=activity, read=read)
        decode = functools.partial(
            self.decode, columns=columns, allow_unattributed=allow_unattributed, ratios=model is not None
        )
        # The other decoders know no hand-overs, and would count the rests as text.
        if self._decoder != "posterior":
            at = lengths = _NOWHERE
        elif self._novelty and model is None:
            each["weights"] = reading.novelty
        found = decode_over_rests(decode, values, reading.pairs, at, lengths, **each)
        return voices, found

    def _ask(
        self, model: LanguageModel, reading: Reading, voices: _Voices
    ) -> tuple[LogRatios, NDArray[np.float32]]:
        """Return what a model makes of the text, and the log-likelihood ratios [R, K] of what is read."""
        # The model reads all of the text: what is left out is context as well.
        ids, scores = reading.encoding.token_ids, voices.scores
        if reading.places is not None:
            scores = score_tokens(ids, voices.keys).astype(np.float32, copy=False)
        read = model.log_ratios(ids, voices.keys, scores, reading.among_all(reading.scored, False))
        return read, read.values if reading.places is None else read.values[reading.places]

    def weights(self, reading: Reading) -> NDArray[np.float32]:
        """Return how much each token counts for the decoder "posterior", [R]."""
        repeats = self._options.get("repeats", "share")
        family, pairs = self.keys.profile.family, reading.pairs
        weights = evidence_weight(reading.scored, reading.repeated, repeats, family, pairs)
        return weights * reading.novelty if self._novelty else weights

    def weigh(
        self, reading: Reading, edges: NDArray[np.int64], nobody: float, choices: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        """Return how well each key explains each piece [S, K], and the strengths [K] behind it, if any."""
        # A pair counts once, or every time for the decoders that know no repeats.
        counted = reading.scored
        if self._decoder == "posterior" and self._options.get("repeats") != "count":
            counted = counted & ~reading.repeated
        sums = reading.sums(edges, self.keys, counted)
        if self._decoder != "posterior":
            return sums, None
        counts = np.diff(np.append(0, np.cumsum(counted))[edges]).astype(np.float64)
        # To these agents the pieces of other profiles' agents are nobody's; each one's prior is the same.
        own = len(self.keys)
        nobodys = min(0.99, 1 - (1 - nobody) * own / choices)
        return piece_ratios(sums, counts, self.keys.profile.family, nobodys, own, **self._options)

    def explain(
        self,
        reading: Reading,
        voices: _Voices,
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        agents: NDArray[np.int64],
        choices: int,
        given: bool,
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return who explains each span best (its own agent, if it has one), and the corrected log p.

        Args:
            reading, voices: R tokens and their scores.
            starts, ends: [S], tokens `[start, end)`.
            agents: [S], -1 for nobody.
            choices: how many keys there were to choose from; where the spans are given, times their number.
            given: the spans were not chosen, see `piece_log_p`.
        """
        # The highest sum stands for the lowest p-value, which differs by repeats and the ends of the span.
        keys, pairs, family = voices.keys, reading.pairs, self.keys.profile.family
        log_p_of = piece_log_p if given else segment_log_p
        edges = np.stack([starts, ends], axis=1).ravel()  # every other span is a gap
        sums = span_sums(voices.scores, np.append(edges, len(reading)))[: 2 * len(starts) : 2]
        eligible = (agents[:, None] < 0) | (keys.owners == agents[:, None])
        best = np.where(eligible, sums, -np.inf).argmax(axis=1)
        guesses = keys.owners[best].astype(np.int64)
        log_p = log_p_of(voices.scores, pairs, starts, ends, best, family, choices)
        nobodys = np.flatnonzero(agents < 0)
        if len(keys) < len(self.keys) and len(nobodys):
            # Nobody's spans are compared with every key, also those that the decoder did not look at.
            inside = np.append(np.stack([starts, ends], axis=1)[nobodys].ravel(), len(reading))
            best = reading.sums(inside, self.keys)[: 2 * len(nobodys) : 2].argmax(axis=1)
            columns, local = np.unique(best, return_inverse=True)
            others = reading.scores(self.keys.subset(columns))
            guesses[nobodys] = self.keys.owners[best]
            log_p[nobodys] = log_p_of(others, pairs, starts[nobodys], ends[nobodys], local, family, choices)
        return guesses, log_p


def _refuse_few_values(keys: KeyTable | ForeignKeys) -> None:
    if not isinstance(keys, KeyTable):
        return
    profile = keys.profile
    few = np.flatnonzero(few_values(profile.vocab_size, keys.k_p, profile.family))
    if len(few):
        k_p = int(keys.k_p[few[0]])
        values = profile.vocab_size // math.gcd(profile.vocab_size, k_p)
        names = sorted({keys.names[owner] for owner in keys.owners[few].tolist()})
        raise InputError(
            f"k_p: got {k_p} with a vocabulary of {profile.vocab_size} in family {profile.family.name!r}: the"
            f' mark takes {values} values, expected at least {FEWEST_VALUES} (an odd number in "square":'
            f" {FEWEST_ODD}), so that chance does not pass for evidence; leave out (known_agents=)"
            f" {names[:5]}"
        )


def _sums(
    reading: Reading,
    keys: KeyTable | ForeignKeys,
    boundaries: NDArray[np.int64],
    counted: NDArray[np.bool_],
    low: int,
    high: int,
) -> NDArray[np.float64]:
    """Return Σ of the scores under keys [low, high) over the counted tokens of each span."""
    return reading.sums(boundaries, keys.subset(slice(low, high)), counted)


def _known(registry: Registry | ForeignKeys, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names, each of an agent of the registry."""
    if isinstance(names, str):
        raise InputError(f"known_agents: got {names!r}, expected a list of names")
    try:
        chosen = tuple(dict.fromkeys(names))
    except TypeError:
        raise InputError(f"known_agents: got {names!r:.80}, expected a list of names") from None
    there = registry.names if isinstance(registry, ForeignKeys) else tuple(registry)
    for name in chosen:
        if name not in there:
            raise InputError(f"known_agents: got {name!r}, expected some of {sorted(there)}")
    if not chosen:
        raise InputError("known_agents: got none, expected at least one name")
    return chosen


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


def _sum_columns(posterior: NDArray[np.float32], owners: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return [T, A] from [T, K]: an agent's posterior is the sum over its keys."""
    firsts = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))
    return posterior if len(firsts) == len(owners) else np.add.reduceat(posterior, firsts, axis=1)


def _merge(found: Segmentation, owners: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Return the spans of the segmentation by owner, neighbours of one owner in one span."""
    owner_of = [*owners.tolist(), -1]  # -1 stays -1
    spans: list[tuple[int, int, int]] = []
    for start, end, column in found.segments:
        owner = owner_of[column]
        if spans and spans[-1][2] == owner:
            spans[-1] = (spans[-1][0], end, owner)
        else:
            spans.append((start, end, owner))
    return spans


def _profiles(
    registry: Registry | ForeignKeys, profile: str | None, known: tuple[str, ...] | None
) -> list[Any]:
    """Return the ids of the profiles to read: the one that is named, or all that have (known) agents."""
    if not isinstance(registry, Registry):
        return [profile]
    if profile is None:
        names = {id: registry.names(id) for id in registry.profiles}
        return [id for id in names if names[id] and (known is None or not {*names[id]}.isdisjoint(known))]
    if known is not None and registry.names(profile) and {*registry.names(profile)}.isdisjoint(known):
        raise InputError(
            f"known_agents: got {list(known)}, expected some of profile {profile}:"
            f" {list(registry.names(profile))}"
        )
    return [profile]


def _sources(tokenizer: Any, registry: Registry | ForeignKeys, profiles: list[Any]) -> list[Any]:
    """Return what each profile's tokenizer is opened from."""
    if isinstance(tokenizer, Mapping) and isinstance(registry, Registry):
        for id in tokenizer:
            registry.get_profile(id)
        return [tokenizer.get(id) for id in profiles]
    if tokenizer is not None and len(profiles) > 1:
        raise InputError(
            f"tokenizer: got {type(tokenizer).__name__}, expected {{profile id: tokenizer}} of {profiles}"
        )
    return [tokenizer] * len(profiles)


def _owners(voices: list[_Voices]) -> NDArray[np.int64]:
    """Return the agent of every key that was looked at, ascending."""
    return np.concatenate([voice.owners for voice in voices])


def _edges(starts: NDArray[np.int64], pieces: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where the tokens of the pieces [S, 2] begin and the last ones end: [S + 1]."""
    return np.append(np.searchsorted(starts, pieces[:, 0]), len(starts))


def _split(spans: list[tuple[int, int, int]], at: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Return the spans with those cut in two that something stands inside that is left out."""
    if not len(at):
        return spans
    cuts = at.tolist()
    parts: list[tuple[int, int, int]] = []
    for start, end, agent in spans:
        inner = cuts[bisect.bisect_right(cuts, start) : bisect.bisect_left(cuts, end)]
        parts += [(a, b, agent) for a, b in itertools.pairwise([start, *inner, end])]
    return parts


def _extents(
    length: int,
    axis: Axis,
    starts: NDArray[np.int64],
    pieces: NDArray[np.int64] | None,
    parts: Parts | None,
    at: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the characters [S, 2] of spans; with what is left out they cover the text."""
    if pieces is not None:
        return pieces
    if not len(starts):
        return np.zeros((0, 2), np.int64)
    inner = axis.starts_of(starts[1:])
    lows, highs = np.append(0, inner), np.append(inner, length)
    if parts is not None:
        after = np.searchsorted(starts, at)  # the span behind what is left out
        lows[after[after < len(starts)]] = parts.left_out[after < len(starts), 1]
        highs[after[after > 0] - 1] = parts.left_out[after > 0, 0]
    return np.stack([lows, highs], axis=1)


@dataclasses.dataclass(frozen=True, eq=False)
class _Certainty:
    """Of each span [S]: the mean posterior of its guess, the chance that the guess wrote none of it.

    `intervals` [S + 1, 2] are those of the boundaries. All None where the decoder has no posterior.
    """

    means: NDArray[np.float64] | None = None
    error: NDArray[np.float64] | None = None
    intervals: NDArray[np.int64] | None = None


def _certainty(
    posterior: NDArray[np.float32] | None,
    present: NDArray[np.int64],
    spans: list[tuple[int, int, int]],
    guesses: NDArray[np.int64],
) -> _Certainty:
    if posterior is None:
        return _Certainty()
    edges = np.array([*(start for start, _, _ in spans), len(posterior)], dtype=np.int64)
    columns = np.searchsorted(present, guesses).clip(0, len(present) - 1)
    known = present[columns] == guesses  # others were not looked at: their posterior is 0
    means, highest = column_summary(posterior, edges, columns)
    # P(a wrote none of it) is at most 1 - γ_t(a) at any of its tokens.
    error = np.where(known, 1 - np.minimum(highest, 1), 1).astype(np.float64)
    intervals = np.array(boundary_intervals(posterior, spans), dtype=np.int64).reshape(-1, 2)
    return _Certainty(np.where(known, means, 0.0), error, intervals)


def _segments(
    extents: NDArray[np.int64] | None,
    tokens: NDArray[np.int64] | None,
    guesses: list[str],
    attributed: list[bool],
    log_p: list[float],
    certainty: _Certainty,
    chosen: NDArray[np.bool_],
    place: Callable[[NDArray[np.int64]], NDArray[np.int64]],
) -> list[Segment]:
    """Put the segments together; a boundary that was not `chosen` lies where it lies."""
    count, intervals = len(guesses), certainty.intervals
    nowhere = [(None, None)] * count
    bounds: list[tuple[Any, Any]] = nowhere
    if intervals is not None:
        exact = tokens if tokens is not None else extents
        assert exact is not None
        left, right = place(intervals[:-1]), place(intervals[1:])
        left = np.where(np.append(False, chosen)[:count, None], left, exact[:, :1])
        right = np.where(np.append(chosen, False)[:count, None], right, exact[:, 1:])
        bounds = [(tuple(a), tuple(b)) for a, b in zip(left.tolist(), right.tolist(), strict=True)]
    means, error = ([None] * count if v is None else v.tolist() for v in (certainty.means, certainty.error))
    return [
        Segment(char_start, char_end, start, end, guess if yes else None, guess, p, mean, wrong, low, high)
        for (char_start, char_end), (start, end), guess, yes, p, mean, wrong, (low, high) in zip(
            nowhere if extents is None else extents.tolist(),
            nowhere if tokens is None else tokens.tolist(),
            guesses,
            attributed,
            log_p,
            means,
            error,
            bounds,
            strict=True,
        )
    ]


def _with_left_out(
    segments: list[Segment], parts: Parts, tokens: NDArray[np.int64] | None, characters: bool
) -> list[Segment]:
    """Return the segments with those that were left out, in the order of the text."""
    nowhere = [(None, None)] * len(parts.left_out)
    left_out = [
        Segment(char_start, char_end, start, end, None, None, 0.0, None, None, None, None, left_out=True)
        for (char_start, char_end), (start, end) in zip(
            parts.left_out.tolist() if characters else nowhere,
            nowhere if tokens is None else tokens.tolist(),
            strict=True,
        )
    ]
    return sorted([*segments, *left_out], key=lambda s: (s.char_start if characters else s.start) or 0)


def _strengths(
    found: Segmentation, owners: NDArray[np.int64], names: tuple[str, ...]
) -> dict[str, float] | None:
    if found.strengths is None:
        return None
    strengths: dict[str, float] = {}
    for owner, strength in zip(owners.tolist(), found.strengths.tolist(), strict=True):
        strengths[names[owner]] = max(strength, strengths.get(names[owner], 0.0))
    return strengths
