"""Programs of ``torch.export`` as graphs: from memory, or from a ``.pt2`` file without torch.

The rules are documented in ``docs/importers.md``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from go_opt.errors import ModelError
from go_opt.extras import check_installed
from go_opt.frontends.recording.binding import refused_as
from go_opt.frontends.recording.recorder import Recorder, Value
from go_opt.frontends.recording.states import Facts, FoundStates, find_states, says_a_state
from go_opt.frontends.torch.program import (
    Sizes,
    is_of_sequence,
    read_program,
    returned,
    root_class,
    source_name,
)
from go_opt.frontends.torch.walk import Walker
from go_opt.model.bindings import Bindings
from go_opt.model.graph import Graph, Precision, check_precision

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def from_torch(
    program: ExportedProgram | str | os.PathLike[str],
    *,
    name: str | None = None,
    dims: Mapping[str, int] | None = None,
    states: Mapping[str, str] | None = None,
    precision: Precision = "native",
) -> Graph:
    """The graph of an exported program, or of a file that ``torch.export.save`` wrote.

    Args:
      name: name of the graph; by default that of the file, or the class of the model.
      dims: numbers for dynamic dimensions, as ``input[axis]``; by default those of the example
        that the program was exported with.
      states: input, parameter or buffer -> the result that is its value in the next step, as
        :func:`go_opt.load`, beside what the program writes to and what names show. The new value of what it
        writes to has the same name: ``{"k_cache": "k_cache:sequence"}``.

    Raises:
      ModelError, GraphError: one sentence that names the op, tensor or dimension at fault.
    """
    check_precision(precision)
    if isinstance(program, str | os.PathLike):
        found, default = read_program(program), Path(program).stem
    else:
        found = _saved(program)
        default = root_class(found) or "program"
    with refused_as(f"the torch program {name or default!r} is malformed"):
        return _graph(found, name or default, Bindings.of(dims, states=states), precision)


def _saved(program: ExportedProgram) -> dict[str, Any]:
    check_installed("from_torch of a program in memory", "torch")
    import torch

    if not isinstance(program, torch.export.ExportedProgram):
        raise ModelError(f"from_torch takes a torch.export.ExportedProgram, not {type(program).__name__}.")
    # On disk, because the weights are written too.
    with tempfile.TemporaryFile() as file:
        torch.export.save(program, file)
        file.seek(0)
        return read_program(file)


class _Walk(NamedTuple):
    """A program as recorded ops, with its sources, and its results by name."""

    recorder: Recorder
    sources: Mapping[str, tuple[Value, Mapping[str, Any]]]  # name -> value and its part of the signature
    results: Mapping[str, Value]  # new values have the names of their sources
    written: frozenset[str]  # sources that ops write to


def _graph(program: Mapping[str, Any], name: str, bindings: Bindings, precision: Precision) -> Graph:
    walk = _walk(program, bindings.dims, precision, frozenset())
    found = _states(walk, bindings.states)
    held = found.reads | (walk.written & set(found.unpaired))
    if any(walk.sources[name][0].is_constant for name in held):
        walk = _walk(program, bindings.dims, precision, held)  # states are no constants
    return walk.recorder.build(name, walk.results, found, precision, bindings)


def _walk(
    program: Mapping[str, Any], dims: Mapping[str, int], precision: Precision, held: Collection[str]
) -> _Walk:
    """Walk a program; the sources in ``held`` are no constants."""
    graph, recorder = program["graph_module"]["graph"], Recorder()
    walker = Walker(recorder, Sizes(program, dims), precision)
    sources, arguments, given = {}, {}, {}
    for spec in program["graph_module"]["signature"]["input_specs"]:
        tensor, name = source_name(spec)
        if tensor in graph["tensor_values"]:
            shape, dtype = walker.result(graph["tensor_values"], tensor)
            value = recorder.source(name, shape, dtype, "input" if "user_input" in spec else "weight")
            given[name] = str(value.tensor)
            (value,) = recorder.varied([value], {given[name]} & set(held))
            arguments[tensor] = value
            sources[given[name]] = value, spec
    outputs, after = walker.run(graph, arguments)
    results = {
        str(value.tensor): after[tensor]
        for tensor, value in arguments.items()
        if after[tensor].tensor != value.tensor
    }
    named = list(zip(returned(program), outputs, strict=True))
    for one, value in named:
        if one.is_new:
            source = sources[given[one.name]][0]
            results[given[one.name]] = walker.updated(source, value) if one.is_gradient else value
    written = frozenset(results)
    for one, value in named:
        if not one.is_new:
            results[f"result_{one.name}" if one.name in results else one.name] = value
    return _Walk(recorder, sources, results, written)


def _states(walk: _Walk, given: Mapping[str, str]) -> FoundStates:
    """What the program writes to, and the states that names show.

    An input that it writes to is one only if its name says so: it may be no more than room for the result.
    """
    inputs = {
        name: Facts(value.shape, value.dtype)
        for name, (value, spec) in walk.sources.items()
        if "user_input" in spec
    }
    others = [name for name in walk.sources if name not in inputs]
    results = {name: Facts(value.shape, value.dtype) for name, value in walk.results.items()}

    def has_value(name: str) -> bool:
        last = ".".join(name.split(".")[-2:])
        return not is_of_sequence(walk.sources[name][1]) and not says_a_state(last)

    exact = {name: name for name in others if name in walk.written}
    return find_states(inputs, results, given, has_value, others, exact)
