"""Where compiled loops are kept, and where they must not be."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import Any

import pytest

import iet
from iet.native import jit
from iet.native.jit import private_folder

# Decodes with the package in folder argv[1], whatever is installed, and prints hits and misses.
SCRIPT = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if f.__module__.startswith("_frozen_importlib")]
sys.path.insert(0, sys.argv[1])
import numpy as np
import iet
assert iet.__file__.startswith(sys.argv[1])
from iet.decoding import decode, posterior, windows
rng = np.random.default_rng(0)
decode(rng.uniform(-1, 1, (400, 3)).astype(np.float32), "window")
loops = [v for m in list(sys.modules.values()) if getattr(m, "__name__", "").startswith("iet.decoding")
         for v in vars(m).values() if hasattr(v, "stats")]
assert loops
print(sum(sum(f.stats.cache_hits.values()) for f in loops),
      sum(sum(f.stats.cache_misses.values()) for f in loops))
"""


@pytest.fixture
def temporary(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    folder = tmp_path / "tmp"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no user ids")
@pytest.mark.parametrize("given", [False, True], ids=["temporary folder", "NUMBA_CACHE_DIR"])
def test_loops_are_compiled_once_where_neither_package_nor_home_can_be_written(
    tmp_path: pathlib.Path, given: bool
) -> None:
    package = tmp_path / "site" / "iet"
    source = pathlib.Path(iet.__file__).parent
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__", "model"))
    for folder in [package, *(path for path in package.rglob("*") if path.is_dir())]:
        (folder / "__pycache__").touch()  # a file: nobody, not even root, can put a cache there
    temporary, chosen = tmp_path / "tmp", tmp_path / "chosen"
    temporary.mkdir(mode=0o700)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "XDG_"))}
    environment |= {"HOME": "/dev/null", "TMPDIR": str(temporary), "IET_BACKEND": "reference"}
    environment["NUMBA_OPT"] = "0"  # where they are kept is asked, not how fast they run
    if given:
        environment["NUMBA_CACHE_DIR"] = str(chosen)
    counts = []
    for _ in range(2):
        command = [sys.executable, "-c", SCRIPT, str(package.parent)]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        counts.append([int(number) for number in result.stdout.split()])
    (cold_hits, cold_misses), (warm_hits, warm_misses) = counts
    assert cold_hits == warm_misses == 0
    assert 0 < warm_hits <= cold_misses  # what a loop calls is loaded with it
    private = temporary / f"iet-{os.geteuid()}"
    assert chosen.exists() == given
    assert private.exists() == (not given)
    if not given:
        assert private.stat().st_mode & 0o777 == 0o700


def test_the_private_folder_is_ours_alone(temporary: pathlib.Path) -> None:
    made = private_folder()
    assert made == private_folder() == str(temporary / f"iet-{os.geteuid()}")
    os.chmod(made, 0o770)
    assert private_folder() is None
    os.chmod(made, 0o700)
    os.chmod(temporary, 0o777)  # anybody could put another folder in its place
    assert private_folder() is None
    os.chmod(temporary, 0o1777)
    assert private_folder() == made


def test_a_link_is_no_private_folder(temporary: pathlib.Path) -> None:
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (temporary / f"iet-{os.geteuid()}").symlink_to(elsewhere)
    assert private_folder() is None


def test_without_a_temporary_folder_there_is_no_private_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert private_folder() is None


def test_where_nothing_can_be_written_loops_are_compiled_without_a_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(function: object, beside: object) -> None:
        raise RuntimeError("cannot cache function: no locator available")  # what Numba does there

    monkeypatch.setattr(jit, "Cache", refuse)
    loop: Any = jit.njit(lambda x: x + 1)
    assert loop(1) == 2
    assert loop.stats.cache_path is None


# Prints what was told while a function is compiled twice, and whether SciPy was imported for it.
TOLD = """
import gc, sys
from iet.native import jit
told = []
jit.without_blas()
with jit.compiling(lambda: told.append("told")):
    for offset in (1, 2):
        jit.numba.njit(lambda x: x + offset)(offset)
print(told, gc.isenabled(), "scipy.linalg" in sys.modules)
jit.numba.njit(lambda x: x - 1)(1)
print(told)
"""


def test_compiling_is_told_of_once_and_leaves_no_trace() -> None:
    done = subprocess.run([sys.executable, "-c", TOLD], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['told'] True False", "['told']"]
