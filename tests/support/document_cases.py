"""Documents and mails whose text is easily lost, or joined by text that is hidden or deleted.

The text of every document consists of a, b and c; x is not part of it.
"""

from __future__ import annotations

import io
from typing import NamedTuple

_NAMESPACES = " ".join(
    f'xmlns:{prefix}="{url}"'
    for prefix, url in (
        ("w", "http://schemas.openxmlformats.org/wordprocessingml/2006/main"),
        ("mc", "http://schemas.openxmlformats.org/markup-compatibility/2006"),
        ("wps", "http://schemas.microsoft.com/office/word/2010/wordprocessingShape"),
        ("v", "urn:schemas-microsoft-com:vml"),
    )
)


def word(body: str) -> bytes:
    """A .docx whose body is this WordprocessingML; the prefixes w, mc, wps and v are known."""
    import docx
    from docx.oxml import parse_xml

    made = docx.Document()
    for element in parse_xml(f"<w:body {_NAMESPACES}>{body}</w:body>"):
        made.element.body.insert_element_before(element, "w:sectPr")
    file = io.BytesIO()
    made.save(file)
    return file.getvalue()


def run(text: str, properties: str = "") -> str:
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def paragraph(*runs: str, mark: str = "") -> str:
    """A paragraph of runs; `mark` are properties of its end."""
    return f"<w:p><w:pPr><w:rPr>{mark}</w:rPr></w:pPr>{''.join(runs)}</w:p>"


def tracked(kind: str, inner: str) -> str:
    return f'<w:{kind} w:id="1" w:author="a">{inner}</w:{kind}>'


def control(inner: str) -> str:
    return f'<w:sdt><w:sdtPr><w:alias w:val="no text"/></w:sdtPr><w:sdtContent>{inner}</w:sdtContent></w:sdt>'


def table(*rows: str) -> str:
    return f"<w:tbl>{''.join(rows)}</w:tbl>"


def row(*cells: str, properties: str = "") -> str:
    return f"<w:tr><w:trPr>{properties}</w:trPr>{''.join(cells)}</w:tr>"


def cell(inner: str, properties: str = "") -> str:
    return f"<w:tc><w:tcPr>{properties}</w:tcPr>{inner}</w:tc>"


def text_box(inner: str) -> str:
    """A run with a text box, as Word writes it: once for new readers and once for old ones."""
    content = f"<w:txbxContent>{inner}</w:txbxContent>"
    return (
        "<w:r><mc:AlternateContent>"
        f'<mc:Choice Requires="wps"><w:drawing><wps:txbx>{content}</wps:txbx></w:drawing></mc:Choice>'
        f"<mc:Fallback><w:pict><v:textbox>{content}</v:textbox></w:pict></mc:Fallback>"
        "</mc:AlternateContent></w:r>"
    )


def sent(*parts: str, kind: str = "mixed", boundary: str = "=") -> str:
    """A mail, or a part of one, of several parts, each with its own headers."""
    joined = "".join(f"--{boundary}\n{body}\n" for body in parts)
    return f'Content-Type: multipart/{kind}; boundary="{boundary}"\n\n{joined}--{boundary}--'


def part(text: str, kind: str = "plain", header: str = "") -> str:
    return f"Content-Type: text/{kind}; charset=utf-8{header}\n\n{text}"


class Case(NamedTuple):
    """A document, what is special in it, and its text."""

    kind: str
    name: str
    file: str
    content: str
    text: str

    @property
    def data(self) -> bytes:
        return word(self.content) if self.file.endswith(".docx") else self.content.encode()


def _cases(kind: str, file: str, *cases: tuple[str, str, str]) -> tuple[Case, ...]:
    return tuple(Case(kind, name, file, content, text) for name, content, text in cases)


A, B, C, X = (paragraph(run(letter)) for letter in "abcx")
DELETED = '<w:del w:id="2" w:author="a"/>'
_GONE = tracked("del", "<w:r><w:delText>x</w:delText></w:r>")
_RUBY = f"<w:ruby><w:rt>{run('x')}</w:rt><w:rubyBase>{run('a')}</w:rubyBase></w:ruby>"
_FIELD = '<w:r><w:fldChar w:fldCharType="begin"/><w:instrText>X</w:instrText></w:r>'
_OLD_BOX = f"<w:r><w:pict><v:textbox><w:txbxContent>{A}</w:txbxContent></v:textbox></w:pict></w:r>"
_IMAGE = "Content-Type: image/png\nContent-Transfer-Encoding: base64\n\niVBORw0="
_HTML_A, _HTML_B, _HTML_X = (part(f"<p>{letter}</p>", "html") for letter in "abx")
_ATTACHED = part("x", header="\nContent-Disposition: attachment; filename=a.txt")
_RESTART, _GOES_ON = '<w:vMerge w:val="restart"/>', "<w:vMerge/>"

WORD = (
    *_cases(
        "Word: tracked changes",
        "a.docx",
        ("an insertion and a deletion", paragraph(run("a "), tracked("ins", run("b")), _GONE), "a b"),
        ("moved text", paragraph(tracked("moveTo", run("a")), tracked("moveFrom", run("x"))), "a"),
        (
            "an inserted and a deleted row",
            table(row(cell(A), properties=tracked("ins", "")), row(cell(X), properties=DELETED)),
            "a",
        ),
        ("a deleted cell", table(row(cell(A), cell(X, '<w:cellDel w:id="1"/>'))), "a"),
        ("a deleted paragraph mark", paragraph(run("a"), mark=DELETED) + B + C, "ab\nc"),
        ("a deleted mark before a table", paragraph(run("a"), mark=DELETED) + table(row(cell(B))), "a\nb"),
        ("a deleted mark at the end", A + paragraph(run("b"), mark=DELETED), "a\nb"),
        (
            "a moved paragraph",
            paragraph(tracked("moveFrom", run("x")), mark=tracked("moveFrom", "")) + A,
            "a",
        ),
    ),
    *_cases(
        "Word: content controls, custom markup, fields",
        "a.docx",
        ("a control around blocks", control(A + B) + C, "a\nb\nc"),
        ("a control around a run", paragraph(control(run("a")), run("b")), "ab"),
        ("a control around a row, one around a cell", table(control(row(cell(A), control(cell(B))))), "a\nb"),
        ("a control in a cell", table(row(cell(control(A)))), "a"),
        (
            "an insertion in a control in a link",
            paragraph(f"<w:hyperlink>{control(tracked('ins', run('a')))}</w:hyperlink>"),
            "a",
        ),
        ("a smart tag", paragraph(f'<w:smartTag w:element="e">{run("a")}</w:smartTag>', run("b")), "ab"),
        ("custom XML around a paragraph", f'<w:customXml w:element="e">{A}</w:customXml>', "a"),
        ("a simple field", paragraph(f'<w:fldSimple w:instr="DATE">{run("a")}</w:fldSimple>'), "a"),
        ("a complex field", paragraph(_FIELD, run("a")), "a"),
        ("a change of direction", paragraph(f'<w:bdo w:val="rtl">{run("a")}</w:bdo>'), "a"),
        ("ruby text", paragraph(f"<w:r>{_RUBY}</w:r>"), "a"),
        (
            "hidden text",
            paragraph(run("a"), run("x", "<w:vanish/>"), run("b", '<w:vanish w:val="0"/>')),
            "ab",
        ),
        ("the rest of a merged cell", table(row(cell(A, _RESTART)), row(cell(X, _GOES_ON))), "a"),
    ),
    *_cases(
        "Word: text boxes",
        "a.docx",
        ("a box in a paragraph", paragraph(run("a"), text_box(B), run(" a")) + C, "a a\nb\nc"),
        ("a box in a box", paragraph(run("a"), text_box(paragraph(run("b"), text_box(C)))), "a\nb\nc"),
        ("a box of an old Word", paragraph(_OLD_BOX), "\na"),
        ("a box in a table", table(row(cell(paragraph(run("a"), text_box(B))))), "a\nb"),
        (
            "a table in a box whose paragraph goes on",
            paragraph(run("a"), text_box(table(row(cell(control(B))))), mark=DELETED) + C,
            "ac\nb",
        ),
    ),
)

MAIL = (
    *_cases(
        "Mail: parts",
        "a.eml",
        ("a blank plain part beside HTML", sent(part(" \n"), _HTML_A, kind="alternative"), "a"),
        ("a plain part beside HTML", sent(part("a"), _HTML_X, kind="alternative"), "a"),
        ("HTML before the plain part", sent(_HTML_X, part("a"), kind="alternative"), "a"),
        (
            "a blank plain part beside HTML with pictures",
            sent(part("\n"), sent(_HTML_A, _IMAGE, kind="related", boundary="+"), kind="alternative"),
            "a",
        ),
        ("text around a picture", sent(part("a"), _IMAGE, part("b")), "a\nb"),
        (
            "text behind alternatives",
            sent(sent(part("a"), _HTML_X, kind="alternative", boundary="+"), part("b")),
            "a\nb",
        ),
        ("an attachment before the text", sent(_ATTACHED, part("a"), _HTML_B), "a\nb"),
        ("an attached mail", sent(part("a"), "Content-Type: message/rfc822\n\nSubject: s\n\nx"), "a"),
        ("a signature", sent(part("a"), part("x"), kind="signed"), "a"),
    ),
    *_cases(
        "Mail: `format=flowed`",
        "a.eml",
        *(
            (name, part(lines, header=f"; format=flowed{parameters}"), text)
            for name, lines, parameters, text in (
                ("soft breaks", "a \nb \nc\na", "", "a b c\na"),
                ("soft breaks without spaces", "一 \n二", "; DelSp=yes", "一二"),
                ("a quotation", "> a \n> b\na \nb", "", "> a b\na b"),
                ("a change of the quotation's depth", ">> a \n> b", "", ">> a \n> b"),
                ("protected spaces", " From a \n to b", "", "From a to b"),
                ("a signature", "a\n-- \nb", "", "a\n-- \nb"),
            )
        ),
    ),
)

PAGES = _cases(
    "HTML: what is hidden",
    "a.html",
    *(
        (name, f"<p>a</p>{hidden}<p>b</p>", "a\n\nb")
        for name, hidden in (
            ("`hidden`", "<p hidden>x</p>"),
            ("`hidden=until-found`", '<div hidden="until-found"><p>x</p></div>'),
            ("`display:none`", '<p style="display:none">x</p>'),
            ("`display:none` among others", '<p style="top:0; DISPLAY : NONE !important ;left:0">x</p>'),
            ("`visibility:hidden`", '<span style="visibility:hidden"><b>x</b></span>'),
            ("a hidden cell", '<table><tr><td style="display: none">x</td></tr></table>'),
            ("a template", "<template><p>x</p></template>"),
            ("a closed dialog", "<dialog><p>x</p></dialog>"),
            ("a list of suggestions", "<datalist><option>x</option></datalist>"),
            ("what stands for a video", "<video>x</video>"),
        )
    ),
)

CASES = (*WORD, *MAIL, *PAGES)
