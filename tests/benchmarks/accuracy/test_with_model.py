"""The benchmark of reading with a model: one of two readers reads the chosen token alone."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.accuracy import texts, with_model  # noqa: E402
from iet.audit import language_model, mixture  # noqa: E402


def test_the_chosen_token_is_read_alone_while_it_is_asked_for() -> None:
    assert language_model.gumbel_log_ratios is mixture.gumbel_log_ratios
    with with_model.chosen_alone():
        assert language_model.gumbel_log_ratios is not mixture.gumbel_log_ratios
    assert language_model.gumbel_log_ratios is mixture.gumbel_log_ratios


def test_a_row_holds_what_its_texts_gave() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        content = with_model.run(2, 30, {"shipped": texts.MODELS["shipped"]}, (0.7,))
    finally:
        torch.set_num_threads(threads)
    (row,) = content["rows"]
    means = {name: mean for name, (mean, _, _) in row["figures"].items()}
    assert means["likely/nats"] > means["chosen/nats"] > 0.2
    assert max(means["likely/strangers"], means["chosen/strangers"]) < 0.2
    assert means["gain/accuracy"] == pytest.approx(means["likely/accuracy"] - means["chosen/accuracy"])
    shown = with_model.markdown(content)
    assert f"| shipped | 0.7 ({row['entropy_nats']:.2f}) | 2 | {means['chosen/nats']:.3f} |" in shown
