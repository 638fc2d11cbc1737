"""Lessons and hyperparameters of training, and samples of one graph: drawn, decoded, judged.

A lesson says which tasks the policy decides, and how their samples become plans. All hyperparameters are
written into each checkpoint.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

import numpy as np

from go_opt.agents.decoding.decode import Decisions, Decoded, Mode, Outputs, decode
from go_opt.agents.decoding.exploration import antithetic_normals, draw_keys
from go_opt.agents.training.problems.cases import Case
from go_opt.agents.training.problems.environment import Evaluations, Session
from go_opt.common.arrays import FloatArray, LongArray
from go_opt.env.reward import reward
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


@dataclass(frozen=True, eq=False)
class Episodes:
    """One batch of one graph. Axes: ``S`` samples, ``N`` ops; keys are zero where not decided."""

    lesson: Lesson
    schedule_key: FloatArray  # [S, N]
    fusion_key: FloatArray  # [S, N]
    decoded: list[Decoded]  # [S]
    interval_s: FloatArray  # [S] infinite where invalid
    reward: FloatArray  # [S]

    def labels(self) -> Episodes:
        """The lesson's ``elites``, best first; none if they gain nothing."""
        best = labels(self.reward, self.lesson.elites)
        rows = (self.schedule_key[best], self.fusion_key[best])
        decoded = [self.decoded[s] for s in best]
        return Episodes(self.lesson, *rows, decoded, self.interval_s[best], self.reward[best])


def play(
    case: Case,
    outputs: Outputs,
    lesson: Lesson,
    session: Session,
    seed: int,
    misses: int | None = None,
) -> Episodes:
    """Draw, decode and evaluate the samples of ``lesson``; the same for the same ``seed``.

    ``misses``: see :meth:`~go_opt.agents.decoding.decode.WalkCase.draw`.
    """
    keys = _keys(case, outputs, lesson, seed)
    # Without keys of their own all samples are draws of one order.
    rows, draws = (lesson.samples, 1) if lesson.draws_keys else (1, lesson.samples)
    decisions = Decisions(keys[0][:rows], keys[1][:rows], outputs.walk_weights, outputs.walk_head)
    decoded, _ = decode(case.instance, decisions, lesson.mode, seed=seed, draws=draws, misses=misses)
    parts = ("placement", "order", "fusion_group")
    answer = session.evaluate(*(np.stack([getattr(each.plan, part) for each in decoded]) for part in parts))
    return Episodes(
        lesson,
        *keys,
        decoded,
        np.where(answer.valid, answer.objective_s, np.inf),
        _reward(answer, case.reference_s),
    )


def _reward(answer: Evaluations, reference_s: float) -> FloatArray:
    """[S] that of the plans; below the floor of invalid ones by how far they miss the memory, if known."""
    rewards = reward(answer.objective_s, answer.valid, reference_s)
    if answer.memory_share is not None:
        rewards -= np.where(answer.valid, 0.0, np.log(np.maximum(answer.memory_share, 1.0)))
    return rewards


def _keys(case: Case, outputs: Outputs, lesson: Lesson, seed: int) -> tuple[FloatArray, FloatArray]:
    """[S, N] schedule and fusion keys."""
    rng = np.random.default_rng((seed, 0))
    num_features = outputs.exploration_log_std.shape[1]
    means = {"schedule": outputs.schedule_key, "fusion": outputs.fusion_key}
    keys = []
    for (task, mean), log_std in zip(means.items(), outputs.exploration_log_std, strict=True):
        normals = antithetic_normals(rng, lesson.samples, num_features)
        # Antithetic within each task only: the pairs of the second task are shuffled.
        normals = normals[rng.permutation(lesson.samples)]
        decided = task in lesson.tasks
        drawn = draw_keys(case.key_space, mean, log_std, normals) if decided else None
        keys.append(np.zeros((lesson.samples, len(mean))) if drawn is None else drawn)
    return keys[0], keys[1]


# Smaller gains are noise: graphs on which all plans are alike teach nothing.
LEAST_GAIN: Final = 0.01


def labels(reward: FloatArray, elites: int) -> LongArray:
    """At most ``elites`` of the samples whose ``reward`` [S] is above the median, best first.

    None where the best gains less than ``LEAST_GAIN`` over the median.
    """
    median = np.median(reward)
    best = np.argsort(-reward, kind="stable")[:elites]
    return best[reward[best] > median] if reward[best[0]] >= median + LEAST_GAIN else best[:0]
