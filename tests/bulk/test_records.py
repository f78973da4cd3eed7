"""Audits of Arrow batches: each document as in `Auditor.audit`, with bad records among good ones."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import iet
from iet.audit.arrow import audit_batch
from iet.audit.auditor import Auditor
from iet.errors import InputError, ShapeError, TokenizerMismatch
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from iet.native.texts import Texts
from iet.report.arrow import SCHEMA
from tests.support import teams
from tests.support.bulk_documents import documents, team

NUMBERS = ("tokens", "scored", "repeated", "invisible", "log_p", "coverage")
OF_SEGMENTS = (
    "char_start",
    "char_end",
    "start",
    "end",
    "agent",
    "best_guess",
    "session",
    "log_p",
    "posterior",
    "error",
    "share",
)


def rows_of(auditor: Auditor, texts: list[str] | None, ids: list[Any] | None = None) -> list[dict[str, Any]]:
    """The expected table, from audits of single documents."""
    rows = []
    for item in texts if ids is None else ids:  # type: ignore[union-attr]
        report = auditor.audit(item) if ids is None else auditor.audit(token_ids=item)
        lowest = min(report.evidence, key=report.evidence.__getitem__)
        row = {
            "problem": None,
            "template": 0,
            "published": 0,
            **{name: getattr(report, name) for name in NUMBERS},
        }
        row |= {"best_agent": lowest if report.log_p < 0 else None, "found": list(report.found)}
        segments = [
            {
                **{name: getattr(segment, name) for name in OF_SEGMENTS},
                "best_guess": report.redact_guesses(segment).best_guess,
                **dict(zip(("share_low", "share_high"), segment.share_interval or (None, None), strict=True)),
            }
            for segment in report.segments
        ]
        rows.append({**row, "segments": segments})
    return rows


def read(auditor: Auditor, texts: list[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = auditor.audit_batch(pa.RecordBatch.from_pydict({"text": texts})).to_pylist()
    return rows


AUDITORS: list[dict[str, Any]] = [
    {"decoder": "cusum"},
    {"decoder": "posterior"},
    {"decoder": "window"},
    {"decoder": "cusum", "allow_unattributed": False},
    {"decoder": "posterior", "allow_unattributed": False},
    {"decoder": "cusum", "level": 0.2, "window": 32, "step": 8, "anchor": "end", "tau": 0.02},
    {"decoder": "posterior", "repeats": "drop", "known_agents": ["writer"]},
    {"decoder": "cusum", "known_agents": ["planner"]},
    {"decoder": "cusum", "decoys": 600},
]


@pytest.mark.parametrize("options", AUDITORS, ids=str)
def test_a_batch_is_read_as_its_documents_are_one_by_one(registry: Registry, options: dict[str, Any]) -> None:
    auditor, texts = Auditor(registry, **options), documents(registry)
    result = auditor.audit_batch(pa.RecordBatch.from_pydict({"text": texts}))
    assert result.schema == SCHEMA
    assert result.to_pylist() == rows_of(auditor, texts)
    assert sum(row["coverage"] > 0 for row in result.to_pylist()) >= 2


@pytest.mark.parametrize("scheme", [{"family": "gumbel"}, {"n_gram": 4}], ids=str)
@pytest.mark.parametrize("decoder", ["cusum", "posterior"])
def test_every_family_and_order(tmp_path: pathlib.Path, scheme: dict[str, Any], decoder: str) -> None:
    registry = team(tmp_path, **scheme)
    auditor, texts = Auditor(registry, decoder), documents(registry)
    assert read(auditor, texts) == rows_of(auditor, texts)


def test_a_document_does_not_depend_on_its_neighbours(registry: Registry, auditor: Auditor) -> None:
    texts = documents(registry)
    forwards = read(auditor, texts)
    assert forwards == read(auditor, texts[::-1])[::-1]
    assert forwards == [row for text in texts for row in read(auditor, [text])]


@pytest.mark.parametrize("decoder", ["cusum", "posterior"])
def test_token_ids(registry: Registry, decoder: str) -> None:
    auditor, tokenizer = Auditor(registry, decoder), registry.open_tokenizer()
    ids = [tokenizer.encode(text).token_ids for text in documents(registry)]
    expected = rows_of(auditor, None, ids)
    for kind in (pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.uint16())):
        batch = pa.RecordBatch.from_arrays([pa.array([i.tolist() for i in ids], kind)], ["token_ids"])
        assert auditor.audit_batch(batch).to_pylist() == expected


def test_bad_records_have_a_reason_and_the_others_are_read(registry: Registry, auditor: Auditor) -> None:
    good = documents(registry)[0]
    bytes_ = pa.array([good.encode(), None, b"ab\xff", good.encode()], pa.binary())
    invalid = pa.Array.from_buffers(pa.string(), 4, bytes_.buffers())  # Arrow does not look
    for column in (bytes_, invalid):
        result = auditor.audit_batch(pa.RecordBatch.from_arrays([column], ["text"])).to_pylist()
        assert [row["problem"] for row in result] == [
            None,
            "got null, expected text",
            "byte 2 is 0xff, which is not UTF-8; expected UTF-8 text",
            None,
        ]
        assert result[0] == result[3] == rows_of(auditor, [good])[0]
        assert result[1]["segments"] is None
        assert result[1]["log_p"] is None
    top = registry.profile.vocab_size
    ids = pa.array([[1, 2, top - 1], [1, -1], None, [1, None], [0, 5, top]], pa.list_(pa.int64()))
    result = auditor.audit_batch(pa.RecordBatch.from_arrays([ids], ["token_ids"])).to_pylist()
    assert [row["problem"] for row in result] == [
        None,
        f"got the id -1 at 1, expected 0 to {top - 1}",
        "got null, expected a list of token ids",
        "got null at 1, expected token ids",
        f"got the id {top} at 2, expected 0 to {top - 1}",
    ]


def test_columns(auditor: Auditor) -> None:
    batch = pa.RecordBatch.from_pydict({"body": ["a b"], "n": [3], "text": ["c"], "ids": [[1, 2]]})
    assert auditor.audit_batch(batch, text_column="body").to_pylist() == rows_of(auditor, ["a b"])
    assert auditor.audit_batch(batch, ids_column="ids").to_pylist() == rows_of(auditor, None, [[1, 2]])
    for columns, error, message in (
        ({"text_column": "nothing"}, InputError, "expected 'nothing' among them"),
        ({"text_column": "body", "ids_column": "ids"}, InputError, "expected one of them"),
        ({"text_column": "n"}, ShapeError, "column 'n': got int64, expected strings"),
        ({"ids_column": "body"}, ShapeError, "column 'body': got string, expected lists of integers"),
    ):
        with pytest.raises(error, match=message):
            auditor.audit_batch(batch, **columns)
    with pytest.raises(InputError, match="got Table"):
        audit_batch(auditor, pa.table({"text": ["a"]}))
    assert auditor.audit_batch(batch.slice(0, 0)).num_rows == 0
    with pytest.raises(TokenizerMismatch):
        audit_batch(Auditor(teams.team(vocab_size=400)), batch)


def test_several_profiles(registry: Registry) -> None:
    both = Registry.loads(registry.dumps())
    second_profile = both.add_profile(tokenizer="iet:demo", scheme=Scheme(n_gram=3))
    both.add("stranger", profile=second_profile, secret=b"s" * 32)
    auditor, texts = Auditor(both), documents(registry)[:6]
    assert read(auditor, texts) == rows_of(auditor, texts)
    ids = [both.open_tokenizer(second_profile).encode(text).token_ids for text in texts]
    batch = pa.RecordBatch.from_pydict({"token_ids": [token_ids.tolist() for token_ids in ids]})
    assert auditor.audit_batch(batch).to_pylist() == rows_of(auditor, None, ids)  # of one tokenizer
    both.add("blind", profile=both.add_profile(vocab_size=400), secret=b"b" * 32)
    with pytest.raises(InputError, match="of which profile"):
        Auditor(both).audit_batch(pa.RecordBatch.from_pydict({"token_ids": [[1]]}))


def test_many_keys(registry: Registry) -> None:
    crowd = Registry.loads(registry.dumps())
    for i in range(80):
        crowd.add(f"agent {i}", secret=teams.secret(f"{i}"))
    auditor, texts = Auditor(crowd, "cusum"), documents(registry)[:5]
    assert read(auditor, texts) == rows_of(auditor, texts)


def test_the_package_does_not_import_pyarrow() -> None:
    code = "import sys, iet; iet.Auditor; from iet import cli; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_numbers_come_from_reports(registry: Registry) -> None:
    # The rows above are compared with what `rows_of` says, so this says what they say for one text.
    auditor = Auditor(registry)
    row = auditor.audit_batch(pa.RecordBatch.from_pydict({"text": documents(registry)[:1]})).to_pylist()[0]
    assert row["found"] == ["planner"]
    assert row["best_agent"] == "planner"
    assert row["log_p"] < -20
    assert row["tokens"] == 301
    assert [segment["agent"] for segment in row["segments"]] == ["planner"]
    assert np.isfinite(row["segments"][0]["posterior"])


ENGINES: dict[str, tuple[Any, dict[str, Any]]] = {
    "vllm-gumbel": (lambda row: row[0], {}),
    "vllm-synthid": (lambda row: row[0], {}),
    "vllm-sbw": (lambda row: row[0], {}),
    "vllm-sbw lefthash": (lambda row: row[0], {"seeding_scheme": "lefthash", "n_gram": 4}),
    "sglang-gumbel": (lambda row: f"{row[0]:x}", {"n_gram": 3}),
    "kgw": (lambda row: row[0], {}),
    "kgw selfhash": (lambda row: row[0], {"seeding_scheme": "selfhash", "n_gram": 2}),
    "kgw selfhash 1": (lambda row: row[0], {"seeding_scheme": "selfhash"}),
    "synthid": (lambda row: row, {}),
}


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest, registry: Registry) -> tuple[iet.EngineKeys, list[Any]]:
    """Keys of an engine's mark, and texts; the first was written with three of the keys."""
    name = request.param
    if name.startswith("kgw") and not iet.backends().isas:
        pytest.skip("NumPy takes minutes for so many green lists")
    form, parameters = ENGINES[name]
    rng = np.random.default_rng(3)
    numbers = rng.integers(1, 1 << 62, (4, 8)).tolist()
    agents = {"a": form(numbers[0]), "b": [form(numbers[1]), form(numbers[2])], "c": form(numbers[3])}
    tokenizer = registry.open_tokenizer()
    size = tokenizer.backend.get_vocab_size()
    keys = iet.EngineKeys(name.split()[0], agents, tokenizer=tokenizer.backend, vocab_size=size, **parameters)
    # Ids as a sampler with the mark would choose them: each of the highest score of a few drawn ones.
    marked = list[int]()
    for position in range(360):
        drawn = rng.integers(0, size, 12)
        column = min(position // 120, 2)
        tries = [iet.score_tokens([*marked[-4:], int(id)], keys)[-1, column] for id in drawn]
        marked.append(int(drawn[np.argmax(tries)]))
    return keys, [
        np.array(marked),
        rng.integers(0, size, 150),
        np.array(marked[100:140] * 3),
        np.array(marked[:3]),
        np.array([], np.int64),
        np.array([0, 5, 0, 0, 7, 5, 0, 5]),
        tokenizer.encode("Who wrote what, and how would we know? " * 4).token_ids,
    ]


@pytest.mark.parametrize("decoder", ["cusum", "posterior"])
def test_marks_of_engines(engine: tuple[iet.EngineKeys, list[Any]], decoder: str) -> None:
    keys, texts = engine
    auditor = Auditor(keys, decoder)
    assert auditor.plan.many_at_once
    batch = pa.RecordBatch.from_arrays([pa.array([t.tolist() for t in texts])], ["token_ids"])
    result = auditor.audit_batch(batch).to_pylist()
    assert result == rows_of(auditor, None, texts)
    assert result[0]["coverage"] > 0.5
    joined = Texts.of(texts, keys.profile.scheme.n_gram)
    scores = keys.scores(joined, 1)
    for text, start, end in zip(texts, joined.starts.tolist(), joined.ends.tolist(), strict=True):
        assert np.array_equal(scores[start:end], iet.score_tokens(text, keys))
