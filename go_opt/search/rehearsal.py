"""A search on a graph of five ops before the clock of the real one starts: no kernel compiles on its time.

For what :mod:`go_opt.search.compiling.warm_up` does not run: makespans, targets that are no ring,
users' constraints.
"""

from __future__ import annotations

from functools import cache
from itertools import islice
from typing import Final

from go_opt.env import Target, load_target
from go_opt.result import Decide, Objective, Request
from go_opt.search.compiling.kernel_cache import are_compiled
from go_opt.search.compiling.three_ops import three_ops
from go_opt.search.portfolio import proposals
from go_opt.search.state import Search
from go_opt.solver import ChipLimit, Colocate, CutAfter, Forbid, Pin
from go_opt.solver.problem.user_constraints import UserConstraint

_EVALUATIONS: Final = 60  # until every method has had a turn
_LIKE: Final[dict[type, UserConstraint]] = {
    Pin: Pin("op0", 0),
    Forbid: Forbid("op1", (0,)),
    Colocate: Colocate(("op3", "op4")),
    CutAfter: CutAfter("op0"),
    ChipLimit: ChipLimit(0, at_most_bytes=1e6, at_most_s=1.0),
}


def rehearse(target: Target, request: Request) -> None:
    """Compile, or load, what a search for ``request`` runs on ``target``."""
    is_plain = request.objective == "throughput" and target.goes_forward and not request.constraints
    if not is_plain:
        kinds = frozenset(type(constraint) for constraint in request.constraints)
        _rehearse(target.goes_forward, request.objective, request.decide, request.relays, kinds)


@cache
def _rehearse(
    goes_forward: bool, objective: Objective, decide: Decide, relays: bool, kinds: frozenset[type]
) -> None:
    target = load_target("mcm-2x2" if goes_forward else "gpu-2")
    constraints = tuple(like for kind, like in _LIKE.items() if kind in kinds)
    request = Request(
        objective, max_evaluations=_EVALUATIONS, decide=decide, relays=relays, constraints=constraints
    )
    # Ops that do not fuse: with one kernel there is nothing to propagate.
    search = Search(three_ops(5, "Sort"), target, request, None, lambda step: None)
    for proposal in islice(proposals(search), _EVALUATIONS):
        if proposal is not None:
            search.consider(proposal)
        elif objective == "throughput" and goes_forward and not are_compiled():
            break  # from here on it waits for a process that compiles what is left
