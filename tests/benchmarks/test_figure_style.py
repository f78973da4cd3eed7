"""Figures take fewer bytes and look the same."""

from __future__ import annotations

import pytest

pytest.importorskip("matplotlib")

from benchmarks.figure_style import shortened


def test_shortened_figure_draws_the_same() -> None:
    lines = '<b>\n <path d="M 1.23456 2 \nL 3 4.0 \nL 5 6.789 \nC 1 2 3 4 5 6 \nL 7 8 \nL 9 9 \nz\n"/>\n'
    short = '<b>\n<path d="M 1.23 2 3 4.0 5 6.79 C 1 2 3 4 5 6 L 7 8 9 9 z"/>\n'
    mark = '<use xlink:href="#a" x="1.00" y="2" style="fill: #000000"/>\n'
    white_mark = mark.replace("000000", "ffffff")
    bare = mark.replace(' style="fill: #000000"', "")
    group = f'<g style="fill: #000000">\n{bare}{bare}</g>\n'
    result = shortened(lines + mark + mark + white_mark + mark)
    assert result == short + group + white_mark + mark
    assert shortened(result) == result


def test_drops_groups_that_have_only_a_name() -> None:
    text = (
        "<text style=\"font-size: 8px; font-family: 'DejaVu Sans', 'Verdana', sans-serif\" x=\"1\">a</text>\n"
    )
    clipped = '<g clip-path="url(#c)">\n{}</g>\n'
    named = '<g id="a">\n<g id="b"/>\n{}<g>\n{}</g>\n</g>\n'.format(clipped.format("<path/>\n"), text)
    head = '<!DOCTYPE svg PUBLIC "a"\n"b">\n<svg>\n<metadata>\n<a/>\n</metadata>\n'
    result = shortened(head + "<style>*{a: b}</style>\n" + named + "</svg>\n")
    style = "<style>*{a: b} text{font-family: 'DejaVu Sans', 'Verdana', sans-serif}</style>\n"
    bare = '<text style="font-size: 8px" x="1">a</text>\n'
    assert result == "<svg>\n" + style + clipped.format("<path/>\n") + bare + "</svg>\n"
    assert shortened(result) == result
