"""Programs of ``torch.export`` as graphs: from memory, or from a ``.pt2`` file without torch.

The rules are documented in ``docs/importers.md``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from go_opt.errors import GoOptError, ModelError
from go_opt.extras import check_installed
from go_opt.frontends.recording.recorder import Recorder, Value
from go_opt.frontends.torch.archive import read_program
from go_opt.frontends.torch.nodes import root_class
from go_opt.frontends.torch.sizes import Sizes
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
    precision: Precision = "native",
) -> Graph:
    """The graph of an exported program, or of a file that ``torch.export.save`` wrote.

    Args:
      name: name of the graph; by default that of the file, or the class of the model.
      dims: numbers for dynamic dimensions, as ``input[axis]``; by default those of the example
        that the program was exported with.

    Raises:
      ModelError, GraphError: one sentence that names the op, tensor or dimension at fault.
    """
    check_precision(precision)
    if isinstance(program, str | os.PathLike):
        found, default = read_program(program), Path(program).stem
    else:
        found = _saved(program)
        default = root_class(found) or "program"
    try:
        return _graph(found, name or default, dims or {}, precision)
    except GoOptError:
        raise
    except Exception as error:
        # Damaged programs fail in more ways than can be named: each is bad input here.
        raise ModelError(
            f"the torch program {name or default!r} is malformed ({type(error).__name__}: {error})."
        ) from error


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


def _graph(program: Mapping[str, Any], name: str, dims: Mapping[str, int], precision: Precision) -> Graph:
    graph, signature = program["graph_module"]["graph"], program["graph_module"]["signature"]
    recorder = Recorder()
    walker = Walker(recorder, Sizes(program, dims), precision)
    sources = _sources(recorder, walker, graph["tensor_values"], signature["input_specs"])
    outputs = walker.run(graph, sources)
    # New values of buffers and parameters are not outputs of the graph.
    specs = [spec for spec in signature["output_specs"] if not _is_without_tensor(spec)]
    given = [
        value
        for value, spec in zip(outputs, specs, strict=True)
        if not {"buffer_mutation", "parameter_mutation"} & spec.keys()
    ]
    return recorder.build(name, given, precision, Bindings.of(dims))


def _sources(
    recorder: Recorder, walker: Walker, tensors: Mapping[str, Any], specs: list[Mapping[str, Any]]
) -> dict[str, Value]:
    """Parameters, buffers and constants by their names in the model, and the inputs."""
    found = {}
    for spec in specs:
        ((kind, row),) = spec.items()
        argument = row.get("arg", {})
        tensor = argument.get("as_tensor", argument if kind != "user_input" else {}).get("name")
        if tensor in tensors:
            given = next((row[key] for key in _NAMES if key in row), tensor)
            shape, dtype = walker.result(tensors, tensor)
            found[tensor] = recorder.source(
                given, shape, dtype, "input" if kind == "user_input" else "weight"
            )
    return found


_NAMES = ("parameter_name", "buffer_name", "tensor_constant_name")


def _is_without_tensor(spec: Mapping[str, Any]) -> bool:
    """True for an output that is a number, None or a token."""
    ((_, row),) = spec.items()
    argument = row.get("arg", {})
    return "name" not in argument and "as_tensor" not in argument
