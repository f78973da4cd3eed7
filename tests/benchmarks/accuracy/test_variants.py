"""The benchmark of variants: its figures are what they say, on given answers and on a few short texts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import iet
from iet.marks.keys import KeyTable

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.accuracy import texts, variants  # noqa: E402
from iet.demo.conversation import load_model  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_distinct_n_counts_n_grams_within_answers() -> None:
    answers = np.array([[1, 2, 1, 2], [1, 2, 3, 4], [1, 2, 1, 2]])
    assert variants.distinct(answers, 1) == 4 / 12
    assert variants.distinct(answers, 2) == 4 / 9  # 12, 21, 23, 34
    assert variants.distinct(answers, 3) == 4 / 6  # 121, 212, 123, 234
    assert variants.common_starts(answers).tolist() == [2, 4, 2]


def test_an_agent_is_found_after_as_many_tokens_as_its_audit_says() -> None:
    model, registry = load_model(texts.MODELS["shipped"])[0], texts.keys("shipped", "gumbel", 3, 6, 4)
    table: KeyTable = registry.marking_keys()
    ids = variants.sample(
        model,
        variants.openings()[:1],
        np.array([[table.row_of(2, seed=1)]], np.int64),
        table,
        tokens=60,
        temperature=1.0,
        barred=texts.tokenizer("shipped").special_ids,
        seed=1,
    ).ids[0]
    needed = variants.tokens_until_found(ids, registry, 2)
    assert needed is not None
    assert needed < 40
    auditor = iet.Auditor(registry, level=variants.LEVEL)
    assert auditor.audit(token_ids=ids[:needed]).found == ("agent-3",)
    assert auditor.audit(token_ids=ids[: needed - 1]).found == ()
    assert variants.tokens_until_found(ids, registry, 1) is None


def test_the_tables_hold_every_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "TEMPERATURES", (1.0,))
    found = variants.run(
        prompts=1, count=12, tokens=16, texts_found=4, tokens_found=40, talks=2, lengths=(40,), turns=6
    )
    assert [row["variants"] for row in found["answers"]] == [None, 1, 4, 16]
    figures = [row["figures"] for row in found["answers"]]
    assert figures[0]["distinct_answers"][0] == 1
    for first, second in ((1, 2), (2, 0)):  # under fewer variants answers are more alike, unmarked ones least
        assert figures[first]["apart_after"][0] > figures[second]["apart_after"][0]
        assert figures[first]["distinct_3"][0] < figures[second]["distinct_3"][0]
    assert [row["variants"] for row in found["evidence"]] == [1, 4, 16]
    assert [(row["variants"], row["read_under"]) for row in found["attribution"]] == [
        (1, 1),
        (1, 16),
        (16, 16),
    ]
    shown = variants.markdown(found)
    assert "| 1 | unmarked | 1 |" in shown
    assert shown.count("\n| 1 | ") == 4 + 3 + 3
