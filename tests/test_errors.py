"""What an error says where a package is missing: a command that works where this package came from."""

from __future__ import annotations

import importlib.metadata
import pathlib
import types

import pytest

from iet import errors


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
    said = hint(monkeypatch, tmp_path, None, installed=False)
    assert said.endswith('; pip install "implicit-execution-tracing[sign]"')
