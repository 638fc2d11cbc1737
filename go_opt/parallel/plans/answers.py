"""What commands ask about training steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from go_opt.env import Target
from go_opt.errors import PlanError
from go_opt.parallel.case import Case
from go_opt.parallel.plans.checks import check_division, check_step
from go_opt.parallel.plans.drawing import Drawing, drawing_of
from go_opt.parallel.plans.lines import explanation_lines, gains, parallel_text, result_lines
from go_opt.parallel.plans.plan_file import load_step, result_to_dict, save_step, save_trace
from go_opt.parallel.search import StepPlan, plan_step
from go_opt.parallel.step import Step, cost_step
from go_opt.solver import Violation


@dataclass(frozen=True)
class StepAnswer:
    """A step, or the answer of a search, and the text of its model."""

    found: Step | StepPlan
    model: str

    @property
    def step(self) -> Step:
        return self.found.best if isinstance(self.found, StepPlan) else self.found

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of ``--json``."""
        return result_to_dict(self.found, self.model)

    def lines(self) -> Iterator[str]:
        return result_lines(self.found)

    def save(self, path: Path) -> None:
        """Write the plan."""
        save_step(self.step, path, self.to_dict())

    def save_trace(self, path: Path) -> int:
        """Write the schedule as a trace; returns the number of passes."""
        return save_trace(self.step, path)

    @property
    def parallel(self) -> str:
        """The configuration, as ``--parallel`` takes it."""
        return parallel_text(self.step.chosen)

    def drawing(self, most_ranks: int, most_passes: int) -> Drawing:
        """What a page shows."""
        return drawing_of(self.step, most_ranks, most_passes)

    def verify(self) -> list[Violation]:
        return check_step(self.step)

    @property
    def valid_text(self) -> str:
        """What ``verify`` says of a valid plan."""
        return f"valid: a step of {self.step.step_s:.4g} s."

    def explanation(self) -> dict[str, Any]:
        """Where the step's time goes, and the steps that single changes would make."""
        return self.to_dict() | {"gains": [gain._asdict() for gain in gains(self.step)]}

    def explanation_lines(self) -> Iterator[str]:
        return explanation_lines(self.step, gains(self.step))


def costed_step(model: str, target: Target, batch: int, parallel: str) -> StepAnswer:
    """A step in a given configuration."""
    return StepAnswer(cost_step(Case.read(model, target, batch), parallel), model)


def searched_step(
    model: str, target: Target, batch: int, budget_s: float, should_stop: Callable[[], bool]
) -> StepAnswer:
    """The best step."""
    return StepAnswer(plan_step(Case.read(model, target, batch), budget_s, should_stop), model)


def loaded_step(
    path: Path, target: Target | None, model: str | None = None, *, refuses: bool = True
) -> StepAnswer:
    """The plan of a file, for ``model`` in place of its own.

    Raises:
      PlanError: the file is malformed, or with ``refuses`` the model cannot be divided so.
    """
    step, own = load_step(path, target)
    if model is not None and model != own:
        step = Step(Case.read(model, step.case.machine.target, step.case.batch), step.chosen, step.layers)
    for violation in check_division(step) if refuses else ():
        raise PlanError(f"plan file {str(path)!r}: {violation.message}", field=violation.constraint)
    return StepAnswer(step, model or own)
