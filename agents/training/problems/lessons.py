"""Lessons: the tasks that the policy decides, and the mode that decodes them into plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from go_opt.agents.decoding.decode import DRAWING, MODES, Mode
from go_opt.errors import InvalidInputError

Task = Literal["placement", "schedule", "fusion"]
TASKS: Final[tuple[Task, ...]] = get_args(Task)


@dataclass(frozen=True)
class Lesson:
    """A decoding mode, the tasks that the policy decides (others keep their default), and a batch size."""

    mode: Mode
    tasks: tuple[Task, ...]
    samples: int = 32  # that share one pass of the network
    elites: int = 1  # the best of them, whose chance is raised

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InvalidInputError(
                f"mode is {self.mode!r}, must be one of {', '.join(MODES)}.", field="mode"
            )
        if not self.tasks or not set(self.tasks) <= set(TASKS):
            raise InvalidInputError(f"tasks must be some of {', '.join(TASKS)}.", field="tasks")
        if not self.draws_keys and self.mode not in DRAWING:
            raise InvalidInputError(
                f"tasks must hold schedule or fusion: {self.mode} draws nothing else.", field="tasks"
            )
        if not 1 <= self.elites <= self.samples:
            raise InvalidInputError(
                f"elites is {self.elites}, must be 1 to {self.samples}, the samples.", field="elites"
            )

    @property
    def name(self) -> str:
        """Mode and tasks, for reports."""
        return f"{self.mode}:{'+'.join(self.tasks)}"

    @property
    def draws_keys(self) -> bool:
        """Whether samples differ in order or kernels."""
        return "schedule" in self.tasks or "fusion" in self.tasks


# The exact slicer places, the policy orders and fuses.
ORDER_AND_FUSION: Final = Lesson("slice_cheapest", ("schedule", "fusion"), samples=16, elites=2)
# Rewards are a black box: nothing reads costs. Its samples share one filter: many cost little.
PLACEMENT: Final = Lesson("slice_sampled", ("placement",), samples=64, elites=4)
# The same op by op within the solver's domains, as Xie et al.: parallel branches on any chips.
SAMPLED: Final = Lesson("sample_adjacent", ("placement",), elites=4)
JOINT: Final = Lesson("slice_sampled", TASKS)
