"""Kinds of chips: memory, rates, and the types of ops that they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.env.gpu.figures import KernelFigures
from go_opt.env.target.fields import (
    COUNT,
    FLAG,
    NON_NEGATIVE,
    POSITIVE,
    RATES,
    RATES_BY_NAME,
    TEXT,
    TEXTS,
    fields_of,
    table,
)
from go_opt.env.target.kernel_fields import KERNEL_FIGURES
from go_opt.env.target.simulator_parameters import KIND_PARAMETERS, KindParameters
from go_opt.errors import TargetError
from go_opt.model.dtypes import DTYPE_BITS, DTYPES, dtype_code

Rates = Mapping[str, float]  # by the name of a type
_IDEAL: Final = KindParameters()


@dataclass(frozen=True)
class ChipKind:
    """One kind of chip. Rates are per dtype name; ``default`` covers the types not listed."""

    name: Annotated[str, TEXT("The kind's name in cost tables.")]
    count: Annotated[int, COUNT("Chips of the kind.")]
    sram_bytes: Annotated[int, COUNT("Memory of a chip, for weights and activations.")]
    sram_bytes_per_s: Annotated[
        float, POSITIVE("Bytes per second that a kernel moves to and from this memory.")
    ]
    kernel_overhead_s: Annotated[float, NON_NEGATIVE("Overhead of each kernel in seconds.")]
    matrix_flops_per_s: Annotated[Rates, RATES("FLOP/s of matrix products, by type.")]
    vector_flops_per_s: Annotated[Rates, RATES("FLOP/s of all other work, by type.")]
    pays_transfers: Annotated[
        bool, FLAG("Without overlap, transfers take the chip's time (default: true).", is_optional=True)
    ] = True
    dependency_overhead_s: Annotated[
        float,
        NON_NEGATIVE("Seconds between a tensor's arrival and its reader (default: 0).", is_optional=True),
    ] = 0.0
    op_types: Annotated[
        tuple[str, ...], TEXTS("The only op types that the kind runs (default: all).", is_optional=True)
    ] = ()
    not_op_types: Annotated[
        tuple[str, ...], TEXTS("Op types that the kind does not run.", is_optional=True)
    ] = ()
    flops_per_s_by_op_type: Annotated[
        Mapping[str, Rates],
        RATES_BY_NAME("Rates of op types, in place of those of matrix and vector work.", is_optional=True),
    ] = field(default_factory=dict)
    kernels: Annotated[
        KernelFigures | None,
        KERNEL_FIGURES("Figures of GPU kernels, in place of tiles of the simulator.", is_optional=True),
    ] = None
    simulator: Annotated[
        KindParameters,
        KIND_PARAMETERS("Simulator parameters of the kind.", is_optional=True),
    ] = field(default_factory=KindParameters)

    def __post_init__(self) -> None:
        if self.op_types and self.not_op_types:
            raise TargetError(
                f"kind {self.name!r} has op_types and not_op_types; give one of them.",
                field="kinds.not_op_types",
            )
        object.__setattr__(self, "simulator", replace(self.simulator, kernels=self.kernels))
        tiles = ("tile_rows", "tile_inner", "tile_columns", "tiles_at_once", "fill_s")
        if self.kernels and any(getattr(self.simulator, name) != getattr(_IDEAL, name) for name in tiles):
            raise TargetError(
                f"kind {self.name!r} has kernels and simulator.tile, tiles_at_once or fill_s; give one.",
                field="kinds.kernels",
            )

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


CHIP_KIND: Final = table(fields_of(ChipKind), ChipKind)("Chips of one kind.")
