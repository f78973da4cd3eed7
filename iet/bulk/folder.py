"""The folder of a run's results: finished chunks, the lock of each shard, and the run's configuration."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import sys
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO

from iet.bulk.storage import HERE, OBJECTS, Content, LocalStorage, Storage, Store, is_uri, store_of
from iet.errors import InputError

GROUP = 10**9
"""The index of a chunk is this times its group of files, plus its number in the group."""

KINDS = ("documents", "segments", "quarantine")
"""Kinds of files of a chunk. The documents are written last, and complete it."""

_CHUNK_NAME = re.compile(rf"({'|'.join(KINDS)})-(\d{{6,}})-(\d{{6,}})\.(?:parquet|jsonl)")
_TEMPORARY_NAME = re.compile(r"\.(.+)\.[0-9a-f]+\.tmp")
_STATE_NAME = re.compile(r"shard-(\d+)-of-(\d+)\.json")
_RUN = "run.json"
_MAY_DIFFER = ("max_record", "not_read")
"""Parts of a configuration that may change in a resumed run, as they move no record to another chunk."""


@dataclasses.dataclass(frozen=True)
class Folder:
    """A folder of results. Each file is written completely or not at all.

    Attributes:
        path: as it is shown.
        storage: holds its files.
        identity: device and inode number of a folder of this machine. They show if another folder has taken
            its name. A store's prefix cannot be replaced, so it has none.
    """

    path: str
    storage: Storage
    identity: tuple[int, int] | None = None

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return isinstance(self.storage, LocalStorage)

    def made(self) -> Folder:
        """Create the folder if it is missing, and return it with its identity. A bucket must exist."""
        if isinstance(self.storage, Store):
            self.storage.check_bucket(self.path)
            return self
        os.makedirs(self.path, exist_ok=True)
        return dataclasses.replace(self, identity=_identity(self.path))

    def file(self, name: str) -> str:
        """Return the path of a file."""
        return f"{self.path.rstrip('/')}/{name}"

    def names(self) -> list[str]:
        """Return the names of its files."""
        return self.storage.names(self.path)

    def exists(self, name: str) -> bool:
        """Tell whether a file exists."""
        return self.storage.exists(self.file(name))

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading."""
        return self.storage.open(self.file(name))

    def table(self, name: str) -> Any:
        """Open a file for pyarrow."""
        return self.storage.table(self.file(name))

    def check(self) -> None:
        """Raise an InputError if another folder has taken its name."""
        try:
            same = self.identity is None or self.identity == _identity(self.path)
        except OSError:
            same = False
        if not same:
            raise InputError(
                f"{self.path}: the folder was moved or replaced during the run; put back the one with the"
                " results, and continue with --resume"
            )

    def commit(self, name: str, content: Content, *, locked: bool = False) -> None:
        """Write a file completely or not at all. With `locked`, other processes that lock the folder wait.

        Raises:
            InputError: it cannot be written, or another folder has taken this one's name.
        """
        self.check()
        self.storage.write(self.file(name), content, locked=locked)

    def drop(self, name: str) -> None:
        """Remove a file if it exists."""
        self.storage.delete(self.file(name))

    @contextlib.contextmanager
    def locked(self, shard: Shard) -> Iterator[None]:
        """Hold the lock of a shard. Windows, stores and some network file systems have none.

        In a store, a shard that is started twice is audited twice, with the same result.

        Raises:
            InputError: another process holds the lock, or the folder cannot be written.
        """
        if sys.platform == "win32" or not self.is_local:
            yield
            return
        import fcntl

        try:
            descriptor = os.open(self.file(shard.lock), os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:  # as on a disk that can only be read
            raise InputError(f"{self.file(shard.lock)}: cannot be written ({error.strerror})") from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    f"{self.path}: another process is at work on shard {shard.index}/{shard.count}; expected"
                    " one at a time"
                ) from None
            except OSError:
                pass
            yield
        finally:
            os.close(descriptor)


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def folder_of(out: str | os.PathLike[str]) -> Folder:
    """Return the folder of results at a path of this machine or a URI. Nothing is created yet.

    Raises:
        InputError: the URI is malformed, or its store cannot write files atomically.
    """
    target = os.fspath(out)
    if not is_uri(target):
        return Folder(str(pathlib.Path(target)), HERE)
    store, path = store_of(target)
    if store.scheme not in OBJECTS:
        supported = " or ".join(f"{scheme}://" for scheme in OBJECTS)
        raise InputError(
            f"{path}: got results by {store.scheme}://, expected a folder of this machine, {supported}: only"
            " these replace files atomically"
        )
    return Folder(path, store)


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


def chunks_in(folder: Folder, kinds: Collection[str] = KINDS) -> set[int]:
    """Return the indices of the chunks that have a file of one of these kinds."""
    matches = map(_CHUNK_NAME.fullmatch, folder.names())
    return {_index(match) for match in matches if match and match[1] in kinds}


def chunks_done(folder: Folder) -> set[int]:
    """Return the indices of the finished chunks: those with a documents file."""
    return chunks_in(folder, ("documents",))


def _index(match: re.Match[str]) -> int:
    return GROUP * int(match[2]) + int(match[3])


def remove(folder: Folder, index: int) -> None:
    """Remove a chunk's files, the documents first, so that a partial chunk never looks complete."""
    folder.check()
    for kind in KINDS:
        folder.drop(name_of(kind, index))


def sweep(folder: Folder, shard: Shard) -> None:
    """Remove temporary files of killed runs of this shard."""
    own = (shard.state, "documents.csv", "segments.csv", "index.html") if shard.count == 1 else (shard.state,)
    for name in folder.names():
        if temporary := _TEMPORARY_NAME.fullmatch(name):
            match = _CHUNK_NAME.fullmatch(temporary[1])
            if temporary[1] in own or (match and _index(match) in shard):
                folder.drop(name)


def as_json(content: dict[str, Any]) -> bytes:
    """Return the content of a JSON file. It is ASCII, as file names may not be valid UTF-8."""
    return json.dumps(content, indent=1).encode() + b"\n"


@contextlib.contextmanager
def claimed(
    folder: Folder,
    configuration: dict[str, Any],
    shard: Shard,
    *,
    resume: bool,
    reread: bool,
) -> Iterator[tuple[Folder, dict[str, Any]]]:
    """Lock the folder for one shard of this run, and yield it with the run's first configuration.

    Args:
        folder: of `folder_of`.
        configuration: of the run. A resumed run may change only the parts in `_MAY_DIFFER`.
        shard: the chunks to audit.
        resume: continue a run that was stopped.
        reread: accept input files whose content has changed since.

    Raises:
        InputError: the folder has results of another run, or another process works on the shard.
    """
    configuration = json.loads(json.dumps(configuration))  # as it is read back
    try:
        folder = folder.made()
        existing = [name for name in folder.names() if not name.startswith(".")]
    except OSError as error:
        raise InputError(f"{folder.path}: cannot be made or read ({error.strerror})") from None
    if existing and not folder.exists(_RUN):
        raise InputError(f"{folder.path}: got a folder with {sorted(existing)[:3]}, expected an empty one")
    with folder.locked(shard):
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
                raise InputError(
                    f"{folder.path}: holds a run that was begun in another way, expected the same"
                    f" options, or another folder; {'; '.join(changes[:5])}{hint}"
                )
            if folder.exists(shard.state) and not resume:
                raise InputError(
                    f"{folder.path}: holds the results of an earlier run; expected --resume (resume=True),"
                    " which goes on with that run, or another folder"
                )
            # Groups stay those of the first run, because they are part of the chunks' names.
            for old, new in zip(previous["inputs"], configuration["inputs"], strict=True):
                new["group"] = old.get("group", new["group"])
            groups = [new["group"] for new in configuration["inputs"]]
            if groups != sorted(groups) or {*groups} != {*range(len({*groups}))}:
                raise InputError(f"{folder.path}/{_RUN}: damaged, its groups are {groups[:20]}")
        if previous["inputs"] != configuration["inputs"]:
            _reopen_other_shards(folder, shard)
        if not exists or previous != configuration:
            # With the lock, temporary files that killed runs of other shards have left are removed.
            folder.commit(_RUN, as_json(configuration), locked=True)
        folder.commit(shard.state, as_json({"complete": False}))
        yield folder, configuration


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
    for match in filter(None, map(_STATE_NAME.fullmatch, sorted(folder.names()))):
        other = Shard(int(match[1]), int(match[2]))
        if other != shard:
            with folder.locked(other):
                folder.drop(other.state)


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
