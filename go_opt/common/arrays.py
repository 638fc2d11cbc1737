"""Types of arrays, by the type of their elements, records, and ragged arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

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
_Fields = TypeVar("_Fields")


def frozen(values: ArrayLike, dtype: DTypeLike | None = None) -> NDArray[Any]:
    """A read-only copy of the values."""
    array = np.array(values, dtype)
    array.flags.writeable = False
    return array


def row_pointers(rows: NDArray, num_rows: int) -> LongArray:
    """``[num_rows + 1]`` pointers of CSR: row ``i`` of ``x`` is ``x[ptr[i]:ptr[i + 1]]``.

    Args:
      rows: the row of each entry.
    """
    counts = np.bincount(rows, minlength=num_rows)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def csr(rows: NDArray, num_rows: int) -> tuple[LongArray, LongArray]:
    """CSR of entries by their ``rows``: :func:`row_pointers`, and the entries, in their order in each row."""
    return row_pointers(rows, num_rows), np.argsort(rows, kind="stable")


def record(integers: str, floats: str = "") -> np.dtype:
    """The type of a record with these 64-bit fields; names are separated by blanks."""
    fields: list[tuple[str, type]] = [(name, np.int64) for name in integers.split()]
    fields += [(name, np.float64) for name in floats.split()]
    return np.dtype((np.record, fields))  # np.record: fields are attributes in plain Python too


def allocated(fields: Callable[..., _Fields], sizes: Mapping[str, int], **given: Any) -> _Fields:
    """A named tuple of arrays of zeros, of which each has its shape with its type.

    ``Annotated[LongArray, "U, 2"]`` has two numbers for each unit, of which there are ``sizes["U"]``.

    Args:
      given: fields that are anything else.
    """
    zeros = {
        name: np.zeros([sizes[axis] if axis in sizes else int(axis) for axis in shape.split(", ")], dtype)
        for name, (dtype, shape) in _shapes(fields).items()
        if name not in given
    }
    return fields(**zeros, **given)


@cache
def _shapes(fields: Callable[..., Any]) -> dict[str, tuple[DTypeLike, str]]:
    """The type of the elements and the shape of each field with a shape."""
    hints = get_type_hints(fields, include_extras=True)
    return {
        name: (get_args(get_args(hint.__origin__)[1])[0], hint.__metadata__[0])
        for name, hint in hints.items()
        if get_origin(hint) is Annotated
    }
