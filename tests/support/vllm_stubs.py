"""Stands in for what vLLM imports and these tests never call, so that its own modules import without it.

vLLM asks for some eighty packages and another torch. Its processor interfaces, its V1 batch and its V1
sampler compute with torch, NumPy and msgspec alone; the packages below are imported on the way, by what
surrounds them. One that is installed is used as it is. Of vLLM itself one answer is corrected: a machine
without an accelerator, which it calls unspecified, has no pinned memory.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

PACKAGES = (
    "aiohttp",
    "cachetools",
    "cbor2",
    "fastapi",
    "llguidance",
    "openai_harmony",
    "partial_json_parser",
    "prometheus_client",
    "psutil",
    "pybase64",
    "uvloop",
    "xgrammar",
    "zmq",
)


class _Any(type):
    """A class whose attributes are such classes."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Any(name, (_Instance,), {})

    def __or__(cls, operand: Any) -> Any:
        return Any

    __ror__ = __or__


class _Instance(metaclass=_Any):
    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *arguments: Any, **__: Any) -> Any:
        return arguments[0] if arguments else self  # a decorator leaves what it decorates

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Instance()

    def __class_getitem__(cls, _: Any) -> Any:
        return cls

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Any(name, (_Instance,), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        stub = name.partition(".")[0] in PACKAGES
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if stub else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install() -> None:
    """Add the finder as the last one, and correct vLLM."""
    sys.meta_path.append(_Finder())
    from vllm.platforms.interface import UnspecifiedPlatform

    UnspecifiedPlatform.is_pin_memory_available = classmethod(lambda cls: False)
