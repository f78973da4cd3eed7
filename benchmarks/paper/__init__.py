"""The paper's experiments (§ Experiment and appendices), each by one command."""

from __future__ import annotations

import importlib
from typing import Any

from iet.errors import BackendUnavailable


def needed(module: str, extra: str = "paper") -> Any:
    """Import what an experiment needs, and say what brings it where it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = f"'implicit-execution-tracing[{extra}]'"
        raise BackendUnavailable(f"{error.name} is missing: pip install {package}") from None
