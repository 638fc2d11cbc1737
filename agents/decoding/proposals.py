"""Plans that a policy proposes in a search: one pass of its network, then endless draws.

Half of the drawn keys are the policy's, and half the prior's: around zero with a spread of one
along every feature, structured keys that nothing was learned for
(:mod:`go_opt.agents.decoding.exploration`). So a policy that misjudges a graph costs at most half of
the proposals. Draws come in antithetic pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, count, cycle, islice
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.agents.decoding.decode import Decisions, Mode, decode
from go_opt.agents.decoding.exploration import KeySpace, antithetic_normals, draw_keys, key_space
from go_opt.agents.decoding.outputs import Outputs
from go_opt.agents.inputs.features import GraphFeatures, graph_features
from go_opt.agents.inputs.padding import rows_to_ops
from go_opt.common.arrays import FloatArray, IntArray
from go_opt.env import Target
from go_opt.env.copies.stages import stages_of_sizes
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.errors import InfeasibleError
from go_opt.model.graph import Graph
from go_opt.solver.orders.instance import Instance
from go_opt.solver.orders.orders import largest_by_kernel, schedule
from go_opt.solver.problem.allotment import allotted_chips

PLACEMENTS_AT_A_TIME: Final = 8  # share one filter over the order


class Advice(NamedTuple):
    """The outputs of a policy for one graph on one target."""

    outputs: Outputs
    directions: NDArray[np.float32]  # [N, F] that keys are perturbed along


class PolicyPlan(NamedTuple):
    """An order with kernels; without a placement, the search slices it at least cost."""

    method: str
    order: IntArray  # [N]
    fusion_group: IntArray  # [N]
    placement: IntArray | None  # [N]
    replication: IntArray | None = None  # [N]; None: no stage is replicated


def advice(policy: Callable[[GraphFeatures], Outputs], graph: Graph, target: Target) -> Advice:
    """The outputs of ``policy`` for ``graph`` on ``target``, from one forward pass."""
    features = graph_features(graph, target)
    return Advice(policy(features), rows_to_ops(features, features.exploration))


def policy_plans(
    advised: Advice, instance: Instance, seed: int, *, replicates: bool = False
) -> Iterator[PolicyPlan]:
    """Endless plans, deterministic for a ``seed``; some with replicated stages, if allowed.

    First come the policy's means and the likeliest slicing of the default order by its logits.
    Then each round has a pair of the policy's keys, a pair of the prior's, a slicing, and a
    placement drawn op by op from the logits. The last can spread parallel branches, and weights
    that do not fit, over chips that no slicing of one order can reach.
    """
    outputs = advised.outputs
    group, order = schedule(instance, outputs.schedule_key, outputs.fusion_key)
    yield PolicyPlan("policy", order, group, None)
    yield from islice(_drawn_placements(instance, outputs, "slice_likeliest", 1, (seed, 0)), 1)
    sliced = _drawn_placements(instance, outputs, "slice_sampled", PLACEMENTS_AT_A_TIME, (seed, 1))
    sampled = _drawn_placements(instance, outputs, "sample_adjacent", PLACEMENTS_AT_A_TIME, (seed, 2))
    staged = _drawn_stages(instance, outputs, order, group, (seed, 3)) if replicates else iter(())
    rng = np.random.default_rng(seed)
    space = key_space(advised.directions)
    nothing = np.zeros(instance.graph.num_ops)
    prior = outputs._replace(
        schedule_key=nothing,
        fusion_key=nothing,
        exploration_log_std=np.zeros_like(outputs.exploration_log_std),
    )
    while True:
        own = _pair("policy: order and kernels", instance, space, outputs, rng)
        other = _pair("structured keys: order and kernels", instance, space, prior, rng)
        for pair in zip(own, other, strict=True):
            yield from pair
        yield from islice(sliced, 1)
        yield from islice(sampled, 1)
        yield from islice(staged, 1)


def own_plans(advised: Advice, instance: Instance, seed: int) -> Iterator[PolicyPlan]:
    """Endless plans whose order, kernels and placement all come from the policy; seeded.

    First come its means, then keys drawn in pairs. SLICE and SAMPLE alternate in making placements valid
    (for the means: the likeliest slicing and FIX). Ends at an order without a valid placement.
    """
    outputs, rng = advised.outputs, np.random.default_rng((seed, 4))
    space = key_space(advised.directions)
    means: tuple[Mode, ...] = ("slice_likeliest", "fix")
    draws: tuple[Mode, ...] = ("slice_sampled", "sample")
    keys = outputs.schedule_key[None], outputs.fusion_key[None]
    with suppress(InfeasibleError):
        for mode in chain(means, cycle(draws)):
            decisions = Decisions(*keys, outputs.logits(mode), outputs.cut_score)
            yield from _decoded(instance, decisions, mode, 1, rng)
            keys = keys if mode == means[0] else _drawn_keys(space, outputs, rng)


def _drawn_stages(
    instance: Instance,
    outputs: Outputs,
    order: IntArray,
    fusion_group: IntArray,
    seed: tuple[int, int],
) -> Iterator[PolicyPlan]:
    """Stages along the policy's order, cut at its highest cut scores, with chips in proportion to work.

    First come the best cuts, from none to as many as chips allow. Then a random number of cuts is
    drawn, one after the other, in proportion to ``exp(cut_score)``.
    """
    kernel_of = number_kernels(order, fusion_group)
    score = largest_by_kernel(kernel_of, outputs.cut_score)[1:]
    kernel_s = kernel_seconds(instance.tables, kernel_of).min(axis=0)
    most_chips = instance.tables.num_chips
    most = min(most_chips, len(kernel_s))
    rng = np.random.default_rng(seed)
    for draw in count():
        num_cuts = draw if draw < most else int(rng.integers(most))
        noise = 0.0 if draw < most else rng.gumbel(size=len(score))
        cuts = np.sort(np.argsort(-(score + noise), kind="stable")[:num_cuts] + 1)
        stage = np.searchsorted(cuts, np.arange(len(kernel_s)), side="right")
        size = allotted_chips(np.bincount(stage, weights=kernel_s).astype(np.float64), most_chips)
        stages, stage_of_op = stages_of_sizes(size), stage[kernel_of]
        placement, replication = stages.first_chip[stage_of_op], stages.size[stage_of_op]
        yield PolicyPlan("policy: stages", order, fusion_group, placement, replication)


def _pair(
    method: str, instance: Instance, space: KeySpace, outputs: Outputs, rng: np.random.Generator
) -> Iterator[PolicyPlan]:
    """Two draws of opposite noise."""
    schedule_key, fusion_key = _drawn_keys(space, outputs, rng)
    for i in range(2):
        group, order = schedule(instance, schedule_key[i], fusion_key[i])
        yield PolicyPlan(method, order, group, None)


def _drawn_keys(space: KeySpace, outputs: Outputs, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """[2, N] schedule and fusion keys of opposite noise."""
    schedule_log_std, fusion_log_std = outputs.exploration_log_std
    normals = antithetic_normals(rng, 2, len(schedule_log_std))
    schedule_key = draw_keys(space, outputs.schedule_key, schedule_log_std, normals)
    # Independent noise: with shared noise, opposite orders would always come with opposite kernels.
    normals = antithetic_normals(rng, 2, len(fusion_log_std))
    return schedule_key, draw_keys(space, outputs.fusion_key, fusion_log_std, normals)


def _drawn_placements(
    instance: Instance, outputs: Outputs, mode: Mode, draws: int, seed: tuple[int, int]
) -> Iterator[PolicyPlan]:
    """Placements of the default order and kernels by the policy's logits; they may stream weights.

    Yields nothing if excluded chip kinds leave the default order without a valid placement.
    """
    neutral = np.zeros((1, instance.graph.num_ops))
    decisions = Decisions(neutral, neutral, outputs.logits(mode), outputs.cut_score)
    rng = np.random.default_rng(seed)
    with suppress(InfeasibleError):
        while True:
            yield from _decoded(instance, decisions, mode, draws, rng)


def _decoded(
    instance: Instance, decisions: Decisions, mode: Mode, draws: int, rng: np.random.Generator
) -> Iterator[PolicyPlan]:
    decoded = decode(instance, decisions, mode, seed=int(rng.integers(2**31)), draws=draws)
    for placement, order, group in zip(decoded.placement, decoded.order, decoded.fusion_group, strict=True):
        yield PolicyPlan("policy: placement", order, group, placement)
