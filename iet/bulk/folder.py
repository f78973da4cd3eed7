"""The folder that a run writes: the chunks that are done, the lock of a shard, and how the run was begun."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from iet.errors import InputError
from iet.marks.files import write_file

GROUP = 10**9
"""More than the chunks of a group of files; the index of a chunk is this times its group, plus its number."""

_KINDS = ("documents", "segments", "quarantine")
_DOCUMENTS_NAME = re.compile(r"documents-(\d{6,})-(\d{6,})\.parquet")
_CHUNK_NAME = re.compile(r"(?:documents|segments|quarantine)-(\d{6,})-(\d{6,})\.\w+")
_TEMPORARY_NAME = re.compile(r"\.(?:documents|segments|quarantine)-(\d{6,})-(\d{6,})\.\w+\.[0-9a-f]+\.tmp")
_MAY_DIFFER = ("max_record", "not_read")
"""Parts of a run's configuration that do not change which records a chunk has."""


@dataclasses.dataclass(frozen=True)
class Folder:
    """A folder of results, known again by what the system calls it: one of this name may take its place."""

    path: pathlib.Path
    identity: tuple[int, int]

    @classmethod
    def of(cls, path: pathlib.Path) -> Folder:
        """Return the folder that has this path now."""
        return cls(path, _identity(path))

    def check(self) -> None:
        """Raise an InputError unless it is still there."""
        try:
            same = _identity(self.path) == self.identity
        except OSError:
            same = False
        if not same:
            raise InputError(
                f"{self.path}: the folder was moved or replaced during the run; what was done is in the one"
                " that was there, expected it back (then --resume goes on)"
            )

    def commit(self, name: str, content: bytes | Callable[[BinaryIO], object]) -> None:
        """Write a file whole or not at all, and only here.

        Raises:
            InputError: it cannot be written, or the folder is another one.
        """
        self.check()
        commit(self.path / name, content)

    def remove(self, index: int) -> None:
        """Remove what stands of a chunk, so that at no moment it passes for done with less than all of it."""
        self.check()
        for kind in _KINDS:
            path_of(self.path, kind, index).unlink(missing_ok=True)


def _identity(path: pathlib.Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


@dataclasses.dataclass(frozen=True)
class Shard:
    """The chunks whose group and number, added, leave `index` - 1 when divided by `count`."""

    index: int
    count: int

    def __contains__(self, chunk: int) -> bool:
        return sum(divmod(chunk, GROUP)) % self.count == self.index - 1

    @property
    def state(self) -> str:
        """Name of the file with its summary."""
        return f"shard-{self.index}-of-{self.count}.json"

    @property
    def lock(self) -> str:
        """Name of the file that is locked by who is at work on it."""
        return f".{self.state.removesuffix('.json')}.lock"


def name_of(kind: str, index: int) -> str:
    """Return the name of the documents, segments or quarantined records of a chunk."""
    group, number = divmod(index, GROUP)
    return f"{kind}-{group:06d}-{number:06d}.{'jsonl' if kind == 'quarantine' else 'parquet'}"


def path_of(folder: pathlib.Path, kind: str, index: int) -> pathlib.Path:
    """Return the path of the documents, segments or quarantined records of a chunk."""
    return folder / name_of(kind, index)


def chunks_done(folder: pathlib.Path) -> set[int]:
    """Return the indices of the chunks whose documents stand."""
    names = map(_DOCUMENTS_NAME.fullmatch, os.listdir(folder))
    return {GROUP * int(found[1]) + int(found[2]) for found in names if found}


def chunks_begun(folder: pathlib.Path) -> set[int]:
    """Return the indices of the chunks of which any file stands."""
    names = map(_CHUNK_NAME.fullmatch, os.listdir(folder))
    return {GROUP * int(found[1]) + int(found[2]) for found in names if found}


def sweep(folder: pathlib.Path, shard: Shard) -> None:
    """Remove what a killed run of this shard has left half written."""
    alone = ("documents.csv", "segments.csv", "index.html") if shard.count == 1 else ()
    for name in (shard.state, *alone):
        _sweep_files(folder, f".{name}.")
    for name in os.listdir(folder):
        found = _TEMPORARY_NAME.fullmatch(name)
        if found and GROUP * int(found[1]) + int(found[2]) in shard:
            (folder / name).unlink(missing_ok=True)


def _sweep_files(folder: pathlib.Path, start: str) -> None:
    for name in os.listdir(folder):
        if name.startswith(start) and name.endswith(".tmp"):
            (folder / name).unlink(missing_ok=True)


def commit(
    target: pathlib.Path,
    content: bytes | Callable[[BinaryIO], object],
    check: Callable[[], object] | None = None,
) -> None:
    """Write a file whole or not at all, after a `check` as `write_file` has it.

    Raises:
        InputError: it cannot be written.
    """
    try:
        write_file(target, content, check=check)
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror or error})") from None


def as_json(content: dict[str, Any]) -> bytes:
    """Return the content of a JSON file. Names of files may hold what UTF-8 cannot, so it is ASCII."""
    return json.dumps(content, indent=1).encode() + b"\n"


@contextlib.contextmanager
def claimed(
    path: pathlib.Path, configuration: dict[str, Any], shard: Shard, *, resume: bool, reread: bool
) -> Iterator[tuple[Folder, dict[str, Any]]]:
    """Hold the folder for one shard of this run, and yield it with the configuration that it was begun with.

    Args:
        path: of the folder.
        configuration: of the run. What is in `_MAY_DIFFER` may change on the way.
        shard: whose chunks are done.
        resume: go on where a run was stopped.
        reread: take input files, too, that have changed since: same paths, other content.

    Raises:
        InputError: another run has it, or is at work on the shard.
    """
    configuration = json.loads(json.dumps(configuration))  # as it is read again
    run, state = path / "run.json", path / shard.state
    try:
        path.mkdir(parents=True, exist_ok=True)
        there = [name for name in os.listdir(path) if not name.startswith(".")]
        folder = Folder.of(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be made or read ({error.strerror})") from None
    if there and not run.exists():
        raise InputError(f"{path}: got a folder with {sorted(there)[:3]}, expected an empty one")
    with _locked(path / shard.lock, _at_work(path, shard.lock)):
        before = configuration
        if run.exists():
            try:
                before = json.loads(run.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise InputError(f"{run}: cannot be read ({error})") from None
            changes = list(_differences(_compared(before, reread), _compared(configuration, reread)))
            if changes:
                mendable = not any(_differences(_compared(before, True), _compared(configuration, True)))
                hint = "; files that changed are audited anew with --reread" if mendable else ""
                raise InputError(f"{path}: was begun in another way; " + "; ".join(changes[:5]) + hint)
            if state.exists() and not resume:
                raise InputError(f"{path}: got results there, expected an empty folder, or resume")
            # Groups stay those of the first time: by them chunks are known.
            for old, new in zip(before["inputs"], configuration["inputs"], strict=True):
                new["group"] = old.get("group", new["group"])
        if before["inputs"] != configuration["inputs"]:
            _forget_other_shards(path, shard)
        if not run.exists() or before != configuration:
            # No other shard writes this file meanwhile, so that what a killed one left half written can go.
            commit(run, as_json(configuration), check=lambda: _sweep_files(path, f".{run.name}."))
        folder.commit(state.name, as_json({"complete": False}))
        yield folder, configuration


def _compared(configuration: Any, reread: bool) -> Any:
    """Return what must be as it was."""
    if not isinstance(configuration, dict):
        return configuration
    kept = {name: value for name, value in configuration.items() if name not in _MAY_DIFFER}
    inputs = kept.get("inputs")
    if isinstance(inputs, list):
        names = ("path",) if reread else ("path", "bytes", "edges_sha256")
        kept["inputs"] = [{name: each.get(name) for name in names} for each in inputs]
    return kept


def _forget_other_shards(path: pathlib.Path, shard: Shard) -> None:
    """Take back that other shards are complete: inputs have changed.

    Raises:
        InputError: another process is at work on one.
    """
    for other in sorted(path.glob("shard-*-of-*.json")):
        if other.name != shard.state:
            lock = f".{other.stem}.lock"
            with _locked(path / lock, _at_work(path, lock)):
                other.unlink(missing_ok=True)


def _at_work(path: pathlib.Path, lock: str) -> str:
    _, index, _, count = lock.strip(".").removesuffix(".lock").split("-")
    return f"{path}: another process is at work on shard {index}/{count}"


@contextlib.contextmanager
def _locked(path: pathlib.Path, refusal: str) -> Iterator[None]:
    # The lock ends with the process, however that ends. Windows and some network file systems have none:
    # there a shard that is started twice does its work twice, and the result is the same.
    if sys.platform == "win32":
        yield
        return
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:  # as on a disk that can only be read
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{refusal}; expected one at a time") from None
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)


def _differences(before: Any, now: Any, where: str = "") -> Iterator[str]:
    """Yield each difference between two configurations, in words."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            yield from _differences(before.get(name), now.get(name), f"{where}.{name}" if where else name)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for at, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from _differences(old, new, f"{where}[{at}]")
    elif before != now:
        yield f"{where}: was {json.dumps(before):.60}, is {json.dumps(now):.60}"
