"""Names of unions of models, ``union:2*a.onnx+1*b.onnx``, and the rates that they come from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from go_opt.errors import ModelError

UNION_PREFIX: Final = "union:"
SHARED: Final = "shared:"  # after the prefix: the second model has the weights that are those of the first
MAX_COPIES: Final = 32  # of all models together
Share = tuple[int, str]  # copies, and the model as load() takes it


def union_name(models: Sequence[str], rates: str | None = None, *, is_shared: bool = False) -> str:
    """The name by which the union of models is loaded: ``union:2*a.onnx+1*b.onnx``.

    Args:
      rates: such as ``2:1``; None: all are alike.
      is_shared: whether the second model has weights of the first.
    """
    copies_of = zip(parse_rates(rates, models), models, strict=True)
    return UNION_PREFIX + SHARED * is_shared + "+".join(f"{copies}*{model}" for copies, model in copies_of)


def prefix_of(number: int, copy: int) -> str:
    """What the names of a model begin with in a union: the model's number from 1, its copy from 0."""
    return f"{number}.{copy + 1}/" if copy else f"{number}/"


def parse_rates(text: str | None, models: Sequence[str]) -> tuple[int, ...]:
    """The rates of ``2:1``, in lowest terms; without a text all are alike."""
    texts = ["1"] * len(models) if text is None else text.split(":")
    if not all(one.isascii() and one.isdigit() and len(one) < 6 and int(one) for one in texts):
        raise ModelError(f"--rates must be whole numbers such as 2:1, not {str(text)[:60]!r}.", field="rates")
    if len(texts) != len(models):
        raise ModelError(f"--rates has {len(texts)} numbers for {len(models)} models.", field="rates")
    rates = list(map(int, texts))
    least = tuple(rate // math.gcd(*rates) for rate in rates)
    if sum(least) > MAX_COPIES:
        raise ModelError(
            f"--rates {text} needs {sum(least)} copies, the limit is {MAX_COPIES}.", field="rates"
        )
    return least


def shares_of(name: str) -> list[Share]:
    """The models of a union's name."""
    shares: list[Share] = []
    for part in name.removeprefix(UNION_PREFIX).removeprefix(SHARED).split("+"):
        copies, times, model = part.partition("*")
        if not (
            times and model and copies.isascii() and copies.isdigit() and len(copies) < 6 and int(copies)
        ):
            raise ModelError(
                f"{name[:100]!r} must be like {UNION_PREFIX}2*a.onnx+1*b.onnx; paths without + and *.",
                field="model",
            )
        shares.append((int(copies), model))
    if sum(copies for copies, _ in shares) > MAX_COPIES:
        raise ModelError(f"{name[:100]!r} has more than {MAX_COPIES} copies, the limit.", field="model")
    return shares
