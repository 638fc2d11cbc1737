"""The lower bound of a request, and the certificate of a plan against it."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import Final

from go_opt.common.arrays import BoolArray
from go_opt.env import Target, divided_tables, loop_roles
from go_opt.model.graph import Graph
from go_opt.result import OPTIMAL_GAP, OptimizeResult, Request, Status
from go_opt.search.methods.events import may_replicate
from go_opt.search.shared.context import errors_are_raised
from go_opt.solver import Bound, latency_bound, throughput_bound

_SLACK: Final = 1e-9  # relative: sums in different orders
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Certificate:
    """How good a plan is proven to be; the fields are those of the answer."""

    status: Status
    lower_bound_s: float
    gap: float


def lower_bound(graph: Graph, target: Target, request: Request, divisible: BoolArray | None = None) -> Bound:
    """The lower bound of the objective over all decisions that ``request`` leaves open.

    Args:
      divisible: [N] True for ops that may be split; None: no op.
    """
    if request.fidelity != "analytical":
        return Bound(0.0, f"none is proven at the {request.fidelity} fidelity")
    tables, roles = divided_tables(graph, target, divisible), loop_roles(graph, target.kernel_patterns)
    is_open = request.decide == "all"
    if request.objective == "latency":
        return latency_bound(graph, tables, roles, fusion_is_open=is_open, divisible=divisible)
    replicates = may_replicate(target, request)
    return throughput_bound(
        graph, tables, roles, fusion_is_open=is_open, replication_is_open=replicates, divisible=divisible
    )


def certificate(objective_s: float, request: Request, bound: Bound) -> Certificate:
    """The certificate of a plan that reaches ``objective_s``."""
    bound_s = bound.below(objective_s)
    gap = _gap(objective_s, bound_s)
    if request.fidelity != "analytical":
        return Certificate("HEURISTIC", bound_s, gap)
    return Certificate("OPTIMAL" if gap <= OPTIMAL_GAP else "FEASIBLE", bound_s, gap)


def against_bound(result: OptimizeResult, request: Request, bound: Bound) -> OptimizeResult:
    """``result`` with its certificate against ``bound``."""
    proven = certificate(result.objective_s, request, bound)
    return replace(
        result,
        status=proven.status,
        lower_bound_s=proven.lower_bound_s,
        bound_reason=bound.reason,
        gap=proven.gap,
    )


def without_false_claim(result: OptimizeResult) -> OptimizeResult:
    """``result``; without its bound if that is above its own objective, which is an error of ours.

    Raises:
      AssertionError: there is such an error, and ``GO_OPT_RAISES`` is set.
    """
    if result.lower_bound_s <= result.objective_s * (1.0 + _SLACK):
        return result
    error = (
        f"the bound of {result.lower_bound_s:.9g} s ({result.bound_reason}) is above the {result.objective} "
        f"objective of {result.objective_s:.9g} s by {result.method!r}"
    )
    if errors_are_raised():
        raise AssertionError(error)
    _log.error("%s; the answer has no bound", error)
    reason = "none is proven: the bound that was found is false"
    return replace(result, status="HEURISTIC", lower_bound_s=0.0, bound_reason=reason, gap=math.inf)


def _gap(reached_s: float, bound_s: float) -> float:
    if bound_s > 0:
        return reached_s / bound_s - 1.0
    return 0.0 if reached_s == 0 else math.inf
