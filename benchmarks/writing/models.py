"""Load a language model of transformers, to write with."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterable
from typing import Any

import torch
import transformers

from iet.demo.conversation import MODEL
from iet.errors import InputError
from iet.marks.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, eq=False)
class Loaded:
    model: Any  # of transformers, as is the tokenizer
    tokenizer: Any
    reader: Tokenizer  # the same tokenizer as iet reads text with
    name: str  # path or id that it was loaded from
    digest: str  # of parameters and tokenizer
    chat: bool  # whether the tokenizer has a chat template
    positions: int  # maximum number of tokens of prompt and text together

    @property
    def ends(self) -> list[int]:
        config = self.model.generation_config
        ends = config.eos_token_id if config.eos_token_id is not None else self.tokenizer.eos_token_id
        return [ends] if isinstance(ends, int) else list(ends or ())

    @property
    def barred(self) -> list[int]:
        """The ids that are never drawn: special ones that do not end a text."""
        return sorted({*self.reader.special_ids} - {*self.ends})

    @property
    def pad(self) -> int:
        """The id that fills up shorter rows."""
        padding = self.tokenizer.pad_token_id
        return int(padding if padding is not None else (self.ends or [0])[0])

    def templated(self, system: str, user: str) -> list[int]:
        """Return two messages as ids, merged if the chat template knows no system message."""
        import jinja2

        def ids(*messages: tuple[str, str]) -> list[int]:
            chat = [{"role": role, "content": content} for role, content in messages]
            encoded = self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
            return list(encoded)

        try:
            return ids(("system", system), ("user", user))
        except jinja2.TemplateError:
            return ids(("user", f"{system}\n\n{user}"))


def as_said(reader: Tokenizer, ids: Iterable[int]) -> str:
    """Return the text of a turn as it is joined with others."""
    # A cut inside a character decodes to U+FFFD, which was not sampled.
    return reader.decode([int(i) for i in ids]).strip().strip("\ufffd").strip()


def load(
    model: str | os.PathLike[str] = MODEL, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Loaded:
    """Load a causal language model with a fast tokenizer, from a folder or by its id.

    It runs on `device`: as `dtype` on the CPU, elsewhere in the type that it was saved in.
    """
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # an assertion: torch was built without CUDA
        why = (str(error).splitlines() or ["not available"])[0]
        raise InputError(f"device: got {device!r}, expected one that torch can use here ({why})") from None
    bars: Any = transformers.utils.logging
    bar_was_enabled = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        kind: Any = dtype if torch.device(device).type == "cpu" else "auto"
        model_loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=kind)
    except (OSError, ValueError) as error:
        raise InputError(f"model: {str(model)!r} holds no causal language model ({error})") from None
    finally:
        if bar_was_enabled:
            bars.enable_progress_bar()
    model_loaded = model_loaded.to(device)
    model_loaded.train(False)
    reader = Tokenizer(tokenizer)
    size = model_loaded.get_output_embeddings().weight.shape[0]
    if size < reader.vocab_size:
        raise InputError(
            f"model: {str(model)!r} has {size} output ids, expected the tokenizer's {reader.vocab_size}"
        )
    positions = getattr(model_loaded.config.get_text_config(), "max_position_embeddings", None) or 1 << 20
    name = "iet:demo" if model == MODEL else str(model)
    chat = bool(getattr(tokenizer, "chat_template", None))
    return Loaded(model_loaded, tokenizer, reader, name, _digest(model_loaded, reader), chat, positions)


def _digest(model: Any, reader: Tokenizer) -> str:
    """BLAKE2b-256 of names, types, shapes and bytes of the parameters, and the tokenizer's digest."""
    hasher = hashlib.blake2b(reader.digest.encode(), digest_size=32)
    for name, values in sorted(model.state_dict().items()):
        hasher.update(f"{name} {values.dtype} {list(values.shape)}".encode())
        hasher.update(values.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy())
    return hasher.hexdigest()
