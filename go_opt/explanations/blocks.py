"""Repeated blocks of a graph under a name, with the chips of a plan they run on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.model.repeats import Repeat, find_repeats

LEAST_OPS: Final = 4  # of a block worth a line
LEAST_SHARE: Final = 0.05  # of a graph's ops, of all blocks together
_NUMBER: Final = re.compile(r"(\d+)")


@dataclass(frozen=True)
class Blocks:
    """Identical consecutive blocks and where they run."""

    name: str  # "encoder/layer.{0..11}", or its first and last op where names share nothing
    repeat: Repeat
    chips: tuple[tuple[int, ...], ...]  # of each block, ascending, the first of each stage


def repeated_blocks(graph: Graph, plan: Plan) -> tuple[Blocks, ...]:
    """The repeats of ``graph`` that are large enough to speak of."""
    return tuple(
        Blocks(
            block_name(graph, repeat),
            repeat,
            tuple(
                tuple(sorted({int(plan.placement[op]) for op in repeat.block(b)}))
                for b in range(repeat.blocks)
            ),
        )
        for repeat in find_repeats(graph)
        if repeat.ops_per_block >= LEAST_OPS and repeat.end - repeat.first_op >= LEAST_SHARE * graph.num_ops
    )


def block_name(graph: Graph, repeat: Repeat) -> str:
    """What the names of all ops in the blocks start with, up to the number that counts blocks.

    Frontends that number ops by type leave no such start; the first block's ends serve then.
    """
    names = [[graph.op_names[op] for op in repeat.block(b)] for b in range(repeat.blocks)]
    starts = [_common_start(of_block) for of_block in names]
    parts = [_NUMBER.split(start) for start in starts]
    first, last = parts[0], parts[-1]
    # re.split with a group puts numbers at the odd places.
    for i in range(1, min(map(len, parts)), 2):
        numbers = [part[i] for part in parts]
        is_whole = all(i + 1 < len(part) and part[i + 1] for part in parts)
        counts = is_whole and len(set(numbers)) == repeat.blocks
        if counts and all(part[:i] == first[:i] for part in parts):
            return f"{''.join(first[:i])}{{{first[i]}..{last[i]}}}"
    return f"{names[0][0]} … {names[0][-1]}"


def _common_start(names: list[str]) -> str:
    # Names between the first and the last in the alphabet share what those two do.
    first, last = min(names), max(names)
    differs = (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(differs, len(first))]
