"""Searches a graph of five ops before the clock starts, so that kernels do not compile on the search's time.

It loads kernels that :mod:`go_opt.search.compiling.warm_up` does not: for makespans, targets that are not
rings, user constraints, and chips that must all be used or cannot run all ops.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Final

from go_opt.env import Target, cost_tables, load_target
from go_opt.model.graph import Graph
from go_opt.result import Request
from go_opt.search.compiling.kernel_cache import are_compiled
from go_opt.search.compiling.warm_up import Families, three_ops
from go_opt.search.methods.events import Waiting
from go_opt.search.portfolio import portfolio_events
from go_opt.search.state import Search
from go_opt.solver import ChipLimit, Colocate, CutAfter, Forbid, Pin, Stages
from go_opt.solver.problem.user_constraints import UserConstraint

_EVALUATIONS: Final = 60  # until every method has had a turn
_LIKE: Final[dict[type, UserConstraint]] = {
    Pin: Pin("op0", 0),
    Forbid: Forbid("op1", (0,)),
    Colocate: Colocate(("op3", "op4")),
    CutAfter: CutAfter("op0"),
    ChipLimit: ChipLimit(0, at_most_bytes=1e6, at_most_s=1.0),
    Stages: Stages(2),
}


def warm_up_search(graph: Graph, target: Target, request: Request) -> Families:
    """The kernels that ``request`` needs on ``target`` besides the common ones, as at most one family."""
    kinds = {type(constraint) for constraint in request.constraints}
    if target.constraints.no_skip == "all" or not cost_tables(graph, target).can_run.all():
        kinds.add(Forbid)  # placements of the propagation engine, as under constraints
    if request.objective == "throughput" and target.goes_forward and not kinds:
        return {}
    like = Request(
        objective=request.objective,
        max_evaluations=_EVALUATIONS,
        decide=request.decide,
        relays=request.relays,
        constraints=tuple(like for kind, like in _LIKE.items() if kind in kinds),
    )
    on = "mcm-2x2" if target.goes_forward else "gpu-2"
    # Ops that do not fuse: a single kernel leaves nothing to propagate.
    return {f"{like} on {on}": partial(rehearse, three_ops(5, "Sort"), load_target(on), like)}


def rehearse(graph: Graph, target: Target, request: Request) -> None:
    """Search until a method waits for compiled kernels; go on past a proven optimum."""
    search = Search(graph, target, request)
    for event in islice(portfolio_events(search), request.max_evaluations):
        if isinstance(event, Waiting) and not are_compiled():
            return  # another process compiles the remaining kernels
        search.take(event)
