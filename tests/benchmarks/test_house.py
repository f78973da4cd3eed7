"""The tables of the house: two small trees beside each other; a file keeps what stands around them."""

from __future__ import annotations

import pathlib

import pytest

from benchmarks import house


def tree(root: pathlib.Path, files: dict[str, str]) -> pathlib.Path:
    for name, text in {**{f"{folder}/__init__.py": "" for folder in house.COUNTED}, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_two_states_stand_beside_each_other(tmp_path: pathlib.Path) -> None:
    circle = {"iet/x.py": "import iet.y\n\n", "iet/y.py": "def f():\n    from iet import x\n"}
    files = {"iet/marks/keys.py": "KEYS = 1\n", "iet/errors.py": "", "tests/test_x.py": "import iet.errors"}
    before, now = tree(tmp_path / "a", circle), tree(tmp_path / "b", files)
    shown = house.report(before, now)
    assert "| `iet` | 3 | 4 | 3 | 1 |" in shown
    assert "| `iet/marks` | 1 | 1 |" in shown
    assert "| 1 | `iet/x.py` 2 | `iet/marks/keys.py` 1 |" in shown
    assert "| entries at the top of `iet/` | 2 | 2 |" in shown
    assert "| modules, imports and circles of `iet` | 3, 2, 1 | 3, 0, 0 |" in shown
    assert "| modules, imports and circles of `tests` | 1, 0, 0 | 2, 1, 0 |" in shown
    assert "| folder | files | lines |" in house.report(None, now)


def test_a_file_keeps_what_stands_around_the_tables(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(house, "report", lambda before: f"before: {before}")
    assert house.main([]) == 0
    assert capsys.readouterr().out == "before: None\n"
    path = tmp_path / "house.md"
    assert house.main(["--output", str(path)]) == 0
    path.write_text(path.read_text() + "\n## Speed\n")
    assert house.main(["--output", str(path), "--before", "old"]) == 0
    tables = "<!-- house table -->\n\nbefore: old\n\n<!-- /house table -->"
    assert path.read_text() == f"# The house\n\n{tables}\n\n## Speed\n"
