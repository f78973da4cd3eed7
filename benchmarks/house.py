"""Count the source: files, lines and words per folder, the largest files, imports, names, options and flows.

    python -m benchmarks.house                 writes benchmarks/results/house.md
    python -m benchmarks.house --before REV    compares with another commit (default: 00bbba86)

Text around the markers of the tables stays. `tests/test_architecture.py` checks the imports.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import pathlib
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from benchmarks import style, surface
from benchmarks.recording import table

ROOT = pathlib.Path(__file__).parents[1]
PACKAGES = ("iet", "benchmarks", "tests")
COUNTED = ("iet", "csrc", "tests", "benchmarks")
SUFFIXES = {".py", ".h", ".cpp", ".cu", ".cuh", ".js", ".html"}
BEFORE = "00bbba86"
"""The commit to compare with."""

START, END = "<!-- house table -->", "<!-- /house table -->"
NO_ROOM = {"__init__.py", "__main__.py", "__pycache__", "py.typed"}


class Edge(NamedTuple):
    """One module that imports another, at the top or inside a function."""

    importer: str
    imported: str


def sources(root: pathlib.Path, folder: str) -> list[pathlib.Path]:
    """Return the source files below a folder of a checkout, sorted."""
    paths = (path for path in (root / folder).rglob("*") if path.suffix in SUFFIXES and path.is_file())
    return sorted(path for path in paths if not {"__pycache__", "results"} & set(path.parts))


def lines(path: pathlib.Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def rooms(root: pathlib.Path) -> list[str]:
    """Return the entries at the top of `iet/`, without `__init__`, `__main__` and `py.typed`."""
    return sorted(path.name for path in (root / "iet").iterdir() if path.name not in NO_ROOM)


def modules(root: pathlib.Path) -> dict[str, pathlib.Path]:
    """Return the Python files of the packages by their import names."""
    by_name = {}
    for package in PACKAGES:
        for path in (root / package).rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            by_name[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return dict(sorted(by_name.items()))


def imports(known_modules: Mapping[str, pathlib.Path]) -> list[Edge]:
    """Return the imports between known modules, each pair once.

    Imports inside functions count, blocks under `if TYPE_CHECKING` do not, and neither does
    `from iet import __version__`: the number is there before anything else is.
    """
    edges = set()
    for name, path in known_modules.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for imported in _imported(ast.parse(path.read_text(encoding="utf-8")), package, known_modules):
            edges.add(Edge(name, imported))
    return sorted(edge for edge in edges if edge.importer != edge.imported)


def _imported(tree: ast.AST, package: str, known_modules: Mapping[str, pathlib.Path]) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for branch in node.orelse:
                yield from _imported(ast.Module([branch], []), package, known_modules)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known_modules)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            source = ".".join(filter(None, (above, node.module)))
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                if inner in known_modules:
                    yield inner
                elif source in known_modules and alias.name != "__version__":
                    yield source
        elif not isinstance(node, ast.expr):  # no expression holds an import, and they are most of a file
            yield from _imported(node, package, known_modules)


def circles(edges: Iterable[Edge]) -> list[list[str]]:
    """Return the groups of modules that all lead to each other."""
    after: dict[str, set[str]] = {}
    for importer, imported in edges:
        after.setdefault(importer, set()).add(imported)
    reached = {name: _reached(name, after) for name in after}
    groups = {
        tuple(sorted(member for member in reachable if name in reached.get(member, ())))
        for name, reachable in reached.items()
        if name in reachable
    }
    return [list(group) for group in sorted(groups)]


def _reached(start: str, after: Mapping[str, set[str]]) -> set[str]:
    reachable: set[str] = set()
    ahead = [start]
    while ahead:
        for name in after.get(ahead.pop(), set()) - reachable:
            reachable.add(name)
            ahead.append(name)
    return reachable


def report(states: Mapping[str, pathlib.Path]) -> str:
    """Return the tables in Markdown, for checkouts by the name of their state."""
    roots = list(states.values())
    parts = [
        "`python -m benchmarks.house` counts the source files of the working tree (Python, C++, CUDA,"
        " JavaScript, HTML); idioms per 1,000 words of prose and vague names are those of"
        " `python -m benchmarks.style`.",
        "## Files and lines",
        _folders(list(states), roots, COUNTED),
        "## Folders",
        _prose(list(states), roots),
        "## The ten largest files",
        table(["", *states], _largest(roots)),
        "## Imports",
        _imports(list(states), roots),
        "## Names, options and flows",
        _surface(list(states), roots),
    ]
    return "\n\n".join(parts)


@contextlib.contextmanager
def checkout(revision: str) -> Iterator[pathlib.Path]:
    """Yield a temporary folder with the files of a commit."""
    with tempfile.TemporaryDirectory() as name:
        archive = subprocess.run(
            ["git", "archive", revision], cwd=ROOT, check=True, capture_output=True
        ).stdout
        subprocess.run(["tar", "-x", "-C", name], input=archive, check=True)
        yield pathlib.Path(name)


def _folders(states: Sequence[str], roots: Sequence[pathlib.Path], folders: Iterable[str]) -> str:
    rows: list[list[object]] = []
    for folder in folders:
        row: list[object] = [f"`{folder}`"]
        for root in roots:
            files = sources(root, folder)
            row += [len(files), f"{sum(map(lines, files)):,}"]
        rows.append(row)
    return table(["folder", *(f"{word}, {state}" for state in states for word in ("files", "lines"))], rows)


def _prose(states: Sequence[str], roots: Sequence[pathlib.Path]) -> str:
    """Return files, lines, idioms and vague names of every folder that `tests/test_style.py` checks."""
    groups = [style.folders(root) for root in roots]
    names = list(dict.fromkeys(name for group in reversed(groups) for name in group))
    rows: list[list[object]] = []
    for name in names:
        row: list[object] = [f"`{name}`"]
        for group in groups:
            files = group.get(name, [])
            count = style.count(files)
            figures = [len(files), f"{sum(map(lines, files)):,}", f"{count.rate:.1f}"]
            row += [*figures, f"{count.vague_share:.1%}"] if files else [None] * 4
        rows.append(row)
    words = ("files", "lines", "idioms", "vague names")
    return table(["folder", *(f"{word}, {state}" for state in states for word in words)], rows)


def _surface(states: Sequence[str], roots: Sequence[pathlib.Path]) -> str:
    rows: list[list[object]] = [
        ["public names (`iet.__all__`)", *map(surface.public_names, roots)],
        ["options of the command line", *map(surface.options, roots)],
        ["extras", *(len(surface.project(root)["optional-dependencies"]) for root in roots)],
        [
            "install size of the core with its requirements, MB",
            *(f"{surface.install_bytes(root) / 1e6:.0f}" for root in roots),
        ],
    ]
    flows = [surface.flows(root) for root in roots]
    for name, label in (("audit", "`Auditor.audit` to the HTML page"), ("bulk", "a bulk run")):
        of_flow = [flow and flow[name] for flow in flows]
        rows.append([f"data classes, {label}", *(pair and len(pair[0]) for pair in of_flow)])
        per_text = surface.DOCUMENTS if name == "bulk" else 1
        entries = (pair and f"{pair[1] / per_text:.1f}" for pair in of_flow)
        rows.append([f"calls into another package of `iet` per document, {label}", *entries])
    return table(["", *states], rows)


def _largest(roots: Sequence[pathlib.Path]) -> list[list[object]]:
    columns = []
    for root in roots:
        sizes = [(lines(path), path) for folder in COUNTED for path in sources(root, folder)]
        largest = sorted(sizes, key=lambda pair: (-pair[0], pair[1]))[:10]
        columns.append([f"`{path.relative_to(root).as_posix()}` {count:,}" for count, path in largest])
    return [[rank, *row] for rank, row in enumerate(zip(*columns, strict=False), 1)]


def _imports(states: Sequence[str], roots: Sequence[pathlib.Path]) -> str:
    rows: list[list[object]] = [["entries at the top of `iet/`", *(len(rooms(root)) for root in roots)]]
    graphs = [(module_paths, imports(module_paths)) for module_paths in map(modules, roots)]
    for package in PACKAGES:
        row: list[object] = [f"modules, imports and circles of `{package}`"]
        for module_paths, edges in graphs:
            package_edges = [edge for edge in edges if edge.importer.partition(".")[0] == package]
            count = sum(name.partition(".")[0] == package for name in module_paths)
            row.append(f"{count}, {len(package_edges):,}, {len(circles(package_edges))}")
        rows.append(row)
    return table(["", *states], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the tables between their markers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house", description=__doc__.split("\n")[0])
    parser.add_argument("--before", default=BEFORE, metavar="REV", help=f"commit (default: {BEFORE})")
    parser.add_argument(
        "--output", type=pathlib.Path, default=ROOT / "benchmarks" / "results" / "house.md", metavar="FILE"
    )
    options = parser.parse_args(arguments)
    with checkout(options.before) as earlier:
        text = report({"before": earlier, "now": ROOT})
    old = options.output.read_text(encoding="utf-8") if options.output.exists() else "# The house\n\n"
    head, _, after_start = old.partition(START)
    tail = after_start.partition(END)[2] or "\n"
    options.output.write_text(f"{head}{START}\n\n{text}\n\n{END}{tail}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
