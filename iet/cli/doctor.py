"""What runs here: backends, instruction set, GPU, versions, and a self-test against the known answers."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import pathlib
import platform
from typing import Any

import numpy as np

import iet
import iet.native
from iet import kernels
from iet.marks.keys import derive_subkey
from iet.marks.registry import Registry
from iet.marks.scheme import FAMILIES, Scheme
from iet.native.load import SCHEME_VERSION

PACKAGES = ("numpy", "numba", "tokenizers", "torch", "transformers", "rich")


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What `iet doctor` prints.

    Attributes:
        iet, python, machine: versions and processor.
        scheme: version of the format.
        backends: as `iet.backends()` returns them.
        packages: installed versions; None where missing.
        checks: name of a self-test -> how many known answers agreed, of how many.
    """

    iet: str
    python: str
    machine: str
    scheme: str
    backends: kernels.Backends
    packages: dict[str, str | None]
    checks: dict[str, tuple[int, int]]

    @property
    def healthy(self) -> bool:
        """Whether known answers were found, and all agreed."""
        return bool(self.checks) and all(good == total for good, total in self.checks.values())


def examine() -> Diagnosis:
    """Look around, and run the known answers through the backend in use."""
    return Diagnosis(
        iet=iet.__version__,
        python=platform.python_version(),
        machine=f"{platform.system()} {platform.machine()}",
        scheme=str(SCHEME_VERSION),
        backends=kernels.backends(),
        packages={name: _version(name) for name in PACKAGES},
        checks=self_test(),
    )


def self_test() -> dict[str, tuple[int, int]]:
    """Return name -> (answers that agreed, answers), empty if the file of known answers is not installed."""
    vectors = _vectors()
    if vectors is None:
        return {}
    checks: dict[str, list[bool]] = {"derive": [], "permute": [], "score": [], "embed": []}
    for entry in vectors["derive"]:
        checks["derive"].append(derive_subkey(bytes.fromhex(entry["secret"])).hex() == entry["subkey"])
    for entry in vectors["permute"]:
        seeds = np.full(len(entry["ids"]), int(entry["seed"], 16), dtype=np.uint64)
        found = kernels.permute(entry["ids"], seeds, entry["vocab_size"]).tolist()
        checks["permute"].append(found == entry["ranks"])
    for entry in vectors["ops"]:
        registry = Registry.create(
            None,
            vocab_size=entry["vocab_size"],
            unmarked_ids=entry["unmarked_ids"],
            scheme=Scheme(**{key: entry[key] for key in ("n_gram", "family", "k_p")}),
        )
        for derived in vectors["derive"]:
            registry.add(derived["subkey"], secret=bytes.fromhex(derived["secret"]))
        scores = kernels.score_tokens(entry["token_ids"], registry)
        checks["score"].append(np.array_equal(scores, np.array([_float32(row) for row in entry["scores"]])))
        marked = entry["embed"]["float32"]
        logits, expected = (
            _float32(marked[key]).reshape(len(entry["slots"]), -1) for key in ("logits", "marked")
        )
        temperature = _float32(entry["kappas"]) / np.float32(registry.profile.scheme.kappa)
        kernels.embed_(logits, entry["contexts"], entry["slots"], registry, temperature=temperature)
        checks["embed"].append(np.array_equal(logits, expected))
    return {name: (sum(results), len(results)) for name, results in checks.items()}


def _float32(bits: list[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array([int(value, 16) for value in bits], dtype=np.uint32).view(np.float32)


def _vectors() -> dict[str, Any] | None:
    """Return the known answers of the scheme, with the ops of family gumbel."""
    names = f"scheme_v{SCHEME_VERSION}.json", f"gumbel_v{FAMILIES['gumbel'].version}.json"
    for path in iet.native.__path__:  # CMake installs them there
        folder = pathlib.Path(path) / "vectors"
        if all((folder / name).is_file() for name in names):
            content, gumbel = (json.loads((folder / name).read_text()) for name in names)
            return {**content, "ops": content["ops"] + gumbel["ops"]}
    return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
