"""Read, clean and split the text that the demo model and its tokenizer are trained on."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_SHARE = 0.04
"""Share of documents, by hash of their group, that no training step sees."""

SOURCES = ("peps", "gsm8k", "solutions", "speeches", "shakespeare", "tasks")
"""Names of the sources, in the order of the documents."""

_PEP_ROLE = re.compile(r":pep:`(?:[^`<]*<)?0*(\d+)[^`]*`")
_ROLE = re.compile(r":[\w:+-]+:`([^`]*)`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^>`]*>`_{0,2}")
_NAMED_LINK = re.compile(r"`([^`]+)`__?(?!\w)")
_WORD_LINK = re.compile(r"(?<=[A-Za-z0-9])__?(?=[\s.,;:)]|$)")
_CODE_LINE = re.compile(r" .*[=(){}\[\]]")
_FOOTNOTE = re.compile(r"\s?\[[#*]?[\w.-]*\]_")
_UNDERLINE = re.compile(r"^([=\-~`'\"^*+#.:_])\1{2,}\s*$")
_TABLE = re.compile(r"^\s*(\+[-=+]{4,}|[|+].*[|+]\s*$|\* - |={2,}\s+={2,}|-{3,}\s+-{3,})")
_BULLET = re.compile(r"^(\s*)([-*+]|\d+[.)]|\(\w\)|#\.)\s+")
_SKIPPED_SECTION = re.compile(r"^(copyright|references( and footnotes)?|footnotes|local variables:?)$", re.I)
_CALCULATOR = re.compile(r"<<[^<>]*>>")
_MAX_LINE = 160
_SHAKESPEARE_CHUNK = 4000


@dataclass(frozen=True)
class Document:
    """One text; documents of the same ``group`` always fall on the same side of the split."""

    source: str
    group: str
    text: str


def load_documents(data: Path, sources: Iterable[str]) -> list[Document]:
    """All documents of some sources under the data folder, cleaned and de-duplicated, in a fixed order."""
    readers: dict[str, Callable[[Path], Iterator[tuple[str, str]]]] = {
        "peps": _read_peps,
        "gsm8k": _read_gsm8k,
        "solutions": _read_solutions,
        "speeches": _read_speeches,
        "shakespeare": _read_shakespeare,
        "tasks": _read_tasks,
    }
    documents = [
        Document(source, f"{source}/{name}", text)
        for source in sources
        for name, text in readers[source](data)
    ]
    return _without_repeats(documents)


def split(documents: Iterable[Document]) -> tuple[list[Document], list[Document]]:
    """Training and held-out documents; the side depends on the group's name alone."""
    train: list[Document] = []
    held_out: list[Document] = []
    for document in documents:
        (held_out if _is_held_out(document.group) else train).append(document)
    return train, held_out


def digest(documents: Iterable[Document]) -> str:
    """SHA-256 over groups and texts in order, so that a run can state what it was trained on."""
    total = hashlib.sha256()
    for document in documents:
        for part in (document.group, document.text):
            encoded = part.encode("utf-8")
            total.update(len(encoded).to_bytes(8, "little"))
            total.update(encoded)
    return total.hexdigest()


def byte_counts(documents: Iterable[Document]) -> dict[str, int]:
    """UTF-8 bytes per source."""
    counts = dict.fromkeys(SOURCES, 0)
    for document in documents:
        counts[document.source] += len(document.text.encode("utf-8"))
    return counts


def clean_pep(text: str) -> str:
    """PEP source as plain text: prose unwrapped, code kept, RST machinery and tables dropped."""
    header, _, body = text.replace("\r\n", "\n").expandtabs(4).partition("\n\n")
    fields = dict(re.findall(r"^([\w-]+):[ \t]*(.*)$", header, flags=re.M))
    title = f"PEP {fields.get('PEP', '').strip()}: {fields.get('Title', '').strip()}"
    blocks = [title]
    skipping = False
    for block in re.split(r"\n\s*\n", body.replace("\f", "")):
        lines = [line.rstrip() for line in block.split("\n") if line.strip()]
        lines, heading = _take_heading(lines)
        if heading:
            skipping = bool(_SKIPPED_SECTION.match(heading))
            if not skipping:
                blocks.append(heading)
        if skipping or not lines:
            continue
        lines = _drop_directive(lines)
        lines = [line for line in lines if not _is_junk(line)]
        if lines:
            blocks.append("\n".join(_inline_markup(line) for line in _unwrap(lines)))
    return "\n\n".join(blocks) + "\n"


def clean_solution(text: str) -> str:
    """A worked solution without calculator annotations, its last line as a sentence."""
    text = _CALCULATOR.sub("", text.replace("\r\n", "\n")).strip()
    return re.sub(
        r"(?:####|\nA:)[ \t]*(.+)$", lambda match: f"\nThe answer is {match[1].strip()}.", text
    ).replace("\n\nThe answer", "\nThe answer")


def _take_heading(lines: list[str]) -> tuple[list[str], str | None]:
    if len(lines) >= 3 and _UNDERLINE.match(lines[0]) and _UNDERLINE.match(lines[2]):
        return lines[3:], _inline_markup(lines[1].strip())
    if len(lines) >= 2 and _UNDERLINE.match(lines[1]) and not lines[0].startswith((" ", "..")):
        return lines[2:], _inline_markup(lines[0].strip())
    return lines, None


def _drop_directive(lines: list[str]) -> list[str]:
    """Without explicit markup: directives keep their indented content, targets and notes do not."""
    if not lines[0].lstrip().startswith(".. "):
        return lines
    if re.match(r"\s*\.\. (\[|_|\|)", lines[0]) or "::" not in lines[0]:
        return []
    return [line for line in lines[1:] if not re.match(r"\s*:[\w-]+:", line)]


def _is_junk(line: str) -> bool:
    stripped = line.strip()
    if _TABLE.match(line) or _UNDERLINE.match(stripped) or stripped.startswith((".. ", "__ http", "::")):
        return True
    if len(line) > _MAX_LINE and line.startswith(" "):
        return True
    words = sum(character.isalnum() or character == " " for character in stripped)
    return len(stripped) > 24 and words < 0.6 * len(stripped)


def _unwrap(lines: list[str]) -> list[str]:
    """Join the hard-wrapped lines of prose and of list items; leave indented code as it is."""
    if lines[0].startswith(" ") and not _BULLET.match(lines[0]):
        return lines
    joined = [lines[0]]
    for line in lines[1:]:
        bullet = _BULLET.match(joined[-1])
        indent = len(line) - len(line.lstrip())
        continues = indent == 0 if not bullet else indent >= len(bullet[1]) + 2
        if continues and not _BULLET.match(line) and len(joined[-1]) > 40:
            joined[-1] = f"{joined[-1]} {line.strip()}"
        else:
            joined.append(line)
    return joined


def _inline_markup(line: str) -> str:
    line = _PEP_ROLE.sub(r"PEP \1", line)
    line = _ROLE.sub(lambda match: "`" + match[1].split("<")[0].strip().lstrip("~!") + "`", line)
    line = line.replace("``", "`")
    line = _LINK.sub(r"\1", line)
    line = _NAMED_LINK.sub(r"\1", line)
    line = _FOOTNOTE.sub("", line)
    if not _CODE_LINE.match(line):
        line = _WORD_LINK.sub("", line)
    return re.sub(r"::$", ":", line)


def _read_peps(data: Path) -> Iterator[tuple[str, str]]:
    for path in sorted((data / "corpus" / "peps").glob("pep-*.rst")):
        yield path.stem, clean_pep(path.read_text(encoding="utf-8"))


def _read_gsm8k(data: Path) -> Iterator[tuple[str, str]]:
    with open(data / "gsm8k" / "train.jsonl", encoding="utf-8") as lines:
        for index, line in enumerate(lines):
            record = json.loads(line)
            answer = clean_solution(record["answer"])
            yield f"{index:05d}", f"Question: {record['question'].strip()}\n\nAnswer: {answer}\n"


def _read_solutions(data: Path) -> Iterator[tuple[str, str]]:
    """The models' own solutions; the test questions and their reference answers are left out."""
    with open(data / "corpus" / "example_model_solutions.jsonl", encoding="utf-8") as lines:
        for index, line in enumerate(lines):
            for value in json.loads(line).values():
                if isinstance(value, dict):
                    yield f"{index:05d}", f"Answer: {clean_solution(value['solution'])}\n"


def _read_speeches(data: Path) -> Iterator[tuple[str, str]]:
    for folder in ("inaugural", "state_union"):
        for path in sorted((data / "corpus" / "speeches" / folder).glob("*.txt")):
            raw = path.read_bytes()
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError:
                text = raw.decode("cp1252", errors="replace")
            lines = (re.sub(r"\s+", " ", line).strip() for line in text.splitlines())
            yield f"{folder}/{path.stem}", "\n\n".join(line for line in lines if line) + "\n"


def _read_shakespeare(data: Path) -> Iterator[tuple[str, str]]:
    text = (data / "corpus" / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8")
    chunk: list[str] = []
    number = 0
    for speech in text.split("\n\n"):
        chunk.append(speech)
        if sum(map(len, chunk)) >= _SHAKESPEARE_CHUNK:
            yield f"{number:03d}", "\n\n".join(chunk) + "\n"
            chunk = []
            number += 1
    if chunk:
        yield f"{number:03d}", "\n\n".join(chunk).strip() + "\n"


def _read_tasks(data: Path) -> Iterator[tuple[str, str]]:
    path = data / "mama" / "llama3.1_num484_nopii.csv"
    with open(path, encoding="utf-8", newline="") as lines:
        for index, record in enumerate(csv.DictReader(lines)):
            yield f"{index:03d}", record["generated_texts"].strip() + "\n"


def _without_repeats(documents: Iterable[Document]) -> list[Document]:
    """Drop every long paragraph that occurred before, and documents with little text left."""
    seen: set[str] = set()
    documents_left: list[Document] = []
    for document in documents:
        paragraphs = []
        for paragraph in document.text.rstrip("\n").split("\n\n"):
            key = " ".join(paragraph.split())
            if len(key) >= 60 and key in seen:
                continue
            seen.add(key)
            paragraphs.append(paragraph)
        text = "\n\n".join(paragraphs) + "\n"
        if len(text) >= 40:
            documents_left.append(Document(document.source, document.group, text))
    return documents_left


def _is_held_out(group: str) -> bool:
    value = int.from_bytes(hashlib.sha256(group.encode("utf-8")).digest()[:8], "little")
    return value < HELD_OUT_SHARE * 2**64
