"""Pieces whose boundaries are given: strengths are fitted over all of them."""

from __future__ import annotations

import numpy as np
import pytest

from iet.decoding.pieces import piece_posterior, piece_ratios
from iet.decoding.posterior import PosteriorOptions
from tests.support.scores import FOURIER, synthetic


@pytest.mark.parametrize("strength", [0.4, 0.8, 1.6])
@pytest.mark.parametrize("null_prior", [0.0, 0.5])
def test_strengths_of_pieces_are_estimated(strength: float, null_prior: float) -> None:
    rng = np.random.default_rng(3)
    scores, truth = synthetic(rng, 30, 3, strength)
    edges = np.append(0, np.flatnonzero(np.diff(truth)) + 1)
    sums = np.add.reduceat(scores, edges, axis=0, dtype=np.float64)
    counts = np.diff(np.append(edges, len(truth))).astype(np.float64)
    shares = np.full(3, 1 / 3)
    ratios, strengths = piece_ratios(sums, counts, FOURIER, null_prior, shares, PosteriorOptions())
    np.testing.assert_allclose(strengths, strength, atol=0.12)
    posterior = piece_posterior(ratios, null_prior, shares)
    assert (posterior.argmax(axis=1) == truth[edges]).mean() > 0.9
    np.testing.assert_allclose(posterior.sum(axis=1), 1, atol=1e-6 if null_prior == 0 else 1)
    options = PosteriorOptions(strengths=[0.5, 0.6, 0.7])
    assert piece_ratios(sums, counts, FOURIER, null_prior, shares, options)[1].tolist() == [0.5, 0.6, 0.7]
