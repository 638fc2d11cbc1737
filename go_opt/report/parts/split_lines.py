"""Splits in words: what is computed in parts, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from go_opt.common.units import format_bytes
from go_opt.explanations.uses import SplitUse

_MOST_NAMED: Final = 3


def split_lines(splits: Sequence[SplitUse]) -> Iterator[str]:
    """One line for each of the heaviest splits, and one for the others."""
    for use in splits[:_MOST_NAMED]:
        output = "" if use.joined else "; its output stays in parts"
        yield (
            f"{use.op!r} is split into {use.parts} by {use.kind}: its weights take "
            f"{format_bytes(use.weight_bytes)}, a chip has {format_bytes(use.sram_bytes)}{output}"
        )
    others = splits[_MOST_NAMED:]
    if others:
        least, most = others[-1].weight_bytes, others[0].weight_bytes
        yield f"and {len(others)} more, whose weights take {format_bytes(least)} to {format_bytes(most)}"
