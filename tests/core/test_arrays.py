"""Named tuples of arrays, allocated by the shapes of their fields."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
import pytest

from go_opt.common.arrays import BoolArray, IntArray, LongArray, allocated


class Buffers(NamedTuple):
    chips: Annotated[IntArray, "U, 2"]
    used: Annotated[BoolArray, "D + 1"]
    best: LongArray
    size: int = 3


def test_arrays_have_the_shapes_of_their_fields() -> None:
    best = np.full(2, -1, np.int64)
    made = allocated(Buffers, {"U": 4, "D + 1": 3}, best=best)
    assert (made.chips.shape, made.chips.dtype, made.chips.any()) == ((4, 2), np.int32, False)
    assert (made.used.shape, made.used.dtype) == ((3,), np.bool_)
    assert made.best is best
    assert made.size == 3
    again = allocated(Buffers, {"U": 1}, best=best, used=made.used)
    assert again.chips.shape == (1, 2)
    assert again.used is made.used


def test_a_size_that_is_missing_is_an_error() -> None:
    with pytest.raises(ValueError, match="D"):
        allocated(Buffers, {"U": 4}, best=np.zeros(1, np.int64))
