"""The request to the optimizer and its result."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, get_args

from go_opt.common.units import format_duration, format_ratio
from go_opt.common.version import VERSION
from go_opt.env.model.metrics import (
    Fidelity,
    Metrics,
    check_choice,
    check_fidelity,
    objective_s,
)
from go_opt.env.model.metrics import Objective as Objective
from go_opt.errors import InvalidInputError
from go_opt.model.graph import UnknownOp
from go_opt.model.plan import Plan
from go_opt.model.start import Start
from go_opt.model.states import SizedState
from go_opt.solver.problem.user_constraints import UserConstraint, checked_constraints

AnyObjective = Literal[Objective, "step"]
Decide = Literal["placement", "all"]
Status = Literal["OPTIMAL", "FEASIBLE", "HEURISTIC", "INFEASIBLE"]

ONLY: Final = "only"  # the shipped policy, and no other method
POLICY_NAMES: Final = ("default", ONLY, "none")  # other names are files, or policies of training jobs

DEFAULT_BUDGET_S: Final = 5.0
OPTIMAL_GAP: Final = 1e-6


class CommandOption(NamedTuple):
    """Marks the type of a field of :class:`Request` that is an option of commands."""

    help: str
    metavar: str | None = None


@dataclass(frozen=True, kw_only=True)
class Request:
    """The problem to solve and how to search; bound, gap and status refer to exactly this problem.

    This is the only list of the options of a search. Functions and clients take the fields as keywords.
    Commands have options for the fields with a help text, and the service's messages have fields of the
    same names; both say ``no_NAME`` where ``NAME`` is on by default.

    Args:
      objective: ``throughput`` minimises the interval, ``latency`` the makespan, ``step`` that of a training
        step, which replicas may compute with a share of the batch each.
      budget_s: seconds of search; 5 by default, no limit if ``max_evaluations`` is given.
      max_evaluations: evaluations at most; the same seed and count give the same answer.
      policy: ``default`` is the shipped policy, a path is your own, None or ``none`` means no policy.
        With ``only`` the shipped policy decides placement, order and kernels, and no other method runs.
      decide: ``all``, or ``placement`` with one kernel per op in the default order.
      fidelity: ``simulated`` evaluates proposed plans in the simulator; no bound is proven then.
      simulate: whether to simulate the best plans and answer with the one that is best in the
        simulator; off for budgets below two seconds.
      relays, replication: whether plans may use them; they add plans for which the lower bound
        must hold.
      splits: whether ops with a weight of more than a quarter of a chip's memory may be split; splits
        also add plans for which the lower bound must hold.
      rewrite: whether ops may be replaced by others that compute the same (docs/rewrites.md). The lower
        bound is then that of the graph with the rewrites of the plan.
      early_end: whether the search ends before its limits when no gain is to be expected: after 0.3 s,
        200 evaluations, and as long as the last gain of 0.1 % took, without one. With
        ``max_evaluations``, only evaluations count.
      max_latency_s: the longest ``latency_s`` of a plan, while its interval is minimised; the bound
        holds without it too.
      sequences: sequences in flight of a graph with states of scope ``sequence``; by default the number is
        decided with the plan, which functions and commands also know as ``auto``.
      constraints: constraints that plans must satisfy (:class:`go_opt.Pin`, …); the bound holds without
        them too.
      start: a plan to start from. The plan may be for another version of the model or another target;
        ops are matched by name. The answer is no worse than this plan.

    Raises:
      InvalidInputError: a field is out of range.
    """

    objective: Annotated[
        AnyObjective, CommandOption("Interval, time of one sample, or a training step on several chips.")
    ] = "throughput"
    budget_s: Annotated[
        float | None,
        CommandOption("Time to search: 500ms, 2s, 1m. [default: 5s, none with --max-evaluations]"),
    ] = None
    max_evaluations: Annotated[int | None, CommandOption("Plans to evaluate at most.")] = None
    seed: Annotated[int, CommandOption("Same seed and evaluations, same answer.")] = 0
    policy: Annotated[
        str | Path | None,
        CommandOption("none, default, a policy file, or only: no other method.", "NAME|PATH"),
    ] = "none"
    decide: Annotated[Decide, CommandOption("placement: one kernel per op, default order.")] = "all"
    fidelity: Annotated[Fidelity, CommandOption("What evaluates plans; simulated proves no bound.")] = (
        "analytical"
    )
    simulate: Annotated[bool, CommandOption("Do not simulate the answer.")] = True
    relays: Annotated[bool, CommandOption("The strict triangle rule.")] = True
    replication: Annotated[bool, CommandOption("One chip per stage.")] = True
    splits: Annotated[bool, CommandOption("No op in parts.")] = True
    rewrite: Annotated[bool, CommandOption("No op replaced by others that compute the same.")] = True
    early_end: Annotated[bool, CommandOption("Search on when no gain is to be expected.")] = True
    max_latency_s: Annotated[
        float | None, CommandOption("Longest latency allowed, such as 2ms (throughput only).")
    ] = None
    sequences: Annotated[
        int | None, CommandOption("Sequences in flight, each with its own state. [default: auto]", "N|auto")
    ] = None
    constraints: tuple[UserConstraint, ...] = ()
    start: Start | None = None

    def __post_init__(self) -> None:
        check_choice("objective", self.objective, get_args(AnyObjective))
        check_choice("decide", self.decide, get_args(Decide))
        check_fidelity(self.fidelity)
        if self.budget_s is not None and not (math.isfinite(self.budget_s) and self.budget_s > 0):
            raise InvalidInputError(f"budget must be above zero, not {self.budget_s} s.", field="budget_s")
        if self.max_evaluations is not None and self.max_evaluations < 1:
            raise InvalidInputError(
                f"max_evaluations must be 1 or more, not {self.max_evaluations}.", field="max_evaluations"
            )
        if self.sequences is not None and not 1 <= self.sequences < 2**31:
            raise InvalidInputError(
                f"sequences must be 1 to 2^31 - 1, not {self.sequences}.", field="sequences"
            )
        check_seed(self.seed)
        self._check_latency()
        if self.policy == ONLY and self.decide != "all":
            raise InvalidInputError("policy 'only' decides all, so decide must be 'all'.", field="decide")
        object.__setattr__(self, "constraints", checked_constraints(self.constraints))

    def _check_latency(self) -> None:
        limit_s = self.max_latency_s
        if limit_s is None:
            return
        if not (math.isfinite(limit_s) and limit_s > 0):
            problem = f"must be above zero and finite, not {limit_s} s"
        elif self.objective != "throughput":
            problem = f"bounds plans of objective throughput; {self.objective} is minimised as it is"
        else:
            return
        raise InvalidInputError(f"max_latency_s {problem}.", field="max_latency_s")

    @property
    def time_limit_s(self) -> float:
        """Wall-clock limit of the search; infinite if only evaluations are limited."""
        if self.budget_s is not None:
            return self.budget_s
        return DEFAULT_BUDGET_S if self.max_evaluations is None else math.inf

    @property
    def minimised(self) -> Objective:
        """What plans are compared by."""
        return "latency" if self.objective == "step" else self.objective

    @property
    def is_interval_alone(self) -> bool:
        """Whether plans are compared by their interval alone."""
        return self.objective == "throughput" and self.max_latency_s is None

    @property
    def latency_limit_s(self) -> float:
        """The longest allowed latency of one inference; infinite by default."""
        return math.inf if self.max_latency_s is None else self.max_latency_s


@dataclass(frozen=True)
class Step:
    """One method of the portfolio: its own result and the best result so far."""

    method: str
    objective_s: float  # of the method's own plan; infinite if invalid
    best_s: float  # best of all methods so far
    evaluations: int  # total of the search so far
    elapsed_s: float


@dataclass(frozen=True, eq=False)
class OptimizeResult:
    """A verified plan with its metrics and a proven bound on its distance from the optimum."""

    plan: Plan
    metrics: Metrics
    objective: Objective
    status: Status
    lower_bound_s: float  # no plan of the request has a smaller objective; 0 if none is proven
    bound_reason: str  # one sentence on which resource gives the bound
    gap: float  # objective / lower_bound_s - 1; infinite without a bound
    method: str
    history: tuple[Step, ...]
    evaluations: int
    wall_s: float
    reference_s: float  # objective of the compiler's greedy heuristic; infinite if invalid
    seed: int = 0  # of the request
    version: str = VERSION  # go-opt version that searched
    simulated_interval_s: float | None = None  # None: not simulated; infinite: it does not run there
    simulated_makespan_s: float | None = None
    simulation_note: str = ""  # why the predicted and simulated objective differ by over 5 %
    dropped_methods: tuple[str, ...] = ()  # that failed, each with its error
    # Of the model: its states, inputs that look like states and are none, and ops of unknown type.
    states: tuple[SizedState, ...] = ()
    unpaired_states: tuple[str, ...] = ()
    unknown_ops: tuple[UnknownOp, ...] = ()

    @property
    def objective_s(self) -> float:
        """The minimised objective, by the analytical model."""
        return objective_s(self.metrics, self.objective)

    @property
    def longer_interval_s(self) -> float:
        """The longer of the predicted and the simulated interval."""
        return max(self.metrics.interval_s, self.simulated_interval_s or 0.0)

    def __repr__(self) -> str:
        what = "makespan" if self.objective == "latency" else "interval"
        return (
            f"OptimizeResult({self.status}: {what} {format_duration(self.objective_s)}, "
            f"gap {format_ratio(self.gap)}, by {self.method!r}, {self.plan!r})"
        )


def check_seed(seed: int | None) -> None:
    """Raise :class:`InvalidInputError` if a seed is out of range."""
    if seed is not None and not 0 <= seed < 2**63:
        raise InvalidInputError(f"seed must be between 0 and 2^63 - 1, not {seed}.", field="seed")
