"""The command line: arguments in, results to stdout or files, progress to stderr.

Exit codes: 0 completed, whatever was found; 1 with `--fail-on`, or a failed self-test; 2 usage; 3 failure.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from iet.engines import SCHEMES
from iet.errors import IetError, InputError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show κ or → is no failure
            stream.reconfigure(errors="backslashreplace")
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.run is _audit:
        _check_audit(parser, arguments)
    if arguments.run is _calibrate:
        _check_calibrate(parser, arguments)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader went away (`| head`); keep the interpreter from flushing into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (IetError, OSError) as error:
        print(f"iet: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("iet: interrupted", file=sys.stderr)
        return 3


def _parser() -> argparse.ArgumentParser:
    import iet

    parser = argparse.ArgumentParser(prog="iet", description=(iet.__doc__ or "").split("\n")[0])
    parser.add_argument("--version", action="version", version=f"iet {iet.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="let marked agents write a text, and recover who wrote what")
    demo.add_argument(
        "--topology",
        default="chain",
        choices=["chain", "star_pure", "tree", "star_ring", "circle", "complete"],
        help="who may follow whom (default: chain)",
    )
    demo.add_argument("--agents", type=int, default=4, choices=[4, 5, 6], help="how many write (default: 4)")
    demo.add_argument("--rounds", type=int, default=3, help="stretches of the walk (default: 3)")
    demo.add_argument("--seed", type=int, default=0, help="of keys, walk, lengths and tokens (default: 0)")
    demo.add_argument("--temperature", type=float, default=1.0, help="of the sampler (default: 1.0)")
    demo.add_argument("--top-p", type=float, default=1.0, help="of the sampler (default: 1.0)")
    demo.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("iet-demo"), help="folder (default: iet-demo)"
    )
    _add_decoder(demo)
    demo.add_argument("--json", action="store_true", help="print figures and report as JSON")
    demo.set_defaults(run=_demo)

    audit = commands.add_parser("audit", help="recover from a text who wrote what")
    audit.add_argument("file", help="UTF-8 text, or - for standard input")
    _add_registry(audit)
    audit.add_argument(
        "--tokenizer",
        action="append",
        metavar="[PROFILE=]PATH",
        help="tokenizer.json, if it is not where the registry found it; once for each profile",
    )
    audit.add_argument("--profile", help="id of the only profile to read (default: all)")
    audit.add_argument(
        "--span",
        action="append",
        type=_span,
        metavar="START:END",
        help="read only these characters of the text; may be repeated",
    )
    audit.add_argument(
        "--skip",
        action="append",
        type=_span,
        metavar="START:END",
        help="leave these characters out, such as a prompt or a tool's output; may be repeated",
    )
    audit.add_argument(
        "--scheme",
        choices=["waterfall", *SCHEMES],
        help="read marks of the Waterfall package or of a serving engine, in place of a registry's",
    )
    audit.add_argument(
        "--keys",
        help="its agents and keys: of waterfall integer ids, such as planner=42,critic=43; of an engine a"
        ' JSON file, {"planner": key}, that only its owner may read',
    )
    audit.add_argument("--n-gram", type=int, help="its n (default: 2, of an engine the engine's)")
    audit.add_argument("--k-p", type=int, help="k_p of waterfall (default: 1)")
    audit.add_argument(
        "--parameter",
        action="append",
        metavar="NAME=VALUE",
        help="another one of an engine's scheme, such as vocab_size=32000; may be repeated",
    )
    _add_decoder(audit)
    audit.add_argument(
        "--breaks",
        action="store_true",
        help="expect hand-overs at paragraph breaks, line breaks and ends of sentences (posterior only)",
    )
    audit.add_argument("--model", help="causal language model to read with: folder or id; best the writers'")
    audit.add_argument(
        "--level",
        type=float,
        default=0.01,
        help="share of unmarked texts in which an agent may be found, and highest error of a segment that is"
        " attributed (default: 0.01)",
    )
    audit.add_argument(
        "--decoys",
        type=int,
        default=0,
        help="take p-values from ranks among so many keys that nobody holds, at least the number of agents"
        " divided by the level, or none is found (default: 0, from the null law)",
    )
    audit.add_argument(
        "--known",
        action="append",
        metavar="NAME",
        help="an agent who may have written the text; may be repeated (default: all of the registry)",
    )
    audit.add_argument("--forced", action="store_true", help="give every token an agent, as the paper does")
    audit.add_argument("--json", action="store_true", help="print the report as JSON")
    audit.add_argument("-o", "--output", type=pathlib.Path, help="write the report as JSON to this file")
    audit.add_argument("--no-text", action="store_true", help="leave the text out of the JSON")
    audit.add_argument("--fail-on", choices=["attributed", "unattributed"], help="exit 1 if any text is so")
    audit.set_defaults(run=_audit)

    _add_keys(commands.add_parser("keys", help="make and pass on registries of keys"))

    bench = commands.add_parser("bench", help="time marking and scoring on this machine, beside floors")
    bench.add_argument("--rows", type=int, default=64, help="rows of the batch (default: 64)")
    bench.add_argument("--vocab-size", type=int, default=128256, help="V (default: 128256)")
    bench.add_argument("--tokens", type=int, default=1 << 15, help="of the scored text (default: 32768)")
    bench.add_argument("--seconds", type=float, default=20.0, help="about how long to measure (default: 20)")
    bench.add_argument("--json", action="store_true", help="print as JSON")
    bench.set_defaults(run=_bench)

    calibrate = commands.add_parser(
        "calibrate",
        help="how much text a finding needs, and how often unmarked text of yours is read as marked",
    )
    kind = calibrate.add_mutually_exclusive_group(required=True)
    kind.add_argument(
        "--power",
        action="store_true",
        help="print how many tokens one agent must have written to be found, against entropy, κ and keys",
    )
    kind.add_argument(
        "--null",
        metavar="CORPUS",
        type=pathlib.Path,
        help="audit unmarked text (a file, a folder, or JSON lines with a text each) under drawn keys",
    )
    calibrate.add_argument("--level", type=float, help="of --power (default: 0.01)")
    calibrate.add_argument("--registries", type=int, help="of --null, per text (default: 20)")
    calibrate.add_argument("--profile", help="id of the profile, where the registry has several")
    calibrate.add_argument("--tokenizer", help="where the registry's note of it does not lead there")
    calibrate.add_argument("--seed", type=int, default=0, help="of every draw (default: 0)")
    _add_registry(calibrate)
    calibrate.add_argument("--json", action="store_true", help="print as JSON")
    calibrate.set_defaults(run=_calibrate)

    doctor = commands.add_parser("doctor", help="show backends, GPU and versions, and run the self-test")
    doctor.add_argument("--json", action="store_true", help="print as JSON")
    doctor.set_defaults(run=_doctor)
    return parser


def _check_audit(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    own = [arguments.registry, arguments.profile, arguments.decoys or None]
    theirs = [arguments.keys, arguments.n_gram, arguments.k_p, arguments.parameter]
    if arguments.scheme is None and any(option is not None for option in theirs):
        parser.error("audit: --keys, --n-gram, --k-p and --parameter go with --scheme")
    if arguments.scheme is not None and (
        arguments.keys is None
        or len(arguments.tokenizer or []) != 1
        or any(option is not None for option in own)
    ):
        parser.error("audit: --scheme takes --keys and one --tokenizer, and no registry, profile or decoys")
    unknown = "parameter" if arguments.scheme == "waterfall" else "k_p"
    if arguments.scheme is not None and getattr(arguments, unknown) is not None:
        parser.error(f"audit: --{unknown.replace('_', '-')} does not go with --scheme {arguments.scheme}")


def _check_calibrate(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    of_null = [arguments.registries, arguments.profile, arguments.tokenizer, arguments.registry]
    if arguments.power and any(option is not None for option in of_null):
        parser.error("calibrate: --registries, --profile, --tokenizer and --registry go with --null")
    if arguments.null is not None and arguments.level is not None:
        parser.error("calibrate: --level goes with --power; --null counts at 0.01, 0.001 and 0.0001")


def _span(value: str) -> tuple[int, int]:
    start, colon, end = value.partition(":")
    if not (colon and start.isdecimal() and end.isdecimal()):
        raise argparse.ArgumentTypeError(f"got {value!r}, expected characters START:END, such as 0:120")
    return int(start), int(end)


def _add_decoder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--decoder",
        default="posterior",
        choices=["posterior", "cusum", "window"],
        help="(default: posterior)",
    )


def _add_registry(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-r", "--registry", help="the registry file (default: $IET_REGISTRY)")
    parser.add_argument(
        "--secret-mount", action="store_true", help="accept a read-only mount of any file mode"
    )


def _add_scheme(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokenizer", help="tokenizer.json, a folder that holds one, or iet:demo")
    parser.add_argument(
        "--vocab-size", type=int, help="V, where there is no tokenizer or the model's differs"
    )
    parser.add_argument(
        "--kappa", type=float, help="strength in final logits (default: 0.8; gumbel has none)"
    )
    parser.add_argument("--n-gram", type=int, help="n, 2 to 16 (default: 2; of family gumbel 4)")
    parser.add_argument("--k-p", default="1", help='frequency, or "per-agent" (default: 1)')
    parser.add_argument(
        "--placement",
        default="final",
        choices=["final", "raw"],
        help="which logits κ counts in (default: final)",
    )
    parser.add_argument(
        "--family", default="fourier", choices=["fourier", "square", "gumbel"], help="(default: fourier)"
    )


def _add_keys(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="ACTION")

    init = commands.add_parser("init", help="make a registry without agents")
    init.add_argument("path", help="the new file")
    _add_scheme(init)
    init.set_defaults(run=_keys_init)

    profile = commands.add_parser("profile", help="add a profile, for agents of another model or scheme")
    _add_scheme(profile)
    _add_registry(profile)
    profile.set_defaults(run=_keys_profile)

    add = commands.add_parser("add", help="add agents, each with a new key")
    add.add_argument("names", nargs="+", metavar="NAME")
    add.add_argument("--profile", help="id of the profile, where the registry has several")
    _add_registry(add)
    add.set_defaults(run=_keys_add)

    listing = commands.add_parser("list", help="list agents, epochs and profiles; never keys")
    _add_registry(listing)
    listing.add_argument("--json", action="store_true", help="print as JSON")
    listing.set_defaults(run=_keys_list)

    rotate = commands.add_parser(
        "rotate", help="give agents a new key; text under the old one is still found"
    )
    rotate.add_argument("names", nargs="+", metavar="NAME")
    _add_registry(rotate)
    rotate.set_defaults(run=_keys_rotate)

    export = commands.add_parser("export", help="write a registry that holds only some agents' keys")
    export.add_argument("path", help="the new file")
    export.add_argument("--agents", nargs="+", required=True, metavar="NAME")
    export.add_argument("--all-epochs", action="store_true", help="also keys that were rotated out")
    _add_registry(export)
    export.set_defaults(run=_keys_export)

    merge = commands.add_parser("import", help="take in the agents of another registry file")
    merge.add_argument("path", help="the file to read")
    _add_registry(merge)
    merge.set_defaults(run=_keys_import)


def _load(arguments: argparse.Namespace) -> Any:
    import iet

    return iet.Registry.load(arguments.registry, secret_mount=arguments.secret_mount)


def _demo(arguments: argparse.Namespace) -> int:
    from iet.demo.stage import stage
    from iet.report.terminal import comparison, show, transition_lines

    outcome = stage(
        arguments.out,
        topology=arguments.topology,
        agents=arguments.agents,
        rounds=arguments.rounds,
        seed=arguments.seed,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        decoder=arguments.decoder,
    )
    forced, free = outcome.forced_figures, outcome.figures
    if arguments.json:
        figures = {
            "forced_choice": dataclasses.asdict(forced),
            "unattributed_allowed": dataclasses.asdict(free),
            "true_topology": outcome.true_topology,
            "generation_seconds": outcome.generation_seconds,
            "audit_seconds": outcome.audit_seconds,
        }
        print(json.dumps({**figures, "report": outcome.report.to_dict()}, indent=1))
        return 0
    show(outcome.report)
    print("\nEvery token given to an agent (forced choice, as in the paper), beside the truth:\n")
    comparison(outcome.forced, outcome.conversation.spans)
    there = free.accuracy_where_attributed
    print("\n" + "\n".join(transition_lines(outcome.forced)))
    print(
        f"\nTokenAcc {forced.token_accuracy:.3f} · IoU {forced.mean_iou:.3f}"
        f" · EdgeSim {forced.edge_similarity:.3f} · true graph: {outcome.true_topology}\n"
        f"with evidence at level {outcome.report.level:g}: {free.coverage:.0%} of the tokens attributed"
        + ("" if there is None else f", {there:.1%} of them right")
        + f"\nwritten in {outcome.generation_seconds:.1f} s, audited in {outcome.audit_seconds:.2f} s ·"
        f" {arguments.out}/final.txt, truth.json, team.json\n"
        f"again, from the text alone: iet audit {arguments.out}/final.txt -r {arguments.out}/team.json"
    )
    return 0


def _audit(arguments: argparse.Namespace) -> int:
    import iet
    from iet.report.terminal import show

    # All that can be refused at once comes before what takes time.
    if arguments.output is not None and not arguments.output.parent.is_dir():
        raise InputError(f"{arguments.output}: got a folder that is not there, expected one that is")
    foreign = arguments.scheme is not None
    registry = _foreign_keys(arguments) if foreign else _load(arguments)
    text = _read_text(arguments.file)
    auditor = iet.Auditor(
        registry,
        arguments.decoder,
        arguments.level,
        not arguments.forced,
        profile=arguments.profile,
        tokenizer=None if foreign else _tokenizers(arguments.tokenizer or [], registry),
        model=arguments.model,
        break_odds=arguments.breaks,
        decoys=arguments.decoys,
        known_agents=arguments.known,
    )
    report = auditor.audit(text, spans=arguments.span, skip=arguments.skip)
    if arguments.output is not None:
        report.to_json(arguments.output, text=not arguments.no_text)
    if arguments.json:
        print(json.dumps(report.to_dict(text=not arguments.no_text), indent=1))
    elif arguments.output is None:
        show(report)
    read = (segment for segment in report.segments if not segment.left_out)
    found = {"unattributed" if segment.agent is None else "attributed" for segment in read}
    return 1 if arguments.fail_on in found else 0


def _tokenizers(given: list[str], registry: Any) -> Any:
    """Return the tokenizer that is given, or {profile id: tokenizer}."""
    named = {}
    for value in given:
        profile, equals, path = value.partition("=")
        if equals and profile in registry.profiles:
            named[profile] = path
        elif len(given) > 1:
            raise InputError(
                f"--tokenizer: got {value!r}, expected PROFILE=PATH with one of {list(registry.profiles)}"
            )
        else:
            return value
    return named or None


def _foreign_keys(arguments: argparse.Namespace) -> Any:
    import iet

    if arguments.scheme != "waterfall":
        given = _parameters(arguments.parameter or [])
        if arguments.n_gram is not None:
            given["n_gram"] = arguments.n_gram
        mount = arguments.secret_mount
        return iet.EngineKeys.load(
            arguments.keys, arguments.scheme, tokenizer=arguments.tokenizer[0], secret_mount=mount, **given
        )
    keys: dict[str, int] = {}
    for pair in arguments.keys.split(","):
        name, _, key = (part.strip() for part in pair.rpartition("="))
        if not name or not key.isdecimal() or name in keys:
            raise InputError(f"--keys: got {pair!r}, expected each agent once, such as planner=42,critic=43")
        keys[name] = int(key)
    options = {"n_gram": arguments.n_gram, "k_p": arguments.k_p}
    given = {name: value for name, value in options.items() if value is not None}
    return iet.WaterfallKeys(keys, tokenizer=arguments.tokenizer[0], **given)


def _parameters(given: list[str]) -> dict[str, Any]:
    """Return NAME=VALUE pairs, values in JSON or else as they are."""
    found: dict[str, Any] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not (equals and name.isidentifier()) or name in ("scheme", "path", "tokenizer", "secret_mount"):
            raise InputError(f"--parameter: got {pair!r}, expected NAME=VALUE, such as greenlist_ratio=0.5")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _read_text(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else pathlib.Path(file).read_bytes()
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); expected a UTF-8 text, or -") from None
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        name = "standard input" if file == "-" else file
        raise InputError(
            f"{name}: byte {error.start} is {data[error.start]:#04x}, which is not UTF-8; expected UTF-8 text"
        ) from None


def _keys_init(arguments: argparse.Namespace) -> int:
    import iet

    registry = iet.Registry.create(arguments.path, **_profile(arguments))
    print(f"{registry.path}: profile {registry.profile.id}, no agents yet")
    return 0


def _keys_profile(arguments: argparse.Namespace) -> int:
    registry = _load(arguments)
    profile = registry.add_profile(**_profile(arguments))
    print(f"{registry.path}: profile {profile}; iet keys add --profile {profile} NAME")
    return 0


def _profile(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what `Registry.create` and `add_profile` take."""
    import iet

    k_p: Any = int(arguments.k_p) if arguments.k_p.isdecimal() else arguments.k_p
    scheme = iet.Scheme(
        kappa=arguments.kappa,
        n_gram=arguments.n_gram,
        k_p=k_p,
        family=arguments.family,
        placement=arguments.placement,
    )
    return {"tokenizer": arguments.tokenizer, "vocab_size": arguments.vocab_size, "scheme": scheme}


def _changed(registry: Any, change: Callable[[Any], object]) -> Any:
    """Return a copy in memory with the change: merging it back saves all of it at once, or nothing."""
    import iet

    copy = iet.Registry.loads(registry.dumps())
    change(copy)
    return copy


def _keys_add(arguments: argparse.Namespace) -> int:
    registry = _load(arguments)
    registry.merge(
        _changed(registry, lambda r: [r.add(n, profile=arguments.profile) for n in arguments.names])
    )
    print(f"{registry.path}: {len(registry)} agents")
    return 0


def _keys_list(arguments: argparse.Namespace) -> int:
    registry = _load(arguments)
    if arguments.json:
        agents = {
            name: {
                "profile": registry.profile_of(name).id,
                "epochs": [{"epoch": key.epoch, "created": key.created} for key in registry.keys(name)],
            }
            for name in registry
        }
        profiles = {profile_id: profile.to_dict() for profile_id, profile in registry.profiles.items()}
        print(json.dumps({"digest": registry.digest, "profiles": profiles, "agents": agents}, indent=1))
        return 0
    for profile_id, profile in registry.profiles.items():
        scheme = profile.scheme
        print(
            f"profile {profile_id}: {scheme.family}, κ {scheme.kappa:g}, n {scheme.n_gram}, k_p {scheme.k_p},"
            f" V {profile.vocab_size}, tokenizer {profile.tokenizer_source or 'none'}"
        )
        for name in registry.names(profile_id):
            keys = registry.keys(name)
            print(f"  {name}  epoch {keys[-1].epoch}, made {keys[-1].created}, keys: {len(keys)}")
    return 0


def _keys_rotate(arguments: argparse.Namespace) -> int:
    registry = _load(arguments)
    registry.merge(_changed(registry, lambda copy: [copy.rotate(name) for name in arguments.names]))
    for name in arguments.names:
        print(f"{name}: epoch {registry.keys(name)[-1].epoch}")
    return 0


def _keys_export(arguments: argparse.Namespace) -> int:
    exported = _load(arguments).export(arguments.path, arguments.agents, all_epochs=arguments.all_epochs)
    print(f"{exported.path}: {', '.join(exported)}")
    return 0


def _keys_import(arguments: argparse.Namespace) -> int:
    import iet

    registry = _load(arguments)
    registry.merge(iet.Registry.load(arguments.path))
    print(f"{registry.path}: {len(registry)} agents")
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    from iet import bench

    print("iet: checking against the reference, then measuring ...", file=sys.stderr)
    figures = bench.run(
        rows=arguments.rows,
        vocab_size=arguments.vocab_size,
        tokens=arguments.tokens,
        seconds=arguments.seconds,
    )
    if arguments.json:
        print(json.dumps(figures.to_dict(), indent=1))
    else:
        bench.show(figures)
    return 0


def _calibrate(arguments: argparse.Namespace) -> int:
    from iet import calibrate

    shown = sys.stderr.isatty()

    def progress(line: str) -> None:
        if shown:
            print(f"\riet: {line}\x1b[K", end="", file=sys.stderr, flush=True)

    if arguments.power:
        level = 0.01 if arguments.level is None else arguments.level
        rows = calibrate.power(level=level, seed=arguments.seed, progress=progress)
        found: Any = [dataclasses.asdict(row) for row in rows]
        text = calibrate.power_table(rows)
    else:
        null = calibrate.null(
            _load(arguments),
            calibrate.read_corpus(arguments.null),
            profile=arguments.profile,
            tokenizer=arguments.tokenizer,
            registries=20 if arguments.registries is None else arguments.registries,
            seed=arguments.seed,
            progress=progress,
        )
        found, text = dataclasses.asdict(null), calibrate.null_table(null)
    if shown:
        print("\r\x1b[K", end="", file=sys.stderr)
    print(json.dumps(found, indent=1) if arguments.json else text)
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from iet.doctor import examine

    found = examine()
    if arguments.json:
        print(json.dumps({**dataclasses.asdict(found), "healthy": found.healthy}, indent=1))
        return 0 if found.healthy else 1
    backends = found.backends
    isa = f" ({backends.isa}; this machine runs {', '.join(backends.isas)})" if backends.isa else ""
    print(f"iet {found.iet} · Python {found.python} · {found.machine} · scheme {found.scheme}")
    print(f"host backend: {backends.host}{isa}: {backends.cpu}")
    print(f"cuda: {backends.cuda}")
    print(
        "packages: "
        + ", ".join(f"{name} {version or '(missing)'}" for name, version in found.packages.items())
    )
    for name, (good, total) in found.checks.items():
        print(f"self-test {name}: {good} of {total} known answers agree{'' if good == total else '  FAILED'}")
    if not found.checks:
        print("self-test: the known answers are not installed  FAILED")
    return 0 if found.healthy else 1


if __name__ == "__main__":
    raise SystemExit(main())
