"""Read-only arrays for compiled kernels, as plans have them: numba compiles again for writeable arrays."""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import IntArray


def read_only(array: IntArray) -> IntArray:
    """A read-only view, or a read-only copy if the array is not contiguous."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
