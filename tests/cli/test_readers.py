"""Commands whose reader has exited, as in `| head`, finish their work and keep their exit code."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from tests.support.conditions import posix

pytestmark = posix


@pytest.fixture(params=[True, False], ids=["unbuffered", "buffered"])
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**variables, "PYTHONUNBUFFERED": "1"} if request.param else variables


def unread(environment: dict[str, str], *arguments: object, errors: bool = False) -> tuple[int, str]:
    """Run `iet` into a closed pipe, and return its exit code and stderr.

    `errors`: stderr goes into that pipe, too.
    """
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "iet", *map(str, arguments)],
        stdout=writer,
        stderr=writer if errors else subprocess.PIPE,
        text=True,
        env=environment,
        check=False,
    )
    os.close(writer)
    return done.returncode, done.stderr or ""


def test_findings_set_the_exit_code(
    environment: dict[str, str], team: pathlib.Path, unmarked: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    audit = ["audit", unmarked, "-r", team]
    assert unread(environment, *audit) == (0, "")
    for more in ([], ["--json"]):  # less and more than a buffer
        assert unread(environment, *audit, *more, "--fail-on", "unattributed") == (1, "")
    assert unread(environment, "audit", tmp_path / "none.txt", "-r", team, errors=True) == (3, "")
    assert unread(environment, "audit", "--no-such-option", errors=True) == (2, "")


def test_all_files_are_written(
    environment: dict[str, str], team: pathlib.Path, text: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    pages = [tmp_path / f"{number}.html" for number in range(2)]
    assert unread(environment, "audit", text, "-r", team, "-o", pages[0], "-o", pages[1]) == (0, "")
    assert all(page.is_file() for page in pages)


def test_unread_progress_stops_no_audit(
    environment: dict[str, str], team: pathlib.Path, text: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    pytest.importorskip("pyarrow")
    folder, out = tmp_path / "texts", tmp_path / "out"
    folder.mkdir()
    for name in ("a.txt", "b.txt", "c.xlsx"):
        (folder / name).write_text(text.read_text())
    code, _ = unread(environment, "audit", folder, "-r", team, "-o", f"{out}/", errors=True)
    assert code == 0  # also in the message that c.xlsx is not read
    assert (out / "shard-1-of-1.json").is_file()
