"""Plans that a policy proposes in a search: one pass of its network, then endless draws.

Half of the drawn keys are the policy's, and half the prior's: around zero with a spread of one
along every feature, structured keys that nothing was learned for
(:mod:`go_opt.agents.decoding.exploration`). So a policy that misjudges a graph costs at most half of
the proposals. Draws come in antithetic pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.agents.decoding.decode import Decisions, Outputs, decode, neutral_outputs
from go_opt.agents.decoding.exploration import KeySpace, antithetic_normals, draw_keys, key_space
from go_opt.agents.inputs.features import GraphFeatures, graph_features
from go_opt.agents.inputs.padding import rows_to_ops
from go_opt.common.arrays import FloatArray, IntArray
from go_opt.env import Target
from go_opt.errors import InfeasibleError
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate
from go_opt.solver.orders.instance import OrderProblem
from go_opt.solver.orders.orders import schedule

WALKS_AT_A_TIME: Final = 8
NOWHERE: Final = np.zeros(0, np.int32)  # the placement of plans that have none yet


class Advice(NamedTuple):
    """The outputs of a policy for one graph on one target."""

    outputs: Outputs
    directions: NDArray[np.float32]  # [N, F] that keys are perturbed along


def advice(policy: Callable[[GraphFeatures], Outputs], graph: Graph, target: Target) -> Advice:
    """The outputs of ``policy`` for ``graph`` on ``target``, from one forward pass."""
    features = graph_features(graph, target)
    return Advice(policy(features), rows_to_ops(features, features.exploration))


def policy_plans(advised: Advice, instance: OrderProblem, seed: int) -> Iterator[Candidate]:
    """Endless plans, deterministic for a ``seed``; those without a placement are to be sliced at least cost.

    First come the policy's means. Then each round has a pair of the policy's keys, a pair of the prior's,
    and a walk of the default order.
    """
    outputs = advised.outputs
    group, order = schedule(instance, outputs.schedule_key, outputs.fusion_key)
    yield _unplaced("policy", order, group)
    walks = _walks(instance, outputs, (seed, 1))
    rng = np.random.default_rng(seed)
    space = key_space(advised.directions)
    prior = neutral_outputs(outputs.walk_weights, outputs.walk_head)
    while True:
        own = _pair("policy: order and kernels", instance, space, outputs, rng)
        other = _pair("structured keys: order and kernels", instance, space, prior, rng)
        for pair in zip(own, other, strict=True):
            yield from pair
        yield from islice(walks, 1)


def own_plans(advised: Advice, instance: OrderProblem, seed: int) -> Iterator[Candidate]:
    """Endless plans whose order, kernels and placement all come from the policy; seeded.

    First come its means, then keys drawn in pairs. Ends at an order without a valid placement.
    """
    outputs, rng = advised.outputs, np.random.default_rng((seed, 4))
    space = key_space(advised.directions)
    keys = outputs.schedule_key[None], outputs.fusion_key[None]
    misses: int | None = 0
    with suppress(InfeasibleError):
        while True:
            decisions = Decisions(*keys, outputs.walk_weights, outputs.walk_head)
            misses = yield from _decoded(instance, decisions, 1, rng, misses)
            keys = _drawn_keys(space, outputs, rng)


def _pair(
    method: str, instance: OrderProblem, space: KeySpace, outputs: Outputs, rng: np.random.Generator
) -> Iterator[Candidate]:
    """Two draws of opposite noise."""
    schedule_key, fusion_key = _drawn_keys(space, outputs, rng)
    for i in range(2):
        group, order = schedule(instance, schedule_key[i], fusion_key[i])
        yield _unplaced(method, order, group)


def _drawn_keys(space: KeySpace, outputs: Outputs, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """[2, N] schedule and fusion keys of opposite noise."""
    schedule_log_std, fusion_log_std = outputs.exploration_log_std
    normals = antithetic_normals(rng, 2, len(schedule_log_std))
    schedule_key = draw_keys(space, outputs.schedule_key, schedule_log_std, normals)
    # Independent noise: with shared noise, opposite orders would always come with opposite kernels.
    normals = antithetic_normals(rng, 2, len(fusion_log_std))
    return schedule_key, draw_keys(space, outputs.fusion_key, fusion_log_std, normals)


def _walks(instance: OrderProblem, outputs: Outputs, seed: tuple[int, int]) -> Iterator[Candidate]:
    """Placements of the default order and kernels; they may stream weights.

    Yields nothing if excluded chip kinds leave the default order without a valid placement.
    """
    neutral = np.zeros((1, instance.graph.num_ops))
    decisions = Decisions(neutral, neutral, outputs.walk_weights, outputs.walk_head)
    rng = np.random.default_rng(seed)
    misses: int | None = 0
    with suppress(InfeasibleError):
        while True:
            misses = yield from _decoded(instance, decisions, WALKS_AT_A_TIME, rng, misses)


def _decoded(
    instance: OrderProblem, decisions: Decisions, draws: int, rng: np.random.Generator, misses: int | None
) -> Generator[Candidate, None, int | None]:
    """Returns ``misses`` for the next call."""
    seed = int(rng.integers(2**31))
    decoded, misses = decode(instance, decisions, "walk", seed=seed, draws=draws, misses=misses)
    yield from (each.plan for each in decoded)
    return misses


def _unplaced(method: str, order: IntArray, fusion_group: IntArray) -> Candidate:
    """An order with kernels, which the search slices at least cost."""
    return Candidate(method, NOWHERE, order, fusion_group)
