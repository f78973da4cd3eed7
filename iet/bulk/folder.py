"""The folder that a run writes: which chunks stand, who is at work on a shard, how a run was begun."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from iet.errors import InputError
from iet.marks.files import write_file

_DOCUMENTS_NAME = re.compile(r"documents-(\d{6,})\.parquet")
_TEMPORARY_NAME = re.compile(r"\.(?:documents|segments|quarantine)-(\d{6,})\.\w+\.[0-9a-f]+\.tmp")


def path_of(folder: pathlib.Path, kind: str, index: int) -> pathlib.Path:
    """Return where the documents, segments or quarantined records of a chunk are."""
    return folder / f"{kind}-{index:06d}.{'jsonl' if kind == 'quarantine' else 'parquet'}"


def chunks_done(folder: pathlib.Path) -> set[int]:
    """Return the chunks whose documents stand."""
    return {int(found[1]) for name in os.listdir(folder) if (found := _DOCUMENTS_NAME.fullmatch(name))}


def sweep(folder: pathlib.Path, mine: range, state: str) -> None:
    """Remove what a killed run of this shard has left half written."""
    for name in os.listdir(folder):
        found = _TEMPORARY_NAME.fullmatch(name)
        if (found and int(found[1]) in mine) or (name.startswith(f".{state}.") and name.endswith(".tmp")):
            (folder / name).unlink(missing_ok=True)


def commit(target: pathlib.Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Write a file whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    try:
        write_file(target, content)
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror or error})") from None


def as_json(content: dict[str, Any]) -> bytes:
    """Return the content of a JSON file."""
    return json.dumps(content, ensure_ascii=False, indent=1).encode() + b"\n"


@contextlib.contextmanager
def claimed(
    folder: pathlib.Path, configuration: dict[str, Any], index: int, count: int, resume: bool
) -> Iterator[pathlib.Path]:
    """Hold the folder for one shard of this very run, and return where its summary goes.

    Raises:
        InputError: another run has it, or is at work on the shard.
    """
    configuration = json.loads(json.dumps(configuration))  # as it is read again
    run, state = folder / "run.json", folder / f"shard-{index}-of-{count}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = [name for name in os.listdir(folder) if not name.startswith(".")]
    except OSError as error:
        raise InputError(f"{folder}: cannot be made or read ({error.strerror})") from None
    if there and not run.exists():
        raise InputError(f"{folder}: got a folder with {sorted(there)[:3]}, expected an empty one")
    with _locked(
        folder / f".{state.stem}.lock", f"{folder}: another process is at work on shard {index}/{count}"
    ):
        if run.exists():
            try:
                before = json.loads(run.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise InputError(f"{run}: cannot be read ({error})") from None
            changes = list(_differences(before, configuration))
            if changes:
                raise InputError(f"{folder}: was begun in another way; " + "; ".join(changes[:5]))
            if state.exists() and not resume:
                raise InputError(f"{folder}: got results there, expected an empty folder, or resume")
        else:
            commit(run, as_json(configuration))
        commit(state, as_json({"complete": False}))
        yield state


@contextlib.contextmanager
def _locked(path: pathlib.Path, refusal: str) -> Iterator[None]:
    # The lock goes with the process, however it ends. Without such locks (Windows, some network file systems)
    # it is up to the user not to start a shard twice; even that doubles nothing.
    if sys.platform == "win32":
        yield
        return
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
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
    """Say what differs between two configurations."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            yield from _differences(before.get(name), now.get(name), f"{where}.{name}" if where else name)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for at, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from _differences(old, new, f"{where}[{at}]")
    elif before != now:
        yield f"{where}: was {json.dumps(before):.60}, is {json.dumps(now):.60}"
