"""JAX functions as graphs: traced to a jaxpr, calls inlined, loops unrolled, constants folded.

StableHLO text is read by jaxlib and walked as a jaxpr. The rules are documented in ``docs/importers.md``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from go_opt.common.files import read_text
from go_opt.errors import GoOptError, ModelError
from go_opt.extras import check_installed
from go_opt.frontends.jax.bindings import (
    aliased,
    bound,
    pairs_by_position,
    result_facts,
    result_paths,
    states_of,
)
from go_opt.frontends.jax.stablehlo import MAX_TEXT_BYTES, Reader, argument_names, functions_of, parsed
from go_opt.frontends.jax.walk import dtype_name, graph_of
from go_opt.frontends.recording.binding import refused_as
from go_opt.frontends.recording.recorder import Recorder, Value
from go_opt.frontends.recording.states import Facts
from go_opt.model.bindings import Bindings
from go_opt.model.graph import Graph, Precision


def from_jax(
    fn: Callable[..., Any],
    *args: Any,
    name: str | None = None,
    weight_argnums: Collection[int] | None = None,
    state: Mapping[int | str, Any] | None = None,
    max_scan_length: int = 512,
    trips: Mapping[str, int] | None = None,
    precision: Precision = "native",
) -> Graph:
    """The graph of ``fn(*args)``; an argument may be a ``jax.ShapeDtypeStruct``.

    Args:
      name: name of the graph, the function's by default.
      weight_argnums: positions of the arguments that are weights; by default those
        that are containers (a dict of parameters, an ``nnx.State``). What the function
        closes over is a weight too.
      state: position of an argument -> position, or key, of the result that is its value in the next step,
        or this and its scope: ``{0: 0, 1: (1, "model")}``, for all their arrays in order. Names instead of
        positions are those of single arrays, ``{"cache['k']": "result[1]['k']"}``, with one ``*`` in both for
        several. Without a scope it is ``model`` for weights, unless their name is that of a cache or state.
      max_scan_length: loops are unrolled up to this many steps; longer ones are refused.
      trips: numbers of trips of ``while`` loops that do not say it, by the name of their op; a loop
        in another loop has one number for all steps of that.

    Raises:
      ModelError: the function cannot be traced or holds what has no cost.
    """
    graph_name = name if name is not None else str(getattr(fn, "__name__", type(fn).__name__))
    check_installed("from_jax", "jax")
    weights = _weight_positions(args, weight_argnums)
    closed, of_result = _trace(fn, args, graph_name)
    recorder = Recorder()
    by_position = _arguments(recorder, fn, args, weights)
    results = _results(closed, of_result)
    bindings = Bindings.of(trips=trips, states=pairs_by_position(state or {}, by_position, results))
    found = states_of(by_position, results, bindings.states, weight_argnums and weights)
    return graph_of(
        closed,
        recorder,
        recorder.varied([value for values in by_position for value in values], found.reads),
        [name for result in results.values() for name in result],
        found,
        name=graph_name,
        bindings=bindings,
        precision=precision,
        max_scan_length=max_scan_length,
        constant_names=_constant_names(fn),
    )


def _weight_positions(args: tuple[Any, ...], weight_argnums: Collection[int] | None) -> set[int]:
    import jax

    if weight_argnums is None:
        return {i for i, arg in enumerate(args) if not jax.tree_util.all_leaves([arg])}
    for position in weight_argnums:
        if not -len(args) <= position < len(args):
            raise ModelError(f"weight_argnums: there is no argument {position} among {len(args)}.")
    return {position % len(args) for position in weight_argnums}


def _trace(fn: Callable[..., Any], args: tuple[Any, ...], graph_name: str) -> tuple[Any, Any]:
    """The jaxpr, and the result as a tree of shapes."""
    import jax

    try:
        return jax.make_jaxpr(fn, return_shape=True)(*args)
    except GoOptError:
        raise
    except Exception as error:  # whatever the user's function raises
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        reason = re.sub(r" at 0x[0-9a-f]+", "", first_line).rstrip(".")
        raise ModelError(f"function {graph_name!r} cannot be traced: {reason}.") from error


def _arguments(
    recorder: Recorder, fn: Callable[..., Any], args: tuple[Any, ...], weights: set[int]
) -> list[list[Value]]:
    """One source tensor per array of each argument, named by its path: ``params['w']``."""
    import jax

    by_position = []
    for i, (arg, arg_name) in enumerate(zip(args, _argument_names(fn, len(args)), strict=True)):
        kind: Literal["weight", "input"] = "weight" if i in weights else "input"
        values = list[Value]()
        for path, leaf in jax.tree_util.tree_leaves_with_path(arg):
            base = arg_name + jax.tree_util.keystr(path)
            aval = leaf if hasattr(leaf, "shape") else jax.typeof(leaf)
            if not all(isinstance(size, int) for size in aval.shape):
                raise ModelError(f"argument {base!r} has the symbolic shape {aval.shape}; give it numbers.")
            dtype = dtype_name(aval.dtype, f"argument {base!r}")
            values.append(recorder.source(base, tuple(aval.shape), dtype, kind))
        by_position.append(values)
    return by_position


def _results(closed: Any, of_result: Any) -> dict[int | str, dict[str, Facts]]:
    """Shape and type of the arrays of each result, by its position or key and by their names."""
    import jax

    paths, _ = jax.tree_util.tree_flatten_with_path(of_result)
    names = [f"result{jax.tree_util.keystr(path)}" for path, _ in paths]
    left = iter(result_facts(names, closed.jaxpr.outvars).items())
    if isinstance(of_result, dict):
        several = {key: of_result[key] for key in sorted(of_result)}  # as JAX flattens it
    else:
        several = dict(enumerate(of_result if isinstance(of_result, tuple | list) else (of_result,)))
    return {key: dict(islice(left, len(jax.tree_util.tree_leaves(one)))) for key, one in several.items()}


def _constant_names(fn: Callable[..., Any]) -> dict[int, str]:
    """Paths of the arrays of a function that is itself a container, such as an ``nnx.Module``."""
    import jax

    leaves = jax.tree_util.tree_leaves_with_path(fn)
    return {id(leaf): jax.tree_util.keystr(path).lstrip(".") for path, leaf in leaves if path}


def _argument_names(fn: Callable[..., Any], count: int) -> list[str]:
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [named[i] if i < len(named) else f"arg{i}" for i in range(count)]


def from_stablehlo(
    text: str,
    *,
    name: str | None = None,
    weight_argnums: Collection[int] | None = None,
    max_scan_length: int = 512,
    dims: Mapping[str, int] | None = None,
    trips: Mapping[str, int] | None = None,
    states: Mapping[str, str] | None = None,
    precision: Precision = "native",
) -> Graph:
    """The graph of a StableHLO module, such as ``jax.jit(f).lower(...).as_text(debug_info=True)``.

    Args:
      name: name of the graph, the module's by default.
      weight_argnums: positions of the arguments of ``main`` that are weights; by default those
        whose name is an entry of a container (``params['w']``), which text with debug info has.
      max_scan_length: loops are unrolled up to this many steps; longer ones are refused.
      dims: sizes of the open dimensions of arguments, as ``argument[axis]``.
      trips: as :func:`go_opt.from_jax`.
      states: argument -> the result that is its value in the next step, as :func:`go_opt.load`, beside
        arguments whose buffers become results, and those that names show.

    Raises:
      ModelError: the text is no StableHLO module, or holds what has no cost.
    """
    check_installed("StableHLO", "jax")
    bindings = Bindings.of(dims, trips=trips, states=states)
    module = parsed(text)
    with refused_as("the StableHLO module cannot be imported"):
        names = argument_names(functions_of(module))
        module = bound(module, names, bindings.dims)
        functions = functions_of(module)
        weights = (
            {i for i, of in enumerate(names) if of[-1] == "]"}
            if weight_argnums is None
            else set(weight_argnums)
        )
        if not weights <= set(range(len(names))):
            raise ModelError(f"weight_argnums: main has the arguments 0 to {len(names) - 1}.")
        jaxpr = Reader(functions).function("main")
        recorder = Recorder()
        arguments = [
            recorder.source(
                of,
                variable.aval.shape,
                dtype_name(variable.aval.dtype, f"argument {of!r}"),
                "weight" if i in weights else "input",
            )
            for i, (of, variable) in enumerate(zip(names, jaxpr.invars, strict=True))
        ]
        facts = result_facts(result_paths(functions["main"]), jaxpr.outvars)
        results, pairs = list(facts), aliased(module, functions["main"])
        exact = {str(arguments[i].tensor): results[j] for i, j in pairs.items()}
        by_position = [[value] for value in arguments]
        found = states_of(by_position, {0: facts}, bindings.states, weight_argnums and weights, exact)
        attributes = module.operation.attributes
        title = attributes["sym_name"].value.removeprefix("jit_") if "sym_name" in attributes else "main"
        return graph_of(
            jaxpr,
            recorder,
            recorder.varied(arguments, found.reads | (exact.keys() & set(found.unpaired))),
            results,
            found,
            name=title if name is None else name,
            bindings=bindings,
            precision=precision,
            max_scan_length=max_scan_length,
        )


def load_stablehlo(path: str | Path, bindings: Bindings, precision: Precision) -> Graph:
    """The graph of a ``.mlir`` file."""
    text = read_text(path, "StableHLO file", ModelError, max_bytes=MAX_TEXT_BYTES)
    return from_stablehlo(
        text,
        name=Path(path).stem,
        dims=bindings.dims,
        trips=bindings.trips,
        states=bindings.states,
        precision=precision,
    )
