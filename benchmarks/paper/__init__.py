"""Reproduction of the paper's experiments (§ Experiment and appendices), each by one command."""

from __future__ import annotations

import importlib
from typing import Any

from iet.errors import BackendUnavailable


def needed(module: str, package: str = "implicit-execution-tracing[paper]") -> Any:
    """Import an optional module; name the package to install if it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise BackendUnavailable(f"{error.name} is missing: pip install '{package}'") from None
