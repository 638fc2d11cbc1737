"""What is asked of the optimizer, and what it answers."""

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
POLICY_NAMES: Final = ("default", ONLY, "none")  # all others are of files, or of jobs that train

DEFAULT_BUDGET_S: Final = 5.0
OPTIMAL_GAP: Final = 1e-6


@dataclass(frozen=True)
class Request:
    """The problem as asked; bound, gap and status are for exactly this problem."""

    objective: Objective = "throughput"
    budget_s: float | None = None  # None: DEFAULT_BUDGET_S, or no limit with max_evaluations
    max_evaluations: int | None = None
    seed: int = 0
    decide: Decide = "all"  # "placement": one kernel per op, default order, no replication
    relays: bool = True  # whether a plan may hold relays and clones
    replication: bool = True  # whether a plan may replicate stages
    splits: bool = True  # whether ops with heavy weights may be split
    output_parts: bool = False  # whether outputs of the model may stay in parts
    fidelity: Fidelity = "analytical"  # what evaluates plans
    constraints: tuple[UserConstraint, ...] = ()  # of the user; the bound holds without them too
    max_latency_s: float | None = None  # of a sample; the bound holds without it too
    simulate: bool = True  # whether the answer is simulated before it is given
    start: Start | None = None  # a plan to begin with

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
        """Wall-clock limit of the search; infinite where only evaluations are limited."""
        if self.budget_s is not None:
            return self.budget_s
        return DEFAULT_BUDGET_S if self.max_evaluations is None else math.inf

    @property
    def is_interval_alone(self) -> bool:
        """Whether nothing but the interval judges a plan."""
        return self.objective == "throughput" and self.max_latency_s is None

    @property
    def latency_limit_s(self) -> float:
        """Longest latency of a sample that a plan may have."""
        return math.inf if self.max_latency_s is None else self.max_latency_s


@dataclass(frozen=True)
class Step:
    """One method of the portfolio: what it reached and what the best was after it."""

    method: str
    objective_s: float  # what the method's own plan reached; infinite where it was invalid
    best_s: float  # best of all methods so far
    evaluations: int  # of the environment, so far in all
    elapsed_s: float


@dataclass(frozen=True, eq=False)
class OptimizeResult:
    """A verified plan with its metrics and a proof of how far from the best it can be."""

    plan: Plan
    metrics: Metrics
    objective: Objective
    status: Status
    lower_bound_s: float  # no plan of the problem as asked has a smaller objective; 0 where none is proven
    bound_reason: str  # what the bound is made of, one sentence
    gap: float  # objective / lower_bound_s - 1; infinite without a bound
    method: str
    history: tuple[Step, ...]
    evaluations: int
    wall_s: float
    reference_s: float  # objective of the compiler's greedy heuristic; infinite if invalid
    seed: int = 0  # of the request
    version: str = VERSION  # of the go-opt that searched
    simulated_interval_s: float | None = None  # None: not simulated; infinite: it does not run there
    simulated_makespan_s: float | None = None
    simulation_note: str = ""  # where predicted and simulated objective are more than 5 % apart: why

    @property
    def objective_s(self) -> float:
        """What was minimised, by the model."""
        return objective_s(self.metrics, self.objective)

    def __repr__(self) -> str:
        what = "makespan" if self.objective == "latency" else "interval"
        return (
            f"OptimizeResult({self.status}: {what} {format_duration(self.objective_s)}, "
            f"gap {format_ratio(self.gap)}, by {self.method!r}, {self.plan!r})"
        )


def check_seed(seed: int | None) -> None:
    """Raise :class:`InvalidInputError` where a seed is out of range."""
    if seed is not None and not 0 <= seed < 2**63:
        raise InvalidInputError(f"seed must be between 0 and 2^63 - 1, not {seed}.", field="seed")
