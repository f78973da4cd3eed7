"""The tables about the source: two small trees are compared; a file keeps the text around them."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

import pytest

from benchmarks import house, surface


def tree(root: pathlib.Path, files: dict[str, str]) -> pathlib.Path:
    """Write the files below `root`, with an empty package for each counted folder."""
    project = {"pyproject.toml": "[project]\ndependencies = []\noptional-dependencies = {a = []}\n"}
    packages = {f"{folder}/__init__.py": "" for folder in house.COUNTED}
    for name, text in {**packages, **project, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_compares_two_states(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surface, "options", lambda root: 7)
    monkeypatch.setattr(surface, "flows", lambda root: {"audit": (["iet.A"], 3), "bulk": (["iet.A"], 80)})
    circle = {"iet/x.py": "import iet.y\n\n", "iet/y.py": "def f():\n    from iet import x\n"}
    files = {"iet/marks/keys.py": "found = 1\n", "iet/errors.py": "", "tests/test_x.py": "import iet.errors"}
    earlier, current = tree(tmp_path / "a", circle), tree(tmp_path / "b", files)
    page = house.report({"before": earlier, "now": current})
    assert "| `iet` | 3 | 4 | 3 | 1 |" in page
    assert "| `iet/marks` | N/A | N/A | N/A | N/A | 1 | 1 | 0.0 | 100.0% |" in page
    assert "| 1 | `iet/x.py` 2 | `iet/marks/keys.py` 1 |" in page
    assert "| entries at the top of `iet/` | 2 | 2 |" in page
    assert "| modules, imports and circles of `iet` | 3, 2, 1 | 3, 0, 0 |" in page
    assert "| modules, imports and circles of `tests` | 1, 0, 0 | 2, 1, 0 |" in page
    assert "| options of the command line | 7 | 7 |" in page
    assert "per document, a bulk run | 2.0 | 2.0 |" in page


def test_keeps_text_around_the_tables(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def checkout(revision: str) -> Iterator[pathlib.Path]:
        yield pathlib.Path(revision)

    monkeypatch.setattr(house, "checkout", checkout)
    monkeypatch.setattr(house, "report", lambda states: f"before: {states['before']}")
    path = tmp_path / "house.md"
    assert house.main(["--output", str(path)]) == 0
    path.write_text(path.read_text() + "\n## Speed\n")
    assert house.main(["--output", str(path), "--before", "old"]) == 0
    tables = "<!-- house table -->\n\nbefore: old\n\n<!-- /house table -->"
    assert path.read_text() == f"# The house\n\n{tables}\n\n## Speed\n"


def test_counts_names_options_and_classes() -> None:
    assert surface.public_names(house.ROOT) > 20
    assert surface.install_bytes(house.ROOT) > 1e6
    count = surface.options(house.ROOT)
    assert count is not None
    assert count > 50
