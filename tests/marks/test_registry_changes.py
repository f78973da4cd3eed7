"""Changes of registries: many agents in one call, concurrent threads and processes, killed writers."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from iet.errors import InputError, RegistryError
from iet.marks import files
from iet.marks.registry import Registry
from iet.marks.registry_file import alone
from tests.support.commands import run
from tests.support.conditions import posix
from tests.support.registries import V


def test_add_many_adds_all_or_none(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry.create(path, vocab_size=V)
    registry.add("planner")
    names = [f"agent {number}" for number in range(500)]
    written, write = [], files.write_file
    monkeypatch.setattr(
        "iet.marks.registry_file.write_file", lambda *a, **k: (written.append(a), write(*a, **k))
    )
    assert registry.add_many(iter(names)) == list(range(1, 501))
    assert len(written) == 1
    assert registry.add_many([]) == []
    read = Registry.load(path)
    assert read.digest == registry.digest
    assert read.names() == ("planner", *names)
    content = path.read_bytes()
    for refused, message in (
        (["x", "planner"], "'planner' exists"),
        (["x", "x"], "agent name: got 'x' twice, expected each once"),
        (["\u00e9", "e\u0301"], "twice"),
        (["x", "\u0445"], r"'\\u0445', which looks like 'x'"),
        (["x", " y"], "agent name"),
    ):
        with pytest.raises((RegistryError, InputError), match=message):
            registry.add_many(refused)
    for value in ("planner", None, 3):
        with pytest.raises(InputError, match="expected names of agents"):
            registry.add_many(value)  # type: ignore[arg-type]
    assert path.read_bytes() == content
    assert len(written) == 1


@pytest.mark.parametrize("saved", [True, False], ids=["file", "memory"])
def test_threads_lose_no_key(path: pathlib.Path, saved: bool) -> None:
    registry = Registry.create(path if saved else None, vocab_size=V)
    profile, start = registry.profile.id, threading.Barrier(4)

    def add(thread: int) -> list[tuple[str, bytes]]:
        start.wait()
        acknowledged = []
        for number in range(60):
            name = f"agent {thread}-{number}"
            registry.add(name, profile=profile)
            registry.marking_keys(profile)
            acknowledged.append((name, registry.keys(name)[-1].secret))
            if number % 20 == 0:
                registry.rotate(name)
                registry.add_profile(vocab_size=V + 1 + number)
        return acknowledged

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads switch as often as possible
    try:
        with ThreadPoolExecutor(4) as pool:
            acknowledged = [pair for thread_keys in pool.map(add, range(4)) for pair in thread_keys]
    finally:
        sys.setswitchinterval(interval)
    for read in (registry, Registry.load(path) if saved else Registry.loads(registry.dumps())):
        assert len(read) == 240
        assert len(read.profiles) == 4
        assert [read.keys(name)[0].secret for name, _ in acknowledged] == [
            secret for _, secret in acknowledged
        ]
        assert len(read.marking_keys(profile)) == 240
        assert len(read.scoring_keys(profile)) == 240 + 4 * 3
    assert registry.digest == read.digest


def adds(path: pathlib.Path, writer: int, pairs: int) -> None:
    for number in range(pairs):
        if run("keys", "add", "-r", path, f"agent {writer}-{number}") != 0:
            os._exit(1)


@posix
def test_concurrent_commands_wait_for_the_lock(path: pathlib.Path) -> None:
    Registry.create(path, vocab_size=V)
    context = multiprocessing.get_context("fork")  # it has the modules, and the lock is between processes
    writers = [context.Process(target=adds, args=(path, writer, 100)) for writer in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    read = Registry.load(path)
    assert sorted(read) == sorted(f"agent {writer}-{number}" for writer in range(2) for number in range(100))
    assert len({read.keys(name)[0].secret for name in read}) == 200
    assert os.listdir(path.parent) == [path.name]


@posix
@pytest.mark.parametrize("action", ["add", "rotate", "profile", "import"])
def test_waiting_command_reads_the_latest_file(
    team: Registry, path: pathlib.Path, tmp_path: pathlib.Path, action: str
) -> None:
    Registry.create(tmp_path / "other.json", vocab_size=V).add("guest")
    arguments = {
        "add": ["reader"],
        "rotate": ["critic"],
        "profile": ["--vocab-size", str(2 * V)],
        "import": [str(tmp_path / "other.json")],
    }[action]
    command = [sys.executable, "-m", "iet", "keys", action, "-r", str(path), *arguments]
    with alone(path):
        waiting = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(5)
        team.add("editor")  # in the lock that is held
    _, errors = waiting.communicate()
    assert (waiting.returncode, errors) == (0, b"")
    read = Registry.load(path)
    assert {"planner", "critic", "writer", "editor"} <= set(read)
    assert {
        "add": "reader" in read,
        "rotate": len(read.keys("critic")) == 2,
        "profile": len(read.profiles) == 2,
        "import": "guest" in read,
    }[action]
    with pytest.raises(RegistryError, match="changed on disk since it was loaded"):
        team.add("late")  # a loaded object does not read the file again


# The process to be killed: it prints when the temporary file is written, and waits.
KILLED = """
import sys, time
from iet.marks import files
from iet.marks.registry import Registry
registry = Registry.load(sys.argv[1])
files.os.replace = lambda *_: (print("written", flush=True), time.sleep(600))
registry.add("reader")
"""


@posix
def test_removes_files_of_a_killed_writer(team: Registry, path: pathlib.Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"written\n"
    [temporary] = [name for name in os.listdir(path.parent) if name != path.name]
    assert (path.parent / temporary).stat().st_mode & 0o777 == 0o600
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    assert temporary in os.listdir(path.parent)
    kept = {"notes.tmp", f".{path.name}.tmp", f"{temporary}.more", f"x{temporary}"}
    kept.add(f".report.html.{'0' * 16}.tmp")  # it may be in writing, and holds no secret
    for name in kept:
        (path.parent / name).touch()
    elsewhere = path.parent / f".export.json.{'0' * 16}.locked.tmp"
    elsewhere.write_bytes(b"of another file")
    team.add("reader")
    assert set(os.listdir(path.parent)) == {path.name, *kept}


@posix
def test_keeps_files_being_written(team: Registry, path: pathlib.Path) -> None:
    def content(file: object) -> None:
        assert len(os.listdir(path.parent)) == 2
        team.add("reader")
        assert len(os.listdir(path.parent)) == 2
        file.write(b"long")  # type: ignore[attr-defined]

    files.write_file(path.parent / "report.html", content)
    assert (path.parent / "report.html").read_bytes() == b"long"


@posix
def test_lock_is_released(team: Registry, path: pathlib.Path) -> None:
    with pytest.raises(KeyError), alone(path):
        raise KeyError
    link = path.parent / "link.json"
    link.symlink_to(path)
    with alone(link):
        team.add("reader")
    team.add("editor")
    assert Registry.load(link).digest == team.digest
