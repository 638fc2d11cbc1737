"""Names of the parts of ops and tensors."""

from __future__ import annotations


def part_name(name: str, part: int, parts: int) -> str:
    """The name of a part of the op ``name``, or of its slice of the tensor ``name``."""
    return f"{name}/part {part + 1} of {parts}"


def rows_name(tensor: str, start: int, stop: int) -> str:
    """The name of rows ``start`` to ``stop`` of a tensor, and of the op that slices or joins them."""
    return f"{tensor}/rows {start} to {stop}"


def inner_name(tensor: str, part: int, parts: int) -> str:
    """The name of a slice of a tensor along the inner dimension of a product, and of the op that takes it."""
    return f"{tensor}/inner {part + 1} of {parts}"


def sum_name(name: str, part: int, parts: int) -> str:
    """The name of the op, or its tensor, that adds the partial results up to that of a part."""
    return f"{name}/sum {part + 1} of {parts}"
