"""The text of an HTML page, as a browser shows it."""

from __future__ import annotations

import re
import warnings
from typing import Any

_BLOCKS = re.compile(
    "address|article|aside|blockquote|body|d[dlt]|div|fieldset|figcaption|figure|footer|form|h[1-6r]|header"
    "|li|main|nav|[ou]l|p|pre|section|table|t[dhr]"
)
_HIDDEN = frozenset(
    (
        *("head", "script", "style", "template", "noscript", "svg", "math", "datalist"),
        *(
            "object",
            "audio",
            "video",
            "canvas",
            "iframe",
        ),  # what they hold is for browsers that cannot show them
    )
)
_HIDDEN_STYLE = re.compile(
    r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse))\s*(?:!\s*important\s*)?(?:;|$)",
    re.IGNORECASE,
)


def text_of(data: bytes | str, most: int) -> str:
    """Return the text that a browser shows: a line for each block, spaces as one.

    What an element hides by its name, by `hidden` or by its own `style` is left out. Rules of style sheets
    are not evaluated.
    """
    import bs4

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that it looks like a name of a file, or like XML
        page = bs4.BeautifulSoup(data, "html.parser")
    pieces = list[str]()
    inside = {id(page): (False, False)}  # of each element: whether it is hidden, and keeps its spaces
    for node in page.descendants:
        hidden, pre = inside[id(node.parent)]
        if isinstance(node, bs4.Tag):
            inside[id(node)] = hidden or _is_hidden(node), pre or node.name in ("pre", "textarea")
            if node.name == "br" or _BLOCKS.fullmatch(node.name):
                pieces.append("\n" if node.name == "br" else "\n\n")
        elif type(node) is bs4.element.NavigableString and not hidden:
            piece = str(node) if pre else re.sub(r"[ \t\r\n\f]+", " ", node)
            if not pre and pieces and pieces[-1][-1:] in ("\n", " "):
                piece = piece.removeprefix(" ")
            pieces.append(piece)
            if node.parent is not None and _BLOCKS.fullmatch(node.parent.name) and node.next_sibling is None:
                pieces.append("\n\n")
    lines = "".join(pieces).split("\n")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip(" \t") for line in lines)).strip()


def _is_hidden(tag: Any) -> bool:
    return (
        tag.name in _HIDDEN
        or tag.has_attr("hidden")
        or (tag.name == "dialog" and not tag.has_attr("open"))
        or _HIDDEN_STYLE.search(str(tag.get("style", ""))) is not None
    )
