"""Write the turns of agents with a language model: what a protocol asks for, and transformers behind it.

An engine is anything with `generate(rows, agents)`. `TransformersEngine` samples with transformers' models on
the CPU or a GPU. For models of the Llama architecture it keeps keys and values in buffers that are allocated
once, so that no step copies them, and its queries read the keys of their group where they lie; other models
run through their own cache.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from benchmarks.paper.logs import Setting
from benchmarks.paper.marks import Marker
from benchmarks.paper.prompts import Prompt, fitted
from iet.demo.conversation import MODEL
from iet.errors import BackendUnavailable, InputError
from iet.marks.tokenizer import Tokenizer

try:
    import torch
    import transformers
    from torch import Tensor
    from transformers import AttentionInterface
    from transformers.cache_utils import Cache
except ImportError as _error:
    raise BackendUnavailable(
        f'generating text: {_error}; pip install "implicit-execution-tracing[bench]"'
    ) from None

from benchmarks.accuracy.sampler import draw

ENTROPY_EVERY = 8
"""Steps between two measurements of the entropy."""

_ATTENTION = "padded_batch"
_BUFFERED = ("llama",)  # architectures whose attention `_attention` computes
_TOP = 64  # ids among which the nucleus is looked for first, then among eight times as many


@dataclasses.dataclass(frozen=True)
class Row:
    """One turn that is to be written.

    Attributes:
        prompt: what it is written from.
        seed: of its draws; rows of a batch do not share any.
        fewest, most: tokens.
    """

    prompt: Prompt
    seed: int
    fewest: int
    most: int


@dataclasses.dataclass(frozen=True)
class Generated:
    """What was written.

    Attributes:
        ids: as sampled, without the end token; never empty.
        text: of the ids without special tokens and blanks around it; may be empty.
        entropy: mean nats of the distribution before the mark, over every eighth token.
    """

    ids: tuple[int, ...]
    text: str
    entropy: float = float("nan")


class Engine(Protocol):
    """Writes turns."""

    def generate(self, rows: Sequence[Row], agents: Sequence[str | None]) -> list[Generated]:
        """Write one turn per row, marked with the key of the agent of that name (`marks.agent_name`)."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Loaded:
    """A language model that is ready to write.

    Attributes:
        model, tokenizer: of transformers.
        reader: the same tokenizer as iet reads text with.
        name: path or id that it was loaded from.
        digest: of parameters and tokenizer.
        chat: whether the tokenizer has a chat template.
        positions: the most tokens of prompt and turn together.
    """

    model: Any
    tokenizer: Any
    reader: Tokenizer
    name: str
    digest: str
    chat: bool
    positions: int


def load(model: str | os.PathLike[str] = MODEL, device: str = "cpu") -> Loaded:
    """Load a causal language model of transformers.

    Args:
        model: folder or id of a model with a fast tokenizer.
        device: where it runs: in float32 on the CPU, elsewhere in the type that it was saved in.

    Raises:
        InputError: there is no such device, model or fast tokenizer, or its vocabulary is smaller than the
            tokenizer's.
    """
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # an assertion: torch was built without CUDA
        why = (str(error).splitlines() or ["not available"])[0]
        raise InputError(f"device: got {device!r}, expected one that torch can use here ({why})") from None
    bars: Any = transformers.utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        dtype = torch.float32 if torch.device(device).type == "cpu" else "auto"
        found: Any = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
    except (OSError, ValueError) as error:
        raise InputError(f"model: {str(model)!r} holds no causal language model ({error})") from None
    finally:
        if shown:
            bars.enable_progress_bar()
    found = found.to(device)
    found.train(False)
    reader = Tokenizer(tokenizer)
    size = found.get_output_embeddings().weight.shape[0]
    if size < reader.vocab_size:
        raise InputError(
            f"model: {str(model)!r} has {size} output ids, expected the tokenizer's {reader.vocab_size}"
        )
    positions = getattr(found.config.get_text_config(), "max_position_embeddings", None) or 1 << 20
    name = "iet:demo" if model == MODEL else str(model)
    chat = bool(getattr(tokenizer, "chat_template", None))
    return Loaded(found, tokenizer, reader, name, _digest(found, reader), chat, positions)


def _digest(model: Any, reader: Tokenizer) -> str:
    """BLAKE2b-256 of names, types, shapes and bytes of the parameters, and the tokenizer's digest."""
    found = hashlib.blake2b(reader.digest.encode(), digest_size=32)
    for name, values in sorted(model.state_dict().items()):
        found.update(f"{name} {values.dtype} {list(values.shape)}".encode())
        found.update(values.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()


class TransformersEngine:
    """Samples turns with a model of transformers.

    Per step: raw logits -> mark "raw" -> temperature -> top-p -> all other marks -> one draw. Special tokens
    other than the end are never drawn, and the end not before `Row.fewest` tokens. A row that has ended
    goes on unseen until all have.

    Args:
        loaded: the model.
        setting: temperature, top_p, prompt_tokens, and the mark with its keys.
        batch: rows that are sampled together.
        on_logits: called at every eighth step with the final unmarked logits [B, V] and the rows that have
            not ended [B]; `equal_delta` is fed by it.

    Raises:
        InputError: prompt and turn are longer than the model's positions, or see `Marker`.
    """

    def __init__(
        self,
        loaded: Loaded,
        setting: Setting,
        *,
        batch: int = 128,
        on_logits: Callable[[Tensor, Tensor], object] | None = None,
    ) -> None:
        longest = setting.prompt_tokens + setting.turn_tokens[1]
        if longest > loaded.positions:
            raise InputError(
                f"prompt_tokens, turn_tokens: got {setting.prompt_tokens} and {setting.turn_tokens[1]},"
                f" expected at most {loaded.positions} together, the model's positions"
            )
        if batch < 1:
            raise InputError(f"batch: got {batch}, expected at least 1")
        self.loaded, self.setting, self.batch, self.on_logits = loaded, setting, batch, on_logits
        self.marker = Marker(setting, loaded.reader)
        config = loaded.model.generation_config
        ends = config.eos_token_id if config.eos_token_id is not None else loaded.tokenizer.eos_token_id
        self._ends = [ends] if isinstance(ends, int) else list(ends or ())
        self._barred = sorted({*loaded.reader.special_ids} - {*self._ends})

    def generate(self, rows: Sequence[Row], agents: Sequence[str | None]) -> list[Generated]:
        """Write one turn per row; see `Engine`.

        Deterministic on one machine and version of torch, given the batches. Rows of like length are sampled
        together; a row's draws do not depend on the others.

        Raises:
            InputError: not one agent per row, or a prompt that cannot be cut to `prompt_tokens`.
        """
        if len(rows) != len(agents):
            raise InputError(f"agents: got {len(agents)} for {len(rows)} rows, expected one per row")
        prompts = [self.prompt_ids(row.prompt) for row in rows]
        order = sorted(range(len(rows)), key=lambda i: (-len(prompts[i]), i))
        found: dict[int, Generated] = {}
        with _attention_set(self.loaded.model):
            for start in range(0, len(order), self.batch):
                some = order[start : start + self.batch]
                written = self._sample(
                    [prompts[i] for i in some], [rows[i] for i in some], [agents[i] for i in some]
                )
                found.update(zip(some, written, strict=True))
        return [found[i] for i in range(len(rows))]

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Return a prompt as the model gets it, cut to the setting's budget."""
        loaded, reader = self.loaded, self.loaded.reader

        def count(text: str) -> int:
            return len(reader.backend.encode(text, add_special_tokens=False).ids)

        def last(text: str, tokens: int) -> str:
            encoding = reader.encode(text)
            if not tokens:
                return ""
            return text[int(encoding.characters([len(encoding.token_ids) - tokens])[0, 0]) :].lstrip()

        cut = fitted(prompt, self.setting.prompt_tokens, count, last, chat=loaded.chat)
        if not loaded.chat:
            ids = list(loaded.tokenizer(cut.plain).input_ids)
        else:
            ids = templated(loaded.tokenizer, cut.messages)
        room = loaded.positions - self.setting.turn_tokens[1]
        return ids[max(0, len(ids) - room) :]

    @torch.inference_mode()
    def _sample(self, prompts: list[list[int]], rows: list[Row], agents: list[str | None]) -> list[Generated]:
        setting, device = self.setting, self.loaded.model.device
        count, longest = len(rows), max(map(len, prompts))
        most = max(row.most for row in rows)
        ids = torch.zeros(count, longest + most, dtype=torch.int64)
        real = torch.zeros(count, longest + most, dtype=torch.bool)
        real[:, longest:] = True
        pad = self.loaded.tokenizer.pad_token_id
        ids[:] = pad if pad is not None else (self._ends or [0])[0]
        for i, prompt in enumerate(prompts):
            ids[i, longest - len(prompt) : longest] = torch.tensor(prompt)
            real[i, longest - len(prompt) : longest] = True
        ids, real = ids.to(device), real.to(device)
        uniforms = np.stack([np.random.default_rng(row.seed).random((most, 2)) for row in rows])
        u = torch.from_numpy(uniforms.astype(np.float32)).permute(1, 2, 0)[..., None].to(device)
        u.clamp_(max=1 - 2**-24)  # rounding to float32 can reach 1
        fewest = torch.tensor([row.fewest for row in rows], device=device)
        limit = torch.tensor([row.most for row in rows], device=device)
        mark = self.marker.processor(agents)
        raw, after = (mark, None) if self.marker.mark.raw else (None, mark)
        steps = _steps(self.loaded.model, ids, real, longest)
        ended = torch.zeros(count, dtype=torch.bool, device=device)
        length = torch.zeros(count, dtype=torch.int64, device=device)
        entropy = torch.zeros(count, dtype=torch.float64, device=device)
        measured = torch.zeros(count, dtype=torch.int64, device=device)
        ends = torch.tensor(self._ends, dtype=torch.int64, device=device)
        for t, logits in enumerate(steps):
            logits[:, self._barred] = -torch.inf
            if len(ends):
                too_early = (fewest > t)[:, None].expand(-1, len(ends))
                logits[:, ends] = logits[:, ends].masked_fill(too_early, -torch.inf)
            seen = ids[:, : longest + t]
            measure = t % ENTROPY_EVERY == 0
            final = None
            if raw is None or measure:
                final = nucleus(logits / setting.temperature, setting.top_p)
            if measure and final is not None:
                entropy += torch.where(ended, 0.0, _entropy(final))
                measured += ~ended
                if self.on_logits is not None:
                    self.on_logits(final, ~ended)
            if raw is not None:
                final = nucleus(raw(seen, logits) / setting.temperature, setting.top_p)
            assert final is not None
            if after is not None:
                final = after(seen, final)
            chosen = draw(final, u[t])
            ids[:, longest + t] = chosen
            ended |= torch.isin(chosen, ends)
            length += ~ended
            ended |= length >= limit
            if t + 1 == most or bool(ended.all()):
                break
        written = ids[:, longest:].tolist()
        means = (entropy / measured.clamp(min=1)).tolist()
        return [
            Generated(tuple(row[:size]), self._text(row[:size]), mean)
            for row, size, mean in zip(written, length.tolist(), means, strict=True)
        ]

    def _text(self, ids: list[int]) -> str:
        # A cut inside a character decodes to U+FFFD, which nobody sampled.
        return self.loaded.reader.decode(ids).strip().strip("\ufffd").strip()


def templated(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    import jinja2

    def ids(shown: list[dict[str, str]]) -> list[int]:
        return list(tokenizer.apply_chat_template(shown, add_generation_prompt=True, return_dict=False))

    try:
        return ids(messages)
    except jinja2.TemplateError:  # as where a template knows no system message
        merged = "\n\n".join(message["content"] for message in messages)
        return ids([{"role": "user", "content": merged}])


def nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Return logits with -inf outside the nucleus: the fewest likeliest ids whose probabilities reach top_p.

    Args:
        logits: float [B, V]; float32 comes back.
        top_p: above 0; 1 keeps all.

    Cost: O(V) where few ids are enough, else a sort.
    """
    logits = logits.float()
    if top_p >= 1:
        return logits
    return _nucleus(logits, top_p, min(_TOP, logits.shape[1]))


def _nucleus(logits: Tensor, top_p: float, width: int) -> Tensor:
    top, at = logits.topk(width)
    p = (top - logits.logsumexp(-1, keepdim=True)).exp()
    before = p.cumsum(-1) - p
    kept = torch.full_like(logits, -torch.inf)
    kept.scatter_(1, at, top.masked_fill(before >= top_p, -torch.inf))
    short = before[:, -1] + p[:, -1] < top_p
    if width < logits.shape[1] and bool(short.any()):
        kept[short] = _nucleus(logits[short], top_p, min(8 * width, logits.shape[1]))
    return kept


def _entropy(logits: Tensor) -> Tensor:
    entropy: Tensor = torch.special.entr(torch.softmax(logits, -1)).sum(-1).double()
    return entropy


# ---------------------------------------------------------------- steps of a model


def _steps(model: Any, ids: Tensor, real: Tensor, longest: int) -> Iterator[Tensor]:
    """Yield the raw float32 logits [B, V] of one position after another; the caller writes it into `ids`.

    Args:
        model: of transformers.
        ids: [B, P + M], prompts at the right end of the first P.
        real: bool, likewise: no padding.
        longest: P.
    """
    buffered = model.config.model_type in _BUFFERED
    return (_buffered_steps if buffered else _plain_steps)(model, ids, real, longest)


def _plain_steps(model: Any, ids: Tensor, real: Tensor, longest: int) -> Iterator[Tensor]:
    places = (real.cumsum(1) - 1).clamp(min=0)
    more = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    cache, start = None, 0
    for end in range(longest, ids.shape[1]):
        found = model(
            input_ids=ids[:, start:end],
            attention_mask=real[:, :end].long(),
            position_ids=places[:, start:end],
            past_key_values=cache,
            use_cache=True,
            **more,
        )
        cache, start = found.past_key_values, end
        yield found.logits[:, -1].float()


def _buffered_steps(model: Any, ids: Tensor, real: Tensor, longest: int) -> Iterator[Tensor]:
    places = (real.cumsum(1) - 1).clamp(min=0)
    head = model.get_output_embeddings()
    cache = _Buffers(*ids.shape)
    bias = torch.zeros(real.shape, dtype=model.dtype, device=ids.device)
    bias.masked_fill_(~real, -torch.inf)
    last = []
    # Rows come in falling length, so parts of a batch have little padding. A part's scores stay in the cache.
    step = max(1, _PREFILL_TOKENS // longest)
    for low in range(0, len(ids), step):
        rows = slice(low, min(low + step, len(ids)))
        start = longest - max(2, int(real[rows, :longest].sum(1).max()))  # one query is taken for a step
        cache.at(rows, start, longest)
        size = longest - start
        causal = torch.ones(size, size, dtype=torch.bool, device=ids.device).tril()
        itself = torch.eye(size, dtype=torch.bool, device=ids.device)
        mask = causal & (real[rows, None, None, start:longest] | itself)
        last.append(
            model.base_model(
                input_ids=ids[rows, start:longest],
                attention_mask=mask,
                position_ids=places[rows, start:longest],
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state[:, -1]
        )
    hidden = torch.cat(last)
    for end in range(longest, ids.shape[1]):
        if end > longest:
            cache.at(slice(None), end - 1, end)
            hidden = model.base_model(
                input_ids=ids[:, end - 1 : end],
                attention_mask=bias[:, None, None, :end],
                position_ids=places[:, end - 1 : end],
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state[:, -1]
        yield head(hidden).float()


_PREFILL_TOKENS = 8192


class _Buffers(Cache):
    """Keys and values of a batch, written into room that is allocated once.

    Keys lie transposed, [B, groups, width, L]: one query per row reads them a quarter faster so.
    """

    def __init__(self, rows: int, length: int) -> None:
        super().__init__(layers=[])
        self.shape = rows, length
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.at(slice(None), 0, 0)

    def at(self, rows: slice, start: int, end: int) -> None:
        """Tell what is computed next."""
        self.rows, self.start, self.end = rows, start, end

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.start

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        if layer_idx == len(self.keys):
            (rows, length), (groups, width) = self.shape, key_states.shape[1::2]
            # Zeros: 0·NaN of room that nobody wrote would be NaN.
            self.keys.append(key_states.new_zeros(rows, groups, width, length))
            self.values.append(value_states.new_zeros(rows, groups, length, width))
        keys, values = self.keys[layer_idx][self.rows], self.values[layer_idx][self.rows]
        keys[..., self.start : self.end] = key_states.transpose(-1, -2)
        values[:, :, self.start : self.end] = value_states
        if key_states.shape[2] > 1:
            return key_states, value_states
        return keys[..., : self.end], values[:, :, : self.end]


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of a prompt over itself, or of one query per row over its buffer with transposed keys."""
    rows, heads, length, width = query.shape
    if length > 1:
        mixed = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=True
        )
        return mixed.transpose(1, 2).contiguous(), None
    groups = key.shape[1]
    query = (query * scaling).reshape(rows, groups, heads // groups, width)
    weights = torch.softmax(query @ key + attention_mask, -1)
    return (weights @ value).reshape(rows, 1, heads, width), None


AttentionInterface.register(_ATTENTION, _attention)


@contextlib.contextmanager
def _attention_set(model: Any) -> Iterator[None]:
    """Let a model compute its attention here, and as before afterwards."""
    before = model.config._attn_implementation
    buffered = model.config.model_type in _BUFFERED
    if buffered:
        model.set_attn_implementation(_ATTENTION)
    try:
        yield
    finally:
        if buffered:
            model.set_attn_implementation(before)
