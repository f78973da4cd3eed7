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
from typing import Any, BinaryIO, Protocol

from iet.bulk.places import HERE, OBJECTS, Store, is_uri, store_of
from iet.errors import InputError
from iet.marks.files import write_file

GROUP = 10**9
"""More than the chunks of a group of files; the index of a chunk is this times its group, plus its number."""

_KINDS = ("documents", "segments", "quarantine")
_DOCUMENTS_NAME = re.compile(r"documents-(\d{6,})-(\d{6,})\.parquet")
_CHUNK_NAME = re.compile(r"(?:documents|segments|quarantine)-(\d{6,})-(\d{6,})\.\w+")
_TEMPORARY_NAME = re.compile(r"\.(?:documents|segments|quarantine)-(\d{6,})-(\d{6,})\.\w+\.[0-9a-f]+\.tmp")
_STATE_NAME = re.compile(r"shard-\d+-of-\d+\.json")
_RUN = "run.json"
_MAY_DIFFER = ("max_record", "not_read")
"""Parts of a run's configuration that do not change which records a chunk has."""


class Folder(Protocol):
    """A folder of results: files by their names, each written whole or not at all."""

    @property
    def path(self) -> pathlib.Path | str:
        """Where it is, as it is shown."""

    def names(self) -> list[str]:
        """Return the names of all that is in it."""

    def exists(self, name: str) -> bool:
        """Tell whether a file is there."""

    def open(self, name: str) -> BinaryIO:
        """Open a file; FileNotFoundError: there is none."""

    def table(self, name: str) -> Any:
        """Return what `pyarrow.parquet.ParquetFile` opens a file by."""

    def check(self) -> None:
        """Raise an InputError unless the folder is the one that it was."""

    def commit(self, name: str, content: bytes, *, check: Callable[[], object] | None = None) -> None:
        """Write a file, after a `check` as `write_file` has it; InputError: it cannot be written."""

    def drop(self, name: str) -> None:
        """Remove a file, if it is there."""

    def locked(self, name: str, refusal: str) -> contextlib.AbstractContextManager[None]:
        """Hold a lock that ends with this process; InputError: another one has it."""


@dataclasses.dataclass(frozen=True)
class LocalFolder:
    """A folder of this machine, known again by the system's number: one of this name may take its place."""

    path: pathlib.Path
    identity: tuple[int, int]

    @classmethod
    def made(cls, path: pathlib.Path) -> LocalFolder:
        """Return the folder that has this path now, which is made if it is missing."""
        path.mkdir(parents=True, exist_ok=True)
        return cls(path, _identity(path))

    def names(self) -> list[str]:
        """Return the names of all that is in it."""
        return os.listdir(self.path)

    def exists(self, name: str) -> bool:
        """Tell whether a file is there."""
        return (self.path / name).exists()

    def open(self, name: str) -> BinaryIO:
        """Open a file."""
        return HERE.open(str(self.path / name))

    def table(self, name: str) -> Any:
        """Return the path of a file, or the open file."""
        return HERE.table(str(self.path / name))

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

    def commit(
        self,
        name: str,
        content: bytes | Callable[[BinaryIO], object],
        *,
        check: Callable[[], object] | None = None,
    ) -> None:
        """Write a file whole or not at all, and only here, after a `check` as `write_file` has it.

        Raises:
            InputError: it cannot be written, or the folder is another one.
        """
        self.check()
        target = self.path / name
        try:
            write_file(target, content, check=check)
        except OSError as error:
            raise InputError(f"{target}: cannot be written ({error.strerror or error})") from None

    def drop(self, name: str) -> None:
        """Remove a file, if it is there."""
        (self.path / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self, name: str, refusal: str) -> Iterator[None]:
        """Hold a lock, where there are some: Windows and some network file systems have none."""
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
    found = os.stat(path)
    return found.st_dev, found.st_ino


@dataclasses.dataclass(frozen=True)
class StoreFolder:
    """The objects of a store whose names begin alike: each appears whole, and none can be locked."""

    path: str
    store: Store

    def names(self) -> list[str]:
        """Return the names of all that is in it."""
        return self.store.names(self.path)

    def exists(self, name: str) -> bool:
        """Tell whether an object is there."""
        return self.store.exists(f"{self.path}/{name}")

    def open(self, name: str) -> BinaryIO:
        """Open an object."""
        return self.store.open(f"{self.path}/{name}")

    def table(self, name: str) -> Any:
        """Open an object for pyarrow."""
        return self.store.table(f"{self.path}/{name}")

    def check(self) -> None:
        """Do nothing: what has the name is the folder."""

    def commit(self, name: str, content: bytes, *, check: Callable[[], object] | None = None) -> None:
        """Write an object. Nothing is half written there, and a check has nothing to sweep."""
        self.store.write(f"{self.path}/{name}", content)

    def drop(self, name: str) -> None:
        """Remove an object, if it is there."""
        self.store.delete(f"{self.path}/{name}")

    def locked(self, name: str, refusal: str) -> contextlib.AbstractContextManager[None]:
        """Do nothing: a shard that is started twice does its work twice, and the result is the same."""
        return contextlib.nullcontext()


def target_of(out: str | os.PathLike[str]) -> pathlib.Path | StoreFolder:
    """Return where results go: a path of this machine, or, by URI, a folder of a store; nothing is made yet.

    Raises:
        InputError: the URI is none, or of a store that does not write as `Folder` promises.
    """
    given = os.fspath(out)
    if not is_uri(given):
        return pathlib.Path(given)
    store, path = store_of(given)
    if store.scheme not in OBJECTS:
        known = " or ".join(f"{scheme}://" for scheme in OBJECTS)
        raise InputError(
            f"{path}: got results by {store.scheme}://, expected a folder of this machine, {known}: nothing"
            " else lets a file appear whole and take the place of another one"
        )
    return StoreFolder(path, store)


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


def chunks_done(folder: Folder) -> set[int]:
    """Return the indices of the chunks whose documents stand."""
    names = map(_DOCUMENTS_NAME.fullmatch, folder.names())
    return {GROUP * int(found[1]) + int(found[2]) for found in names if found}


def chunks_begun(folder: Folder) -> set[int]:
    """Return the indices of the chunks of which any file stands."""
    names = map(_CHUNK_NAME.fullmatch, folder.names())
    return {GROUP * int(found[1]) + int(found[2]) for found in names if found}


def remove(folder: Folder, index: int) -> None:
    """Remove what stands of a chunk, so that at no moment it passes for done with less than all of it."""
    folder.check()
    for kind in _KINDS:
        folder.drop(name_of(kind, index))


def sweep(folder: Folder, shard: Shard) -> None:
    """Remove what a killed run of this shard has left half written."""
    alone = ("documents.csv", "segments.csv", "index.html") if shard.count == 1 else ()
    for name in (shard.state, *alone):
        _sweep_files(folder, f".{name}.")
    for name in folder.names():
        found = _TEMPORARY_NAME.fullmatch(name)
        if found and GROUP * int(found[1]) + int(found[2]) in shard:
            folder.drop(name)


def _sweep_files(folder: Folder, start: str) -> None:
    for name in folder.names():
        if name.startswith(start) and name.endswith(".tmp"):
            folder.drop(name)


def as_json(content: dict[str, Any]) -> bytes:
    """Return the content of a JSON file. Names of files may hold what UTF-8 cannot, so it is ASCII."""
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
    """Hold the folder for one shard of this run, and yield it with the configuration that it was begun with.

    Args:
        target: of `target_of`.
        configuration: of the run. What is in `_MAY_DIFFER` may change on the way.
        shard: whose chunks are done.
        resume: go on where a run was stopped.
        reread: take input files, too, that have changed since: same paths, other content.

    Raises:
        InputError: another run has it, or is at work on the shard.
    """
    configuration = json.loads(json.dumps(configuration))  # as it is read again
    try:
        folder = _made(target)
        there = [name for name in folder.names() if not name.startswith(".")]
    except OSError as error:
        raise InputError(f"{target}: cannot be made or read ({error.strerror})") from None
    if there and not folder.exists(_RUN):
        raise InputError(f"{folder.path}: got a folder with {sorted(there)[:3]}, expected an empty one")
    with folder.locked(shard.lock, _at_work(folder, shard.lock)):
        before, begun = configuration, folder.exists(_RUN)
        if begun:
            try:
                with folder.open(_RUN) as file:
                    before = json.loads(file.read())
            except (OSError, ValueError) as error:
                raise InputError(f"{folder.path}/{_RUN}: cannot be read ({error})") from None
            changes = list(_differences(_compared(before, reread), _compared(configuration, reread)))
            if changes:
                mendable = not any(_differences(_compared(before, True), _compared(configuration, True)))
                hint = "; files that changed are audited anew with --reread" if mendable else ""
                raise InputError(f"{folder.path}: was begun in another way; " + "; ".join(changes[:5]) + hint)
            if folder.exists(shard.state) and not resume:
                raise InputError(f"{folder.path}: got results there, expected an empty folder, or resume")
            # Groups stay those of the first time: by them chunks are known.
            for old, new in zip(before["inputs"], configuration["inputs"], strict=True):
                new["group"] = old.get("group", new["group"])
            groups = [new["group"] for new in configuration["inputs"]]
            if groups != sorted(groups) or {*groups} != {*range(len({*groups}))}:
                raise InputError(f"{folder.path}/{_RUN}: damaged, its groups are {groups[:20]}")
        if before["inputs"] != configuration["inputs"]:
            _forget_other_shards(folder, shard)
        if not begun or before != configuration:
            # No other shard writes this file meanwhile, so that what a killed one left half written can go.
            folder.commit(_RUN, as_json(configuration), check=lambda: _sweep_files(folder, f".{_RUN}."))
        folder.commit(shard.state, as_json({"complete": False}))
        yield folder, configuration


def _made(target: pathlib.Path | StoreFolder) -> Folder:
    if isinstance(target, StoreFolder):
        target.store.check_bucket(target.path)
        return target
    return LocalFolder.made(target)


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


def _forget_other_shards(folder: Folder, shard: Shard) -> None:
    """Take back that other shards are complete: inputs have changed.

    Raises:
        InputError: another process is at work on one.
    """
    for other in sorted(filter(_STATE_NAME.fullmatch, folder.names())):
        if other != shard.state:
            lock = f".{other.removesuffix('.json')}.lock"
            with folder.locked(lock, _at_work(folder, lock)):
                folder.drop(other)


def _at_work(folder: Folder, lock: str) -> str:
    _, index, _, count = lock.strip(".").removesuffix(".lock").split("-")
    return f"{folder.path}: another process is at work on shard {index}/{count}"


def _differences(before: Any, now: Any, where: str = "") -> Iterator[str]:
    """Yield each difference between two configurations, in words."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            yield from _differences(before.get(name), now.get(name), f"{where}.{name}" if where else name)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for at, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from _differences(old, new, f"{where}[{at}]")
    elif where == "inputs" and isinstance(before, list) and isinstance(now, list):
        yield from _other_inputs(before, now)
    elif before != now:
        yield f"{where}: was {json.dumps(before):.60}, is {json.dumps(now):.60}"


_NAMED = 3
"""Number of paths that are named of those which are gone, and of those which are new."""


def _other_inputs(before: list[Any], now: list[Any]) -> Iterator[str]:
    """Yield which inputs are gone, and which are new, where it is not the same number of them."""
    old, new = ([str(each.get("path")) for each in inputs] for inputs in (before, now))
    yield f"inputs: were {len(old)}, are {len(new)}"
    for what, some, others in (("gone", old, {*new}), ("new", new, {*old})):
        paths = [path for path in some if path not in others]
        if paths:
            more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
            yield f"{what}: {', '.join(map(repr, paths[:_NAMED]))}{more}"
