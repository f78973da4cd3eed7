"""The arithmetic of docs/internals/paper.md against the library's metrics, and against the page."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.paper import implied
from iet.audit.metrics import edge_similarity, mean_iou, token_accuracy

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "internals" / "paper.md"


@pytest.mark.parametrize("tables", [implied.clean, implied.agreement, implied.reconciled, implied.edges])
def test_page_holds_what_the_command_prints(tables):
    assert tables() in PAGE.read_text(encoding="utf-8")


@given(agents=st.integers(2, 6), seed=st.integers(0, 2**32 - 1), unnamed=st.floats(0, 1))
def test_with_equal_shares_iou_is_never_above_token_accuracy(agents, seed, unnamed):
    draw = np.random.default_rng(seed)
    truth = np.repeat(np.arange(agents), 20)
    found = np.where(draw.random(len(truth)) < 0.5, truth, draw.integers(0, agents, len(truth)))
    found[draw.random(len(truth)) < unnamed] = -1
    assert mean_iou(truth, found, agents) <= token_accuracy(truth, found) + 1e-12


@pytest.mark.parametrize("agents", [3, 4, 5, 6])
@pytest.mark.parametrize("right", [0, 20, 60, 80])
def test_errors_on_all_alike_give_the_even_iou(agents, right):
    wrong = 12 * (agents - 1)  # of each agent, the same number to every other
    truth = np.repeat(np.arange(agents), right + wrong)
    others = [[other for other in range(agents) if other != agent] for agent in range(agents)]
    found = np.concatenate([[agent] * right + others[agent] * 12 for agent in range(agents)])
    iou = mean_iou(truth, found, agents)
    assert iou == pytest.approx(implied.even_iou(token_accuracy(truth, found)))


def test_unnamed_tokens_left_out_of_iou_reconcile_both_figures():
    truth = np.repeat(np.arange(4), 500)
    found = truth.copy()
    found[::10] = (truth[::10] + 1) % 4  # wrong: a tenth of all
    named = np.arange(len(truth)) % 4 != 3  # the errors fall on even places
    wrong = 1 - (found[named] == truth[named]).mean()
    iou = mean_iou(truth[named], found[named], 4)
    accuracy = ((found == truth) & named).mean()
    share, rightly = implied.named_share(accuracy, iou)
    assert share == pytest.approx(named.mean(), abs=1e-3)
    assert rightly == pytest.approx(1 - wrong, abs=1e-3)


@pytest.mark.parametrize("agents", [4, 5, 6])
def test_similarity_of_a_graph_with_all_edges_alike(agents):
    every = 0.3 * (1 - np.eye(agents))
    cycle = np.roll(np.eye(agents), 1, axis=1)
    star = np.zeros((agents, agents))
    star[0, 1:] = star[1:, 0] = 1
    assert edge_similarity(cycle, every) == pytest.approx(implied.all_edges(agents, agents))
    assert edge_similarity(star, every) == pytest.approx(implied.all_edges(agents, 2 * (agents - 1)))


def test_command_prints_all_tables(capsys):
    assert implied.main() == 0
    printed = capsys.readouterr().out
    assert all(table() in printed for table in (implied.clean, implied.edges))
