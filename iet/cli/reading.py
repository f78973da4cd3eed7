"""The options of `iet audit` for reading a text, and the keys, auditor and text that they describe."""

from __future__ import annotations

import argparse
from typing import Any

from iet.cli.options import (
    add_audit_options,
    add_encoding,
    add_registry,
    add_tokenizer,
    audit_options,
    load_registry,
    name_and_value,
    secret_mount,
    tokenizers_of,
    whole,
)
from iet.cli.texts import MAXIMUM, read_text
from iet.errors import InputError
from iet.marks.foreign.engines import SCHEMES


def add_auditing(audit: argparse.ArgumentParser) -> None:
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
        help="the file is the record of a conversation: chat messages, OpenTelemetry spans or Langfuse's"
        " observations (JSON, JSON lines); who wrote each message is recovered. iet check checks its names",
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


def _span(value: str) -> tuple[int, int]:
    start, colon, end = value.partition(":")
    first, last = whole(start), whole(end)
    if not colon or first is None or last is None:
        raise argparse.ArgumentTypeError(f"got {value!r:.80}, expected characters START:END, such as 0:120")
    return first, last


def check_reading(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
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


def keys_of(arguments: argparse.Namespace) -> Any:
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


def auditor_of(arguments: argparse.Namespace, registry: Any) -> Any:
    """Return the auditor that the options describe."""
    import iet

    tokenizer = tokenizers_of(arguments, registry) if arguments.scheme is None else None
    return iet.Auditor(registry, tokenizer=tokenizer, **audit_options(arguments))


def read(arguments: argparse.Namespace, file: str) -> tuple[str, dict[str, Any]]:
    """Return the text, and the parts of it that are read."""
    text = read_text(file, arguments.encoding, arguments.max_text)
    if not arguments.messages:
        return text, {"spans": arguments.span, "skip": arguments.skip}
    conversation = conversation_in(text, file)
    return conversation.text, {"boundaries": conversation.boundaries}


def conversation_in(text: str, file: str) -> Any:
    """Return the messages of a record of a conversation as one text (`traces.joined`), for `--messages`."""
    from iet.audit import traces

    try:
        return traces.joined(traces.read(traces.parse(text.encode())).pieces)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
