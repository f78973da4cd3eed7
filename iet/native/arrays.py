"""Types of NumPy arrays. A signature cannot give their shapes; docstrings do."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
UInt8s = npt.NDArray[np.uint8]
UInt64s = npt.NDArray[np.uint64]
Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]
