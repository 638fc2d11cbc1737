"""Cuts the work of each chip into parts, so that no part depends on itself."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import networkx as nx


@dataclass
class Part:
    """Successive kernels of a chip that do not depend on results derived from the part."""

    chip: int
    kernels: list[int] = field(default_factory=list)


def parts_of(
    chips: Sequence[int], needs: Sequence[Sequence[Hashable]], makes: Sequence[Sequence[Hashable]]
) -> list[Part]:
    """Parts in an order in which each can run, as few as the order of the kernels allows.

    A kernel joins the last part of its chip, unless that part would then depend on itself through another
    chip; then it starts a new part. Under acyclic dataflow, each chip is one part.

    Args:
      chips: of each kernel, in execution order.
      needs, makes: the tensors that each kernel reads and writes.
    """
    parts: list[Part] = []
    waits = nx.DiGraph()  # from a part to those that read from it, by number
    last: dict[int, int] = {}
    made_by: dict[Hashable, int] = {}
    for kernel, chip in enumerate(chips):
        sources = {made_by[tensor] for tensor in needs[kernel] if tensor in made_by}
        part = last.get(chip)
        if part is None or any(nx.has_path(waits, part, source) for source in sources - {part}):
            part = last[chip] = len(parts)
            parts.append(Part(chip))
            waits.add_node(part)
        parts[part].kernels.append(kernel)
        waits.add_edges_from((source, part) for source in sources - {part})
        made_by |= dict.fromkeys(makes[kernel], part)
    # Ties are broken by chip.
    order = nx.lexicographical_topological_sort(waits, key=lambda part: (parts[part].chip, part))
    return [parts[part] for part in order]
