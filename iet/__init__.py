"""Mark what each agent writes, and recover from the final text alone who wrote what.

    registry = iet.Registry.create("team.json", tokenizer="tokenizer.json")
    registry.add("planner")
    marking = iet.WatermarkingConfig(registry, agents=["planner"])
    model.generate(**inputs, watermarking_config=marking, do_sample=True)
    report = iet.Auditor(registry).audit(text)

Names load their modules on first use: `import iet` loads neither torch, transformers nor numba.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from iet.engines import EngineKeys
from iet.errors import (
    BackendUnavailable,
    IetError,
    InputError,
    RegistryError,
    SchemeMismatch,
    ShapeError,
    TokenizerMismatch,
    VerificationError,
)
from iet.kernels import backends, embed_, positions, score_spans, score_tokens
from iet.registry import Registry
from iet.scheme import Profile, Scheme
from iet.waterfall import WaterfallKeys

if TYPE_CHECKING:
    from iet import agents, calibrate, decoding, evidence, metrics, topology
    from iet.auditor import Auditor
    from iet.generation.transformers import LogitsProcessor, WatermarkingConfig
    from iet.generation.waterfall import WaterfallLogitsProcessor
    from iet.likelihood import LanguageModel
    from iet.report import Report, Segment

__version__ = "0.1.0"

__all__ = [
    "Auditor",
    "BackendUnavailable",
    "EngineKeys",
    "IetError",
    "InputError",
    "LanguageModel",
    "LogitsProcessor",
    "Profile",
    "Registry",
    "RegistryError",
    "Report",
    "Scheme",
    "SchemeMismatch",
    "Segment",
    "ShapeError",
    "TokenizerMismatch",
    "VerificationError",
    "WaterfallKeys",
    "WaterfallLogitsProcessor",
    "WatermarkingConfig",
    "agents",
    "backends",
    "calibrate",
    "decoding",
    "embed_",
    "evidence",
    "metrics",
    "positions",
    "score_spans",
    "score_tokens",
    "topology",
]

_LAZY = {
    "Auditor": "iet.auditor",
    "LanguageModel": "iet.likelihood",
    "LogitsProcessor": "iet.generation.transformers",
    "Report": "iet.report",
    "Segment": "iet.report",
    "WaterfallLogitsProcessor": "iet.generation.waterfall",
    "WatermarkingConfig": "iet.generation.transformers",
    "agents": "iet.agents",
    "calibrate": "iet.calibrate",
    "decoding": "iet.decoding",
    "evidence": "iet.evidence",
    "metrics": "iet.metrics",
    "topology": "iet.topology",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'iet' has no attribute {name!r}")
    module = importlib.import_module(_LAZY[name])
    value = module if _LAZY[name] == f"iet.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
