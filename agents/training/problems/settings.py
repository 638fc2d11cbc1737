"""All hyperparameters of training, which are written into each checkpoint, and lessons.

A lesson says which tasks the policy decides, and how their samples become plans.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

from go_opt.agents.decoding.decode import Mode
from go_opt.errors import InvalidInputError

Task = Literal["placement", "schedule", "fusion"]
TASKS: Final[tuple[Task, ...]] = get_args(Task)


@dataclass(frozen=True)
class Lesson:
    """The tasks that the policy decides (others keep their default), and a batch size."""

    tasks: tuple[Task, ...]
    samples: int = 32  # that share one pass of the network
    elites: int = 1  # the best of them, whose chance is raised

    def __post_init__(self) -> None:
        if not self.tasks or not set(self.tasks) <= set(TASKS):
            raise InvalidInputError(f"tasks must be some of {', '.join(TASKS)}.", field="tasks")
        if not 1 <= self.elites <= self.samples:
            raise InvalidInputError(
                f"elites is {self.elites}, must be 1 to {self.samples}, the samples.", field="elites"
            )

    @property
    def name(self) -> str:
        """The tasks, for reports."""
        return "+".join(self.tasks)

    @property
    def mode(self) -> Mode:
        """What places: the walk, which does not read what a plan costs, or the exact slicer."""
        return "walk" if "placement" in self.tasks else "slice_cheapest"

    @property
    def draws_keys(self) -> bool:
        """Whether samples differ in order or kernels."""
        return "schedule" in self.tasks or "fusion" in self.tasks


ORDER_AND_FUSION: Final = Lesson(("schedule", "fusion"), samples=16, elites=2)
PLACEMENT: Final = Lesson(("placement",), samples=20, elites=4)
JOINT: Final = Lesson(TASKS)


@dataclass(frozen=True)
class Settings:
    """Self-labelling and its optimiser."""

    lessons: tuple[Lesson, ...] = (PLACEMENT,)
    graphs_per_step: int = 4
    learning_rate: float = 8e-4
    last_learning_rate: float = 2e-5
    warm_up_updates: int = 20
    walk_rate: float = 0.05  # of the weights of the walk; falls linearly, as that of the network
    last_walk_rate: float = 0.0005
    walk_head_rate: float = 0.0  # of the head of the walk, which suits one graph alone

    def __post_init__(self) -> None:
        if self.graphs_per_step < 1:
            raise InvalidInputError(
                f"graphs_per_step is {self.graphs_per_step}, must be 1 or more.", field="graphs_per_step"
            )
        if not self.lessons:
            raise InvalidInputError("lessons is empty: there is nothing to learn.", field="lessons")

    @property
    def samples_per_graph(self) -> int:
        """The number of evaluations per graph of a step."""
        return sum(lesson.samples for lesson in self.lessons)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


LESSONS = {"placement": PLACEMENT, "order": ORDER_AND_FUSION, "joint": JOINT}
