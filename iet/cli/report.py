"""`iet report`: audit texts, and write pages, plots and signed files, or a folder of pages with an index."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import io
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from iet.cli.options import Commands, refuse_to_replace, refuse_uris, some_path
from iet.cli.progress import auditing
from iet.cli.reading import add_auditing, auditor_of, check_reading, keys_of, read
from iet.cli.sign import add_signing, signers_of
from iet.cli.texts import read_text
from iet.errors import BackendUnavailable, InputError
from iet.marks.files import shown_path, write_file

_FORMS = (".html", ".prov.json", ".dsse.json", ".json", ".dot", ".svg", ".png", ".pdf")
"""Suffixes of the files that `iet report` writes; the first that fits is used."""


def add(commands: Commands) -> None:
    """Add `iet report`."""
    report = commands.add_parser("report", help="audit texts, and write pages, plots, signed files")
    report.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="UTF-8 text, or - for standard input; several texts, folders and patterns with -o OUT/",
    )
    report.add_argument(
        "-o",
        "--output",
        action="append",
        required=True,
        type=some_path,
        metavar="FILE",
        help=f"file to write; its extension sets the format: {', '.join(_FORMS)}; may be repeated",
    )
    add_signing(report, "--sign")
    report.add_argument("--name", help="name of the text in a signed report (default: the file's name)")
    report.add_argument("--no-text", action="store_true", help="leave the text out of *.json")
    add_auditing(report)
    report.set_defaults(run=_report, check=check_reading)


def _report(arguments: argparse.Namespace) -> int:
    # Check all arguments before the work that takes time.
    refuse_uris([*arguments.files, *arguments.output])
    file, forms = arguments.files[0], {}
    if _are_many(arguments):
        return _report_many(arguments)
    for path in map(pathlib.Path, arguments.output):
        form = next((form for form in _FORMS if path.name.endswith(form)), None)
        if form is None:
            raise InputError(
                f"{path}: got an unknown suffix, expected one of {', '.join(_FORMS)}, or {path}/ for a folder"
                " with an index"
            )
        if not path.parent.is_dir():
            raise InputError(f"{path}: its folder does not exist, expected an existing one")
        forms[path] = form
    if (arguments.sign is None) == (".dsse.json" in forms.values()):
        raise InputError("--sign: got one without the other, expected a key and an output *.dsse.json")
    if arguments.public and arguments.sign is None:
        raise InputError("--public: got one without --sign, expected the key that it belongs to")
    if arguments.sign is not None:
        from iet.report import sign

        signers = signers_of(arguments)
    if not {".svg", ".png", ".pdf"}.isdisjoint(forms.values()):
        _need_matplotlib()
    registry = keys_of(arguments)
    refuse_to_replace(arguments, [file], forms, registry)
    name = shown_path(arguments.name or ("text" if file == "-" else pathlib.Path(file).name))
    text, parts = read(arguments, file)
    with auditing():
        auditor = auditor_of(arguments, registry)
        report = auditor.audit(text, **parts)
        texts: dict[str, Callable[[], str]] = {
            ".html": lambda: report.to_html(about=[name, _provenance(auditor)]),
            ".prov.json": report.to_prov,
            ".json": lambda: report.to_json(text=not arguments.no_text),
            ".dot": report.transitions.to_dot,
        }
        made = {}
        for path, form in forms.items():
            if form in texts:
                made[path] = texts[form]().encode() + b"\n"
            elif form == ".dsse.json":
                made[path] = sign.sign(report, signers, name=name)
            else:
                made[path] = _plot(report, form)
    for path, data in made.items():  # written only if all forms could be made
        write_file(path, data)
    print("\n".join(map(str, made)))
    return 0


def _are_many(arguments: argparse.Namespace) -> bool:
    """Return whether several texts, or a folder for the output, are asked for."""
    file, out = arguments.files[0], arguments.output[0]
    return (
        len(arguments.files) > 1
        or os.path.isdir(file)
        or (any(c in file for c in "*?[") and not os.path.exists(file))
        or out.endswith(("/", os.sep))
        or os.path.isdir(out)
    )


def _report_many(arguments: argparse.Namespace) -> int:
    out, more = pathlib.Path(arguments.output[0]), arguments.output[1:]
    form = next((form for form in _FORMS if out.name.endswith(form)), None)
    for_one_text = [arguments.sign, arguments.public or None, arguments.name, arguments.span, arguments.skip]
    for_one_text += [arguments.messages or None, arguments.no_text or None]
    if more or form or any(option is not None for option in for_one_text) or "-" in arguments.files:
        raise InputError(
            "report: got several texts, or a folder for the output, with options for one text (files as"
            " output, --sign, --name, --span, --skip, --messages, --no-text, -), expected one folder:"
            " -o OUT/"
        )
    try:
        names = sorted(name for name in os.listdir(out) if not name.startswith("."))
    except FileNotFoundError:
        names = []
    except OSError as error:
        raise InputError(f"{out}: cannot be read ({error.strerror}), expected an empty folder") from None
    if names:
        raise InputError(f"{out}: got a folder with {names[:3]}, expected an empty one")
    auditor = auditor_of(arguments, keys_of(arguments))
    text_of = functools.partial(read_text, encoding=arguments.encoding, maximum=arguments.max_text)
    with auditing():
        return _write_many(arguments.files, out, auditor, text_of)
    return 0


def _provenance(auditor: Any) -> str:
    """Return a line of a page with the time and the registry of the audit."""
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"read {when} with {', '.join(auditor.registry_names)}"


def _write_many(files: Sequence[str], out: pathlib.Path, auditor: Any, read: Callable[[str], str]) -> int:
    """Write index.html, documents.csv and a page for each text into a folder.

    Args:
        files: texts, folders of texts, patterns.
        out: an empty folder, which is made if it is missing.
        auditor: an `iet.Auditor`.
        read: returns the text of a file, or raises an InputError, which is shown in the row of that file.

    Returns:
        The exit code: 3 if no text could be read.

    Raises:
        InputError: there are no texts, a file is a table, or the folder cannot be made.
    """
    from iet.bulk.sources import expand, not_read_note
    from iet.report.index import Row, as_csv, index

    sources, not_read = expand(files, out)
    for source in sources:
        if source.kind != "text":
            raise InputError(
                f"{source.name}: got a table, expected texts; iet audit reads it: -o OUT/ --pages"
            )
    rows, about = list[Row](), [_provenance(auditor)]
    with _folder_of_pages(out) as pages:
        for number, source in enumerate(sources, 1):
            try:
                report = auditor.audit(read(source.path))
            except InputError as error:
                rows.append(Row(source.name, problem=str(error).removeprefix(f"{source.name}: ")))
                continue
            page = report.to_html(about=[source.name, *about])
            write_file(pages / f"{number:06d}.html", page.encode() + b"\n")
            link = f"pages/{number:06d}.html"
            row = Row(source.name, report.found, report.coverage, report.log_p, report.tokens, link)
            rows.append(row)
    if not_read:
        about.append(not_read_note(not_read))
        print(f"iet: {not_read_note(not_read)}", file=sys.stderr)
    write_file(out / "documents.csv", as_csv(rows).encode("utf-8-sig"))
    write_file(out / "index.html", index(rows, about).encode())
    print(out / "index.html")
    unread = sum(bool(row.problem) for row in rows)
    if unread:
        print(
            f"iet: {unread} of {len(rows)} texts could not be read: documents.csv says why", file=sys.stderr
        )
    return 3 if unread == len(rows) else 0


@contextlib.contextmanager
def _folder_of_pages(out: pathlib.Path) -> Iterator[pathlib.Path]:
    """Make a hidden folder in `out`, and rename it to `pages` if the block succeeds; else remove it.

    An interrupted command can be repeated: the next one removes the hidden folder of a killed one.
    """
    unfinished = out / ".pages-unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"{out}: cannot be made ({error.strerror})") from None
    try:
        yield unfinished
        unfinished.rename(out / "pages")
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _need_matplotlib() -> None:
    """Let matplotlib draw without a screen. Raises BackendUnavailable if it is missing."""
    try:
        import matplotlib
    except ImportError as error:
        raise BackendUnavailable(f"plotting: {error}; pip install matplotlib") from None
    matplotlib.use("Agg")


def _plot(report: Any, suffix: str) -> bytes:
    """Return the plot of a report as the bytes of a file with this suffix."""
    file = io.BytesIO()
    report.plot().figure.savefig(file, format=suffix[1:], dpi=150)
    return file.getvalue()
