"""Moves an op to another chip, and costs the changed plan exactly.

A kernel moves as a whole. If the target requires acyclic dataflow, no producer may be on a later
chip and no reader on an earlier one; such kernels move along, transitively: the *closure*. Tensors
that then pass chips get the relays that the triangle rule requires. Replicated stages keep
their chips: a kernel moves to all chips of another stage, identified by its first chip. A binding
stage may also get one more chip: a free one, or one of another stage that has several. The same
plan is also costed on a slightly better package, and its kernels list-scheduled with one more chip.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.common.units import format_bytes
from go_opt.env import Metrics, Target, cost_tables
from go_opt.env.copies.relays import plan_tables
from go_opt.env.copies.stages import Stages, stages_of, stages_of_sizes
from go_opt.env.cost.tables import CostTables
from go_opt.env.evaluation import evaluate_plan, objectives_s, out_of_memory_reason, plan_makespan_s
from go_opt.env.kernels.numbering import number_kernels
from go_opt.env.model.metrics import objective_s
from go_opt.env.target.topology import build_topology
from go_opt.explanations.terms import Place
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.result import Objective
from go_opt.solver import PlacementProblem, broken_rules, list_scheduling, placement_problem, upward_ranks
from go_opt.solver.copies.relays import needed_relays, relays_of_arrays
from go_opt.solver.problem.problem import TRIANGLE_OFF
from go_opt.solver.problem.user_constraints import UserConstraint
from go_opt.solver.verify.rule_check import RULE_NAMES
from go_opt.solver.verify.verifier import verify

MOST_MOVES: Final = 256  # tried per neighbourhood


@dataclass(frozen=True)
class Cost:
    """The interval of a plan, and the term that binds it."""

    interval_s: float
    bottleneck: str
    bottleneck_bytes: int  # bytes that the link carries; 0 if a chip binds


@dataclass(frozen=True)
class Move:
    """The move of an op to another chip or replicated stage."""

    chip: int  # first chip of the destination stage
    replicas: int  # number of chips of that stage
    ops_along: int  # ops outside its own kernel that must move too
    blocker: Place | None  # the neighbour that restricts the move most; None if no other op must move
    reads_blocker: bool  # True: the op reads ``blocker``; False: ``blocker`` reads the op
    relays: int  # number of relay copies in the changed plan
    forbidden: str  # one sentence: the rule that the changed plan breaks; empty if it is legal
    cost: Cost  # of the changed plan, even if it is forbidden


def plan_cost(graph: Graph, target: Target, plan: Plan) -> tuple[Cost, str]:
    """The cost of a plan, and the reason why it exceeds memory (empty if it fits)."""
    placed = plan_tables(graph, target, plan)
    tables, terms = placed.tables, placed.evaluate()
    binding = int(terms.bottleneck[0])
    link = binding - target.num_chips
    per_byte = (*tables.link_s_per_byte, tables.host_in_s_per_byte, tables.host_out_s_per_byte)
    is_link = 0 <= link < len(per_byte)  # else a chip binds, or the latency of sequences
    carried = terms.link_s[0][link] / per_byte[link] if is_link and per_byte[link] > 0 else 0.0
    cost = Cost(float(terms.interval_s[0]), target.bottleneck_name(binding), round(carried))
    return cost, out_of_memory_reason(tables, terms)


@dataclass(frozen=True)
class Neighbourhood:
    """The moves of the binding terms' kernels to neighbouring stages."""

    tried: int
    legal: int
    best_op: str  # the op of the best legal move; empty if no move is legal
    best: Move | None


class _Edge(NamedTuple):
    blocker: int  # the op at the other end
    op_reads: bool  # whether the moved op reads ``blocker``


class Mover:
    """Moves single ops of a plan; ops outside the closure stay in place."""

    def __init__(
        self, graph: Graph, target: Target, plan: Plan, constraints: Sequence[UserConstraint] = ()
    ) -> None:
        self.graph, self.target, self.plan, self._constraints = graph, target, plan, constraints
        # The triangle rule is off, because relays satisfy it.
        problem: PlacementProblem = placement_problem(graph, target, plan.fusion_group)
        self.stages = _with_free_chips(stages_of(plan.placement, plan.replication), target.num_chips)
        self._problem = problem._replace(
            triangle=TRIANGLE_OFF,
            num_chips=len(self.stages.size),
            chip_kind=problem.chip_kind[self.stages.first_chip],
        )
        self._unit_stage = np.empty(problem.num_units, dtype=np.int32)
        self._unit_stage[problem.unit_of_op] = self.stages.number(plan.placement)

    def move(self, op: int, stage: int) -> Move:
        """The plan with the kernel of ``op`` and its closure moved to ``stage``, an index into ``stages``.

        Without replication, stage numbers are chip numbers.
        """
        problem = self._problem
        unit = int(problem.unit_of_op[op])
        unit_stage = self._moved(unit, stage)
        stage_of_op = unit_stage[problem.unit_of_op]
        plan = self._plan(stage_of_op)
        cost, excess = plan_cost(self.graph, self.target, plan)
        ops_along = int(((plan.placement != self.plan.placement) & (problem.unit_of_op != unit)).sum())
        edge = self._tightest_edge(unit, stage) if ops_along else None
        return Move(
            chip=int(self.stages.first_chip[stage]),
            replicas=int(self.stages.size[stage]),
            ops_along=ops_along,
            blocker=None if edge is None else self._place(edge.blocker),
            reads_blocker=edge is not None and edge.op_reads,
            relays=sum(len(relay.chips) for relay in plan.relays),
            forbidden=self._forbidden(plan, unit_stage) or excess,
            cost=cost,
        )

    def around(self, ops: Iterable[int]) -> Neighbourhood:
        """Try the moves of the kernels of ``ops`` to neighbouring stages, at most ``MOST_MOVES``."""
        tried, legal = 0, []
        units = dict.fromkeys(int(self._problem.unit_of_op[op]) for op in ops)
        first_op = {unit: op for op, unit in reversed(list(enumerate(self._problem.unit_of_op.tolist())))}
        for unit in units:
            for to in self.stages_next_to(first_op[unit]):
                if tried < MOST_MOVES:
                    move = self.move(first_op[unit], to)
                    tried += 1
                    legal += [] if move.forbidden else [(move, self.graph.op_names[first_op[unit]])]
        best, op = min(legal, key=lambda pair: pair[0].cost.interval_s, default=(None, ""))
        return Neighbourhood(tried, len(legal), op, best)

    def stages_next_to(self, op: int) -> list[int]:
        """The stages next to that of ``op``, or all other stages if dataflow may be cyclic."""
        own, last = int(self._unit_stage[self._problem.unit_of_op[op]]), self._problem.num_chips - 1
        stages = (own - 1, own + 1) if self._problem.acyclic else range(last + 1)
        return [stage for stage in stages if stage != own and 0 <= stage <= last]

    def _forbidden(self, plan: Plan, unit_stage: IntArray) -> str:
        """One sentence about the first rule that a plan breaks; relays already satisfy the triangle rule."""
        rule = RULE_NAMES[broken_rules(self._problem, unit_stage[None])[0]]
        if rule == "no_skip":
            empty = np.setdiff1d(np.arange(self._problem.num_chips), unit_stage)[0]
            first, size = self.stages.first_chip[empty], self.stages.size[empty]
            chips = f"chip {first}" if size == 1 else f"chips {first}-{first + size - 1}"
            return f"{chips} would run no op."
        if rule != "none" or self._constraints:
            violations = verify(self.graph, self.target, plan, self._constraints)
            return violations[0].message if violations else ""
        return ""

    def _moved(self, unit: int, stage: int) -> IntArray:
        """[U] stages with ``unit`` and its closure moved."""
        moved = self._unit_stage.copy()
        moved[unit] = stage
        return with_closure(self._problem, moved, unit)

    def _tightest_edge(self, unit: int, stage: int) -> _Edge:
        """The most restrictive of the edges that stretch when ``unit`` moves to ``stage``."""
        unit_of_op, graph = self._problem.unit_of_op, self.graph
        is_up = stage > self._unit_stage[unit]
        ends = (graph.edge_src, graph.edge_dst) if is_up else (graph.edge_dst, graph.edge_src)
        edges = np.flatnonzero((unit_of_op[ends[0]] == unit) & (unit_of_op[ends[1]] != unit))
        beyond = ends[1][edges]
        there = self.plan.placement[beyond]
        return _Edge(int(beyond[np.argmin(there) if is_up else np.argmax(there)]), op_reads=not is_up)

    def _plan(self, stage_of_op: IntArray) -> Plan:
        """The plan with another placement, and the relays that the triangle rule then requires."""
        first_chip, size = self.stages
        placement = first_chip[stage_of_op]
        moved = replace(self.plan, placement=placement, replication=size[stage_of_op], relays=())
        triangle = self.target.constraints.triangle
        if triangle == "off":
            return moved
        tensor, stage = needed_relays(cost_tables(self.graph, self.target), stage_of_op, triangle)
        return replace(moved, relays=relays_of_arrays(self.graph, tensor, first_chip[stage]))

    def _place(self, op: int) -> Place:
        chip, replicas = int(self.plan.placement[op]), int(self.plan.replication[op])
        return Place(self.graph.op_names[op], chip, replicas)


def with_closure(problem: PlacementProblem, placement: IntArray, unit: int) -> IntArray:
    """[U] ``placement`` with readers before the chip of ``unit`` and producers behind it moved there."""
    chip = placement[unit]
    for ptr, neighbour, is_wrong in (
        (problem.successor_ptr, problem.successor, np.less),
        (problem.predecessor_ptr, problem.predecessor, np.greater),
    ):
        stack = [unit] if problem.acyclic else []
        while stack:
            at = stack.pop()
            near = neighbour[ptr[at] : ptr[at + 1]]
            pushed = near[is_wrong(placement[near], chip)]
            placement[pushed] = chip
            stack += pushed.tolist()
    return placement


def _with_free_chips(stages: Stages, num_chips: int) -> Stages:
    """The stages, plus one single-chip stage for each chip after the last one."""
    free = np.ones(num_chips - int(stages.size.sum()), dtype=np.int32)
    return stages_of_sizes(np.concatenate([stages.size, free]))


@dataclass(frozen=True)
class Resize:
    """One more chip for a stage."""

    chip: int  # first chip of the stage
    giver: int | None  # first chip of the stage that loses a chip; None: a free chip is used
    cost: Cost  # of the changed plan


def best_resize(
    graph: Graph, target: Target, plan: Plan, chip: int, constraints: Sequence[UserConstraint] = ()
) -> Resize | None:
    """The best legal way to give one more chip to the stage that starts at ``chip``; None if there is none.

    Args:
      plan: a valid plan; its ops keep their kernels and stages.
    """
    if not (plan.placement == chip).any():
        return None  # the chip only forwards results
    stages = stages_of(plan.placement, plan.replication)
    stage = int(np.searchsorted(stages.first_chip, chip))
    tried = []
    for giver, sizes in _sizes(stages, stage, target.num_chips):
        resized = _resized(plan, stages, stages_of_sizes(sizes))
        cost, excess = plan_cost(graph, target, resized)
        if not excess:
            first = None if giver is None else int(stages.first_chip[giver])
            tried.append((Resize(chip, first, cost), resized))
    tried.sort(key=lambda pair: pair[0].cost.interval_s)
    legal = (resize for resize, resized in tried if not verify(graph, target, resized, constraints))
    return next(legal, None)


def _sizes(stages: Stages, stage: int, num_chips: int) -> Iterator[tuple[int | None, np.ndarray]]:
    """Each stage that can give a chip (None: a free chip), and the resulting sizes of all stages."""
    grown = stages.size.copy()
    grown[stage] += 1
    if grown.sum() <= num_chips:
        yield None, grown
        return
    for giver in np.flatnonzero(stages.size > 1).tolist():
        if giver != stage:
            sizes = grown.copy()
            sizes[giver] -= 1
            yield giver, sizes


def _resized(plan: Plan, before: Stages, after: Stages) -> Plan:
    """The plan with its stages resized from ``before`` to ``after``."""
    chip_of = dict(zip(before.first_chip.tolist(), after.first_chip.tolist(), strict=True))
    stage_of_op = before.number(plan.placement)
    return replace(
        plan,
        placement=after.first_chip[stage_of_op],
        replication=after.size[stage_of_op],
        relays=tuple(replace(relay, chips=tuple(chip_of[d] for d in relay.chips)) for relay in plan.relays),
        forwards=tuple(chip_of[chip] for chip in plan.forwards),
    )


FASTER: Final = 1.1  # 10 % faster
_MORE_BYTES: Final = 4_000_000


@dataclass(frozen=True)
class WhatIf:
    """One change of the package, the cost of the same plan there, and its bottleneck."""

    change: str
    interval_s: float
    bottleneck: str
    makespan_s: float


@dataclass(frozen=True)
class OneMoreChip:
    """Makespans of a list schedule of the plan's kernels; infinite if they exceed memory."""

    makespan_s: float  # with one more chip, linked like the others
    makespan_without_s: float  # on the existing chips


def one_more_chip(graph: Graph, target: Target, plan: Plan) -> OneMoreChip | None:
    """The effect of one more chip; None if the target has static constraints, or unequal chips or links."""
    topology, rules, kind = target.topology, target.constraints, target.kinds[0]
    rates = np.unique([topology.rate_bytes_per_s, topology.latency_s], axis=1).T.tolist()
    are_alike = len(target.kinds) == len(rates) == 1 and topology.kind in ("all_to_all", "host_star")
    if not are_alike or (rules.acyclic, rules.no_skip, rules.triangle) != (False, "off", "off"):
        return None
    count = target.num_chips + 1
    links = build_topology(topology.kind, count, *rates[0])
    larger = replace(target, kinds=(replace(kind, count=count),), topology=links)
    return OneMoreChip(_listed_s(graph, larger, plan), _listed_s(graph, target, plan))


def _listed_s(graph: Graph, target: Target, plan: Plan) -> float:
    """Makespan of a list schedule of the plan's kernels by upward rank."""
    tables = cost_tables(graph, target)
    rank = upward_ranks(tables, plan.order, number_kernels(plan.order, plan.fusion_group), 1.0)
    rows = [row[None] for row in list_scheduling(tables, plan.order, plan.fusion_group, rank)]
    return float(objectives_s(tables, "latency", *rows)[0][0])


def what_ifs(
    graph: Graph,
    target: Target,
    plan: Plan,
    metrics: Metrics,
    binding: Sequence[int],
    objective: Objective = "throughput",
) -> tuple[WhatIf, ...]:
    """The changes that improve the objective, best first; ``binding`` are indices of the binding terms.

    The plan stays the same, so a new search could gain more, never less. If the plan waits for
    streamed weights, changes that leave weights streaming have no closed form. Of these,
    only more memory and more bandwidth are tried, in the simulator.
    """

    def reached_s(of: WhatIf | Metrics) -> float:
        return objective_s(of, objective)

    placed = plan_tables(graph, target, plan)
    found: list[WhatIf] = []
    waits = metrics.waits and objective == "throughput"
    for change, changed in _changes(target, placed.tables, metrics, binding):
        better = placed._replace(tables=changed)
        terms = better.evaluate()
        if waits and terms.stream_bytes.any():
            continue
        what_if = WhatIf(
            change,
            float(terms.interval_s[0]),
            target.bottleneck_name(int(terms.bottleneck[0])),
            plan_makespan_s(better, terms),
        )
        # Successive changes of one kind get larger; one that gains nothing more is left out.
        is_more = not found or (reached_s(what_if), what_if.bottleneck) != (
            reached_s(found[-1]),
            found[-1].bottleneck,
        )
        if reached_s(what_if) < reached_s(metrics) and is_more:
            found.append(what_if)
    if metrics.stream_bytes.any():
        for change, changed_target in _simulated_changes(target, waits=waits):
            then = evaluate_plan(graph, changed_target, plan)
            what_if = WhatIf(change, then.interval_s, then.bottleneck, then.makespan_s)
            found += [what_if] if reached_s(what_if) < reached_s(metrics) else []
    return tuple(sorted(found, key=reached_s))


def _simulated_changes(target: Target, *, waits: bool) -> Iterator[tuple[str, Target]]:
    kinds = tuple(replace(kind, sram_bytes=kind.sram_bytes + _MORE_BYTES) for kind in target.kinds)
    yield f"{format_bytes(_MORE_BYTES)} more memory on each chip", replace(target, kinds=kinds)
    if waits:
        links = replace(target.topology, rate_bytes_per_s=target.topology.rate_bytes_per_s * FASTER)
        yield "10 % more bandwidth on every link", replace(target, topology=links)
        into, out = target.host_in_bytes_per_s * FASTER, target.host_out_bytes_per_s * FASTER
        yield (
            "10 % more bandwidth of the host",
            replace(target, host_in_bytes_per_s=into, host_out_bytes_per_s=out),
        )


def _changes(
    target: Target, tables: CostTables, metrics: Metrics, binding: Sequence[int]
) -> Iterator[tuple[str, CostTables]]:
    links = [i - target.num_chips for i in binding]
    links = [link for link in links if 0 <= link < target.topology.num_links]
    if links:
        seconds = tables.link_s_per_byte.copy()
        seconds[links] /= FASTER
        names = ", ".join(target.link_names[link] for link in links)
        yield f"10 % more bandwidth on {names}", tables._replace(link_s_per_byte=seconds)
    for more, times in (("10 % more", FASTER), ("twice the", 2.0)):
        faster_links = tables._replace(link_s_per_byte=tables.link_s_per_byte / times)
        yield f"{more} bandwidth on every link", faster_links
    faster_host = tables._replace(
        host_in_s_per_byte=tables.host_in_s_per_byte / FASTER,
        host_out_s_per_byte=tables.host_out_s_per_byte / FASTER,
    )
    yield "10 % more bandwidth of the host", faster_host
    yield "10 % higher compute rates", tables._replace(op_s=tables.op_s / FASTER)
    yield "10 % more SRAM bandwidth", tables._replace(sram_s_per_byte=tables.sram_s_per_byte / FASTER)
    yield "half the overhead per kernel", tables._replace(kernel_overhead_s=tables.kernel_overhead_s / 2.0)
    if metrics.stream_bytes.any():
        # No chip needs more memory than its peak activations plus all weights.
        weights = int(tables.tensor_bytes[tables.weight_by_size].sum())
        roomy = np.maximum(tables.sram_bytes, metrics.peak_bytes + weights)
        yield "memory for all weights, so that none stream", tables._replace(sram_bytes=roomy)
