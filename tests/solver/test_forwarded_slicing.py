"""Slicing into stages that forward weights, against all of them as the environment costs them."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import example, given, settings

from go_opt.common.arrays import IntArray, LongArray
from go_opt.env import evaluate_batch
from go_opt.env.copies.stages import with_sharers
from go_opt.env.kernels.numbering import number_kernels
from go_opt.model.graph import WEIGHT
from go_opt.solver.slicing.slice import CLOSE, slice_order_forwarded
from tests.solver.brute_force import segments_of
from tests.solver.test_streamed_slicing import Stagings
from tests.strategies import examples, seeds


class Forwardings(Stagings):
    """Stagings of which every set of replicated stages may forward weights, links inside at their worst."""

    def cost_s(self, stage: IntArray, sizes: LongArray) -> float:
        replicated = np.flatnonzero(sizes > 1)
        sets = (
            set(some) for r in range(len(replicated) + 1) for some in itertools.combinations(replicated, r)
        )
        return min(self.forwarding_s(stage, sizes, some) for some in sets)

    def forwarding_s(self, stage: IntArray, sizes: LongArray, forwarding: set[int]) -> float:
        """A stage's inner links carry what it forwards beside the busier of its borders, at most."""
        tables, *plan, size = self.placed(stage, sizes)
        chips = [int((np.cumsum(sizes) - sizes)[s]) for s in forwarding]
        alone, terms = (evaluate_batch(on, *plan) for on in (tables, with_sharers(tables, chips, size)))
        if not terms.fits[0]:
            return np.inf
        worst_s = float(terms.interval_s[0])
        for chip in chips:
            links = np.arange(chip, chip + size[chip] - 1)
            forwarded_s = (terms.link_s[0] - alone.link_s[0])[links].max()
            borders = [link for link in (chip - 1, chip + size[chip] - 1) if link >= 0]
            worst_s = max(worst_s, float(forwarded_s + alone.link_s[0, borders].max()) * (forwarded_s > 0))
        return worst_s


@settings(max_examples=examples(100), deadline=None)
@given(seed=seeds)
@example(seed=146)  # a weight that one op reads in part and others whole: all of it is forwarded
@example(seed=1798)  # the same; the links inside the stage carry it
def test_the_slicing_is_close_to_the_least(seed: int) -> None:
    all_of = Forwardings(seed, max_ops=6, replicates=True)
    case, at_most_s = all_of.case, all_of.best_s * float(np.random.default_rng(seed).uniform(0.9, 3.0))
    if not np.isfinite(all_of.best_s) or all_of.best_s == 0.0 or case.target.num_chips == 1:
        return
    got = slice_order_forwarded(
        case.tables, case.order, case.group, forwarding=all_of.forwarding, at_most_s=at_most_s, **all_of.rules
    )
    if got is None:
        assert at_most_s < all_of.best_s * (1 + CLOSE) or case.tables.places_buffers or not is_alike(all_of)
        return
    _, sizes = segments_of(got)
    stage = np.searchsorted(np.cumsum(sizes), got.placement, side="right")
    first = np.cumsum(sizes) - sizes
    forwarding = {int(s) for s in np.flatnonzero(np.isin(first, got.forwards))}
    reached_s = all_of.forwarding_s(stage, sizes, forwarding)
    assert all_of.best_s * (1 - 1e-9) <= reached_s
    if not keeps_back_whole_weights(all_of):
        assert reached_s <= got.expected_s * (1 + 1e-9)
        assert reached_s <= all_of.best_s * (1 + 2 * CLOSE)


def keeps_back_whole_weights(all_of: Stagings) -> bool:
    """Whether a kernel reads one weight in part and another whole; it forwards neither."""
    tables, tensor = all_of.case.tables, all_of.case.tables.reader_tensor
    kernel = number_kernels(all_of.case.order, all_of.case.group)[tables.reader_op]
    is_weight = tables.tensor_kind[tensor] == WEIGHT
    is_whole = tables.read_bytes == tables.tensor_bytes[tensor]
    return bool(np.isin(kernel[is_weight & ~is_whole], kernel[is_weight & is_whole]).any())


def is_alike(all_of: Stagings) -> bool:
    """Whether all chips may run everything, as is asked for."""
    return len(all_of.case.target.kinds) == 1 and "allowed" not in all_of.rules
