"""The fewest bytes that any plan streams, against every choice of the weights that stay."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings

from go_opt.env import CostTables, cost_tables
from go_opt.model.graph import WEIGHT
from go_opt.solver.problem.streamed_bytes import least_streamed_bytes
from tests.strategies import examples, random_graph, random_target, seeds

MOST_WEIGHTS = 10  # on a chip


def least_on_chip(tables: CostTables, touched: dict[int, int], sram_bytes: int) -> int:
    """Bytes touched of the weights that stream, where those that stay are chosen best."""
    weights = list(touched)
    assert len(weights) <= MOST_WEIGHTS
    stays = (
        set(some)
        for size in range(len(weights) + 1)
        for some in itertools.combinations(weights, size)
        if sum(int(tables.stored_bytes[k]) for k in some) <= sram_bytes
    )
    return min(sum(size for k, size in touched.items() if k not in some) for some in stays)


@settings(max_examples=examples(150), deadline=None)
@given(seed=seeds)
def test_no_choice_of_resident_weights_streams_less(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng, num_chips=int(rng.integers(1, 4)), sram_bytes=int(10 ** rng.uniform(2.5, 5)))
    tables = cost_tables(random_graph(rng, int(rng.integers(1, 8))), target)
    least, num_chips = least_streamed_bytes(tables), tables.num_chips
    for _ in range(5):
        chip_of = rng.integers(num_chips, size=tables.num_ops)
        touched: list[dict[int, int]] = [{} for _ in range(num_chips)]
        for r, k in enumerate(tables.reader_tensor.tolist()):
            if tables.tensor_kind[k] == WEIGHT:
                here = touched[chip_of[tables.reader_op[r]]]
                here[k] = max(here.get(k, 0), int(tables.read_bytes[r]))
        streamed = sum(
            least_on_chip(tables, here, int(sram))
            for here, sram in zip(touched, tables.sram_bytes, strict=True)
        )
        assert least <= streamed * (1 + 1e-12)
