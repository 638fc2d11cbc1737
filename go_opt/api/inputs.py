"""Loads the inputs of the public functions: models, targets, costs and plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from go_opt.env import Target, load_target, load_zoo
from go_opt.env.copies.splits import planned_graph
from go_opt.errors import InvalidInputError, ModelError
from go_opt.frontends.networkx_frontend import as_graph
from go_opt.frontends.recording.states import star_of
from go_opt.frontends.union.graphs import UNION_PREFIX, load_union
from go_opt.model.bindings import NO_BINDINGS, Bindings, Numbers
from go_opt.model.codecs.plan_json import load_plan
from go_opt.model.graph import Graph, Precision, check_precision
from go_opt.model.plan import Plan
from go_opt.model.states import without_states
from go_opt.parallel.configuration import TRANSFORMER_PREFIX

if TYPE_CHECKING:
    import networkx as nx

ZOO_PREFIX = "zoo:"


def load(
    path: str | Path,
    *,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, Numbers] | None = None,
    trips: Mapping[str, int] | None = None,
    states: Mapping[str, str] | None = None,
    precision: Precision = "native",
) -> Graph:
    """Loads a graph from an ONNX file, a torch program, a ``.json`` file, or the zoo (``"zoo:resnet50"``).

    Args:
      path: ``*.onnx``; ``*.pt2`` of ``torch.export.save``; ``*.mlir``, StableHLO; ``*.json`` in
        go-opt's own form or networkx's node-link form; ``zoo:NAME``; or several of these as one graph,
        ``union:2*a.onnx+1*b.onnx``, or ``union:shared:1*prompt.onnx+1*step.onnx``
        with the weights of both once.
      dims: sizes of the symbolic dimensions of a model.
      values: numbers for inputs of an ONNX model, which become constants: one for all elements, or all.
      trips: numbers of trips of the loops of a model that do not say it, by the name of their op.
      states: input -> the output that is its value in the next step, as ``NAME`` or ``NAME:SCOPE``; an input
        that is a pattern may have one ``*``, which stands for the same text in the output. Without an output,
        these inputs are no states: ``{"*": ""}`` leaves out all.
      precision: ``native`` costs floating-point tensors in the target's native type, ``as-is`` in
        the model's own type.

    Raises:
      ModelError, GraphError: the file is missing or malformed; one sentence says why.
    """
    check_precision(precision)
    bindings = Bindings.of(dims, values, trips, states)
    name = str(path)
    if name.startswith(ZOO_PREFIX):
        _refuse(name, bindings, "dims", "values", "trips")
        return _without(name, bindings, load_zoo(name.removeprefix(ZOO_PREFIX), precision))
    if name.startswith(UNION_PREFIX):
        return load_union(name, lambda one: load(one, **vars(bindings), precision=precision), bindings)
    if name.startswith(TRANSFORMER_PREFIX):
        raise ModelError(f"{name[:100]!r} is a model for --objective step alone.", field="objective")
    suffix = suffix_of(path)
    _refuse(name, bindings, *_NEVER_BOUND[suffix])
    if suffix == ".json":
        from go_opt.frontends.networkx_frontend import load_graph_json

        return _without(name, bindings, load_graph_json(Path(name), precision))
    if suffix == ".mlir":
        from go_opt.frontends.jax_frontend import load_stablehlo

        return load_stablehlo(path, bindings, precision)
    if suffix == ".pt2":
        from go_opt.frontends.torch_frontend import from_torch

        return from_torch(path, dims=dims, states=states, precision=precision)
    from go_opt.frontends.onnx_frontend import from_onnx

    return from_onnx(path, **vars(bindings), precision=precision)


ONNX: Final = ".onnx"
_NEVER_BOUND: Final[Mapping[str, tuple[str, ...]]] = {  # by the files' suffix
    ".json": ("dims", "values", "trips"),
    ".mlir": ("values",),
    ".pt2": ("values", "trips"),
    ONNX: (),
}


def suffix_of(path: str | Path) -> str:
    """The format of a model file: files of other suffixes are taken for ONNX."""
    return next((suffix for suffix in _NEVER_BOUND if str(path).endswith(suffix)), ONNX)


_WORDS: Final = {"dims": "symbolic dimension", "values": "input to bind", "trips": "loop to bind"}


def _refuse(name: str, bindings: Bindings, *kinds: str) -> None:
    """Raise for the first binding of these kinds, which the model at ``name`` cannot have."""
    for kind in kinds:
        for bound in getattr(bindings, kind):
            raise ModelError(f"{name} has no {_WORDS[kind]} {bound!r}.", field=kind)


def _without(name: str, bindings: Bindings, graph: Graph) -> Graph:
    """A graph whose format says what its states are, without those that ``bindings`` leave out."""
    for pattern, following in bindings.states.items():
        if following and graph.bindings.states.get(pattern) != following:  # a plan may say them again
            raise ModelError(
                f"{name} says itself what its states are, so {pattern!r} is none.", field="states"
            )
    out = [pattern for pattern, following in bindings.states.items() if not following]
    if not out:
        return graph
    left_out = without_states(graph, lambda state: any(star_of(one, state) is not None for one in out))
    return replace(left_out, bindings=replace(left_out.bindings, states=bindings.states))


def target(name_or_path: str | Path) -> Target:
    """Loads a shipped target by name (``"mcm-6x6"``) or your own target from its TOML file."""
    return load_target(name_or_path)


def plan_case(
    graph: Graph | nx.DiGraph | str | Path,
    target: Target | str | Path | None,
    plan: Plan | str | Path,
    costs: str | Path | None,
) -> tuple[Graph, Target, Plan]:
    """The graph, target and plan to evaluate; the graph has the parts of the ops that the plan splits."""
    whole, on, decided = whole_case(graph, target, plan, costs)
    return planned_graph(whole, decided), on, decided


def whole_case(
    graph: Graph | nx.DiGraph | str | Path,
    target: Target | str | Path | None,
    plan: Plan | str | Path,
    costs: str | Path | None,
) -> tuple[Graph, Target, Plan]:
    decided = plan if isinstance(plan, Plan) else load_plan(plan)
    on = as_target(decided.target if target is None else target)
    if isinstance(graph, str | Path):
        graph = load(graph, **vars(decided.bindings), precision=decided.precision)
    return costed(as_graph(graph), on, costs), on, decided


def as_loaded(
    graph: Graph | nx.DiGraph | str | Path,
    bindings: Bindings = NO_BINDINGS,
    precision: Precision = "native",
) -> Graph:
    """Returns a given graph, converts a networkx graph, or loads a path as :func:`load` does."""
    if isinstance(graph, str | Path):
        return load(graph, **vars(bindings), precision=precision)
    if bindings != NO_BINDINGS or precision != "native":
        what = next((kind for kind, given in vars(bindings).items() if given), "precision")
        raise InvalidInputError(f"{what} is of a model that is loaded from a file.", field=what)
    return as_graph(graph)


def costed(graph: Graph, target: Target, costs: str | Path | None) -> Graph:
    """Returns the graph with the measured costs of a file, if one is given."""
    if costs is None:
        return graph
    from go_opt.costs.measured_costs import with_measured_costs  # numba loads with it

    return with_measured_costs(graph, costs, target)


def as_target(target: Target | str | Path) -> Target:
    """Returns a given target, or loads one by name or path."""
    return target if isinstance(target, Target) else load_target(target)
