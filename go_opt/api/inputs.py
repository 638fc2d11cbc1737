"""Loads the inputs of the public functions: models, targets, costs and plans."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from go_opt.env import Target, load_target, load_zoo
from go_opt.env.copies.splits import planned_graph
from go_opt.errors import InvalidInputError, ModelError
from go_opt.frontends.graph_like import as_graph
from go_opt.measured_costs import with_measured_costs
from go_opt.model.codecs.plan_json import load_plan
from go_opt.model.graph import Graph, Precision, check_precision
from go_opt.model.plan import Plan

if TYPE_CHECKING:
    import networkx as nx

ZOO_PREFIX = "zoo:"


def load(
    path: str | Path, *, dims: Mapping[str, int] | None = None, precision: Precision = "native"
) -> Graph:
    """Loads a graph from an ONNX file, a torch program, a ``.json`` file, or the zoo (``"zoo:resnet50"``).

    Args:
      path: ``*.onnx``; ``*.pt2`` of ``torch.export.save``; ``*.mlir``, StableHLO; ``*.json`` in
        go-opt's own form or networkx's node-link form; or ``zoo:NAME``.
      dims: values of the symbolic dimensions of an ONNX model or a torch program.
      precision: ``native`` costs floating-point tensors in the target's native type, ``as-is`` in
        the model's own type.

    Raises:
      ModelError, GraphError: the file is missing or malformed; one sentence says why.
    """
    check_precision(precision)
    name = str(path)
    if name.startswith(ZOO_PREFIX):
        _refuse_dims(name, dims)
        return load_zoo(name.removeprefix(ZOO_PREFIX), precision)
    if name.endswith(".json"):
        from go_opt.frontends.graph_like import load_graph_json

        _refuse_dims(name, dims)
        return load_graph_json(Path(name), precision)
    if name.endswith(".mlir"):
        from go_opt.frontends.stablehlo_frontend import load_stablehlo

        _refuse_dims(name, dims)
        return load_stablehlo(path, precision)
    if name.endswith(".pt2"):
        from go_opt.frontends.torch_frontend import from_torch

        return from_torch(path, dims=dims, precision=precision)
    from go_opt.frontends.onnx_frontend import from_onnx

    return from_onnx(path, dims=dims, precision=precision)


def _refuse_dims(name: str, dims: Mapping[str, int] | None) -> None:
    if dims:
        raise ModelError(f"{name} has no symbolic dimension {next(iter(dims))!r}.", field="dims")


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
        graph = load(graph, dims=decided.dims, precision=decided.precision)
    return costed(as_graph(graph), on, costs), on, decided


def as_loaded(
    graph: Graph | nx.DiGraph | str | Path,
    dims: Mapping[str, int] | None = None,
    precision: Precision = "native",
) -> Graph:
    """Returns a given graph, converts a networkx graph, or loads a path as :func:`load` does."""
    if isinstance(graph, str | Path):
        return load(graph, dims=dims, precision=precision)
    if dims or precision != "native":
        raise InvalidInputError("dims and precision are of a model that is loaded from a file.", field="dims")
    return as_graph(graph)


def costed(graph: Graph, target: Target, costs: str | Path | None) -> Graph:
    """Returns the graph with the measured costs of a file, if one is given."""
    return graph if costs is None else with_measured_costs(graph, costs, target)


def as_target(target: Target | str | Path) -> Target:
    """Returns a given target, or loads one by name or path."""
    return target if isinstance(target, Target) else load_target(target)
