"""What the portfolio proposes, in order; :mod:`go_opt.search.optimizer` evaluates it and decides."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from itertools import islice
from typing import Final

import numpy as np

from go_opt.agents.decoding.proposals import Advice
from go_opt.env import Target, greedy_fusion, loop_roles
from go_opt.errors import InfeasibleError
from go_opt.model.graph import Graph
from go_opt.result import Request
from go_opt.search.compiling.kernel_cache import until_compiled
from go_opt.search.methods.beside import beside, has_core_to_spare
from go_opt.search.methods.copies import joined_kernels
from go_opt.search.methods.guesses import guesses, until_heard
from go_opt.search.methods.improvement import improvements
from go_opt.search.methods.loosening import joint_order_tries, loose_order_tries, with_loose_kernels
from go_opt.search.methods.order_turns import order_turns
from go_opt.search.methods.proposal import (
    IntArray,
    Proposal,
    SearchState,
    Tried,
    better_or_miss,
    copies_are_open,
    has_static_constraints,
)
from go_opt.search.methods.slices import slices, split_slices
from go_opt.search.policies import ask_policy
from go_opt.solver import Passing, earliest_finish_placement, greedy_slicing
from go_opt.solver.constraints.fusion import constrained_fusion
from go_opt.solver.constraints.plans import constrained_starts
from go_opt.solver.orders import fixed_orders

# What the policy needs to get a word in, and the largest graph that is worth waiting for it.
LEAST_EVALUATIONS: Final = 16
LEAST_BUDGET_S: Final = 2.0
MOST_OPS: Final = 60_000
FAVOUR: Final = 3.0  # turns of the method that found the best plan so far, for one of each other
NOTABLY: Final = 0.999  # better, to be the finder: many small steps are no reason to go on
HEAD_START: Final = 0.2  # of the time, for guesses: on small graphs they lose patience long before
FIRST_PROPOSALS: Final = 16  # of the rounds of improvement, where only placements are decided


def policy_takes_part(graph: Graph, target: Target, request: Request) -> bool:
    """Whether a policy has something to decide, and the budget leaves room for it.

    Latency has room for it only where placements are free: orders are then placed by earliest finish.
    """
    return (
        request.decide == "all"
        and (request.objective == "throughput" or not has_static_constraints(target))
        and graph.num_ops <= MOST_OPS
        and (request.max_evaluations is None or request.max_evaluations >= LEAST_EVALUATIONS)
        and request.time_limit_s >= LEAST_BUDGET_S
    )


def proposals(search: SearchState) -> Generator[Proposal | None, None, None]:
    """Proposals from the surest to the most speculative; ends when nothing is left to try.

    ``None`` stands for a method that looked and found nothing better, or that waits, so
    that the caller can stop there too.
    """
    graph, target, request = search.graph, search.target, search.request
    default_order = np.arange(graph.num_ops, dtype=np.int32)
    one_each = default_order
    fused = constrained_fusion(search.asked, default_order, greedy_fusion(loop_roles(graph), default_order))
    decided = one_each if request.decide == "placement" else fused
    yield from _greedy(search, default_order, decided)
    yield from slices(search, "slice: default order", default_order, decided)
    if search.asked.constraints:
        yield from _constrained(search, default_order, decided)
    # From here on the first plan cannot be delayed any more.
    asked = None if search.policy is None else ask_policy(search.policy, graph, target)
    if not has_static_constraints(target):
        yield from _one_kind(target, default_order, decided)
        yield from _earliest_finish(search, "default order", default_order, decided)
        if request.decide == "all":
            order, joined = joined_kernels(search, fused)
            yield from _earliest_finish(search, "joined kernels", order, joined)
            yield from slices(search, "slice: joined kernels", order, joined)
            fused = joined if copies_are_open(target, request) else fused
    if request.decide == "placement":
        yield from _until_kernels_are_there(search)
        for name, order in (("default order", default_order), *fixed_orders(graph, decided)):
            yield from split_slices(search, f"slice: {name}", order, decided)
        rounds = improvements(search)
        # Most graphs are solved in these: the search over orders need not begin.
        yield from islice(rounds, FIRST_PROPOSALS)
        yield from _in_turn(search, rounds, *_order_searches(search, decided))
        return
    joint = joint_order_tries(search)
    if has_core_to_spare(search):
        yield from beside(search, _joint_methods(search, fused, asked), joint)
    else:
        yield from _joint_methods(search, fused, asked, _turns(search, joint))


def _joint_methods(
    search: SearchState,
    fused: IntArray,
    asked: Future[Advice | None] | None,
    *others: Iterator[Proposal | None],
) -> Iterator[Proposal | None]:
    """Where order, kernels and placement are open: fixed orders, then methods in turn with ``others``."""
    graph, target, request = search.graph, search.target, search.request
    default_order = one_each = np.arange(graph.num_ops, dtype=np.int32)
    for name, order in fixed_orders(graph, fused):
        if not has_static_constraints(target):
            yield from _earliest_finish(search, name, order, fused)
    for name, order in fixed_orders(graph, fused):
        yield from slices(search, f"slice: {name}", order, fused)
    yield from slices(search, "slice: default order, unfused", default_order, one_each)
    for name, order in (("default order", default_order), *fixed_orders(graph, fused)):
        yield from split_slices(search, f"slice: {name}", order, fused)
    if asked is not None and request.max_evaluations is not None:
        # Counted in evaluations, whose turn it is may not depend on how long the policy takes.
        yield from until_heard(search, asked)
    yield from _until_kernels_are_there(search)
    methods = [guesses(search, fused, asked), improvements(search), *_order_searches(search, fused)]
    methods += [_turns(search, loose_order_tries(search, fused)), *others]
    yield from with_loose_kernels(search, _in_turn(search, *methods, head_start=HEAD_START))


def _until_kernels_are_there(search: SearchState) -> Iterator[None]:
    """Counted in evaluations, what is tried may not depend on how long kernels take to compile either."""
    request = search.request
    is_counted = request.max_evaluations is not None
    if is_counted and request.objective == "throughput" and search.target.goes_forward:
        yield from until_compiled()


def _in_turn(
    search: SearchState, *methods: Iterator[Proposal | None], head_start: float = 0.0
) -> Iterator[Proposal | None]:
    """The methods in turn, as long as any has something to propose.

    Counted in evaluations, one of each; in time, whichever has had the least of it, the first
    before all others for the part ``head_start`` of the time. Who found the
    best plan so far goes on finding, most often: what it uses counts as less.
    """
    is_counted = search.request.max_evaluations is not None
    used = [0.0] * len(methods)
    if not is_counted:
        used[0] -= head_start * search.request.time_limit_s
    left = list(range(len(methods)))
    finder = -1
    while left:
        turn = min(left, key=used.__getitem__)
        started_s, before_s = time.monotonic(), search.best_s
        proposal = None
        try:
            # The evaluation of what is proposed is its method's as well.
            yield (proposal := next(methods[turn]))
        except StopIteration:
            left.remove(turn)
        if search.best_s < before_s * NOTABLY:
            finder = -1 if proposal is None else turn  # or another thread's plan is the best now
        spent = 1.0 if is_counted else time.monotonic() - started_s
        is_favoured = turn == finder and used[turn] >= 0.0  # a head start is used up as it is
        used[turn] += spent / FAVOUR if is_favoured else spent


def _order_searches(search: SearchState, group: IntArray) -> list[Iterator[Proposal | None]]:
    """Over orders sliced with relays, where they are open, and without."""
    passings: set[Passing] = {search.passing}
    if search.passing == "relayed":
        passings.add("adjacent")
    return [order_turns(search, group, passing) for passing in sorted(passings, reverse=True)]


def _turns(search: SearchState, tries: Iterator[Tried]) -> Iterator[Proposal | None]:
    for method, plan in tries:
        yield better_or_miss(search, method, plan)


def _greedy(search: SearchState, order: IntArray, group: IntArray) -> Iterator[Proposal]:
    is_adjacent = search.target.constraints.triangle != "off"
    slicing = greedy_slicing(search.tables, order, group, adjacent=is_adjacent)
    yield Proposal("greedy", slicing.placement, order, group)


def _constrained(search: SearchState, order: IntArray, group: IntArray) -> Iterator[Proposal]:
    """Placements of the propagation engine, close to the best plan so far; a proof where there are none."""
    is_open = search.request.decide == "all"
    starts = constrained_starts(
        search.asked,
        order,
        group,
        passing=search.passing,
        guides=search.wishes,
        fusion_is_open=is_open,
        seed=search.request.seed % 2**31,
    )
    if starts.conflict is not None:
        raise InfeasibleError(starts.why_none(), is_proven=True, conflict=tuple(map(str, starts.conflict)))
    if starts.limit_reached:
        search.explain_failure(starts.why_none())
    for placement, along, kernels in zip(starts.placement, starts.order, starts.fusion_group, strict=True):
        yield Proposal("constraints", placement, along if is_open else order, kernels)


def _one_kind(target: Target, order: IntArray, group: IntArray) -> Iterator[Proposal]:
    """Everything on one chip, of each kind in turn: no transfers at all."""
    for kind, description in enumerate(target.kinds):
        chip = int(np.argmax(target.chip_kind == kind))
        placement = np.full(len(order), chip, dtype=np.int32)
        yield Proposal(f"one {description.name}", placement, order, group)


def _earliest_finish(search: SearchState, name: str, order: IntArray, group: IntArray) -> Iterator[Proposal]:
    placement = earliest_finish_placement(search.tables, order, group, search.tables.num_chips)
    yield Proposal(f"earliest finish: {name}", placement, order, group)
