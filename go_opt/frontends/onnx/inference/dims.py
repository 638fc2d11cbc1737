"""Symbolic dimensions of a model and the numbers they are bound to, and inputs that are bound to numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

from go_opt.errors import ModelError
from go_opt.frontends.onnx.inference.file import MAX_VALUE_ELEMENTS
from go_opt.frontends.onnx.inference.values import MAX_AXES
from go_opt.frontends.recording.binding import Expression, check_dims, flags

PartialShape = tuple[int | None, ...]

_NO_NAMES: Final = frozenset({"", "?", "-1", "*", "None", "none", "unknown"})  # several are not one size


class DimTable:
    """Resolves dimensions to numbers by the bindings of the caller."""

    def __init__(self, model_name: str, bindings: Mapping[str, int], inputs: Iterable[Any]) -> None:
        """A binding ``x[0]`` of an input also binds the symbol that stands there.

        Raises:
          ModelError: a size is not positive, or a symbol would have two sizes.
        """
        self._model_name = model_name
        self._given = bindings
        check_dims(bindings)
        self._bindings = dict(bindings)
        for info in inputs:
            rank = len(info.type.tensor_type.shape.dim)
            if rank > MAX_AXES:
                raise ModelError(f"input {info.name!r} has {rank} dimensions, more than {MAX_AXES}.")
            for position, dim in enumerate(info.type.tensor_type.shape.dim):
                place, name = f"{info.name}[{position}]", _dim_name(info.name, position, dim)
                if place in bindings and self._bindings.setdefault(name, bindings[place]) != bindings[place]:
                    raise ModelError(
                        f"dimension {name!r} cannot be {self._bindings[name]} and, as {place!r},"
                        f" {bindings[place]}.",
                        field="dims",
                    )

    def resolve(self, info: Any) -> PartialShape | None:
        """The shape of a ``ValueInfoProto``; None stands for unknown sizes or an unknown shape."""
        if not info.type.tensor_type.HasField("shape"):
            return None
        return tuple(
            self._size(info.name, position, dim)
            for position, dim in enumerate(info.type.tensor_type.shape.dim)
        )

    def check(self, given: Sequence[Any], inputs: Sequence[Any], others: Iterable[Any]) -> None:
        """Reject bindings of names that nothing ``given`` has, then ``inputs`` with unbound dimensions."""
        known = dict.fromkeys(name for info in given for name in _symbols(info))
        elsewhere = {name for info in others for name in _symbols(info)}
        for name in self.of_no_input(given):
            if name not in elsewhere:
                names = ", ".join(repr(other) for other in known) or "none"
                raise ModelError(
                    f"dimension {name!r} is not one of model {self._model_name!r}; it has {names}."
                )
        unbound = self.to_bind(inputs)
        if unbound:
            names = ", ".join(repr(name) for name in unbound)
            raise ModelError(
                f"model {self._model_name!r} has unbound dimensions {names}: use `{flags(unbound)}`."
            )

    def of_no_input(self, inputs: Sequence[Any]) -> tuple[str, ...]:
        """The bound dimensions that no input has; their sizes are known only at run time."""
        known = {name for info in inputs for name in _symbols(info)}
        # "past + 1" is resolved from "past", which another input may not name alone.
        known |= {part for name in known for part in Expression(name).symbols}
        known |= {
            f"{info.name}[{position}]"
            for info in inputs
            for position, dim in enumerate(info.type.tensor_type.shape.dim)
            if not _is_number(dim)
        }
        return tuple(name for name in self._given if name not in known)

    def shape_of_input(self, info: Any) -> tuple[int, ...]:
        """The shape of a model input after :meth:`check`."""
        shape = self.resolve(info)
        if shape is None:
            raise ModelError(f"input {info.name!r} has no shape, not even a number of dimensions.")
        return tuple(size for size in shape if size is not None)

    def shape_of_value(self, info: Any, elements: int) -> tuple[int, ...]:
        """The shape of an input that has a value of so many elements, which decide one open dimension.

        Raises:
          ModelError: the shape is not known.
        """
        shape = self.resolve(info)
        unbound = self.unbound(info)
        if shape is None or len(unbound) > 1:
            wanted = f": use `{flags(unbound)}`" if unbound else ""
            raise ModelError(f"input {info.name!r} has a value and an unknown shape{wanted}.", field="values")
        others = math.prod(size for size in shape if size is not None)
        return tuple(elements // max(1, others) if size is None else size for size in shape)

    def to_bind(self, inputs: Sequence[Any]) -> tuple[str, ...]:
        """The dimensions to bind; not those that follow from others, such as ``past + 1`` from ``past``."""
        names = dict.fromkeys(name for info in inputs for name in self.unbound(info))
        open_parts = {name: Expression(name).symbols - self._bindings.keys() for name in names}
        return tuple(
            name for name, parts in open_parts.items() if not parts or name in parts or parts - names.keys()
        )

    def unbound(self, info: Any) -> list[str]:
        """Names of the dimensions that no binding decides."""
        shape = self.resolve(info)
        dims = info.type.tensor_type.shape.dim
        return [
            _dim_name(info.name, position, dim)
            for position, (dim, size) in enumerate(zip(dims, shape or (), strict=True))
            if size is None
        ]

    def _size(self, tensor: str, position: int, dim: Any) -> int | None:
        if _is_number(dim):
            if dim.dim_value < 0:
                raise ModelError(f"tensor {tensor!r}: dimension {position} is negative ({dim.dim_value}).")
            return int(dim.dim_value)
        name = _dim_name(tensor, position, dim)
        size = self._bindings[name] if name in self._bindings else Expression(name).value(self._bindings)
        return None if size is None or size.denominator != 1 or size < 0 else int(size)


def _dim_name(tensor: str, position: int, dim: Any) -> str:
    name = str(dim.dim_param).strip()
    return f"{tensor}[{position}]" if name in _NO_NAMES else name


def _is_number(dim: Any) -> bool:
    # Some converters write an open dimension as -1.
    return bool(dim.HasField("dim_value")) and dim.dim_value != -1


def _symbols(info: Any) -> list[str]:
    return [
        _dim_name(info.name, position, dim)
        for position, dim in enumerate(info.type.tensor_type.shape.dim)
        if not _is_number(dim)
    ]


def with_values(
    model: onnx.ModelProto, values: Mapping[str, tuple[float, ...]], dims: DimTable
) -> onnx.ModelProto:
    """The model with initializers in place of the inputs that have values; itself if none has.

    Raises:
      ModelError: the model has no such input, or the numbers do not fit its shape or type.
    """
    if not values:
        return model
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    infos = {info.name: info for info in bound.graph.input}
    for name, numbers in values.items():
        if name not in infos:
            names = ", ".join(map(repr, infos)) or "none"
            raise ModelError(f"the model has no input {name!r} to bind; it has {names}.", field="values")
        tensor = _tensor(infos[name], numbers, dims)
        kept = [one for one in bound.graph.initializer if one.name != name]
        del bound.graph.initializer[:]
        bound.graph.initializer.extend([*kept, tensor])
        bound.graph.input.remove(infos[name])
    return bound


def _tensor(info: onnx.ValueInfoProto, numbers: tuple[float, ...], dims: DimTable) -> onnx.TensorProto:
    shape = dims.shape_of_value(info, len(numbers))
    elements = math.prod(shape)
    if elements > MAX_VALUE_ELEMENTS or len(numbers) not in (1, elements):
        raise ModelError(
            f"input {info.name!r} of shape {list(shape)} takes one number or all of its"
            f" at most {MAX_VALUE_ELEMENTS}, not {len(numbers)}.",
            field="values",
        )
    given = np.asarray(numbers, np.float64)
    try:
        dtype = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        with np.errstate(all="ignore"):
            array = given.astype(dtype)
    except (KeyError, TypeError, ValueError):
        raise ModelError(f"input {info.name!r} is of a type that holds no numbers.", field="values") from None
    if np.issubdtype(dtype, np.integer) or dtype == np.bool_:
        changed = np.flatnonzero(array.astype(np.float64) != given)
        if len(changed):
            raise ModelError(
                f"input {info.name!r} is of type {dtype}, which does not hold {numbers[changed[0]]}.",
                field="values",
            )
    return numpy_helper.from_array(
        np.ascontiguousarray(np.broadcast_to(array, elements)).reshape(shape), info.name
    )
