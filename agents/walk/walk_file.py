"""The weights of a walk as one file, with a card about their training; the shipped one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np

from go_opt.agents.policy.tensor_file import TensorFormat, load_tensors, save_tensors
from go_opt.common.arrays import FloatArray
from go_opt.errors import PolicyError
from go_opt.solver.walk.walk import NUM_FEATURES

# Increase the version if a feature or the prior changes its meaning.
FORMAT: Final = TensorFormat("go-opt walk", 1)
SHIPPED: Final = "walk.safetensors"
_WEIGHTS: Final = "weights"


@dataclass(frozen=True, eq=False)
class LoadedWalk:
    """Weights from a file."""

    weights: FloatArray  # [F]
    card: dict[str, Any]  # graphs, seed, validation: any JSON that its author wrote


def save_walk(path: str | Path, weights: FloatArray, card: Mapping[str, Any]) -> None:
    """Write weights [F] atomically.

    Raises:
      PolicyError: the card is not JSON.
      InvalidInputError: the path cannot be written to.
    """
    save_tensors(path, FORMAT, {"card": dict(card)}, {_WEIGHTS: np.asarray(weights, dtype=np.float64)})


def load_walk(path: str | Path) -> LoadedWalk:
    """The weights of a file.

    Raises:
      PolicyError: the file is missing, truncated, of another format or version, or holds
        anything but finite weights of the features.
    """
    record, arrays = load_tensors(path, FORMAT)
    what = f"{FORMAT.name} file {str(path)!r}"
    weights, card = arrays.get(_WEIGHTS), record.get("card")
    if weights is None or len(arrays) > 1 or weights.shape != (NUM_FEATURES,) or weights.dtype != np.float64:
        raise PolicyError(f"{what} must hold {_WEIGHTS!r} as float64[{NUM_FEATURES}] and no other array.")
    if not np.isfinite(weights).all():
        raise PolicyError(f"{what} holds NaN or infinity in {_WEIGHTS!r}.")
    if not isinstance(card, dict):
        raise PolicyError(f"{what} has no card.")
    return LoadedWalk(weights, card)


def shipped_walk() -> LoadedWalk:
    """The weights that are a part of go-opt."""
    return load_walk(Path(str(resources.files("go_opt.agents") / "data" / SHIPPED)))
