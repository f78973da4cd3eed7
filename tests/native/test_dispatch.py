"""Choice of backend, instruction set and threads, and that no result depends on it."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest

import iet
from iet import kernels
from iet.errors import InputError
from iet.marks.families import FAMILIES
from iet.native import load as native
from iet.native import reference
from tests.support.conditions import ISAS
from tests.support.keys import key_table
from tests.support.scripts import python

# By what was asked for, not by what is there: a compiled module that cannot be loaded must fail these tests.
compiled = pytest.mark.skipif(
    os.environ.get("IET_BACKEND") == "reference", reason="IET_BACKEND=reference asks for the reference"
)


def test_import_is_light() -> None:
    heavy = ["torch", "transformers", "numba", "tokenizers"]
    assert python(f"import sys, iet; print([m for m in {heavy} if m in sys.modules])").stdout.strip() == "[]"


# Audits a text with DECODER and prints whether Numba was imported.
AUDIT = """
import sys, iet
registry = iet.Registry.create(None, vocab_size=500)
registry.add_many(["planner", "critic"])
iet.Auditor(registry, DECODER).audit(token_ids=[i * i % 500 for i in range(300)])
print("numba" in sys.modules)
"""


@compiled
@pytest.mark.parametrize("decoder", ["posterior", "cusum", "window"])
def test_only_the_decoder_cusum_imports_numba(decoder: str, tmp_path: pathlib.Path) -> None:
    done = python(AUDIT.replace("DECODER", repr(decoder)), NUMBA_CACHE_DIR=str(tmp_path), NUMBA_OPT="0")
    assert done.stdout.split() == [str(decoder == "cusum")], done.stderr


def test_audit_without_the_compiled_module_names_it() -> None:
    done = python(AUDIT.replace("DECODER", '"posterior"'), IET_BACKEND="reference")
    assert done.returncode == 1
    assert (
        "BackendUnavailable: audits, decoders and foreign marks need the compiled module, but IET_BACKEND"
        in done.stderr
    )


def test_every_public_name_can_be_imported() -> None:
    for name in iet.__all__:
        assert getattr(iet, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = iet.nonsense


def test_missing_native_module_falls_back_with_one_warning() -> None:
    code = """
import sys, warnings
sys.modules["iet.native._cpu"] = None
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import iet
    iet.backends()
print(iet.backends().host, [str(w.message)[:34] for w in seen])
"""
    result = python(code, IET_BACKEND="")
    assert result.stdout.strip() == "reference ['iet runs on its slow reference bac']", result.stderr


@compiled
def test_no_silent_fallback() -> None:
    assert iet.backends().host == "cpu"
    assert iet.backends().isa == iet.backends().isas[-1] or "IET_CPU" in os.environ
    for isa in iet.backends().isas:
        assert python("import iet; print(iet.backends().isa)", IET_CPU=isa).stdout.strip() == isa
    assert python("import iet", IET_CPU="sse9").returncode == 0  # the first op refuses
    wrong = python(
        "import iet; iet.score_tokens([1], iet.Registry.create(None, vocab_size=9))", IET_CPU="sse9"
    )
    assert "BackendUnavailable" in wrong.stderr
    assert "sse9" in wrong.stderr
    assert "reference" in python("import iet; print(iet.backends())", IET_BACKEND="reference").stdout


def test_load_reports_compiler_or_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IET_BACKEND", "")
    built = types.SimpleNamespace(scheme_version=native.SCHEME_VERSION, build="nvcc 12.8 for 75-real 120")
    monkeypatch.setitem(sys.modules, "iet.native._cuda", built)
    message = "the compiled module iet.native._cuda is loaded (nvcc 12.8 for 75-real 120)"
    assert native.load("_cuda") == (built, message)
    monkeypatch.setitem(sys.modules, "iet.native._cuda", None)
    assert native.load("_cuda") == (None, "this installation has no compiled module iet.native._cuda")


@compiled
def test_instruction_sets_have_their_own_loops() -> None:
    slots = [native.cpu.loop_addresses(isa) for isa in ISAS]
    addresses = [address for isa in slots for address in isa]
    assert all(addresses)
    assert len(set(addresses)) == len(addresses)
    with pytest.raises(ValueError, match="unknown"):
        native.cpu.loop_addresses("mmx")


@compiled
def test_rejects_unknown_family_codes() -> None:
    for family in FAMILIES.values():
        native.cpu.KernelParams(300, 2, family.code, 0, 0, 0, 0, 0)
    for code in {*range(5)} - {family.code for family in FAMILIES.values()}:
        with pytest.raises(ValueError, match="unknown family"):
            native.cpu.KernelParams(300, 2, code, 0, 0, 0, 0, 0)


@compiled
def test_best_instruction_set_is_in_use() -> None:
    if sys.platform != "linux" or "IET_CPU" in os.environ:
        pytest.skip("reads /proc/cpuinfo")
    flags = set(pathlib.Path("/proc/cpuinfo").read_text().split("flags", 1)[-1].split("\n", 1)[0].split())
    expected = "baseline"
    if {"avx2", "fma", "f16c"} <= flags:
        expected = "avx2"
        if {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= flags:
            expected = "avx512"
    assert iet.backends().isa == expected


@pytest.mark.parametrize("num_threads", [2, 7])
def test_threads_change_no_result(num_threads: int) -> None:
    keys = key_table(32003, n_gram=3)
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((33, 32003)).astype(np.float32)
    alone, contexts, slots = logits.copy(), rng.integers(0, 32003, (33, 2)), rng.integers(-1, 3, 33)
    kernels.embed_(logits, contexts, slots, keys, num_threads=num_threads)
    kernels.embed_(alone, contexts, slots, keys, num_threads=1)
    assert np.array_equal(logits, alone)
    ids = rng.integers(0, 32003, 30_000)
    scores = [kernels.score_tokens(ids, keys, num_threads=threads) for threads in (1, num_threads)]
    assert np.array_equal(*scores)
    cuts = np.arange(0, 30_001, 100)  # many spans cross from one thread's tokens to another's
    spans = [kernels.score_spans(ids, cuts, keys, num_threads=threads) for threads in (1, num_threads)]
    assert np.array_equal(*spans)


def test_calls_from_several_threads_at_once() -> None:
    keys, rng = key_table(32003), np.random.default_rng(0)
    texts = [rng.integers(0, 32003, 20_000) for _ in range(8)]
    expected = [kernels.score_tokens(ids, keys, num_threads=1) for ids in texts]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        scores = list(pool.map(lambda ids: kernels.score_tokens(ids, keys, num_threads=3), texts * 4))
    assert all(np.array_equal(f, e) for f, e in zip(scores, expected * 4, strict=True))


def test_first_calls_from_several_threads_at_once() -> None:
    ids = np.random.default_rng(0).integers(0, 999, 50)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for _ in range(200):
                keys = key_table(999)  # a table whose native form is not made yet
                threaded = list(pool.map(lambda _, keys=keys: kernels.score_tokens(ids, keys), range(4)))
                assert all(np.array_equal(scores, threaded[0]) for scores in threaded)
    finally:
        sys.setswitchinterval(interval)
    assert np.array_equal(threaded[0], reference.score_tokens(keys.marking, ids))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_child_starts_its_own_threads() -> None:
    script = """
import os, signal, numpy as np, iet
registry = iet.Registry.create(None, vocab_size=32003)
registry.add("planner")
ids = np.random.default_rng(0).integers(0, 32003, 200_000)
expected = iet.score_tokens(ids, registry, num_threads=3)
child = os.fork()
if child == 0:
    signal.alarm(60)  # instead of waiting for ever for threads that are not there
    os._exit(0 if np.array_equal(iet.score_tokens(ids, registry, num_threads=3), expected) else 1)
assert os.waitpid(child, 0)[1] == 0
assert np.array_equal(iet.score_tokens(ids, registry, num_threads=3), expected)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_rejects_invalid_thread_numbers() -> None:
    keys = key_table(100)
    for bad in (0, -1, 1.5, True, "2"):
        with pytest.raises(InputError, match="num_threads"):
            kernels.score_tokens([1, 2], keys, num_threads=bad)


@compiled
def test_environment_sets_the_number_of_threads() -> None:
    script = "import iet.native.load as n; n.check_environment(); print(n.cpu.num_threads())"
    for value, output in (("3", "3"), ("", None), ("0", ""), ("many", ""), ("-1", ""), ("4294967296", "")):
        run = python(script, IET_NUM_THREADS=value)
        if output is None:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
            output = str(min(cores or 1, 256))
        assert run.stdout.strip() == output
        assert output or "IET_NUM_THREADS" in run.stderr
    doctor = python("import sys, iet.cli; sys.exit(iet.cli.main(['doctor']))", IET_NUM_THREADS="0")
    assert doctor.returncode == 3
    assert "IET_NUM_THREADS: got '0'" in doctor.stderr
    assert "Traceback" not in doctor.stderr


@compiled
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_pinned_process_uses_only_its_cores() -> None:
    script = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); import iet.native.load as n"
    assert python(script + "; print(n.cpu.num_threads())", IET_NUM_THREADS="").stdout.strip() == "1"
