"""How many chips a model needs: plans for the first chips of a package alone.

A plan for fewer chips is a plan for more, so what is reached never grows with their number. A
lower bound above what is asked proves that a number of chips is too small; a search that does not
reach it proves nothing, and the answer says which of the two it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from go_opt.common.units import format_duration
from go_opt.env import Target, evaluate_plan
from go_opt.env.copies.splits import planned_graph
from go_opt.env.target import first_chips
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.model.graph import Graph
from go_opt.result import OptimizeResult, Request
from go_opt.search.bounds import lower_bound
from go_opt.search.limits import refuse_unreachable
from go_opt.search.simulated_claim import simulated_answer
from go_opt.search.splits.ways import divisible_ops

Solve = Callable[[Target, Request], OptimizeResult]
TOLERANCE: Final = 1e-9  # of an interval, as a share


@dataclass(frozen=True, eq=False)
class ChipCount:
    """What ``chips`` chips reach."""

    chips: int  # that plans may use
    result: OptimizeResult | None  # on the whole package; its bound is for this many chips. None: no plan
    is_proven: bool  # of no plan, or of one that is too slow: whether it is proven
    reason: str  # of no plan: why


@dataclass(frozen=True, eq=False)
class FewestChips:
    """The fewest chips with which a plan as fast as asked was found."""

    result: OptimizeResult  # its plan
    chips: int  # the plan uses
    is_proven: bool  # whether one chip less is proven to be too few
    tried: tuple[ChipCount, ...]  # ascending

    @property
    def claim(self) -> str:
        """One sentence on how sure it is that fewer chips are not enough."""
        if self.chips == 1:
            return "there is no package with fewer."
        fewer = "1 chip is" if self.chips == 2 else f"{self.chips - 1} are"
        if self.is_proven:
            return f"{fewer} proven to be too few."
        return f"for {self.chips - 1} none was found, which proves nothing."


def default_counts(target: Target) -> list[int]:
    """1, 2, 4, … and all of the chips."""
    doubled = [2**power for power in range(target.num_chips.bit_length())]
    return sorted({*doubled, target.num_chips})


def chip_counts(
    graph: Graph, target: Target, request: Request, counts: Iterable[int], solve: Solve
) -> Iterator[ChipCount]:
    """What each number of chips reaches, one after the other.

    Raises:
      TargetError: the target has no such number of chips, or cannot be divided.
    """
    for count in counts:
        yield _count(graph, target, request, count, solve)


def fewest_chips(
    graph: Graph,
    target: Target,
    request: Request,
    interval_s: float,
    solve: Solve,
    on_count: Callable[[ChipCount], None] = lambda found: None,
) -> FewestChips:
    """The fewest chips with a plan whose interval is at most ``interval_s``, predicted and simulated.

    Numbers of chips that a lower bound refutes are left out; the others are searched by bisection,
    each for the budget of ``request``, whose latency limit holds too.

    Args:
      interval_s: infinite where only the latency is limited.
      on_count: sees each number of chips that was searched.

    Raises:
      InfeasibleError: all chips together do not reach it.
      TargetError: the target cannot be divided.
    """
    if request.objective != "throughput":
        raise InvalidInputError("the fewest chips are those of objective throughput.", field="objective")
    tried: dict[int, ChipCount] = {}

    def reaches(count: int) -> OptimizeResult | None:
        tried[count] = found = _count(graph, target, request, count, solve)
        on_count(found)
        return (
            found.result if found.result and _taken_s(found.result) <= interval_s * (1 + TOLERANCE) else None
        )

    best = reaches(target.num_chips)
    if best is None:
        raise _unreachable(tried[target.num_chips], interval_s)
    refuted = 0  # the most chips that are proven to be too few

    def is_refuted(count: int) -> bool:
        part = first_chips(target, count)
        divisible = divisible_ops(graph, part, request)
        try:
            if not divisible.any():
                refuse_unreachable(graph, part, request)
        except InfeasibleError:
            return True
        return lower_bound(graph, part, request, divisible).seconds > interval_s * (1 + TOLERANCE)

    failed, enough = 0, best.plan.chips_used
    while enough - failed > 1:
        middle = (failed + enough) // 2
        if is_refuted(middle):
            failed = refuted = middle
            continue
        found = reaches(middle)
        if found is not None:
            best, enough = found, found.plan.chips_used
            continue
        failed = middle
        if _is_proof(tried[middle], interval_s):
            refuted = middle
    by_count = tuple(tried[count] for count in sorted(tried))
    return FewestChips(best, enough, enough - 1 == refuted, by_count)


def _count(graph: Graph, target: Target, request: Request, count: int, solve: Solve) -> ChipCount:
    part = first_chips(target, count)
    try:
        result = solve(part, request)
    except InfeasibleError as error:
        return ChipCount(count, None, error.is_proven, str(error))
    return ChipCount(count, _on_whole(graph, target, request, result), result.status == "OPTIMAL", "")


def _on_whole(graph: Graph, target: Target, request: Request, result: OptimizeResult) -> OptimizeResult:
    """``result`` for the first chips of ``target`` as one for all of them."""
    plan = replace(result.plan, target=target.source, target_fingerprint=target.fingerprint)
    graph = planned_graph(graph, plan)
    whole = replace(result, plan=plan, metrics=evaluate_plan(graph, target, plan))
    if result.simulated_interval_s is None:
        return whole
    return simulated_answer(graph, target, request, [whole])


def _taken_s(result: OptimizeResult) -> float:
    """The interval of a plan, the simulated one where it is longer."""
    return max(result.metrics.interval_s, result.simulated_interval_s or 0.0)


def _is_proof(found: ChipCount, interval_s: float) -> bool:
    if found.result is None:
        return found.is_proven
    return found.result.lower_bound_s > interval_s * (1 + TOLERANCE)


def _unreachable(found: ChipCount, interval_s: float) -> InfeasibleError:
    if found.result is None:
        return InfeasibleError(found.reason, is_proven=found.is_proven)
    is_proven = _is_proof(found, interval_s)
    asked = f"an interval of {format_duration(interval_s)}"
    bound = format_duration(found.result.lower_bound_s or math.inf)
    known = f"no plan is faster than {bound}" if is_proven else f"the lower bound is {bound}"
    return InfeasibleError(
        f"no plan with {asked} was found on {found.chips} chips: the best takes "
        f"{format_duration(_taken_s(found.result))}, {known}.",
        is_proven=is_proven,
    )
