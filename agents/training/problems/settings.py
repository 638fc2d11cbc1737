"""All hyperparameters of training, which are written into each checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from go_opt.agents.training.problems.lessons import JOINT, ORDER_AND_FUSION, PLACEMENT, SAMPLED, Lesson
from go_opt.errors import InvalidInputError


@dataclass(frozen=True)
class Settings:
    """PPO and its optimiser. A pair of values changes linearly over a run, from first to last."""

    lessons: tuple[Lesson, ...] = (ORDER_AND_FUSION, PLACEMENT, SAMPLED)
    graphs_per_step: int = 4
    epochs: int = 2  # passes over each batch
    clip: float = 0.2
    learning_rate: float = 1e-3
    last_learning_rate: float = 2e-4
    warm_up_updates: int = 20
    weight_decay: float = (
        0.1  # times the learning rate, of the read-outs of keys alone: means that grow end exploration
    )
    largest_gradient: float = 1.0  # norm, of each graph's
    key_entropy: tuple[float, float] = (3e-3, 3e-4)
    placement_entropy: tuple[float, float] = (3e-3, 3e-4)

    def __post_init__(self) -> None:
        for name in ("graphs_per_step", "epochs"):
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{name} is {getattr(self, name)}, must be 1 or more.", field=name)
        if not self.lessons:
            raise InvalidInputError("lessons is empty: there is nothing to learn.", field="lessons")

    @property
    def samples_per_graph(self) -> int:
        """The number of evaluations per graph of a step."""
        return sum(lesson.samples for lesson in self.lessons)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


LESSONS = {"order": ORDER_AND_FUSION, "placement": PLACEMENT, "sample": SAMPLED, "joint": JOINT}
