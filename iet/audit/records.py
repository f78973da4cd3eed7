"""Audit records as they come: the good ones together, and for each bad one a reason."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from iet.audit.attribution import attribute
from iet.audit.encode import token_extents
from iet.audit.plan import Plan
from iet.errors import IetError, InputError
from iet.marks.tokenizer import Encoding
from iet.native.arrays import Int64s
from iet.report.result import AuditResult

if TYPE_CHECKING:
    from iet.audit.auditor import Auditor

BATCH_RECORDS, BATCH_SIZE = 64, 1 << 18
"""Maximum number of records that are audited at once, and of their characters (or ids) in all."""


def audit_records(
    auditor: Auditor,
    records: Sequence[Any],
    *,
    ids: bool = False,
    elsewhere: Sequence[Int64s] | None = None,
) -> Iterator[tuple[list[str | None], AuditResult]]:
    """Audit records in batches that bound the memory, whatever is wrong with some of them.

    Args:
        auditor: who audits.
        records: texts, or with `ids` token ids; anything else is a bad record. Pass an InputError for
            a record with a known fault.
        ids: whether they are token ids.
        elsewhere: for each record the stretches [N, 2] that are no evidence in it, as in `find`.

    Returns:
        For each batch, in order: what is wrong with each record (None: nothing), and the results of the good
        ones.

    Raises:
        TokenizerMismatch: no tokenizer with the profile's digest.
    """
    batch, size = list[tuple[Any, Int64s | None]](), 0
    for record, stretches in zip(records, elsewhere or itertools.repeat(None), strict=False):
        batch.append((record, stretches))
        size += len(record) if isinstance(record, (str, bytes, list, np.ndarray)) else 0
        if len(batch) == BATCH_RECORDS or size >= BATCH_SIZE:
            yield _audit(auditor, batch, ids)
            batch, size = [], 0
    if batch:
        yield _audit(auditor, batch, ids)


def _audit(
    auditor: Auditor, batch: list[tuple[Any, Int64s | None]], ids: bool
) -> tuple[list[str | None], AuditResult]:
    values, reasons = list[tuple[Any, Int64s | None]](), list[str | None]()
    limit = auditor.profiles[0].vocab_size
    for record, stretches in batch:
        try:
            if isinstance(record, InputError):
                raise record
            values.append((_token_ids(record, limit) if ids else _text(record), stretches))
            reasons.append(None)
        except InputError as error:
            reasons.append(str(error))
        except MemoryError:
            reasons.append(_no_memory(record, ids))
    try:
        return reasons, _find(auditor, values, ids)
    except (IetError, MemoryError):
        if not values:
            raise
    # Audit each by itself: some record is to blame, and the others are to be read all the same.
    good = list[tuple[Any, Int64s | None]]()
    remaining = iter(values)
    for i, reason in enumerate(reasons):
        if reason is None:
            value = next(remaining)
            try:
                _find(auditor, [value], ids)
                good.append(value)
            except IetError as error:
                reasons[i] = str(error)
            except MemoryError:
                reasons[i] = _no_memory(value[0], ids)
    return reasons, _find(auditor, good, ids)


def _find(auditor: Auditor, values: list[tuple[Any, Int64s | None]], ids: bool) -> AuditResult:
    records = [value for value, _ in values]
    elsewhere = [stretches for _, stretches in values if stretches is not None] or None
    return audit_columns(auditor.plan, None if ids else records, records if ids else None, elsewhere)


def audit_columns(
    plan: Plan,
    texts: Sequence[str] | None,
    ids: Sequence[ArrayLike] | None = None,
    elsewhere: Sequence[Int64s] | None = None,
) -> AuditResult:
    """Audit texts, or their token ids, each as `Auditor.audit` does, without the details of a report.

    `elsewhere` has for each document the stretches [N, 2] that are evidence in another document, in
    characters or in ids, ascending.

    Raises:
        InputError: a text is not valid Unicode, an id is no int64, or profiles differ in their ids.
        TokenizerMismatch: no tokenizer with a profile's digest.
    """
    if texts is not None:
        encodings = plan.encode(texts)
    else:
        encodings = [plan.encoding_of_ids(token_ids) for token_ids in ids or ()]
    if elsewhere is not None:
        encodings = [
            tuple(_without(encoding, stretches, texts is not None) for encoding in of_profiles)
            for of_profiles, stretches in zip(encodings, elsewhere, strict=True)
        ]
    return attribute(plan, texts, encodings)


def _without(encoding: Encoding, stretches: Int64s, spelled: bool) -> Encoding:
    """Return the encoding with the tokens inside the stretches marked as no evidence."""
    if not len(stretches):
        return encoding
    extents = token_extents(encoding, spelled)
    at = np.searchsorted(stretches[:, 0], extents[:, 0], "right") - 1
    return dataclasses.replace(encoding, elsewhere=(at >= 0) & (extents[:, 1] <= stretches[at, 1]))


def _no_memory(record: Any, ids: bool) -> str:
    return f"out of memory with {len(record):,} {'ids' if ids else 'characters'}"


def _text(record: Any) -> str:
    if isinstance(record, bytes):
        try:
            return record.decode()
        except UnicodeDecodeError as error:
            raise InputError(
                f"byte {error.start} is {record[error.start]:#04x}, which is not UTF-8; expected UTF-8 text"
            ) from None
    if not isinstance(record, str):
        raise InputError(f"got {_shown(record)}, expected text")
    if not record.isascii():
        try:
            record.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"character {error.start} is the lone surrogate U+{ord(record[error.start]):04X}, expected"
                " text that UTF-8 can hold"
            ) from None
    return record


def _token_ids(record: Any, vocab_size: int) -> Any:
    if not isinstance(record, (list, np.ndarray)):
        raise InputError(f"got {_shown(record)}, expected a list of token ids")
    if isinstance(record, list):
        for at, value in enumerate(record):
            if type(value) is not int:
                raise InputError(f"got {_shown(value)} at {at}, expected token ids")
        outside = [at for at, value in enumerate(record) if not 0 <= value < vocab_size]
    elif record.dtype.kind not in "iu" and record.size:
        raise InputError(f"got {record.dtype} numbers, expected token ids")
    else:
        outside = np.flatnonzero((record < 0) | (record >= vocab_size)).tolist()
    if outside:
        at = outside[0]
        raise InputError(f"got the id {record[at]} at {at}, expected 0 to {vocab_size - 1}")
    return np.asarray(record, np.int64)


def _shown(value: Any) -> str:
    return "null" if value is None else f"{type(value).__name__} {json.dumps(value, default=str)[:40]}"
