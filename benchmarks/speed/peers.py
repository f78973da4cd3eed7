"""Other watermarks, called the way their own documentation calls them, on one thread.

Each function returns the peers that are installed, and why the others are not. Nothing of a peer is imported
before that is known, and nothing big is made before its first call.
"""

from __future__ import annotations

import functools
import importlib.util
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

# (input_ids [B, T], scores [B, V]) -> marked scores; (ids [T]) -> anything
if TYPE_CHECKING:
    import torch

Marker = Callable[["torch.Tensor", "torch.Tensor"], object]
Reader = Callable[[NDArray[np.int64]], object]

SYNTHID_KEYS = list(range(1, 31))  # 30 layers, as in its paper and in transformers' example
_NEEDS = {
    "Waterfall": ("waterfall", "psutil", "scipy"),
    "MarkLLM KGW": ("markllm", "transformers"),
    "MarkLLM Unigram": ("markllm", "transformers"),
    "transformers KGW": ("transformers",),
    "SynthID": ("transformers",),
}


def missing(peer: str) -> str | None:
    """Return what has to be installed before `peer` runs, None if nothing."""
    absent = [name for name in _NEEDS[peer] if importlib.util.find_spec(name) is None]
    return f"{', '.join(absent)} not installed, see benchmarks/speed/peers.txt" if absent else None


def markers(vocab_size: int) -> tuple[dict[str, Marker], dict[str, str]]:
    """Return name -> what marks a batch, and name -> why it is missing."""
    makers: dict[str, tuple[str, Callable[[int], Marker]]] = {
        "Waterfall": ("Waterfall", _waterfall_marker),
        "transformers KGW": ("transformers KGW", _kgw_marker),
        "MarkLLM KGW": ("MarkLLM KGW", _markllm_kgw),
        "MarkLLM Unigram": ("MarkLLM Unigram", _markllm_unigram),
        "SynthID, top 100": ("SynthID", _synthid_top),
        "SynthID, all of V": ("SynthID", lambda vocab_size: cast(Marker, synthid())),
    }
    return _installed(makers, vocab_size)


def readers(vocab_size: int) -> tuple[dict[str, Reader], dict[str, str]]:
    """Return name -> what scores a text under one key, and name -> why it is missing."""
    makers: dict[str, tuple[str, Callable[[int], Reader]]] = {
        "SynthID g-values": ("SynthID", lambda vocab_size: _g_values(synthid())),
        "Waterfall verify": ("Waterfall", _waterfall_reader),
        "transformers KGW detector": ("transformers KGW", _kgw_reader),
    }
    return _installed(makers, vocab_size)


def _installed(makers: Any, vocab_size: int) -> tuple[dict[str, Any], dict[str, str]]:
    installed, skipped = {}, {}
    for name, (peer, make) in makers.items():
        why = missing(peer)
        if why is None:
            installed[name] = _late(functools.partial(make, vocab_size))
        else:
            skipped[name] = why
    return installed, skipped


def _late(make: Callable[[], Callable[..., object]]) -> Callable[..., object]:
    """Return a function that is made at its first call, which is the round that warms up."""
    made = functools.cache(make)
    return lambda *arguments: made()(*arguments)


def _waterfall_marker(vocab_size: int) -> Marker:
    from waterfall.WatermarkerBase import PerturbationProcessor
    from waterfall.WatermarkingFnFourier import WatermarkingFnFourier

    processor = PerturbationProcessor(N=vocab_size, id=42)
    processor.set_phi(WatermarkingFnFourier(id=42, k_p=1, N=vocab_size, kappa=0.8).phi)
    processor.reset(n_gram=2)
    processor.init_token_count = 0  # as in the middle of a text: it skips the first position
    return cast(Marker, processor)


def _kgw_marker(vocab_size: int) -> Marker:
    from transformers import WatermarkLogitsProcessor

    marker: Any = WatermarkLogitsProcessor(vocab_size=vocab_size, device="cpu")
    return cast(Marker, marker)


def _markllm_config(vocab_size: int) -> Any:
    from markllm.utils.transformers_config import TransformersConfig

    return TransformersConfig(None, None, vocab_size=vocab_size, device="cpu")


def _markllm_kgw(vocab_size: int) -> Marker:
    from markllm.watermark.kgw.kgw import KGW

    return cast(Marker, KGW(None, _markllm_config(vocab_size)).logits_processor)


def _markllm_unigram(vocab_size: int) -> Marker:
    from markllm.watermark.unigram.unigram import Unigram

    return cast(Marker, Unigram(None, _markllm_config(vocab_size)).logits_processor)


def synthid(keys: list[int] = SYNTHID_KEYS) -> Any:
    import torch
    from transformers import SynthIDTextWatermarkLogitsProcessor

    options: dict[str, Any] = {
        "sampling_table_size": 2**16,
        "sampling_table_seed": 0,
        "context_history_size": 1024,
    }
    device = torch.device("cpu")
    return SynthIDTextWatermarkLogitsProcessor(ngram_len=5, keys=keys, device=device, **options)


def kgw_detector(vocab_size: int, **config: Any) -> Any:
    import transformers

    made: Any = transformers
    model = types.SimpleNamespace(vocab_size=vocab_size, bos_token_id=-1, is_encoder_decoder=False)
    return made.WatermarkDetector(model, "cpu", made.WatermarkingConfig(**config))


def _synthid_top(vocab_size: int) -> Marker:
    """As google-deepmind/synthid-text runs it: the 100 likeliest tokens are marked, the others set to -inf.

    transformers has the same steps, but for all of V only.
    """
    import torch

    processor = synthid()

    def mark(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        top, indices = torch.topk(scores, k=min(100, scores.shape[1]), dim=1)
        keys, _ = processor._compute_keys(input_ids[:, -4:], indices)
        updated = processor.update_scores(top, processor.sample_g_values(keys))
        return torch.full_like(scores, -torch.inf).scatter_(1, indices, updated)

    return mark


def _g_values(processor: Any) -> Reader:
    import torch

    return lambda ids: processor.compute_g_values(torch.from_numpy(ids)[None])


def _waterfall_reader(vocab_size: int) -> Reader:
    from waterfall.WatermarkerBase import Watermarker

    tokenizer = types.SimpleNamespace(vocab_size=vocab_size, eos_token="", deprecation_warnings={})
    watermarker = Watermarker(tokenizer=tokenizer, id=42, kappa=0.8, k_p=1, n_gram=2)

    def verify(ids: NDArray[np.int64]) -> object:
        tokenizer.encode = lambda text, add_special_tokens: ids
        return watermarker.verify("")  # of a text that is tokenized already

    return verify


def _kgw_reader(vocab_size: int) -> Reader:
    import torch

    # A new detector each time: it remembers what it has scored.
    return lambda ids: kgw_detector(vocab_size)(torch.from_numpy(ids)[None], return_dict=True)
