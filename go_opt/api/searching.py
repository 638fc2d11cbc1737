"""The entry point of the search."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from go_opt.api.inputs import as_loaded, as_target, costed
from go_opt.api.plan_store import PlanStore
from go_opt.env import Target
from go_opt.given_request import as_request, takes_options
from go_opt.model.bindings import Bindings, Numbers
from go_opt.model.graph import Graph, Precision
from go_opt.result import OptimizeResult, Request, Step
from go_opt.search.optimizer import optimize_request

if TYPE_CHECKING:
    import networkx as nx


@takes_options
def optimize(
    graph: Graph | nx.DiGraph | str | Path,
    target: Target | str | Path = "mcm-6x6",
    *,
    request: Request | None = None,
    remember: PlanStore | str | Path | None = None,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, Numbers] | None = None,
    trips: Mapping[str, int] | None = None,
    states: Mapping[str, str] | None = None,
    precision: Precision = "native",
    costs: str | Path | None = None,
    on_step: Callable[[Step], None] = lambda step: None,
    on_improvement: Callable[[OptimizeResult], None] = lambda result: None,
    should_stop: Callable[[], bool] = lambda: False,
    **options: Any,
) -> OptimizeResult:
    """Finds the best verified plan that the budget allows, with a lower bound and the gap to it.

    Args:
      graph: a graph, or an argument of :func:`load`, with ``dims``, ``values``, ``trips``,
        ``states`` and ``precision``.
      request: the options of the search.
      remember: a folder of plans (:class:`PlanStore`): without ``start`` the search begins with the nearest
        of the same ops, and its own plan is kept there. The same contents give the same answer.
      costs: CSV file of measured seconds (:func:`with_measured_costs`).
      on_step: called after every method of the portfolio.
      on_improvement: called with every better plan, as the result at that time.
      should_stop: called after every evaluation; a stopped search returns its best plan.
      options: fields of :class:`Request`, in place of those of ``request``. Durations may be texts
        (``budget_s="500ms"``), ``constraints`` the path of a TOML file, ``start`` a plan or its file.

    Raises:
      InvalidInputError: an argument is out of range.
      PolicyError: the policy's file is missing, malformed or of another version.
      InfeasibleError: no valid plan; the message names op, demand and limit.
    """
    on, on_graph = as_target(target), as_loaded(graph, Bindings.of(dims, values, trips, states), precision)
    costed_graph = costed(on_graph, on, costs)
    request = as_request(request, options, on_graph)
    store = PlanStore(remember) if isinstance(remember, str | Path) else remember
    if request.start is None and store is not None:
        request = replace(request, start=store.nearest(costed_graph, on, request.minimised))
    result = optimize_request(
        costed_graph, on, request, on_step=on_step, on_improvement=on_improvement, should_stop=should_stop
    )
    if store is not None:
        store.keep(costed_graph, on, result)
    return result
