"""The definition of a training run, its progress reports, and its result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from go_opt.agents.inputs.padding import Bucket
from go_opt.agents.policy.network import Policy
from go_opt.agents.training.problems.cases import Case
from go_opt.agents.training.problems.environment import Environment
from go_opt.agents.training.problems.settings import Settings
from go_opt.model.plan import Candidate


@dataclass(frozen=True, eq=False)
class Job:
    """One run of training. The same job gives the same policy, interrupted or not."""

    request: dict[str, Any]  # JSON that tells this job from others; a folder goes on with its own alone
    settings: Settings
    policy: Policy  # to start from
    draw: Callable[[int], tuple[list[Case], Bucket]]  # the graphs of a step, from its number alone
    environment: Environment
    samples: int  # evaluations, validation left out; rounded up to whole steps
    seed: int
    validation: Sequence[Case] = ()  # with some, the policy kept is the best on them; else the last
    validate_every: int = 100  # steps
    workers: int = 1  # threads that play the graphs of a step

    @property
    def samples_per_step(self) -> int:
        """Evaluations of a step, of all hosts."""
        return self.settings.graphs_per_step * self.settings.samples_per_graph

    @property
    def steps(self) -> int:
        """Steps that take at least so many samples."""
        return math.ceil(self.samples / self.samples_per_step)


@dataclass(frozen=True)
class Progress:
    """The progress of a run, after each step."""

    step: int
    steps: int
    samples: int  # evaluations so far, validation left out
    reward: float  # mean of the step, log times faster than greedy
    best_interval_s: float  # of any plan so far
    score: float | None  # last validation
    best_score: float | None
    samples_per_s: float
    left_s: float
    checkpoint_step: int  # what survives if everything stops now


@dataclass(frozen=True, eq=False)
class Trained:
    """The result of a run."""

    policy: Policy  # the best on validation, else the last
    best_plan: Candidate | None  # the fastest met, of any graph: of use where there is only one
    step: int
    steps: int
    samples: int
    best_score: float | None

    @property
    def is_complete(self) -> bool:
        """False where the run was stopped before its last step."""
        return self.step == self.steps
