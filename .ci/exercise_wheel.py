"""Check the contents of the sdist and the wheel, and run the installed wheel without a compiler.

    python .ci/exercise_wheel.py SDIST WHEEL

Runs in the environment that the wheel is installed into, in an empty folder, with its commands on the PATH.
"""

import importlib.machinery
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

COMPILERS = ("gcc", "g++", "cc", "c++", "clang", "clang++", "ld", "make", "cmake", "ninja", "nvcc")
MODULES = {f"iet/native/{name}{importlib.machinery.EXTENSION_SUFFIXES[0]}" for name in ("_cpu", "_cuda")}
VECTORS = {f"iet/native/vectors/{name}_v1.json" for name in ("scheme", "gumbel")}
LIMIT = 10 << 20  # maximum bytes of each
SOURCES = re.compile(r"\.(h|cpp|cu|cmake|pyc|o|a)$|(^|/)(CMakeLists\.txt|tests?|csrc|benchmarks)(/|$)")

sdist, wheel = (pathlib.Path(path) for path in sys.argv[1:])

with tarfile.open(sdist) as archive:
    members = {name.partition("/")[2] for name in archive.getnames()}
for needed in (
    "CMakeLists.txt",
    "LICENSE",
    "csrc/keyed.h",
    "cmake/cuda.cmake",
    "tests/vectors/scheme_v1.json",
):
    assert needed in members, f"{sdist.name} lacks {needed}"
strange = {
    name for name in members if re.search(r"\.so$|\.pyc$|^\.ci|^build|^benchmarks/results|\.egg", name)
}
assert not strange, f"{sdist.name} holds {sorted(strange)}"

with zipfile.ZipFile(wheel) as archive:
    sizes = {info.filename: info.file_size for info in archive.infolist() if not info.is_dir()}
    tops = {name.partition("/")[0] for name in sizes}
    assert tops == {"iet", next(top for top in tops if top.endswith(".dist-info"))}, tops
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in sizes)
    assert sizes.keys() >= MODULES | VECTORS, (
        f"{wheel.name} lacks {sorted((MODULES | VECTORS) - sizes.keys())}"
    )
    strange = {name for name in sizes if SOURCES.search(name)}
    assert not strange, f"{wheel.name} holds {sorted(strange)}"
    bom = next(archive.read(name) for name in sizes if name.endswith("dist-info/sboms/iet.cdx.json"))
    tags = next(archive.read(name).decode() for name in sizes if name.endswith("dist-info/WHEEL"))
    assert "manylinux" in tags, tags

held = {component["bom-ref"]: component["version"] for component in json.loads(bom)["components"]}
assert held.keys() == {"pybind11", "confusables", "demo", "cudart"}, held
assert all(held.values()), held
print("holds, of others:", ", ".join(f"{name} {version}" for name, version in held.items()))

for path in (sdist, wheel):
    size = path.stat().st_size
    assert size < LIMIT, f"{path.name}: {size} bytes"
    print(f"{path.name}: {size / 1e6:.1f} MB")
for module in sorted(MODULES):
    print(f"  {module}: {sizes[module] / 1e6:.1f} MB")

there = [name for name in COMPILERS if shutil.which(name)]
assert not there, f"on the PATH: {there}"


def iet(*arguments: str) -> str:
    """Return the output of a command of the installed package."""
    command = shutil.which("iet") or ""
    assert command.startswith(sys.prefix), command
    return subprocess.run([command, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


print(iet("doctor"))
found = json.loads(iet("doctor", "--json"))
assert found["healthy"]
assert found["backends"]["host"] == "cpu"
assert "iet.native._cuda is loaded (nvcc" in found["backends"]["cuda"], found["backends"]["cuda"]

print("\n".join(iet("demo", "--out", "demo").splitlines()[-8:]))
report = json.loads(iet("audit", "demo/final.txt", "-r", "demo/team.json", "--json"))
agents = {segment["agent"] for segment in report["segments"]} - {None}
assert agents == {"planner", "researcher", "critic", "engineer"}, agents
print("audited:", ", ".join(sorted(agents)))
