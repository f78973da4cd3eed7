"""Read and write tokenizers: files, folders, the demo tokenizer of the package, the Hugging Face Hub."""

from __future__ import annotations

import gzip
import os
import pathlib
import re
from typing import TYPE_CHECKING

from iet.errors import TokenizerMismatch, missing
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

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def is_path(source: str) -> bool:
    """Return whether a source is a path on this machine."""
    return source != DEMO_SOURCE and not source.startswith(HUB)


def is_hub_id(name: str) -> bool:
    """Return whether a name can be the id of a repository on the Hub, owner/name."""
    return bool(_HUB_ID.fullmatch(name)) and not name.endswith((".json", ".gz"))


def open_source(source: str) -> tuple[str, tokenizers.Tokenizer]:
    """Open a tokenizer.

    Args:
        source: path of a `tokenizer.json`, plain or gzipped, or of a folder that holds one; "iet:demo"; or,
            if no file has that name, the id of a repository on the Hub, "owner/name" or "hf:owner/name".
            huggingface_hub reads `tokenizer.json` from its cache or downloads it.

    Returns:
        The source name to store, and the tokenizer.

    Raises:
        TokenizerMismatch: the source does not exist or cannot be read.
        BackendUnavailable: `source` is an id of the Hub, and huggingface_hub is not installed.
    """
    path = DEMO_MODEL if source == DEMO_SOURCE else pathlib.Path(source)
    name = source
    if os.path.isdir(path):
        path = path / "tokenizer.json"
        if not os.path.isfile(path):
            raise TokenizerMismatch(
                f"tokenizer: got the folder {source!r}, in which there is no tokenizer.json, expected one"
            )
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
        return tokenizers.Tokenizer.from_file(str(path))
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
