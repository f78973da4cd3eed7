"""Count idioms that make prose hard to read, and vague names, in the project's own files.

    python -m benchmarks.style             rates of every folder
    python -m benchmarks.style PATH...     rates of files or folders, and every line that was counted

Prose means docstrings, comments (Python, C++, CUDA) and Markdown outside code blocks. Names are the bindings
of Python files: assigned variables and parameters. Six well-kept libraries (xgrammar, ruptures, httpx,
datasette, stumpy, synthid-text) have 0.2 to 1.3 idioms per 1,000 words and at most 0.8 % vague names.
The list is a sample of a habit: a sentence can avoid all of it and still be a riddle.
"""

from __future__ import annotations

import argparse
import ast
import collections
import dataclasses
import functools
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence

ROOT = pathlib.Path(__file__).parents[1]

MAX_RATE = 2.0
"""Idioms per 1,000 words that a folder may have."""

MAX_VAGUE = 0.01
"""Share of a folder's bindings that may have a vague name."""

IDIOMS = {
    "nobody": r"\bnobod(?:y|y's)\b",
    "whoever, whom": r"\b(?:whoever|whom|whose it is)\b",
    "stands, stood": r"\b(?:stands?|stood)\b",
    "behind, beside": r"\b(?:behind|beside)\b",
    "anew": r"\banew\b",
    "of others, strangers": r"\bof others\b|\btheirs\b|\bstranger'?s?\b",
    "told, tells": r"\b(?:tells?|told)\b",
    "What ... as a subject": r"(?:^|[.:;] )What\b(?![^.\n]*\?)",
    "of which, in which": r"\b(?:of|in|from|under|with|by|after|for) which\b",
    "where for if": r"\b[Ww]here (?:it|that|there|nobody|no|none|an?|the|those|they)\b",
    "so many, so long": r"\bso (?:many|long|much)\b",
    "begun, likewise": r"\b(?:begun|meanwhile|thereafter|hitherto|likewise)\b",
    "said of, made of": r"\b(?:said of|says of|speaks of)\b",
    "that is none": r"\b(?:that is none|are none|is none|no such)\b",
}
"""Name of an idiom -> its pattern, which matches within one line."""

VAGUE = re.compile(
    "found|each|some|there|said|given|place|places|taken|left|kept|own|rest|mine|where|told|held|"
    "known|asked|whole|alike|apart|shown|within|before|behind|begun|what|who|how|now|again|one|other|"
    "others|another|anything|least|most|nobody|nobodys"
)
"""Names of variables and parameters that say nothing about the value."""

_PATTERNS = {name: re.compile(pattern, re.MULTILINE) for name, pattern in IDIOMS.items()}
_WORD = re.compile(r"[A-Za-z']+")
_SUFFIXES = {".py", ".md", ".h", ".cpp", ".cu"}
_GENERATED = {"build", "site", "node_modules", "results", "__pycache__"}
_SPLIT = ("iet", "tests", "benchmarks")
_WHOLE = ("csrc", "docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md")
# String literals, so that a "#" inside one is not taken for a comment, and comments.
_LITERAL_OR_COMMENT = re.compile(
    r'"""(?:\\.|[^\\])*?"""|' + r"'''(?:\\.|[^\\])*?'''|" + r'"(?:\\.|[^"\\\n])*"|'
    r"'(?:\\.|[^'\\\n])*'|#(?P<comment>[^\n]*)",
    re.DOTALL,
)
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_PARENTS = (ast.expr, ast.stmt, ast.arguments, ast.arg)
_CODE_BLOCK = re.compile(r"```.*?```", re.DOTALL)
_CPP_COMMENT = re.compile(r"//(.*)")


@dataclasses.dataclass(frozen=True)
class Hit:
    """An idiom in a line of prose."""

    line: int
    idiom: str
    text: str


@dataclasses.dataclass(frozen=True)
class Count:
    """Words of prose and the idioms in them, bindings and the vague ones among them."""

    words: int = 0
    hits: tuple[Hit, ...] = ()
    bindings: int = 0
    vague: tuple[str, ...] = ()

    @property
    def rate(self) -> float:
        """Idioms per 1,000 words."""
        return 1000 * len(self.hits) / max(1, self.words)

    @property
    def vague_share(self) -> float:
        """Share of bindings whose name is vague, 0 to 1."""
        return len(self.vague) / max(1, self.bindings)

    @property
    def passes(self) -> bool:
        """Whether both shares are within the limits of the project."""
        return self.rate <= MAX_RATE and self.vague_share <= MAX_VAGUE

    def __add__(self, addend: Count) -> Count:
        return Count(
            self.words + addend.words,
            self.hits + addend.hits,
            self.bindings + addend.bindings,
            self.vague + addend.vague,
        )

    def __str__(self) -> str:
        return (
            f"{self.rate:5.1f} per 1,000 of {self.words:,} words, "
            f"{self.vague_share:5.1%} of {self.bindings:,} names"
        )


@functools.cache
def count_file(path: pathlib.Path) -> Count:
    """Count one file; a Python file that does not parse counts as empty."""
    source = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix != ".py":
        return _count_prose(_markdown(source) if path.suffix == ".md" else _cpp_comments(source))
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return Count()
    names: list[str] = []
    lines: list[tuple[int, str]] = []
    for node in _nodes(tree):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                names.append(node.id)
        elif isinstance(node, ast.arg):
            names.append(node.arg)
        elif isinstance(node, _DOCUMENTED):
            lines += _docstring(node)
    lines += _comments(source)
    vague = tuple(sorted(name for name in names if VAGUE.fullmatch(name)))
    return _count_prose(lines) + Count(bindings=len(names), vague=vague)


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what `ast.walk` yields, without contexts and operators and in another order, in half the time."""
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        for child in vars(node).values():
            if type(child) is list:
                stack += [item for item in child if isinstance(item, ast.AST)]
            elif isinstance(child, _PARENTS):
                stack.append(child)


def _docstring(node: _Documented) -> list[tuple[int, str]]:
    first = node.body[0] if node.body else None
    value = first.value if isinstance(first, ast.Expr) else None
    if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
        return []
    return list(enumerate(value.value.splitlines(), value.lineno))


def _comments(source: str) -> Iterator[tuple[int, str]]:
    line, start = 1, 0
    for match in _LITERAL_OR_COMMENT.finditer(source):
        if match["comment"] is not None:
            line, start = line + source.count("\n", start, match.start()), match.start()
            yield line, match["comment"].lstrip("# ")


def _markdown(source: str) -> Iterator[tuple[int, str]]:
    without_code = _CODE_BLOCK.sub(lambda block: "\n" * block[0].count("\n"), source)
    yield from enumerate(without_code.splitlines(), 1)


def _cpp_comments(source: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(source.splitlines(), 1):
        if (match := _CPP_COMMENT.search(line)) is not None:
            yield number, match[1]


def _count_prose(lines: Iterable[tuple[int, str]]) -> Count:
    numbered = list(lines)
    text = "\n".join(line for _, line in numbered)
    hits = []
    for idiom, pattern in _PATTERNS.items():
        for match in pattern.finditer(text):
            number, line = numbered[text.count("\n", 0, match.start())]
            hits.append(Hit(number, idiom, line.strip()))
    return Count(len(_WORD.findall(text)), tuple(hits))


def files_below(path: pathlib.Path, *, recursive: bool = True) -> list[pathlib.Path]:
    """Return the counted files of a folder, sorted, or the file itself; results and builds are left out."""
    if path.is_file():
        return [path]
    files = (file for file in path.glob("**/*" if recursive else "*") if file.suffix in _SUFFIXES)
    return sorted(
        file
        for file in files
        if file.is_file()
        and not any(part.startswith(".") or part in _GENERATED for part in file.relative_to(path).parts)
    )


def folders(root: pathlib.Path = ROOT) -> dict[str, list[pathlib.Path]]:
    """Return the folders and documents that have to pass, with their files; `benchmarks/results` is no prose.

    `iet`, `tests` and `benchmarks` are counted by subfolder; "iet/*.py" are the files directly in `iet`.
    """
    groups: dict[str, list[pathlib.Path]] = {}
    for name in _SPLIT:
        groups[f"{name}/*.py"] = [p for p in files_below(root / name, recursive=False) if p.suffix == ".py"]
        for folder in sorted(path for path in (root / name).iterdir() if path.is_dir()):
            groups[f"{name}/{folder.name}"] = files_below(folder)
        groups.pop("benchmarks/results", None)  # written by commands
    groups |= {name: files_below(root / name) for name in _WHOLE if (root / name).exists()}
    return {name: files for name, files in groups.items() if files}


def count(files: Iterable[pathlib.Path]) -> Count:
    """Return the sum over files."""
    return functools.reduce(Count.__add__, map(count_file, files), Count())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print rates: of all folders, or of some paths with each counted line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.style", description=__doc__.split("\n")[0])
    parser.add_argument("paths", nargs="*", type=pathlib.Path, metavar="PATH")
    chosen = parser.parse_args(arguments)
    if not chosen.paths:
        for name, files in folders().items():
            total = count(files)
            print(f"{total}  {name}{'' if total.passes else '  (above the limit)'}")
        return 0
    files = [file for path in chosen.paths for file in files_below(path)]
    for file in files:
        result = count_file(file)
        if result.hits or result.vague:
            print(f"{result}  {file}")
        for hit in sorted(result.hits, key=lambda hit: hit.line):
            print(f"       {hit.line}: [{hit.idiom}] {hit.text[:110]}")
        if result.vague:
            names = collections.Counter(result.vague).most_common()
            print(f"       names: {', '.join(f'{name} {times}' for name, times in names)}")
    print(f"{count(files)}  in all")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
