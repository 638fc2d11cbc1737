"""Types of arrays, by the type of their elements."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

IntArray = NDArray[np.int32]  # numbers of ops, chips and kernels
LongArray = NDArray[np.int64]  # bytes, counts and offsets
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
CodeArray = NDArray[np.int8]  # kinds and other small enumerations
WordArray = NDArray[np.uint64]  # bitsets
RecordArray = NDArray[np.void]  # rows with named fields
Record = Any  # a row of a RecordArray: its fields are attributes


def frozen(values: ArrayLike, dtype: DTypeLike | None = None) -> NDArray[Any]:
    """A read-only copy of the values."""
    array = np.array(values, dtype)
    array.flags.writeable = False
    return array
