"""All hyperparameters of training, which are written into each checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from go_opt.agents.training.problems.lessons import JOINT, ORDER_AND_FUSION, PLACEMENT, Lesson
from go_opt.errors import InvalidInputError


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
