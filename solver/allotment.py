"""Chips for stages whose ops are given: replicated as the least interval asks for."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_ROUNDING: Final = 1e-12


def allotted_chips(work_s: NDArray[np.float64], num_chips: int, floor_s: float = 0.0) -> NDArray[np.int64]:
    """[S] chips of each stage, as few as the least interval allows.

    Args:
      work_s: [S] seconds of each stage on one chip; ``num_chips`` are at least as many.
      floor_s: the interval below which more chips are of no use.
    """
    size = np.ones(len(work_s), dtype=np.int64)
    for _ in range(num_chips - len(work_s)):
        size[np.argmax(work_s / size)] += 1
    interval_s = max(float((work_s / size).max()), floor_s)
    if interval_s == 0.0:
        return np.ones_like(size)
    return np.maximum(1, np.ceil(work_s / interval_s * (1.0 - _ROUNDING))).astype(np.int64)
