"""One step of training: play each graph, then one update towards the best of what was played.

Self-labelling (Corsini et al., *Self-labeling the job shop scheduling problem*, NeurIPS 2024): the
best samples of the policy are labels, whose log-probability is raised. Lessons differ in how
steep their losses are by orders of magnitude, so each gives the network a gradient of norm one.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from go_opt.agents.decoding.exploration import key_density
from go_opt.agents.inputs.padding import Bucket
from go_opt.agents.policy.network import Outputs
from go_opt.agents.training.problems.cases import Case
from go_opt.agents.training.problems.environment import Session
from go_opt.agents.training.problems.rollout import Episodes, play
from go_opt.agents.training.problems.settings import Settings
from go_opt.agents.training.updates.learner import Learner, LearnerState


@dataclass(frozen=True, eq=False)
class Batch:
    """The episodes of one graph in one step, by lesson, and what they teach."""

    case: Case
    episodes: tuple[Episodes, ...]
    label_log_prob: tuple[float, ...]  # means over the labels
    gradient: Outputs  # of the loss, the lessons' added up


@dataclass(frozen=True, eq=False)
class Step:
    """The batches and metrics of one step."""

    batches: tuple[Batch, ...]
    metrics: dict[str, float]


def take_step(
    learner: Learner,
    state: LearnerState,
    cases: Sequence[Case],
    bucket: Bucket,
    sessions: Sequence[Session],
    settings: Settings,
    *,
    seed: tuple[int, ...],
    executor: Executor,
) -> tuple[LearnerState, Step]:
    """The state after one step on ``cases``, all of ``bucket``; graph by graph in threads.

    Args:
      sessions: the environment of each case.
      seed: seed of all draws.
    """
    outputs = learner.outputs(state, cases, bucket)
    seeds = lesson_seeds(seed, len(cases), settings)

    def play_one(i: int) -> Batch:
        return play_graph(cases[i], outputs[i], sessions[i], settings, seeds[i])

    batches = tuple(executor.map(play_one, range(len(cases))))
    state, norm = learner.update(state, cases, bucket, [batch.gradient for batch in batches])
    return state, Step(batches, _metrics(batches) | {"gradient_norm": norm})


def lesson_seeds(seed: tuple[int, ...], num_graphs: int, settings: Settings) -> list[list[int]]:
    """Of each graph of a step, for each lesson."""
    rng = np.random.default_rng(seed)
    seeds: list[list[int]] = rng.integers(2**31, size=(num_graphs, len(settings.lessons))).tolist()
    return seeds


def play_graph(
    case: Case, outputs: Outputs, session: Session, settings: Settings, seeds: Sequence[int]
) -> Batch:
    """The episodes of one graph, and the gradient of their loss."""
    episodes = tuple(
        play(case, outputs, lesson, session, seed)
        for lesson, seed in zip(settings.lessons, seeds, strict=True)
    )
    log_probs, gradients = [], []
    for each in episodes:
        best = each.labels()
        if not len(best.reward):
            log_probs.append(0.0)
            continue
        log_prob, gradient = mean_log_prob(case, outputs, best)
        log_probs.append(log_prob)
        gradients.append(_of_norm_one(gradient))
    nothing = Outputs(*(np.zeros_like(output) for output in outputs))
    loss = Outputs(*(-np.sum(parts, axis=0) for parts in zip(nothing, *gradients, strict=True)))
    return Batch(case, episodes, tuple(log_probs), loss)


def _of_norm_one(gradient: Outputs) -> Outputs:
    """With the network's part scaled; the walk scales its own."""
    of_network = gradient[2:]
    norm = np.sqrt(sum(float((part**2).sum()) for part in of_network))
    return Outputs(*gradient[:2], *(part / max(norm, 1e-30) for part in of_network))


def _metrics(batches: Sequence[Batch]) -> dict[str, float]:
    """Rewards, the labels' chance and what the solver had to do, by lesson."""
    metrics = {"reward": float(np.mean([each.reward.mean() for batch in batches for each in batch.episodes]))}
    for i, lesson in enumerate(batches[0].episodes):
        name = lesson.lesson.name
        played = [batch.episodes[i] for batch in batches]
        metrics[f"reward/{name}"] = float(np.mean([each.reward.mean() for each in played]))
        metrics[f"best_reward/{name}"] = float(np.mean([each.reward.max() for each in played]))
        metrics[f"label_log_prob/{name}"] = float(np.mean([batch.label_log_prob[i] for batch in batches]))
        metrics[f"invalid_share/{name}"] = float(np.mean([np.isinf(e.interval_s).mean() for e in played]))
        metrics[f"repaired_share/{name}"] = float(np.mean([d.is_repaired for e in played for d in e.decoded]))
    return metrics


# Design section 7: ``log p(keys) + log p(placement | order, kernels)``. Tasks that the lesson does
# not include do not contribute.


def mean_log_prob(case: Case, outputs: Outputs, episodes: Episodes) -> tuple[float, Outputs]:
    """The mean log-probability of ``episodes`` under ``outputs``, and its gradient by ``outputs``."""
    lesson, count = episodes.lesson, len(episodes.reward)
    weight = np.full(count, 1.0 / count)
    total, gradient = 0.0, Outputs(*(np.zeros_like(output) for output in outputs))
    drawn = (
        ("schedule", outputs.schedule_key, episodes.schedule_key, gradient.schedule_key),
        ("fusion", outputs.fusion_key, episodes.fusion_key, gradient.fusion_key),
    )
    for row, (task, mean, keys, to_mean) in enumerate(drawn):
        if task in lesson.tasks:
            density = key_density(case.key_space, mean, outputs.exploration_log_std[row], keys)
            total += float(density.log_density.mean())
            to_mean += weight @ density.to_mean
            gradient.exploration_log_std[row] += weight @ density.to_log_std
    for walk in filter(None, (each.walk for each in episodes.decoded)):
        of_walk = walk.case.gradient(outputs.walk_weights, outputs.walk_head, walk.is_cut[None])
        total += float(of_walk.log_prob[0]) / count
        gradient.walk_weights[:] += of_walk.weights / count
        gradient.walk_head[:] += of_walk.head / count
    return total, gradient
