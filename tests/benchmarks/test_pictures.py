"""Pictures of the docs: as many colours as fit into their size."""

from __future__ import annotations

import io

import numpy as np
import pytest

from benchmarks.pictures import MAXIMUM, smaller
from iet.errors import InputError

Image = pytest.importorskip("PIL.Image")


def png(height: int, levels: int) -> bytes:
    """A picture of noise with `levels` levels of each colour."""
    noise = np.random.default_rng(0).integers(0, levels, (height, 600, 3)) * (255 // max(1, levels - 1))
    buffer = io.BytesIO()
    Image.fromarray(noise.astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def test_colours_are_cut_until_a_picture_fits() -> None:
    result = smaller(png(300, 256))
    assert len(result) < MAXIMUM < len(png(300, 256))
    assert Image.open(io.BytesIO(result)).size == (600, 300)


def test_rejects_text_that_does_not_fit() -> None:
    with pytest.raises(InputError, match="expected fewer than 150,000"):
        smaller(png(450, 256))  # 600 x 450 in 32 colours: 5 bits of noise each, 168,750 bytes
