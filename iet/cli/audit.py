"""`iet audit` and `iet report`: read texts, and show, write or sign what was found."""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from iet.cli.options import Commands, add_decoder, add_registry, load_registry, say
from iet.cli.progress import auditing
from iet.errors import BackendUnavailable, InputError, missing
from iet.marks.files import write_file
from iet.marks.foreign.engines import SCHEMES

_MANY = (
    *("text_column", "ids_column", "id_column", "shard", "resume", "reread", "workers", "chunk_rows"),
    *("max_record", "strict", "csv", "pages", "fdr", "templates"),
)
"""Options of audits of many documents."""

_FORMS = (".html", ".prov.json", ".dsse.json", ".json", ".dot", ".svg", ".png", ".pdf")
"""Ends of the files that `iet report` writes; the first that fits is meant."""


def add(commands: Commands) -> None:
    """Add `iet audit` and `iet report`."""
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
    many.add_argument(
        "--reread", action="store_true", help="with --resume: audit anew the files that have changed since"
    )
    many.add_argument("--workers", type=int, metavar="N", help="processes (default: 1)")
    many.add_argument(
        "--chunk-rows", type=int, metavar="N", help="documents in an output file (default: 4096)"
    )
    many.add_argument(
        "--max-record",
        type=int,
        metavar="SIZE",
        help="largest document, in bytes (of Parquet: characters or ids); larger ones are listed in the"
        " quarantine (default: 8388608)",
    )
    many.add_argument("--strict", action="store_true", help="fail if a file is not read, or not to its end")
    many.add_argument("--csv", action="store_true", help="also write the tables as CSV")
    many.add_argument(
        "--pages",
        action="store_true",
        help="also write index.html, a row for each document, and a page for each finding",
    )
    many.add_argument(
        "--fdr", type=float, metavar="RATE", help="find the documents to report at this false-discovery rate"
    )
    many.add_argument(
        "--templates",
        type=int,
        nargs="?",
        const=5,
        metavar="N",
        help="let a passage that N documents share count in the first of them alone (N: 5), by a pass before",
    )
    audit.set_defaults(run=_audit, check=_check_audit)

    report = commands.add_parser("report", help="audit texts, and write pages, pictures, signed files")
    report.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="UTF-8 text, or - for standard input; or several, folders and patterns, into a folder (-o OUT/)",
    )
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
    report.set_defaults(run=_report, check=_check_scheme)


def _add_auditing(audit: argparse.ArgumentParser) -> None:
    """Add the options that say how a text is read."""
    add_registry(audit)
    audit.add_argument(
        "--tokenizer",
        action="append",
        metavar="[PROFILE=]PATH",
        help="tokenizer.json, its folder or a model on the Hub (owner/name), if it is not where the registry"
        " found it; once for each profile",
    )
    audit.add_argument(
        "--encoding",
        metavar="NAME",
        help="of text files, such as cp1252 (default: UTF-8, or what a mark of byte order says)",
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
    add_decoder(audit)
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
        "--attributed",
        default="segment",
        choices=["segment", "tokens"],
        help="name whole segments, or only the words that are sure at the level (posterior only; default:"
        " segment)",
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
    audit.add_argument(
        "--published",
        metavar="OUT.idx",
        help="take what is in this index of published text (iet index) for no evidence: it can be quoted",
    )
    audit.add_argument("--forced", action="store_true", help="give every token an agent, as the paper does")


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


def _check_audit(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if _is_bulk(arguments):
        if arguments.output is None:
            parser.error("many documents take a folder for the results: -o OUT/")
        if arguments.span or arguments.skip or arguments.no_text:
            parser.error("--span, --skip and --no-text go with one text")
        if "-" in arguments.inputs:
            parser.error("- is one text; many documents come from files")
    _check_scheme(parser, arguments)


def _check_scheme(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    own = [arguments.registry, arguments.profile, arguments.decoys or None, arguments.published]
    theirs = [arguments.keys, arguments.n_gram, arguments.k_p, arguments.parameter]
    if arguments.scheme is None:
        if any(option is not None for option in theirs):
            parser.error("--keys, --n-gram, --k-p and --parameter go with --scheme")
        return
    if arguments.keys is None or len(arguments.tokenizer or []) != 1 or any(o is not None for o in own):
        parser.error("--scheme takes --keys and one --tokenizer, and no registry, profile, decoys or index")
    unknown = "parameter" if arguments.scheme == "waterfall" else "k_p"
    if getattr(arguments, unknown) is not None:
        parser.error(f"--{unknown.replace('_', '-')} does not go with --scheme {arguments.scheme}")


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


def _audit(arguments: argparse.Namespace) -> int:
    from iet.report.terminal import show

    # Refuse what can be refused at once before the work that takes time.
    bulk, output = _is_bulk(arguments), arguments.output and pathlib.Path(arguments.output)
    if output and bulk and output.suffix == ".json" and not output.is_dir():
        raise InputError(f"{output}: got a file for many documents, expected a folder for the tables")
    if output and not bulk and not output.suffix and not output.exists():
        raise InputError(
            f"{output}: is it a file or a folder? expected a name with a suffix, such as {output}.json, for"
            f" the report, or {output}/ for the tables of many documents"
        )
    if output and not bulk and not output.parent.is_dir():
        raise InputError(f"{output}: got a folder that is not there, expected one that is")
    registry = _keys_of(arguments)
    if bulk:
        return _audit_files(arguments, _auditor(arguments, registry))
    text = _read_text(arguments.inputs[0], arguments.encoding)
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


def _audit_files(arguments: argparse.Namespace, auditor: Any) -> int:
    try:
        from iet.bulk import files, workers
        from iet.bulk.progress import Progress
        from iet.bulk.sources import told_of
    except ImportError as error:
        raise missing(f"many documents need {error.name}", "bulk") from None

    # A worker has one thread, and this process is the only one.
    for name, value in workers.ONE_THREAD.items():
        os.environ.setdefault(name, value)
    last = 0.0

    def tell(state: Progress) -> None:
        nonlocal last
        move(str(state), state.share)
        if not sys.stderr.isatty() and state.seconds - last >= 60:  # a log keeps a line a minute
            last = state.seconds
            print(f"iet: {state}", file=sys.stderr, flush=True)

    arguments.interrupted = "what is done is kept, and the same command with --resume goes on from there"
    given = {name: getattr(arguments, name) for name in _MANY}
    options = {name: value for name, value in given.items() if value is not None}
    options["encoding"] = arguments.encoding
    with auditing(1.0) as move:
        summary = files.audit_files(auditor, arguments.inputs, arguments.output, progress=tell, **options)
    if summary.not_read:
        print(f"iet: {told_of(summary.not_read)}", file=sys.stderr)
    if arguments.json:
        print(json.dumps(dataclasses.asdict(summary), indent=1))
    else:
        say("\n".join(summary.lines()))
    return 1 if arguments.fail_on and getattr(summary, arguments.fail_on) else 0


def _keys_of(arguments: argparse.Namespace) -> Any:
    """Return the keys that a text is read under: a registry's, of waterfall, or of an engine."""
    import iet

    if arguments.scheme is None:
        return load_registry(arguments)
    given = {name: getattr(arguments, name) for name in ("n_gram", "k_p")}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    options["tokenizer"] = arguments.tokenizer[0]
    if arguments.scheme != "waterfall":
        options = {**_parameters(arguments.parameter or []), **options}
        return iet.EngineKeys.load(
            arguments.keys, arguments.scheme, secret_mount=arguments.secret_mount, **options
        )
    keys: dict[str, int] = {}
    for pair in arguments.keys.split(","):
        name, _, key = (part.strip() for part in pair.rpartition("="))
        if not name or not key.isdecimal() or name in keys:
            raise InputError(f"--keys: got {pair!r}, expected each agent once, such as planner=42,critic=43")
        keys[name] = int(key)
    return iet.WaterfallKeys(keys, **options)


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
        attributed=arguments.attributed,
        published=arguments.published,
    )


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


def _read_text(file: str, encoding: str | None) -> str:
    from iet.audit.documents import check_encoding, text_of

    check_encoding(encoding)
    try:
        data = sys.stdin.buffer.read() if file == "-" else pathlib.Path(file).read_bytes()
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); expected a UTF-8 text, or -") from None
    name = "standard input" if file == "-" else file
    if not data:
        raise InputError(f"{name}: got nothing, expected text")
    try:
        return text_of(data, encoding, name="FILE" if file == "-" else file)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def _report(arguments: argparse.Namespace) -> int:
    # Refuse what can be refused at once before the work that takes time.
    file, forms = arguments.files[0], {}
    from iet.cli.reports import read_with

    if len(arguments.files) > 1 or os.path.isdir(file):
        return _report_many(arguments)
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
    name = arguments.name or ("text" if file == "-" else pathlib.Path(file).name)
    text = _read_text(file, arguments.encoding)
    with auditing():
        auditor = _auditor(arguments, registry)
        found = auditor.audit(text, spans=arguments.span, skip=arguments.skip)
        texts: dict[str, Callable[[], str]] = {
            ".html": lambda: found.to_html(about=[name, read_with(auditor)]),
            ".prov.json": found.to_prov,
            ".json": lambda: found.to_json(text=not arguments.no_text),
            ".dot": found.transitions.to_dot,
        }
        made = {}
        for path, form in forms.items():
            if form in texts:
                made[path] = texts[form]().encode() + b"\n"
            elif form == ".dsse.json":
                made[path] = signed.sign(found, key, name=name)
            else:
                made[path] = _picture(found, form)
    for path, data in made.items():  # all of them or, where one cannot be made, none
        write_file(path, data)
        print(path)
    return 0


def _report_many(arguments: argparse.Namespace) -> int:
    from iet.cli.reports import report_many

    (out, *more) = arguments.output
    form = next((form for form in _FORMS if out.name.endswith(form)), None)
    one = [arguments.sign, arguments.name, arguments.span, arguments.skip]
    if more or form or any(option is not None for option in one) or "-" in arguments.files:
        raise InputError(
            "report: got several texts with what goes with one (a file or more as output, --sign, --name,"
            " --span, --skip, -), expected one folder: -o OUT/"
        )
    auditor = _auditor(arguments, _keys_of(arguments))
    with auditing():
        report_many(arguments.files, out, auditor, lambda file: _read_text(file, arguments.encoding))
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
