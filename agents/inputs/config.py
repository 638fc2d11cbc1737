"""Sizes of the policy's network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from go_opt.agents.inputs.padding import LEAST_OPS

NO_CHANCE: Final = -1e9  # logit of masked entries; finite, so that rows of only padding stay finite
# Bounds of the spread of keys: a list schedule ignores scale, so one spread without a bound hides the rest.
LEAST_LOG_STD: Final = -1.2  # a spread of 0.3
MOST_LOG_STD: Final = 0.7  # a spread of 2


@dataclass(frozen=True)
class PolicyConfig:
    """Sizes of the network; ``segment_ops`` and ``chunk_segments`` are powers of two."""

    width: int = 64  # features of an op
    graphsage_layers: int = 4
    attention_layers: int = 2
    num_heads: int = 4
    segment_ops: int = 64  # an op attends to up to twice as many ops
    chunk_segments: int = 16  # segments computed at a time; fewer take less memory
    rounds: int = 2
    superposition: bool = True  # whether the graph embedding scales the inputs of layers

    def __post_init__(self) -> None:
        for name in ("segment_ops", "chunk_segments"):
            size = getattr(self, name)
            if size < 1 or size & (size - 1):
                raise ValueError(f"{name} must be a power of two, not {size}.")
        if self.segment_ops > LEAST_OPS:
            raise ValueError(f"segment_ops must be at most {LEAST_OPS}, the smallest bucket.")
        if self.width % (2 * self.num_heads):
            raise ValueError("width must be a multiple of twice num_heads: the heads halve it.")
