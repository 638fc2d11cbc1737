"""Figures of GPU kernels and of collectives; env/target/kinds.py says how files state them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray

_PASSAGE: Final = 0.6  # of a collective from latency to rate
COLLECTIVES: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

_OF_H100: Final = (  # start_s, hop_s, and rates in times that of a link
    ("all_reduce", 4.6e-6, 1.56e-6, 1.76, 1.20),
    ("all_gather", 4.8e-6, 0.8e-6, 1.66, 1.85),
    ("reduce_scatter", 4.8e-6, 0.8e-6, 2.67, 1.46),
    ("all_to_all", 6.9e-6, 0.13e-6, 0.92, 5.19),
)


@dataclass(frozen=True)
class KernelFigures:
    """Figures of one kind of chip; shares are of the rates of its data sheet."""

    tiles_at_once: int
    start_s: float
    matrix_share: float
    memory_share: float
    feed_bytes_per_s: float
    step_s: float
    store_bytes_per_s: float
    split_overhead_s: float
    prefill_overhead_s: float
    scores_per_s: float
    prefill_block_s: float
    decode_overhead_s: float
    decode_block_s: float
    decode_split_s: float
    cache_bytes: float = 0.0
    cache_bytes_per_s: float = 0.0
    attention_matrix_ratio: float = 0.0  # of attention's matrix rate to that of products; 0: the peak
    attention_memory_ratio: float = 1.0  # the same of bandwidths

    @property
    def attention_matrix_share(self) -> float:
        """Matrix rate of attention, as a share of the peak."""
        return self.attention_matrix_ratio * self.matrix_share or 1.0

    @property
    def attention_memory_share(self) -> float:
        """Memory bandwidth of attention, as a share of the peak."""
        return self.attention_memory_ratio * self.memory_share


@dataclass(frozen=True)
class Collective:
    """Figures of one collective of several chips."""

    op: str
    start_s: float
    link_bytes_per_s: float
    hop_s: float = 0.0
    copy_bytes_per_s: float = 0.0
    group: int = 0  # 0: of any number of chips

    @classmethod
    def of_group(cls, given: Sequence[Collective], op: str, group: int) -> Collective | None:
        """The figures of a collective of ``group`` chips: of groups of this size, or else of any."""
        found = [one for one in given if one.op == op and one.group in (0, group)]
        return max(found, key=lambda one: one.group, default=None)

    @classmethod
    def scaled(cls, link_bytes_per_s: float) -> tuple[Collective, ...]:
        """Figures of unmeasured GPUs on a switch: of eight H100, scaled by the rate of a link (assumed)."""
        return tuple(
            cls(op, start_s, round(sent * link_bytes_per_s, -6), hop_s, round(copied * link_bytes_per_s, -6))
            for op, start_s, hop_s, sent, copied in _OF_H100
        )

    def seconds(self, num_bytes: FloatArray, group: FloatArray) -> FloatArray:
        """[N] seconds for ``group`` [N] chips and a whole buffer of ``num_bytes`` [N].

        The whole buffer is the result of an all-gather, and what a reduce-scatter takes. A collective passes
        from latency to rate slowly: ``A (1 + (x / A)^0.6)^(1 / 0.6)``.
        """
        share = (group - 1.0) / group * (2.0 if self.op == "all_reduce" else 1.0)
        latency_s = self.start_s + self.hop_s * (group - 1.0)
        copy_s = 1.0 / self.copy_bytes_per_s if self.copy_bytes_per_s else 0.0
        moving_s = num_bytes * (share / self.link_bytes_per_s + copy_s)
        rise = (moving_s / latency_s) ** _PASSAGE
        return np.asarray(latency_s * (1.0 + rise) ** (1.0 / _PASSAGE), np.float64)


def scaled_figures(matrix_flops_per_s: float, bytes_per_s: float, tiles_at_once: int) -> KernelFigures:
    """Figures of an unmeasured GPU: those of an H100, scaled by rates of the data sheet (assumed).

    Args:
      matrix_flops_per_s: of a type of two bytes.
    """
    return KernelFigures(
        tiles_at_once=tiles_at_once,
        start_s=2.6e-6,
        matrix_share=0.88,
        memory_share=0.88,
        feed_bytes_per_s=0.031 * matrix_flops_per_s,
        step_s=8e-8,
        store_bytes_per_s=1.94 * bytes_per_s,
        split_overhead_s=3.2e-6,
        prefill_overhead_s=12.2e-6,
        scores_per_s=3.5e10 * tiles_at_once,  # a function unit of each processor
        prefill_block_s=0.17e-6,
        decode_overhead_s=8e-6,
        decode_block_s=2.2e-6,
        decode_split_s=1.7e-6,
    )
