"""Open dimensions of StableHLO: sizes for the arguments of main decide all others."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from go_opt.errors import ModelError
from go_opt.frontends.jax.stablehlo import functions_of, parsed
from go_opt.frontends.recording.binding import check_dims, flags

_OPEN: Final = re.compile(r"tensor<[0-9x]*\?|[st]_dimension_size|\bdynamic_(?!slice|update_slice)")


def bound(module: Any, names: Sequence[str], dims: Mapping[str, int]) -> Any:
    """The module with these sizes of its arguments, and all other sizes as jaxlib derives them.

    Args:
      names: of the arguments of main.
      dims: ``argument[axis]`` -> size.

    Raises:
      ModelError: a dimension is unknown or has no size, or the sizes do not fit the program.
    """
    from jaxlib.mlir import ir

    arguments = functions_of(module)["main"].regions[0].blocks[0].arguments
    tensors = [
        (argument, name, argument.type)
        for argument, name in zip(arguments, names, strict=True)
        if isinstance(argument.type, ir.RankedTensorType)
    ]
    open_dims = [
        f"{name}[{axis}]" for _, name, of in tensors for axis in range(of.rank) if of.is_dynamic_dim(axis)
    ]
    _check(open_dims, dims)
    if not open_dims and _OPEN.search(str(module)) is None:
        return module
    with module.context, ir.Location.unknown():
        for argument, name, of in tensors:
            if not of.has_static_shape:
                sizes = [dims.get(f"{name}[{i}]", of.shape[i]) for i in range(of.rank)]
                _set_type(argument, ir.RankedTensorType.get(sizes, of.element_type))
    return _refined(module)


def _check(open_dims: Sequence[str], dims: Mapping[str, int]) -> None:
    check_dims(dims)
    for name in dims:
        if name not in open_dims:
            known = ", ".join(map(repr, open_dims)) or "none"
            raise ModelError(f"dimension {name!r} is not one of the model; it has {known}.", field="dims")
    unbound = [name for name in dict.fromkeys(open_dims) if name not in dims]
    if unbound:
        names = ", ".join(map(repr, unbound))
        raise ModelError(f"the model has unbound dimensions {names}: use `{flags(unbound)}`.", field="dims")


def _set_type(argument: Any, to: Any) -> None:
    """Give an argument of main another type; ops that use it see its old type."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    block, old = argument.owner, argument.type
    argument.set_type(to)
    with ir.InsertionPoint.at_block_begin(block):
        seen = stablehlo.ConvertOp(old, argument)
    argument.replace_all_uses_except(seen.result, seen.operation)
    main = block.owner
    results = ir.FunctionType(main.attributes["function_type"].value).results
    types = [one.type for one in block.arguments]
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, results))


def _refined(module: Any) -> Any:
    from jaxlib import _jax

    text = module.operation.get_asm(enable_debug_info=True)
    try:
        return parsed(_jax.mlir.refine_polymorphic_shapes(text.encode()))
    except Exception as error:  # jaxlib has no error of its own for this
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        reason = reason.rpartition(" error: ")[2].rstrip(".")
        raise ModelError(f"the sizes of the module cannot be derived from its arguments: {reason}.") from None
