"""The folder of a run's results: finished chunks, the lock of each shard, and the run's configuration."""

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

from iet.bulk.storage import HERE, OBJECTS, Store, is_uri, store_of
from iet.errors import InputError
from iet.marks.files import write_file

GROUP = 10**9
"""The index of a chunk is this times its group of files, plus its number in the group."""

_KINDS = ("documents", "segments", "quarantine")
_DOCUMENTS_NAME = re.compile(r"documents-(\d{6,})-(\d{6,})\.parquet")
_CHUNK_NAME = re.compile(r"(?:documents|segments|quarantine)-(\d{6,})-(\d{6,})\.\w+")
_TEMPORARY_NAME = re.compile(r"\.(?:documents|segments|quarantine)-(\d{6,})-(\d{6,})\.\w+\.[0-9a-f]+\.tmp")
_STATE_NAME = re.compile(r"shard-\d+-of-\d+\.json")
_RUN = "run.json"
_MAY_DIFFER = ("max_record", "not_read")
"""Parts of a configuration that may change in a resumed run, as they move no record to another chunk."""


@dataclasses.dataclass(frozen=True)
class LocalFolder:
    """A folder of this machine. Its inode number shows if another folder has taken its name."""

    path: pathlib.Path
    identity: tuple[int, int]

    @classmethod
    def made(cls, path: pathlib.Path) -> LocalFolder:
        """Return the folder of this path, and create it if it is missing."""
        path.mkdir(parents=True, exist_ok=True)
        return cls(path, _identity(path))

    def names(self) -> list[str]:
        """Return the names of its files."""
        return os.listdir(self.path)

    def exists(self, name: str) -> bool:
        """Tell whether a file exists."""
        return (self.path / name).exists()

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading."""
        return HERE.open(str(self.path / name))

    def table(self, name: str) -> Any:
        """Return an argument for `pyarrow.parquet.ParquetFile`."""
        return HERE.table(str(self.path / name))

    def check(self) -> None:
        """Raise an InputError if another folder has taken its name."""
        try:
            same = _identity(self.path) == self.identity
        except OSError:
            same = False
        if not same:
            raise InputError(
                f"{self.path}: the folder was moved or replaced during the run; put back the one with the"
                " results, and continue with --resume"
            )

    def commit(
        self,
        name: str,
        content: bytes | Callable[[BinaryIO], object],
        *,
        check: Callable[[], object] | None = None,
    ) -> None:
        """Write a file completely or not at all. `check` is called first, as in `write_file`.

        Raises:
            InputError: it cannot be written, or another folder has taken this one's name.
        """
        self.check()
        target = self.path / name
        try:
            write_file(target, content, check=check)
        except OSError as error:
            raise InputError(f"{target}: cannot be written ({error.strerror or error})") from None

    def drop(self, name: str) -> None:
        """Remove a file if it exists."""
        (self.path / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self, name: str, refusal: str) -> Iterator[None]:
        """Hold a lock of this process. Windows and some network file systems have none."""
        if sys.platform == "win32":
            yield
            return
        import fcntl

        try:
            descriptor = os.open(self.path / name, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:  # as on a disk that can only be read
            raise InputError(f"{self.path / name}: cannot be written ({error.strerror})") from None
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


def _identity(path: pathlib.Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


@dataclasses.dataclass(frozen=True)
class StoreFolder:
    """The objects of a store under one prefix. Each is written completely, and none can be locked."""

    path: str
    store: Store

    def names(self) -> list[str]:
        """Return the names of its files."""
        return self.store.names(self.path)

    def exists(self, name: str) -> bool:
        """Tell whether an object exists."""
        return self.store.exists(f"{self.path}/{name}")

    def open(self, name: str) -> BinaryIO:
        """Open an object."""
        return self.store.open(f"{self.path}/{name}")

    def table(self, name: str) -> Any:
        """Open an object for pyarrow."""
        return self.store.table(f"{self.path}/{name}")

    def check(self) -> None:
        """Do nothing: a prefix cannot be replaced."""

    def commit(self, name: str, content: bytes, *, check: Callable[[], object] | None = None) -> None:
        """Write an object. `check` is not called, because no incomplete object can exist."""
        self.store.write(f"{self.path}/{name}", content)

    def drop(self, name: str) -> None:
        """Remove an object if it exists."""
        self.store.delete(f"{self.path}/{name}")

    def locked(self, name: str, refusal: str) -> contextlib.AbstractContextManager[None]:
        """Do nothing: a shard that is started twice is audited twice, with the same result."""
        return contextlib.nullcontext()


Folder = LocalFolder | StoreFolder
"""A folder of results. Each file is written completely or not at all."""


def target_of(out: str | os.PathLike[str]) -> pathlib.Path | StoreFolder:
    """Return the target of results: a path of this machine, or the folder of a URI. Nothing is created yet.

    Raises:
        InputError: the URI is malformed, or its store cannot write files atomically.
    """
    target = os.fspath(out)
    if not is_uri(target):
        return pathlib.Path(target)
    store, path = store_of(target)
    if store.scheme not in OBJECTS:
        supported = " or ".join(f"{scheme}://" for scheme in OBJECTS)
        raise InputError(
            f"{path}: got results by {store.scheme}://, expected a folder of this machine, {supported}: only"
            " these replace files atomically"
        )
    return StoreFolder(path, store)


@dataclasses.dataclass(frozen=True)
class Shard:
    """The chunks with (group + number) mod `count` = `index` - 1."""

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
        """Name of the file that the process of this shard locks."""
        return f".{self.state.removesuffix('.json')}.lock"


def name_of(kind: str, index: int) -> str:
    """Return the name of the documents, segments or quarantined records of a chunk."""
    group, number = divmod(index, GROUP)
    return f"{kind}-{group:06d}-{number:06d}.{'jsonl' if kind == 'quarantine' else 'parquet'}"


def chunks_done(folder: Folder) -> set[int]:
    """Return the indices of the finished chunks: those with a documents file."""
    return _indices(folder, _DOCUMENTS_NAME)


def chunks_begun(folder: Folder) -> set[int]:
    """Return the indices of the chunks that have any file."""
    return _indices(folder, _CHUNK_NAME)


def _indices(folder: Folder, name: re.Pattern[str]) -> set[int]:
    matches = map(name.fullmatch, folder.names())
    return {GROUP * int(match[1]) + int(match[2]) for match in matches if match}


def remove(folder: Folder, index: int) -> None:
    """Remove a chunk's files, the documents first, so that a partial chunk never looks complete."""
    folder.check()
    for kind in _KINDS:
        folder.drop(name_of(kind, index))


def sweep(folder: Folder, shard: Shard) -> None:
    """Remove temporary files of killed runs of this shard."""
    alone = ("documents.csv", "segments.csv", "index.html") if shard.count == 1 else ()
    for name in (shard.state, *alone):
        _sweep_files(folder, f".{name}.")
    for name in folder.names():
        match = _TEMPORARY_NAME.fullmatch(name)
        if match and GROUP * int(match[1]) + int(match[2]) in shard:
            folder.drop(name)


def _sweep_files(folder: Folder, start: str) -> None:
    for name in folder.names():
        if name.startswith(start) and name.endswith(".tmp"):
            folder.drop(name)


def as_json(content: dict[str, Any]) -> bytes:
    """Return the content of a JSON file. It is ASCII, as file names may not be valid UTF-8."""
    return json.dumps(content, indent=1).encode() + b"\n"


@contextlib.contextmanager
def claimed(
    target: pathlib.Path | StoreFolder,
    configuration: dict[str, Any],
    shard: Shard,
    *,
    resume: bool,
    reread: bool,
) -> Iterator[tuple[Folder, dict[str, Any]]]:
    """Lock the folder for one shard of this run, and yield it with the run's first configuration.

    Args:
        target: of `target_of`.
        configuration: of the run. A resumed run may change only the parts in `_MAY_DIFFER`.
        shard: the chunks to audit.
        resume: continue a run that was stopped.
        reread: accept input files whose content has changed since.

    Raises:
        InputError: the folder has results of another run, or another process works on the shard.
    """
    configuration = json.loads(json.dumps(configuration))  # as it is read back
    try:
        folder = _made(target)
        existing = [name for name in folder.names() if not name.startswith(".")]
    except OSError as error:
        raise InputError(f"{target}: cannot be made or read ({error.strerror})") from None
    if existing and not folder.exists(_RUN):
        raise InputError(f"{folder.path}: got a folder with {sorted(existing)[:3]}, expected an empty one")
    with folder.locked(shard.lock, _at_work(folder, shard.lock)):
        previous, exists = configuration, folder.exists(_RUN)
        if exists:
            try:
                with folder.open(_RUN) as file:
                    previous = json.loads(file.read())
            except (OSError, ValueError) as error:
                raise InputError(f"{folder.path}/{_RUN}: cannot be read ({error})") from None
            changes = list(_differences(_compared(previous, reread), _compared(configuration, reread)))
            if changes:
                mendable = not any(_differences(_compared(previous, True), _compared(configuration, True)))
                hint = "; files that changed are audited anew with --reread" if mendable else ""
                raise InputError(f"{folder.path}: was begun in another way; " + "; ".join(changes[:5]) + hint)
            if folder.exists(shard.state) and not resume:
                raise InputError(f"{folder.path}: got results there, expected an empty folder, or resume")
            # Groups stay those of the first run, because they are part of the chunks' names.
            for old, new in zip(previous["inputs"], configuration["inputs"], strict=True):
                new["group"] = old.get("group", new["group"])
            groups = [new["group"] for new in configuration["inputs"]]
            if groups != sorted(groups) or {*groups} != {*range(len({*groups}))}:
                raise InputError(f"{folder.path}/{_RUN}: damaged, its groups are {groups[:20]}")
        if previous["inputs"] != configuration["inputs"]:
            _reopen_other_shards(folder, shard)
        if not exists or previous != configuration:
            # No other shard writes this file now, so temporary files of killed runs can be removed.
            folder.commit(_RUN, as_json(configuration), check=lambda: _sweep_files(folder, f".{_RUN}."))
        folder.commit(shard.state, as_json({"complete": False}))
        yield folder, configuration


def _made(target: pathlib.Path | StoreFolder) -> Folder:
    if isinstance(target, StoreFolder):
        target.store.check_bucket(target.path)
        return target
    return LocalFolder.made(target)


def _compared(configuration: Any, reread: bool) -> Any:
    """Return the part of a configuration that must not change."""
    if not isinstance(configuration, dict):
        return configuration
    fixed = {name: value for name, value in configuration.items() if name not in _MAY_DIFFER}
    inputs = fixed.get("inputs")
    if isinstance(inputs, list):
        names = ("path",) if reread else ("path", "bytes", "edges_sha256")
        fixed["inputs"] = [{name: file.get(name) for name in names} for file in inputs]
    return fixed


def _reopen_other_shards(folder: Folder, shard: Shard) -> None:
    """Mark the other shards as incomplete, because inputs have changed.

    Raises:
        InputError: another process works on one of them.
    """
    for other in sorted(filter(_STATE_NAME.fullmatch, folder.names())):
        if other != shard.state:
            lock = f".{other.removesuffix('.json')}.lock"
            with folder.locked(lock, _at_work(folder, lock)):
                folder.drop(other)


def _at_work(folder: Folder, lock: str) -> str:
    _, index, _, count = lock.strip(".").removesuffix(".lock").split("-")
    return f"{folder.path}: another process is at work on shard {index}/{count}"


def _differences(previous: Any, current: Any, location: str = "") -> Iterator[str]:
    """Yield a description of each difference between two configurations."""
    if isinstance(previous, dict) and isinstance(current, dict):
        for name in sorted({*previous, *current}):
            yield from _differences(
                previous.get(name), current.get(name), f"{location}.{name}" if location else name
            )
    elif isinstance(previous, list) and isinstance(current, list) and len(previous) == len(current):
        for at, (old, new) in enumerate(zip(previous, current, strict=True)):
            yield from _differences(old, new, f"{location}[{at}]")
    elif location == "inputs" and isinstance(previous, list) and isinstance(current, list):
        yield from _other_inputs(previous, current)
    elif previous != current:
        yield f"{location}: was {json.dumps(previous):.60}, is {json.dumps(current):.60}"


_NAMED = 3
"""Number of missing and of new paths that a message names."""


def _other_inputs(previous: list[Any], current: list[Any]) -> Iterator[str]:
    """Yield which inputs are missing and which are new, if their number has changed."""
    old, new = ([str(file.get("path")) for file in inputs] for inputs in (previous, current))
    yield f"inputs: were {len(old)}, are {len(new)}"
    for label, paths in (
        ("gone", [path for path in old if path not in {*new}]),
        ("new", [path for path in new if path not in {*old}]),
    ):
        if paths:
            more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
            yield f"{label}: {', '.join(map(repr, paths[:_NAMED]))}{more}"
