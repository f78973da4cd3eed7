"""`iet doctor`: backends and a self-test on known answers; whether a server marks, or an engine would."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
from typing import Any

import numpy as np

import iet
import iet.native
from iet import kernels
from iet.cli.options import Commands, add_registry, load_registry, say, secret_mount
from iet.cli.progress import progress
from iet.marks.derivation import derive_subkey
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from iet.native.load import SCHEME_VERSION

PACKAGES = ("numpy", "numba", "tokenizers", "torch", "transformers", "rich")


def add(commands: Commands) -> None:
    """Add `iet doctor`."""
    doctor = commands.add_parser(
        "doctor",
        help="show backends, GPU and versions, and run the self-test; or check that a server marks, or that"
        " an engine will",
    )
    doctor.add_argument(
        "--server", metavar="URL", help="ask this OpenAI-compatible server for text, and audit it"
    )
    doctor.add_argument("--agent", metavar="NAME", help="with --server: agent to ask as")
    doctor.add_argument(
        "--engine",
        choices=["vllm", "sglang"],
        help="without --server: check whether this engine will mark, before it is started on --model; with"
        " --server: what it is (default: vllm)",
    )
    doctor.add_argument(
        "--model",
        help="folder or Hub id of the model; with --server: its name there (default: the first one listed)",
    )
    doctor.add_argument("--tokenizer", help="folder or file, instead of the model's or the registry's")
    doctor.add_argument(
        "--engine-option",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="another option of the engine's command, such as logprobs-mode=raw_logits; may be repeated",
    )
    doctor.add_argument(
        "--tokens",
        type=int,
        help="with --server: tokens to ask for, with and without the agent (default: 800)",
    )
    doctor.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="with --server: for one answer (default: 120)"
    )
    add_registry(doctor)
    doctor.add_argument("--json", action="store_true", help="print as JSON")
    doctor.set_defaults(run=_doctor, check=_check)


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if arguments.server is not None:
        if arguments.agent is None:
            parser.error("--server takes --agent")
        if arguments.engine_option:
            parser.error(
                "--engine-option is of an engine that is not started yet: it does not go with --server"
            )
        return
    if any(getattr(arguments, name) is not None for name in ("agent", "tokens", "timeout")):
        parser.error("--agent, --tokens and --timeout go with --server")
    if arguments.engine is None:
        if arguments.engine_option or any(
            getattr(arguments, name) is not None for name in ("model", "tokenizer", "registry")
        ):
            parser.error("--model, --tokenizer, --registry and --engine-option go with --engine or --server")
    elif arguments.model is None:
        parser.error("--engine takes --model")


def _doctor(arguments: argparse.Namespace) -> int:
    if arguments.server is not None:
        return _ask_server(arguments)
    if arguments.engine is not None:
        return _check_engine(arguments)
    findings = examine()
    backends, checks, code = findings["backends"], findings["checks"], 0 if findings["healthy"] else 1
    if arguments.json:
        print(json.dumps({**findings, "backends": dataclasses.asdict(backends)}, indent=1))
        return code
    isa = f" ({backends.isa}; this machine runs {', '.join(backends.isas)})" if backends.isa else ""
    say("iet {iet} · Python {python} · {machine} · scheme {scheme}".format_map(findings))
    say(f"host backend: {backends.host}{isa}: {backends.cpu}")
    say(f"cuda: {backends.cuda}")
    packages = findings["packages"].items()
    say("packages: " + ", ".join(f"{name} {version or '(missing)'}" for name, version in packages))
    for name, (good, total) in checks.items():
        say(f"self-test {name}: {good} of {total} known answers agree{'' if good == total else '  FAILED'}")
    if not checks:
        say("self-test: the known answers are not installed  FAILED")
    return code


def _check_engine(arguments: argparse.Namespace) -> int:
    from iet.generation.launch import NEEDED, check_engine

    options = dict(option.partition("=")[::2] for option in arguments.engine_option)
    checks = check_engine(
        arguments.engine,
        arguments.model,
        tokenizer=arguments.tokenizer,
        options=options,
        registry=arguments.registry,
        secret_mount=secret_mount(),
    )
    marks, needed = all(check.good is not False for check in checks), NEEDED[arguments.engine]
    if arguments.json:
        findings = [dataclasses.asdict(check) for check in checks]
        print(json.dumps({"marks": marks, "needed": needed, "checks": findings}, indent=1))
        return 0 if marks else 1
    prefix = {True: "", False: "FAILED: ", None: "unknown: "}
    for check in checks:
        say(f"{check.name}: {prefix[check.good]}{check.says}")
    if marks:
        compared = all(check.good for check in checks if check.name in ("model", "tokenizer"))
        condition = "" if compared else ", provided that model and tokenizer are the registry's"
        say(f"texts will be marked if the engine is started with {needed}{condition}")
    else:
        say("FAILED: see above")
    return 0 if marks else 1


def _ask_server(arguments: argparse.Namespace) -> int:
    from iet.cli import server_check
    from iet.report.wording import p_value

    names = ("model", "engine", "tokenizer", "tokens", "timeout")
    options = {name: getattr(arguments, name) for name in names}
    with progress("asking the server") as move:
        findings = server_check.ask(
            arguments.server,
            arguments.agent,
            load_registry(arguments),
            progress=lambda line: move(line, 0),
            **{name: value for name, value in options.items() if value is not None},
        )
    if arguments.json:
        print(json.dumps(findings.to_dict(), indent=1))
        return 0 if findings.arrives else 1
    say(f"{findings.server} · model {findings.model} · agent {findings.agent} · profile {findings.profile}")
    for name, text in (
        (f"text under {findings.agent}", findings.named),
        ("text without an agent", findings.unnamed),
    ):
        if text.status == 200:
            read = f"{text.tokens} tokens, p {p_value(text.log_p)}: {'' if text.marked else 'un'}marked"
        else:
            read = f"refused with HTTP {text.status} ({text.said})"
        say(f"{name}: {read}")
    unknown = f"refused with HTTP {findings.unknown.status}" if findings.unknown.status != 200 else "answered"
    say(f"an unknown name: {unknown}")
    for warning in findings.warnings:
        say(f"warning: {warning}")
    if findings.arrives:
        say(f"the mark of {findings.agent} arrives")
    elif findings.named.status != 200:
        say(f"FAILED: the server refuses {findings.agent}; is it in the server's registry?")
    elif findings.others:
        say(f"FAILED: the mark there is that of {', '.join(findings.others)}, not of {findings.agent}")
    else:
        say(
            f"FAILED: no mark of {findings.agent} at p <= {server_check.LEVEL:g}. Is the processor loaded?"
            " Has the server's registry the same key? Is the tokenizer the model's? Was the text long enough?"
        )
    return 0 if findings.arrives else 1


def examine() -> dict[str, Any]:
    """Return versions and backends, and run the known answers through the backend in use."""
    import platform

    checks = self_test()
    return {
        "iet": iet.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "scheme": str(SCHEME_VERSION),
        "backends": kernels.backends(),
        "packages": {name: _version(name) for name in PACKAGES},
        "checks": checks,
        "healthy": bool(checks) and all(good == total for good, total in checks.values()),
    }


def self_test() -> dict[str, tuple[int, int]]:
    """Return name -> (answers that agreed, answers), empty if the file of known answers is not installed."""
    vectors = _vectors()
    if vectors is None:
        return {}
    checks: dict[str, list[bool]] = {"derive": [], "permute": [], "score": [], "embed": []}
    for entry in vectors["derive"]:
        checks["derive"].append(derive_subkey(bytes.fromhex(entry["secret"])).hex() == entry["subkey"])
    for entry in vectors["permute"]:
        seeds = np.full(len(entry["ids"]), int(entry["seed"], 16), dtype=np.uint64)
        ranks = kernels.permute(entry["ids"], seeds, entry["vocab_size"]).tolist()
        checks["permute"].append(ranks == entry["ranks"])
    for entry in vectors["ops"]:
        registry = Registry.create(
            None,
            vocab_size=entry["vocab_size"],
            unmarked_ids=entry["unmarked_ids"],
            scheme=Scheme(
                **{key: entry[key] for key in ("n_gram", "family", "k_p")},
            ),
        )
        for derived in vectors["derive"]:
            registry.add(derived["subkey"], secret=bytes.fromhex(derived["secret"]))
        scores = kernels.score_tokens(entry["token_ids"], registry)
        checks["score"].append(np.array_equal(scores, np.array([_float32(row) for row in entry["scores"]])))
        marked = entry["embed"]["float32"]
        logits, expected = (
            _float32(marked[key]).reshape(len(entry["slots"]), -1) for key in ("logits", "marked")
        )
        temperature = _float32(entry["kappas"]) / np.float32(registry.profile.scheme.kappa)
        options = {"counts": entry.get("counts"), "temperature": temperature}
        kernels.embed_(logits, entry["contexts"], entry["slots"], registry, **options)
        checks["embed"].append(np.array_equal(logits, expected))
    return {name: (sum(results), len(results)) for name, results in checks.items()}


def _float32(bits: list[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array([int(value, 16) for value in bits], dtype=np.uint32).view(np.float32)


def _vectors() -> dict[str, Any] | None:
    """Return the known answers of the scheme, with the ops of family gumbel."""
    names = f"scheme_v{SCHEME_VERSION}.json", f"gumbel_v{SCHEME_VERSION}.json"
    for path in iet.native.__path__:  # CMake installs them there
        folder = pathlib.Path(path) / "vectors"
        if all((folder / name).is_file() for name in names):
            content, *more = (json.loads((folder / name).read_text()) for name in names)
            return {**content, "ops": [*content["ops"], *(op for check in more for op in check["ops"])]}
    return None


def _version(package: str) -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
