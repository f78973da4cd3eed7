"""The rules of the tree: imports run downward and in no circle, files are short, names say something."""

from __future__ import annotations

import ast
import itertools
import pathlib
from collections.abc import Iterator

import pytest

from benchmarks import house
from iet.decoding import DECODERS
from iet.marks.families import FAMILIES

BELOW: dict[str, tuple[str, ...]] = {
    "errors": (),
    "native": ("errors",),
    "marks": ("native",),
    "kernels": ("marks",),
    "decoding": ("marks",),
    "generation": ("kernels",),
    "report": ("decoding",),
    "audit": ("kernels", "report"),
    "bulk": ("audit",),
    "service": ("audit", "generation"),
    "demo": ("audit", "generation"),
    "cli": ("bulk", "demo", "service", "generation"),
    "__main__": ("cli",),
    "": ("kernels",),  # `iet/__init__.py`, which only the command line imports
}
"""What each entry of `iet/` rests on directly. It may import that, and whatever that rests on."""


def below(entry: str) -> set[str]:
    direct = BELOW.get(entry, ())
    return {entry, *direct, *itertools.chain.from_iterable(map(below, direct))}


def entry_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


NAMES = {*FAMILIES, *DECODERS}
"""Names of families and decoders, which only `iet/marks/families.py` and `iet/decoding/` compare."""


def compared_names(root: pathlib.Path) -> Iterator[str]:
    """Everything outside of a family's or a decoder's own object that depends on its name."""
    for path in sorted((root / "iet").rglob("*.py")):
        relative = path.relative_to(root / "iet")
        if relative.parts[0] == "decoding" or relative == pathlib.Path("marks", "families.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                constants = {c.value for c in ast.walk(node) if isinstance(c, ast.Constant)}
                if constants & NAMES:
                    yield f"{relative}, line {node.lineno}: compares {sorted(constants & NAMES)}"


def violations(root: pathlib.Path) -> Iterator[str]:
    """Everything in a checkout that is against the rules."""
    modules = house.modules(root)
    edges = house.imports(modules)
    for importer, imported in edges:
        ours, theirs = importer.partition(".")[0], imported.partition(".")[0]
        if ours == "iet":
            entry = entry_of(importer)
            inside = theirs == "iet" and (entry_of(imported) in below(entry) or entry in ("cli", "__main__"))
        else:
            inside = theirs != "tests" or (
                ours == "tests" and entry_of(imported) in ("oracle", "support", "vectors")
            )
        if not inside:
            yield f"{importer} imports {imported}"
    yield from compared_names(root)
    for circle in house.circles(edges):
        yield f"a circle of {len(circle)}: {circle[0]} and others"
    entries = house.rooms(root)
    if len(entries) > 12:
        yield f"{len(entries)} entries in iet/: {', '.join(entries)}"
    yield from (
        f"iet/{name} has no place in BELOW" for name in entries if name.removesuffix(".py") not in BELOW
    )
    for folder in house.COUNTED:
        for path in house.sources(root, folder):
            name = path.relative_to(root).as_posix()
            if house.lines(path) > 500 and "one file because" not in path.read_text("utf-8").split("\n\n")[0]:
                yield f"{name} is above 500 lines"
            if path.stem in ("utils", "common", "helpers", "base", "manager"):
                yield f"{name} does not say what it holds"


def test_this_checkout_has_no_violations() -> None:
    assert list(violations(house.ROOT)) == []


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"iet/audit/plan.py": "from iet.report import model\nfrom iet.marks import keys"}, None),
        ({"iet/cli/audit.py": "def run():\n    import iet\n    from iet.bulk import files"}, None),
        ({"iet/report/prov.py": "from iet import __version__"}, None),
        ({"iet/report/prov.py": "import iet"}, "iet.report.prov imports iet"),
        ({"iet/marks/keys.py": "import iet.kernels"}, "iet.marks.keys imports iet.kernels"),
        ({"iet/native/cuda.py": "from ..marks.keys import Keys"}, "iet.native.cuda imports iet.marks.keys"),
        ({"iet/audit/plan.py": "from iet import generation"}, "iet.audit.plan imports iet.generation"),
        ({"iet/bulk/ray.py": "def f():\n    import iet.demo"}, "iet.bulk.ray imports iet.demo"),
        ({"iet/report/html.py": "import benchmarks.tables"}, "iet.report.html imports benchmarks.tables"),
        (
            {"benchmarks/tables.py": "from tests.support import teams"},
            "benchmarks.tables imports tests.support.teams",
        ),
        ({"tests/test_a.py": "from tests.support.teams import team"}, None),
        ({"tests/test_a.py": "from tests.test_b import team"}, "tests.test_a imports tests.test_b"),
        (
            {
                "iet/report/html.py": "from iet.report import model",
                "iet/report/model.py": "def f():\n import iet.report.html",
            },
            "a circle of 2: iet.report.html and others",
        ),
        (
            {
                "iet/report/html.py": "from iet.report import model",
                "iet/report/model.py": "if TYPE_CHECKING:\n    from iet.report import html",
            },
            None,
        ),
        ({"iet/other/__init__.py": ""}, "iet/other has no place in BELOW"),
        ({"iet/audit/plan.py": '"""Long."""\n' * 501}, "iet/audit/plan.py is above 500 lines"),
        ({"iet/audit/plan.py": '"""Long: one file because it is."""\n' + "x = 1\n" * 500}, None),
        ({"csrc/cpu/base.h": ""}, "csrc/cpu/base.h does not say what it holds"),
        (
            {"iet/audit/plan.py": "def f(x):\n    return x in ('gumbel', 'a')"},
            "audit/plan.py, line 2: compares ['gumbel']",
        ),
        ({"iet/decoding/fit.py": "x = 'posterior' == 'a'"}, None),
    ],
)
def test_violations_are_found(files: dict[str, str], expected: str | None, tmp_path: pathlib.Path) -> None:
    modules = (
        "iet/__init__",
        "iet/kernels",
        "iet/generation/__init__",
        "iet/demo/__init__",
        "iet/marks/keys",
    )
    modules += (
        "iet/report/model",
        "iet/bulk/files",
        "benchmarks/tables",
        "tests/support/teams",
        "tests/test_b",
    )
    for name, text in {**{f"{module}.py": "" for module in modules}, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert list(violations(tmp_path)) == ([] if expected is None else [expected])


def test_rejects_more_than_twelve_entries(tmp_path: pathlib.Path) -> None:
    (tmp_path / "iet").mkdir()
    for name in [*filter(None, BELOW), "more"]:
        (tmp_path / "iet" / f"{name}.py").touch()
    crowded, unknown = violations(tmp_path)
    assert crowded.startswith("13 entries in iet/: audit.py, bulk.py, cli.py")
    assert unknown == "iet/more.py has no place in BELOW"
