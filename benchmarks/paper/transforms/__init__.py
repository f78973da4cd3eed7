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

from benchmarks.paper.transforms.altered import Altered, Spanned
from benchmarks.paper.transforms.cutting import pasted, shuffled, truncated, unchanged
from benchmarks.paper.transforms.pii import redacted, with_entities
from benchmarks.paper.transforms.rewriting import back_translated, edited, quoting, regenerated
from iet.errors import BackendUnavailable

NEEDS = {
    **{
        f"{a}_{b}": f"a translator: Translator(folder or id of a model), e.g. Helsinki-NLP/opus-mt-{a}-{b}"
        for other in ("fr", "zh", "es")
        for a, b in (("en", other), (other, "en"))
    },
    "regenerate": "a function (log, index of the turn) -> unmarked text",
    "entities": "the record's list of {'entity': text, 'types': [type]}",
    "human": "a text that people wrote",
}
"""What a transformation may need, and what that is."""


@dataclasses.dataclass(frozen=True)
class Transform:
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
_REWRITING, _REMOVAL = "Structure-preserving rewriting", "Content removal"
_ENTITIES = {"entities": "entities"}

TRANSFORMS = {
    "none": Transform("No transformation", "Clean", unchanged),
    **{
        f"truncation-{kept}": Transform(
            f"Truncation ({kept}% kept)", _REMOVAL, truncated, {"keep": kept / 100}, takes=("tokenizer",)
        )
        for kept in (90, 75)
    },
    **{
        f"backtranslation-{other}": Transform(
            f"Backtranslation (EN-{other.upper()}-EN)",
            "ours" if other == "es" else _REWRITING,
            back_translated,
            needs={"forth": f"en_{other}", "back": f"{other}_en"},
        )
        for other in ("fr", "zh", "es")
    },
    "regeneration-10": Transform(
        "10% replaced",
        "Partial regeneration",
        regenerated,
        {"share": 0.1},
        {"regenerate": "regenerate"},
        ("writer",),
    ),
    "insertion": Transform(
        "PII inserted below 2%", "PII redaction", with_entities, {"least": 0.02}, _ENTITIES, _PII
    ),
    "redaction": Transform("PII redacted", "PII redaction", redacted, {}, _ENTITIES, _PII),
    **{
        f"pasted-{place}": Transform(
            f"Half of it {where} human text", "ours", pasted, {"place": place}, {"human": "human"}
        )
        for place, where in (("before", "behind"), ("behind", "before"), ("around", "inside"))
    },
    **{
        f"turns-{kept}": Transform(
            f"Every turn truncated ({kept}% kept)",
            "ours",
            truncated,
            {"keep": kept / 100, "per": "turn"},
            takes=("tokenizer",),
        )
        for kept in (90, 75)
    },
    **{
        f"edits-{rate}": Transform(
            f"Word edits ({rate}%)", "ours", edited, {"rate": rate / 100}, takes=("writer",)
        )
        for rate in (1, 2, 5, 10, 20)
    },
    "shuffled": Transform("Paragraphs shuffled", "ours", shuffled),
    "quotation": Transform(
        "A quarter of turns quotes another agent", "ours", quoting, {"share": 0.25}, takes=("tokenizer",)
    ),
}
"""Every transformation, in the order of the tables."""
