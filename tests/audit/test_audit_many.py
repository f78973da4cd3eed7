"""`audit_many` yields reports in order, reads a little ahead, and raises each error at its text."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import iet
from iet.audit.records import audit_columns
from iet.errors import InputError, TokenizerMismatch
from tests.support.teams import WORDS, team
from tests.support.texts import DECODERS, IDS, TEXT, reader


@pytest.mark.parametrize("decoder", DECODERS)
def test_evidence_in_another_document_attributes_nothing(decoder: str) -> None:
    everything, nothing = np.array([[0, len(IDS)]]), np.zeros((0, 2), np.int64)
    results = audit_columns(reader(decoder=decoder).plan, None, [IDS, IDS], [everything, nothing])
    first = len(results.segments["agent"]) // 2
    assert np.all(results.segments["agent"][:first] == -1)
    assert np.all(results.segments["log_p"][:first] == 0)
    assert len({*results.segments["agent"][first:].tolist()} - {-1}) == 3
    assert results.documents["coverage"][0] == 0
    assert results.documents["repeated"][0] == results.documents["scored"][0]


@pytest.mark.parametrize("batch", [1, 700, 1 << 18])
def test_audit_many_keeps_the_order_for_any_batches(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iet.audit.auditor, "BATCH_CHARACTERS", batch)
    texts = [TEXT[i : i + 90 * i] for i in range(0, 60, 4)]
    auditor = reader()
    for many, text in zip(auditor.audit_many(texts), texts, strict=True):
        assert many.to_dict() == auditor.audit(text).to_dict()


@pytest.mark.parametrize("batch", [1, 1 << 18])
def test_audit_many_raises_at_the_invalid_text(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iet.audit.auditor, "BATCH_CHARACTERS", batch)

    def interrupted() -> Any:
        yield from ("w1", "w1 w2")
        raise OSError("the disk is gone")

    for texts, error, message in [
        (["w1", "w1 w2", "w1 \ud83d w2", "w3"], InputError, "lone surrogate"),
        (["w1", "w1 w2", 3, "w3"], InputError, "text: got int, expected str"),
        (["w1", "w1 w2", None, "w3"], InputError, "text: got NoneType, expected str"),
        (interrupted(), OSError, "the disk is gone"),
    ]:
        reports = reader().audit_many(texts)
        assert [next(reports).tokens, next(reports).tokens] == [1, 2]
        with pytest.raises(error, match=message):
            next(reports)
        assert next(reports, None) is None
    with pytest.raises(TokenizerMismatch):
        next(iet.Auditor(team(vocab_size=WORDS)).audit_many(["w1"]))


@pytest.mark.parametrize("texts", ["one text", b"one text", None, 7])
def test_audit_many_rejects_invalid_lists_at_once(texts: Any) -> None:
    with pytest.raises(InputError, match=rf"texts: got {type(texts).__name__}, expected a list"):
        reader().audit_many(texts)


def test_audit_many_reads_little_ahead_and_ends_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iet.audit.auditor, "BATCH_CHARACTERS", 20)
    read = 0

    def endless() -> Any:
        nonlocal read
        while True:
            read += 1
            yield "w1 w2 w3 w4"  # two of them are a batch

    def tokenizing() -> int:
        return sum(thread.name.startswith("iet-tokenizer") for thread in threading.enumerate())

    reports = reader().audit_many(endless())
    assert (read, tokenizing()) == (0, 0)
    for done in range(1, 8):
        assert next(reports).tokens == 4
        assert read <= done + 5
        assert tokenizing() == 1
    reports.close()
    assert tokenizing() == 0
