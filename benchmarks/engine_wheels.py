"""The detectors of vLLM and SGLang from their wheels; `.ci/wheels` unpacks the source files.

The two pin different versions of torch. Their detectors need only what is in their folder, torch, msgspec
and three modules of vLLM that they name and never call; those are empty here.

Marks that vLLM's wheel lacks are read from its repository, at the commits of `PULLS`: copy build/wheels/vllm
to build/wheels/vllm-pulls, and put what `git show COMMIT:PATH` prints into its PATH.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import itertools
import os
import pathlib
import sys
import types
from collections.abc import Sequence
from typing import Any

from iet.errors import InputError

FOLDER = pathlib.Path(os.environ.get("IET_WHEELS", pathlib.Path(__file__).parent.parent / "build" / "wheels"))

_EMPTY: dict[str, dict[str, Any]] = {
    "vllm": {
        "vllm.logger": {"init_logger": lambda name: None},
        "vllm.config.utils": {"config": lambda kind: kind},
        "vllm.v1.worker.gpu.sample.gumbel": {"gumbel_sample": None},
    },
    "sglang": {},
}
PULLS = {
    "vllm/v1/watermarking/red_green.py": "381f94544575cafec2cd808be7d4948a632374e0",
    "vllm/v1/watermarking/synthid.py": "373305d65c78b7c368d46cd483a9fa92da71c8a6",
    "vllm/v1/watermarking/prfs/philox.py": "373305d65c78b7c368d46cd483a9fa92da71c8a6",
    "vllm/v1/watermarking/prfs/hmac_sha256.py": "3da8712b5fbb61c79f4cf97345120f96a6cd955e",
    "vllm/v1/watermarking/sbw.py": "caaac7c229a6128b89e2fabe25a5d3ccc67aab86",
}
"""Path -> the commit of https://github.com/vllm-project/vllm that it is read at."""

_DETECTORS = {"vllm": "vllm.v1.watermarking.gumbel", "sglang": "sglang.srt.sampling.watermarking.detector"}


def missing(engine: str) -> str | None:
    """Return why an engine's detector cannot be imported, None if it can."""
    module = FOLDER / engine / f"{_DETECTORS[engine].replace('.', '/')}.py"
    if not module.is_file():
        return (
            f"{module.relative_to(FOLDER)} does not exist: run .ci/wheels"  # results contain no folder's name
        )
    needed = {"vllm": ("torch", "pydantic"), "sglang": ("msgspec",)}[engine]
    absent = [name for name in needed if importlib.util.find_spec(name) is None]
    return f"{', '.join(absent)} not installed" if absent else None


def missing_pull(path: str) -> str | None:
    """Return why a file of `PULLS` cannot be imported, None if it can."""
    if not (FOLDER / "vllm-pulls" / path).is_file():
        return f"vllm-pulls/{path} does not exist: git show {PULLS[path][:7]}:{path} in vLLM's repository"
    return missing("vllm")


def pull(path: str) -> Any:
    """Import a file of `PULLS`."""
    return detector("vllm", path.removesuffix(".py").replace("/", "."), "vllm-pulls")


def detector(engine: str, name: str = "", folder: str = "") -> Any:
    """Import the module of an engine's detector, and leave `sys.modules` as it was.

    Args:
        engine: "vllm" or "sglang".
        name: another module of it.
        folder: where its files are; default: that of the wheel.
    """
    name = name or _DETECTORS[engine]
    replaced = {key: sys.modules.pop(key) for key in list(sys.modules) if key.split(".")[0] == engine}
    try:
        packages: set[str] = set()
        for part in (*_EMPTY[engine], name):
            packages |= set(itertools.accumulate(part.split(".")[:-1], "{}.{}".format))
        for package in sorted(packages):
            module = types.ModuleType(package)  # its own __init__ would import the whole engine
            module.__path__ = [str(FOLDER / (folder or engine) / package.replace(".", "/"))]
            sys.modules[package] = module
        for empty, content in _EMPTY[engine].items():
            sys.modules[empty] = types.ModuleType(empty)
            vars(sys.modules[empty]).update(content)
        return importlib.import_module(name)
    finally:
        for key in [key for key in sys.modules if key.split(".")[0] == engine]:
            del sys.modules[key]
        sys.modules.update(replaced)


def definitions(path: pathlib.Path, names: Sequence[str], namespace: dict[str, Any]) -> dict[str, Any]:
    """Define some functions of a source file in a namespace, without the imports of the rest; return it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [node for node in tree.body if getattr(node, "name", None) in names]
    if len(nodes) != len(names):
        raise InputError(f"{path}: expected definitions of {', '.join(names)}, got {len(nodes)} of them")
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module([*future, *nodes], []), str(path), "exec"), namespace)
    return namespace
