"""JAX functions as graphs: traced to a jaxpr, calls inlined, loops unrolled, constants folded.

The rules are documented in ``docs/importers.md``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Any, Literal

from go_opt.errors import GoOptError, ModelError
from go_opt.extras import check_installed
from go_opt.frontends.jax.states import pairs_by_position, result_facts, states_of
from go_opt.frontends.jax.walk import Walker, dtype_name
from go_opt.frontends.recording.binding import Trips
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
    graph_name = name if name is not None else _function_name(fn)
    check_installed("from_jax", "jax")
    weights = _weight_positions(args, weight_argnums)
    closed, of_result = _trace(fn, args, graph_name)
    recorder = Recorder()
    by_position = _arguments(recorder, fn, args, weights)
    arguments = [value for values in by_position for value in values]
    results = _results(closed, of_result)
    bindings = Bindings.of(trips=trips, states=pairs_by_position(state or {}, by_position, results))
    found = states_of(by_position, results, bindings.states, weight_argnums and weights)
    walker = Walker(
        recorder,
        max_scan_length=max_scan_length,
        precision=precision,
        constant_names=_constant_names(fn),
        trips=Trips(trips or {}),
    )
    outputs = walker.run(closed, recorder.varied(arguments, found.reads), "")
    walker.trips.check()
    names = (name for result in results.values() for name in result)
    return recorder.build(graph_name, dict(zip(names, outputs, strict=True)), found, precision, bindings)


def _function_name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__))


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
