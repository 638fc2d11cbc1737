"""Kinds of chips: memory, rates, and the types of ops that they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.env.target.simulator_parameters import KindParameters, read_kind
from go_opt.env.target.toml_table import TomlTable
from go_opt.errors import TargetError
from go_opt.model.dtypes import DTYPE_BITS, DTYPES, dtype_code


@dataclass(frozen=True)
class ChipKind:
    """One kind of chip. Rates are per dtype name; ``default`` covers the types not listed."""

    name: str
    count: int
    sram_bytes: int
    sram_bytes_per_s: float
    kernel_overhead_s: float
    pays_transfers: bool
    matrix_flops_per_s: Mapping[str, float]
    vector_flops_per_s: Mapping[str, float]
    dependency_overhead_s: float = 0.0  # from a tensor's arrival to its reader on another chip
    op_types: tuple[str, ...] = ()  # the only ones that the kind runs; empty: all types
    not_op_types: tuple[str, ...] = ()  # those that it does not run
    # Op type -> rates that hold in place of those of the op's class.
    flops_per_s_by_op_type: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    simulator: KindParameters = field(default_factory=KindParameters)

    def runs(self, op_type: str) -> bool:
        """Whether the kind runs ops of this type."""
        return op_type not in self.not_op_types and (not self.op_types or op_type in self.op_types)

    def rates(self, by_dtype: Mapping[str, float], native_dtype: str) -> FloatArray:
        """[len(DTYPES)] peak rate of each type.

        A type that is not listed runs at ``default``. Without a default it runs at the native
        type's rate (else the highest), divided by the ratio of their widths if it is wider.
        """
        rates = np.empty(len(DTYPES))
        native_bits = DTYPE_BITS[dtype_code(native_dtype)]
        fallback = by_dtype.get(native_dtype, max(by_dtype.values()))
        for code, name in enumerate(DTYPES):
            scaled = fallback * min(1.0, native_bits / DTYPE_BITS[code])
            rates[code] = by_dtype.get(name, by_dtype.get("default", scaled))
        return rates


def read_chip_kind(table: TomlTable) -> ChipKind:
    """One of the tables ``[[kinds]]`` of a target."""
    if table.has("op_types") and table.has("not_op_types"):
        name = table.text("name")
        raise TargetError(
            f"kind {name!r} has op_types and not_op_types; give one of them.", field="kinds.not_op_types"
        )
    by_type = "flops_per_s_by_op_type"
    kind = ChipKind(
        name=table.text("name"),
        count=table.count("count"),
        sram_bytes=table.count("sram_bytes"),
        sram_bytes_per_s=table.positive("sram_bytes_per_s"),
        kernel_overhead_s=table.non_negative("kernel_overhead_s"),
        pays_transfers=table.flag("pays_transfers", True),
        matrix_flops_per_s=table.rates("matrix_flops_per_s"),
        vector_flops_per_s=table.rates("vector_flops_per_s"),
        dependency_overhead_s=table.non_negative("dependency_overhead_s", 0.0),
        op_types=table.texts("op_types") if table.has("op_types") else (),
        not_op_types=table.texts("not_op_types") if table.has("not_op_types") else (),
        flops_per_s_by_op_type=table.rates_by_name(by_type) if table.has(by_type) else {},
        simulator=read_kind(table.table("simulator")) if table.has("simulator") else KindParameters(),
    )
    table.finish()
    return kind
