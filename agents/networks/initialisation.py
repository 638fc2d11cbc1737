"""The first parameters: shapes from Flax without computing anything, values from NumPy.

Initialising through JAX compiles a program for every shape; this takes a fraction of the
time and gives the same numbers on every platform.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from flax import nnx
from numpy.typing import NDArray

# For kernels that begin at zero, so that the first policy is the uniform one.
ZERO_INITIALISED: Final = nnx.with_metadata(nnx.initializers.zeros_init(), begins_at_zero=True)


def numpy_parameters(build: Callable[[], nnx.Module], seed: int) -> nnx.State:
    """Parameters of the module that ``build`` returns, deterministic for a ``seed``.

    Kernels are normal with variance 1 / fan-in (LeCun et al., "Efficient backprop", 1998),
    embeddings with variance 1 / width; scales are one, biases zero.
    """
    rng = np.random.default_rng(seed)
    shapes = nnx.state(nnx.eval_shape(build), nnx.Param)
    leaves = [(path, leaf.replace(_values(rng, path, leaf))) for path, leaf in nnx.to_flat_state(shapes)]
    return nnx.from_flat_state(leaves)


def _values(rng: np.random.Generator, path: tuple[Any, ...], leaf: nnx.Param) -> NDArray[np.float32]:
    name = path[-1]
    if name == "scale":
        return np.ones(leaf.shape, dtype=np.float32)
    if name == "bias" or leaf.get_metadata().get("begins_at_zero", False):
        return np.zeros(leaf.shape, dtype=np.float32)
    fan_in = leaf.shape[0] if name == "kernel" else leaf.shape[-1]
    return rng.standard_normal(leaf.shape, dtype=np.float32) / np.float32(np.sqrt(fan_in))
