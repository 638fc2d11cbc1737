"""Kinds of chips: memory, rates, the types of ops that they run, and effects of the simulator.

The analytical model includes some of these effects. A table of simulator parameters that a target file
leaves out is ideal: its parameters have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Final

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.env.gpu.figures import COLLECTIVES, Collective, KernelFigures
from go_opt.env.target.fields import (
    COUNT,
    FLAG,
    NATURAL,
    NON_NEGATIVE,
    POSITIVE,
    RATES,
    RATES_BY_NAME,
    TEXT,
    TEXTS,
    counts,
    fields_of,
    one_of,
    rows,
    some_of,
    table,
    table_of,
)
from go_opt.errors import TargetError
from go_opt.model.dtypes import DTYPE_BITS, DTYPES, dtype_code

KERNEL_FIGURES: Final = table_of(
    KernelFigures,
    tiles_at_once=COUNT("Processors that compute one tile each, such as SMs."),
    start_s=POSITIVE("Seconds of the shortest kernel."),
    matrix_share=POSITIVE("Reached matrix rate, as a share of the peak."),
    memory_share=POSITIVE("Reached memory bandwidth, as a share of the peak."),
    feed_bytes_per_s=POSITIVE("Rate at which all processors together take operands."),
    step_s=POSITIVE("Least seconds of 64 of the inner dimension in a tile."),
    store_bytes_per_s=POSITIVE("Rate at which all processors together store results."),
    split_overhead_s=POSITIVE("Seconds more if the inner dimension is split."),
    prefill_overhead_s=POSITIVE("Seconds of the shortest attention of several rows."),
    scores_per_s=POSITIVE("Exponentials of attention scores per second."),
    prefill_block_s=POSITIVE("Seconds more of 128 rows of a head."),
    decode_overhead_s=POSITIVE("Seconds of the shortest attention of one row."),
    decode_block_s=POSITIVE("Seconds more of one row of a head of keys."),
    decode_split_s=POSITIVE("Seconds more if the keys of a row are split."),
    cache_bytes=NON_NEGATIVE("Operands of a product up to this size are in the cache."),
    cache_bytes_per_s=NON_NEGATIVE("Bandwidth of this cache (default: 0, none)."),
    attention_matrix_ratio=NON_NEGATIVE(
        "Matrix rate of attention, in times that of products (default: 0, the peak)."
    ),
    attention_memory_ratio=POSITIVE("Bandwidth of attention, in times that of products (default: 1)."),
)
COLLECTIVE: Final = table_of(
    Collective,
    op=one_of(*COLLECTIVES)("The collective."),
    start_s=POSITIVE("Seconds of the least message."),
    link_bytes_per_s=POSITIVE("Rate of what each chip sends."),
    hop_s=NON_NEGATIVE("Seconds more for each further chip (default: 0)."),
    copy_bytes_per_s=NON_NEGATIVE(
        "Rate at which the whole buffer is copied besides (default: 0, not at all)."
    ),
    group=COUNT("Only groups of so many chips (default: any)."),
)("A collective.")

UNLIMITED: Final = 0
_PARAMETERS_OF: Final[Mapping[str, Sequence[str]]] = {  # of the package or of kinds, by effect
    "shapes": (
        *("tile_rows", "tile_inner", "tile_columns", "tiles_at_once", "fill_s", "vector_lanes"),
        *("op_factors", "kernels"),
    ),
    "dma": ("dma_engines", "dma_setup_s"),
    "latency": (),
    "packets": ("packet_bytes", "packet_header_bytes"),
    "buffers": ("buffers",),
    "host": ("host_multicast", "weight_prefetch"),
    "memory": ("alignment_bytes", "stream_buffer_bytes", "fit_by_size"),
    "noise": ("noise",),
}
EFFECTS: Final = tuple(_PARAMETERS_OF)
# Effects with a closed form; the analytical model includes them unless the target says otherwise.
ANALYTICAL_EFFECTS: Final = ("shapes", "dma", "packets", "host", "memory")


@dataclass(frozen=True)
class OpFactor:
    """A factor on the seconds of ops of one type."""

    op_type: Annotated[str, TEXT("Type of the ops.")]
    factor: Annotated[float, POSITIVE("Factor on their seconds.")]
    shape: Annotated[
        tuple[int, ...], counts(4)("Only products of this batch, rows, inner size and columns; these win.")
    ] = ()  # empty: all other ops


@dataclass(frozen=True)
class KindParameters:
    """Parameters of one kind of chip."""

    tile_rows: int = 1  # a matrix unit takes as long for part of a rows x inner x columns tile as for all
    tile_inner: int = 1
    tile_columns: int = 1
    tiles_at_once: Annotated[
        int,
        COUNT(
            "Tiles computed in parallel, also along the inner dimension; the last may be few (default: 1)."
        ),
    ] = 1
    fill_s: Annotated[
        float, NON_NEGATIVE("Seconds until the first result leaves a matrix unit (default: 0).")
    ] = 0.0
    vector_lanes: Annotated[int, COUNT("Elements that a vector unit takes at a time.")] = 1
    op_factors: Annotated[
        tuple[OpFactor, ...],
        rows(table_of(OpFactor)("A factor on the seconds of ops of a type."))(
            "How much longer ops take than rates, tiles and lanes explain."
        ),
    ] = ()
    dma_engines: Annotated[int, NATURAL("Transfers that a chip sends at once; 0: any number.")] = UNLIMITED
    dma_setup_s: Annotated[float, NON_NEGATIVE("Seconds of each transfer before its first byte.")] = 0.0
    alignment_bytes: Annotated[
        int, COUNT("Alignment of buffers in memory; the largest of all kinds counts.")
    ] = 1
    stream_buffer_bytes: Annotated[int, NATURAL("Reserved on a chip that streams weights.")] = 0
    kernels: KernelFigures | None = None  # those of the kind


@dataclass(frozen=True)
class SimulatorParameters:
    """Parameters of a package."""

    kinds: tuple[KindParameters, ...]
    buffers: Annotated[
        int, NATURAL("Buffers of each tensor that enters or leaves a chip; 0: any number.")
    ] = UNLIMITED
    packet_bytes: Annotated[
        int, NATURAL("A switch forwards a packet once it is complete; 0: no packets.")
    ] = 0
    packet_header_bytes: Annotated[int, NATURAL("Header bytes of each packet.")] = 0
    host_multicast: Annotated[bool, FLAG("An input read on several chips crosses the host's link once.")] = (
        True
    )
    weight_prefetch: Annotated[
        bool, FLAG("Weights stream ahead for a whole inference; else one kernel ahead.")
    ] = True
    noise: Annotated[float, NON_NEGATIVE("Relative standard deviation of a measured interval.")] = 0.0
    fit_by_size: bool = True  # peak live bytes decide what fits; else addresses of buffers do

    @property
    def page_bytes(self) -> int:
        """Size of a page, the same on all chips; every buffer starts and ends on a page."""
        return max((kind.alignment_bytes for kind in self.kinds), default=1)

    @property
    def header_share(self) -> float:
        """Bytes of headers for each byte of a tensor."""
        return self.packet_header_bytes / self.packet_bytes if self.packet_bytes else 0.0

    def without(self, effects: Sequence[str]) -> SimulatorParameters:
        """The same parameters with ``effects`` made ideal."""
        ideal, kind = SimulatorParameters(()), KindParameters()
        names = [name for effect in effects for name in _PARAMETERS_OF[effect]]
        own, of_kinds = ([name for name in names if hasattr(of, name)] for of in (ideal, kind))
        kinds = tuple(replace(one, **{name: getattr(kind, name) for name in of_kinds}) for one in self.kinds)
        return replace(self, kinds=kinds, **{name: getattr(ideal, name) for name in own})


def ideal_parameters(num_kinds: int) -> SimulatorParameters:
    """Parameters with every effect off."""
    return SimulatorParameters((KindParameters(),) * num_kinds)


def _kind_parameters(tile: tuple[int, int, int] = (1, 1, 1), **others: Any) -> KindParameters:
    return KindParameters(*tile, **others)


KIND_PARAMETERS: Final = table(
    {
        "tile": counts(3)(
            "Rows, inner size and columns of a matrix unit's tile (default: 1, 1, 1).", is_optional=True
        )
    }
    | fields_of(
        KindParameters,
        needed=("vector_lanes", "dma_engines", "dma_setup_s", "alignment_bytes", "stream_buffer_bytes"),
    ),
    _kind_parameters,
)
PACKAGE_PARAMETERS: Final = table(
    fields_of(SimulatorParameters, needed=[field.name for field in fields(SimulatorParameters)])
)
EFFECTS_IN_MODEL: Final = table(
    {"effects": some_of(*ANALYTICAL_EFFECTS)("Effects with a closed form.")},
    lambda effects: {"analytical_effects": effects},
)


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
        bool, FLAG("Without overlap, transfers take the chip's time (default: true).")
    ] = True
    dependency_overhead_s: Annotated[
        float, NON_NEGATIVE("Seconds between a tensor's arrival and its reader (default: 0).")
    ] = 0.0
    op_types: Annotated[tuple[str, ...], TEXTS("The only op types that the kind runs (default: all).")] = ()
    not_op_types: Annotated[tuple[str, ...], TEXTS("Op types that the kind does not run.")] = ()
    flops_per_s_by_op_type: Annotated[
        Mapping[str, Rates],
        RATES_BY_NAME("Rates of op types, in place of those of matrix and vector work."),
    ] = field(default_factory=dict)
    kernels: Annotated[
        KernelFigures | None, KERNEL_FIGURES("Figures of GPU kernels, in place of tiles of the simulator.")
    ] = None
    simulator: Annotated[KindParameters, KIND_PARAMETERS("Simulator parameters of the kind.")] = field(
        default_factory=KindParameters
    )

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


CHIP_KIND: Final = table_of(ChipKind)("Chips of one kind.")
