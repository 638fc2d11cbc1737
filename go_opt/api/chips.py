"""How many chips a model needs: for ``go-opt chips`` and ``optimize --fewest-chips``.

A plan for n chips uses only the first n chips of the package. It is also a plan for more chips, so
the optimal interval never grows with the number of chips. A lower bound above the requested
interval proves that n chips are too few. A search that misses the interval proves nothing. The
answer says which of the two cases applies. A proof holds for the graph as sent and for the rewrites that the
search chose; other rewrites might allow less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from go_opt.api.inputs import as_target
from go_opt.common.units import format_duration
from go_opt.env import Target
from go_opt.env.target import first_chips
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.given_request import as_request, takes_options
from go_opt.model.graph import Graph
from go_opt.result import OptimizeResult, Request, Step
from go_opt.search.bounds import bound_over_states, may_keep_states, refuse_unreachable
from go_opt.search.final_simulation import on_package
from go_opt.search.optimizer import optimize_request
from go_opt.search.rewriting.choices import may_rewrite, open_graphs
from go_opt.search.splits.ways import divisible_ops

_Count = Callable[[int], "ChipCount"]
_Search = Callable[[Graph, Target, Request], OptimizeResult]  # a search here, or at a service
TOLERANCE: Final = 1e-9  # relative, of an interval


@dataclass(frozen=True, eq=False)
class ChipCount:
    """The result for one number of chips."""

    chips: int  # available to plans
    result: OptimizeResult | None  # on the whole package; its bound is for this many chips. None: no plan
    is_proven: bool  # whether the result is proven optimal, or proven not to exist
    reason: str  # why there is no plan; else empty


@dataclass(frozen=True, eq=False)
class FewestChips:
    """The smallest number of chips for which the search found a fast enough plan."""

    result: OptimizeResult  # with the plan
    chips: int  # used by the plan
    is_proven: bool  # whether one chip less is proven to be too few
    tried: tuple[ChipCount, ...]  # ascending

    @property
    def claim(self) -> str:
        """One sentence that says whether fewer chips are proven to be too few."""
        if self.chips == 1:
            return "there is no package with fewer."
        fewer = "1 chip is" if self.chips == 2 else f"{self.chips - 1} are"
        if self.is_proven:
            return f"{fewer} proven to be too few."
        return f"for {self.chips - 1} none was found, which proves nothing."


@takes_options
def fewest_chips(
    graph: Graph,
    target: Target | str | Path = "mcm-6x6",
    request: Request | None = None,
    *,
    rate_per_s: float | None = None,
    on_count: Callable[[ChipCount], None] = lambda found: None,
    on_step: Callable[[Step], None] = lambda step: None,
    should_stop: Callable[[], bool] = lambda: False,
    **options: Any,
) -> FewestChips:
    """Finds the fewest chips whose plan meets ``rate_per_s`` and the latency limit of ``request``.

    Bisects over the number of chips; skips numbers that a lower bound refutes.

    Args:
      graph: from :func:`go_opt.load`.
      request: options of each search; the budget applies to each number of chips that is tried.
      rate_per_s: inferences per second, predicted and simulated; None: only the latency is limited.
      on_count: called with the result for each number of chips that was searched.
      should_stop: called after every evaluation; a stopped search answers with its best plan so far.
      options: fields of :class:`Request`, in place of those of ``request``, as :func:`optimize` takes them.

    Raises:
      InfeasibleError: even with all chips no plan meets the limits.
      InvalidInputError: no rate or latency limit is given, or the objective is not throughput.
      TargetError: the target cannot be divided.
    """
    on, requested = as_target(target), as_request(request, options, graph)
    longest_s = required_interval_s(requested, rate_per_s) * (1 + TOLERANCE)
    count = _counter(graph, on, requested, on_step, should_stop)
    if requested.objective != "throughput":
        raise InvalidInputError("the fewest chips are those of objective throughput.", field="objective")
    tried: dict[int, ChipCount] = {}

    def reaches(chips: int) -> OptimizeResult | None:
        tried[chips] = found = count(chips)
        on_count(found)
        return found.result if found.result and found.result.longer_interval_s <= longest_s else None

    def is_refuted(chips: int) -> bool:
        part = first_chips(on, chips)
        return all(
            _is_refuted(one, part, requested, longest_s) for one in open_graphs(graph, part, requested)
        )

    def is_proof(chips: int) -> bool:
        """Whether too slow a plan, or none, proves that so many chips are too few."""
        result = tried[chips].result
        if result is None:
            return tried[chips].is_proven
        return result.lower_bound_s > longest_s and (not may_rewrite(requested) or is_refuted(chips))

    best = reaches(on.num_chips)
    if best is None:
        raise _unreachable(tried[on.num_chips], longest_s, is_proven=is_proof(on.num_chips))
    refuted = 0  # the largest number of chips proven to be too few
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
        if is_proof(middle):
            refuted = middle
    by_count = tuple(tried[chips] for chips in sorted(tried))
    return FewestChips(best, enough, enough - 1 == refuted, by_count)


def required_interval_s(request: Request, rate_per_s: float | None) -> float:
    """The longest interval that :func:`fewest_chips` allows; infinite if only the latency is limited.

    Raises:
      InvalidInputError: no rate or latency limit is given, or the rate is out of range.
    """
    if rate_per_s is None and request.max_latency_s is None:
        raise InvalidInputError("the fewest chips for what: give a rate or a latency.", field="rate_per_s")
    if rate_per_s is not None and not (math.isfinite(rate_per_s) and rate_per_s > 0):
        raise InvalidInputError(f"rate_per_s must be above zero, not {rate_per_s}.", field="rate_per_s")
    return math.inf if rate_per_s is None else 1.0 / rate_per_s


@takes_options
def chip_counts(
    graph: Graph,
    target: Target | str | Path = "mcm-6x6",
    request: Request | None = None,
    *,
    counts: Sequence[int] | None = None,
    on_step: Callable[[Step], None] = lambda step: None,
    should_stop: Callable[[], bool] = lambda: False,
    search: _Search | None = None,
    **options: Any,
) -> Iterator[ChipCount]:
    """Yields the result for each number of chips once it is known; by default 1, 2, 4, … and all.

    Args and errors as :func:`fewest_chips`; a number above the target's chips raises TargetError.

    Args:
      search: for a plan on the first chips of the target; by default in this process.
    """
    on = as_target(target)
    doubled = [2**power for power in range(on.num_chips.bit_length())]
    count = _counter(graph, on, as_request(request, options, graph), on_step, should_stop, search)
    return map(count, sorted({*doubled, on.num_chips}) if counts is None else counts)


def _counter(
    graph: Graph,
    target: Target,
    request: Request,
    on_step: Callable[[Step], None],
    should_stop: Callable[[], bool],
    search: _Search | None = None,
) -> _Count:
    """Returns a function that searches for a plan on the first ``chips`` chips of ``target``."""

    def here(graph: Graph, part: Target, request: Request) -> OptimizeResult:
        return optimize_request(graph, part, request, on_step=on_step, should_stop=should_stop)

    def count(chips: int) -> ChipCount:
        part = first_chips(target, chips)
        try:
            result = (search or here)(graph, part, request)
        except InfeasibleError as error:
            return ChipCount(chips, None, error.is_proven, str(error))
        return ChipCount(chips, on_package(graph, target, request, result), result.status == "OPTIMAL", "")

    return count


def _is_refuted(graph: Graph, target: Target, request: Request, longest_s: float) -> bool:
    """Whether a lower bound proves that no plan has an interval of at most ``longest_s``."""
    divisible = divisible_ops(graph, target, request)
    try:
        if not divisible.any() and not may_keep_states(graph, request):
            refuse_unreachable(graph, target, request)
    except InfeasibleError:
        return True
    return bound_over_states(graph, target, request, divisible).seconds > longest_s


def _unreachable(found: ChipCount, interval_s: float, *, is_proven: bool) -> InfeasibleError:
    if found.result is None:
        return InfeasibleError(found.reason, is_proven=found.is_proven)
    requested = f"an interval of {format_duration(interval_s)}"
    bound = format_duration(found.result.lower_bound_s or math.inf)
    known = f"no plan is faster than {bound}" if is_proven else f"the lower bound is {bound}"
    return InfeasibleError(
        f"no plan with {requested} was found on {found.chips} chips: the best takes "
        f"{format_duration(found.result.longer_interval_s)}, {known}.",
        is_proven=is_proven,
    )
