"""Less LLVM code for arrays in compiled functions: it is generated, parsed and optimized in less time.

Before numba reads or writes an element, it copies all fields of the array to the stack. Here fields are
taken from the array's value, which needs a third of the code. For ``np.empty`` and ``np.zeros`` numba
compiles a function for each type of elements. Here the caller's code allocates.
"""

from __future__ import annotations

import operator
from functools import cache
from typing import Any, Final

import numpy as np
from numba.core import cgutils, types
from numba.core.imputils import lower_builtin
from numba.core.typing.npydecl import parse_dtype, parse_shape
from numba.extending import intrinsic
from numba.np import arrayobj

_types: Final[Any] = types  # numba has no annotations
_values: Final[Any] = cgutils
_arrays: Final[Any] = arrayobj
_implements: Final[Any] = lower_builtin
_dtype_of: Final[Any] = parse_dtype
_axes_of: Final[Any] = parse_shape
_in_callers_code: Final[Any] = intrinsic


class _Fields:
    """The fields of an array, taken from its LLVM value."""

    def __init__(self, context: Any, builder: Any, array_type: Any, value: Any) -> None:
        self._model = context.data_model_manager[array_type]
        self._builder, self._value = builder, value

    def __getattr__(self, name: str) -> Any:
        return self._builder.extract_value(self._value, self._model.get_field_position(name))


def _index_types(index_type: Any) -> tuple[Any, ...]:
    return tuple(index_type.types) if isinstance(index_type, _types.BaseTuple) else (index_type,)


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index_type: Any, index: Any) -> Any:
    """The address of an element; None if ``index`` is not one integer for each axis."""
    index_types = _index_types(index_type)
    if len(index_types) != array_type.ndim or not all(isinstance(t, _types.Integer) for t in index_types):
        return None
    indices = _values.unpack_tuple(builder, index) if isinstance(index_type, _types.BaseTuple) else (index,)
    fields = _Fields(context, builder, array_type, array)
    pointer, _, _ = _arrays.basic_indexing(
        context, builder, array_type, fields, index_types, indices, boundscheck=context.enable_boundscheck
    )
    return pointer


def _read(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    array_type, index_type = signature.args
    pointer = _pointer(context, builder, array_type, args[0], index_type, args[1])
    if pointer is None:
        is_tuple = isinstance(index_type, _types.BaseTuple)
        by_numba = _arrays.getitem_array_tuple if is_tuple else _arrays.getitem_arraynd_intp
        return by_numba(context, builder, signature, args)
    return _arrays.load_item(context, builder, array_type, pointer)


def _write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    array_type, index_type, value_type = signature.args
    pointer = _pointer(context, builder, array_type, args[0], index_type, args[1])
    if pointer is None:
        return _arrays.setitem_array(context, builder, signature, args)
    value = context.cast(builder, args[2], value_type, array_type.dtype)
    return _arrays.store_item(context, builder, array_type, value, pointer)


def _length(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return builder.extract_value(_Fields(context, builder, signature.args[0], args[0]).shape, 0)


def _array_type(shape: Any, dtype: Any) -> Any:
    """Of the new array; None for arguments that are left to numba."""
    element, num_axes = _dtype_of(dtype), _axes_of(shape)
    return None if element is None or num_axes is None else _types.Array(element, num_axes, "C")


def _allocating(*, zeros: bool) -> dict[int, Any]:
    """The functions that allocate, by their number of arguments."""

    def generator(array_type: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            shape = signature.args[0], args[0]
            return _allocated(context, builder, array_type, *shape, zeros=zeros)

        return generate

    def numbers(typing_context: Any, shape: Any) -> Any:
        array_type = _array_type(shape, _types.NumberClass(_types.float64))
        return None if array_type is None else (array_type(shape), generator(array_type))

    def elements(typing_context: Any, shape: Any, dtype: Any) -> Any:
        array_type = _array_type(shape, dtype)
        return None if array_type is None else (array_type(shape, dtype), generator(array_type))

    return {1: _in_callers_code(numbers), 2: _in_callers_code(elements)}


def _allocated(
    context: Any, builder: Any, array_type: Any, shape_type: Any, shape: Any, *, zeros: bool
) -> Any:
    is_tuple = isinstance(shape_type, _types.BaseTuple)
    sizes = _values.unpack_tuple(builder, shape) if is_tuple else [shape]
    sizes = [
        context.cast(builder, size, size_type, _types.intp)
        for size, size_type in zip(sizes, _index_types(shape_type), strict=True)
    ]
    item_bytes = context.get_constant(_types.intp, _arrays.get_itemsize(context, array_type))
    strides: list[Any] = []
    num_bytes = item_bytes
    for size in reversed(sizes):
        strides.insert(0, num_bytes)
        num_bytes = builder.mul(num_bytes, size)
    align = context.get_preferred_array_alignment(array_type.dtype)
    owner = context.nrt.meminfo_alloc_aligned(builder, num_bytes, align)
    address = context.nrt.meminfo_data(builder, owner)
    if zeros:
        _values.memset(builder, address, num_bytes, 0)
    array = _arrays.make_array(array_type)(context, builder)
    integer = context.get_value_type(_types.intp)
    _arrays.populate_array(
        array,
        data=builder.bitcast(address, context.get_data_type(array_type.dtype).as_pointer()),
        shape=_values.pack_array(builder, sizes, ty=integer),
        strides=_values.pack_array(builder, strides, ty=integer),
        itemsize=item_bytes,
        meminfo=owner,
    )
    return array._getvalue()


_ALLOCATING: Final = {np.empty: _allocating(zeros=False), np.zeros: _allocating(zeros=True)}


def find_allocation(function: Any, context: Any, args: Any, kws: Any) -> Any:
    """The signature of a call of ``np.empty`` or ``np.zeros`` that the caller's code answers; else None."""
    allocating = _ALLOCATING.get(function.typing_key, {}).get(len(args))
    if allocating is None or kws:
        return None
    ours = context.resolve_value_type(allocating)
    signature = ours.get_call_type(context, args, {})
    function._impl_keys[signature.args] = ours.get_impl_key(signature)
    return signature


@cache
def shorten_array_code() -> None:
    """Shorten the code of every function that compiles from now on."""
    for index in (_types.Integer, _types.BaseTuple):
        _implements(operator.getitem, _types.Array, index)(_read)
        _implements(operator.setitem, _types.Array, index, _types.Any)(_write)
    _implements(len, _types.Array)(_length)
