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
from iet.marks.foreign.engines import EngineKeys
from iet.marks.foreign.waterfall import WaterfallKeys
from iet.marks.registry import Registry
from iet.marks.scheme import Profile, Scheme

if TYPE_CHECKING:
    from iet import decoding
    from iet.audit import calibration as calibrate
    from iet.audit import evidence, metrics
    from iet.audit.auditor import Auditor
    from iet.audit.language_model import LanguageModel
    from iet.audit.options import AuditOptions
    from iet.decoding import topology
    from iet.generation import agents
    from iet.generation.free import FreeTokens
    from iet.generation.selection import Selection, select
    from iet.generation.transformers import LogitsProcessor, WatermarkingConfig
    from iet.generation.waterfall import WaterfallLogitsProcessor
    from iet.marks.published import PublishedIndex
    from iet.report import Report, Segment

__version__ = "0.1.0"

__all__ = [
    "AuditOptions",
    "Auditor",
    "BackendUnavailable",
    "EngineKeys",
    "FreeTokens",
    "IetError",
    "InputError",
    "LanguageModel",
    "LogitsProcessor",
    "Profile",
    "PublishedIndex",
    "Registry",
    "RegistryError",
    "Report",
    "Scheme",
    "SchemeMismatch",
    "Segment",
    "Selection",
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
    "select",
    "topology",
]

_LAZY = {  # name -> the module that defines it
    "AuditOptions": "iet.audit.options",
    "Auditor": "iet.audit.auditor",
    "FreeTokens": "iet.generation.free",
    "LanguageModel": "iet.audit.language_model",
    "LogitsProcessor": "iet.generation.transformers",
    "PublishedIndex": "iet.marks.published",
    "Report": "iet.report",
    "Segment": "iet.report",
    "Selection": "iet.generation.selection",
    "WaterfallLogitsProcessor": "iet.generation.waterfall",
    "WatermarkingConfig": "iet.generation.transformers",
    "select": "iet.generation.selection",
}
_MODULES = {
    "agents": "iet.generation.agents",
    "calibrate": "iet.audit.calibration",
    "decoding": "iet.decoding",
    "evidence": "iet.audit.evidence",
    "metrics": "iet.audit.metrics",
    "topology": "iet.decoding.topology",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value: Any = importlib.import_module(_MODULES[name])
    elif name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
    else:
        raise AttributeError(f"module 'iet' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
