"""Named arrays and a JSON record in one safetensors file, with a format name and a version.

A safetensors file is the length of a header, the header (JSON: name, type, shape and position
of each array), and the bytes of the arrays; reading one runs no code. The record is a single
entry of the header: the library writes several entries in random order, and equal
content must give equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from go_opt.common.files import write_bytes_atomically
from go_opt.errors import PolicyError

Arrays = Mapping[str, NDArray[Any]]

_ENTRY: Final = "go_opt"
_MAX_BYTES: Final = 2**30
_DTYPES: Final[dict[str, np.dtype[Any]]] = {
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
        if array.dtype not in _DTYPES.values():
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
    return np.frombuffer(data, dtype=_DTYPES[dtype]).reshape(shape)


def _record(data: bytes) -> dict[str, Any]:
    """The record in a header that the library has already validated."""
    length = int.from_bytes(data[:8], "little")
    record = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][_ENTRY])
    if not isinstance(record, dict):
        raise TypeError
    return record
