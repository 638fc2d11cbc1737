"""The log-probability of episodes: that of the decoder, the keys' and the placement's; its gradient."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.agents.decoding.outputs import Outputs
from go_opt.agents.training.problems.cases import Case, case
from go_opt.agents.training.problems.lessons import Lesson
from go_opt.agents.training.problems.rollout import Episodes, play
from go_opt.agents.training.updates.log_prob import episode_density
from go_opt.model.builder import GraphBuilder
from go_opt.solver.orders.instance import instance
from go_opt.solver.problem.sequence import kernel_sequence
from go_opt.solver.slicing.likelihood import sequence_filter
from tests.agents.training.small import LESSONS, ORDER, PLACEMENT, Answers, random_outputs, small_case
from tests.strategies import examples, seeds, small_mcm


def played(of: Case, outputs: Outputs, lesson: Lesson, seed: int) -> Episodes:
    return play(of, outputs, lesson, Answers(lambda placement, order: np.ones(len(placement))), seed)


def moved(outputs: Outputs, direction: Outputs, step: float) -> Outputs:
    return Outputs(*(at + step * by for at, by in zip(outputs, direction, strict=True)))


def dot(a: Outputs, b: Outputs) -> float:
    return float(sum((x * y).sum() for x, y in zip(a, b, strict=True)))


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_it_is_the_sum_of_what_was_drawn(lesson: Lesson) -> None:
    """The placements' as the decoder says it, and the keys' of those tasks that are decided."""
    of = small_case(1)
    outputs = random_outputs(np.random.default_rng(0), of)
    episodes = played(of, outputs, lesson, 0)
    density = episode_density(of, outputs, episodes)
    expected = episodes.decoded.log_prob.copy()
    for task, keys in zip(("schedule", "fusion"), density.keys, strict=True):
        assert (keys is not None) == (task in lesson.tasks)
        if keys is not None:
            expected += keys.log_density
    assert (density.placement is not None) == ("placement" in lesson.tasks)
    assert density.log_prob.shape == (8,)
    np.testing.assert_allclose(density.log_prob, expected, atol=1e-9)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
@settings(max_examples=examples(5))
@given(seed=seeds)
def test_gradient_is_the_slope(lesson: Lesson, seed: int) -> None:
    """Under other outputs than those that drew, along a random direction of each output."""
    of = small_case(1)
    rng = np.random.default_rng(seed)
    episodes = played(of, random_outputs(rng, of), lesson, seed)
    outputs = random_outputs(rng, of)
    weight = rng.standard_normal(8)

    def loss(at: Outputs) -> float:
        density = episode_density(of, at, episodes)
        return float(weight @ density.log_prob) - 0.7 * density.key_entropy

    density = episode_density(of, outputs, episodes)
    gradient = density.gradient(weight, key_entropy=0.7, placement_entropy=0.0)
    direction, nothing = random_outputs(rng, of), random_outputs(rng, of, scale=0.0)
    step = 1e-6
    for field in Outputs._fields:
        along = nothing._replace(**{field: getattr(direction, field)})
        slope = (loss(moved(outputs, along, step)) - loss(moved(outputs, along, -step))) / (2 * step)
        scale = np.abs(getattr(gradient, field)).max()
        assert dot(gradient, along) == pytest.approx(slope, rel=1e-4, abs=1e-4 * max(1.0, scale)), field


def test_tasks_that_are_not_decided_have_no_gradient() -> None:
    of = small_case(1)
    outputs = random_outputs(np.random.default_rng(0), of)
    of_outputs = {
        "placement": ("placement_logits", "cut_score"),
        "schedule": ("schedule_key",),
        "fusion": ("fusion_key",),
    }
    for lesson in LESSONS:
        density = episode_density(of, outputs, played(of, outputs, lesson, 0))
        gradient = density.gradient(np.arange(8.0), key_entropy=1.0, placement_entropy=1.0)
        for task, fields in of_outputs.items():
            for field in fields:
                # The exact slicer does not hear the cut score, `sample` neither: only `slice_sampled`.
                is_heard = task in lesson.tasks and (field != "cut_score" or lesson.mode == "slice_sampled")
                assert getattr(gradient, field).any() == is_heard, (lesson.name, field)
        for i, task in enumerate(("schedule", "fusion")):
            assert gradient.exploration_log_std[i].any() == (task in lesson.tasks)


def three_ops() -> Case:
    """A chain of three kernels on two chips: cuts nowhere, or before b or c."""
    b = GraphBuilder("chain")
    for name, reads in (("a", []), ("b", [("a", None)]), ("c", [("b", None)])):
        writes = [(name, 10, "int8")]
        b.add_op(name, "Transpose", "data_movement", flops=0, dtype="int8", reads=reads, writes=writes)
    return case(b.build(), small_mcm(2))


def placement_entropy(of: Case, outputs: Outputs) -> float:
    """Per op, of the three slicings one by one."""
    score = np.append(outputs.cut_score, 0.0)
    slicings = np.array([[0, 0, 0], [0, 0, 1], [0, 1, 1]])
    logits = outputs.placement_logits[np.arange(3), slicings].sum(axis=1)
    logits += np.array([0.0, score[2], score[1]])
    log_share = logits - np.log(np.exp(logits).sum())
    return float(-(np.exp(log_share) * log_share).sum() / 3)


def test_placement_entropy_is_raised() -> None:
    """On average over many draws along the slope of the exact entropy."""
    of = three_ops()
    outputs = random_outputs(np.random.default_rng(3), of)
    many = Lesson("slice_sampled", ("placement",), samples=40_000, best_of=1)
    density = episode_density(of, outputs, played(of, outputs, many, 0))
    gradient = density.gradient(np.zeros(40_000), key_entropy=0.0, placement_entropy=2.0)
    nothing = random_outputs(np.random.default_rng(0), of, scale=0.0)
    step = 1e-5
    for op in range(3):
        along = nothing._replace(cut_score=np.eye(3)[op])
        ahead, behind = (placement_entropy(of, moved(outputs, along, h)) for h in (step, -step))
        assert gradient.cut_score[op] == pytest.approx(-2.0 * (ahead - behind) / (2 * step), abs=5e-3)


def test_key_entropy_is_that_of_the_keys_drawn() -> None:
    """In nats; a spread e times as wide in all directions is K nats more."""
    of = small_case(1)
    outputs = random_outputs(np.random.default_rng(0), of)
    wider = outputs._replace(exploration_log_std=outputs.exploration_log_std + np.array([[1.0], [0.0]]))
    episodes = played(of, outputs, ORDER, 0)
    entropies = [episode_density(of, each, episodes).key_entropy for each in (outputs, wider)]
    assert entropies[1] - entropies[0] == pytest.approx(of.key_space.basis.shape[1])
    drawn_no_keys = episode_density(of, outputs, played(of, outputs, PLACEMENT, 0))
    assert drawn_no_keys.key_entropy == 0.0


def test_the_twin_counts_the_slicings_of_the_solver() -> None:
    """The three slicings that the entropy above is worked out from are all there are."""
    on_target = instance(three_ops().instance.graph, small_mcm(2))
    sequence = kernel_sequence(
        on_target.tables, on_target.order, on_target.fusion_group, adjacent=on_target.is_adjacent
    )
    found, _, _ = sequence_filter(sequence, np.zeros((3, 2)), on_target.tables.chip_kind)
    assert np.exp(found.log_total) == pytest.approx(3)
