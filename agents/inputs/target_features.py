"""Features of a target: of the package as a whole for the policy, of each chip for Gymnasium.

All are rates or shares on a fixed logarithmic scale, so that the number of chips
and all rates may differ from those in training.
"""

from __future__ import annotations

from math import fsum
from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.env import CostTables, Target
from go_opt.env.cost.tables import smallest_op_s
from go_opt.model.dtypes import dtype_code
from go_opt.model.graph import NO_PRODUCER, WEIGHT, Graph

_WAVES: Final = 5  # half waves over the package: 1, 2, 4, 8, 16
CHIP_COLUMNS: Final = (
    "position",
    *(f"{wave} {2**k}" for wave in ("sine", "cosine") for k in range(_WAVES)),
    "log share of the package's speed on this graph",
    "share of that speed before its middle",
    "log matrix flops per s",
    "log vector flops per s",
    "log SRAM bytes",
    "log SRAM bytes per s",
    "log overhead s",
    "pays for transfers",
)
GLOBAL_COLUMNS: Final = (
    "log chips",
    "overlap",
    "acyclic",
    "triangle",
    "ring",
    "log link bytes per s",
    "log link latency s",
    "log host in bytes per s",
    "log host out bytes per s",
    "log ops",
    "log edges per op",
    "log seconds per chip",
    "log longest op of that",
    "log seconds all tensors take on a link of that",
    "log weight bytes per SRAM byte",
    *(f"mean {name}" for name in ("log flops", "log bytes out", "log weight bytes", "log seconds")),
    *(f"spread {name}" for name in ("log flops", "log bytes out", "log weight bytes", "log seconds")),
)
LEAST_S: Final = 1e-12  # below all real times; keeps logarithms finite


def chip_features(tables: CostTables, target: Target) -> FloatArray:
    """[D, len(CHIP_COLUMNS)] features of each chip.

    Positions are also encoded as waves, as in Vaswani et al., "Attention is all you
    need", NeurIPS 2017, so that neighbours differ clearly even among many chips.
    """
    position = np.arange(target.num_chips) / max(1, target.num_chips - 1)
    angles = np.pi * position[:, None] * 2.0 ** np.arange(_WAVES)
    native = dtype_code(target.native_dtype)
    of_kinds = np.array(
        [
            (
                np.log10(kind.rates(kind.matrix_flops_per_s, target.native_dtype)[native] / 1e12),
                np.log10(kind.rates(kind.vector_flops_per_s, target.native_dtype)[native] / 1e12),
                np.log10(kind.sram_bytes / 1e7),
                np.log10(kind.sram_bytes_per_s / 1e12),
                np.log10(kind.kernel_overhead_s + 1e-9) + 7,
                float(kind.pays_transfers),
            )
            for kind in target.kinds
        ]
    )
    share = _share_of_speed(tables)
    middle = (np.cumsum(share) - 0.5 * share) * 2 - 1
    columns = [position * 2 - 1, np.sin(angles), np.cos(angles), np.log(share * target.num_chips), middle]
    return np.column_stack([*columns, of_kinds[target.chip_kind]])


def package_features(graph: Graph, tables: CostTables, target: Target) -> FloatArray:
    """The first of ``GLOBAL_COLUMNS``; the means and spreads come from the ops' features."""
    links, dependency_s = target.topology, tables.dependency_s[tables.chip_kind].mean()
    rate = _mean_log10(links.rate_bytes_per_s)
    op_s = smallest_op_s(tables)
    ideal_s = fsum(op_s) / target.num_chips + LEAST_S
    all_tensors_s = tables.tensor_bytes[tables.tensor_producer != NO_PRODUCER].sum() / 10**rate
    weight_bytes = tables.tensor_bytes[tables.tensor_kind == WEIGHT].sum()
    return np.array(
        [
            np.log2(target.num_chips) / 3,
            target.overlap,
            target.constraints.acyclic,
            target.constraints.triangle != "off",
            tables.is_ring,
            rate - 10,
            _mean_log10(links.latency_s + dependency_s + 1e-9) + 7,  # a transfer takes both
            np.log10(target.host_in_bytes_per_s) - 10,
            np.log10(target.host_out_bytes_per_s) - 10,
            np.log10(graph.num_ops) - 3,
            np.log1p(graph.num_edges / graph.num_ops),
            np.log10(ideal_s) + 5,
            np.log10((op_s.max() + LEAST_S) / ideal_s),
            np.log10((all_tensors_s + LEAST_S) / ideal_s),
            np.log10((weight_bytes + 1) / tables.sram_bytes.sum()),
        ]
    )


def _share_of_speed(tables: CostTables) -> FloatArray:
    """[D] each chip's share of the package's speed: graphs per second if its kind ran each op alone."""
    # fsum rounds once: the same for every storage order of the ops.
    speed = 1.0 / (np.array([fsum(op_s) for op_s in tables.kernel_floor_s()]) + LEAST_S)
    of_chips: FloatArray = speed[tables.chip_kind] / speed[tables.chip_kind].sum()
    return of_chips


def _mean_log10(values: FloatArray) -> float:
    """Mean logarithm of the links' figures; without links, that of a common link of 10 GB/s."""
    return float(np.log10(values).mean()) if len(values) else 10.0
