"""Arrays of plans as compiled kernels take them: numba compiles anew for arrays that may be written to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def read_only(array: NDArray[np.int32]) -> NDArray[np.int32]:
    """A view, or a copy where rows do not lie one after another, that cannot be written to."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
