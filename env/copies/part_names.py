"""Names of the parts of ops and tensors."""

from __future__ import annotations


def part_name(name: str, part: int, parts: int) -> str:
    """The name of a part of the op ``name``, or of its slice of the tensor ``name``."""
    return f"{name}/part {part + 1} of {parts}"


def rows_name(tensor: str, start: int, stop: int) -> str:
    """The name of rows ``start`` to ``stop`` of a tensor, and of the op that slices or joins them."""
    return f"{tensor}/rows {start} to {stop}"
