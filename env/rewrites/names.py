"""The rules by name, and the names of what rewrites make."""

from __future__ import annotations

from typing import Final

FOLD: Final = "fold"
BATCH: Final = "batch"
MERGE: Final = "merge"
TRANSPOSE: Final = "transpose"
BIAS: Final = "bias"
KEEPS_NAME: Final = frozenset({FOLD, TRANSPOSE, BIAS})  # the first op takes over the others


def folded_weight(product: str) -> str:
    """The name of the scaled weight of a product."""
    return f"{product}/folded weight"


def folded_bias(product: str) -> str:
    """The name of its bias."""
    return f"{product}/folded bias"


def merged_name(name: str, number: int) -> str:
    """The name of what ``number`` ops or tensors became, of which the first has this name."""
    return f"{name} and {number - 1} more"


def joined_operand(name: str, number: int, place: int) -> str:
    """The name of the operand of ``number`` ops at ``place``, if the first of them has this name."""
    return f"{merged_name(name, number)}/operand {place}"


def concat_name(name: str, number: int) -> str:
    """The name of the op that joins what is read, if the first of the products has this name."""
    return f"{merged_name(name, number)}/concat"


def split_name(name: str, number: int) -> str:
    """The name of the op that splits the result again."""
    return f"{merged_name(name, number)}/split"
