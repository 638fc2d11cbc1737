"""All hyperparameters of training, which are written into each checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from go_opt.agents.training.problems.lessons import JOINT, ORDER_AND_FUSION, PLACEMENT, SAMPLED, Lesson
from go_opt.errors import InvalidInputError

TAUGHT: Final = 32  # placements of a rule that are tried beside the samples; see ``labels``


@dataclass(frozen=True)
class Settings:
    """Self-labelling and its optimiser."""

    lessons: tuple[Lesson, ...] = (ORDER_AND_FUSION, PLACEMENT, SAMPLED)
    graphs_per_step: int = 4
    learning_rate: float = 8e-4
    last_learning_rate: float = 2e-5
    warm_up_updates: int = 20
    is_taught: bool = True  # whether the placements of a rule are tried too

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
        tried = TAUGHT * self.is_taught
        return sum(lesson.samples + tried * (not lesson.draws_keys) for lesson in self.lessons)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


LESSONS = {"order": ORDER_AND_FUSION, "placement": PLACEMENT, "sample": SAMPLED, "joint": JOINT}
