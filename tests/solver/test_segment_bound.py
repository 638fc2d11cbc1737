"""The segment bound against brute force, and once by hand."""

from __future__ import annotations

import numpy as np
import pytest

from go_opt.env import cost_tables
from go_opt.graph_builder import GraphBuilder
from go_opt.solver.refinement_problem import refinement_problem
from go_opt.solver.segment_bound import segment_bound
from tests.solver.placement_oracle import least_interval_s, tiny_graph
from tests.strategies import examples, small_mcm


@pytest.mark.parametrize("overlap", [True, False])
def test_no_placement_beats_it(overlap: bool) -> None:
    for seed in range(examples(80)):
        rng = np.random.default_rng([seed, overlap, 3])
        graph = tiny_graph(rng, int(rng.integers(1, 8)))
        target = small_mcm(
            int(rng.integers(1, 5)), overlap=overlap, link_bytes_per_s=float(rng.choice([3e7, 1e9]))
        )
        tables = cost_tables(graph, target)
        bound = segment_bound(refinement_problem(graph, tables, passing="free"))
        assert bound.seconds <= least_interval_s(graph, tables, "free") * (1 + 1e-9), seed


def test_by_hand() -> None:
    # Three ops of 6 us pass on 1000 bytes each, 10 us over a link. The middle one takes a chip
    # 6 + 20 us alone, 12 + 10 us with a neighbour, and 18 us with both.
    b = GraphBuilder("chain")
    read: list[tuple[str, int | None]] = []
    for i in range(3):
        b.add_op(
            f"op{i}", "Relu", "vector", flops=500, dtype="bfloat16", reads=read,
            writes=[(f"t{i}", 500, "bfloat16")], measured_s={"chip": 6e-6},
        )  # fmt: skip
        read = [(f"t{i}", None)]
    graph = b.build()
    tables = cost_tables(graph, small_mcm(3, overlap=False))
    bound = segment_bound(refinement_problem(graph, tables, passing="free"))
    assert bound.seconds == pytest.approx(18e-6)
    assert bound.reason == (
        "op 'op1' and the work and traffic that come with it, wherever it is, take a chip 18 us"
    )
