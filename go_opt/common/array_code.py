"""Less LLVM code for arrays in compiled functions: it is generated, parsed and optimized in less time.

Numba copies an array's fields to the stack before it reads one of its elements. Here they are read from
the array's value: a third of the code for each element. Numba compiles a function of its own for each
element type of ``np.empty`` and ``np.zeros``; here the caller allocates.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import numpy as np
from numba.core import cgutils, types
from numba.core.imputils import lower_builtin
from numba.core.typing.npydecl import parse_dtype, parse_shape
from numba.extending import intrinsic
from numba.np import arrayobj


class _Fields:
    """The fields of an array's LLVM value."""

    def __init__(self, context: Any, builder: Any, array_type: Any, value: Any) -> None:
        self._model = context.data_model_manager[array_type]
        self._builder, self._value = builder, value

    def __getattr__(self, name: str) -> Any:
        return self._builder.extract_value(self._value, self._model.get_field_position(name))


def _index_types(index_type: Any) -> tuple[Any, ...]:
    return tuple(index_type.types) if isinstance(index_type, types.BaseTuple) else (index_type,)


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index_type: Any, index: Any) -> Any:
    """The address of an element; None if ``index`` is not one integer for each axis."""
    index_types = _index_types(index_type)
    if len(index_types) != array_type.ndim or not all(isinstance(t, types.Integer) for t in index_types):
        return None
    indices = cgutils.unpack_tuple(builder, index) if isinstance(index_type, types.BaseTuple) else (index,)
    fields = _Fields(context, builder, array_type, array)
    pointer, _, _ = arrayobj.basic_indexing(
        context, builder, array_type, fields, index_types, indices, boundscheck=context.enable_boundscheck
    )
    return pointer


def _read(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    array_type, index_type = signature.args
    pointer = _pointer(context, builder, array_type, args[0], index_type, args[1])
    if pointer is None:
        is_tuple = isinstance(index_type, types.BaseTuple)
        by_numba = arrayobj.getitem_array_tuple if is_tuple else arrayobj.getitem_arraynd_intp
        return by_numba(context, builder, signature, args)
    return arrayobj.load_item(context, builder, array_type, pointer)


def _write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    array_type, index_type, value_type = signature.args
    pointer = _pointer(context, builder, array_type, args[0], index_type, args[1])
    if pointer is None:
        return arrayobj.setitem_array(context, builder, signature, args)
    value = context.cast(builder, args[2], value_type, array_type.dtype)
    return arrayobj.store_item(context, builder, array_type, value, pointer)


def _length(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return builder.extract_value(_Fields(context, builder, signature.args[0], args[0]).shape, 0)


def _array_type(shape: Any, dtype: Any) -> Any:
    """Of the new array; None for arguments that are left to numba."""
    element, num_axes = parse_dtype(dtype), parse_shape(shape)
    return None if element is None or num_axes is None else types.Array(element, num_axes, "C")


def _allocating(*, zeros: bool) -> dict[int, Any]:
    """The functions that allocate, by their number of arguments."""

    def generator(array_type: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            shape = signature.args[0], args[0]
            return _allocated(context, builder, array_type, *shape, zeros=zeros)

        return generate

    def numbers(typing_context: Any, shape: Any) -> Any:
        array_type = _array_type(shape, types.NumberClass(types.float64))
        return None if array_type is None else (array_type(shape), generator(array_type))

    def elements(typing_context: Any, shape: Any, dtype: Any) -> Any:
        array_type = _array_type(shape, dtype)
        return None if array_type is None else (array_type(shape, dtype), generator(array_type))

    return {1: intrinsic(numbers), 2: intrinsic(elements)}


def _allocated(
    context: Any, builder: Any, array_type: Any, shape_type: Any, shape: Any, *, zeros: bool
) -> Any:
    is_tuple = isinstance(shape_type, types.BaseTuple)
    sizes = cgutils.unpack_tuple(builder, shape) if is_tuple else [shape]
    sizes = [
        context.cast(builder, size, size_type, types.intp)
        for size, size_type in zip(sizes, _index_types(shape_type), strict=True)
    ]
    item_bytes = context.get_constant(types.intp, arrayobj.get_itemsize(context, array_type))
    strides, num_bytes = [], item_bytes
    for size in reversed(sizes):
        strides.insert(0, num_bytes)
        num_bytes = builder.mul(num_bytes, size)
    align = context.get_preferred_array_alignment(array_type.dtype)
    owner = context.nrt.meminfo_alloc_aligned(builder, num_bytes, align)
    address = context.nrt.meminfo_data(builder, owner)
    if zeros:
        cgutils.memset(builder, address, num_bytes, 0)
    array = arrayobj.make_array(array_type)(context, builder)
    integer = context.get_value_type(types.intp)
    arrayobj.populate_array(
        array,
        data=builder.bitcast(address, context.get_data_type(array_type.dtype).as_pointer()),
        shape=cgutils.pack_array(builder, sizes, ty=integer),
        strides=cgutils.pack_array(builder, strides, ty=integer),
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


def shorten_array_code() -> None:
    """From now on, in every function that compiles."""
    one_or_more = (types.Integer, types.BaseTuple)
    for index in one_or_more:
        lower_builtin(operator.getitem, types.Array, index)(_read)
        lower_builtin(operator.setitem, types.Array, index, types.Any)(_write)
    lower_builtin(len, types.Array)(_length)
