"""Drills on what is written to disk: kills, full disks, read-only folders, clocks that jump.

Checks after each: nothing that was acknowledged is lost, nothing is doubled or partial, errors are
ours and name the file, and a run that goes on ends as one that was never disturbed.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import json
import multiprocessing
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq

from benchmarks.security.flips import NAMES, team
from iet.audit.auditor import Auditor
from iet.bulk.files import audit_files
from iet.errors import IetError
from iet.marks.published import PublishedIndex
from iet.marks.registry import Registry

CHUNK_ROWS = 8
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_RDONLY, MS_REMOUNT = 1, 32

JUMPING_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <sys/time.h>
static long jump(void) { return (long)(random() % 2000000000L) - 1000000000L; }
int clock_gettime(clockid_t id, struct timespec *out) {
  static int (*own)(clockid_t, struct timespec *);
  if (!own) own = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int failed = own(id, out);
  if (!failed && id == CLOCK_REALTIME) out->tv_sec += jump();
  return failed;
}
time_t time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
int gettimeofday(struct timeval *restrict out, void *restrict zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  out->tv_sec = now.tv_sec, out->tv_usec = now.tv_nsec / 1000;
  return 0;
}
"""
"""A wall clock that is somewhere else, within 32 years, at every look. Monotonic clocks are left alone."""


@dataclasses.dataclass
class Scene:
    """A bulk run to be disturbed, and what it comes to undisturbed."""

    auditor: Auditor
    inputs: pathlib.Path
    whole: Any

    @classmethod
    def made(cls, work: pathlib.Path, rows: int = 120) -> Scene:
        auditor = Auditor(team(work / "team.json"), "cusum")
        draw, inputs = random.Random(0), work / "texts.jsonl"
        words = ["the", "planner", "hands", "a", "plan", "to", "critic", "and", "writer", "number"]
        lines = [
            json.dumps({"text": " ".join(draw.choices(words, k=draw.randrange(40)))}) for _ in range(rows)
        ]
        inputs.write_text("\n".join([*lines, "{broken", ""]))
        scene = cls(auditor, inputs, None)
        scene.audit(work / "undisturbed")
        scene.whole = content(work / "undisturbed")
        return scene

    def audit(self, out: pathlib.Path, **options: Any) -> None:
        audit_files(self.auditor, [self.inputs], out, chunk_rows=CHUNK_ROWS, resume=True, **options)

    def ends_well(self, out: pathlib.Path) -> bool:
        """Resume, and return whether all is there, once, with nothing half written."""
        self.audit(out)
        return content(out) == self.whole and not list(out.glob(".*.tmp"))


def content(out: pathlib.Path) -> Any:
    tables = {path.name: pq.read_table(path).to_pylist() for path in sorted(out.glob("*-*.parquet"))}
    return tables, [path.read_bytes() for path in sorted(out.glob("quarantine-*"))]


FORK: Any = multiprocessing.get_context("fork") if os.name == "posix" else None
"""A fork has all modules already, so that a kill hits the work, not the imports."""


def killed(target: Callable[[], object], wait: Callable[[Any], object]) -> bool:
    """Run something in a process that is killed after `wait`, and return whether it was still at work."""
    process = FORK.Process(target=target)
    process.start()
    wait(process)
    process.kill()
    process.join()
    return bool(process.exitcode == -signal.SIGKILL)


def bulk_kills(work: pathlib.Path, draw: random.Random, kills: int) -> Counter[str]:
    """Kill bulk runs; each resumes the one before."""
    scene, counts, outs = Scene.made(work), Counter[str](faults=0), 0
    out = work / "out0"
    while counts["kills"] < kills:
        at_once = draw.random() < 0.3

        def wait(process: Any, at_once: bool = at_once, out: pathlib.Path = out) -> None:
            parts_written = len(list(out.glob("documents-*")))
            while not at_once and process.is_alive() and len(list(out.glob("documents-*"))) == parts_written:
                time.sleep(0.0005)
            process.join(draw.uniform(0, 0.03))

        if killed(functools.partial(scene.audit, out), wait):
            counts["kills"] += 1
        else:
            counts["runs that went on to their end"] += 1
            counts["faults"] += not scene.ends_well(out)
            shutil.rmtree(out)
            outs += 1
            out = work / f"out{outs}"
    counts["faults"] += not scene.ends_well(out)
    return counts


def registry_kills(work: pathlib.Path, draw: random.Random, kills: int) -> Counter[str]:
    """Kill writers of a registry that note which agents were acknowledged."""
    path, noted, counts = work / "killed.json", work / "noted.txt", Counter[str](faults=0)
    Registry.create(path, vocab_size=1000)
    noted.touch()

    def add(first: int) -> None:
        registry = Registry.load(path)
        with open(noted, "a") as file:
            for number in range(first, first + 1000):
                registry.add(f"agent {number}")
                file.write(f"agent {number}\n")
                file.flush()

    first = 0
    while counts["kills"] < kills:
        counts["kills"] += killed(functools.partial(add, first), lambda p: p.join(draw.uniform(0, 0.06)))
        first += 1000
        names = set(Registry.load(path).names())
        acknowledged = noted.read_text().split("\n")[:-1]
        counts["faults"] += not names.issuperset(acknowledged)
        if len(names) > 300:
            counts["agents acknowledged and there"] += len(acknowledged)
            path.unlink()
            Registry.create(path, vocab_size=1000)
            noted.write_text("")
    counts["agents acknowledged and there"] += len(noted.read_text().split("\n")[:-1])
    Registry.load(path).add("the last one")
    counts["faults"] += bool(list(work.glob(".killed.json.*.tmp")))  # swept by the next writer
    return counts


def index_kills(work: pathlib.Path, draw: random.Random, kills: int) -> Counter[str]:
    """Kill writers of an index of what was published, which add the same texts in the same order."""
    registry, path, counts = team(), work / "out.idx", Counter[str](faults=0)
    PublishedIndex(path, registry, create=True)

    def add(first: int) -> None:
        index = PublishedIndex(path, registry)
        for seed in range(first, first + 1000):
            draw_own = random.Random(seed)
            index.add(NAMES[seed % 3], token_ids=[[draw_own.randrange(1, 1000) for _ in range(40)]])

    texts = 0
    while counts["kills"] < kills:
        counts["kills"] += killed(functools.partial(add, texts), lambda p: p.join(draw.uniform(0, 0.06)))
        index = PublishedIndex(path, registry)
        index.check()
        counts["faults"] += index.texts < texts
        texts = index.texts
    counts["texts added, each whole or not at all"] = texts
    return counts


def group_kills(work: pathlib.Path, draw: random.Random, kills: int) -> Counter[str]:
    """Kill `iet audit` with two workers, the command alone or all of them."""
    scene, counts, out = Scene.made(work, 400), Counter[str](faults=0), work / "out"
    command = [sys.executable, "-m", "iet", "audit", scene.inputs, "-r", work / "team.json", "-o", out]
    options = ["--decoder", "cusum", "--chunk-rows", CHUNK_ROWS, "--workers", 2, "--resume"]
    while counts["kills"] < kills:
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(
            [str(part) for part in (*command, *options)], start_new_session=True, **quiet
        )
        parts_written = len(list(out.glob("documents-*")))
        while process.poll() is None and len(list(out.glob("documents-*"))) == parts_written:
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.1))
        if process.poll() is None and draw.random() < 0.5:
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        if process.wait() == -signal.SIGKILL:
            counts["kills"] += 1
        else:
            time.sleep(0.2)  # the last worker may be at its end
            counts["faults"] += not scene.ends_well(out)
            shutil.rmtree(out)
    while True:  # workers of a command that was killed alone end by themselves, and give back the lock
        try:
            counts["faults"] += not scene.ends_well(out)
            return counts
        except IetError as error:
            if "another process is at work" not in str(error):
                raise
            time.sleep(0.1)


def _in_child(check: Callable[[], str]) -> str:
    """Return what a function says that runs in a process of its own."""
    ours, theirs = FORK.Pipe(duplex=False)

    def run() -> None:
        try:
            theirs.send(check())
        except BaseException as error:
            theirs.send(f"{type(error).__name__}: {error}")

    process = FORK.Process(target=run)
    process.start()
    theirs.close()
    try:
        return str(ours.recv())
    except EOFError:
        return f"ended with {process.exitcode}"
    finally:
        process.join()


def _told(counts: Counter[str], drill: str, fault: str) -> None:
    counts[f"{drill}, not possible here" if fault == "no" else drill] += 1
    if fault not in ("", "no"):
        counts["faults"] += 1
        print(f"{drill}: {fault:.500}")


def large_files(work: pathlib.Path, draw: random.Random, times: int) -> Counter[str]:
    """Let no file grow beyond a random size: what cannot be written is named, and can be done later."""
    scene, counts = Scene.made(work), Counter[str](faults=0)
    for number in range(times):
        out, limit = work / f"out{number}", draw.randrange(100, 9000)

        def limited(out: pathlib.Path = out, limit: int = limit) -> str:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            try:
                scene.audit(out)
            except IetError as error:
                return "" if "cannot be written (File too large)" in str(error) else str(error)
            return ""

        _told(counts, "file sizes limited", _in_child(limited))
        counts["faults"] += not scene.ends_well(out)
    return counts


def mounts(work: pathlib.Path, draw: random.Random, times: int) -> Counter[str]:
    """Fill a small disk, and make it read-only, and later not: in a mount that only a child process has."""
    scene, counts, disk = Scene.made(work), Counter[str](faults=0), work / "disk"
    disk.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(flags: int, size: int) -> bool:
        options = f"size={size}k".encode()
        return bool(libc.mount(b"tmpfs", os.fsencode(disk), b"tmpfs", flags, options) == 0)

    def alone(flags: int, size: int) -> bool:
        spaces = CLONE_NEWNS | (CLONE_NEWUSER if os.geteuid() else 0)
        return (
            libc.unshare(spaces) == 0
            and libc.mount(None, b"/", None, 1 << 18 | 1 << 14, None) == 0
            and mount(flags, size)
        )

    def refused(do: Callable[[], object], *reasons: str) -> str:
        try:
            do()
        except IetError as error:
            return "" if any(reason in str(error) for reason in reasons) else str(error)
        return "nothing was refused"

    def full(size: int) -> str:
        if not alone(0, size):
            return "no"
        fault = refused(lambda: scene.audit(disk / "out"), "No space left on device")
        if not fault and mount(MS_REMOUNT, 65536) and not scene.ends_well(disk / "out"):
            fault = "not as it was undisturbed"
        return fault

    def read_only() -> str:
        if not alone(0, 65536):
            return "no"
        registry = team(disk / "team.json")
        index = PublishedIndex(disk / "out.idx", registry, create=True)
        index.add("planner", token_ids=[[1, 2, 3, 4, 5, 6]])
        scene.audit(disk / "done")
        digest_before, texts = registry.digest, index.texts
        if not mount(MS_REMOUNT | MS_RDONLY, 65536):
            return "no"
        reason = "Read-only file system"
        fault = refused(lambda: registry.add("reader"), reason, "read-only")
        fault = fault or refused(lambda: index.add("critic", token_ids=[[9, 8, 7, 6, 5, 4]]), reason)
        fault = fault or refused(lambda: scene.audit(disk / "out"), reason)
        fault = fault or refused(lambda: scene.audit(disk / "done"), reason)
        if Registry.load(disk / "team.json").digest != digest_before:
            fault = fault or "the registry reads as another one"
        if not mount(MS_REMOUNT, 65536):
            return "no"
        registry.add("reader")
        index.add("critic", token_ids=[[9, 8, 7, 6, 5, 4]])
        if Registry.load(disk / "team.json").digest != registry.digest or index.texts != texts + 1:
            fault = fault or "something was lost"
        return fault or ("" if scene.ends_well(disk / "done") else "not as it was undisturbed")

    for _ in range(times):
        _told(counts, "disk full", _in_child(functools.partial(full, draw.randrange(4, 90))))
        _told(counts, "read-only folder", _in_child(read_only))
    return counts


def clocks(work: pathlib.Path, draw: random.Random, times: int) -> Counter[str]:
    """Let the wall clock jump by decades at every look, while the command line works."""
    scene, counts, library = Scene.made(work), Counter[str](faults=0), work / "clock.so"
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return Counter({"clock jumps, not possible here": times, "faults": 0})
    source = work / "clock.c"
    source.write_text(JUMPING_CLOCK)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    for number in range(times):
        out = work / f"out{number}"
        for more in (
            ["keys", "add", f"agent {number}", "-r", work / "other.json"],
            ["audit", scene.inputs, "-r", work / "team.json", "-o", out, "--decoder", "cusum"],
        ):
            if more[0] == "keys":
                if number == 0:
                    team(work / "other.json")
            else:
                more += ["--chunk-rows", str(CHUNK_ROWS)]
            done = subprocess.run(
                [sys.executable, "-m", "iet", *map(str, more)],
                capture_output=True,
                env={**os.environ, "LD_PRELOAD": str(library)},
            )
            fault = "" if done.returncode == 0 else done.stderr[-500:].decode(errors="replace")
            _told(counts, "clock jumps", fault)
        if f"agent {number}" not in Registry.load(work / "other.json") or content(out) != scene.whole:
            _told(counts, "clock jumps", "not as it was undisturbed")
    return counts


KINDS: dict[str, Callable[[pathlib.Path, random.Random, int], Counter[str]]] = {
    "bulk": bulk_kills,
    "registry": registry_kills,
    "index": index_kills,
    "with two workers": group_kills,
    "file sizes": large_files,
    "mounts": mounts,
    "clocks": clocks,
}


def drill(kind: str, work: pathlib.Path, seed: int, times: int) -> Counter[str]:
    """Do one kind of drill a number of times, in a folder that is emptied."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    counts = KINDS[kind](work, random.Random(seed), times)
    shutil.rmtree(work)
    return counts
