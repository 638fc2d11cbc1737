"""What a training step's cost reads of a target with levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from go_opt.env import Target
from go_opt.env.gpu.figures import Collective
from go_opt.env.gpu.forms import GpuKernels, Products
from go_opt.errors import TargetError
from go_opt.model.dtypes import DTYPE_BITS, dtype_code

Product = tuple[float, float, float, float]  # batch, rows, inner, columns


@dataclass(frozen=True)
class Machine:
    """Devices of one kind in nodes of equal size; raises TargetError if the target lacks figures of it."""

    target: Target

    def __post_init__(self) -> None:
        name, kinds = self.target.name, self.target.kinds
        if not self.target.levels:
            raise TargetError(
                f"target {name!r} has no levels, which --objective step needs, as dgx-a100-8 has.",
                field="levels",
            )
        if kinds[0].kernels is None or len(kinds) > 1:
            raise TargetError(
                f"target {name!r} needs chips of one kind with kernels for --objective step.",
                field="kinds.kernels",
            )

    @cached_property
    def devices(self) -> int:
        return self.target.num_devices

    @cached_property
    def node(self) -> int:
        """Devices of one node."""
        return self.target.num_chips

    @cached_property
    def memory_bytes(self) -> int:
        """Of a device."""
        return self.target.kinds[0].sram_bytes

    @cached_property
    def host_s_per_layer(self) -> float:
        return self.target.levels[0].host_s_per_layer

    @cached_property
    def element_bytes(self) -> int:
        """Of activations, weights and gradients."""
        return int(DTYPE_BITS[dtype_code(self.target.native_dtype)]) // 8

    @cached_property
    def _kernels(self) -> GpuKernels:
        kind = self.target.kinds[0]
        assert kind.kernels is not None
        return GpuKernels(kind.kernels, kind.sram_bytes_per_s)

    @cached_property
    def _flops_per_s(self) -> float:
        kind, dtype = self.target.kinds[0], self.target.native_dtype
        return float(kind.rates(kind.matrix_flops_per_s, dtype)[dtype_code(dtype)])

    def products_s(self, products: Sequence[Product]) -> float:
        """Seconds of kernels of products, one after the other."""
        batch, rows, inner, columns = np.array(products, np.float64).T
        like = np.ones(len(products))
        given = Products(
            batch, rows, inner, columns, like * self._flops_per_s, like * self.element_bytes, like
        )
        moved = self.element_bytes * batch * (rows * inner + inner * columns + rows * columns)
        return float((self._kernels.figures.start_s + self._kernels.product_s(given, moved)).sum())

    def moved_s(self, num_bytes: float) -> float:
        """Seconds of element-wise kernels that read and write so many bytes."""
        return num_bytes / (self._kernels.figures.memory_share * self._kernels.bytes_per_s)

    def collective_s(self, op: str, num_bytes: float, group: int, stride: int = 1) -> float:
        """Seconds of a collective of every ``stride``-th device, ``group`` of them, on the whole buffer.

        Within a node by the target's figures; among nodes as a ring at the rate of a node, which the groups
        of the devices between share. All devices of a node send their own part of an all-to-all.
        """
        if group == 1:
            return 0.0
        if group * stride <= self.node or len(self.target.levels) == 1:
            return _within_s(self, op, num_bytes, group)
        between = self.target.levels[1]
        steps = 2.0 if op == "all_reduce" else 1.0
        sharing = self.node if op == "all_to_all" else min(self.node, stride)
        nodes = -(-group * stride // self.node)
        moved_s = (group - 1) / group * num_bytes / (between.rate_bytes_per_s / sharing)
        return steps * (moved_s + (nodes - 1) * between.latency_s)

    def sent_s(self, num_bytes: float, reach: int) -> float:
        """Seconds in which a device sends to one ``reach`` devices away; all share the node's network."""
        level = self.target.levels[-1] if reach >= self.node else self.target.levels[0]
        rate = level.rate_bytes_per_s
        if level is not self.target.levels[0]:
            rate /= self.node
        return num_bytes / rate + level.latency_s


@lru_cache(maxsize=65536)
def _within_s(machine: Machine, op: str, num_bytes: float, group: int) -> float:
    """Seconds of a collective within a node."""
    figures = Collective.of_group(machine.target.collectives, op, group)
    if figures is None:
        raise TargetError(f"the target has no [[collectives]] for {op} of {group}.", field="collectives")
    return float(figures.seconds(np.array([num_bytes]), np.array([float(group)]))[0])
