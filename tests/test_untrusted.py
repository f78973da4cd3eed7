"""Nothing that comes from outside is run as code: no pickle, no eval, no shell, over the whole tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from benchmarks import house

MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"}
"""What turns data into objects of any class, or into code."""

CALLS = {"eval", "exec", "compile", "__import__", "yaml.load", "yaml.unsafe_load", "os.system", "os.popen"}
METHODS = {"read_pickle", "to_pickle", "get_unpickled", "extractall"}
"""Functions that run what they are given, and methods that do, or that write files where an archive says."""

ALLOWED = {
    "iet/bulk/run.py imports pickle": "what goes to its own workers",
    "iet/bulk/workers.py imports pickle": "what its own parent process sends",
    "iet/audit/worker_pool.py imports multiprocessing.connection": "pipes to its own workers",
    "benchmarks/engine_wheels.py calls exec": "functions of wheels that are pinned by their hash",
    "benchmarks/engine_wheels.py calls compile": "the same",
}
"""With the data that is read. Numba reads its cache if iet/decoding/jit.py finds the folder safe."""


def findings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            names = []
        yield from (f"imports {name}" for name in names if name.partition(".")[0] in MODULES)
        yield from (f"imports {name}" for name in names if name in ("builtins", "multiprocessing.connection"))
        if not isinstance(node, ast.Call):
            continue
        options = {option.arg: ast.unparse(option.value) for option in node.keywords}
        called = ast.unparse(node.func)
        if called in CALLS or called.rpartition(".")[2] in METHODS:
            yield f"calls {called}"
        if called == "importlib.import_module" and ast.unparse(node.args[0]).strip("'\"") in MODULES:
            yield f"imports {ast.unparse(node.args[0])}"
        if options.get("allow_pickle", "False") != "False":
            yield f"{called} allows pickles"
        if options.get("trust_remote_code", "False") != "False":
            yield f"{called} runs a model's code"
        if called.startswith("subprocess.") and options.get("shell", "False") != "False":
            yield f"{called} starts a shell"
        if called == "torch.load" and options.get("weights_only") != "True":
            yield "torch.load unpickles"


def test_nothing_from_outside_is_run_as_code() -> None:
    uses = {
        f"{path.relative_to(house.ROOT).as_posix()} {finding}"
        for folder in ("iet", "benchmarks", "examples")
        for path in sorted((house.ROOT / folder).rglob("*.py"))
        for finding in findings(path.read_text(encoding="utf-8"))
    }
    assert uses == set(ALLOWED)


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
        "import builtins",
        "from builtins import eval as safe",
        "from multiprocessing.connection import Client",
        "pandas.read_pickle(path)",
        "tarfile.open(path).extractall()",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "subprocess.run(line, shell=True)",
        "os.system(line)",
    ],
)
def test_code_execution_is_detected(source: str) -> None:
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
        "subprocess.run([program], shell=False)",
        "import multiprocessing",
    ],
)
def test_harmless_calls_are_accepted(source: str) -> None:
    assert list(findings(source)) == []


def test_pages_run_no_text_as_code_or_as_html() -> None:
    runs = re.compile(r"\beval\(|\bFunction\(|innerHTML|outerHTML|insertAdjacentHTML|document\.write")
    pages = [path for end in ("js", "html") for path in (house.ROOT / "iet").rglob(f"*.{end}")]
    assert len(pages) >= 4
    assert [path.name for path in pages if runs.search(path.read_text(encoding="utf-8"))] == []
