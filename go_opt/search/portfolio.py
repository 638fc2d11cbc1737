"""The methods of the search, in the order in which they run, and which is next, for how long.

The table is the portfolio. A method is a generator of events (:mod:`go_opt.search.methods.events`). Its
``figure`` names its entry in "What does each method earn?" of docs/benchmarks.md: the loss of a search
without it. Or it says why there is none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final, Literal

from go_opt.env import Target
from go_opt.errors import GoOptError
from go_opt.result import Request
from go_opt.search.compiling.kernel_cache import are_compiled
from go_opt.search.methods import first_plans, schedules
from go_opt.search.methods.events import Event, SearchView, has_static_constraints, waiting_until
from go_opt.search.methods.first_plans import Start
from go_opt.search.methods.given import given
from go_opt.search.methods.guesses import evolved, guesses, policy_alone, until_advised
from go_opt.search.methods.refining import improvements
from go_opt.search.placements import enumerated, is_searched, local_search
from go_opt.search.shared.policies import ask_policy

FAVOUR: Final = 3.0  # turns of the finder of the best plan, for each turn of another method
NOTABLY: Final = 0.999  # a finder improves the objective to this share: tiny gains do not count
HEAD_START: Final = 0.2  # share of the time limit for guesses first; on small graphs they end much earlier
MISSION: Final = "the mission names it"
FIRST_PLAN: Final = "graphs that have no plan without it"
REFERENCE: Final = "the reference of rewards and comparisons"
MOST_ORDERED_OPS: Final = 256  # by beam search, which takes the square of their number
When = Literal[
    "first",  # one after the other, before anything that could delay the first plan
    "next",  # one after the other, after the first ones
    "in turn",  # alternating until all have ended
]


@dataclass(frozen=True)
class Method:
    """A row of the table."""

    name: str
    when: When
    serves: Callable[[SearchView], bool]
    events: Callable[[Start], Iterator[Event]]
    figure: str

    def run(self, start: Start) -> Iterator[Event]:
        """Its events; if it fails, the search goes on without it."""
        with start.search.context.tolerates(self.name, GoOptError):
            yield from self.events(start)


def serving(search: SearchView, when: When) -> list[Method]:
    """The methods of the table that run at ``when`` and serve this search."""
    return [method for method in METHODS if method.when == when and method.serves(search)]


def is_throughput(search: SearchView) -> bool:
    return search.request.objective == "throughput"


def is_along_ring(search: SearchView) -> bool:
    """Whether the objective is the interval, and plans are slices along a ring or chain."""
    return is_throughput(search) and search.target.goes_forward


def is_open(search: SearchView) -> bool:
    """Whether the search also decides orders and kernels."""
    return search.request.decide == "all"


def has_orders(search: SearchView) -> bool:
    """Whether slicing other orders helps: along a ring it also gives other placements."""
    return is_open(search) or is_along_ring(search)


def is_guessed(search: SearchView) -> bool:
    """Whether slices of random orders help: not where one sequence waits, and schedules are annealed."""
    is_alone = search.graph.has_scope("sequence") and search.graph.sequences == 1
    return has_orders(search) and not (is_alone and is_for_latency(search) and schedules.is_scheduled(search))


def is_restricted(search: SearchView) -> bool:
    """Whether some chips may not run some ops, or the user has other constraints."""
    return bool(search.requested.constraints) or not bool(search.tables.can_run.all())


def is_small(search: SearchView) -> bool:
    return search.graph.num_ops <= MOST_ORDERED_OPS


def is_free(search: SearchView) -> bool:
    return not has_static_constraints(search.target)


def is_for_latency(search: SearchView) -> bool:
    """Whether the makespan decides, orders and kernels are open, and no static constraint holds.

    It decides if it is the objective, or if there are fewer sequences than chips: then these wait for them.
    """
    graph = search.graph
    is_waiting = graph.has_scope("sequence") and graph.sequences < search.target.num_chips
    return (not is_throughput(search) or is_waiting) and is_free(search) and is_open(search)


METHODS: Final = (
    # The start plan that the user gives.
    Method("start", "first", lambda v: v.request.start is not None, lambda s: given(s.search), MISSION),
    # Chips filled along the default order with equal shares of the work: the reference of comparisons.
    Method("greedy", "first", lambda v: True, first_plans.greedy, REFERENCE),
    Method("slicing", "first", lambda v: True, first_plans.sliced, MISSION),
    # Placements of the propagation engine that keep the user's constraints and run every op on a kind that
    # can, or a proof that there are none.
    Method("constraints", "first", is_restricted, first_plans.constrained, MISSION),
    # Where memories are so small that these find no plan: an order with few live bytes.
    Method("least memory", "first", is_small, first_plans.least_memory, FIRST_PLAN),
    # Where all chips have to be used, and no slicing uses them: placements of the engine, or the proof.
    Method("all chips", "first",
           lambda v: v.target.constraints.no_skip == "all" and not is_restricted(v),
           first_plans.on_all_chips, MISSION),
    # Tiny instances: every plan, and the proof.
    Method("enumeration", "next", lambda v: v.request.fidelity == "analytical",
           lambda s: enumerated(s.search), "enumeration"),
    # Slicings of parts that only the last ops join, on chips of their own: two towers, for example.
    Method("towers", "next",
           lambda v: v.forwarding == "adjacent" and v.target.constraints.triangle != "adjacent",
           first_plans.sliced_towers, "towers"),
    # All ops on one chip, for each kind of chip.
    Method("one kind", "next", is_free, first_plans.one_kind, "one kind"),
    # Each kernel on the chip where it finishes earliest, along the default order.
    Method("earliest finish", "next", is_free, first_plans.earliest_finish, "earliest finish"),
    # Earliest finish and slicing, with kernels joined wherever the rules allow.
    Method("joined kernels", "next", lambda v: is_free(v) and is_open(v),
           first_plans.joined, "joined kernels"),
    # Earliest finish and slicing of a few other orders, and slicing with one kernel per op.
    Method("fixed orders", "next", has_orders, first_plans.sliced_orders, "fixed orders"),
    # Earliest finish along upward ranks.
    Method("upward ranks", "next", is_for_latency, schedules.ranked, "upward ranks"),
    # List schedules of partitions with little traffic between chips.
    Method("partitions", "next", lambda v: is_for_latency(v) and v.target.num_chips > 1,
           schedules.partitioned, "partitions"),
    # Annealing of whole schedules.
    Method("annealed schedules", "in turn", lambda v: is_for_latency(v) and schedules.is_scheduled(v),
           lambda s: schedules.annealed(s.search), "annealed schedules"),
    # Annealing of placements, where they alone are open: for the makespan, and without relays.
    Method("local search", "in turn", is_searched, lambda s: local_search(s.search),
           "local search"),
    # Slicings of random orders, alternating with the policy's plans.
    Method("guesses", "in turn", is_guessed,
           lambda s: guesses(s.search, s.best_kernels, s.advice), MISSION),
    # Genetic search over orders and kernels together.
    Method("orders and kernels", "in turn",
           lambda v: is_along_ring(v) and is_open(v) and not (v.replicates and v.requested.num_stages),
           lambda s: evolved(s.search), "orders and kernels"),
    # Refinement, which finds placements and proves a bound.
    Method("rounds of improvement", "in turn",
           lambda v: is_along_ring(v) and bool(v.tables.can_run.any(axis=0).all()),
           lambda s: improvements(s.search), MISSION),
)  # fmt: skip


def policy_takes_part(target: Target, request: Request) -> bool:
    """Whether a policy has anything to decide.

    For latency it takes part only if all placements are legal: its orders are placed by earliest finish.
    """
    is_free = request.objective == "throughput" or not has_static_constraints(target)
    return request.decide == "all" and is_free


def portfolio_events(
    search: SearchView, policy: Path | None = None, *, is_alone: bool = False
) -> Generator[Event, None, None]:
    """Yields the events of all methods, the surest first, until no method has any left.

    Args:
      policy: the file of the policy that takes part.
      is_alone: whether only the policy takes part.
    """
    if policy is not None and is_alone:
        yield from policy_alone(search, ask_policy(policy, search.graph, search.target))
        return
    start = Start(search)
    for method in serving(search, "first"):
        yield from method.run(start)
    # The policy starts only now, so that it cannot delay the first plan.
    start.advice = None if policy is None else ask_policy(policy, search.graph, search.target)
    following = chain.from_iterable(method.run(start) for method in serving(search, "next"))
    beginning = search.request.start
    # Where the start is the best of what these found for a graph like this one, they have a turn as others.
    if beginning is None or not beginning.has_first:
        yield from following
    if search.request.max_evaluations is not None:
        # With a limit on evaluations, turns must not depend on how long the policy or the
        # compilation of kernels takes.
        if start.advice is not None:
            yield from until_advised(search, start.advice)
        if is_along_ring(search) or is_for_latency(search):
            yield from waiting_until(are_compiled)
    turns = [method.run(start) for method in serving(search, "in turn")]
    head_start = HEAD_START if search.request.decide == "all" else 0.0
    yield from _in_turn(search, [*turns, following], head_start)


def _in_turn(search: SearchView, turns: Sequence[Iterator[Event]], head_start: float) -> Iterator[Event]:
    """Yields one event at a time, of the method that has used least, until no method has any.

    With a limit on evaluations, each event uses 1; otherwise it uses its seconds, and the first
    method runs alone for the share ``head_start`` of the time limit. The finder of the best plan is
    likely to find better ones, so its events count a third (1 / ``FAVOUR``).
    """
    is_counted = search.request.max_evaluations is not None
    used = [0.0] * len(turns)
    if head_start and not is_counted:
        used[0] -= head_start * search.request.time_limit_s
    left = list(range(len(turns)))
    finder = -1
    while left:
        turn = min(left, key=used.__getitem__)
        started_s, before_s = time.monotonic(), search.best_s
        try:
            # The evaluation of a proposal counts as its method's time.
            yield next(turns[turn])
        except StopIteration:
            left.remove(turn)
        if search.best_s < before_s * NOTABLY:
            finder = turn
        spent = 1.0 if is_counted else time.monotonic() - started_s
        is_favoured = turn == finder and used[turn] >= 0.0  # a head start is not extended
        used[turn] += spent / FAVOUR if is_favoured else spent
