"""The command line: arguments in, results to stdout or files, progress to stderr.

Exit codes: 0 completed, whatever was found; 1 with `--fail-on`, or a failed self-test or check of a server;
2 usage; 3 failure.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import itertools
import json
import math
import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from iet.cli.progress import auditing, progress
from iet.errors import BackendUnavailable, IetError, InputError, VerificationError
from iet.marks.foreign.engines import SCHEMES
from iet.report.lines import harmless, width_of, wrapped


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show κ or → is no failure
            stream.reconfigure(errors="backslashreplace")
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.run is _audit:
        _check_audit(parser, arguments)
    if arguments.run in (_audit, _report):
        _check_scheme(parser, arguments)
    if arguments.run is _calibrate:
        _check_calibrate(parser, arguments)
    if arguments.run is _doctor:
        _check_doctor(parser, arguments)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader went away (`| head`); keep the interpreter from flushing into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (IetError, OSError) as error:
        print(f"iet: {harmless(str(error))}", file=sys.stderr)  # it may quote what it read
        return 3
    except KeyboardInterrupt:
        print("iet: interrupted", file=sys.stderr)
        return 3


def _say(text: str) -> None:
    """Print lines that fit a terminal and cannot steer it."""
    print("\n".join(wrapped(text, width_of(sys.stdout))))


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

    audit = commands.add_parser("audit", help="recover from a text, or from millions, who wrote what")
    audit.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="UTF-8 text, or - for standard input; or, to audit many documents into a folder (-o OUT/):"
        " Parquet, JSON lines (also .gz, .zst) and text files, folders of them, patterns",
    )
    _add_auditing(audit)
    audit.add_argument("--json", action="store_true", help="print the report as JSON")
    audit.add_argument(
        "-o",
        "--output",
        "--out",
        metavar="PATH",
        help="write the report as JSON to this file; of many documents, tables to this folder",
    )
    audit.add_argument("--no-text", action="store_true", help="leave the text out of the JSON")
    audit.add_argument("--fail-on", choices=["attributed", "unattributed"], help="exit 1 if any text is so")
    many = audit.add_argument_group("many documents")
    column = many.add_mutually_exclusive_group()
    column.add_argument("--text-column", metavar="NAME", help='column of the texts (default: "text")')
    column.add_argument(
        "--ids-column",
        metavar="NAME",
        help='read token ids from this column (default: "token_ids", if no text)',
    )
    many.add_argument("--id-column", metavar="NAME", help="column that names the documents")
    many.add_argument("--shard", type=_shard, metavar="I/N", help="audit the I-th of N parts of the input")
    many.add_argument("--resume", action="store_true", help="go on where a run was stopped")
    many.add_argument("--workers", type=int, metavar="N", help="processes (default: 1)")
    many.add_argument(
        "--chunk-rows", type=int, metavar="N", help="documents in an output file (default: 4096)"
    )
    many.add_argument(
        "--fdr", type=float, metavar="RATE", help="find the documents to report at this false-discovery rate"
    )
    audit.set_defaults(run=_audit)

    report = commands.add_parser("report", help="audit one text, and write a page, pictures, signed files")
    report.add_argument("file", help="UTF-8 text, or - for standard input")
    report.add_argument(
        "-o",
        "--output",
        action="append",
        required=True,
        type=pathlib.Path,
        metavar="FILE",
        help=f"what to write, told by its end: {', '.join(_FORMS)}; may be repeated",
    )
    report.add_argument(
        "--sign",
        metavar="KEY.pem",
        help="Ed25519 private key, for *.dsse.json (openssl genpkey -algorithm ed25519)",
    )
    report.add_argument("--name", help="of the text, in what is signed (default: that of its file)")
    report.add_argument("--no-text", action="store_true", help="leave the text out of *.json")
    _add_auditing(report)
    report.set_defaults(run=_report)

    verify = commands.add_parser("verify", help="check a signed report, and what it speaks of")
    verify.add_argument("file", type=pathlib.Path, help="the signed report (*.dsse.json)")
    verify.add_argument("--key", required=True, metavar="PUBLIC.pem", help="of the auditor whom you trust")
    verify.add_argument("--text", type=pathlib.Path, metavar="FILE", help="is this the text?")
    verify.add_argument(
        "--opening",
        type=pathlib.Path,
        metavar="FILE",
        help="was it read under this key (iet keys open)? With -r: and does that registry hold the key?",
    )
    verify.add_argument("-r", "--registry", help="was it read under this registry?")
    verify.add_argument("--secret-mount", action="store_true", help=argparse.SUPPRESS)
    verify.add_argument("--json", action="store_true", help="print what was signed as JSON")
    verify.set_defaults(run=_verify)

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

    doctor = commands.add_parser(
        "doctor", help="show backends, GPU and versions, and run the self-test; or check that a server marks"
    )
    doctor.add_argument(
        "--server", metavar="URL", help="ask this OpenAI-compatible server for text, and audit it"
    )
    doctor.add_argument("--agent", metavar="NAME", help="of --server: whose mark is to arrive")
    doctor.add_argument("--model", help="of --server: its name there (default: the first one it lists)")
    doctor.add_argument("--engine", choices=["vllm", "sglang"], help="of --server (default: vllm)")
    doctor.add_argument("--tokenizer", help="of --server, where the registry's note does not lead there")
    doctor.add_argument("--tokens", type=int, help="of --server, with and without the agent (default: 800)")
    doctor.add_argument("--timeout", type=float, help="of --server: seconds for an answer (default: 120)")
    _add_registry(doctor)
    doctor.add_argument("--json", action="store_true", help="print as JSON")
    doctor.set_defaults(run=_doctor)
    return parser


_MANY = ("text_column", "ids_column", "id_column", "shard", "resume", "workers", "chunk_rows", "fdr")
"""Options of audits of many documents."""


def _is_bulk(arguments: argparse.Namespace) -> bool:
    """Tell whether the inputs are read as many documents: by their number, kind, the output, or an option."""
    first, out = arguments.inputs[0], arguments.output
    return (
        len(arguments.inputs) > 1
        or any(getattr(arguments, name) not in (None, False) for name in _MANY)
        or first.lower().endswith(
            (".parquet", ".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".jsonl.zst", ".ndjson.zst")
        )
        or os.path.isdir(first)
        or (any(c in first for c in "*?[") and not os.path.exists(first))
        or (out is not None and (out.endswith(("/", os.sep)) or os.path.isdir(out)))
    )


def _check_audit(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if _is_bulk(arguments):
        if arguments.output is None:
            parser.error("audit: many documents take a folder for the results: -o OUT/")
        if arguments.span or arguments.skip or arguments.no_text:
            parser.error("audit: --span, --skip and --no-text go with one text")
        if "-" in arguments.inputs:
            parser.error("audit: - is one text; many documents come from files")


def _check_scheme(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    command = "audit" if arguments.run is _audit else "report"
    own = [arguments.registry, arguments.profile, arguments.decoys or None]
    theirs = [arguments.keys, arguments.n_gram, arguments.k_p, arguments.parameter]
    if arguments.scheme is None and any(option is not None for option in theirs):
        parser.error(f"{command}: --keys, --n-gram, --k-p and --parameter go with --scheme")
    if arguments.scheme is not None and (
        arguments.keys is None
        or len(arguments.tokenizer or []) != 1
        or any(option is not None for option in own)
    ):
        parser.error(
            f"{command}: --scheme takes --keys and one --tokenizer, and no registry, profile or decoys"
        )
    unknown = "parameter" if arguments.scheme == "waterfall" else "k_p"
    if arguments.scheme is not None and getattr(arguments, unknown) is not None:
        parser.error(f"{command}: --{unknown.replace('_', '-')} does not go with --scheme {arguments.scheme}")


def _check_calibrate(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    of_null = [arguments.registries, arguments.profile, arguments.tokenizer, arguments.registry]
    if arguments.power and any(option is not None for option in of_null):
        parser.error("calibrate: --registries, --profile, --tokenizer and --registry go with --null")
    if arguments.null is not None and arguments.level is not None:
        parser.error("calibrate: --level goes with --power; --null counts at 0.01, 0.001 and 0.0001")


def _check_doctor(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    of_server = [getattr(arguments, name) for name in (*_OF_SERVER, "agent", "registry")]
    if arguments.server is None and any(option is not None for option in of_server):
        parser.error("doctor: --agent, --registry and the options of a server go with --server")
    if arguments.server is not None and arguments.agent is None:
        parser.error("doctor: --server takes --agent")


_OF_SERVER = ("model", "engine", "tokenizer", "tokens", "timeout")
"""Options of `iet doctor` that are those of `iet.cli.live.ask`."""


def _shard(value: str) -> tuple[int, int]:
    index, slash, count = value.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise argparse.ArgumentTypeError(f"got {value!r}, expected I/N with I from 1 to N, such as 1/4")
    return int(index), int(count)


def _span(value: str) -> tuple[int, int]:
    start, colon, end = value.partition(":")
    if not (colon and start.isdecimal() and end.isdecimal()):
        raise argparse.ArgumentTypeError(f"got {value!r}, expected characters START:END, such as 0:120")
    return int(start), int(end)


def _add_auditing(audit: argparse.ArgumentParser) -> None:
    """Add what says how a text is read."""
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

    opening = commands.add_parser(
        "open", help="show that the registry's digest commits to one agent's key, and nothing of the others"
    )
    opening.add_argument("name", metavar="NAME")
    opening.add_argument("--epoch", type=int, help="of the key (default: the one that marks)")
    opening.add_argument(
        "-o", "--output", type=pathlib.Path, help="write it to this file (default: print it)"
    )
    _add_registry(opening)
    opening.set_defaults(run=_keys_open)

    merge = commands.add_parser("import", help="take in the agents of another registry file")
    merge.add_argument("path", help="the file to read")
    _add_registry(merge)
    merge.set_defaults(run=_keys_import)


def _load(arguments: argparse.Namespace) -> Any:
    import iet

    return iet.Registry.load(arguments.registry, secret_mount=arguments.secret_mount)


def _demo(arguments: argparse.Namespace) -> int:
    from iet.cli.demo import stage
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
    _say("\nEvery token given to an agent (forced choice, as in the paper), beside the truth:\n")
    comparison(outcome.forced, outcome.conversation.spans)
    there = free.accuracy_where_attributed
    last = [
        "",
        *transition_lines(outcome.forced),
        "",
        f"TokenAcc {forced.token_accuracy:.3f} · IoU {forced.mean_iou:.3f}"
        f" · EdgeSim {forced.edge_similarity:.3f} · true graph: {outcome.true_topology}",
        f"with evidence at level {outcome.report.level:g}: {free.coverage:.0%} of the tokens attributed"
        + ("" if there is None else f", {there:.1%} of them right")
        + f"\nwritten in {outcome.generation_seconds:.1f} s, audited in {outcome.audit_seconds:.2f} s ·"
        f" {arguments.out}/final.txt, truth.json, team.json, report.html (open it in a browser)\n"
        f"again, from the text alone: iet audit {arguments.out}/final.txt -r {arguments.out}/team.json",
    ]
    _say("\n".join(last))
    return 0


def _audit(arguments: argparse.Namespace) -> int:
    from iet.report.terminal import show

    # All that can be refused at once comes before what takes time.
    bulk, output = _is_bulk(arguments), arguments.output and pathlib.Path(arguments.output)
    if output and bulk and output.suffix == ".json" and not output.is_dir():
        raise InputError(f"{output}: got a file for many documents, expected a folder for the tables")
    if output and not bulk and not output.parent.is_dir():
        raise InputError(f"{output}: got a folder that is not there, expected one that is")
    registry = _keys_of(arguments)
    text = "" if bulk else _read_text(arguments.inputs[0])
    if bulk:
        return _audit_files(arguments, _auditor(arguments, registry))
    with auditing():
        report = _auditor(arguments, registry).audit(text, spans=arguments.span, skip=arguments.skip)
    if output:
        report.to_json(output, text=not arguments.no_text)
    if arguments.json:
        print(json.dumps(report.to_dict(text=not arguments.no_text), indent=1))
    elif not output:
        show(report)
    read = (segment for segment in report.segments if not segment.left_out)
    found = {"unattributed" if segment.agent is None else "attributed" for segment in read}
    return 1 if arguments.fail_on in found else 0


def _keys_of(arguments: argparse.Namespace) -> Any:
    """Return the keys that a text is read under."""
    return _load(arguments) if arguments.scheme is None else _foreign_keys(arguments)


def _auditor(arguments: argparse.Namespace, registry: Any) -> Any:
    import iet

    given = arguments.tokenizer or []
    return iet.Auditor(
        registry,
        arguments.decoder,
        arguments.level,
        not arguments.forced,
        profile=arguments.profile,
        tokenizer=_tokenizers(given, registry) if arguments.scheme is None else None,
        model=arguments.model,
        break_odds=arguments.breaks,
        decoys=arguments.decoys,
        known_agents=arguments.known,
    )


_FORMS = (".html", ".prov.json", ".dsse.json", ".json", ".dot", ".svg", ".png", ".pdf")
"""Ends of the files that `iet report` writes; the first that fits is meant."""


def _report(arguments: argparse.Namespace) -> int:
    from iet.report.model import write_file

    # All that can be refused at once comes before what takes time.
    forms = {}
    for path in arguments.output:
        form = next((form for form in _FORMS if path.name.endswith(form)), None)
        if form is None:
            raise InputError(f"{path}: got a name that ends otherwise, expected one of {', '.join(_FORMS)}")
        if not path.parent.is_dir():
            raise InputError(f"{path}: got a folder that is not there, expected one that is")
        forms[path] = form
    if (arguments.sign is None) == (".dsse.json" in forms.values()):
        raise InputError("--sign: got one without the other, expected a key and an output *.dsse.json")
    if arguments.sign is not None:
        from iet.report import signed

        key = signed.load_private_key(arguments.sign)
    if not {".svg", ".png", ".pdf"}.isdisjoint(forms.values()):
        _matplotlib()
    registry = _keys_of(arguments)
    name = arguments.name or ("text" if arguments.file == "-" else pathlib.Path(arguments.file).name)
    text = _read_text(arguments.file)
    with auditing():
        found = _auditor(arguments, registry).audit(text, spans=arguments.span, skip=arguments.skip)
        made = {}
        for path, form in forms.items():
            if form == ".html":
                made[path] = found.to_html().encode() + b"\n"
            elif form == ".prov.json":
                made[path] = found.to_prov().encode() + b"\n"
            elif form == ".json":
                made[path] = found.to_json(text=not arguments.no_text).encode() + b"\n"
            elif form == ".dot":
                made[path] = found.transitions.to_dot().encode() + b"\n"
            elif form == ".dsse.json":
                made[path] = signed.sign(found, key, name=name)
            else:
                made[path] = _picture(found, form)
    for path, data in made.items():  # all of them or, where one cannot be made, none
        write_file(path, data)
        print(path)
    return 0


def _matplotlib() -> None:
    try:
        import matplotlib
    except ImportError as error:
        raise BackendUnavailable(f"plotting: {error}; pip install matplotlib") from None
    matplotlib.use("Agg")


def _picture(report: Any, form: str) -> bytes:
    drawn = io.BytesIO()
    report.plot().figure.savefig(drawn, format=form[1:], dpi=150)
    return drawn.getvalue()


def _verify(arguments: argparse.Namespace) -> int:
    import iet
    from iet.marks.commitment import Opening
    from iet.report import signed

    public = signed.load_public_key(arguments.key)
    envelope = _read_bytes(arguments.file)
    text = None if arguments.text is None else _read_bytes(arguments.text)
    registry = opening = None
    if arguments.registry is not None:
        registry = iet.Registry.load(arguments.registry, secret_mount=arguments.secret_mount)
    if arguments.opening is not None:
        try:
            opening = Opening.from_dict(json.loads(_read_bytes(arguments.opening)))
        except ValueError as error:  # InputError is one
            raise InputError(f"{arguments.opening}: {error}") from None
    try:
        verified = signed.verify(envelope, public)
        verified.check(text=text, registry=registry, opening=opening)
    except VerificationError as error:
        print(f"iet: {arguments.file}: not verified: {harmless(str(error))}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(verified.statement, indent=1))
        return 0
    report, subject = verified.report, verified.statement["subject"][0]
    found = [name for name, log_p in report["evidence"].items() if log_p <= math.log(report["level"])]
    checked = [what for what in ("text", "registry", "opening") if getattr(arguments, what) is not None]
    lines = (
        f"verified: signed by {verified.key_id}, {verified.audited}\n"
        f"text {subject['name']!r}, sha256 {subject['digest']['sha256']}\n"
        f"registry {report['registry_digest']}\n"
        f"decoder {report['decoder']['name']}, level {report['level']:g}\n"
        f"agents found: {', '.join(found) or 'none'}; {report['coverage']:.0%} attributed\n"
        f"compared with it: {', '.join(checked) or 'nothing (--text, -r, --opening)'}"
    )
    _say(lines)
    return 0


def _read_bytes(path: pathlib.Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def _audit_files(arguments: argparse.Namespace, auditor: Any) -> int:
    try:
        from iet.bulk import files
    except ImportError as error:
        raise BackendUnavailable(
            f'many documents need {error.name}; pip install "implicit-execution-tracing[bulk]"'
        ) from None

    for name, value in files.ONE_THREAD.items():  # a worker has one thread, and this process is the only one
        os.environ.setdefault(name, value)
    last = 0.0

    def tell(state: files.Progress) -> None:
        nonlocal last
        move(str(state), state.share)
        if not sys.stderr.isatty() and state.seconds - last >= 60:  # a log keeps a line a minute
            last = state.seconds
            print(f"iet: {state}", file=sys.stderr, flush=True)

    given = {name: getattr(arguments, name) for name in _MANY}
    options = {name: value for name, value in given.items() if value is not None}
    with auditing(1.0) as move:
        summary = files.audit_files(auditor, arguments.inputs, arguments.output, progress=tell, **options)
    if arguments.json:
        print(json.dumps(dataclasses.asdict(summary), indent=1))
    else:
        _say("\n".join(summary.lines()))
    return 1 if arguments.fail_on and getattr(summary, arguments.fail_on) else 0


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


_READING = "reading the tokenizer"


def _keys_init(arguments: argparse.Namespace) -> int:
    import iet

    with progress(_READING):
        registry = iet.Registry.create(arguments.path, **_profile(arguments))
    print(f"{registry.path}: profile {registry.profile.id}, no agents yet")
    return 0


def _keys_profile(arguments: argparse.Namespace) -> int:
    registry = _load(arguments)
    with progress(_READING):
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
        _say(
            f"profile {profile_id}: {scheme.family}, κ {scheme.kappa:g}, n {scheme.n_gram}, k_p {scheme.k_p},"
            f" V {profile.vocab_size}, tokenizer {profile.tokenizer_source or 'none'}"
        )
        for name in registry.names(profile_id):
            keys = registry.keys(name)
            _say(f"  {name}  epoch {keys[-1].epoch}, made {keys[-1].created}, keys: {len(keys)}")
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


def _keys_open(arguments: argparse.Namespace) -> int:
    from iet.report.model import write_file

    opening = json.dumps(_load(arguments).open_key(arguments.name, arguments.epoch).to_dict(), indent=1)
    if arguments.output is None:
        print(opening)
    else:
        write_file(arguments.output, opening.encode() + b"\n")
    return 0


def _keys_import(arguments: argparse.Namespace) -> int:
    import iet

    registry = _load(arguments)
    registry.merge(iet.Registry.load(arguments.path))
    print(f"{registry.path}: {len(registry)} agents")
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    from iet.cli import bench

    with progress("checking against the reference, then measuring"):
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
    from iet.audit import calibration as calibrate

    if arguments.power:
        level = 0.01 if arguments.level is None else arguments.level
        began = itertools.count()
        with progress("calibrating", len(calibrate.ENTROPIES) * (len(calibrate.KAPPAS) + 1)) as move:
            rows = calibrate.power(
                level=level, seed=arguments.seed, progress=lambda line: move(line, next(began))
            )
        found: Any = [dataclasses.asdict(row) for row in rows]
        text = calibrate.power_table(rows)
    else:
        with auditing() as move:
            null = calibrate.null(
                _load(arguments),
                calibrate.read_corpus(arguments.null),
                profile=arguments.profile,
                tokenizer=arguments.tokenizer,
                registries=20 if arguments.registries is None else arguments.registries,
                seed=arguments.seed,
                progress=lambda line: move(line, 0),
            )
        found, text = dataclasses.asdict(null), calibrate.null_table(null)
    print(json.dumps(found, indent=1) if arguments.json else text)
    return 0


def _ask_server(arguments: argparse.Namespace) -> int:
    from iet.cli import live
    from iet.report.model import p_value

    options = {name: getattr(arguments, name) for name in _OF_SERVER}
    with progress("asking the server") as move:
        found = live.ask(
            arguments.server,
            arguments.agent,
            _load(arguments),
            progress=lambda line: move(line, 0),
            **{name: value for name, value in options.items() if value is not None},
        )
    if arguments.json:
        print(json.dumps(found.to_dict(), indent=1))
        return 0 if found.arrives else 1
    _say(f"{found.server} · model {found.model} · agent {found.agent} · profile {found.profile}")
    for name, text in ((f"text under {found.agent}", found.named), ("text without an agent", found.unnamed)):
        if text.status == 200:
            read = f"{text.tokens} tokens, p {p_value(text.log_p)}: {'' if text.marked else 'un'}marked"
        else:
            read = f"refused with HTTP {text.status} ({text.said})"
        _say(f"{name}: {read}")
    unknown = f"refused with HTTP {found.unknown.status}" if found.unknown.status != 200 else "answered"
    _say(f"a name that nobody has: {unknown}")
    for warning in found.warnings:
        _say(f"warning: {warning}")
    if found.arrives:
        _say(f"the mark of {found.agent} arrives")
    elif found.named.status != 200:
        _say(f"FAILED: the server refuses {found.agent}; is it in the server's registry?")
    elif found.others:
        _say(f"FAILED: the mark there is that of {', '.join(found.others)}, not of {found.agent}")
    else:
        _say(
            f"FAILED: no mark of {found.agent} at p <= {live.LEVEL:g}. Is the processor loaded, has its"
            " registry the key that this one has, is the tokenizer the model's, was the text long enough?"
        )
    return 0 if found.arrives else 1


def _doctor(arguments: argparse.Namespace) -> int:
    if arguments.server is not None:
        return _ask_server(arguments)
    from iet.cli.doctor import examine

    found = examine()
    if arguments.json:
        print(json.dumps({**dataclasses.asdict(found), "healthy": found.healthy}, indent=1))
        return 0 if found.healthy else 1
    backends = found.backends
    isa = f" ({backends.isa}; this machine runs {', '.join(backends.isas)})" if backends.isa else ""
    _say(f"iet {found.iet} · Python {found.python} · {found.machine} · scheme {found.scheme}")
    _say(f"host backend: {backends.host}{isa}: {backends.cpu}")
    _say(f"cuda: {backends.cuda}")
    _say(
        "packages: "
        + ", ".join(f"{name} {version or '(missing)'}" for name, version in found.packages.items())
    )
    for name, (good, total) in found.checks.items():
        _say(f"self-test {name}: {good} of {total} known answers agree{'' if good == total else '  FAILED'}")
    if not found.checks:
        _say("self-test: the known answers are not installed  FAILED")
    return 0 if found.healthy else 1
