"""The methods of the search, in the order in which they take part: this table is the portfolio.

:mod:`go_opt.search.portfolio` runs it. A method is a generator of events
(:mod:`go_opt.search.methods.events`). Its figure is the row of "What each method earns" in
docs/benchmarks.md that says what a search loses without it, or why it stays without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from go_opt.search.methods import first_plans, orders, schedules
from go_opt.search.methods.events import Event, SearchView, has_static_constraints
from go_opt.search.methods.first_plans import Start
from go_opt.search.methods.given import given
from go_opt.search.methods.guesses import guesses
from go_opt.search.methods.improvement import improvements, with_clones
from go_opt.search.methods.slices import slices

MISSION: Final = "the mission names it"
REFERENCE: Final = "what rewards and comparisons refer to"
When = Literal[
    "first",  # one after the other, before anything that could delay a plan
    "next",  # one after the other
    "in turn",  # until none has anything left
    "background",  # on a second core, where the time is what is short; else in turn
    "after a round",  # of improvement that found nothing better
]


@dataclass(frozen=True)
class Method:
    """A row of the table."""

    name: str
    when: When
    serves: Callable[[SearchView], bool]
    events: Callable[[Start], Iterator[Event]]
    figure: str


def serving(search: SearchView, when: When) -> list[Method]:
    """The methods of the table that take part then."""
    return [method for method in METHODS if method.when == when and method.serves(search)]


def is_throughput(search: SearchView) -> bool:
    return search.request.objective == "throughput"


def is_along_ring(search: SearchView) -> bool:
    """Whether the interval is asked for, of plans that are slices along a ring."""
    return is_throughput(search) and search.target.goes_forward


def is_open(search: SearchView) -> bool:
    """Whether orders and kernels are to be decided as well."""
    return search.request.decide == "all"


def has_orders(search: SearchView) -> bool:
    """Whether slicings of other orders are of use: along a ring they place in other ways, too."""
    return is_open(search) or is_along_ring(search)


def is_free(search: SearchView) -> bool:
    return not has_static_constraints(search.target)


def is_for_latency(search: SearchView) -> bool:
    """Whether one execution is asked for, and nothing but the time it takes says where ops run."""
    return not is_throughput(search) and is_free(search) and is_open(search)


def _rounds(s: Start) -> Iterator[Event]:
    others = serving(s.search, "after a round")
    return improvements(s.search, lambda: (event for method in others for event in method.events(s)))


METHODS: Final = (
    # Chips filled along the default order up to equal shares of the work: the reference of comparisons.
    Method("greedy", "first", lambda v: True, first_plans.greedy, REFERENCE),
    # The plan that the user gives to begin with.
    Method("start", "first", lambda v: v.request.start is not None, lambda s: given(s.search), MISSION),
    # The cheapest cuts of the default order: without relays, with relays, into replicated stages.
    Method("slicing", "first", lambda v: True,
           lambda s: slices(s.search, "slice: default order", s.order, s.kernels), MISSION),
    # Placements of the propagation engine that keep the user's constraints, or the proof that none does.
    Method("constraints", "first", lambda v: bool(v.asked.constraints), first_plans.constrained, MISSION),
    # Everything on one chip, of each kind.
    Method("one kind", "next", is_free, first_plans.one_kind, "one kind"),
    # Each op where it finishes earliest, along the default order.
    Method("earliest finish", "next", is_free, first_plans.earliest_finish, "earliest finish"),
    # The same, and copies of a whole plan, with kernels joined wherever they may be.
    Method("joined kernels", "next", lambda v: is_free(v) and is_open(v),
           first_plans.joined, "joined kernels"),
    # The same of a few other orders, and of one kernel for each op.
    Method("fixed orders", "next", has_orders, first_plans.sliced_orders, "fixed orders"),
    # Earliest finish along upward ranks.
    Method("upward ranks", "next", is_for_latency, schedules.ranked, "upward ranks"),
    # Annealing of whole schedules.
    Method("annealed schedules", "in turn", lambda v: is_for_latency(v) and schedules.is_scheduled(v),
           lambda s: schedules.annealed(s.search), "annealed schedules"),
    # Random orders, sliced, and the policy's plans in turn with them.
    Method("guesses", "in turn", has_orders,
           lambda s: guesses(s.search, s.best_kernels, s.advice), MISSION),
    # The refinement that finds placements and proves a bound.
    Method("rounds of improvement", "in turn",
           lambda v: is_along_ring(v) and bool(v.tables.can_run.any(axis=0).all()), _rounds, MISSION),
    # Cheap ops run once more, on the chips that read what they make.
    Method("clones", "after a round", lambda v: v.passing == "relayed",
           lambda s: with_clones(s.search), "clones"),
    # Genetic search over orders and kernels at once.
    Method("orders and kernels", "background", lambda v: is_along_ring(v) and is_open(v),
           lambda s: orders.joint_keys(s.search), "orders and kernels"),
)  # fmt: skip
