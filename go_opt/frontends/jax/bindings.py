"""What callers bind of JAX functions and StableHLO modules: states and open dimensions.

States are found by position, by aliases of buffers, and by names. Sizes for the arguments of a module's main
decide all others.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from go_opt.errors import ModelError
from go_opt.frontends.jax.stablehlo import functions_of, parsed
from go_opt.frontends.jax.walk import dtype_name
from go_opt.frontends.recording.binding import check_dims, flags
from go_opt.frontends.recording.recorder import Value
from go_opt.frontends.recording.states import Facts, FoundStates, find_states, fits, says_a_state

# ``cache['k']`` for ``result['cache']['k']``: an entry of the result is named as an argument would be.
_ENTRY: Final = re.compile(r"^result(?:\['(\w+)'\]|\.(\w+))")
_OPEN: Final = re.compile(r"tensor<[0-9x]*\?|[st]_dimension_size|\bdynamic_(?!slice|update_slice)")


def result_facts(paths: Sequence[str], variables: Sequence[Any]) -> dict[str, Facts]:
    """Shape and type of each result of a jaxpr, by its name, from JAX's name of it: ``result[0]['w']``."""
    names = [_ENTRY.sub(r"\1\2", path) for path in paths]
    avals = [variable.aval for variable in variables]
    return {name: Facts(tuple(of.shape), _dtype(of.dtype)) for name, of in zip(names, avals, strict=True)}


def _dtype(dtype: Any) -> str:
    try:
        return dtype_name(dtype, "a result")
    except ModelError:  # the walk names the op that has it
        return str(dtype)


def states_of(
    arguments: Sequence[Sequence[Value]],
    results: Mapping[int | str, Mapping[str, Facts]],
    given: Mapping[str, str],
    weights: Collection[int] | None,
    exact: Mapping[str, str] | None = None,
) -> FoundStates:
    """The states among arguments; those that come back as a result look like one.

    Args:
      arguments, results: the arrays of each.
      weights: positions of the arguments of which the caller says that they are weights; names say nothing
        of them.
      given, exact: as for :func:`find_states`.
    """
    known = [str(value.tensor) for i in weights or () for value in arguments[i]]
    inputs = {str(value.tensor): _facts(value) for values in arguments for value in values}
    values = {str(value.tensor) for of in arguments for value in of if value.is_constant}
    named = {name: facts for name, facts in inputs.items() if name not in known}
    outputs = {name: facts for result in results.values() for name, facts in result.items()}

    def has_value(name: str) -> bool:
        return name in values and not says_a_state(name.partition("[")[0])

    found = find_states(named, outputs, given, has_value, known, exact or {})
    back = (
        str(value.tensor)
        for of in arguments
        if any(_is_returned(of, list(result.items())) for result in results.values())
        for value in of
    )
    looks = dict.fromkeys(name for name in (*found.unpaired, *back) if name not in found.reads)
    return found._replace(unpaired=tuple(looks))


def _facts(value: Value) -> Facts:
    return Facts(value.shape, value.dtype)


def _is_returned(values: Sequence[Value], result: Sequence[tuple[str, Facts]]) -> bool:
    """Whether a container has the same entries, shapes and types as a result."""
    entries = [str(value.tensor).partition("[")[2] for value in values]
    return len(values) == len(result) and all(
        entry and name.endswith(f"[{entry}") and facts == _facts(value)
        for value, entry, (name, facts) in zip(values, entries, result, strict=True)
    )


def pairs_by_position(
    state: Mapping[int | str, Any],
    arguments: Sequence[Sequence[Value]],
    results: Mapping[int | str, Mapping[str, Facts]],
) -> dict[str, str]:
    """The entries of ``from_jax(state=...)`` as pairs of names: the arrays of an argument and a result.

    Args:
      arguments, results: the arrays of each.

    Raises:
      ModelError: there is no such argument or result, or an array does not fit its next value.
    """
    pairs = dict[str, str]()
    for key, given in state.items():
        following, scope = given if isinstance(given, tuple) else (given, "")
        suffix = f":{scope}" if scope else ""
        if scope not in ("", "sequence", "model"):
            raise ModelError(f"state {key!r}: scope must be 'sequence' or 'model', not {scope!r}.")
        if isinstance(key, str):
            pairs[key] = f"{following}{suffix}"
            continue
        if key not in range(len(arguments)):
            raise ModelError(f"state {key!r}: there is no argument {key!r} among {len(arguments)}.")
        if following not in results:
            known = ", ".join(map(repr, results))
            raise ModelError(f"state {key!r}: there is no result {following!r}; there are {known}.")
        read, written = arguments[key], results[following]
        if len(read) != len(written):
            raise ModelError(
                f"state {key}: argument {key} has {len(read)} arrays, "
                f"and result {following!r} has {len(written)}."
            )
        for value, (name, facts) in zip(read, written.items(), strict=True):
            if not fits(_facts(value), facts):
                raise ModelError(
                    f"state {key}: {value.tensor!r} of {value.dtype} {list(value.shape)} cannot become "
                    f"{name!r} of {facts.dtype} {list(facts.shape)}."
                )
            pairs[str(value.tensor)] = f"{name}{suffix}"
    return pairs


def result_paths(function: Any) -> list[str]:
    """The names of the results of a StableHLO function that JAX wrote, else their numbers."""
    count = len(function.attributes["function_type"].value.results)
    rows = _rows(function, "res_attrs") or [{}] * count
    paths = [row["jax.result_info"].value if "jax.result_info" in row else "" for row in rows]
    return paths if all(paths) and len({*paths}) == count else [f"result[{i}]" for i in range(count)]


def aliased(module: Any, function: Any) -> dict[int, int]:
    """The arguments of a StableHLO function whose buffers become results -> those results.

    Donated arguments become the results of their type if there are as many.
    """
    pairs, donors = dict[int, int](), dict[str, list[int]]()
    types = [str(argument.type) for argument in function.regions[0].blocks[0].arguments]
    results = [str(of) for of in function.attributes["function_type"].value.results]
    for i, row in enumerate(_rows(function, "arg_attrs")):
        if "tf.aliasing_output" in row:
            pairs[i] = row["tf.aliasing_output"].value
        elif "jax.buffer_donor" in row:
            donors.setdefault(types[i], []).append(i)
    for entry in _rows(module.operation, "mhlo.input_output_alias"):
        pairs[entry["alias"]["parameter_number"].value] = next(iter(entry["output_index"]), 0)
    for of_type, of in donors.items():
        free = [j for j, result in enumerate(results) if result == of_type and j not in pairs.values()]
        if len(of) == len(free):
            pairs |= dict(zip(of, free, strict=True))
    return {i: j for i, j in pairs.items() if i < len(types) and j < len(results)}


def _rows(op: Any, attribute: str) -> list[Any]:
    return list(op.attributes[attribute]) if attribute in op.attributes else []


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
