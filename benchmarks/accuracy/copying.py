"""What copying does to marks, and what `Auditor(as_copied=True)` brings back.

    python -m benchmarks.accuracy.copying --work DIR -o benchmarks/results/copying.json

Texts of `benchmarks.accuracy.texts`, twelve turns of 120 tokens, made Markdown (a heading for each turn,
every third one a list, a word of each in bold), are taken through what happens to texts. Of each copy, read
as it is and as before it was copied, are measured: how many of the (context, token) pairs of the text are
still there ("pairs kept"), the share of the letters that are given to who wrote them ("TokenAcc":
unattributed is wrong), and that of the letters that are given to another ("wrong").

Needs python-docx, pypdf, pyphen, markdown-it-py, playwright and chromium.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import difflib
import html
import io
import json
import pathlib
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.accuracy import texts
from benchmarks.recording import INTERVAL, columns, exit_code, finish, parser
from benchmarks.statistics import summary
from iet.audit.auditor import Auditor
from iet.demo.conversation import Conversation
from iet.errors import BackendUnavailable, InputError

CELLS = tuple(texts.Cell("shipped", 1.0, 4, family) for family in ("fourier", "gumbel"))
TURN_TOKENS = 120
WIDTH = 72
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

Places = NDArray[np.int64]
"""[characters of a copy]: which character of the text each one is, -1 if it is none of them."""


def markdown_of(said: Conversation) -> tuple[str, list[str | None]]:
    """Return a conversation as Markdown, and who wrote each character of it: None for the markup."""
    pieces, writers = list[str](), list[str | None]()

    def add(piece: str, writer: str | None) -> None:
        pieces.append(piece)
        writers.extend([writer] * len(piece))

    for number, (start, end, agent) in enumerate(said.spans):
        turn = " ".join(said.text[start:end].split())
        add(f"{'' if number == 0 else chr(10) * 2}## Part {number + 1}\n\n", None)
        sentences = re.split(r"(?<=[.!?])\s+", turn)
        for i, sentence in enumerate(sentences):
            if number % 3 == 2:
                add("- " if i == 0 else "\n- ", None)
            elif i:
                add(" ", agent)
            head, bold, tail = sentence.partition(" ") if i == len(sentences) // 2 else (sentence, "", "")
            word, space, tail = tail.partition(" ")
            if bold and word.isalpha():
                add(head + bold, agent)
                add("**", None)
                add(word, agent)
                add("**", None)
                add(space + tail, agent)
            else:
                add(sentence, agent)
    return "".join(pieces), writers


def by_character(text: str, spell: Callable[[str], str]) -> tuple[str, Places]:
    """Return a copy in which each character is spelled by itself."""
    spelled = [spell(c) for c in text]
    return "".join(spelled), np.repeat(np.arange(len(text)), [len(each) for each in spelled])


def letters(text: str) -> tuple[str, Places]:
    """Return the letters and digits of a text, ligatures taken apart, and the character of each."""
    found = [
        (c, place)
        for place, each in enumerate(text)
        for c in unicodedata.normalize("NFKC", each)
        if c.isalnum()
    ]
    return "".join(c for c, _ in found), np.array([place for _, place in found], np.int64)


def aligned(text: str, copy: str) -> Places:
    """Return the places of a copy that keeps letters and their order, but for a few."""
    (ours, from_), (theirs, to) = letters(text), letters(copy)
    places = np.full(len(copy), -1, np.int64)
    if ours == theirs:
        places[to] = from_
        return places
    for a, b, size in difflib.SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks():
        places[to[b : b + size]] = from_[a : a + size]
    return places


def wrapped(text: str, width: int = WIDTH, divide: Callable[[str], str] = str) -> str:
    """Return Markdown whose lines are wrapped; soft hyphens of `divide` are where words may be divided."""
    lines = []
    for line in text.split("\n"):
        hang = "  " if line.startswith("- ") else ""
        words, now = line.split(" "), ""
        for word in words:
            if now and len(now) + 1 + len(word) > width:
                parts = divide(word).split("\u00ad")
                fit = 0
                while fit + 1 < len(parts) and len(now) + 2 + len("".join(parts[: fit + 1])) <= width:
                    fit += 1
                if fit:
                    now, word = f"{now} {''.join(parts[:fit])}-", "".join(parts[fit:])
                lines.append(now)
                now = hang + word
            else:
                now = f"{now} {word}" if now else word
        lines.append(now)
    return "\n".join(lines)


def typographic(text: str) -> str:
    """Return a text as office programs and chats set it."""
    text = re.sub(r'(^|[\s(\[])"', r"\1“", text, flags=re.MULTILINE).replace('"', "”")
    text = re.sub(r"(^|[\s(\[“])'", r"\1‘", text, flags=re.MULTILINE).replace("'", "’")
    text = text.replace("...", "…").replace(" - ", " – ")
    return re.sub(r"\b([aI]|Mr|Mrs|Dr|No) (?=\w)", "\\1\u00a0", text)


def rendered(text: str) -> str:
    """Return the page that a viewer makes of Markdown."""
    from markdown_it import MarkdownIt

    return f"<!doctype html><meta charset=utf-8><body>{MarkdownIt('commonmark').render(text)}"


def through_docx(text: str) -> str:
    """Return the text of a .docx that was made of Markdown and opened again."""
    import docx
    from markdown_it import MarkdownIt

    made = docx.Document()
    style, depth = None, 0
    for token in MarkdownIt("commonmark").parse(text):
        if token.type == "heading_open":
            style = f"Heading {token.tag[1]}"
        depth += {"bullet_list_open": 1, "bullet_list_close": -1}.get(token.type, 0)
        if token.type == "inline":
            paragraph, bold = made.add_paragraph(style=style or ("List Bullet" if depth else None)), False
            for part in token.children or ():
                bold = {"strong_open": True, "strong_close": False}.get(part.type, bold)
                paragraph.add_run("\n" if part.type == "softbreak" else part.content).bold = bold
            style = None
    file = io.BytesIO()
    made.save(file)
    return "\n".join(paragraph.text for paragraph in docx.Document(file).paragraphs)


class Browser:
    """A chromium that shows Markdown."""

    def __init__(self, chromium: Any) -> None:
        self._page = chromium.new_page()

    def copied(self, text: str) -> str:
        """Return what "select all" and "copy" put on the clipboard as text."""
        self._page.set_content(rendered(text))
        script = "() => { getSelection().selectAllChildren(document.body); return getSelection().toString() }"
        return str(self._page.evaluate(script))

    def printed(self, text: str) -> str:
        """Return the text of the PDF that "print" makes."""
        import pypdf

        self._page.set_content(rendered(text))
        pages = pypdf.PdfReader(io.BytesIO(self._page.pdf(format="A4"))).pages
        return "\n".join(page.extract_text() for page in pages)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Start chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        if CHROMIUM is None:
            raise BackendUnavailable("chromium: not on the PATH, expected it")
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield Browser(chromium)
        chromium.close()


def copies(text: str, shown: Browser) -> dict[str, tuple[str, Places]]:
    """Return every copy of a Markdown text, by what happened to it."""
    import pyphen

    divide = pyphen.Pyphen(lang="en_US")
    mail = wrapped(text)
    ways = {
        "as written": text,
        f"wrapped at {WIDTH}": mail,
        "wrapped, words divided": wrapped(text, divide=lambda word: divide.inserted(word, "\u00ad")),
        'quoted with "> "': "\n".join(f"> {line}".rstrip() for line in text.split("\n")),
        "wrapped and quoted twice": "\n".join(f"> > {line}".rstrip() for line in mail.split("\n")),
        "indented": textwrap.indent(text, "    "),
        "in a code fence": f"```markdown\n{text}\n```",
        "curly quotes, fixed spaces": typographic(text),
        "a chat's bullet points": re.sub(r"^- ", "• ", text, flags=re.MULTILINE),
        ".docx and back": through_docx(text),
        "shown and copied from chromium": shown.copied(text),
        "printed by chromium, PDF read": shown.printed(text),
    }
    found = {name: (copy, aligned(text, copy)) for name, copy in ways.items()}
    inner, places = by_character(text, lambda c: json.dumps(c)[1:-1])
    found["in a JSON string"] = f'"{inner}"', np.concatenate([[-1], places, [-1]])
    found["HTML's source"] = by_character(text, html.escape)
    return found


def measure(turns: texts.Turns, shown: Browser) -> dict[str, dict[str, float]]:
    """Return the figures of every copy of a text."""
    text, writers = markdown_of(turns.conversation(TURN_TOKENS))
    registry = turns.registry()
    auditors = {"as it is": Auditor(registry), "restored": Auditor(registry, as_copied=True)}
    whole = _pairs(auditors["as it is"], text)
    said = np.array([writer is not None and c.isalnum() for c, writer in zip(text, writers, strict=True)])
    found = {}
    for name, (copy, places) in copies(text, shown).items():
        row = dict[str, float]()
        for kind, auditor in auditors.items():
            report = auditor.audit(copy)
            named = np.full(len(text), None, object)
            for start, end, agent in report.char_agents:
                there = places[start:end]
                named[there[there >= 0]] = agent
            right = named == np.array(writers, object)
            row[f"{kind} TokenAcc"] = float(right[said].mean())
            row[f"{kind} wrong"] = float(((named != None) & ~right)[said].mean())  # noqa: E711
            pairs = _pairs(auditor, copy, report.restored)
            row[f"{kind} pairs"] = (pairs & whole).total() / whole.total()
        found[name] = row
    return found


def _pairs(
    auditor: Auditor, text: str, steps: tuple[str, ...] | None = None
) -> collections.Counter[tuple[int, ...]]:
    """Return the contexts with their tokens, of the way that a text was read in."""
    n_gram = auditor.profiles[0].scheme.n_gram
    if steps is None:
        ids = auditor.plan.encode([text])[0][0].token_ids
    else:
        ways = auditor.plan.encode_copied(text)
        ids = next(encodings[0].token_ids for way, encodings in ways if way.steps == steps)
    return collections.Counter(zip(*(ids[i:].tolist() for i in range(n_gram)), strict=False))


def run(work: pathlib.Path, split: str, limit: int | None) -> list[dict[str, Any]]:
    """Return a row for each family and way of copying, each figure a mean with its interval over texts."""
    rows = []
    with browser() as shown:
        for cell in CELLS:
            said = texts.load(work, cell, split)[:limit]
            each = [measure(turns, shown) for turns in tqdm(said, desc=cell.name)]
            for way in each[0] if each else ():
                figures = {name: summary([row[way][name] for row in each]) for name in each[0][way]}
                rows.append({"family": cell.family, "texts": len(each), "copy": way, **figures})
    if not rows:
        raise InputError(f"{work}: got no texts, expected those of benchmarks.accuracy.texts")
    return rows


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table."""
    formats = {"family": "{family}", "copy": "{copy}"}
    for figure, title in (("pairs", "pairs kept"), ("TokenAcc", "TokenAcc"), ("wrong", "wrong")):
        for kind in ("as it is", "restored"):
            formats[f"{title}, {kind}"] = INTERVAL.format(f"{kind} {figure}")
    return (
        f"{rows[0]['texts']} texts a family, twelve turns of {TURN_TOKENS} tokens with Markdown among them;"
        f" means with 95 % intervals.\n\n{columns(rows, formats)}"
    )


def copied(results: pathlib.Path) -> str:
    """Return the table for the docs: each copy as it is and restored, by family."""
    content = json.loads((results / "copying.json").read_text(encoding="utf-8"))
    rows = dict[str, dict[str, Any]]()
    for row in content["rows"]:
        rows.setdefault(row["copy"], {"copy": row["copy"]})[row["family"]] = {
            name.replace(" ", "_"): value[0] for name, value in row.items() if isinstance(value, list)
        }
    formats = {"copy": "{copy}"}
    for family in ("fourier", "gumbel"):
        for figure in ("pairs", "TokenAcc"):
            formats[f"{family}: {figure}, → restored"] = (
                f"{{{family}[as_it_is_{figure}]:.2f}} → {{{family}[restored_{figure}]:.2f}}"
            )
    said = f"[benchmarks/results/copying.md](benchmarks/results/copying.md), `{content['command']}`"
    return f"{columns(list(rows.values()), formats)}\n\nWith intervals: {said}."


def main() -> None:
    line: argparse.ArgumentParser = parser("benchmarks.accuracy.copying", __doc__)
    line.add_argument("--work", type=pathlib.Path, required=True, help="folder of the texts")
    line.add_argument("--split", choices=tuple(texts.SPLITS), default="evaluation")
    line.add_argument("--texts", type=int, help="of each family (default: all)")
    given = line.parse_args()
    rows = run(given.work, given.split, given.texts)
    finish(line, given, {"rows": rows}, markdown(rows))


if __name__ == "__main__":
    sys.exit(exit_code(main))
