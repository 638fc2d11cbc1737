"""One step of PPO: play each graph, then some epochs of updates on what was played."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from go_opt.agents.inputs.padding import Bucket
from go_opt.agents.policy.network import Outputs
from go_opt.agents.training.problems.cases import Case
from go_opt.agents.training.problems.environment import Session
from go_opt.agents.training.problems.rollout import Episodes, play
from go_opt.agents.training.problems.settings import Settings
from go_opt.agents.training.updates.advantage import advantage
from go_opt.agents.training.updates.learner import Learner, LearnerState
from go_opt.agents.training.updates.log_prob import EpisodeDensity, episode_density
from go_opt.agents.training.updates.ppo import Surrogate, surrogate
from go_opt.common.arrays import FloatArray


@dataclass(frozen=True, eq=False)
class Batch:
    """The episodes of one graph in one step, by lesson, with their log-probabilities."""

    case: Case
    episodes: tuple[Episodes, ...]
    log_prob: tuple[FloatArray, ...]  # [S] each, when drawn
    advantage: tuple[FloatArray, ...]  # [S] each


@dataclass(frozen=True, eq=False)
class Step:
    """The batches and metrics of one step."""

    batches: tuple[Batch, ...]
    metrics: dict[str, float]


@dataclass(frozen=True)
class Entropies:
    """The entropy weights in this step."""

    key: float
    placement: float


def take_step(
    learner: Learner,
    state: LearnerState,
    cases: Sequence[Case],
    bucket: Bucket,
    sessions: Sequence[Session],
    settings: Settings,
    *,
    seed: tuple[int, ...],
    done: float,
    executor: Executor,
) -> tuple[LearnerState, Step]:
    """The state after one step on ``cases``, all of ``bucket``; graph by graph in threads.

    Args:
      sessions: the environment of each case.
      seed: seed of all draws.
      done: completed share of the run, 0 to 1.
    """
    entropies = Entropies(
        *(first + (last - first) * done for first, last in (settings.key_entropy, settings.placement_entropy))
    )
    outputs = learner.outputs(state, cases, bucket)
    seeds = np.random.default_rng(seed).integers(2**31, size=(len(cases), len(settings.lessons))).tolist()

    def play_one(i: int) -> Batch:
        return _play(cases[i], outputs[i], sessions[i], settings, seeds[i])

    batches = list(executor.map(play_one, range(len(cases))))
    metrics: dict[str, float] = {}
    for epoch in range(settings.epochs):
        if epoch:
            outputs = learner.outputs(state, cases, bucket)
        learnt = list(executor.map(lambda b, o: _gradient(b, o, settings, entropies), batches, outputs))
        state, norm = learner.update(state, cases, bucket, [gradient for gradient, _ in learnt])
        metrics = _means([each for _, each in learnt]) | {"gradient_norm": norm}
    return state, Step(tuple(batches), metrics | _played(batches))


def _play(case: Case, outputs: Outputs, session: Session, settings: Settings, seeds: list[int]) -> Batch:
    episodes = tuple(
        play(case, outputs, lesson, session, seed)
        for lesson, seed in zip(settings.lessons, seeds, strict=True)
    )
    return Batch(
        case,
        episodes,
        tuple(episode_density(case, outputs, each).log_prob for each in episodes),
        tuple(advantage(each.reward, each.lesson.best_of) for each in episodes),
    )


def _gradient(
    batch: Batch, outputs: Outputs, settings: Settings, entropies: Entropies
) -> tuple[Outputs, dict[str, float]]:
    """Gradient of the batch's loss by output, the lessons' added up, and PPO's own metrics."""
    gradients, metrics = [], []
    for episodes, old_log_prob, gains in zip(batch.episodes, batch.log_prob, batch.advantage, strict=True):
        density = episode_density(batch.case, outputs, episodes)
        loss = surrogate(density.log_prob, old_log_prob, gains, settings.clip)
        gradients.append(
            density.gradient(
                loss.to_log_prob, key_entropy=entropies.key, placement_entropy=entropies.placement
            )
        )
        metrics.append(_watched(density, loss))
    summed = Outputs(*(np.sum(parts, axis=0) for parts in zip(*gradients, strict=True)))
    return summed, _means(metrics)


def _watched(density: EpisodeDensity, loss: Surrogate) -> dict[str, float]:
    return {
        "loss": loss.loss,
        "kl": loss.kl,
        "clipped_share": loss.clipped_share,
        "key_entropy": density.key_entropy,
    }


def _played(batches: Sequence[Batch]) -> dict[str, float]:
    """Rewards and what the solver had to do, by lesson."""
    metrics = {"reward": float(np.mean([each.reward.mean() for batch in batches for each in batch.episodes]))}
    for i, lesson in enumerate(batches[0].episodes):
        name = lesson.lesson.name
        played = [batch.episodes[i] for batch in batches]
        metrics[f"reward/{name}"] = float(np.mean([each.reward.mean() for each in played]))
        metrics[f"best_reward/{name}"] = float(np.mean([each.reward.max() for each in played]))
        metrics[f"invalid_share/{name}"] = float(np.mean([np.isinf(e.interval_s).mean() for e in played]))
        metrics[f"backtracked_share/{name}"] = float(np.mean([e.decoded.backtracked.mean() for e in played]))
        metrics[f"fell_back_share/{name}"] = float(np.mean([e.decoded.fell_back.mean() for e in played]))
    return metrics


def _means(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
