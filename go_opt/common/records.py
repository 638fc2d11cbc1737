"""Types of records; compiled functions take arrays of them."""

from __future__ import annotations

import numpy as np


def record(integers: str, floats: str = "") -> np.dtype:
    """The type of a record with these 64-bit fields; names are separated by blanks."""
    fields: list[tuple[str, type]] = [(name, np.int64) for name in integers.split()]
    fields += [(name, np.float64) for name in floats.split()]
    return np.dtype((np.record, fields))  # np.record: fields are attributes in plain Python too
