"""A policy as one file: sizes of the network, its parameters, and a card about their training.

Reading one runs no code (:mod:`go_opt.agents.policy.tensor_file`), and needs no JAX.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from go_opt.agents.decoding.outputs import Outputs
from go_opt.agents.inputs.config import PolicyConfig
from go_opt.agents.inputs.features import OP_COLUMNS, STANDARDISED, GraphFeatures
from go_opt.agents.inputs.op_types import KNOWN_OP_TYPES, NUM_HASH_BUCKETS
from go_opt.agents.inputs.target_features import GLOBAL_COLUMNS
from go_opt.agents.policy.forward import WALK_WEIGHTS, forward, parameter_shapes
from go_opt.agents.policy.tensor_file import TensorFormat, load_tensors, save_tensors
from go_opt.common.arrays import FloatArray
from go_opt.errors import PolicyError

# Increase the version if the network computes something else from parameters of the same shapes,
# or if a column changes its meaning under the same name.
FORMAT: Final = TensorFormat("go-opt policy", 3)
_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
_SIZES_BELOW: Final = 2**31  # JAX counts in 64 bits, and shapes are products of sizes


@dataclass(frozen=True, eq=False)
class LoadedPolicy:
    """A policy from a file, for inference."""

    config: PolicyConfig
    arrays: Mapping[str, NDArray[np.float32]]  # its parameters by name
    card: dict[str, Any]  # data, steps, seeds, validation: any JSON that its author wrote

    @property
    def walk_weights(self) -> FloatArray:
        """[W]."""
        return self.arrays[WALK_WEIGHTS].astype(np.float64)

    def __call__(self, features: GraphFeatures) -> Outputs:
        """The outputs for a graph."""
        return forward(self.config, self.arrays, features)


def write_policy(
    path: str | Path,
    config: PolicyConfig,
    parameters: Mapping[str, NDArray[np.float32]],
    card: Mapping[str, Any],
    dtype: Literal["float32", "float16", "bfloat16"] = "float32",
) -> None:
    """Write a policy file atomically.

    Args:
      parameters: by name, with the shapes that the config requires.
      card: JSON.
      dtype: the type that the parameters are rounded to.

    Raises:
      PolicyError: a parameter is not finite in ``dtype`` or does not fit the config, or the card is not JSON.
      InvalidInputError: the path cannot be written to.
    """
    with np.errstate(over="ignore"):  # overflows are rejected below
        arrays = {name: array.astype(_DTYPES[dtype]) for name, array in parameters.items()}
    _parameters(f"{FORMAT.name} file {str(path)!r}", config, arrays)
    record = {"features": features_digest(), "config": asdict(config), "card": dict(card)}
    save_tensors(path, FORMAT, record, arrays)


def load_policy(path: str | Path) -> LoadedPolicy:
    """The policy of a file, its parameters in float32.

    Raises:
      PolicyError: the file is missing, truncated, of another version or made for other
        features, or its parameters are not finite or do not fit its config.
    """
    record, arrays = load_tensors(path, FORMAT)
    what = f"{FORMAT.name} file {str(path)!r}"
    if record.get("features") != features_digest():
        raise PolicyError(f"{what} was made for other features than this version of go-opt computes.")
    config = _config(what, record.get("config"), len(arrays))
    card = record.get("card")
    if not isinstance(card, dict):
        raise PolicyError(f"{what} has no card.")
    return LoadedPolicy(config, _parameters(what, config, arrays), card)


@cache
def features_digest() -> str:
    """SHA-256 of the meanings of the rows and columns that a policy reads."""
    meanings = [STANDARDISED, OP_COLUMNS, GLOBAL_COLUMNS, NUM_HASH_BUCKETS, KNOWN_OP_TYPES]
    return hashlib.sha256(json.dumps(meanings).encode()).hexdigest()


def _config(what: str, sizes: Any, num_arrays: int) -> PolicyConfig:
    defaults = asdict(PolicyConfig())
    if not isinstance(sizes, dict) or sizes.keys() != defaults.keys():
        raise PolicyError(f"{what} must give the sizes {', '.join(defaults)}.")
    for name, size in sizes.items():
        if type(size) is not type(defaults[name]) or not 0 <= size < _SIZES_BELOW:
            raise PolicyError(f"{what} gives the size {name} as {size!r}.")
        # Each layer has parameters, so a network of a billion layers is rejected before it is built.
        if name.endswith("_layers") and size > num_arrays:
            raise PolicyError(f"{what} has {name} {size}, but only {num_arrays} arrays of parameters.")
    try:
        return PolicyConfig(**sizes)
    except (ValueError, ZeroDivisionError) as cause:
        raise PolicyError(f"{what} gives sizes of no network: {str(cause).rstrip('.')}.") from None


def _parameters(
    what: str, config: PolicyConfig, arrays: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[np.float32]]:
    """The parameters of the network of ``config``, in float32."""
    wanted = parameter_shapes(config)
    for name in sorted(wanted.keys() ^ arrays.keys()):
        fault = "lacks" if name in wanted else "has no use for"
        raise PolicyError(f"{what}: a network of its config {fault} the parameter {name!r}.")
    for name, array in arrays.items():
        shape = wanted[name]
        if array.shape != shape or array.dtype not in _DTYPES.values():
            raise PolicyError(
                f"{what} holds {name!r} as {array.dtype}{list(array.shape)}, must be float32{list(shape)}."
            )
        if not np.isfinite(array).all():
            raise PolicyError(f"{what} holds NaN or infinity in {name!r}.")
    return {name: arrays[name].astype(np.float32) for name in wanted}
