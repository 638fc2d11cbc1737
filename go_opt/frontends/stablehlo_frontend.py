"""StableHLO text as graphs, read by jaxlib and walked as a jaxpr (docs/importers.md)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from go_opt.common.files import read_text
from go_opt.errors import ModelError
from go_opt.extras import check_installed
from go_opt.frontends.jax.stablehlo import MAX_TEXT_BYTES
from go_opt.frontends.jax.walk import Walker, dtype_name
from go_opt.frontends.recording.binding import Trips, refused_as
from go_opt.frontends.recording.recorder import Recorder
from go_opt.model.bindings import Bindings
from go_opt.model.graph import Graph, Precision


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
    from go_opt.frontends.jax.open_dims import bound
    from go_opt.frontends.jax.stablehlo import Reader, argument_names, functions_of, parsed
    from go_opt.frontends.jax.states import aliased, result_facts, result_paths, states_of

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
        varied = found.reads | (exact.keys() & set(found.unpaired))
        walker = Walker(
            recorder,
            max_scan_length=max_scan_length,
            precision=precision,
            constant_names={},
            trips=Trips(bindings.trips),
        )
        outputs = walker.run(jaxpr, recorder.varied(arguments, varied), "")
        walker.trips.check()
        attributes = module.operation.attributes
        title = attributes["sym_name"].value.removeprefix("jit_") if "sym_name" in attributes else "main"
        named = dict(zip(facts, outputs, strict=True))
        return recorder.build(title if name is None else name, named, found, precision, bindings)


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
