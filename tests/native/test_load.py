"""The status of CUDA; the query initialises nothing, so a process may fork after it."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

from iet.native import load
from tests.support.scripts import python

DRIVER = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void note(const char* what) {
  FILE* file = fopen(getenv("CALLS"), "a");
  fprintf(file, "%d %s\n", (int)getpid(), what);
  fclose(file);
}

int cuDriverGetVersion(int* version) {
  *version = 13000;
  note("cuDriverGetVersion");
  return 0;
}

int cuInit(unsigned flags) {
  note("cuInit");
  return 100;  // CUDA_ERROR_NO_DEVICE
}

int cuGetProcAddress_v2(const char* symbol, void** found, int version, unsigned long flags, int* status) {
  *found = !strcmp(symbol, "cuInit")               ? (void*)cuInit
           : !strcmp(symbol, "cuDriverGetVersion") ? (void*)cuDriverGetVersion
           : !strcmp(symbol, "cuGetProcAddress")   ? (void*)cuGetProcAddress_v2
                                                   : 0;
  if (status) *status = !*found;
  return *found ? 0 : 500;
}

int cuGetProcAddress(const char* symbol, void** found, int version, unsigned long flags) {
  return cuGetProcAddress_v2(symbol, found, version, flags, 0);
}
"""


def test_devices_are_counted_in_a_child_process(tmp_path: pathlib.Path) -> None:
    # A driver without devices that writes down who calls it.
    module, why = load.load("_cuda")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if module is None or compiler is None:
        pytest.skip(f"no C compiler, or {why}")
    (tmp_path / "driver.c").write_text(DRIVER)
    library = tmp_path / "libcuda.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", tmp_path / "driver.c", "-o", library], check=True, capture_output=True
    )
    calls = tmp_path / "calls"
    calls.touch()
    child = python(
        "import os, iet; print(iet.backends().cuda, iet.backends().cuda_devices, os.getpid(), sep='|')",
        LD_LIBRARY_PATH=str(tmp_path),
        CALLS=str(calls),
    )
    message, devices, process = child.stdout.strip().split("|")
    assert (devices, "no CUDA-capable device is detected" in message) == ("0", True), child
    initialised = [line.split()[0] for line in calls.read_text().splitlines() if line.endswith(" cuInit")]
    assert len(initialised) == 1  # one process, once
    assert initialised != [process]


def test_without_a_driver_no_child_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(load.ctypes, "CDLL", missing)
    assert load._devices(None) == (0, "no CUDA driver")
