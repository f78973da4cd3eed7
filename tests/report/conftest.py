"""Reports of several tests: of an audit, of many agents, of a hostile text; and rich or its absence."""

from __future__ import annotations

import functools
import sys
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
    """A report whose text and first agent's name are full of markup."""
    return report_of(text=NASTY + "x" * 40, agents=(NASTY[:60], "critic"))


@pytest.fixture(params=[True, False], ids=["rich", "without rich"])
def rich(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether rich is installed: run the test with it and without it."""
    installed: bool = request.param
    if installed:
        pytest.importorskip("rich")
    else:
        for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "rich", None)
    return installed
