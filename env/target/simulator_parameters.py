"""The simulator's parameters of a target; the analytical model includes some of their effects.

A table that a target file leaves out is ideal: its parameters have no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from go_opt.env.target.toml_table import TomlTable

EFFECTS: Final = ("shapes", "dma", "latency", "packets", "buffers", "host", "memory", "noise")
# Effects with a closed form; the analytical model includes them unless the target says otherwise.
ANALYTICAL_EFFECTS: Final = ("shapes", "dma", "packets", "host", "memory")
UNLIMITED: Final = 0


@dataclass(frozen=True)
class OpFactor:
    """A factor on the seconds of ops of one type."""

    op_type: str
    factor: float
    shape: tuple[int, ...] = ()  # only products of this batch, rows, inner and columns; empty: all other ops


@dataclass(frozen=True)
class KindParameters:
    """Parameters of one kind of chip."""

    tile_rows: int = 1  # a matrix unit takes as long for part of a rows x inner x columns tile as for all
    tile_inner: int = 1
    tile_columns: int = 1
    tiles_at_once: int = 1  # tiles computed in parallel, also along the inner dimension; the last may be few
    fill_s: float = 0.0  # until the first result leaves a matrix unit
    vector_lanes: int = 1  # elements that a vector unit takes at once
    op_factors: tuple[OpFactor, ...] = ()  # for ops that run better or worse than shapes explain
    dma_engines: int = UNLIMITED  # transfers that a chip sends at once
    dma_setup_s: float = 0.0  # of each transfer, before its first byte
    alignment_bytes: int = 1  # of buffers in SRAM; the largest of all kinds counts
    stream_buffer_bytes: int = 0  # reserved on a chip that streams weights


@dataclass(frozen=True)
class SimulatorParameters:
    """Parameters of a package."""

    kinds: tuple[KindParameters, ...]
    buffers: int = UNLIMITED  # of each tensor that enters or leaves a chip
    packet_bytes: int = 0  # a switch forwards a packet once it is complete
    packet_header_bytes: int = 0  # sent with each packet
    host_multicast: bool = True  # an input read on several chips crosses the host's link once
    weight_prefetch: bool = True  # all weights of an inference may stream ahead; else one kernel ahead
    noise: float = 0.0  # relative standard deviation of a measured interval
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
                "op_factors",
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


def read_package(table: TomlTable, kinds: Sequence[KindParameters]) -> SimulatorParameters:
    """The table ``[simulator]`` of a target."""
    parameters = SimulatorParameters(
        kinds=tuple(kinds),
        buffers=table.natural("buffers"),
        packet_bytes=table.natural("packet_bytes"),
        packet_header_bytes=table.natural("packet_header_bytes"),
        host_multicast=table.flag("host_multicast"),
        weight_prefetch=table.flag("weight_prefetch"),
        noise=table.non_negative("noise"),
        fit_by_size=False,
    )
    table.finish()
    return parameters


def read_kind(table: TomlTable) -> KindParameters:
    """The table ``simulator`` of one kind of chip."""
    rows, inner, columns = table.counts("tile", 3)
    kind = KindParameters(
        tile_rows=rows,
        tile_inner=inner,
        tile_columns=columns,
        tiles_at_once=table.count("tiles_at_once"),
        fill_s=table.non_negative("fill_s"),
        vector_lanes=table.count("vector_lanes"),
        op_factors=tuple(_op_factor(row) for row in table.tables("op_factors"))
        if table.has("op_factors")
        else (),
        dma_engines=table.natural("dma_engines"),
        dma_setup_s=table.non_negative("dma_setup_s"),
        alignment_bytes=table.count("alignment_bytes"),
        stream_buffer_bytes=table.natural("stream_buffer_bytes"),
    )
    table.finish()
    return kind


def _op_factor(table: TomlTable) -> OpFactor:
    shape = table.counts("shape", 4) if table.has("shape") else ()
    factor = OpFactor(table.text("op_type"), table.positive("factor"), shape)
    table.finish()
    return factor


def read_effects(top: TomlTable) -> tuple[str, ...]:
    """The effects that the analytical model includes, from a target's top-level table."""
    if not top.has("analytical"):
        return ANALYTICAL_EFFECTS
    table = top.table("analytical")
    effects = table.choices("effects", ANALYTICAL_EFFECTS)
    table.finish()
    return effects
