"""A policy as one file: sizes of the network, its parameters, and a card about their training.

Reading one needs no JAX. Files of named arrays with a JSON record serve checkpoints too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from go_opt.agents.decoding.decode import Outputs
from go_opt.agents.inputs.config import PolicyConfig
from go_opt.agents.inputs.features import (
    GLOBAL_COLUMNS,
    KNOWN_OP_TYPES,
    NUM_HASH_BUCKETS,
    OP_COLUMNS,
    STANDARDISED,
    GraphFeatures,
)
from go_opt.agents.policy.forward import WALK_WEIGHTS, forward, parameter_shapes
from go_opt.common.arrays import FloatArray
from go_opt.common.files import write_bytes_atomically
from go_opt.errors import PolicyError

# A safetensors file is the length of a header, the header (JSON: name, type, shape and position
# of each array), and the bytes of the arrays; reading one runs no code. The record is a single
# entry of the header: the library writes several entries in random order, and equal
# content must give equal bytes.


Arrays = Mapping[str, NDArray[Any]]

_ENTRY: Final = "go_opt"
_MAX_BYTES: Final = 2**30
_BY_NAME: Final[dict[str, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    "I8": np.dtype(np.int8),
    "I16": np.dtype(np.int16),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
    "U8": np.dtype(np.uint8),
    "U16": np.dtype(np.uint16),
    "U32": np.dtype(np.uint32),
    "U64": np.dtype(np.uint64),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}


@dataclass(frozen=True)
class TensorFormat:
    """The format name and version that a file states."""

    name: str
    version: int


def save_tensors(
    path: str | Path, tensor_format: TensorFormat, record: Mapping[str, Any], arrays: Arrays
) -> None:
    """Write ``record`` and ``arrays`` atomically.

    Raises:
      PolicyError: the record is not JSON, or an array has an unsupported type.
      InvalidInputError: the path cannot be written to.
    """
    what = f"{tensor_format.name} file {str(path)!r}"
    entry = {"format": tensor_format.name, "version": tensor_format.version, **record}
    try:
        text = json.dumps(entry, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as cause:
        raise PolicyError(f"{what} cannot hold what is no JSON: {cause}.") from None
    # asarray, since ascontiguousarray turns a scalar into a vector.
    dense = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    for name, array in dense.items():
        if array.dtype not in _BY_NAME.values():
            raise PolicyError(f"{what} cannot hold {name!r} of type {array.dtype}.")
    write_bytes_atomically(path, save(dense, {_ENTRY: text}))


def load_tensors(
    path: str | Path, tensor_format: TensorFormat
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The record, and the arrays by name.

    Raises:
      PolicyError: the file is missing, truncated, or of another format or version.
    """
    what = f"{tensor_format.name} file {str(path)!r}"
    data = _read(path, what)
    try:
        tensors = deserialize(data)  # type: ignore[no-untyped-call]
        arrays = {name: _array(**tensor) for name, tensor in sorted(tensors, key=itemgetter(0))}
        record = _record(data)
    except SafetensorError as cause:
        raise PolicyError(f"{what} is truncated or no safetensors file: {cause}.") from None
    except (KeyError, TypeError, ValueError, RecursionError):
        raise PolicyError(f"{what} is not a file of go-opt.") from None
    if record.get("format") != tensor_format.name:
        raise PolicyError(f"{what} is of the format {record.get('format')!r}.")
    if record.get("version") != tensor_format.version:
        raise PolicyError(
            f"{what} is of version {record.get('version')!r}, "
            f"this version of go-opt reads version {tensor_format.version}."
        )
    return record, arrays


def _read(path: str | Path, what: str) -> bytes:
    source = Path(path)
    try:
        if source.is_file() and source.stat().st_size <= _MAX_BYTES:  # a device or a pipe might never end
            return source.read_bytes()
        source.stat()  # raises if nothing is there
    except (OSError, ValueError) as cause:  # ValueError: a null byte in the path
        raise PolicyError(f"{what} cannot be read: {getattr(cause, 'strerror', None) or cause}.") from None
    except MemoryError:
        raise PolicyError(f"{what} cannot be read: it is larger than the memory.") from None
    reason = f"larger than {_MAX_BYTES // 2**30} GiB, the limit" if source.is_file() else "not a file"
    raise PolicyError(f"{what} is {reason}.")


def _array(dtype: str, shape: list[int], data: bytearray) -> NDArray[Any]:
    """The array of an entry; raises KeyError for a type that go-opt does not write."""
    return np.frombuffer(data, dtype=_BY_NAME[dtype]).reshape(shape)


def _record(data: bytes) -> dict[str, Any]:
    """The record in a header that the library has already validated."""
    length = int.from_bytes(data[:8], "little")
    record = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][_ENTRY])
    if not isinstance(record, dict):
        raise TypeError
    return record


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
