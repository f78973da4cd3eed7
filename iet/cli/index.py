"""`iet index`: index the published text of agents, so that a copy of it is no evidence."""

from __future__ import annotations

import argparse
import codecs
import itertools
import json
import re
from collections.abc import Iterator

from iet.cli.options import Commands, add_registry, load_registry, refuse_uris, say
from iet.cli.progress import progress
from iet.cli.texts import decoded, read_bytes
from iet.errors import InputError


def add(commands: Commands) -> None:
    """Add `iet index` and its actions."""
    index = commands.add_parser("index", help="keep hashes of what agents published, for audit --published")
    actions = index.add_subparsers(required=True, metavar="ACTION")

    adding = actions.add_parser(
        "add", help="add texts that an agent published; creates the index if it does not exist"
    )
    adding.add_argument("path", metavar="OUT.idx", help="the folder of the index")
    adding.add_argument(
        "texts",
        nargs="+",
        metavar="FILE",
        help='UTF-8 text, *.jsonl with a "text" in each line, or - for standard input',
    )
    adding.add_argument("--agent", required=True, metavar="NAME", help="who published them")
    adding.add_argument("--tokenizer", metavar="PATH", help="tokenizer.json instead of the registry's path")
    add_registry(adding)
    adding.set_defaults(run=_add)

    show = actions.add_parser("show", help="show how much text of each agent an index holds, and check it")
    show.add_argument("path", metavar="OUT.idx", help="the folder of the index")
    add_registry(show)
    show.set_defaults(run=_show)


def _add(arguments: argparse.Namespace) -> int:
    from iet.marks.published import PublishedIndex

    refuse_uris(arguments.texts)
    registry = load_registry(arguments)
    # Check the agent, the tokenizer and the first text before an index is created.
    registry.open_tokenizer(registry.profile_of(arguments.agent).id, arguments.tokenizer)
    texts = _texts(arguments.texts)
    with progress("adding published text"):
        first = list(itertools.islice(texts, 1))
        index = PublishedIndex(arguments.path, registry, create=True)
        done = index.add(arguments.agent, itertools.chain(first, texts), tokenizer=arguments.tokenizer)
    duplicates = f", {done.known:,} existed" if done.known else ""
    say(f"{arguments.agent}: {done.texts:,} texts added{duplicates}; {done.pairs:,} pairs are new")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from iet.marks.published import PublishedIndex

    index = PublishedIndex(arguments.path, load_registry(arguments))
    index.check()
    lines = [f"{index.texts:,} texts, whole; digest {index.digest}"]
    for name, counts in index.agents.items():
        lines.append(f"{name}: {counts['texts']:,} texts, first to publish {counts['pairs']:,} pairs")
    say("\n".join(lines))
    return 0


def _texts(files: list[str]) -> Iterator[str]:
    """Yield the texts of some files; a file is read when it is its turn."""
    for file in files:
        data = read_bytes(file)
        if not file.lower().endswith(".jsonl"):
            yield decoded(data, None, file)
            continue
        for number, line in enumerate(data.removeprefix(codecs.BOM_UTF8).splitlines(), 1):
            if not line.strip():
                continue
            try:
                text = json.loads(line.decode())["text"]  # from bytes, json.loads would also accept UTF-16
                if not isinstance(text, str):
                    raise TypeError
            except (LookupError, TypeError, ValueError, RecursionError):
                raise InputError(
                    f'{file}: line {number} is no JSON object with a text in "text", expected one'
                ) from None
            if (half := re.search("[\ud800-\udfff]", text)) is not None:
                raise InputError(
                    f"{file}: line {number}: character {half.start()} of its text is the lone surrogate"
                    f" U+{ord(half[0]):04X}, expected text that UTF-8 can hold"
                )
            yield text
