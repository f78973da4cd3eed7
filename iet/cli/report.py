"""`iet report`: audit texts, and write pages, pictures and signed files, of several with an index."""

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
"""Ends of the files that `iet report` writes; the first that fits is meant."""


def add(commands: Commands) -> None:
    """Add `iet report`."""
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
    # Refuse what can be refused at once before the work that takes time.
    refuse_uris([*arguments.files, *arguments.output])
    file, forms = arguments.files[0], {}
    if _are_many(arguments):
        return _report_many(arguments)
    for path in map(pathlib.Path, arguments.output):
        form = next((form for form in _FORMS if path.name.endswith(form)), None)
        if form is None:
            raise InputError(
                f"{path}: got a name that ends otherwise, expected one of {', '.join(_FORMS)}, or {path}/ for"
                " a folder with an index"
            )
        if not path.parent.is_dir():
            raise InputError(f"{path}: got a folder that is not there, expected one that is")
        forms[path] = form
    if (arguments.sign is None) == (".dsse.json" in forms.values()):
        raise InputError("--sign: got one without the other, expected a key and an output *.dsse.json")
    if arguments.public and arguments.sign is None:
        raise InputError("--public: got one without the key of --sign that it belongs to")
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
        found = auditor.audit(text, **parts)
        texts: dict[str, Callable[[], str]] = {
            ".html": lambda: found.to_html(about=[name, _read_with(auditor)]),
            ".prov.json": found.to_prov,
            ".json": lambda: found.to_json(text=not arguments.no_text),
            ".dot": found.transitions.to_dot,
        }
        made = {}
        for path, form in forms.items():
            if form in texts:
                made[path] = texts[form]().encode() + b"\n"
            elif form == ".dsse.json":
                made[path] = sign.sign(found, signers, name=name)
            else:
                made[path] = _picture(found, form)
    for path, data in made.items():  # all of them or, where one cannot be made, none
        write_file(path, data)
    print("\n".join(map(str, made)))
    return 0


def _are_many(arguments: argparse.Namespace) -> bool:
    """Tell whether pages of several texts are asked for: by the texts, or a folder for the output."""
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
    one = [arguments.sign, arguments.public or None, arguments.name, arguments.span, arguments.skip]
    one += [arguments.messages or None, arguments.no_text or None]
    if more or form or any(option is not None for option in one) or "-" in arguments.files:
        raise InputError(
            "report: got several texts, or a folder for the output, with what goes with one (a file or more"
            " as output, --sign, --name, --span, --skip, --messages, --no-text, -), expected one folder:"
            " -o OUT/"
        )
    try:
        there = sorted(name for name in os.listdir(out) if not name.startswith("."))
    except FileNotFoundError:
        there = []
    except OSError as error:
        raise InputError(f"{out}: cannot be read ({error.strerror}), expected an empty folder") from None
    if there:
        raise InputError(f"{out}: got a folder with {there[:3]}, expected an empty one")
    auditor = auditor_of(arguments, keys_of(arguments))
    text_of = functools.partial(read_text, encoding=arguments.encoding, maximum=arguments.max_text)
    with auditing():
        return _write_many(arguments.files, out, auditor, text_of)
    return 0


def _read_with(auditor: Any) -> str:
    """Return the line of a page that says when and with which registry a text was read."""
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"read {when} with {', '.join(auditor.registry_names)}"


def _write_many(files: Sequence[str], out: pathlib.Path, auditor: Any, read: Callable[[str], str]) -> int:
    """Write index.html, documents.csv and a page for each text into a folder.

    Returns:
        The exit code: 3 where no text could be read.

    Args:
        files: texts, folders of them, patterns.
        out: the folder, which is empty, or made if it is missing.
        auditor: who audits.
        read: returns the text of a file, or raises an InputError, which becomes the row of that file.

    Raises:
        InputError: nothing is there to read, or a file is no text, or the folder cannot be made.
    """
    from iet.bulk.sources import expand, told_of
    from iet.report.index import Row, as_csv, index

    sources, not_read = expand(files, out)
    for source in sources:
        if source.kind != "text":
            raise InputError(
                f"{source.name}: got a table, expected texts; iet audit reads it: -o OUT/ --pages"
            )
    rows, about = list[Row](), [_read_with(auditor)]
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
        about.append(told_of(not_read))
        print(f"iet: {told_of(not_read)}", file=sys.stderr)
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
    """Make a hidden folder in `out` that is `pages` once all of it is written, and gone if that fails.

    So an interrupted command can be given again: what a killed one left is hidden, and swept.
    """
    making = out / ".pages-unfinished"
    shutil.rmtree(making, ignore_errors=True)
    try:
        making.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"{out}: cannot be made ({error.strerror})") from None
    try:
        yield making
        making.rename(out / "pages")
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise


def _need_matplotlib() -> None:
    """Raise BackendUnavailable where matplotlib is missing, and let it draw without a screen."""
    try:
        import matplotlib
    except ImportError as error:
        raise BackendUnavailable(f"plotting: {error}; pip install matplotlib") from None
    matplotlib.use("Agg")


def _picture(report: Any, form: str) -> bytes:
    """Return the plot of a report as a file that ends in `form`."""
    drawn = io.BytesIO()
    report.plot().figure.savefig(drawn, format=form[1:], dpi=150)
    return drawn.getvalue()
