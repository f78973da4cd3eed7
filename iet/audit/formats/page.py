"""The text of an HTML page, as a browser shows it without style sheets.

Rules of style sheets are not evaluated, so text that only they hide is read. `aria-hidden` hides nothing.
"""

from __future__ import annotations

import re
import warnings
from typing import Any, NamedTuple

_BLOCKS = re.compile(
    "address|article|aside|blockquote|body|caption|center|d[dlt]|details|dialog|div|fieldset|figcaption|figure"
    "|footer|form|h[1-6r]|header|hgroup|legend|li|main|menu|nav|ol|optgroup|option|p|pre|search|section|summary"
    "|table|t[dhr]|tbody|tfoot|thead|ul"
)

_HIDDEN = frozenset(
    (
        *("title", "script", "style", "template", "noscript", "svg", "math", "datalist"),
        *("object", "audio", "video", "canvas", "iframe", "noembed", "noframes"),  # content for old browsers
    )
)

_ENDED_BY = {
    "p": _BLOCKS,
    **dict.fromkeys(("dt", "dd"), re.compile("d[dt]")),
    **dict.fromkeys(("td", "th"), re.compile("t[dhr]|tbody|tfoot|thead")),
    "tr": re.compile("tr|tbody|tfoot|thead"),
    "li": re.compile("li"),
    "option": re.compile("option|optgroup"),
    "optgroup": re.compile("optgroup"),
    **dict.fromkeys(("tbody", "tfoot", "thead"), re.compile("tbody|tfoot|thead")),
}
"""Elements whose end tag may be omitted -> the child elements that end them (HTML, 13.1.2.4).

The parser keeps such a child inside the element, so a hidden element would hide all that follows.
"""

_BOXES = re.compile(r"(?:block|contents|flex|flow|grid|inline|list-item|ruby|table)\b.*")
"""Values of `display` that show an element, even if it has the attribute `hidden`."""


class _Element(NamedTuple):
    """An open element: whether its text is shown, and the element around it."""

    name: str = ""
    hidden: bool = False
    """Whether it has no box, so that its descendants have none either."""
    invisible: bool = False
    """Whether its box is blank. Descendants inherit that, and may be visible again."""
    pre: bool = False
    """Whether spaces and line breaks are kept."""
    outer: _Element | None = None


def text_of(data: bytes | str, most: int) -> str:
    """Return the text that a browser shows: a line for each block, spaces as one.

    Text that an element hides by its name, by `hidden` or by its own `style` is left out.
    """
    import bs4

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that it looks like a name of a file, or like XML
        page = bs4.BeautifulSoup(data, "html.parser")
    pieces = list[str]()
    waiting = [(iter(page.contents), _Element())]  # an explicit stack, because pages may be nested deeply
    while waiting:
        nodes, parent = waiting[-1]
        node = next(nodes, None)
        if node is None:
            waiting.pop()
            if _BLOCKS.fullmatch(parent.name) and not parent.hidden:
                pieces.append("\n\n")
        elif isinstance(node, bs4.Tag):
            outer = _ended(parent, node.name)
            if outer is not parent:  # text after the child is outside the ended element, too
                waiting[-1] = nodes, outer
            element = _opened(node, outer)
            if not element.hidden and (node.name == "br" or _BLOCKS.fullmatch(node.name)):
                pieces.append("\n" if node.name == "br" else "\n\n")
            waiting.append((iter(node.contents), element))
        elif type(node) is bs4.element.NavigableString and not parent.hidden and not parent.invisible:
            piece = str(node) if parent.pre else re.sub(r"[ \t\r\n\f]+", " ", node)
            if not parent.pre and pieces and pieces[-1][-1:] in ("\n", " "):
                piece = piece.removeprefix(" ")
            if piece:
                pieces.append(piece)
    lines = "".join(pieces).split("\n")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip(" \t") for line in lines)).strip()


def _ended(parent: _Element, name: str) -> _Element:
    """Return the element around a new child: elements are closed if their end tag was omitted."""
    while parent.outer is not None and parent.name in _ENDED_BY and _ENDED_BY[parent.name].fullmatch(name):
        parent = parent.outer
    return parent


def _opened(tag: Any, outer: _Element) -> _Element:
    style = _declarations(str(tag.get("style") or ""))
    display, visibility = style.get("display", ""), style.get("visibility", "")
    hidden = display == "none" or str(tag.get("hidden")).lower() == "until-found"
    if tag.has_attr("hidden") or (tag.name == "dialog" and not tag.has_attr("open")):
        hidden |= _BOXES.fullmatch(display) is None
    invisible = visibility in ("hidden", "collapse") or (outer.invisible and visibility != "visible")
    return _Element(
        tag.name,
        outer.hidden or hidden or tag.name in _HIDDEN,
        invisible,
        outer.pre or tag.name in ("pre", "textarea"),
        outer,
    )


def _declarations(style: str) -> dict[str, str]:
    """Return the value of each property of a `style`: the last one, or the last important one."""
    important, normal = dict[str, str](), dict[str, str]()
    for declaration in re.sub(r"/\*.*?(?:\*/|\Z)", "", style.lower(), flags=re.DOTALL).split(";"):
        name, _, value = declaration.partition(":")
        value, mark, _ = value.partition("!")
        (important if mark else normal)[name.strip()] = value.strip()
    return normal | important
