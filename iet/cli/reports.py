"""`iet report` of several texts: a page for each, and an index that leads to them, as a page and as CSV."""

from __future__ import annotations

import datetime
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from iet.bulk.sources import expand, told_of
from iet.errors import InputError
from iet.marks.files import write_file
from iet.report.index import Row, as_csv, index


def read_with(auditor: Any) -> str:
    """Return the line of a page that says when and with which registry a text was read."""
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"read {when} with {', '.join(auditor.registry_names)}"


def report_many(files: Sequence[str], out: pathlib.Path, auditor: Any, read: Callable[[str], str]) -> None:
    """Write index.html, documents.csv and a page for each text into a folder.

    Args:
        files: texts, folders of them, patterns.
        out: the folder, made if it is missing. It must be empty.
        auditor: who audits.
        read: returns the text of a file, or raises an InputError, which becomes the row of that file.

    Raises:
        InputError: nothing is there to read, or a file is no text, or the folder is not empty.
    """
    sources, not_read = expand(files, out)
    for source in sources:
        if source.kind != "text":
            raise InputError(
                f"{source.name}: got a table, expected texts; iet audit reads it: -o OUT/ --pages"
            )
    try:
        (out / "pages").mkdir(parents=True)
    except FileExistsError:
        raise InputError(f"{out}: got a folder with pages, expected an empty one") from None
    except OSError as error:
        raise InputError(f"{out}: cannot be made ({error.strerror})") from None
    rows, about = list[Row](), [read_with(auditor)]
    for number, source in enumerate(sources, 1):
        try:
            report = auditor.audit(read(source.path))
        except InputError as error:
            rows.append(Row(source.name, problem=str(error).removeprefix(f"{source.path}: ")))
            continue
        link = f"pages/{number:06d}.html"
        page = report.to_html(about=[source.name, *about])
        write_file(out / link, page.encode() + b"\n")
        row = Row(source.name, report.found, report.coverage, report.log_p, report.tokens, link)
        rows.append(row)
    if not_read:
        about.append(told_of(not_read))
        print(f"iet: {told_of(not_read)}", file=sys.stderr)
    write_file(out / "documents.csv", as_csv(rows).encode("utf-8-sig"))
    write_file(out / "index.html", index(rows, about).encode())
    print(out / "index.html")
