"""What the recipes of text models share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tests.zoo_recipes.hollow import hollow_graph
from tests.zoo_recipes.recipe import Recipe

NO_CACHE: Final[dict[str, Any]] = {"use_cache": False}


def tokens(*names: str, length: int = 128) -> dict[str, NDArray]:
    """One sequence of ``length`` for each of the inputs."""
    return dict.fromkeys(names, np.zeros((1, length), np.int64))


def text_recipe(
    name: str,
    family: str,
    model: tuple[str, str],
    size: str,
    inputs: dict[str, Any],
    adapt: Callable[[Any], Any] | None = None,
    **settings: Any,
) -> Recipe:
    """A model class and its configuration class of ``transformers`` with ``settings``."""
    more: dict[str, Any] = {} if adapt is None else {"adapt": adapt}
    build = partial(hollow_graph, *model, settings, inputs, **more)
    return Recipe(name, family, "transformers", f"{model[0]}, {size}", build)


def cached(past: int, layers: int, heads: int, width: int) -> dict[str, Any]:
    """A new token behind ``past`` others, whose keys and values have ``heads`` of ``width``."""
    kept = np.zeros((1, heads, past, width), np.float32)
    return {"token": np.zeros((1, 1), np.int64), "past": [(kept, kept)] * layers}
