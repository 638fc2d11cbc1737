"""The density of placements under other logits: against the decoder, plain sums, finite differences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.agents.decoding.decode import DRAWING, MODES, Decisions, Decoded, Mode, decode
from go_opt.agents.decoding.placement_density import PlacementDensity, placement_density
from go_opt.agents.generator import generate_graph
from go_opt.common.arrays import BoolArray, FloatArray
from go_opt.env import load_target
from go_opt.errors import InvalidInputError
from go_opt.model.builder import GraphBuilder
from go_opt.solver.orders.instance import Instance, instance
from go_opt.solver.propagation.propagators.domains import pack_chips, unpack_chips
from tests.strategies import examples, random_graph, random_target, seeds, small_mcm

WITH_DENSITY: tuple[Mode, ...] = ("slice_sampled", "sample", "sample_adjacent", "fix", "fix_adjacent")
CHOOSING: tuple[Mode, ...] = WITH_DENSITY[1:]


def three_ops(**rules: str) -> Instance:
    """A chain a -> b -> c of three kernels on two chips."""
    b = GraphBuilder("chain")
    for name, reads in (("a", []), ("b", [("a", None)]), ("c", [("b", None)])):
        writes = [(name, 10, "int8")]
        b.add_op(name, "Transpose", "data_movement", flops=0, dtype="int8", reads=reads, writes=writes)
    return instance(b.build(), small_mcm(2, **rules))


def as_drawn(placement: list[list[int]], open_chips: BoolArray) -> Decoded:
    """Samples of three kernels of one op each, along the order of storage."""
    chips = np.array(placement, np.int32)
    ops = np.tile(np.arange(3, dtype=np.int32), (len(chips), 1))
    none = np.zeros(len(chips), np.bool_)
    return Decoded(chips, ops, ops, np.zeros(len(chips)), none, none, chips, pack_chips(open_chips))


def test_slices_by_hand() -> None:
    """Weights of b on chip 1: 2, of c: 3, and of a cut before c: 5; all others 1.

    Chips 000 weigh 1, 001 3 * 5 = 15, 011 2 * 3 = 6, of 22 in all. b is on chip 1 in 6 of 22,
    c in 21, a cut before b in 6, before c in 15.
    """
    logits = np.log([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    score = np.log([1.0, 1.0, 5.0])
    decoded = as_drawn([[0, 0, 1], [0, 1, 1]], np.zeros((2, 3, 2), np.bool_))
    density = placement_density(three_ops(), logits, score, decoded, "slice_sampled", draws=2)
    assert np.exp(density.log_prob) == pytest.approx([15 / 22, 6 / 22])
    by_logit, by_score = density.gradient(np.array([1.0, 0.0]))
    expected = [[0, 0], [6 / 22, -6 / 22], [-1 / 22, 1 / 22]]
    np.testing.assert_allclose(by_logit, expected, atol=1e-12)
    np.testing.assert_allclose(by_score, [0, -6 / 22, 7 / 22], atol=1e-12)
    # All chips must be used: 000 is out.
    density = placement_density(three_ops(no_skip="all"), logits, score, decoded, "slice_sampled", draws=2)
    assert np.exp(density.log_prob) == pytest.approx([15 / 21, 6 / 21])
    np.testing.assert_allclose(density.gradient(np.array([1.0, 0.0]))[1], [0, -6 / 21, 6 / 21], atol=1e-12)


def test_weights_that_sum_to_zero_by_hand() -> None:
    """The partition function cancels: what 001 has less what 011 has."""
    decoded = as_drawn([[0, 0, 1], [0, 1, 1]], np.zeros((2, 3, 2), np.bool_))
    density = placement_density(three_ops(), np.zeros((3, 2)), np.zeros(3), decoded, "slice_sampled", draws=2)
    by_logit, by_score = density.gradient(np.array([1.0, -1.0]))
    np.testing.assert_allclose(by_logit, [[0, 0], [1, -1], [0, 0]], atol=1e-12)
    np.testing.assert_allclose(by_score, [0, -1, 1], atol=1e-12)


def test_choices_by_hand() -> None:
    """a from 1 : 3 on chip 1, b from 1 : 1 on chip 0, c from chip 1 alone: 3/4 * 1/2 * 1."""
    logits = np.log([[1.0, 3.0], [1.0, 1.0], [7.0, 2.0]])
    decoded = as_drawn([[1, 0, 1]], np.array([[[True, True], [True, True], [False, True]]]))
    density = placement_density(three_ops(), logits, np.zeros(3), decoded, "sample")
    assert np.exp(density.log_prob) == pytest.approx([3 / 8])
    by_logit, by_score = density.gradient(np.array([2.0]))
    np.testing.assert_allclose(by_logit, [[-0.5, 0.5], [1, -1], [0, 0]], atol=1e-12)
    assert not by_score.any()


class Case:
    """Plans drawn under older logits, and new ones."""

    def __init__(self, seed: int, mode: Mode) -> None:
        rng = np.random.default_rng(seed)
        target = random_target(rng, topology="ring", num_kinds=1, sram_bytes=10**7)
        self.mode = mode
        self.instance = instance(random_graph(rng, int(rng.integers(1, 20))), target)
        self.shape = (self.instance.graph.num_ops, target.num_chips)
        self.draws = 3 if mode in DRAWING else 1
        self.old = self.decisions(rng)
        self.new = self.decisions(rng)
        self.decoded = decode(self.instance, self.old, mode, seed=seed, draws=self.draws)
        self.num_samples = len(self.decoded.placement)
        self.weight = rng.standard_normal(self.num_samples)

    def decisions(self, rng: np.random.Generator) -> Decisions:
        num_ops = self.shape[0]
        return Decisions(
            schedule_priority=rng.standard_normal((2, num_ops)),
            fusion_priority=2.0 * rng.standard_normal((2, num_ops)),
            placement_logits=rng.standard_normal(self.shape),
            cut_score=rng.standard_normal(num_ops),
        )

    def density(self, logits: FloatArray, score: FloatArray) -> PlacementDensity:
        return placement_density(self.instance, logits, score, self.decoded, self.mode, self.draws)

    def slope_along(self, logits: FloatArray, score: FloatArray, step: float = 1e-5) -> float:
        """Of the weighted log-probabilities around the new logits, by central differences."""
        ahead, behind = (
            self.weight
            @ self.density(self.new.placement_logits + h * logits, self.new.cut_score + h * score).log_prob
            for h in (step, -step)
        )
        return float(ahead - behind) / (2 * step)


@pytest.mark.parametrize("mode", WITH_DENSITY)
@settings(max_examples=examples(40))
@given(seed=seeds)
def test_under_the_same_logits_it_is_what_the_decoder_says(mode: Mode, seed: int) -> None:
    case = Case(seed, mode)
    density = case.density(case.old.placement_logits, case.old.cut_score)
    np.testing.assert_allclose(density.log_prob, case.decoded.log_prob, atol=1e-9)


@pytest.mark.parametrize("mode", WITH_DENSITY)
@settings(max_examples=examples(30))
@given(seed=seeds)
def test_gradient_is_the_slope(mode: Mode, seed: int) -> None:
    """Along a random direction of all arguments, of one logit, and of the cut scores."""
    case = Case(seed, mode)
    by_logit, by_score = case.density(case.new.placement_logits, case.new.cut_score).gradient(case.weight)
    rng = np.random.default_rng(seed)
    by_both = rng.standard_normal(case.shape), rng.standard_normal(case.shape[0])
    one_logit = np.where(np.arange(by_logit.size) == rng.integers(by_logit.size), 1.0, 0.0)
    for logits, score in (
        by_both,
        (one_logit.reshape(case.shape), np.zeros_like(by_score)),
        (np.zeros_like(by_logit), by_both[1]),
    ):
        expected = case.slope_along(logits, score)
        assert (by_logit * logits).sum() + by_score @ score == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("mode", CHOOSING)
@settings(max_examples=examples(30))
@given(seed=seeds)
def test_choices_agree_with_plain_sums(mode: Mode, seed: int) -> None:
    """Kernel by kernel, with ops that exclude some chips, all of the open ones at times."""
    case = Case(seed, mode)
    num_chips = case.shape[1]
    rng = np.random.default_rng(seed)
    logits = np.where(rng.random(case.shape) < 0.2, -np.inf, case.new.placement_logits)
    density = case.density(logits, case.new.cut_score)
    by_logit = np.zeros(case.shape)
    for s in range(case.num_samples):
        log_prob = 0.0
        gradient = np.zeros(case.shape)
        group = case.decoded.fusion_group[s]
        for kernel in np.unique(group):
            ops = np.flatnonzero(group == kernel)
            row = logits[ops].sum(axis=0)
            is_open = unpack_chips(case.decoded.open_chips[s, ops[0]], num_chips)
            drawn = case.decoded.drawn[s, ops[0]]
            if np.isneginf(row[is_open]).all():
                log_prob -= np.log(is_open.sum())
                continue
            share = np.where(is_open, np.exp(row), 0.0) / np.exp(row[is_open]).sum()
            with np.errstate(divide="ignore"):
                log_prob += np.log(share[drawn])
            gradient[ops] = (np.arange(num_chips) == drawn) - share
        assert density.log_prob[s] == pytest.approx(log_prob, abs=1e-9)
        by_logit += case.weight[s] * gradient if log_prob > -np.inf else 0.0
    np.testing.assert_allclose(density.gradient(case.weight)[0], by_logit, atol=1e-9)


@settings(max_examples=examples(40))
@given(seed=seeds)
def test_slices_of_no_mass_count_as_the_decoder_counts_them(seed: int) -> None:
    """Fell back or not, the log-probability agrees; then a row of no mass has no gradient."""
    case = Case(seed, "slice_sampled")
    is_massless = np.random.default_rng(seed).random(case.shape) < 0.5
    massless = np.where(is_massless, -np.inf, case.old.placement_logits)
    old = replace(case.old, placement_logits=massless)
    decoded = decode(case.instance, old, "slice_sampled", seed=seed, draws=2)
    density = placement_density(case.instance, massless, old.cut_score, decoded, "slice_sampled", 2)
    np.testing.assert_allclose(density.log_prob, decoded.log_prob, rtol=1e-12, atol=1e-9)
    by_logit, by_score = density.gradient(np.where(decoded.fell_back, 1.0, 0.0))
    assert not by_logit.any()
    assert not by_score.any()
    by_logit, _ = density.gradient(np.ones(len(density.log_prob)))
    assert not by_logit[np.isneginf(massless)].any()


def test_samples_that_became_impossible_have_no_gradient() -> None:
    logits = np.zeros((3, 2))
    logits[1, 1] = -np.inf
    decoded = as_drawn([[0, 1, 1], [0, 0, 1]], np.ones((2, 3, 2), np.bool_))
    for mode in ("slice_sampled", "sample"):
        density = placement_density(three_ops(), logits, np.zeros(3), decoded, mode, 2)
        assert density.log_prob[0] == -np.inf
        first, second = (density.gradient(np.array([first, 1.0]))[0] for first in (0.0, 5.0))
        np.testing.assert_array_equal(first, second)
        assert np.isfinite(first).all()


@pytest.mark.parametrize("mode", ["slice_cheapest", "slice_likeliest"])
def test_what_is_not_drawn_has_no_density(mode: Mode) -> None:
    case = Case(0, mode)
    density = case.density(case.new.placement_logits, case.new.cut_score)
    assert density.log_prob.tolist() == [0.0, 0.0]
    by_logit, by_score = density.gradient(np.ones(2))
    assert by_logit.shape == case.shape
    assert not by_logit.any()
    assert not by_score.any()


def test_every_mode_has_a_density_or_draws_nothing() -> None:
    assert {*WITH_DENSITY, "slice_cheapest", "slice_likeliest"} == set(MODES)


@pytest.mark.parametrize("mode", ["slice_sampled", "sample"])
def test_large_graphs_and_many_chips(mode: Mode) -> None:
    case = instance(generate_graph(3, num_ops=300), load_target("mcm-6x6"))
    rng = np.random.default_rng(0)
    shape = (case.graph.num_ops, case.target.num_chips)
    keys = rng.standard_normal((2, shape[0]))
    logits, score = 3.0 * rng.standard_normal(shape), rng.standard_normal(shape[0])
    decoded = decode(case, Decisions(keys, keys, logits, score), mode, draws=2)
    density = placement_density(case, logits, score, decoded, mode, 2)
    np.testing.assert_allclose(density.log_prob, decoded.log_prob, atol=1e-9)
    by_logit, _ = density.gradient(np.ones(4))
    # Adding the same to all chips of an op changes nothing.
    np.testing.assert_allclose(by_logit.sum(axis=1), 0.0, atol=1e-9)


def test_malformed_arguments() -> None:
    case = Case(0, "sample")
    logits, score = case.new.placement_logits, case.new.cut_score
    with pytest.raises(InvalidInputError, match="mode is 'guess'"):
        placement_density(case.instance, logits, score, case.decoded, "guess", 3)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="draws is 4, must divide 6"):
        placement_density(case.instance, logits, score, case.decoded, "sample", 4)
    with pytest.raises(InvalidInputError, match="placement_logits holds NaN"):
        case.density(np.full_like(logits, np.nan), score)
    with pytest.raises(InvalidInputError, match="cut_score has shape"):
        case.density(logits, score[1:])
    with pytest.raises(InvalidInputError, match="weight has shape"):
        case.density(logits, score).gradient(np.ones(2))
