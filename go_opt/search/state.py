"""The state of a search: takes the events of methods, keeps the best verified plan and the history."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from go_opt.common.arrays import IntArray
from go_opt.common.units import format_duration
from go_opt.env import Metrics, Target, cost_tables, evaluate_plan, loop_roles
from go_opt.env.copies.stages import stages_of
from go_opt.env.evaluation import may_wait, with_waiting
from go_opt.env.peak_memory import op_that_runs_nowhere, why_no_plan
from go_opt.errors import InfeasibleError
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.result import OptimizeResult, Request, Step
from go_opt.search.bounds import against_bound, certificate, lower_bound
from go_opt.search.final_simulation import (
    MOST_FORWARDED_OPS,
    MOST_SIMULATED_OPS,
    is_simulated,
    leanest,
    reserve_s,
    shortlisted,
    simulated,
    simulated_answer,
    size_of,
)
from go_opt.search.methods.events import EQUAL, Event, Miss, NoPlan, Proposal, forwarding_of, may_replicate
from go_opt.search.shared.context import Context, Gains
from go_opt.solver import Bound, needed_relays, relays_of_arrays
from go_opt.solver.constraints.plans import constrained_tables
from go_opt.solver.problem.op_constraints import op_constraints
from go_opt.solver.problem.segment_rules import SegmentRules, segment_rules
from go_opt.solver.verify.verifier import verify


class Search:
    """Evaluates proposals and counts misses; methods see it as a :class:`SearchView`.

    Args:
      bound: in place of :func:`lower_bound`.
    """

    def __init__(
        self,
        graph: Graph,
        target: Target,
        request: Request,
        on_step: Callable[[Step], None] = lambda step: None,
        context: Context | None = None,
        bound: Bound | None = None,
    ) -> None:
        self.graph, self.target, self.request = graph, target, request
        self.context = context = context or Context(request.time_limit_s)
        self._until_s = context.elapsed_s + request.time_limit_s - reserve_s(graph, target, request)
        self._gains = Gains(request, context)
        self.requested = op_constraints(graph, target, request.constraints)
        self.roles = loop_roles(graph, target.kernel_patterns)
        # Replicated stages are not searched if transfers add to compute, or for a single sequence; the bound
        # still allows them.
        is_single = bool(graph.states) and graph.sequences == 1
        self.replicates = may_replicate(target, request) and target.overlap and not is_single
        by_chip = self.requested.without_stages() if self.replicates else self.requested
        self.tables = constrained_tables(by_chip) if by_chip.constraints else cost_tables(graph, target)
        self.rules = segment_rules(by_chip) if by_chip.constraints else SegmentRules()
        self.forwarding = forwarding_of(target, request)
        self.best: OptimizeResult | None = None
        self.last_interval_s = self.last_latency_s = 0.0  # of the last proposal, by the analytical model
        self.is_exhausted = False  # whether every method has ended
        self.violating: list[IntArray] = []  # proposed placements that violate a rule or constraint
        self._on_step = on_step
        self._bound = bound or lower_bound(graph, target, request)
        self._history: list[Step] = []
        self.reference_s = math.inf  # of the greedy plan
        self._rejection = ""  # the first reason, other than memory, why a plan was not valid
        self._failure = NoPlan("")  # a method's reason why there is none
        self._least_latency_s = math.inf  # of valid plans above the latency limit
        self._shortlist: list[OptimizeResult] = []  # the best plans so far, by the model
        self._checks = is_simulated(target, request)
        self._closest: tuple[int, Plan] | None = None  # least excess bytes of a plan that does not fit

    def take(self, event: Event) -> bool:
        """Evaluate a proposal, or count a miss; True if the plan is the best so far."""
        if isinstance(event, NoPlan):
            self._failure = event
        if isinstance(event, Proposal | Miss) and event.bound and event.bound.seconds > self._bound.seconds:
            self._bound = event.bound
            self.best = None if self.best is None else against_bound(self.best, self.request, self._bound)
        if not isinstance(event, Proposal | Miss):
            return False
        reached_s, is_better = math.inf, False
        with self.context.tolerates(event.method):
            if isinstance(event, Proposal) and not self.context.is_dropped(event.method):
                reached_s, is_better = self._evaluate_proposal(event)
        self._record(event.method, reached_s)
        self._gains.note(self.best_s, self._bound.seconds, len(self._history), event.pending)
        self._on_step(self._history[-1])
        return is_better

    def _evaluate_proposal(self, proposal: Proposal) -> tuple[float, bool]:
        """The objective that it reaches, infinite if not valid; whether it is the best so far."""
        plan = self._plan(proposal)
        metrics = self._evaluate(plan)
        reached_s = self._reached_s(plan, metrics)
        # Plans above the latency limit are verified only to report the least latency if none meets it.
        is_slow = metrics.latency_s > self.request.latency_limit_s
        is_as_good = metrics.valid and reached_s <= self.best_s * (1.0 + EQUAL)
        is_as_good &= not (is_slow and self.best is not None)
        # How long plans wait that are too large to be simulated now differs by more than tiny gains.
        is_unsure = self.request.objective == "throughput" and not self._is_quick(plan)
        margin = EQUAL if is_unsure and metrics.stream_bytes.any() else 0.0
        is_better = is_as_good and reached_s < self.best_s * (1.0 - margin)
        is_as_good &= is_better or self._is_leaner(plan, metrics)
        violations = verify(self.graph, self.target, plan, self.request.constraints) if is_as_good else []
        if violations:
            is_better, is_as_good, reached_s = False, False, math.inf
            self._rejection = self._rejection or violations[0].message
            if self.best is None or self.request.constraints or not self.tables.can_run.all():
                self.violating.append(plan.placement)
        if is_slow and is_better:
            is_better = False
            self._least_latency_s = min(self._least_latency_s, metrics.latency_s)
        if is_slow or not metrics.valid:
            reached_s = math.inf
        if proposal.method == "greedy":
            self.reference_s = reached_s
        if is_as_good and not is_slow:
            found = self._result(plan, metrics, proposal.method)
            self._shortlist = shortlisted([*self._shortlist, found])
            self.context.clock.has_plan = True
            self.best = found if is_better else self.best
        return reached_s, is_better

    def _result(self, plan: Plan, metrics: Metrics, method: str) -> OptimizeResult:
        """A plan that was just evaluated, as the answer if the search ended here."""
        is_latency = self.request.objective == "latency"
        proven = certificate(
            metrics.makespan_s if is_latency else metrics.interval_s, self.request, self._bound
        )
        return OptimizeResult(
            plan=plan,
            metrics=metrics,
            objective=self.request.minimised,
            status=proven.status,
            lower_bound_s=proven.lower_bound_s,
            bound_reason=self._bound.reason,
            gap=proven.gap,
            method=method,
            history=tuple(self._history),
            evaluations=len(self._history),
            wall_s=self.context.elapsed_s,
            reference_s=self.reference_s,
            seed=self.request.seed,
        )

    def _is_leaner(self, plan: Plan, metrics: Metrics) -> bool:
        """Whether ``plan`` uses fewer chips than the leanest plan, or as many at a lower latency."""
        return not self._shortlist or (plan.chips_used, metrics.latency_s) < size_of(leanest(self._shortlist))

    def _plan(self, proposal: Proposal) -> Plan:
        plan = proposal.plan(self.graph, self.target)
        if proposal.relays is not None:
            return replace(plan, relays=relays_of_arrays(self.graph, *proposal.relays))
        if self.forwarding != "relayed":
            return plan
        stages = stages_of(plan.placement, plan.replication)
        placement = stages.number(plan.placement)
        tensor, stage = needed_relays(self.tables, placement, self.target.constraints.triangle)
        return replace(plan, relays=relays_of_arrays(self.graph, tensor, stages.first_chip[stage]))

    def _is_quick(self, plan: Plan) -> bool:
        """Whether a plan may be simulated during the search."""
        # If replicas forward weights, chips wait for them on most graphs.
        return self.graph.num_ops <= (MOST_FORWARDED_OPS if plan.forwards else MOST_SIMULATED_OPS)

    def _evaluate(self, plan: Plan) -> Metrics:
        """Metrics at the requested fidelity; a plan that the analytical model rejects is not simulated."""
        metrics = evaluate_plan(self.graph, self.target, plan, waits=False)
        may_be_best = metrics.valid and metrics.interval_s < self.best_s * (1.0 + EQUAL)
        is_quick = self.request.objective == "throughput" and self._is_quick(plan)
        if may_be_best and is_quick and may_wait(self.target, metrics.stream_bytes):
            metrics = with_waiting(self.target, metrics, simulated(self.graph, self.target, plan))
        self.last_interval_s, self.last_latency_s = metrics.interval_s, metrics.latency_s
        if self.best is None and not metrics.valid:
            excess = int((metrics.peak_bytes - self.target.chip_sram_bytes).max())
            if self._closest is None or excess < self._closest[0]:
                self._closest = excess, plan
        if self.request.fidelity == "analytical" or not metrics.valid:
            return metrics
        seen = simulated(self.graph, self.target, plan)
        self._rejection = self._rejection or seen.reason
        return seen

    def _reached_s(self, plan: Plan, metrics: Metrics) -> float:
        """The objective of a plan; of one that would be the best, in simulation where it may be longer.

        Replicas send at irregular times, so their tensors may wait for buffers. A chip works off one
        inference after the other: where results come back to it, it waits for them, though others could run.
        """
        if self.request.objective == "latency":
            return metrics.makespan_s
        may_come_back = self.graph.sequences > 1 and not self.target.constraints.acyclic
        is_unsure = self._checks and (plan.replication.max() > 1 or may_come_back)
        is_unsure &= self.graph.num_ops <= MOST_SIMULATED_OPS
        if not (is_unsure and metrics.valid and metrics.interval_s < self.best_s) or metrics.waits:
            return metrics.interval_s
        seen = simulated(self.graph, self.target, plan)
        return seen.interval_s if seen.interval_s > metrics.interval_s * (1.0 + EQUAL) else metrics.interval_s

    def _record(self, method: str, reached_s: float) -> None:
        best_s = min(self.best_s, reached_s)
        self._history.append(Step(method, reached_s, best_s, len(self._history) + 1, self.context.elapsed_s))

    def is_done(self) -> bool:
        """Whether to stop: proven optimal, out of evaluations or time, or nothing is to be expected.

        Without a plan a search goes on a little beyond its time.
        """
        if self.is_done_with_evaluations:
            return True
        if self.best is None:
            return self.is_late and (math.isfinite(self._least_latency_s) or self.context.is_over)
        return self.is_late or self.best.status == "OPTIMAL" or self._gains.are_over(len(self._history))

    @property
    def is_done_with_evaluations(self) -> bool:
        """Whether the limit on evaluations is reached."""
        return len(self._history) >= (self.request.max_evaluations or math.inf)

    @property
    def left_s(self) -> float:
        """Seconds until the time is up."""
        return self._until_s - self.context.elapsed_s

    @property
    def is_late(self) -> bool:
        return self.left_s <= 0.0

    def result(self) -> OptimizeResult:
        """The best plan so far, by the model."""
        if self.best is None:
            raise InfeasibleError(self._why_no_plan(), is_proven=self._failure.is_proven)
        return self._complete(self.best)

    def answer(self, *, checks: bool) -> OptimizeResult:
        """The leanest of the best plans; with ``checks``, the best in simulation of the shortlisted plans."""
        found = [against_bound(one, self.request, self._bound) for one in self._shortlist]
        answer = leanest(found) if found else self.result()
        if checks:
            with self.context.tolerates("simulation"):
                answer = simulated_answer(self.graph, self.target, self.request, found)
        return self._complete(against_bound(answer, self.request, self._bound))

    def _complete(self, result: OptimizeResult) -> OptimizeResult:
        return replace(
            result,
            history=tuple(self._history),
            evaluations=len(self._history),
            wall_s=self.context.elapsed_s,
            reference_s=self.reference_s,
            dropped_methods=self.context.dropped_methods,
        )

    def _why_no_plan(self) -> str:
        nowhere = op_that_runs_nowhere(self.graph, self.target)
        if math.isfinite(self._least_latency_s):
            limit, least = map(format_duration, (self.request.latency_limit_s, self._least_latency_s))
            reason = f"no plan was found with a latency of at most {limit}; the lowest is {least}."
        else:
            closest = None if self._closest is None else self._closest[1]
            why = why_no_plan(self.graph, self.target, self._rejection, closest)
            reason = nowhere or self._failure.reason or why
        reason = " Failed: ".join([reason, *self.context.dropped_methods])
        if nowhere or self.is_exhausted or self._failure.is_proven:
            return reason
        return f"stopped after {len(self._history)} evaluations: {reason}"

    @property
    def gap(self) -> float:
        """Relative distance of the best plan above the bound; infinite without a plan or bound."""
        return math.inf if self.best is None else self.best.gap

    @property
    def best_plan(self) -> Plan | None:
        """The best valid plan so far."""
        return None if self.best is None else self.best.plan

    @property
    def leanest_plan(self) -> Plan | None:
        """Of the plans that are as good as the best one, the one on fewest chips."""
        return leanest(self._shortlist).plan if self._shortlist else None

    @property
    def best_s(self) -> float:
        """Objective of the best valid plan so far; infinite before the first."""
        return self._history[-1].best_s if self._history else math.inf
