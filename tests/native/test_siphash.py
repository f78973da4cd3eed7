"""SipHash-2-4 of n-grams, against the known answers of its authors."""

from __future__ import annotations

import numpy as np

from iet.native.siphash import hash_n_grams

KEY = bytes(range(16))


def test_known_answers() -> None:
    # Messages 00 01 02 ... of 16 and 32 bytes, from the reference implementation's vectors_sip64.
    answers = {16: 0x3F2ACC7F57C29BDB, 32: 0x7127512F72F27CCE}
    for size, expected in answers.items():
        first, *ids = np.frombuffer(bytes(range(size)), "<u8").tolist()
        hashes = hash_n_grams(np.array(ids, np.int64), len(ids), KEY, first)
        assert int(hashes[-1]) == expected
        assert not hashes[:-1].any()


def test_every_position_is_hashed_by_itself() -> None:
    ids = np.random.default_rng(0).integers(0, 50_000, 20_000)
    hashes = hash_n_grams(ids, 4, KEY, 9)
    for t in (3, 4, 8193, 8194, 8195, 19_999):
        assert hashes[t] == hash_n_grams(ids[t - 3 : t + 1], 4, KEY, 9)[-1]
    assert len(np.unique(hashes[3:])) == len(hashes) - 3
    assert not np.isin(hashes[3:], hash_n_grams(ids, 4, KEY, 8)).any()
    assert not np.isin(hashes[3:], hash_n_grams(ids, 4, bytes(16), 9)).any()
    assert hash_n_grams(ids[:2], 4, KEY, 9).tolist() == [0, 0]
