"""Ragged data as CSR: row ``i`` of ``x`` is ``x[ptr[i]:ptr[i + 1]]``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import LongArray


def row_pointers(rows: NDArray, num_rows: int) -> LongArray:
    """``[num_rows + 1]`` row pointers of entries that are sorted by their ``rows``."""
    counts = np.bincount(rows, minlength=num_rows)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
