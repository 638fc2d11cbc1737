"""JAX functions as graphs: traced to a jaxpr, calls inlined, loops unrolled, constants folded.

The rules are documented in ``docs/importers.md``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

from go_opt.errors import GoOptError, ModelError
from go_opt.extras import check_installed
from go_opt.frontends.jax.walk import Walker, dtype_name
from go_opt.frontends.recording.binding import Trips
from go_opt.frontends.recording.recorder import Recorder, Value
from go_opt.model.bindings import Bindings
from go_opt.model.graph import Graph, Precision


def from_jax(
    fn: Callable[..., Any],
    *args: Any,
    name: str | None = None,
    weight_argnums: Collection[int] | None = None,
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
      max_scan_length: loops are unrolled up to this many steps; longer ones are refused.
      trips: numbers of trips of ``while`` loops that do not say it, by the name of their op; a loop
        in another loop has one number for all steps of that.

    Raises:
      ModelError: the function cannot be traced or holds what has no cost.
    """
    graph_name = name if name is not None else _function_name(fn)
    check_installed("from_jax", "jax")
    weights = _weight_positions(args, weight_argnums)
    closed = _trace(fn, args, graph_name)
    recorder = Recorder()
    arguments = _arguments(recorder, fn, args, weights)
    walker = Walker(
        recorder,
        max_scan_length=max_scan_length,
        precision=precision,
        constant_names=_constant_names(fn),
        trips=Trips(trips or {}),
    )
    outputs = walker.run(closed, arguments, "")
    walker.trips.check()
    return recorder.build(graph_name, outputs, precision, Bindings.of(trips=trips))


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


def _trace(fn: Callable[..., Any], args: tuple[Any, ...], graph_name: str) -> Any:
    import jax

    try:
        return jax.make_jaxpr(fn)(*args)
    except GoOptError:
        raise
    except Exception as error:  # whatever the user's function raises
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        reason = re.sub(r" at 0x[0-9a-f]+", "", first_line).rstrip(".")
        raise ModelError(f"function {graph_name!r} cannot be traced: {reason}.") from error


def _arguments(
    recorder: Recorder, fn: Callable[..., Any], args: tuple[Any, ...], weights: set[int]
) -> list[Value]:
    """One source tensor per array of the arguments, named by its path: ``params['w']``."""
    import jax

    values = []
    for i, (arg, arg_name) in enumerate(zip(args, _argument_names(fn, len(args)), strict=True)):
        kind: Literal["weight", "input"] = "weight" if i in weights else "input"
        for path, leaf in jax.tree_util.tree_leaves_with_path(arg):
            base = arg_name + jax.tree_util.keystr(path)
            aval = leaf if hasattr(leaf, "shape") else jax.typeof(leaf)
            if not all(isinstance(size, int) for size in aval.shape):
                raise ModelError(f"argument {base!r} has the symbolic shape {aval.shape}; give it numbers.")
            dtype = dtype_name(aval.dtype, f"argument {base!r}")
            values.append(recorder.source(base, tuple(aval.shape), dtype, kind))
    return values


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
