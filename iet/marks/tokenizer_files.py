"""Read and write tokenizers: files, folders, the demo tokenizer of the package, the Hugging Face Hub."""

from __future__ import annotations

import gzip
import os
import pathlib
import re
from typing import TYPE_CHECKING

from iet.errors import BackendUnavailable, InputError, TokenizerMismatch, missing
from iet.marks import tokenizer_formats
from iet.marks.files import write_file

if TYPE_CHECKING:
    import tokenizers

DEMO_SOURCE = "iet:demo"
"""The source name of the package's own tokenizer."""

DEMO_MODEL = pathlib.Path(__file__).parents[1] / "demo" / "model"
"""Folder of the demo tokenizer and its model."""

HUB = "hf:"
"""Prefix of a source that is the id of a repository on the Hub."""

SUFFIX = ".tokenizer.json.gz"
"""Suffix of a tokenizer that is exported together with a registry."""

_SUFFIXES = (".json", ".gz", ".model", ".tiktoken", ".gguf")  # of files

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def is_path(source: str) -> bool:
    """Return whether a source is a path on this machine."""
    return source != DEMO_SOURCE and not source.startswith(HUB)


def is_hub_id(name: str) -> bool:
    """Return whether a name can be the id of a repository on the Hub, owner/name."""
    return bool(_HUB_ID.fullmatch(name)) and not name.endswith(_SUFFIXES)


def open_source(source: str) -> tuple[str, tokenizers.Tokenizer]:
    """Open a tokenizer.

    Args:
        source: path of a `tokenizer.json`, plain or gzipped, of another format
            (`iet.marks.tokenizer_formats`), or of a folder that holds one; "iet:demo"; or, if no file has
            that name, the id of a repository on the Hub, "owner/name" or "hf:owner/name". huggingface_hub
            reads `tokenizer.json` from its cache or downloads it.

    Returns:
        The source name to store, and the tokenizer.

    Raises:
        TokenizerMismatch: the source does not exist or cannot be read.
        BackendUnavailable: a package is missing: huggingface_hub for an id of the Hub, or one that reads the
            format.
    """
    path = DEMO_MODEL if source == DEMO_SOURCE else pathlib.Path(source)
    name = source
    if os.path.isdir(path):
        present = [sorted(path.glob(name)) for name in tokenizer_formats.NAMES]
        files = next((found for found in present if found), [])
        if len(files) != 1:
            wrong = f"are {', '.join(file.name for file in files)}" if files else "is no tokenizer.json"
            raise TokenizerMismatch(
                f"tokenizer: got the folder {source!r}, in which there {wrong}, expected one, or a"
                f" {', '.join(tokenizer_formats.NAMES[1:])}"
            )
        path = files[0]
    if not os.path.isfile(path):
        known = source.removeprefix(HUB)
        if not is_hub_id(known):
            raise TokenizerMismatch(
                f"tokenizer: {source!r:.200} does not exist or cannot be read; expected a tokenizer.json, its"
                " folder, or the id of a repository on the Hub, owner/name"
            )
        name, path = f"{HUB}{known}", _from_hub(known)
    return name, _read(path, source)


def _read(path: pathlib.Path, source: str) -> tokenizers.Tokenizer:
    import tokenizers

    try:
        if path.suffix == ".gz":
            return tokenizers.Tokenizer.from_str(gzip.decompress(path.read_bytes()).decode())
        converted = tokenizer_formats.read(path)
        return tokenizers.Tokenizer.from_file(str(path)) if converted is None else converted
    except BackendUnavailable:
        raise
    except InputError as error:
        raise TokenizerMismatch(f"tokenizer: {source!r} cannot be read: {error}") from None
    except Exception as error:  # tokenizers raises plain Exception
        raise TokenizerMismatch(f"tokenizer: {source!r} is no tokenizer.json ({error})") from None


def _from_hub(name: str) -> pathlib.Path:
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        what = f"tokenizer: {name!r} is no file here; to ask the Hub for it: {error}"
        raise missing(what, "hub") from None
    try:
        return pathlib.Path(hf_hub_download(name, "tokenizer.json"))
    except Exception as error:  # its own errors, those of requests or httpx, and OSError
        reason = " ".join(str(error).split())
        raise TokenizerMismatch(
            f"tokenizer: {name!r} is no file here, and the Hub did not give it ({reason:.300})"
        ) from None


def save(path: pathlib.Path, tokenizer: tokenizers.Tokenizer) -> None:
    """Write a tokenizer atomically, gzipped: equal tokenizers give equal bytes."""
    write_file(path, gzip.compress(tokenizer.to_str().encode(), mtime=0))
