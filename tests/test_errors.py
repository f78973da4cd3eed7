"""Messages about invalid numbers and missing packages: the accepted values, and a command that works."""

from __future__ import annotations

import importlib.metadata
import pathlib
import types

import numpy as np
import pytest

from iet import errors


@pytest.mark.parametrize(
    ("value", "integer", "message"),
    [
        (0, True, "x: got 0, expected an int of at least 1"),
        (True, True, "x: got True, expected an int of at least 1"),
        (1.0, True, "x: got 1.0, expected an int of at least 1"),
        (2**40 + 1, True, "x: got 1099511627777, expected an int from 1 to 1099511627776"),
        (np.uint64(2**63), True, "expected an int from 1 to 1099511627776"),
        (10**1000, True, "x: got an int of 3322 bits, expected an int from 1 to 1099511627776"),
        (-(10**400), True, "x: got an int of 1329 bits, expected an int of at least 1"),
        (10**400, False, "x: got an int of 1329 bits, expected a number of at least 1"),
        (float("nan"), False, "x: got nan, expected a number of at least 1"),
        ("3", False, "x: got '3', expected a number of at least 1"),
    ],
)
def test_error_names_the_number_and_its_range(value: object, integer: bool, message: str) -> None:
    with pytest.raises(errors.InputError) as caught:
        errors.check_number("x", value, 1, integer=integer)
    assert message in str(caught.value)
    with pytest.raises(errors.InputError, match=r"expected .* from 1 to 9"):
        errors.check_number("x", value, 1, 9, integer=integer)


def test_rejects_an_int_too_long_for_a_repr() -> None:
    with pytest.raises(errors.InputError, match="x: got an int of 16610 bits"):
        errors.check_number("x", 10**5000, 1)


def test_accepts_numbers_within_the_range() -> None:
    for value in (1, 2**40, np.int64(7), np.uint8(7)):
        errors.check_number("x", value, 1)
        errors.check_number("x", value, 1, 2**40, integer=False)
    for value in (1.5, float("inf"), np.float32(2), 10**300):
        errors.check_number("x", value, 1, integer=False)


def hint(
    monkeypatch: pytest.MonkeyPatch, folder: pathlib.Path, origin: str | None, installed: bool = True
) -> str:
    """The error of a package whose errors.py lies in `folder`/iet, installed from where `origin` says."""

    def distribution(name: str) -> object:
        assert name == "implicit-execution-tracing"
        if not installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return types.SimpleNamespace(read_text=lambda _: origin)

    monkeypatch.setattr(errors, "__file__", str(folder / "iet" / "errors.py"))
    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    return str(errors.missing("signing reports: no cryptography", "sign"))


def test_a_checkout_names_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    expected = f'signing reports: no cryptography; pip install -e "{tmp_path}[sign]"'
    assert hint(monkeypatch, tmp_path, None) == expected


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ('{"url": "file:///home/a%20b/iet", "dir_info": {}}', "/home/a b/iet[sign]"),
        ('{"url": "file:///wheels/iet-0.1.0.whl", "archive_info": {}}', "/wheels/iet-0.1.0.whl[sign]"),
        (None, "implicit-execution-tracing[sign]"),
        ('{"url": "https://example.org/iet.whl"}', "implicit-execution-tracing[sign]"),
        ("not JSON", "implicit-execution-tracing[sign]"),
        ("[]", "implicit-execution-tracing[sign]"),
    ],
)
def test_an_installed_package_names_what_it_was_installed_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, origin: str | None, expected: str
) -> None:
    assert hint(monkeypatch, tmp_path, origin).endswith(f'; pip install "{expected}"')


def test_a_package_that_is_not_installed_names_the_index(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    message = hint(monkeypatch, tmp_path, None, installed=False)
    assert message.endswith('; pip install "implicit-execution-tracing[sign]"')
