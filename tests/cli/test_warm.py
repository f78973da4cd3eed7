"""`iet warm` in an image, and audits in a container, in which nothing can be written."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import iet
from tests.support import teams
from tests.support.conditions import INTERPRETED
from tests.support.texts import spell, write

pytestmark = [
    pytest.mark.skipif(INTERPRETED, reason="nothing is compiled"),
    pytest.mark.skipif(sys.platform != "linux", reason="takes Linux's capabilities"),
]

DOCKERFILE = pathlib.Path(__file__).parents[2] / "examples" / "Dockerfile"

# The command line with the package in the folder argv[1], whatever is installed; modes of files hold for root
# too, and there is no temporary folder. At its end it names on stderr the loops that had to be compiled.
COMMAND = """
import ctypes, os, sys, tempfile
tempfile.tempdir = "/dev/null"
if os.geteuid() == 0:
    nothing = (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), nothing) == 0
folder = sys.argv.pop(1)
sys.meta_path[:] = [f for f in sys.meta_path if f.__module__.startswith("_frozen_importlib")]
sys.path.insert(0, folder)
import iet.cli
assert iet.__file__.startswith(folder)
code = iet.cli.main()
loops = [v for m in list(sys.modules.values()) if getattr(m, "__name__", "").startswith("iet.")
         for v in vars(m).values() if hasattr(v, "stats")]
compiled = {f.__name__ for f in loops if sum(f.stats.cache_misses.values())}
unused = {f.__name__ for f in loops if not f.signatures}
later = sys.modules["iet.native.loops"]
unused |= {f.__name__ for f in later._later if f._compiled is None}
# What loops of the compiled module call is there, too.
unused -= {called for f in later.LOOPS.values() for called in f.__code__.co_names}
print("compiled:", *sorted(compiled), file=sys.stderr)
print("unused:", *sorted(unused), file=sys.stderr)
sys.exit(code)
"""


class Container:
    """A copy of the package in a folder; home and temporary folder cannot be written."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.site = folder, folder / "site"

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "XDG_"))}
        environment |= {"HOME": "/dev/null", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", COMMAND, str(self.site), *map(str, arguments)]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, cwd=self.folder
        )


def loops_of(done: subprocess.CompletedProcess[str], which: str) -> list[str]:
    [line] = re.findall(rf"^{which}:(.*)$", done.stderr, re.MULTILINE)
    return str(line).split()


WORDS = 400


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Container:
    """Warmed and then read-only, with a registry and a text."""
    container = Container(tmp_path_factory.mktemp("container"))
    source = pathlib.Path(iet.__file__).parent
    shutil.copytree(source, container.site / "iet", ignore=shutil.ignore_patterns("__pycache__"))
    compiled = importlib.util.find_spec("iet.native._cpu")  # of an editable installation it lies elsewhere
    if compiled is not None and compiled.origin is not None:
        shutil.copy(compiled.origin, container.site / "iet" / "native")
    done = container.run("warm", "--json")
    assert done.returncode == 0, done.stderr
    assert loops_of(done, "unused") == []  # there is no loop that it left out
    kept = [pathlib.Path(path) for path in json.loads(done.stdout)["kept"]]
    assert all(path.name == "__pycache__" and path.is_relative_to(container.site) for path in kept)
    tokenizer = container.folder / "tokenizer.json"
    teams.word_tokenizer(WORDS).save(str(tokenizer))
    names, path = ("planner", "critic"), container.folder / "team.json"
    registry = teams.team(names, path, tokenizer=tokenizer, kappa=3.0)
    ids = write(registry, [("critic", 150)], ids=range(1, WORDS), flat=True)
    (container.folder / "final.txt").write_text(spell(ids))
    for found in container.site.rglob("*"):
        found.chmod(found.stat().st_mode & ~0o222)
    return container


def audited(container: Container, decoder: str) -> subprocess.CompletedProcess[str]:
    done = container.run("audit", "final.txt", "-r", "team.json", "--decoder", decoder)
    assert done.returncode == 0, done.stderr
    assert "critic" in done.stdout
    return done


@pytest.mark.parametrize("decoder", ["posterior", "cusum"])
def test_a_container_that_can_write_nothing_compiles_nothing(container: Container, decoder: str) -> None:
    done = audited(container, decoder)
    assert loops_of(done, "compiled") == []
    assert "RuntimeWarning" not in done.stderr
    loops = json.loads(container.run("doctor", "--json").stdout)["loops"]
    assert loops["kept"] == []
    assert str(container.site / "iet" / "decoding" / "__pycache__") in loops["read"]


def test_every_user_may_read_the_loops(container: Container) -> None:
    files = list(container.site.rglob("iet-*.nb?"))
    assert files
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in files)
    assert all(path.parent.stat().st_mode & 0o055 == 0o055 for path in files)


def test_loops_that_others_can_write_are_not_read(container: Container) -> None:
    folders = {path.parent for path in container.site.rglob("iet-*.nb?")}
    for path in folders:
        path.chmod(0o575)
    try:
        assert loops_of(audited(container, "window"), "compiled") != []
    finally:
        for path in folders:
            path.chmod(0o555)


def test_the_dockerfile_does_what_was_tried() -> None:
    lines = DOCKERFILE.read_text(encoding="utf-8").splitlines()
    steps = [line for line in lines if line.startswith(("RUN iet", "USER", "ENV", "ENTRYPOINT"))]
    assert steps == ["ENV NUMBA_CPU_NAME=generic", "RUN iet warm", "USER 10001", 'ENTRYPOINT ["iet"]']
