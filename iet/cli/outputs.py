"""Write the report of one text: the suffix of each output sets its format."""

from __future__ import annotations

import argparse
import datetime
import io
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from iet.errors import BackendUnavailable, InputError
from iet.marks.files import write_file

FORMATS = (".html", ".prov.json", ".dsse.json", ".json", ".dot", ".svg", ".png", ".pdf")
"""Suffixes of the files that a report is written to; the first that fits is used."""


def formats_of(arguments: argparse.Namespace) -> dict[pathlib.Path, str]:
    """Return the format of each output, and check the options that go with it.

    Raises:
        InputError: A suffix is unknown, a folder does not exist, or a signing option lacks its output.
        BackendUnavailable: A plot is asked for without matplotlib.
    """
    formats = {}
    for path in map(pathlib.Path, arguments.output or ()):
        suffix = next((suffix for suffix in FORMATS if path.name.endswith(suffix)), None)
        if suffix is None and not path.suffix and not path.exists():
            raise InputError(
                f"{path}: is it a file or a folder? expected a name with a suffix, such as {path}.json, for"
                f" the report, or {path}/ for the tables of many documents"
            )
        if suffix is None:
            raise InputError(
                f"{path}: got an unknown suffix, expected one of {', '.join(FORMATS)}, or {path}/ for the"
                " tables of many documents"
            )
        if not path.parent.is_dir():
            raise InputError(f"{path}: its folder does not exist, expected an existing one")
        formats[path] = suffix
    if (arguments.sign is None) == (".dsse.json" in formats.values()):
        raise InputError("--sign KEY and an output *.dsse.json go together: got only one of them")
    if arguments.public and arguments.sign is None:
        raise InputError("--public: got one without --sign, expected the key that it belongs to")
    if not {".svg", ".png", ".pdf"}.isdisjoint(formats.values()):
        _need_matplotlib()
    return formats


def write_report(
    report: Any,
    auditor: Any,
    formats: dict[pathlib.Path, str],
    signers: Sequence[Any],
    name: str,
    *,
    text: bool,
) -> None:
    """Write a report in all formats, or in none if one of them fails.

    Args:
        report, auditor: An `iet.Report`, and the `iet.Auditor` that made it.
        formats: The suffix of each file, from `formats_of`.
        signers: Who sign a *.dsse.json.
        name: Name of the text on the page and in the signed report.
        text: Whether *.json holds the text.
    """
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    about = [name, f"read {when} with {', '.join(auditor.registry_names)}"]
    texts: dict[str, Callable[[], str]] = {
        ".html": lambda: report.to_html(about=about),
        ".prov.json": report.to_prov,
        ".json": lambda: report.to_json(text=text),
        ".dot": report.transitions.to_dot,
    }
    contents = {}
    for path, suffix in formats.items():
        if suffix in texts:
            contents[path] = texts[suffix]().encode() + b"\n"
        elif suffix == ".dsse.json":
            from iet.report import sign  # needs the extra `sign`

            contents[path] = sign.sign(report, signers, name=name)
        else:
            file = io.BytesIO()
            report.plot().figure.savefig(file, format=suffix[1:], dpi=150)
            contents[path] = file.getvalue()
    for path, data in contents.items():
        write_file(path, data)


def _need_matplotlib() -> None:
    """Let matplotlib draw without a screen. Raises BackendUnavailable if it is missing."""
    try:
        import matplotlib
    except ImportError as error:
        raise BackendUnavailable(f"plotting: {error}; pip install matplotlib") from None
    matplotlib.use("Agg")
