"""What identifies a person: finding it, replacing it by placeholders, and putting it in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.paper.transforms.altered import (
    Altered,
    Piece,
    Spanned,
    Writer,
    altered,
    parts_of,
    pieces_between,
    tokens_of,
    touched,
    writer_label,
)
from iet.errors import BackendUnavailable, InputError
from iet.marks.tokenizer import Tokenizer


class Place(NamedTuple):
    """Characters `[start, end)`, and the name of the placeholder for them, without brackets."""

    start: int
    end: int
    name: str


Entities = Sequence[Mapping[str, Any] | str]
"""A record's column `pii`: [{'entity': str, 'types': [str]}, ...], or the entities alone, without types."""

Find = Callable[[str, Entities], list[Place]]
"""A text and the record's entities to ascending places that do not overlap."""

PLACEHOLDERS = {
    kind: placeholder
    for placeholder, kinds in {
        "NAME": "name first_name last_name",
        "COMPANY": "company_name",
        "EMAIL": "email",
        "PHONE": "phone_number",
        "DATE": "date date_of_birth date_time",
        "TIME": "time",
        "SSN": "ssn national_id tax_id",
        "ADDRESS": "address street_address city state country postcode coordinate",
        "IP": "ipv4 ipv6",
        "URL": "url",
        "CARD": "credit_card_number cvv",
        "ACCOUNT": "bank_routing_number account_number swift_bic",
        "PASSWORD": "password api_key",
    }.items()
    for kind in kinds.split()
}
"""Placeholder of a type of the data; a type that is not listed becomes "ID".

An entity without a type gets the placeholder of the rule that it matches as a whole, else "PII"."""

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_WEEKDAY = r"(?:(?:Sun|Mon|Tues|Wednes|Thurs|Fri|Satur)day,? )?"
_NUMBER_BEFORE = r"(?<![\w.:-])"
_NUMBER_AFTER = r"(?![\w:-]|\.\d)"
_EXTENSION = r"(?: ?x\d{1,5})?" + _NUMBER_AFTER

RULES = {
    "EMAIL": (r"(?<![\w.+%-])[\w.+%-]+@[\w-]+(?:\.[\w-]+)+",),
    "URL": (r"(?:https?://|\bwww\.)[^\s<>\"')\]]*[^\s<>\"')\].,;:!?]",),
    "IP": (
        _NUMBER_BEFORE + r"(?:\d{1,3}\.){3}\d{1,3}" + _NUMBER_AFTER,
        r"(?<![\w:])(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}(?![\w:])",
    ),
    "SSN": (
        _NUMBER_BEFORE + r"\d{3}-\d{2}-\d{4}" + _NUMBER_AFTER,
        _NUMBER_BEFORE + r"\d{3} \d{3} \d{3}" + _NUMBER_AFTER,
        r"\b[A-Z]{2} ?\d\d ?\d\d ?\d\d ?[A-Z]\b",
    ),
    "CARD": (_NUMBER_BEFORE + r"\d{4}(?:[ -]?\d{4}){2}[ -]?\d{1,7}" + _NUMBER_AFTER,),
    "DATE": (
        _NUMBER_BEFORE + r"\d{4}[-./]\d{1,2}[-./]\d{1,2}(?:T[\d:.]+Z?)?" + _NUMBER_AFTER,
        _NUMBER_BEFORE + r"\d{1,2}([-./])\d{1,2}\1(?:\d{4}|\d{2})" + _NUMBER_AFTER,
        rf"\b{_WEEKDAY}{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}\b",
        rf"\b{_WEEKDAY}\d{{1,2}}(?:st|nd|rd|th)? (?:of )?{_MONTH},? \d{{4}}\b",
    ),
    "TIME": (_NUMBER_BEFORE + r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: ?[AaPp][Mm]\b)?(?![\w:])",),
    "PHONE": (
        r"(?<![\w.])(?:\+?\d{1,3}[ .-]?)?\(\d{1,5}\)[ .-]?\d{3,4}[ .-]?\d{3,4}(?:[ .-]\d{3,4})?" + _EXTENSION,
        _NUMBER_BEFORE + r"(?:\+?\d{1,3}[ .-])?\d{3,5}[ .-]\d{3,4}[ .-]\d{3,4}" + _EXTENSION,
        _NUMBER_BEFORE + r"0\d{1,4} \d{3,4} ?\d{3,4}" + _EXTENSION,
        r"(?<![\w+])\+\d{7,15}" + _EXTENSION,
        _NUMBER_BEFORE + r"0\d{9,10}" + _EXTENSION,
    ),
    "NAME": (r"\b(?:Mrs?|Ms|Miss|Mx|Dr|Prof)\.? [A-Z][\w'’-]+(?: [A-Z][\w'’-]+){0,2}",),
    "ADDRESS": (
        r"\b\d{1,5} (?:[A-Z][\w'’-]+ ){1,3}(?:Street|St|Road|Rd|Avenue|Ave|Lane|Ln|Drive|Dr|Boulevard|Blvd|"
        r"Court|Ct|Place|Square|Terrace|Way)\b",
    ),
    "ID": (r"\b[A-Z]{2,5}-?\d{5,}\b", r"\b[A-Z]-?\d{6,}\b"),
}
"""Placeholder to regular expressions, case-sensitive. They see the form of a thing, not what it means: a name
without a title and an address without a number stay, unless the record lists them."""

_RULES = [(name, re.compile(rule)) for name, rules in RULES.items() for rule in rules]


def by_rules(text: str, entities: Entities = ()) -> list[Place]:
    """Return the record's entities and what `RULES` match, in the order of the text.

    An entity is found where it stands as such, not inside a longer word. Places that overlap become one, so
    that nothing of what was found stays. It is named after the part that begins first; of those that begin
    together, after the longest, an entity before a rule.
    """
    found = _listed(text, entities)
    found += [Place(*match.span(), name) for name, rule in _RULES for match in rule.finditer(text)]
    return _apart(found)


def _apart(found: list[Place]) -> list[Place]:
    places: list[Place] = []
    for place in sorted(found, key=lambda p: (p.start, -p.end)):  # stable: else the order of `found` decides
        if not places or place.start >= places[-1].end:
            places.append(place)
        elif place.end > places[-1].end:
            places[-1] = places[-1]._replace(end=place.end)
    return places


def _listed(text: str, entities: Entities) -> list[Place]:
    found = []
    for words, name in entity_names(entities):
        before = r"(?<!\w)" if words[0].isalnum() else ""
        after = r"(?!\w)" if words[-1].isalnum() else ""
        matches = re.finditer(before + re.escape(words) + after, text)
        found += [Place(*match.span(), name) for match in matches]
    return found


def entity_names(entities: Entities) -> list[tuple[str, str]]:
    """Return the text, without blanks around it, and the placeholder of each entity."""
    found = []
    for entity in entities:
        listed = {"entity": entity, "types": []} if isinstance(entity, str) else entity
        words, types = listed.get("entity"), listed.get("types")
        if not isinstance(words, str) or not words.strip() or not isinstance(types, (list, tuple)):
            raise InputError(f"entities: got {entity!r}, expected {{'entity': text, 'types': [type, ...]}}")
        words = words.strip()
        rules = (name for name, rule in _RULES if rule.fullmatch(words))
        found.append((words, PLACEHOLDERS.get(types[0], "ID") if types else next(rules, "PII")))
    return found


PRESIDIO = {
    "PERSON": "NAME",
    "EMAIL_ADDRESS": "EMAIL",
    "PHONE_NUMBER": "PHONE",
    "DATE_TIME": "DATE",
    "US_SSN": "SSN",
    "LOCATION": "ADDRESS",
    "IP_ADDRESS": "IP",
    "CREDIT_CARD": "CARD",
}
"""Placeholder of an entity type of presidio; others keep their name."""


def by_presidio(**options: Any) -> Find:
    """Return a finder that asks presidio, with its default model, and adds the record's entities."""
    try:
        import presidio_analyzer
    except ImportError as error:
        raise BackendUnavailable(
            f"presidio: {error}; pip install presidio-analyzer and its language model, or use the rules"
        ) from None
    engine = presidio_analyzer.AnalyzerEngine(**options)

    def find(text: str, entities: Entities = ()) -> list[Place]:
        results = engine.analyze(text=text, language="en")
        return _apart(
            _listed(text, entities)
            + [Place(r.start, r.end, PRESIDIO.get(r.entity_type, r.entity_type)) for r in results]
        )

    return find


def redacted(
    source: Spanned,
    rng: np.random.Generator,
    *,
    entities: Entities = (),
    find: Find = by_rules,
    writer: Writer = "agent",
    tokenizer: Tokenizer | None = None,
) -> Altered:
    """Replace what identifies a person by placeholders: [NAME], [EMAIL], [PHONE], [DATE], [SSN], ...

    A placeholder stands in the segment of the agent who wrote the last character of what it replaces, as in
    the paper, whose redaction changes no segment. All other characters stay as they are. The figures are
    `changed`, the share of the source's tokens that were replaced at least in part, and `places`.
    """
    writer_label(writer, 0)
    places = find(source.text, entities)
    pieces: list[Piece] = []
    position = 0
    for start, end, name in places:
        agent = pieces_between(source, start, end)[-1].agent
        pieces += pieces_between(source, position, start)
        pieces.append(Piece(f"[{name}]", writer_label(writer, agent), True))
        position = end
    pieces += pieces_between(source, position, len(source.text))
    tokens = tokens_of(source.text, tokenizer)
    changed = touched(tokens, [(start, end) for start, end, _ in places]) / max(1, len(tokens))
    return altered(pieces, {"changed": changed, "places": float(len(places))})


def with_entities(
    source: Spanned,
    rng: np.random.Generator,
    *,
    entities: Entities,
    least: float = 0.02,
    find: Find = by_rules,
    writer: Writer = "agent",
    tokenizer: Tokenizer | None = None,
) -> Altered:
    """Put entities of the record into turns in which redaction would change less than `least` of the tokens.

    Behind a word that is drawn, as " (entity)", one after the other in a drawn order, until enough of the
    turn's tokens would change. The inserted characters are written by a person and carry no mark; the truth
    gives them to the agent of the turn all the same, so that a text and its redaction have the same segments.
    A turn without words, or a record without entities, stays. The figures are `inserted`, the share of
    inserted tokens (with the brackets), and `turns`, the share of turns that got some.
    """
    if not 0 <= least <= 0.2:  # an entity of one token changes a quarter of what is inserted: " ", "(", ")"
        raise InputError(f"least: got {least!r}, expected 0 to 0.2")
    writer_label(writer, 0)
    names = [words for words, _ in entity_names(entities)]
    parts = parts_of(source)
    pieces: list[Piece] = []
    turns = 0
    for joiner, text, agent in parts:
        pieces.append(Piece(joiner, agent))
        there = find(text, entities)
        ends = [match.end() for match in re.finditer(r"\S+", text)]
        free = [e for e in ends if not any(start < e < end for start, end, _ in there)]
        chosen = _missing(text, there, names, least, rng, tokenizer) if free else []
        turns += bool(chosen)
        places = np.sort(rng.choice(free, len(chosen))).tolist() if chosen else []
        position = 0
        for place, words in zip(places, chosen, strict=True):
            pieces.append(Piece(text[position:place], agent))
            pieces.append(Piece(f" ({words})", writer_label(writer, agent), True))
            position = place
        pieces.append(Piece(text[position:], agent))
    found = altered(pieces)
    tokens = tokens_of(found.text, tokenizer)
    figures = {
        "inserted": touched(tokens, found.new) / max(1, len(tokens)),
        "turns": turns / max(1, len(parts)),
    }
    return Altered(found.text, found.spans, found.new, figures)


def _missing(
    text: str,
    there: list[Place],
    names: list[str],
    least: float,
    rng: np.random.Generator,
    tokenizer: Tokenizer | None,
) -> list[str]:
    """Return the entities to insert until (changed + theirs) / (tokens + inserted) reaches `least`."""
    tokens = tokens_of(text, tokenizer)
    changed, total = touched(tokens, [(start, end) for start, end, _ in there]), len(tokens)
    chosen: list[str] = []
    order: list[int] = []
    while names and changed < least * total:
        order = order or rng.permutation(len(names)).tolist()
        chosen.append(names[order.pop()])
        inserted = f" ({chosen[-1]})"
        tokens = tokens_of(inserted, tokenizer)
        total += len(tokens)
        changed += touched(tokens, [(2, len(inserted) - 1)])
    return chosen
