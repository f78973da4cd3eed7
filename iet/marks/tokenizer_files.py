"""Where a tokenizer is found: files, folders, the one that ships with the package, the Hugging Face Hub."""

from __future__ import annotations

import gzip
import pathlib
import re
from typing import TYPE_CHECKING

from iet.errors import TokenizerMismatch, missing
from iet.marks.files import write_file

if TYPE_CHECKING:
    import tokenizers

DEMO_SOURCE = "iet:demo"
"""The source name of the tokenizer that ships with the package."""

DEMO_MODEL = pathlib.Path(__file__).parents[1] / "demo" / "model"
"""Folder of that tokenizer and its model."""

HUB = "hf:"
"""Before the id of a repository on the Hub, in the name of a source."""

SUFFIX = ".tokenizer.json.gz"
"""End of the name of a tokenizer that goes along with a registry."""

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def is_path(source: str) -> bool:
    """Tell whether a source is named by where it lies on this machine."""
    return source != DEMO_SOURCE and not source.startswith(HUB)


def is_hub_id(name: str) -> bool:
    """Tell whether a name can be the id of a repository on the Hub, owner/name."""
    return bool(_HUB_ID.fullmatch(name)) and not name.endswith((".json", ".gz"))


def open_source(source: str) -> tuple[str, tokenizers.Tokenizer]:
    """Return the name that finds a tokenizer again, and the tokenizer.

    Args:
        source: path of a `tokenizer.json`, also of a gzipped one, or of a folder that holds one; "iet:demo";
            or, where no file has that name, the id of a repository on the Hub, "owner/name" or
            "hf:owner/name", of which huggingface_hub has `tokenizer.json` in its cache or fetches it.

    Raises:
        TokenizerMismatch: nothing readable is there.
        BackendUnavailable: an id of the Hub, without huggingface_hub.
    """
    path = DEMO_MODEL if source == DEMO_SOURCE else pathlib.Path(source)
    name = source
    try:
        path.stat()
    except (OSError, ValueError) as error:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):  # too long for a name, say
            why = getattr(error, "strerror", None) or str(error)
            raise TokenizerMismatch(f"tokenizer: {source!r:.80} cannot be read ({why})") from None
    if path.is_dir():
        path = path / "tokenizer.json"
        if not path.is_file():
            raise TokenizerMismatch(
                f"tokenizer: got the folder {source!r}, in which there is no tokenizer.json, expected one"
            )
    if not path.is_file():
        known = source.removeprefix(HUB)
        if not is_hub_id(known):
            raise TokenizerMismatch(
                f"tokenizer: {source!r} is not there; expected a tokenizer.json, its folder, or the id of a"
                " repository on the Hub, owner/name"
            )
        name, path = f"{HUB}{known}", _from_hub(known)
    return name, _read(path, source)


def _read(path: pathlib.Path, source: str) -> tokenizers.Tokenizer:
    import tokenizers

    try:
        if path.suffix == ".gz":
            return tokenizers.Tokenizer.from_str(gzip.decompress(path.read_bytes()).decode())
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises plain Exception
        raise TokenizerMismatch(f"tokenizer: {source!r} is no tokenizer.json ({error})") from None


def _from_hub(name: str) -> pathlib.Path:
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        what = f"tokenizer: {name!r} is no file here; to ask the Hub for it: {error}"
        raise missing(what, "hub") from None
    try:
        return pathlib.Path(hf_hub_download(name, "tokenizer.json"))
    except Exception as error:  # it raises those of its own, of requests or httpx, and OSError
        said = " ".join(str(error).split())
        raise TokenizerMismatch(
            f"tokenizer: {name!r} is no file here, and the Hub did not give it ({said:.300})"
        ) from None


def save(path: pathlib.Path, tokenizer: tokenizers.Tokenizer) -> None:
    """Write a tokenizer gzipped, whole or not at all: the same bytes for the same tokenizer."""
    write_file(path, gzip.compress(tokenizer.to_str().encode(), mtime=0))
