"""The simulator's parameters of a target; the analytical model includes some of their effects.

A table that a target file leaves out is ideal: its parameters have no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from go_opt.env.gpu.figures import KernelFigures
from go_opt.env.target.fields import (
    COUNT,
    FLAG,
    NATURAL,
    NON_NEGATIVE,
    POSITIVE,
    TEXT,
    counts,
    fields_of,
    rows,
    some_of,
    table,
)

EFFECTS: Final = ("shapes", "dma", "latency", "packets", "buffers", "host", "memory", "noise")
# Effects with a closed form; the analytical model includes them unless the target says otherwise.
ANALYTICAL_EFFECTS: Final = ("shapes", "dma", "packets", "host", "memory")
UNLIMITED: Final = 0


@dataclass(frozen=True)
class OpFactor:
    """A factor on the seconds of ops of one type."""

    op_type: Annotated[str, TEXT("Type of the ops.")]
    factor: Annotated[float, POSITIVE("Factor on their seconds.")]
    shape: Annotated[
        tuple[int, ...],
        counts(4)("Only products of this batch, rows, inner size and columns; these win.", is_optional=True),
    ] = ()  # empty: all other ops


_OP_FACTORS: Final = rows(table(fields_of(OpFactor), OpFactor)("A factor on the seconds of ops of a type."))


@dataclass(frozen=True)
class KindParameters:
    """Parameters of one kind of chip."""

    tile_rows: int = 1  # a matrix unit takes as long for part of a rows x inner x columns tile as for all
    tile_inner: int = 1
    tile_columns: int = 1
    tiles_at_once: Annotated[
        int,
        COUNT(
            "Tiles computed in parallel, also along the inner dimension; the last may be few (default: 1).",
            is_optional=True,
        ),
    ] = 1
    fill_s: Annotated[
        float,
        NON_NEGATIVE("Seconds until the first result leaves a matrix unit (default: 0).", is_optional=True),
    ] = 0.0
    vector_lanes: Annotated[int, COUNT("Elements that a vector unit takes at a time.")] = 1
    op_factors: Annotated[
        tuple[OpFactor, ...],
        _OP_FACTORS("How much longer ops take than rates, tiles and lanes explain.", is_optional=True),
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
        package: dict[str, dict[str, Any]] = {
            "packets": {"packet_bytes": 0, "packet_header_bytes": 0},
            "buffers": {"buffers": UNLIMITED},
            "host": {"host_multicast": ideal.host_multicast, "weight_prefetch": ideal.weight_prefetch},
            "memory": {"fit_by_size": True},
            "noise": {"noise": 0.0},
        }
        chip = {
            "shapes": (
                *("tile_rows", "tile_inner", "tile_columns", "tiles_at_once", "fill_s", "vector_lanes"),
                *("op_factors", "kernels"),
            ),
            "dma": ("dma_engines", "dma_setup_s"),
            "memory": ("alignment_bytes", "stream_buffer_bytes"),
        }
        fields = [name for effect in effects for name in chip.get(effect, ())]
        kinds = tuple(replace(k, **{name: getattr(kind, name) for name in fields}) for k in self.kinds)
        changes = {key: value for effect in effects for key, value in package.get(effect, {}).items()}
        return replace(self, kinds=kinds, **changes)


def ideal_parameters(num_kinds: int) -> SimulatorParameters:
    """Parameters with every effect off."""
    return SimulatorParameters((KindParameters(),) * num_kinds)


def _kind_parameters(tile: tuple[int, int, int] = (1, 1, 1), **others: Any) -> KindParameters:
    return KindParameters(*tile, **others)


KIND_PARAMETERS: Final = table(
    {
        "tile": counts(3)(
            "Rows, inner size and columns of a matrix unit's tile (default: 1, 1, 1).", is_optional=True
        ),
        **fields_of(KindParameters),
    },
    _kind_parameters,
)
PACKAGE_PARAMETERS: Final = table(fields_of(SimulatorParameters))
EFFECTS_IN_MODEL: Final = table(
    {"effects": some_of(*ANALYTICAL_EFFECTS)("Effects with a closed form.")},
    lambda effects: {"analytical_effects": effects},
)
