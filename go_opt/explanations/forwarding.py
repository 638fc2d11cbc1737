"""The streamed weights that the chips of a replicated stage forward to each other."""

from __future__ import annotations

from go_opt.env import Metrics
from go_opt.explanations.loads import Loads


def streamed_weights(
    loads: Loads, chip: int, metrics: Metrics
) -> tuple[list[tuple[int, int]], frozenset[int]]:
    """The weights that stream to the first chip of a stage, with their bytes; those that the stage forwards.

    The rule of :mod:`go_opt.env.model.memory`: what a kernel waits for, if it reads all of each weight of it.
    """
    streamed = loads.streamed(chip, int(metrics.peak_bytes[chip]))
    if chip not in loads.plan.forwards or loads.stage_size[chip] == 1:
        return streamed, frozenset()
    first_kernel = {k: _first_reader(loads, k, chip) for k, _ in streamed}
    in_part = {first_kernel[k] for k, touched in streamed if touched < loads.tables.tensor_bytes[k]}
    return streamed, frozenset(k for k, kernel in first_kernel.items() if kernel not in in_part)


def forwarded_over(loads: Loads, link: int) -> int | None:
    """The first chip of the stage that forwards weights over a link of the ring; None where none does."""
    if not loads.tables.is_ring or link + 1 >= loads.tables.num_chips:
        return None
    chip = int(loads.first_chip[link])
    return chip if chip in loads.plan.forwards and loads.first_chip[link + 1] == chip else None


def _first_reader(loads: Loads, k: int, chip: int) -> int:
    """The first kernel on a chip that reads a weight."""
    kernels = loads.kernel_of[[op for op in loads.readers(k) if loads.op_chip[op] == chip]]
    return int(kernels.min())
