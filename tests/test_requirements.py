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
    versions = {}
    for line in lines.splitlines():
        if line.startswith("#"):
            continue
        package, _, version = line.partition("==")
        versions[canonicalize_name(package)] = (
            version.split()[0],
            re.findall(r"--hash=sha256:([0-9a-f]{64})\b", version),
        )
    return versions


def declared(extra: str | None) -> list[Requirement]:
    """Requirements of the package or an extra, including those of nested extras."""
    project = PROJECT["project"]
    named = project["dependencies"] if extra is None else project["optional-dependencies"][extra]
    requirements = [] if extra is None else declared(None)
    for text in named:
        requirement = Requirement(text)
        if requirement.name == project["name"]:
            requirements += [item for inner in requirement.extras for item in declared(inner)]
        else:
            requirements.append(requirement)
    return requirements


@pytest.mark.parametrize("name", [*EXTRAS, "build"])
def test_everything_has_a_version_and_hashes(name: str) -> None:
    entry_versions = entries(name)
    assert len(entry_versions) >= 4
    assert [package for package, (_, hashes) in entry_versions.items() if not hashes] == []
    pinned = dict(
        line.split("==")
        for line in (house.ROOT / "constraints.txt").read_text().splitlines()
        if line[0] != "#"
    )
    pinned = {canonicalize_name(package): version for package, version in pinned.items()}
    other_pins = {
        package: (version, pinned[package])
        for package, (version, _) in entry_versions.items()
        if pinned.get(package, version) != version
    }
    assert other_pins == {}, MEND


@pytest.mark.parametrize("name", EXTRAS)
def test_every_requirement_is_pinned(name: str) -> None:
    pinned = entries(name)
    requirements = declared(EXTRAS[name])
    missing = [
        str(requirement) for requirement in requirements if canonicalize_name(requirement.name) not in pinned
    ]
    assert missing == [], MEND
    refused = [
        str(requirement)
        for requirement in requirements
        if pinned[canonicalize_name(requirement.name)][0] not in requirement.specifier
    ]
    assert refused == [], MEND


def test_build_requirements_are_pinned() -> None:
    pinned = entries("build")
    requirements = [Requirement(text) for text in PROJECT["build-system"]["requires"]]
    assert all(
        pinned[canonicalize_name(requirement.name)][0] in requirement.specifier
        for requirement in requirements
    ), MEND
