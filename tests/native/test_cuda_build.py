"""The build of the CUDA module: nvcc, architectures, and the report about the kernels."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tests.support.conditions import posix
from tests.support.ptx.build import Compiled

ROOT = pathlib.Path(__file__).parents[2]
CSRC = ROOT / "csrc" / "cuda"
CMAKE = shutil.which("cmake") or ""
NVCC = os.environ.get("CUDACXX") or shutil.which("nvcc") or ""
needs_cmake = pytest.mark.skipif(not CMAKE, reason="no CMake")
needs_nvcc = pytest.mark.skipif(not NVCC, reason="no nvcc")
MAX_REGISTERS = 64  # of 65536: four blocks of 256 threads on a multiprocessor
FEW_BLOCKS = re.compile("choose_kernel|embed_kernel.*Li64E")  # one of 512 threads; those of small batches
MAX_REGISTERS_OF_FEW = 96
KERNELS = {
    "choose.cu": ("best_kernel|choose_kernel", 12),
    "embed.cu": ("embed_kernel", 24),
    "rows.cu": ("rows_kernel", 1),
    "score.cu": ("score_kernel|score_spans_kernel|scale_kernel", 5),
}


@needs_nvcc
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("source", sorted(KERNELS))
def test_no_kernel_spills(source: str, architecture: str, kernels: Compiled, tmp_path: pathlib.Path) -> None:
    # Registers are allocated where PTX becomes machine code, and the PTX of both is one: see below.
    flags = [f"-arch={architecture}", "-cubin", "-Xptxas", "-v", "-o", str(tmp_path / "cubin")]
    result = subprocess.run([NVCC, *flags, str(kernels.ptx["80"][source])], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    report = result.stderr
    names, count = KERNELS[source]
    compiled = re.findall(rf"Function properties for \S*({names})", report)
    assert len(compiled) == count, report
    spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", report)
    assert spills == [("0", "0", "0")] * count, report
    registers = re.findall(r"Function properties for (\S+).*?Used (\d+) registers", report, re.S)
    assert len(registers) == count
    for name, number in registers:
        assert int(number) <= (MAX_REGISTERS_OF_FEW if FEW_BLOCKS.search(name) else MAX_REGISTERS), name
    assert "lmem" not in report


@needs_nvcc
def test_ptx_of_sm_90_equals_sm_80(kernels: Compiled, tmp_path: pathlib.Path) -> None:
    # nvcc 13.0 makes the same of embed.cu too, which takes six times as long to compile.
    flags = ["-std=c++17", "-gencode=arch=compute_90,code=compute_90", "-ptx", "-o", str(tmp_path / "ptx")]
    subprocess.run([NVCC, *flags, str(CSRC / "score.cu")], check=True)
    expected = kernels.ptx["80"]["score.cu"].read_text()
    assert (tmp_path / "ptx").read_text() == expected.replace(".target sm_80", ".target sm_90")
    comparison = re.compile(r"__CUDA_ARCH__\s*[<>=]+\s*(\d+)")
    sources = [path.read_text() for path in (ROOT / "csrc").rglob("*") if path.suffix in (".h", ".cu")]
    assert {int(number) for text in sources for number in comparison.findall(text)} == {800}


def a_program(path: pathlib.Path, script: str) -> pathlib.Path:
    """Make an nvcc that is a shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def called(code: str, folder: pathlib.Path, *defined: str, **environment: str) -> str:
    """Value of the variable `result` after `code`, which may call functions of cmake/cuda.cmake."""
    script = folder / "script.cmake"
    script.write_text(f'include("{ROOT}/cmake/cuda.cmake")\n{code}\nmessage("${{result}}")\n')
    clean = {name: value for name, value in os.environ.items() if "CUDA" not in name}
    process = subprocess.run(
        [CMAKE, *(f"-D{name}" for name in defined), "-P", str(script)],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return process.stderr.strip()  # where message() writes


@posix
@needs_cmake
def test_search_for_nvcc(tmp_path: pathlib.Path) -> None:
    at = {name: a_program(tmp_path / name / "bin/nvcc", "") for name in ("named", "other", "path")}
    packages = tmp_path / "packages"
    _, newer = (a_program(packages / f"nvidia/cu{number}/bin/nvcc", "") for number in (9, 13))
    search = f'iet_find_nvcc(result "{sys.executable}")'
    named, path = str(tmp_path / "named"), f"{at['path'].parent}:{os.environ['PATH']}"
    for name in ("CUDAToolkit_ROOT", "CUDA_HOME", "CUDA_PATH"):
        assert called(search, tmp_path, PATH=path, **{name: named}) == str(at["named"])
    assert called(search, tmp_path, f"CUDAToolkit_ROOT={named}", CUDA_HOME=str(tmp_path / "other")) == str(
        at["named"]
    )
    assert called(search, tmp_path, PATH=path, CUDA_HOME=str(tmp_path / "nowhere")) == str(at["path"])
    assert called(search, tmp_path, PATH=path, PYTHONPATH=str(packages)) == str(at["path"])
    assert called(search, tmp_path, PATH=str(tmp_path), PYTHONPATH=str(packages)) == str(newer)
    usual = pathlib.Path("/usr/local/cuda/bin/nvcc")
    if usual.exists():
        assert called(search, tmp_path, PATH=str(tmp_path)) == str(usual)


@posix
@needs_cmake
@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("75 80 86 87 88 89 90 100 110 103 120 121", "75-real;80-real;86-real;89-real;90-real;100-real;120"),
        ("50 60 70 75 80 86 87 89 90 90a 100 100a 101 120 120a", None),  # nvcc 12.8
        ("50 60 70 75 80 86 87 89 90 90a", "75-real;80-real;86-real;89-real;90"),  # 11.8 to 12.6
        ("35 50 60 70 75 80 86 87", "75-real;80-real;86"),  # 11.5 to 11.7
        ("100 120 130", "100-real;120"),  # one that will know no older ones
    ],
)
def test_architectures_that_nvcc_lists(listed: str, expected: str | None, tmp_path: pathlib.Path) -> None:
    lines = "\\n".join(f"compute_{number}" for number in listed.split())
    nvcc = a_program(tmp_path / "nvcc", f"[ \"$*\" = --list-gpu-arch ] && printf '{lines}\\n'")
    architectures = called(f'iet_known_architectures(result "{nvcc}" "75;80;86;89;90;100;120")', tmp_path)
    assert architectures == (expected or "75-real;80-real;86-real;89-real;90-real;100-real;120")


@posix
@needs_cmake
def test_nvcc_without_a_list_is_the_oldest_supported(tmp_path: pathlib.Path) -> None:
    nvcc = a_program(tmp_path / "nvcc", "echo nvcc fatal: unknown option >&2; exit 1")
    assert called(f'iet_known_architectures(result "{nvcc}" "75;80;86")', tmp_path) == "75-real;80"


def configured(
    folder: pathlib.Path, *defined: str, nvcc: pathlib.Path | str, **environment: str
) -> tuple[int, str, set[str]]:
    """Configure the project: exit code, what CMake says, and the architectures that would be compiled for.

    In a folder that was configured before only what CMake found out about the compilers is kept.
    """
    pybind11 = pytest.importorskip("pybind11")
    ours = f"pybind11_DIR={pybind11.get_cmake_dir()}", f"Python_EXECUTABLE={sys.executable}"
    clean = {name: value for name, value in os.environ.items() if "CUDA" not in name}
    process = subprocess.run(
        [CMAKE, "-U", "IET_*", "-U", "CMAKE_CUDA_ARCHITECTURES", "-S", str(ROOT), "-B", str(folder)]
        + [f"-D{value}" for value in (*ours, *defined)],
        env={**clean, "CUDACXX": str(nvcc), **environment},
        capture_output=True,
        text=True,
    )
    files = [path.read_text() for path in folder.rglob("*") if path.name in ("build.ninja", "flags.make")]
    compiled = set(re.findall(r"arch=compute_\d+,code=\[(\S+?)\]", "\n".join(files)))
    return process.returncode, process.stdout + process.stderr, compiled


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Build folder that all tests share, so that CMake inspects the compilers once."""
    return tmp_path_factory.mktemp("build")


def nvcc_of(build: pathlib.Path, prologue: str = "") -> pathlib.Path:
    """The nvcc of a build: a script at one path, since CMake keeps to the first; `prologue` may end it."""
    return a_program(build.with_name("compiler") / "nvcc", f'{prologue}\nexec "{NVCC}" "$@"')


# First, so that it is this one at which CMake looks.
@posix
@needs_cmake
@needs_nvcc
def test_older_nvcc_compiles_known_architectures_only(build: pathlib.Path) -> None:
    older = """case "$*" in
--list-gpu-arch) printf 'compute_75\\ncompute_80\\ncompute_86\\n'; exit;;
*compute_89*|*compute_9*|*compute_1*) echo 'nvcc fatal: Unsupported gpu architecture' >&2; exit 1;;
esac"""
    wheel = "IET_CUDA=AUTO", "IET_CUDA_ARCHITECTURES=all"
    code, message, compiled = configured(build, *wheel, nvcc=nvcc_of(build, older))
    assert code == 0, message
    assert compiled == {"sm_75", "sm_80", "compute_86,sm_86"}


@posix
@needs_cmake
@needs_nvcc
def test_architectures_of_the_command_line(build: pathlib.Path) -> None:
    code, message, compiled = configured(
        build, "IET_CUDA=ON", "IET_CUDA_ARCHITECTURES=90-real", nvcc=nvcc_of(build)
    )
    assert code == 0, message
    assert compiled == {"sm_90"}


@posix
@needs_cmake
@needs_nvcc
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("printf '9.0\\n9.0\\n12.0\\n'", {"sm_90", "sm_120"}),
        ("echo NVIDIA-SMI has failed; exit 9", {"compute_75"}),
        ("echo No devices were found", {"compute_75"}),
    ],
    ids=["three GPUs", "no driver", "no GPU"],
)
def test_local_builds_compile_for_this_machine(
    script: str, expected: set[str], build: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    path = f"{a_program(tmp_path / 'bin' / 'nvidia-smi', script).parent}:{os.environ['PATH']}"
    code, message, compiled = configured(build, nvcc=nvcc_of(build), PATH=path)
    assert code == 0, message
    assert compiled == expected


@posix
@needs_cmake
@needs_nvcc
def test_ignores_or_rejects_too_old_nvcc(tmp_path: pathlib.Path) -> None:
    too_old = f"""if [ "$*" = --version ]; then "{NVCC}" --version | sed 's/release [0-9.]*/release 10.2/'
else exec "{NVCC}" "$@"
fi"""
    nvcc = a_program(tmp_path / "nvcc", too_old)
    code, message, compiled = configured(tmp_path / "auto", "IET_CUDA=AUTO", nvcc=nvcc)
    assert (code, compiled) == (0, set()), message
    assert "CUDA module: left out, no nvcc 11.0 or later that works was found" in message
    code, message, _ = configured(tmp_path / "auto", "IET_CUDA=ON", nvcc=nvcc)
    assert code != 0
    assert "IET_CUDA=ON, but no nvcc 11.0 or later that works was found" in message
