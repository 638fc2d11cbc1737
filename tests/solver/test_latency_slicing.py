"""Slicing of a chain for sequences in flight, against every placement along the order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.env import cost_tables, evaluate_batch
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph, with_sequences
from go_opt.solver import slice_order_streamed
from tests.strategies import examples, random_target, seeds


def chain(rng: np.random.Generator, num_ops: int) -> Graph:
    """Ops that read the result of the one before, most with a weight, and some with a state of their own."""
    b = GraphBuilder("chain")
    b.add_tensor("t0", int(rng.integers(1, 200)), "bf16", "input")
    for i in range(num_ops):
        reads: list[tuple[str, int | None]] = [(f"t{i}", None)]
        writes = [(f"t{i + 1}", int(rng.integers(1, 400)), "bf16")]
        if rng.random() < 0.8:
            b.add_tensor(f"w{i}", int(rng.integers(1, 3000)), "bf16", "weight")
            reads.append((f"w{i}", None))
        if i == 0 or rng.random() < 0.5:
            b.add_tensor(f"past{i}", elements := int(rng.integers(1, 600)), "bf16", "input")
            reads.append((f"past{i}", None))
            writes.append((f"next{i}", elements, "bf16"))
            b.add_state(f"past{i}", f"next{i}", "sequence")
        b.add_op(
            f"op{i}",
            "Sort",
            "vector",
            flops=float(rng.integers(0, 10**4)),
            dtype="bf16",
            reads=reads,
            writes=writes,
        )
    b.mark_output(f"t{num_ops}")
    return b.build()


@settings(max_examples=examples(150))
@given(seed=seeds, num_ops=st.integers(1, 7), sequences=st.integers(1, 5))
def test_the_least_interval_of_a_chain(seed: int, num_ops: int, sequences: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng, num_chips=int(rng.integers(1, 5)), topology="ring", overlap=True, num_kinds=1)
    graph = with_sequences(chain(rng, num_ops), sequences)
    tables = cost_tables(graph, target)
    order = np.arange(num_ops, dtype=np.int32)
    found = slice_order_streamed(tables, order, order, forwarding="adjacent", counts_latency=True)
    rows = [
        np.searchsorted(np.array(cuts, np.int64), np.arange(num_ops), side="right").astype(np.int32)
        for count in range(min(num_ops, target.num_chips))
        for cuts in itertools.combinations(range(1, num_ops), count)
    ]
    orders = np.tile(order, (len(rows), 1))
    terms = evaluate_batch(tables, np.array(rows), orders, orders)
    least_s = float(terms.interval_s[terms.fits].min(initial=np.inf))
    if not np.isfinite(least_s):
        assert found is None
        return
    assert found is not None
    assert found.expected_s == pytest.approx(least_s, rel=1e-8)
    again = evaluate_batch(tables, found.placement[None], order[None], order[None])
    assert again.fits[0]
    assert again.interval_s[0] == pytest.approx(least_s, rel=1e-8)
