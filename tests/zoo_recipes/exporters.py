"""From a model of a library to a graph. Each library is imported when it is first asked for."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from go_opt import from_jax, from_onnx
from go_opt.model.graph import Graph


def keras_graph(application: str, pixels: int, batch: int = 1) -> Graph:
    """A model of ``keras.applications`` on square images, traced with the JAX backend."""
    os.environ["KERAS_BACKEND"] = "jax"  # read when keras is imported
    import keras

    keras.utils.clear_session()  # or layers are numbered on from the previous model's
    model = getattr(keras.applications, application)(weights=None)
    image = np.zeros((batch, pixels, pixels, 3), np.float32)
    return from_jax(lambda x: model(x, training=False), image)


def light_graph(name: str) -> Graph:
    """One of the models inside the ``onnx`` package, which carry no weights."""
    import onnx

    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return from_onnx(folder / f"light_{name}.onnx")


def transformers_graph(
    model: str, config: str, settings: Mapping[str, Any], inputs: Mapping[str, NDArray]
) -> Graph:
    """A model class of ``transformers`` under a configuration class with ``settings``."""
    return torch_graph(_network(model, config, settings), inputs)


def called_graph(
    model: str,
    config: str,
    settings: Mapping[str, Any],
    call: Callable[..., Any],
    inputs: Mapping[str, NDArray],
) -> Graph:
    """What ``call(network, ...)`` computes; ``inputs`` are its other arguments by name.

    It stands in for the network's own ``forward``, which it finds at the network's class.
    """
    network = _network(model, config, settings)
    network.forward = MethodType(call, network)
    return torch_graph(network, inputs)


def _network(model: str, config: str, settings: Mapping[str, Any]) -> Any:
    import transformers

    # The fused attention exports as the same products, plus guards against rows that are all masked.
    sizes = getattr(transformers, config)(attn_implementation="eager", **settings)
    return getattr(transformers, model)(sizes)


def torch_graph(network: Any, inputs: Mapping[str, NDArray]) -> Graph:
    """A ``torch.nn.Module`` for inference, called with ``inputs`` by name."""
    import torch

    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = Path(folder) / "model.onnx"
        torch.onnx.export(
            network.eval(), (), path, kwargs=tensors, dynamo=True, external_data=True, verbose=False
        )
        return from_onnx(path)


def flax_graph(path: str, settings: Sequence[Any], inputs: Sequence[NDArray]) -> Graph:
    """A model of ``tests.zoo_recipes.models``, which takes its settings in order, then a random generator."""
    from flax import nnx

    module, model = path.split(".")
    network = getattr(import_module(f"tests.zoo_recipes.models.{module}"), model)
    return from_jax(network(*settings, nnx.Rngs(0)).__call__, *inputs)
