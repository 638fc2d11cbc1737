"""Arrays of plans as compiled kernels take them: numba compiles anew for arrays that may be written to."""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import IntArray


def read_only(array: IntArray) -> IntArray:
    """A view, or a copy where rows do not lie one after another, that cannot be written to."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
