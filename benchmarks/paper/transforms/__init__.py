"""What happens to a text after it was generated, each with the truth about every character.

    TRANSFORMS["edits-5"](log, rng)                                     # an Altered(text, spans)
    TRANSFORMS["redaction"](log, rng, entities=record.entities)
    TRANSFORMS["backtranslation-fr"](log, rng, en_fr=forth, fr_en=back)

A transformation takes a `Log` or what another one returned, and a `numpy.random.Generator`, from which all
that is drawn follows. What else it needs has a name, a key of `NEEDS`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.paper.transforms.altered import NOBODY, Altered, Spanned, Writer
from benchmarks.paper.transforms.cutting import pasted, shuffled, truncated, unchanged
from benchmarks.paper.transforms.pii import by_presidio, by_rules, redacted, with_entities
from benchmarks.paper.transforms.rewriting import back_translated, edited, quoting, regenerated
from benchmarks.paper.transforms.translation import Translator
from iet.errors import BackendUnavailable

__all__ = [
    "NEEDS",
    "NOBODY",
    "TRANSFORMS",
    "Altered",
    "Spanned",
    "Transform",
    "Translator",
    "Writer",
    "back_translated",
    "by_presidio",
    "by_rules",
    "edited",
    "pasted",
    "quoting",
    "redacted",
    "regenerated",
    "shuffled",
    "truncated",
    "unchanged",
    "with_entities",
]

NEEDS = {
    **{
        f"{a}_{b}": f"a translator: Translator(folder or id of a model), e.g. Helsinki-NLP/opus-mt-{a}-{b}"
        for a, b in (("en", "fr"), ("fr", "en"), ("en", "zh"), ("zh", "en"))
    },
    "regenerate": "a function (log, index of the turn) -> unmarked text",
    "entities": "the record's list of {'entity': text, 'types': [type]}",
    "human": "a text that people wrote",
}
"""What a transformation may need, and what that is."""


@dataclasses.dataclass(frozen=True)
class Transform:
    """A row of the table of transformations."""

    label: str  # as the table prints it
    category: str  # as in the paper's table, or "ours"
    function: Callable[..., Altered]  # (source, rng, **) -> Altered
    # Arguments of the function that make this row
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # Arguments of the function that the caller brings, and their names in `NEEDS`
    needs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    takes: tuple[str, ...] = ()  # arguments that the caller may bring, under their own name

    def __call__(self, source: Spanned, rng: np.random.Generator, **brought: Any) -> Altered:
        """Return the altered text.

        Args:
            source: a `Log`, or what another transformation returned.
            **brought: names of `NEEDS` to what they are, and `tokenizer` (what counts as a token), `find`
                (what finds a person's data) and `writer`. What is not asked for is ignored: one mapping
                serves every row.
        """
        missing = [name for name in self.needs.values() if brought.get(name) is None]
        if missing:
            wanted = "; ".join(f"{name} = {NEEDS[name]}" for name in missing)
            raise BackendUnavailable(f"{self.label} needs {wanted}")
        found = {argument: brought[name] for argument, name in self.needs.items()}
        found |= {argument: brought[argument] for argument in self.takes if argument in brought}
        return self.function(source, rng, **self.options, **found)


_PII = ("tokenizer", "find", "writer")

TRANSFORMS = {
    "none": Transform("No transformation", "Clean", unchanged),
    "truncation-90": Transform(
        "Truncation (90% kept)", "Content removal", truncated, {"keep": 0.9}, takes=("tokenizer",)
    ),
    "truncation-75": Transform(
        "Truncation (75% kept)", "Content removal", truncated, {"keep": 0.75}, takes=("tokenizer",)
    ),
    "backtranslation-fr": Transform(
        "Backtranslation (EN-FR-EN)",
        "Structure-preserving rewriting",
        back_translated,
        needs={"forth": "en_fr", "back": "fr_en"},
    ),
    "backtranslation-zh": Transform(
        "Backtranslation (EN-ZH-EN)",
        "Structure-preserving rewriting",
        back_translated,
        needs={"forth": "en_zh", "back": "zh_en"},
    ),
    "regeneration-10": Transform(
        "10% replaced",
        "Partial regeneration",
        regenerated,
        {"share": 0.1},
        {"regenerate": "regenerate"},
        ("writer",),
    ),
    "insertion": Transform(
        "PII inserted below 2%",
        "PII redaction",
        with_entities,
        {"least": 0.02},
        {"entities": "entities"},
        _PII,
    ),
    "redaction": Transform("PII redacted", "PII redaction", redacted, {}, {"entities": "entities"}, _PII),
    "pasted-before": Transform(
        "Half of it behind human text", "ours", pasted, {"place": "before"}, {"human": "human"}
    ),
    "pasted-behind": Transform(
        "Half of it before human text", "ours", pasted, {"place": "behind"}, {"human": "human"}
    ),
    "pasted-around": Transform(
        "Half of it inside human text", "ours", pasted, {"place": "around"}, {"human": "human"}
    ),
    "turns-90": Transform(
        "Every turn truncated (90% kept)",
        "ours",
        truncated,
        {"keep": 0.9, "per": "turn"},
        takes=("tokenizer",),
    ),
    "turns-75": Transform(
        "Every turn truncated (75% kept)",
        "ours",
        truncated,
        {"keep": 0.75, "per": "turn"},
        takes=("tokenizer",),
    ),
    "edits-1": Transform("Word edits (1%)", "ours", edited, {"rate": 0.01}, takes=("writer",)),
    "edits-2": Transform("Word edits (2%)", "ours", edited, {"rate": 0.02}, takes=("writer",)),
    "edits-5": Transform("Word edits (5%)", "ours", edited, {"rate": 0.05}, takes=("writer",)),
    "edits-10": Transform("Word edits (10%)", "ours", edited, {"rate": 0.1}, takes=("writer",)),
    "edits-20": Transform("Word edits (20%)", "ours", edited, {"rate": 0.2}, takes=("writer",)),
    "shuffled": Transform("Paragraphs shuffled", "ours", shuffled),
    "quotation": Transform(
        "A quarter of turns quotes another agent", "ours", quoting, {"share": 0.25}, takes=("tokenizer",)
    ),
}
"""Every transformation, in the order of the tables."""
