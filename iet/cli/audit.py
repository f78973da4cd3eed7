"""`iet audit`: audit one text or many, and show or write the results."""

from __future__ import annotations

import argparse
import json
import pathlib
from typing import Any

from iet.audit import traces
from iet.cli.many import add_many, are_many, check_many, refuse_file, run_many
from iet.cli.options import (
    Commands,
    add_audit_options,
    add_encoding,
    add_registry,
    add_tokenizer,
    auditor_of,
    load_registry,
    name_and_value,
    refuse_to_replace,
    secret_mount,
    some_path,
    whole,
)
from iet.cli.outputs import FORMATS, formats_of, write_report
from iet.cli.progress import progress
from iet.cli.sign import add_signing, signers_of
from iet.cli.texts import MAXIMUM, conversation_in, read_text
from iet.errors import InputError
from iet.marks.files import shown_path
from iet.marks.foreign.engines import SCHEMES

_OF_DOCUMENTS = ("pages", "fdr", "templates")
"""Options of audits of many documents besides those of `iet.cli.many`."""

_TABLES = (".parquet", ".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".jsonl.zst", ".ndjson.zst")


def add(commands: Commands) -> None:
    """Add `iet audit`."""
    audit = commands.add_parser("audit", help="recover who wrote what from one text or millions")
    audit.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="UTF-8 text, or - for standard input; or, to audit many documents into a folder (-o OUT/):"
        " Parquet, JSON lines (also .gz, .zst) and text files, folders of them, patterns, URIs (s3://...)",
    )
    _add_reading(audit)
    audit.add_argument("--json", action="store_true", help="print the report as JSON")
    audit.add_argument(
        "-o",
        "--output",
        "--out",
        action="append",
        type=some_path,
        metavar="PATH",
        help=f"write the report to this file; its suffix sets the format: {', '.join(FORMATS)}; may be"
        " repeated. Of many documents: write tables to this folder or URI",
    )
    audit.add_argument("--no-text", action="store_true", help="leave the text out of *.json")
    add_signing(audit, "--sign")
    audit.add_argument(
        "--fail-on", choices=["attributed", "unattributed"], help="exit 1 if this is true of any text"
    )
    many = add_many(audit, "documents")
    many.add_argument(
        "--column",
        action="append",
        type=_column,
        default=[],
        metavar="KIND=NAME",
        help='column of the texts (text=NAME; default: "text"), or of token ids instead (ids=NAME; default:'
        ' "token_ids"), and of the documents\' names (id=NAME; default: "id")',
    )
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
        help="count a passage that N documents share only in the first of them (N: 5); reads the input twice",
    )
    audit.set_defaults(run=_audit, check=_check_audit)


def _add_reading(audit: argparse.ArgumentParser) -> None:
    """Add the options that say how a text is read."""
    add_registry(audit)
    add_tokenizer(audit)
    add_encoding(audit)
    audit.add_argument(
        "--max-text",
        type=int,
        default=MAXIMUM,
        metavar="SIZE",
        help="largest text or document, in bytes (of Parquet: characters or ids); of many documents, larger"
        f" ones are listed in the quarantine (default: {MAXIMUM})",
    )
    audit.add_argument(
        "--messages",
        action="store_true",
        help=f"the file is the record of a conversation, as JSON or JSON lines: {traces.NAMES}; who wrote"
        " each message is recovered. iet check checks its names",
    )
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
    audit.add_argument(
        "--parameter",
        action="append",
        type=name_and_value,
        metavar="NAME=VALUE",
        help="a parameter of the scheme, such as n_gram=3 or vocab_size=32000; may be repeated",
    )
    add_audit_options(audit)


def _column(value: str) -> tuple[str, str]:
    kind, equals, name = value.partition("=")
    if not equals or kind not in ("text", "ids", "id"):
        raise argparse.ArgumentTypeError(f"got {value!r:.80}, expected text=NAME, ids=NAME or id=NAME")
    return f"{kind}_column", name


def _span(value: str) -> tuple[int, int]:
    start, colon, end = value.partition(":")
    first, last = whole(start), whole(end)
    if not colon or first is None or last is None:
        raise argparse.ArgumentTypeError(f"got {value!r:.80}, expected characters START:END, such as 0:120")
    return first, last


def _check_audit(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if _is_bulk(arguments):
        check_many(parser, arguments, arguments.inputs, "documents")
        for_one_text = ("span", "skip", "no_text", "as_copied", "messages", "sign", "public")
        for option in for_one_text:
            if getattr(arguments, option):
                parser.error(f"--{option.replace('_', '-')} goes with one text")
    if arguments.reread and not arguments.resume:
        parser.error("--reread goes with --resume")
    _check_reading(parser, arguments)


def _check_reading(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """End with a usage error if options are given that do not go together."""
    if not arguments.allow_unattributed and arguments.attributed == "tokens":
        parser.error("--forced names an agent for every token, --attributed tokens only where it is sure")
    if (arguments.as_copied or arguments.messages) and (arguments.span or arguments.skip):
        parser.error("--span and --skip do not go with --as-copied and --messages")
    if arguments.as_copied and arguments.messages:
        parser.error("--as-copied does not go with --messages, which are read one by one")
    registry_options = [arguments.registry, arguments.profile, arguments.decoys or None]
    registry_options += [arguments.published, arguments.sessions]
    if arguments.scheme is None:
        if arguments.keys is not None or arguments.parameter is not None:
            parser.error("--keys and --parameter go with --scheme")
        return
    if (
        arguments.keys is None
        or len(arguments.tokenizer or []) != 1
        or any(o is not None for o in registry_options)
    ):
        parser.error("--scheme takes --keys and one --tokenizer, and none of a registry's options")


def _is_bulk(arguments: argparse.Namespace) -> bool:
    """Tell whether the inputs are read as many documents."""
    return (
        are_many(arguments, arguments.inputs, arguments.output or [])
        or any(getattr(arguments, name) not in (None, False) for name in _OF_DOCUMENTS)
        or (not arguments.messages and arguments.inputs[0].lower().endswith(_TABLES))
    )


def _audit(arguments: argparse.Namespace) -> int:
    from iet.report.terminal import show

    if _is_bulk(arguments):
        refuse_file(arguments.output[0])
        return _audit_files(arguments, auditor_of(arguments, _keys_of(arguments)))
    # Check all options before the work that takes time.
    file, formats = arguments.inputs[0], formats_of(arguments)
    signers = signers_of(arguments) if arguments.sign else []
    registry = _keys_of(arguments)
    refuse_to_replace(arguments, [file], formats, registry)
    name = "text" if file == "-" else shown_path(pathlib.Path(file).name)
    text, parts = _read(arguments, file)
    with progress("auditing", None if arguments.model is None else 1.0) as move:
        auditor = auditor_of(arguments, registry)
        if auditor.plan.model is not None:
            auditor.plan.model.progress = lambda share: move("reading with the model", share)
        report = auditor.audit(text, **parts)
        write_report(report, auditor, formats, signers, name, text=not arguments.no_text)
    if arguments.json:
        print(json.dumps(report.to_dict(text=not arguments.no_text), indent=1))
    elif formats:
        print("\n".join(map(str, formats)))
    else:
        show(report)
    read_segments = (segment for segment in report.segments if not segment.left_out)
    kinds = {"unattributed" if segment.agent is None else "attributed" for segment in read_segments}
    return 1 if arguments.fail_on in kinds else 0


def _audit_files(arguments: argparse.Namespace, auditor: Any) -> int:
    def work(out: str, **options: Any) -> Any:
        from iet.bulk.files import audit_files

        return audit_files(auditor, arguments.inputs, out, **options)

    options = {name: getattr(arguments, name) for name in _OF_DOCUMENTS}
    options |= {"encoding": arguments.encoding, "max_record": arguments.max_text, **dict(arguments.column)}
    summary = run_many(arguments, work, **options)
    return 1 if arguments.fail_on and getattr(summary, arguments.fail_on) else 0


def _keys_of(arguments: argparse.Namespace) -> Any:
    """Return the keys that a text is read under: a registry's, of waterfall, or of an engine."""
    import iet

    if arguments.scheme is None:
        return load_registry(arguments)
    options = {**_parameters(arguments), "tokenizer": arguments.tokenizer[0]}
    if arguments.scheme == "kgw" and "vocab_size" not in options:
        raise InputError(
            "--parameter: got no vocab_size, expected --parameter vocab_size=N, that of the model's config:"
            " green lists depend on it"
        )
    if arguments.scheme != "waterfall":
        return iet.EngineKeys.load(arguments.keys, arguments.scheme, secret_mount=secret_mount(), **options)
    keys: dict[str, int] = {}
    for pair in arguments.keys.split(","):
        name, _, key = (part.strip() for part in pair.rpartition("="))
        number = whole(key)
        if not name or number is None:
            raise InputError(
                f"--keys: got {pair!r:.80}, expected NAME=ID, an integer, such as planner=42,critic=43"
            )
        if name in keys:
            raise InputError(f"--keys: got {pair!r}, expected each agent once, such as planner=42,critic=43")
        keys[name] = number
    return iet.WaterfallKeys(keys, **options)


_NO_PARAMETERS = ("self", "cls", "path", "scheme", "keys", "tokenizer", "secret_mount")
"""Arguments of `EngineKeys` and its `load` that are no parameters of a scheme."""


def _parameters(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters of --scheme by name."""
    parameters: dict[str, Any] = {}
    for name, value in arguments.parameter or []:
        if name in _NO_PARAMETERS or (arguments.scheme == "waterfall" and name not in ("n_gram", "k_p")):
            raise InputError(f"--parameter: got {name!r}, expected one of --scheme {arguments.scheme}")
        if name in parameters:
            raise InputError(f"--parameter: got {name!r} twice, expected each once")
        parameters[name] = value
    return parameters


def _read(arguments: argparse.Namespace, file: str) -> tuple[str, dict[str, Any]]:
    """Return the text, and the parts of it that are read."""
    text = read_text(file, arguments.encoding, arguments.max_text)
    if not arguments.messages:
        return text, {"spans": arguments.span, "skip": arguments.skip}
    conversation = conversation_in(text, file)
    return conversation.text, {"boundaries": conversation.boundaries}
