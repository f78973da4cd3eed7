"""Docstrings explain the arguments and attributes that are there, in their order."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import iet
from iet.decoding.transitions import Transitions
from iet.errors import IetError
from iet.marks.scheme import Profile, Scheme
from iet.report import Report, Segment


def documented(docstring: str, section: str) -> list[str]:
    """Names that a section of a docstring explains, in order."""
    match = re.search(rf"^ *{section}:\n((?:\n| {{4,}}.*\n?)+)", inspect.cleandoc(docstring) + "\n", re.M)
    if match is None:
        return []
    names = re.findall(r"^ {4}((?:\*{0,2}\w+(?:, )?)+):", match[1], re.M)
    return [name.lstrip("*") for line in names for name in line.split(", ")]


def members(name: str, value: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every function that a user reaches through a public name, classes standing for their constructors."""
    if isinstance(value, types.ModuleType):
        public = getattr(value, "__all__", None) or [
            key
            for key, item in vars(value).items()
            if not key.startswith("_") and getattr(item, "__module__", None) == value.__name__
        ]
        for key in public:
            yield from members(f"{name}.{key}", getattr(value, key))
    elif inspect.isclass(value):
        yield name, value
        for key, item in vars(value).items():
            if not key.startswith("_") and isinstance(item, (types.FunctionType, classmethod, staticmethod)):
                # Bound, so that no `self` is among the parameters.
                yield (
                    f"{name}.{key}",
                    getattr(value, key)
                    if not isinstance(item, types.FunctionType)
                    else (types.MethodType(item, value)),
                )
    elif callable(value):
        yield name, value


def public() -> list[Any]:
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        names = [name for name in iet.__all__ if name not in ("LogitsProcessor", "WatermarkingConfig")]
    else:
        names = iet.__all__
    match = [pair for name in names for pair in members(name, getattr(iet, name))]
    return [pytest.param(value, id=name) for name, value in match]


@pytest.mark.parametrize("item", public())
def test_documented_arguments_equal_the_parameters(item: Any) -> None:
    docstring = inspect.getdoc(item)
    assert docstring
    explained = documented(docstring, "Args")
    if inspect.isclass(item) and (issubclass(item, (IetError, tuple)) or documented(docstring, "Attributes")):
        return  # errors are not made by users; the attributes of a dataclass are its arguments, see below
    parameters = [name for name in inspect.signature(item).parameters if name not in ("args", "kwargs")]
    if explained:
        assert explained == parameters
    elif len(parameters) > 1:  # a sentence may do, if it names them
        assert [name for name in parameters if not re.search(rf"\b{name}\b", docstring)] == []


@pytest.mark.parametrize("kind", [Report, Segment, Scheme, Profile, Transitions, iet.decoding.Segmentation])
def test_documented_attributes_equal_the_fields(kind: Any) -> None:
    fields = [field.name for field in dataclasses.fields(kind)]
    assert sorted(documented(kind.__doc__, "Attributes")) == sorted(fields)


def test_reads_names_of_sections() -> None:
    arguments = ["logits", "contexts", "slots", "registry", "counts", "profile"]
    arguments += ["temperature", "rows", "num_threads"]
    assert documented(iet.embed_.__doc__ or "", "Args") == arguments
    assert documented(
        "Do it.\n\n    Args:\n        a, b: both.\n        **c: rest.\n            d: no.\n", "Args"
    ) == [*"abc"]
