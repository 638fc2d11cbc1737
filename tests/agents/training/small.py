"""A network, graphs and a learner as small as they come, shared so that each compiles once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache

import jax
import numpy as np
from flax import nnx

from go_opt.agents.decoding.decode import Outputs
from go_opt.agents.generator import generate_graph
from go_opt.agents.inputs.features import NUM_EXPLORED
from go_opt.agents.inputs.padding import Bucket
from go_opt.agents.networks import PolicyConfig, initial_parameters
from go_opt.agents.policy.network import Policy
from go_opt.agents.training.problems.cases import Case, case
from go_opt.agents.training.problems.environment import Evaluations
from go_opt.agents.training.problems.rollout import TASKS, Lesson, Settings
from go_opt.agents.training.updates.learner import Learner, LearnerState
from go_opt.common.arrays import FloatArray, IntArray
from go_opt.env import load_target
from go_opt.solver.walk.walk import NUM_FEATURES

# One segment holds a graph: gradients stop at the one before, slopes do not.
CONFIG = PolicyConfig(width=16, graphsage_layers=1, attention_layers=1, num_heads=2, segment_ops=64, rounds=1)
BUCKET = Bucket(128, 128)

ORDER = Lesson(("schedule", "fusion"), samples=8, elites=3)
PLACEMENT = Lesson(("placement",), samples=8, elites=3)
UNFUSED = Lesson(("placement", "schedule"), samples=8, elites=3)
JOINT = Lesson(TASKS, samples=8, elites=3)
LESSONS = (ORDER, PLACEMENT, UNFUSED, JOINT)
# A constant rate that learns in a few steps.
SETTINGS = Settings(
    lessons=LESSONS,
    graphs_per_step=2,
    learning_rate=0.01,
    last_learning_rate=0.01,
    warm_up_updates=0,
    walk_rate=0.05,
    last_walk_rate=0.05,
)


@lru_cache
def small_learner() -> Learner:
    return Learner(CONFIG, SETTINGS, updates=1)


def gradient_of(state: LearnerState) -> nnx.State:
    """The gradient that the first update of a state followed: a tenth of it is Adam's first moment."""
    gradient: nnx.State = jax.tree.map(
        lambda moment: np.asarray(moment, np.float64) / 0.1, state.optimizer.mu
    )
    return gradient


@lru_cache
def small_case(seed: int) -> Case:
    """Side by side branches, whose order matters: 50 ops and more on four chips."""
    return case(generate_graph(seed, family="towers", num_ops=50 + seed), load_target("mcm-2x2"))


_initial = cache(initial_parameters)  # a fifth of a second


def trained_parameters(seed: int = 0, scale: float = 0.3) -> nnx.State:
    """As after training: nothing is zero any more; the larger the scale, the surer of itself."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: leaf + np.float32(scale) * rng.standard_normal(leaf.shape, dtype=np.float32),
        _initial(CONFIG, seed),
    )


def trained_policy(seed: int = 0, scale: float = 0.3) -> Policy:
    """The same with weights of the walk."""
    weights = scale * np.random.default_rng(seed).standard_normal(NUM_FEATURES)
    return Policy(CONFIG, trained_parameters(seed, scale), weights)


def random_outputs(rng: np.random.Generator, of: Case, scale: float = 1.0) -> Outputs:
    """What a network might say."""
    num_ops = of.instance.graph.num_ops
    shapes = ((NUM_FEATURES,), (num_ops,), (num_ops,), (num_ops,), (2, NUM_EXPLORED))
    return Outputs(*(scale * rng.standard_normal(shape) for shape in shapes))


Plans = IntArray


class Answers:
    """A session that answers what a function of placement and order [B, N] says, and keeps what was asked."""

    def __init__(self, interval_s: Callable[[Plans, Plans], FloatArray]) -> None:
        self._interval_s = interval_s
        self.asked: list[tuple[Plans, Plans, Plans]] = []

    def evaluate(self, placement: Plans, order: Plans, fusion_group: Plans) -> Evaluations:
        self.asked.append((placement, order, fusion_group))
        interval_s = self._interval_s(placement, order)
        return Evaluations(interval_s, np.isfinite(interval_s))

    def close(self) -> None:
        """Nothing is held."""
