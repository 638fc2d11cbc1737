"""The data behind a page: a valid plan, its explanation, and its stages in pipeline order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from go_opt.env import Metrics, Target
from go_opt.explanations import PlanExplanation
from go_opt.explanations.loads import Loads
from go_opt.explanations.terms import Terms, terms_of
from go_opt.explanations.uses import ChipUse
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.report.parts.plan_lines import stages_of
from go_opt.report.parts.wording import StageNames, named_stage
from go_opt.solver.problem.user_constraints import UserConstraint

NO_STAGE: Final = -1
# Equal lightness, on which dark text is readable; neighbouring hues are far apart.
COLOURS: Final = (
    "#7cb6f1", "#f8a78a", "#52c6c0", "#eca3d3", "#9bbf76", "#b0b6ff",
    "#dca564", "#66ceec", "#eb95a2", "#7ed3a6", "#c69ee3", "#cdc06d",
)  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """A chip, or the chips of a replicated stage."""

    first_chip: int
    chips: int
    use: ChipUse
    colour: str

    @property
    def name(self) -> str:
        """``chip 3``, or ``chips 4-7``."""
        return named_stage(self.first_chip, self.chips)


@dataclass(frozen=True, eq=False)
class Subject:
    """A valid plan. Axes: ``N`` ops including relays, ``M`` kernels, ``D`` chips."""

    graph: Graph
    target: Target
    plan: Plan
    explanation: PlanExplanation
    constraints: tuple[UserConstraint, ...] = ()

    @property
    def metrics(self) -> Metrics:
        return self.explanation.metrics

    @property
    def whole_s(self) -> float:
        """The time that loads are shares of: the interval, or the makespan if the objective is latency."""
        return self.explanation.reached_s

    def share(self, seconds: float) -> float:
        """``seconds`` as a share of ``whole_s``."""
        return seconds / self.whole_s if self.whole_s else 0.0

    @cached_property
    def terms(self) -> Terms:
        """The terms of the interval."""
        return terms_of(self.graph, self.target, self.plan)

    @property
    def loads(self) -> Loads:
        """The loads of the plan, with relays as ops."""
        return self.terms.loads

    @cached_property
    def names(self) -> StageNames:
        """The names of the stages."""
        return stages_of(self.explanation)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, in the order of their first kernels."""
        uses = {use.chip: use for use in self.explanation.chips}
        chips = dict.fromkeys(self.loads.kernel_chip.tolist())
        return tuple(
            Stage(chip, uses[chip].replicas, uses[chip], COLOURS[i % len(COLOURS)])
            for i, chip in enumerate(chips)
        )

    @cached_property
    def stage_of_chip(self) -> NDArray[np.int32]:
        """[D] index into ``stages``, or NO_STAGE."""
        found = np.full(self.target.num_chips, NO_STAGE, dtype=np.int32)
        for i, stage in enumerate(self.stages):
            found[stage.first_chip : stage.first_chip + stage.chips] = i
        return found

    @cached_property
    def kernel_stage(self) -> NDArray[np.int32]:
        """[M] index into ``stages``."""
        stage: NDArray[np.int32] = self.stage_of_chip[self.loads.kernel_chip]
        return stage

    @cached_property
    def places(self) -> dict[str, int]:
        """Op name (including relays) -> its index in the page's lists."""
        return {name: i for i, name in enumerate(self.loads.graph.op_names)}


def short(values: NDArray | Iterable[float]) -> list[Any]:
    """Numbers rounded to six digits, which suffice for drawing."""
    return [float(f"{value:.6g}") for value in values]
