"""Reads and parses a model file; opens no other file outside the model's folder."""

from __future__ import annotations

import math
import os
import posixpath
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Final

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from go_opt.errors import ModelError

# Values are needed for arithmetic on shapes only: larger tensors are never read.
MAX_VALUE_BYTES: Final = 64 * 1024
MAX_VALUE_ELEMENTS: Final = 100_000
_MAX_FILE_BYTES: Final = 2**31  # of protobuf; larger weights are in files of their own


@dataclass(frozen=True)
class ModelFile:
    """A parsed model and the folder its external tensors may lie in (none for a model in memory)."""

    name: str
    model: onnx.ModelProto
    folder: Path | None

    def values_of(self, tensor: onnx.TensorProto) -> NDArray | None:
        """The values of a small constant; None if it is large, stripped or absent."""
        if math.prod(tensor.dims) > MAX_VALUE_ELEMENTS:
            return None
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor = self._with_external_data(tensor)
        try:
            return np.asarray(numpy_helper.to_array(tensor))
        except (ValueError, TypeError):
            # Stripped initializers keep their dims and lose their data.
            return None

    def check_weights(self) -> None:
        """Refuse a model without all its weights; the import of a graph does not need them.

        Raises:
          ModelError: a tensor has no data, or its file is missing or too short.
        """
        for tensor in _tensors(self.model):
            problem = _missing(self.folder, tensor)
            if problem:
                raise ModelError(f"the weights of tensor {tensor.name!r} are missing: {problem}.")

    def external_files(self) -> set[Path]:
        """The files with the data of tensors."""
        tensors = [one for one in _tensors(self.model) if one.data_location == onnx.TensorProto.EXTERNAL]
        return {(self.folder or Path()) / _external_fields(tensor)["location"] for tensor in tensors}

    def _with_external_data(self, tensor: onnx.TensorProto) -> onnx.TensorProto:
        loaded = onnx.TensorProto()
        loaded.CopyFrom(tensor)
        loaded.ClearField("data_location")
        loaded.ClearField("external_data")
        if self.folder is not None:
            loaded.raw_data = _read_external(self.folder, tensor)
        return loaded


def read_model(source: str | os.PathLike[str] | onnx.ModelProto | bytes) -> ModelFile:
    """Parse a file or its bytes, or take a model in memory; external files with weights may be missing."""
    if isinstance(source, bytes):
        source = _parsed(source, "the file", field="file")
    if isinstance(source, onnx.ModelProto):
        loaded = ModelFile(source.graph.name or "onnx", source, None)
    elif isinstance(source, str | os.PathLike):
        path = Path(source)
        loaded = ModelFile(path.stem, _parse(path), path.parent)
    else:
        raise ModelError(f"an ONNX model is a path or an onnx.ModelProto, not {type(source).__name__}.")
    if not loaded.model.graph.node:
        raise ModelError(f"model {loaded.name!r} has no nodes: it is empty, truncated or not an ONNX model.")
    for tensor in _tensors(loaded.model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _check_location(loaded.folder, tensor)
    return loaded


def _parse(path: Path) -> onnx.ModelProto:
    try:
        # Reading a pipe or a device could block forever.
        facts = os.stat(path)
        is_special = not (stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode))
        is_too_large = facts.st_size > _MAX_FILE_BYTES
        data = b"" if is_special or is_too_large else path.read_bytes()
    except FileNotFoundError as error:
        raise ModelError(f"model file {str(path)!r} does not exist.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"model file {str(path)!r} cannot be read: {reason}.") from error
    if is_special:
        raise ModelError(f"model file {str(path)!r} is not a regular file.")
    if is_too_large:
        raise ModelError(f"model file {str(path)!r} is larger than 2 GiB, the limit of ONNX.")
    return _parsed(data, f"model file {str(path)!r}")


def _parsed(data: bytes, what: str, field: str = "") -> onnx.ModelProto:
    """The model in the bytes of ``what``; raises ModelError."""
    try:
        return onnx.load_model_from_string(data)
    except (DecodeError, ValueError, RuntimeError):
        problem = "is truncated or not an ONNX model, or its bodies are nested too deep"
        raise ModelError(f"{what} {problem}.", field=field) from None


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of the model, including attributes, subgraphs and functions."""
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        yield from _node_tensors(function.node)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("g"):
                yield from _graph_tensors(attribute.g)
            for graph in attribute.graphs:
                yield from _graph_tensors(graph)


def _external_fields(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _check_location(folder: Path | None, tensor: onnx.TensorProto) -> None:
    """Refuse a location outside the model's folder, even via a symbolic link or if unused."""
    location = _external_fields(tensor).get("location", "")
    windows = PureWindowsPath(location)
    normal = posixpath.normpath(location.replace("\\", "/"))
    leaves = (
        not location
        or "\0" in location
        or normal in (".", "..")
        or normal.startswith(("/", "../"))
        or bool(windows.drive or windows.root)
    )
    if not leaves and folder is not None:
        root = os.path.realpath(folder)
        leaves = os.path.commonpath([root, os.path.realpath(folder / location)]) != root
    if leaves:
        raise ModelError(
            f"tensor {tensor.name!r}: its external data {location!r} is not inside the model's folder."
        )


def _missing(folder: Path | None, tensor: onnx.TensorProto) -> str:
    """Why the data of a tensor cannot be read; empty if it can."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        fields = {field.name for field, _ in tensor.ListFields()}
        has_data = any(name.endswith("_data") for name in fields) or math.prod(tensor.dims) == 0
        return "" if has_data else "the model file does not hold them"
    entries = _external_fields(tensor)
    path = (folder or Path()) / entries["location"]
    try:
        ends = int(entries.get("offset", 0)) + int(entries.get("length", 0))
        return "" if path.stat().st_size >= ends else f"file {str(path)!r} is too short"
    except (OSError, ValueError) as error:
        return f"file {str(path)!r} cannot be read: {getattr(error, 'strerror', None) or error}"


def _read_external(folder: Path, tensor: onnx.TensorProto) -> bytes:
    """The bytes of an external tensor; empty if the file is absent or the tensor too large."""
    _check_location(folder, tensor)
    fields = _external_fields(tensor)
    path = os.path.realpath(folder / fields["location"])
    try:
        stored_bytes = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize * math.prod(tensor.dims)
        offset, length = int(fields.get("offset", 0)), int(fields.get("length", stored_bytes))
        if not 0 <= length <= MAX_VALUE_BYTES or offset < 0 or not stat.S_ISREG(os.stat(path).st_mode):
            return b""
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(length)
    except (OSError, ValueError, KeyError, OverflowError):
        return b""
