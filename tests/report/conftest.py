"""Reports that several tests show: one of an audit, one of a long team, one of a hostile text."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from iet.report import Report
from tests.support.reports import report_of
from tests.support.teams import team
from tests.support.texts import TEXT, reader, spell, write

NASTY = (
    '</script><script>document.title="owned"</script><img src=x onerror=alert(1)>'
    " <!-- <script> \u2028 \u202e {{data}} {{script}} & ' \" \0"
)


@pytest.fixture(scope="session")
def report() -> Report:
    return reader().audit(TEXT)


@pytest.fixture(scope="session")
def many() -> Callable[[int], Report]:
    """Make the report on a team of `count` agents that write one turn each."""

    @functools.cache
    def audited(count: int) -> Report:
        registry = team([f"agent-{i:02}" for i in range(count)])
        return reader(registry).audit(spell(write(registry, [(name, 100) for name in registry])))

    return audited


@pytest.fixture
def hostile() -> Report:
    """Whose text and first agent are full of markup."""
    return report_of(text=NASTY + "x" * 40, agents=(NASTY[:60], "critic"))
