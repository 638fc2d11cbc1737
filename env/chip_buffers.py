"""Records of where the buffers of a chip lie, which the processes of a run read without loading kernels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Buffer:
    """A range of a chip's memory. One without ops keeps its range throughout."""

    tensor: str  # empty for the buffer through which weights stream
    address: int
    size_bytes: int  # of both buffers where the tensor crosses the chip's border
    written_by: str  # first op of the kernel that writes it
    last_read_by: str  # last op of the last kernel that reads it


@dataclass(frozen=True)
class ChipBuffers:
    """The buffers of a chip, by address: weights, what crosses, other activations, the stream buffer."""

    chip: int  # the first of its stage, whose chips all have the same buffers
    sram_bytes: int
    end: int  # the highest address in use; above ``sram_bytes`` if they do not fit
    least_end: int  # the same if activations had no holes between them: their peak live bytes
    buffers: tuple[Buffer, ...]
