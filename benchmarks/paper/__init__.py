"""The paper's experiments (§ Experiment and appendices), each by one command."""

from __future__ import annotations

from iet.errors import BackendUnavailable


def missing(error: ModuleNotFoundError, extra: str = "paper") -> BackendUnavailable:
    """Return what to raise where a package that an experiment needs is not installed."""
    return BackendUnavailable(f"{error.name} is missing: pip install 'implicit-execution-tracing[{extra}]'")
