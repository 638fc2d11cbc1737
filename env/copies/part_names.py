"""Names of what ops in parts and their tensors become."""

from __future__ import annotations


def part_name(name: str, part: int, parts: int) -> str:
    """The op that is a part of the op ``name``, or its slice of the tensor ``name``."""
    return f"{name}/part {part + 1} of {parts}"


def rows_name(tensor: str, start: int, stop: int) -> str:
    """Rows ``start`` to ``stop`` of a tensor, and the op that takes them out of it or puts them together."""
    return f"{tensor}/rows {start} to {stop}"
