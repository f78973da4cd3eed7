"""Figures take fewer bytes and look the same."""

from __future__ import annotations

import pytest

pytest.importorskip("matplotlib")

from benchmarks.style import shortened


def test_a_figure_is_shortened_to_what_draws_the_same() -> None:
    lines = '<g>\n <path d="M 1.23456 2 \nL 3 4.0 \nL 5 6.789 \nC 1 2 3 4 5 6 \nL 7 8 \nL 9 9 \nz\n"/>\n'
    short = '<g>\n<path d="M 1.23 2 3 4.0 5 6.79 C 1 2 3 4 5 6 L 7 8 9 9 z"/>\n'
    mark = '<use xlink:href="#a" x="1.00" y="2" style="fill: #000000"/>\n'
    other = mark.replace("000000", "ffffff")
    bare = mark.replace(' style="fill: #000000"', "")
    group = f'<g style="fill: #000000">\n{bare}{bare}</g>\n'
    found = shortened(lines + mark + mark + other + mark)
    assert found == short + group + other + mark
    assert shortened(found) == found
