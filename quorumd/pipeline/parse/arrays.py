"""The types of numpy arrays that hold bytes, numbers and conditions of a chunk."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
