"""requirements/ names what is installed to the byte, as constraints.txt and pyproject.toml have it."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks import house

EXTRAS = {"audit": None, "demo": "demo", "test": "test"}
"""File -> the extra of the package that it is for."""

PROJECT = tomllib.loads((house.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MEND = "run .ci/lock"


def entries(name: str) -> dict[str, tuple[str, list[str]]]:
    """Package -> its version, and the hashes of its files."""
    lines = (house.ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    found = {}
    for line in lines.splitlines():
        if line.startswith("#"):
            continue
        package, _, rest = line.partition("==")
        found[canonicalize_name(package)] = (
            rest.split()[0],
            re.findall(r"--hash=sha256:([0-9a-f]{64})\b", rest),
        )
    return found


def declared(extra: str | None) -> list[Requirement]:
    """What the package asks for, also through its other extras."""
    project = PROJECT["project"]
    named = project["dependencies"] if extra is None else project["optional-dependencies"][extra]
    found = [] if extra is None else declared(None)
    for text in named:
        asked = Requirement(text)
        if asked.name == project["name"]:
            found += [each for inner in asked.extras for each in declared(inner)]
        else:
            found.append(asked)
    return found


@pytest.mark.parametrize("name", [*EXTRAS, "build"])
def test_everything_has_a_version_and_hashes(name: str) -> None:
    found = entries(name)
    assert len(found) >= 4
    assert [package for package, (_, hashes) in found.items() if not hashes] == []
    pinned = dict(
        line.split("==")
        for line in (house.ROOT / "constraints.txt").read_text().splitlines()
        if line[0] != "#"
    )
    pinned = {canonicalize_name(package): version for package, version in pinned.items()}
    other = {
        package: (version, pinned[package])
        for package, (version, _) in found.items()
        if pinned.get(package, version) != version
    }
    assert other == {}, MEND


@pytest.mark.parametrize("name", EXTRAS)
def test_everything_that_is_asked_for_is_there(name: str) -> None:
    found = entries(name)
    asked = declared(EXTRAS[name])
    missing = [str(each) for each in asked if canonicalize_name(each.name) not in found]
    assert missing == [], MEND
    refused = [str(each) for each in asked if found[canonicalize_name(each.name)][0] not in each.specifier]
    assert refused == [], MEND


def test_what_builds_the_package_is_there() -> None:
    found = entries("build")
    asked = [Requirement(text) for text in PROJECT["build-system"]["requires"]]
    assert all(found[canonicalize_name(each.name)][0] in each.specifier for each in asked), MEND
