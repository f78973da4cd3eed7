"""Count the surface of a checkout: names, options, extras, install size, and data classes of a text.

`benchmarks.house` prints these counts. Options and flows are counted in a process that imports the library of
the checkout, so an older state can be compared; a state that cannot run them gives None.
"""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib
from typing import Any

DOCUMENTS = 40
"""Documents of the bulk run, each a part of the demo's text."""

SECONDS = 300
"""Time limit of a process; a state without compiled modules may need more."""

# An editable installation finds its own checkout before any path, so its finder is removed.
_HERE = """
import argparse, collections, dataclasses, json, pathlib, sys, threading
sys.meta_path[:] = [f for f in sys.meta_path if f.__module__.startswith("_frozen_importlib")]
"""

_OPTIONS = f"""{_HERE}
parsers, create = [], argparse.ArgumentParser.__init__
def record(self, *arguments, **options):
    create(self, *arguments, **options)
    parsers.append(self)
argparse.ArgumentParser.__init__ = record
from iet.cli import main
output, sys.stdout = sys.stdout, sys.stderr
try:
    main(["--help"])
except SystemExit:
    pass
counts = [sum(any(n[:2] == "--" for n in a.option_strings) for a in p._actions) - 1 for p in parsers]
print(json.dumps(sum(counts)), file=output)
"""

# A class counts if a function of the library returns an instance of it; a crossing is a call from one
# package of `iet` into another one, also by a generator that is resumed.
_FLOW = f"""{_HERE}
import iet
from iet.cli import main
ROOT = str(pathlib.Path(iet.__file__).parent) + "/"
classes, crossings = set(), collections.Counter()
def package(frame):
    name = frame.f_code.co_filename if frame is not None else ""
    return name[len(ROOT):].split("/")[0].removesuffix(".py") if name.startswith(ROOT) else None
def profile(frame, event, value):
    callee = package(frame)
    if callee is None:
        return
    if event == "call":
        caller = package(frame.f_back)
        if caller is not None and caller != callee:
            crossings[callee] += 1
    elif event == "return":
        kind = type(value)
        data = dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")
        if data and kind.__module__.startswith("iet."):
            classes.add(f"{{kind.__module__}}.{{kind.__qualname__}}")
def watch(call):
    classes.clear(), crossings.clear()
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return [sorted(classes), sum(crossings.values())]
registry = iet.Registry.load("team.json")
auditor = iet.Auditor(registry)
text = pathlib.Path("final.txt").read_text(encoding="utf-8")
def bulk():
    assert main(["audit", "documents.jsonl", "-r", "team.json", "-o", "out"]) == 0
output, sys.stdout = sys.stdout, sys.stderr
found = dict(audit=watch(lambda: auditor.audit(text).to_html("report.html")), bulk=watch(bulk))
print(json.dumps(found), file=output)
"""


def public_names(root: pathlib.Path) -> int:
    """Return the number of names in `iet.__all__`."""
    tree = ast.parse((root / "iet" / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return len(ast.literal_eval(node.value))
    return 0


def project(root: pathlib.Path) -> dict[str, Any]:
    """Return the table [project] of a checkout's pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def install_bytes(root: pathlib.Path) -> int:
    """Return the bytes of `iet` and of its required packages, as they are installed in this environment."""
    own = sum(
        path.stat().st_size
        for path in (root / "iet").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )
    pending, seen = list(project(root)["dependencies"]), set[str]()
    while pending:
        requirement = pending.pop()
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower().replace("_", "-")
        if name in seen or "extra ==" in requirement or "platform_system" in requirement:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:  # of another platform or Python version
            continue
        own += sum(file.size or 0 for file in distribution.files or ())
        pending += distribution.requires or []
    return own


def options(root: pathlib.Path) -> int | None:
    """Return the number of options of all commands of `iet`, without `--help`."""
    count: int | None = _run(_OPTIONS, root, root)
    return count


def flows(root: pathlib.Path) -> dict[str, tuple[list[str], int]] | None:
    """Return, for an audit and for a bulk run, the data classes and the calls that enter another package."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        demo = [sys.executable, "-m", "iet", "demo", "--out", name]
        if subprocess.run(demo, capture_output=True).returncode:
            return None
        text = (folder / "final.txt").read_text(encoding="utf-8")
        with (folder / "documents.jsonl").open("w", encoding="utf-8") as file:
            for number in range(DOCUMENTS):
                start = 40 * number
                file.write(json.dumps({"id": str(number), "text": text[start : start + 1500]}) + "\n")
        result: dict[str, tuple[list[str], int]] | None = _run(_FLOW, root, folder)
        return result


def _run(program: str, root: pathlib.Path, folder: pathlib.Path) -> Any:
    """Return the JSON that a program prints with the library of a checkout, None if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(root.resolve())}
    if not list((root / "iet").rglob("_cpu*.so")):
        environment["IET_BACKEND"] = "reference"
    command = [sys.executable, "-P", "-c", program]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return None
    return json.loads(done.stdout) if done.returncode == 0 and done.stdout else None
