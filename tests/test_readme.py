"""README: its first program runs unchanged, twice, and its links work on a package index."""

from __future__ import annotations

import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def test_the_first_program_runs_unchanged_twice(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    program = README.split("```python\n", 1)[1].split("```", 1)[0]
    assert len(program.splitlines()) < 30
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    environment = {"PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "OMP_NUM_THREADS": "1"}
    secrets = set[bytes]()
    monkeypatch.chdir(tmp_path)
    for is_second in (False, True):
        if is_second:  # as a notebook would, in a process that has loaded everything
            runpy.run_path("program.py", run_name="__main__")
            output = capsys.readouterr().out
        else:
            run = subprocess.run(
                [sys.executable, "program.py"],
                env={**os.environ, **environment},
                capture_output=True,
                text=True,
                encoding="utf-8",
            )
            assert run.returncode == 0, run.stderr
            output = run.stdout
        names = output.partition(" wrote in this text")[0]  # the surest first
        assert sorted(names.split(", ")) == ["critic", "planner"]
        assert "planner" in (tmp_path / "report.html").read_text(encoding="utf-8")
        secrets.add((tmp_path / "team.json").read_bytes())
    assert len(secrets) == 1  # the second run marks with the keys of the first


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("README.md", "demo command"),
        ("README.md", "test command"),
        ("CONTRIBUTING.md", "quick test command"),
    ],
)
def test_commands_are_found_by_their_marks(page: str, name: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    [block] = re.findall(rf"^<!-- {name} -->\n```sh\n(.*?)```$", text, re.MULTILINE | re.DOTALL)
    lines = block.strip().split("\n")
    assert lines[0] == "python3 -m venv --clear .venv"
    assert "constraints.txt" in lines[1]
    for path in re.findall(r"\btests/\S+", lines[-1]):
        assert (ROOT / path).exists()


@pytest.mark.skipif(not (ROOT / ".ci").exists(), reason="the sdist holds nothing of a release")
def test_on_a_package_index_every_link_is_whole(tmp_path: pathlib.Path) -> None:
    (tmp_path / ".ci").mkdir()
    for name in ("README.md", "pyproject.toml", ".ci/link"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in set(LINK.findall(README)):  # of folders alone the kind of a link differs
        if (ROOT / name).is_dir():
            (tmp_path / name).mkdir(parents=True)
    home = "https://github.com/someone/iet"
    command = [sys.executable, str(tmp_path / ".ci" / "link"), home, "v0.1.0"]
    subprocess.run(command, check=True)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    links = LINK.findall(re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
    assert len(links) > 25
    assert [link for link in links if not re.match(r"https://|#", link)] == []
    assert "![The page" in text
    for link in links:
        kind, tag, path = re.fullmatch(rf"{home}/(\w+)/([^/]+)/([^#]+).*", link).groups()  # type: ignore[union-attr]
        assert tag == "v0.1.0"
        assert (ROOT / path).exists()
        assert kind == ("raw" if path.endswith(".png") else "tree" if (ROOT / path).is_dir() else "blob")
    urls = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert urls["Repository"] == home
    assert subprocess.run(command, capture_output=True).returncode != 0  # once is enough


def test_main_pages_are_short() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert len(README.splitlines()) <= 120
    assert len(README.split()) <= 900
    assert len(changes.splitlines()) <= 40
    assert max(map(len, changes.splitlines())) <= 120


def test_pictures_are_small_and_shown() -> None:
    pages = "".join(
        page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    )
    pictures = sorted((ROOT / "docs" / "images").iterdir())
    widths = {f"{name}-{width}.png" for name in ("report", "serve") for width in (390, 500, 1280)}
    assert widths <= {picture.name for picture in pictures}
    for picture in pictures:
        assert f"images/{picture.name})" in pages
        assert picture.stat().st_size < 150_000
