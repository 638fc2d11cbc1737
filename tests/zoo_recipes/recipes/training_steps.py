"""Training steps: forward, backward and the optimizer. Parameters and the optimizer's state stay.

Batches are large, for GPUs: what the forward pass keeps for the backward pass has no place between
neighbours of a package.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from go_opt import from_jax
from go_opt.model.graph import Graph
from tests.zoo_recipes.recipe import Recipe

Made = tuple[Any, Any, Any]  # parameters, their loss and the optimizer


def _graph(make: Callable[[], Made], batch: tuple[NDArray, ...]) -> Graph:
    from tests.zoo_recipes.models.training import training_step

    parameters, loss, optimizer = make()
    kept = {position: (position, "model") for position in (0, 1)}
    return from_jax(
        training_step(loss, optimizer), parameters, optimizer.init(parameters), *batch, state=kept
    )


def _mlp() -> Made:
    import optax

    from tests.zoo_recipes.models import training

    return training.mlp([784, 2048, 2048, 2048, 10]), training.mlp_loss, optax.adam(1e-3)


def _residual_net() -> Made:
    import optax

    from tests.zoo_recipes.models import training

    return training.residual_net(3), training.residual_loss, optax.sgd(0.1, momentum=0.9)


def _character_model() -> Made:
    import optax

    from tests.zoo_recipes.models import training

    loss = partial(training.character_loss, heads=6)
    return training.character_model(6, 384, 256, 65), loss, optax.adamw(1e-3)


def _recipe(name: str, family: str, what: str, make: Callable[[], Made], *batch: NDArray) -> Recipe:
    return Recipe(name, family, "optax", f"models.training.{what}", partial(_graph, make, batch))


def _integers(*shape: int) -> NDArray:
    return np.zeros(shape, np.int32)


_IMAGES: Final = np.zeros((1024, 32, 32, 3), np.float32)

RECIPES: Final = (
    _recipe("mlp_train_b4096", "mlp", "mlp, 3 layers of 2048 for 784 inputs, Adam, batch 4096", _mlp,
            np.zeros((4096, 784), np.float32), _integers(4096)),
    _recipe("nanogpt_train_b64", "gpt", "character_model, 64x256 characters, AdamW", _character_model,
            _integers(64, 256), _integers(64, 256)),
    _recipe("resnet20_train_b1024", "resnet", "residual_net(3), 1024x32x32x3, SGD with momentum",
            _residual_net,
            _IMAGES, _integers(1024)),
)  # fmt: skip
