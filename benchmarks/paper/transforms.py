"""Changes to a text after it was generated, with the true agent of every character.

The rows of § Sensitivity to Post-Generation Text Transformations and § Robustness to PII Redaction. All draws
follow from a `numpy.random.Generator`. Text that a transformation writes into a turn belongs to the agent of
that turn, as in the paper.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.paper import needed
from benchmarks.paper.conversations.logs import Log
from iet.errors import BackendUnavailable
from iet.marks.tokenizer import Tokenizer

MIN_CHANGED = 0.02
"""Share of the tokens that redaction must change; below it the record's entities are inserted first."""

MAX_SENTENCE_WORDS = 64
"""Longer sentences are translated in parts, because translators drop the end of long ones."""

Span = tuple[int, int, int]
Translate = Callable[[list[str]], Sequence[str]]
"""Sentences of one language to as many of another one."""


@dataclasses.dataclass(frozen=True)
class Altered:
    text: str  # the text that an auditor gets
    spans: tuple[Span, ...]  # characters `[start, end)` and agent; they tile the text, neighbours differ
    changed: float = 0.0  # share of tokens, sentences or turns that the transformation changed

    def edges(self, agents: int) -> NDArray[np.float64]:
        """Return the adjacency matrix [n, n] of this text: 1 if characters of j follow those of another i."""
        matrix = np.zeros((agents, agents))
        for (_, _, previous), (_, _, following) in itertools.pairwise(self.spans):
            matrix[previous, following] = 1.0
        return matrix


class Place(NamedTuple):
    """Characters `[start, end)` to redact, and the name of the placeholder."""

    start: int
    end: int
    name: str


Find = Callable[[str], Iterable[Place]]
"""Finds personal data in a text."""


@dataclasses.dataclass(frozen=True)
class Context:
    """Inputs of transformations other than the log."""

    tokenizer: Tokenizer
    entities: Sequence[Mapping[str, Any]]  # the record's [{'entity': text, 'types': [type]}]
    regenerate: Callable[[Log, int], str]  # (log, index of a turn) -> unmarked text of that turn
    translators: Mapping[str, Translate] = dataclasses.field(default_factory=dict)  # "en_fr" -> translator
    find: Find | None = None  # finds personal data that the record does not list


def assemble(pieces: Iterable[tuple[str, int]], changed: float = 0.0) -> Altered:
    """Return the text of (text, agent) pieces; adjacent pieces of one agent become one span."""
    text, spans = "", list[Span]()
    for agent, group in itertools.groupby(
        (piece for piece in pieces if piece[0]), key=lambda piece: piece[1]
    ):
        start = len(text)
        text += "".join(part for part, _ in group)
        spans.append((start, len(text), agent))
    return Altered(text, tuple(spans), changed)


def pieces_between(source: Log | Altered, start: int, end: int) -> list[tuple[str, int]]:
    """Return the characters `[start, end)` of a text with their agents."""
    return [
        (source.text[max(start, s) : min(end, e)], agent)
        for s, e, agent in source.spans
        if s < end and e > start
    ]


def truncated(log: Log, keep: float, tokenizer: Tokenizer) -> Altered:
    """Keep the first ⌊keep·T⌋ tokens. (The paper does not say whether it cuts the text or every turn.)"""
    ends = tokenizer.encode(log.text).char_ends
    num_kept = int(keep * len(ends) + 1e-9)  # 0.9 of 10 is 9
    end = int(ends[num_kept - 1]) if num_kept else 0
    return assemble(pieces_between(log, 0, end), 1 - num_kept / max(1, len(ends)))


def regenerated(
    log: Log, rng: np.random.Generator, share: float, regenerate: Callable[[Log, int], str]
) -> Altered:
    """Replace ⌊share·turns + u⌋ turns by unmarked ones, so that the share holds on average over logs."""
    count = int(share * len(log.turns) + rng.random())
    drawn = {int(i) for i in rng.choice(len(log.turns), count, replace=False)}
    joiners = ["", *[log.setting.joiner] * (len(log.turns) - 1)]
    pieces = [
        (joiner + (regenerate(log, i) if i in drawn else turn.text), turn.agent)
        for i, (joiner, turn) in enumerate(zip(joiners, log.turns, strict=True))
    ]
    return assemble(pieces, count / max(1, len(log.turns)))


def back_translated(log: Log, language: str, translators: Mapping[str, Translate]) -> Altered:
    """Translate every sentence into a language and back, within turns, so that the truth stays exact.

    Whitespace between sentences stays. A sentence whose translation is empty stays as it is.
    """
    pair, inverse = f"en_{language}", f"{language}_en"
    missing = [name for name in (pair, inverse) if name not in translators]
    if missing:
        raise BackendUnavailable(
            f"needs a model for {', '.join(missing)}, e.g. Helsinki-NLP/opus-mt-en-{language}"
            + ", or --apertium" * (language == "es")
        )
    splitter = needed("nltk.tokenize.punkt").PunktSentenceTokenizer()
    positions: list[tuple[int, int, int]] = []  # start, end, agent
    for start, end, agent in log.spans:
        for low, high in splitter.span_tokenize(log.text[start:end]):
            words = [match.span() for match in re.finditer(r"\S+", log.text[start + low : start + high])]
            chunks = [words[i : i + MAX_SENTENCE_WORDS] for i in range(0, len(words), MAX_SENTENCE_WORDS)]
            positions += [(start + low + chunk[0][0], start + low + chunk[-1][1], agent) for chunk in chunks]
    sentences = [log.text[start:end] for start, end, _ in positions]
    returned = list(translators[inverse](list(translators[pair](sentences))))
    pieces, position, changed = list[tuple[str, int]](), 0, 0
    for (start, end, agent), sentence, back in zip(positions, sentences, returned, strict=True):
        back = back.strip() or sentence
        changed += back != sentence
        pieces += [*pieces_between(log, position, start), (back, agent)]
        position = end
    pieces += pieces_between(log, position, len(log.text))
    return assemble(pieces, changed / max(1, len(sentences)))


def personal_data(text: str, entities: Sequence[Mapping[str, Any]], find: Find | None = None) -> list[Place]:
    """Return the record's entities, as whole words, and what `find` finds; overlapping places are merged."""
    positions = [] if find is None else list(find(text))
    for entity in entities:
        words = entity["entity"].strip()
        pattern = rf"(?<!\w){re.escape(words)}(?!\w)"
        positions += [
            Place(*match.span(), entity["types"][0].upper()) for match in re.finditer(pattern, text)
        ]
    merged: list[Place] = []
    for position in sorted(positions, key=lambda position: (position.start, -position.end)):
        if not merged or position.start >= merged[-1].end:
            merged.append(position)
        elif position.end > merged[-1].end:
            merged[-1] = merged[-1]._replace(end=position.end)
    return merged


def presidio() -> Find:
    """Return a finder of personal data: presidio with its default model."""
    engine = needed("presidio_analyzer", "presidio-analyzer").AnalyzerEngine()

    def find(text: str) -> list[Place]:
        return [Place(r.start, r.end, r.entity_type) for r in engine.analyze(text=text, language="en")]

    return find


def redacted(source: Log | Altered, context: Context) -> Altered:
    """Replace personal data by placeholders such as [NAME]; `changed` is the share of tokens replaced."""
    positions = personal_data(source.text, context.entities, context.find)
    pieces, position = list[tuple[str, int]](), 0
    for start, end, name in positions:
        agent = pieces_between(source, start, end)[-1][1]
        pieces += [*pieces_between(source, position, start), (f"[{name}]", agent)]
        position = end
    pieces += pieces_between(source, position, len(source.text))
    ends = context.tokenizer.encode(source.text).char_ends
    inside = sum(((ends > start) & (ends <= end)).sum() for start, end, _ in positions)
    return assemble(pieces, float(inside / max(1, len(ends))))


def with_entities(log: Log, rng: np.random.Generator, context: Context) -> Altered:
    """Insert entities of the record into each turn until redaction would change `MIN_CHANGED` of its tokens.

    An entity is inserted as " (entity)" after a drawn word. Inserted text carries no mark; it belongs to
    the agent of the turn. `changed` is the share of turns with an insertion.
    """
    names = [entity["entity"].strip() for entity in context.entities]
    pieces, changed = list[tuple[str, int]](), 0
    for start, end, agent in log.spans:
        text, inserted = log.text[start:end], 0
        while names and redacted(Altered(text, ((0, len(text), agent),)), context).changed < MIN_CHANGED:
            free = [match.end() for match in re.finditer(r"\S+", text)]
            positions = personal_data(text, context.entities, context.find)
            free = [
                at for at in free if not any(position.start < at < position.end for position in positions)
            ]
            if not free:
                break
            at = int(rng.choice(free))
            text = f"{text[:at]} ({names[int(rng.integers(len(names)))]}){text[at:]}"
            inserted = 1
        pieces.append((text, agent))
        changed += inserted
    return assemble(pieces, changed / max(1, len(log.spans)))


class Translator:
    """Translate sentences greedily with a sequence-to-sequence model of transformers (folder or id)."""

    def __init__(self, model: str, batch: int = 16, max_tokens: int = 512) -> None:
        transformers = needed("transformers", "transformers")
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(model)
            self._model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(model).eval()
        except (ImportError, OSError, ValueError) as error:
            raise BackendUnavailable(f"translation model {model!r}: {error}") from None
        self._batch, self._max_tokens = batch, max_tokens

    def __call__(self, sentences: list[str]) -> list[str]:
        answers: list[str] = []
        for first in range(0, len(sentences), self._batch):
            part = sentences[first : first + self._batch]
            inputs = self._tokenizer(part, return_tensors="pt", padding=True, truncation=True)
            inputs.pop("token_type_ids", None)
            out = self._model.generate(**inputs, do_sample=False, max_new_tokens=self._max_tokens)
            answers += self._tokenizer.batch_decode(out, skip_special_tokens=True)
        return answers


class Apertium:
    """Translate sentences by the rules of Apertium, which installs without a model, e.g. "eng-spa"."""

    def __init__(self, mode: str) -> None:
        if shutil.which("apertium") is None:
            raise BackendUnavailable("apertium: not found; apt-get install apertium apertium-eng-spa")
        self._mode = mode

    def __call__(self, sentences: list[str]) -> list[str]:
        # Apertium reads on over the end of a line, but not over an empty line.
        said = [words for sentence in sentences if (words := " ".join(sentence.split()))]
        command = ["apertium", "-u", self._mode]
        done = subprocess.run(command, input="\n\n".join(said), capture_output=True, text=True)
        translated = done.stdout.split("\n\n")
        if done.returncode or (said and len(translated) != len(said)):
            raise BackendUnavailable(f"apertium {self._mode}: {done.stderr.strip() or 'lost sentences'}")
        answers = iter(translated)
        return [" ".join(next(answers).split()) if sentence.strip() else "" for sentence in sentences]


@dataclasses.dataclass(frozen=True)
class Transform:
    label: str  # as in the paper's table
    category: str
    apply: Callable[[Log, np.random.Generator, Context], Altered]


TRANSFORMS: Mapping[str, Transform] = {
    "none": Transform(
        "No transformation", "Clean", lambda log, *_: assemble(pieces_between(log, 0, len(log.text)))
    ),
    **{
        f"truncation-{percent}": Transform(
            f"Truncation ({percent}% kept)",
            "Content removal",
            lambda log, _, context, keep=percent / 100: truncated(log, keep, context.tokenizer),  # type: ignore[misc]
        )
        for percent in (90, 75)
    },
    **{
        f"backtranslation-{code}": Transform(
            f"Backtranslation (EN-{code.upper()}-EN)",
            "Structure-preserving rewriting",
            lambda log, _, context, code=code: back_translated(log, code, context.translators),  # type: ignore[misc]
        )
        for code in ("fr", "zh", "es")
    },
    "regeneration-10": Transform(
        "10% replaced",
        "Partial regeneration",
        lambda log, rng, context: regenerated(log, rng, 0.1, context.regenerate),
    ),
}
"""Every transformation, in the order of the paper's table."""
