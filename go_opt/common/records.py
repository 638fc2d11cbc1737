"""Arrays of records, and compiled functions that take many of them at once."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit

# For functions that allocate no arrays. Without this switch of numba's every call counts references to
# each array of a tuple it passes on, which takes longer than most of these functions do.
_NO_REFERENCE_COUNTS: Final[dict[str, Any]] = {"_nrt": False}
uncounted_njit: Final = njit(cache=True, nogil=True, **_NO_REFERENCE_COUNTS)


def record(integers: str, floats: str = "") -> np.dtype:
    """The type of a record with these fields, of 64 bits each; names are separated by blanks."""
    fields: list[tuple[str, type]] = [(name, np.int64) for name in integers.split()]
    fields += [(name, np.float64) for name in floats.split()]
    return np.dtype((np.record, fields))  # np.record: fields are attributes without compilation too
