"""The prepared entries for C2PA's list of soft bindings have the shape that its schema asks for."""

from __future__ import annotations

import json
import pathlib
import re
from datetime import datetime
from urllib.parse import urlsplit

from iet.marks.families import FAMILIES

ENTRIES = json.loads(
    (pathlib.Path(__file__).parents[2] / "docs/internals/soft_bindings.json").read_text(encoding="utf-8")
)


def test_each_family_has_an_entry_with_all_required_fields() -> None:
    assert [entry["alg"].split(".")[-2] for entry in ENTRIES] == list(reversed(FAMILIES))
    for entry in ENTRIES:
        assert entry.keys() == {"identifier", "alg", "type", "decodedMediaTypes", "entryMetadata"}
        assert 0 <= entry["identifier"] <= 65535
        assert re.fullmatch(r"[A-Za-z]{2,63}(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)+", entry["alg"])
        assert (entry["type"], entry["decodedMediaTypes"]) == ("watermark", ["text"])
        metadata = entry["entryMetadata"]
        assert metadata.keys() == {"description", "dateEntered", "contact", "informationalUrl"}
        assert datetime.fromisoformat(metadata["dateEntered"]).tzinfo is not None
        assert re.fullmatch(r"[^@\s]+@[^@\s]+", metadata["contact"])
        assert urlsplit(metadata["informationalUrl"]).scheme == "https"


def test_entries_claim_no_registration() -> None:
    assert {entry["identifier"] for entry in ENTRIES} == {0}  # the list assigns it
    for entry in ENTRIES:  # example.org is reserved; to register, use an own domain
        hosts = {entry["entryMetadata"]["contact"].split("@")[1]}
        hosts.add(urlsplit(entry["entryMetadata"]["informationalUrl"]).hostname)
        assert hosts == {"example.org"}
        assert entry["alg"].startswith("org.example.")
