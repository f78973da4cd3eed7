"""Nothing that comes from outside is run as code: no pickle and no eval, over the whole tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from benchmarks import house

MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"}
"""What turns data into objects of any class, or into code."""

ALLOWED = {
    "iet/bulk/files.py imports pickle": "what goes to its own workers",
    "iet/bulk/workers.py imports pickle": "what its own parent process sends",
    "benchmarks/engine_wheels.py calls exec": "functions of wheels that are pinned by their hash",
    "benchmarks/engine_wheels.py calls compile": "the same",
}
"""With the data that is read. Numba's cache is read by Numba, once iet/native/cache.py has checked it."""


def findings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            names = []
        yield from (f"imports {name}" for name in names if name.partition(".")[0] in MODULES)
        if not isinstance(node, ast.Call):
            continue
        options = {option.arg: option.value for option in node.keywords}
        called = ast.unparse(node.func)
        if called in ("eval", "exec", "compile", "__import__"):
            yield f"calls {called}"
        if called == "importlib.import_module" and ast.unparse(node.args[0]).strip("'\"") in MODULES:
            yield f"imports {ast.unparse(node.args[0])}"
        if "allow_pickle" in options and ast.unparse(options["allow_pickle"]) != "False":
            yield f"{called} allows pickles"
        weights = options.get("weights_only")
        if called == "torch.load" and (weights is None or ast.unparse(weights) != "True"):
            yield "torch.load unpickles"
        if called in ("yaml.load", "yaml.unsafe_load"):
            yield f"calls {called}"


def test_nothing_from_outside_is_run_as_code() -> None:
    found = {
        f"{path.relative_to(house.ROOT).as_posix()} {finding}"
        for folder in ("iet", "benchmarks", "examples")
        for path in sorted((house.ROOT / folder).rglob("*.py"))
        for finding in findings(path.read_text(encoding="utf-8"))
    }
    assert found == set(ALLOWED)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import json, marshal as m",
        "from dill import loads",
        "def f():\n    import cloudpickle.fast",
        "eval('1')",
        "exec(text)",
        "np.load(path, allow_pickle=True)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "importlib.import_module('pickle')",
        "yaml.load(file)",
    ],
)
def test_what_would_run_code_is_found(source: str) -> None:
    assert len(list(findings(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "re.compile('a')",
        "model.eval()",
        "torch.load(path, weights_only=True)",
        "np.load(path)",
        "ast.literal_eval(text)",
        "import json",
    ],
)
def test_what_runs_none_is_let_be(source: str) -> None:
    assert list(findings(source)) == []
