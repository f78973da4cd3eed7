"""A message that cannot be formatted fails the test that logs it, with any handler."""

from __future__ import annotations

import io
import logging

import pytest


@pytest.mark.parametrize("passed_on", [True, False])
def test_a_message_that_cannot_be_formatted_fails(
    passed_on: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("iet.badly")
    monkeypatch.setattr(logger, "propagate", passed_on)
    if not passed_on:
        request.getfixturevalue("logged")
    with pytest.raises(TypeError):
        logger.warning("%d agents", "two")


def test_log_records_are_captured(logged: io.StringIO) -> None:
    logging.getLogger("iet.well").warning("%d agents", 2)
    assert logged.getvalue() == "2 agents\n"
