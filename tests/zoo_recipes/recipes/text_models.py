"""What the recipes of text models share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tests.zoo_recipes.hollow import Names, hollow_graph
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
    names: Names | None = None,
    **settings: Any,
) -> Recipe:
    """A model class and its configuration class of ``transformers`` with ``settings``."""
    more: dict[str, Any] = {"names": names} if adapt is None else {"adapt": adapt, "names": names}
    build = partial(hollow_graph, *model, settings, inputs, **more)
    return Recipe(name, family, "transformers", f"{model[0]}, {size}", build)
