"""The parts that the chips of a plan are cut into, so that none waits for itself."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field


@dataclass
class Part:
    """Kernels that a chip runs one after the other, without waiting for what they lead to."""

    chip: int
    kernels: list[int] = field(default_factory=list)
    reads_from: set[int] = field(default_factory=set)  # numbers of other parts


def parts_of(
    chips: Sequence[int], needs: Sequence[Sequence[Hashable]], makes: Sequence[Sequence[Hashable]]
) -> list[Part]:
    """Parts in an order in which each can run, as few as the order of the kernels gives.

    Each kernel joins the last part of its chip, unless that part would then wait for itself through another
    chip; it begins a new one there. Where chips follow each other as the data does, each is one part.

    Args:
      chips: of each kernel, in the order of execution.
      needs, makes: the tensors that each kernel reads and writes.
    """
    parts: list[Part] = []
    last: dict[int, int] = {}
    made_by: dict[Hashable, int] = {}
    for kernel, chip in enumerate(chips):
        sources = {made_by[tensor] for tensor in needs[kernel] if tensor in made_by}
        part = last.get(chip)
        if part is None or any(_leads_to(parts, part, source) for source in sources - {part}):
            part = last[chip] = len(parts)
            parts.append(Part(chip))
        parts[part].kernels.append(kernel)
        parts[part].reads_from |= sources - {part}
        made_by |= dict.fromkeys(makes[kernel], part)
    return _in_order(parts)


def _leads_to(parts: Sequence[Part], part: int, other: int) -> bool:
    """Whether ``other`` waits for ``part``."""
    seen, left = {other}, [other]
    while left:
        for source in parts[left.pop()].reads_from - seen:
            if source == part:
                return True
            seen.add(source)
            left.append(source)
    return False


def _in_order(parts: Sequence[Part]) -> list[Part]:
    """Sorted so that each follows those it reads from, by chip where there is a choice."""
    left = dict(enumerate(parts))
    number: dict[int, int] = {}
    ordered: list[Part] = []
    while left:
        ready = [i for i, part in left.items() if part.reads_from <= number.keys()]
        first = min(ready, key=lambda i: (parts[i].chip, i))
        part = left.pop(first)
        number[first] = len(ordered)
        ordered.append(Part(part.chip, part.kernels, {number[source] for source in part.reads_from}))
    return ordered
