"""The request to the optimizer and its result."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, get_args

from go_opt.common.units import format_duration, format_ratio
from go_opt.common.version import VERSION
from go_opt.env.model.metrics import (
    Fidelity,
    Metrics,
    check_choice,
    check_fidelity,
    check_objective,
    objective_s,
)
from go_opt.env.model.metrics import Objective as Objective
from go_opt.errors import InvalidInputError
from go_opt.model.plan import Plan
from go_opt.model.start import Start
from go_opt.solver.problem.user_constraints import UserConstraint, checked_constraints

Decide = Literal["placement", "all"]
Status = Literal["OPTIMAL", "FEASIBLE", "HEURISTIC", "INFEASIBLE"]

ONLY: Final = "only"  # the shipped policy, and no other method
POLICY_NAMES: Final = ("default", ONLY, "none")  # other names are files, or policies of training jobs

DEFAULT_BUDGET_S: Final = 5.0
OPTIMAL_GAP: Final = 1e-6


@dataclass(frozen=True)
class Request:
    """The problem to solve; bound, gap and status refer to exactly this problem."""

    objective: Objective = "throughput"
    budget_s: float | None = None  # None: DEFAULT_BUDGET_S, or no limit with max_evaluations
    max_evaluations: int | None = None
    seed: int = 0
    decide: Decide = "all"  # "placement": one kernel per op, default order, no replication
    relays: bool = True  # whether a plan may have relays
    replication: bool = True  # whether a plan may replicate stages
    splits: bool = True  # whether ops with heavy weights may be split
    output_parts: bool = False  # whether outputs of the model may stay in parts
    fidelity: Fidelity = "analytical"  # how plans are evaluated
    constraints: tuple[UserConstraint, ...] = ()  # the user's; the bound holds without them too
    max_latency_s: float | None = None  # of one inference; the bound holds without it too
    simulate: bool = True  # whether the answer is simulated before it is given
    start: Start | None = None  # a plan to start from
    early_end: bool = True  # whether the search ends when no gain is to be expected

    def __post_init__(self) -> None:
        check_objective(self.objective)
        check_choice("decide", self.decide, get_args(Decide))
        check_fidelity(self.fidelity)
        if self.budget_s is not None and not (math.isfinite(self.budget_s) and self.budget_s > 0):
            raise InvalidInputError(f"budget must be above zero, not {self.budget_s} s.", field="budget_s")
        if self.max_evaluations is not None and self.max_evaluations < 1:
            raise InvalidInputError(
                f"max_evaluations must be 1 or more, not {self.max_evaluations}.", field="max_evaluations"
            )
        check_seed(self.seed)
        self._check_latency()
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
    def options(self) -> dict[str, Any]:
        """The fields by name, as :func:`go_opt.optimize` takes them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def time_limit_s(self) -> float:
        """Wall-clock limit of the search; infinite if only evaluations are limited."""
        if self.budget_s is not None:
            return self.budget_s
        return DEFAULT_BUDGET_S if self.max_evaluations is None else math.inf

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

    @property
    def objective_s(self) -> float:
        """The minimised objective, by the analytical model."""
        return objective_s(self.metrics, self.objective)

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
