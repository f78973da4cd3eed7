"""Files of a run: results, and append-only JSON lines."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from tqdm import tqdm

from benchmarks.recording import environment
from iet.errors import InputError
from iet.marks.files import write_file
from iet.marks.scheme import canonical_digest

Item = TypeVar("Item")


def text_of(path: pathlib.Path) -> str:
    """Return the text of a UTF-8 file."""
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def with_progress(items: Iterable[Item], unit: str = "setting") -> Iterator[Item]:
    """Yield items with a progress bar on stderr."""
    pending = list(items)
    yield from tqdm(pending, desc=unit, unit=unit, disable=None if len(pending) > 1 else True)


def content(configuration: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return the JSON content of a result: configuration, its digest, environment, and the measurements."""
    return {
        "configuration": configuration,
        "digest": canonical_digest(dict(configuration)),
        "environment": environment("torch", "transformers"),
        **more,
    }


def cached(path: pathlib.Path, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the content of a JSON file; if the file does not exist, compute it and write it first."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, (json.dumps(compute()) + "\n").encode())
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise InputError(f"{path}: damaged ({error}); remove the file to compute it again") from None


def check_overwrite(path: pathlib.Path, configuration: Mapping[str, Any]) -> None:
    """Raise InputError if `path` holds a result with another configuration."""
    if not path.is_file():
        return
    try:
        existing = dict(json.loads(path.read_text(encoding="utf-8"))["configuration"])
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{path}: not a result of an experiment; choose another --out, or --overwrite"
        ) from None
    new = json.loads(json.dumps(configuration))  # tuples become lists
    names = [name for name in {**existing, **new} if existing.get(name, "") != new.get(name, "")]
    if names:
        raise InputError(
            f"{path}: holds a run that differs in {', '.join(names)}; choose another --out, or --overwrite"
        )


def note(path: pathlib.Path, **fields: object) -> str:
    """Return the text of a file with its fields filled in by `str.format`."""
    return path.read_text(encoding="utf-8").rstrip("\n").format(**fields)


class JsonLines:
    """A file of JSON objects, one a line, that is only appended to.

    A killed run can leave an incomplete last line. It is removed when the file is opened, so that
    work is repeated.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.objects: list[dict[str, Any]] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes() if path.is_file() else b""
        complete = data.rfind(b"\n") + 1
        if complete < len(data):
            os.truncate(path, complete)
        for number, line in enumerate(data[:complete].splitlines(), 1):
            try:
                self.objects.append(dict(json.loads(line)))
            except (ValueError, TypeError) as error:
                raise InputError(
                    f"{path}, line {number}: damaged ({error}), expected a JSON object"
                ) from None

    def append(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """Append objects; they are on disk when this returns."""
        lines = [json.dumps(content, separators=(",", ":")) + "\n" for content in objects]
        with open(self.path, "ab") as file:
            file.write("".join(lines).encode())
            file.flush()
            os.fsync(file.fileno())

    def check_setting(self, setting: Mapping[str, Any], digest: str) -> list[dict[str, Any]]:
        """Return the objects after the first line, which holds the setting; write that line into a new file.

        Raises:
            InputError: the file was written with another setting.
        """
        if not self.objects:
            self.append([{"setting": setting, "digest": digest}])
        elif self.objects[0].get("digest") != digest:
            raise InputError(f"{self.path}, line 1: expected digest {digest}, the setting of this run")
        return self.objects[1:]
