"""Check that a committed file holds each measured number of the README and of docs/.

python -m benchmarks.claims     print what is wrong, and exit 1 if anything is

`claims.toml` lists the numbers, in two kinds of entries:

* `[[claim]]`: `says` are words of the page `in`, `proof` is a committed file, and `at` is a place in it, or a
  list of places.
* `[[fixed]]`: `says` is a list of words of the page `in` with numbers that are no measurements; `why` is one
  of `REASONS`.

A number of a page needs an entry if it has a decimal point, a thousands separator or an exponent, if a unit
follows it, or if it is N in "N of M". Code, link targets and tables that `benchmarks.tables` writes are left
out. In pages and in `says` a line break counts as a space.

A place in a JSON file is a dotted path, or the quotient or difference of two: "rows.0.old / rows.1.new". A
place in any other file is the only line that contains `at`; "A > B" is the first line with B after the first
line with A, and "A @ C" the cell of that line in column C of its table.

Every number in the `says` of a claim, with or without a unit, must be at one of its places. A value v there
proves a shown number n if n is v rounded to the digits shown: |v - n| is at most half a unit of the last
digit of n. For n in % 100·v may prove it as well, in GB or s v/1000, in million v/10^6. Signs are ignored.
Numbers such as 1.2.3 must be equal.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent
LIST = pathlib.Path(__file__).with_suffix(".toml")
REASONS = ("setting", "definition", "version", "example", "law or paper")
GENERATED = frozenset({"docs/reference/commands.md", "docs/reference/options.md"})
"""Pages that are written from the source code."""

_HIDDEN = re.compile(
    r"```.*?```|`[^`]*`|\]\([^)]*\)|^ {4}[^\n]*$|<!-- (\w+) table -->.*?<!-- /\1 table -->",
    re.DOTALL | re.MULTILINE,
)
_NUMBER = re.compile(r"(?<![\w.^])(?<![A-Za-z]-)(?:\d{1,3}(?:[,_]\d{3})+|\d+)(?:\.\d+)*(?:e[+-]?\d+)?(?!\d)")
_UNIT = re.compile(r" ?(%)| (million|µs|ms|s|minutes|MB|GB|x|×|times|nats)(?!\w)")
_COUNT = re.compile(r" of \d")
_FACTORS = {"%": Decimal(100), "GB": Decimal("1e-3"), "s": Decimal("1e-3"), "million": Decimal("1e-6")}


class Page:
    """The words of a Markdown file, and its numbers."""

    def __init__(self, text: str) -> None:
        self.text = _one_line(text)
        self._shown = _one_line(_HIDDEN.sub(lambda hidden: re.sub(r"\d", "#", hidden.group()), text))

    def spans(self, says: str) -> list[tuple[int, int]]:
        """Return the spans of the words, start and end."""
        return [match.span() for match in re.finditer(re.escape(_one_line(says)), self.text)]

    def numbers(self, start: int, end: int) -> list[tuple[str, str]]:
        """Return the digits and units of the numbers in a span."""
        return [(number.group(), self._unit(number.end())) for number in self._numbers(start, end)]

    def measured(self) -> list[tuple[int, int]]:
        """Return the spans of the numbers that need an entry."""
        return [
            number.span()
            for number in self._numbers(0, len(self._shown))
            if set(".,e") & set(number.group())
            or self._unit(number.end())
            or _COUNT.match(self._shown, number.end())
        ]

    def _numbers(self, start: int, end: int) -> Iterator[re.Match[str]]:
        return _NUMBER.finditer(self._shown, start, end)

    def _unit(self, end: int) -> str:
        unit = _UNIT.match(self._shown, end)
        return (unit[1] or unit[2]) if unit else ""


def problems(root: pathlib.Path, entries: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return a line for each number without an entry and for each entry that does not hold.

    Args:
        root: folder with README.md, docs/ and the proofs.
        entries: content of `claims.toml`.
    """
    pages = {}
    for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        name = path.relative_to(root).as_posix()
        if name not in GENERATED:
            pages[name] = Page(path.read_text(encoding="utf-8"))
    wrong = []
    covered: dict[str, list[tuple[int, int]]] = {name: [] for name in pages}
    for entry in [*entries.get("claim", ()), *entries.get("fixed", ())]:
        page = pages.get(entry["in"])
        for says in _listed(entry["says"]):
            spans = page.spans(says) if page else []
            if page is None or not any(page.numbers(*span) for span in spans):
                wrong.append(f"{entry['in']}: no number in the words {says!r}, or no such words")
                continue
            covered[entry["in"]] += spans
            if "proof" in entry:
                reasons = _unproven(root, page, spans[0], entry)
                wrong += [f"{entry['in']}: {says!r}: {reason}" for reason in reasons]
        if "proof" not in entry and entry["why"] not in REASONS:
            wrong.append(f"{entry['in']}: why {entry['why']!r}, expected one of {', '.join(REASONS)}")
    for name, page in pages.items():
        for start, end in page.measured():
            if not any(low <= start and end <= high for low, high in covered[name]):
                near = page.text[max(0, start - 40) : end + 30]
                wrong.append(f"{name}: no entry for {page.text[start:end]} in {near!r}")
    return wrong


def _unproven(
    root: pathlib.Path, page: Page, span: tuple[int, int], entry: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a line for each number of a claim that is not at the places of its proof."""
    try:
        text = (root / entry["proof"]).read_text(encoding="utf-8")
        read = _json_values if entry["proof"].endswith(".json") else _line_values
        values = [value for at in _listed(entry["at"]) for value in read(text, at)]
    except (OSError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        yield f"{entry['proof']} at {entry['at']}: {error}"
        return
    for digits, unit in page.numbers(*span):
        if not any(proves(value, digits, unit) for value in values):
            yield f"{digits} is not in {entry['proof']} at {entry['at']}"


def _line_values(text: str, at: str) -> list[str]:
    """Return the numbers of the line, or of the cell of a table, at a place."""
    lines = text.splitlines()
    words, _, column = at.partition(" @ ")
    *anchors, last = words.split(" > ")
    start = 0
    for part in anchors:
        start = _matches(lines, part, start)[0] + 1
    number, *duplicates = _matches(lines, last, start)
    if duplicates and not anchors:
        raise LookupError(f"{1 + len(duplicates)} lines with {last!r}")
    if not column:
        return _NUMBER.findall(lines[number])
    head = max(i for i in range(number) if lines[i + 1].startswith("| ---"))
    return _NUMBER.findall(_cells(lines[number])[_cells(lines[head]).index(column)])


def _matches(lines: Sequence[str], part: str, start: int) -> list[int]:
    matches = [i for i in range(start, len(lines)) if part in lines[i]]
    if not matches:
        raise LookupError(f"no line with {part!r}")
    return matches


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.split("|")[1:-1]]


def _json_values(text: str, at: str) -> list[str]:
    """Return the numbers at a path, or the quotient or difference of the numbers at two paths."""
    first, *operands = re.split(r" ([/-]) ", at)
    value = _node(json.loads(text), first)
    if operands:
        operation, second = operands
        operand = _node(json.loads(text), second)
        value = value / operand if operation == "/" else value - operand
    return _NUMBER.findall(json.dumps(value))


def _node(content: Any, path: str) -> Any:
    for name in path.split("."):
        content = content[int(name) if isinstance(content, list) else name]
    return content


def proves(value: str, digits: str, unit: str = "") -> bool:
    """Return whether the number shown as `digits` is `value`, rounded to the digits shown."""
    try:
        exact, rounded = (Decimal(re.sub("[,_]", "", number)) for number in (value, digits))
    except InvalidOperation:
        return value == digits
    half_a_unit = Decimal(5).scaleb(int(rounded.as_tuple().exponent) - 1)
    return any(abs(exact * factor - rounded) <= half_a_unit for factor in (1, _FACTORS.get(unit, 1)))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is wrong with the list and the pages."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims", description=__doc__.split("\n")[0])
    parser.parse_args(arguments)
    wrong = problems(ROOT, tomllib.loads(LIST.read_text(encoding="utf-8")))
    print("\n".join(wrong), file=sys.stderr, end="\n" * bool(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
