"""The whole state of a training run in one file, so that a killed run resumes exactly."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
from numpy.typing import NDArray

from go_opt.agents.policy.policy_file import Arrays, TensorFormat, load_tensors, save_tensors
from go_opt.common.files import make_folder, remove_temporaries
from go_opt.errors import PolicyError

FILE_NAME: Final = "checkpoint.safetensors"
FORMAT: Final = TensorFormat("go-opt checkpoint", 3)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A run between two steps."""

    request: Mapping[str, Any]  # the requested run, as JSON
    progress: Mapping[str, Any]  # the progress of the run, as JSON
    arrays: Arrays  # parameters, optimiser, best parameters; see to_arrays


def save_checkpoint(folder: str | Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint of the run in ``folder``, which is created if missing.

    A kill at any moment leaves either the previous checkpoint or this one. Only one process may
    write to a folder.

    Raises:
      PolicyError: request or progress is not JSON, or the file cannot store an array's type.
      InvalidInputError: the folder cannot be written to.
    """
    make_folder(folder)
    path = Path(folder) / FILE_NAME
    record = {"request": dict(checkpoint.request), "progress": dict(checkpoint.progress)}
    digest = _digest(record, checkpoint.arrays)
    save_tensors(path, FORMAT, record | {"digest": digest}, checkpoint.arrays)
    remove_temporaries(path)


def load_checkpoint(folder: str | Path) -> Checkpoint | None:
    """The checkpoint of the run in ``folder``; None if there is none.

    Raises:
      PolicyError: the checkpoint is of another version, damaged or incomplete.
    """
    path = Path(folder) / FILE_NAME
    if not os.path.exists(path):
        return None
    record, arrays = load_tensors(path, FORMAT)
    request, progress = record.get("request"), record.get("progress")
    if not isinstance(request, dict) or not isinstance(progress, dict):
        raise PolicyError(f"{FORMAT.name} file {str(path)!r} lacks the request or the progress of its run.")
    if record.get("digest") != _digest({"request": request, "progress": progress}, arrays):
        raise PolicyError(f"{FORMAT.name} file {str(path)!r} is damaged: its digest is of other content.")
    return Checkpoint(request, progress, arrays)


def to_arrays(prefix: str, tree: Any) -> dict[str, NDArray[Any]]:
    """The leaves of a JAX pytree, all arrays, by ``prefix`` and path; types and bits are kept."""
    return {name: np.asarray(leaf) for name, leaf in _named_leaves(prefix, tree)[0]}


def from_arrays(prefix: str, arrays: Arrays, like: Any) -> Any:
    """The inverse of :func:`to_arrays`: ``like`` with NumPy arrays for its leaves.

    Args:
      like: a tree with the expected structure, shapes and types.

    Raises:
      PolicyError: ``arrays`` holds another structure, shape or type under ``prefix``.
    """
    named_leaves, structure = _named_leaves(prefix, like)
    wanted = dict(named_leaves)
    saved = {name: array for name, array in arrays.items() if name.startswith(f"{prefix}/")}
    for name in sorted(wanted.keys() ^ saved.keys()):
        fault = "lacks" if name in wanted else "holds what this run has no use for:"
        raise PolicyError(f"the checkpoint {fault} {name!r}.")
    for name, leaf in wanted.items():
        array = saved[name]
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise PolicyError(
                f"the checkpoint holds {name!r} as {array.dtype}{list(array.shape)}, "
                f"this run needs {leaf.dtype}{list(leaf.shape)}."
            )
    return jax.tree_util.tree_unflatten(structure, [saved[name] for name in wanted])


def _digest(record: Mapping[str, Any], arrays: Arrays) -> str:
    """Digest of a checkpoint as read back, because a run resumed from a flipped bit would diverge."""
    as_read = json.loads(json.dumps(record, default=str))
    hashed = hashlib.blake2b(json.dumps(as_read, sort_keys=True).encode(), digest_size=16)
    for name, array in sorted(arrays.items()):
        hashed.update(f"{name} {array.dtype} {array.shape}".encode())
        hashed.update(np.asarray(array, order="C").tobytes())
    return hashed.hexdigest()


def _named_leaves(prefix: str, tree: Any) -> tuple[list[tuple[str, Any]], Any]:
    """``prefix/path`` and value of each leaf, and the structure of the tree."""
    by_path, structure = jax.tree_util.tree_flatten_with_path(tree)
    return [(f"{prefix}/{jax.tree_util.keystr(path)}", leaf) for path, leaf in by_path], structure
