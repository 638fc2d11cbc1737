"""Synthetic graphs of any size for the benchmarks: a stack of branching blocks."""

from __future__ import annotations

import numpy as np

from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph


def branchy_graph(num_ops: int, seed: int = 0, far_reads: float = 0.0) -> Graph:
    """A stack of residual blocks of random width: matrix ops with weights, element-wise ops.

    Args:
      far_reads: share of the blocks whose end reads that of any block before it.
    """
    rng = np.random.default_rng(seed)
    builder = GraphBuilder(f"branchy_{num_ops}")
    builder.add_tensor("x", 50_000, "bfloat16", "input")
    tail, ops, tails = "x", 0, []
    while ops < num_ops:
        ends = []
        for _ in range(int(rng.integers(1, 4))):
            end = tail
            for _ in range(int(rng.integers(1, 5))):
                if ops < num_ops:
                    end, ops = _add_op(builder, rng, ops, [end]), ops + 1
            ends.append(end)
        if ops < num_ops:
            reads_far = far_reads > 0 and tails and rng.random() < far_reads
            far = [tails[rng.integers(len(tails))]] if reads_far else []
            tail, ops = _add_op(builder, rng, ops, sorted({tail, *ends, *far})), ops + 1
            tails.append(tail)
    builder.mark_output(f"t{num_ops - 1}")
    return builder.build()


def _add_op(builder: GraphBuilder, rng: np.random.Generator, i: int, reads: list[str]) -> str:
    is_matrix = len(reads) == 1 and rng.random() < 0.4
    if is_matrix:
        builder.add_tensor(f"w{i}", 20_000, "bfloat16", "weight")
        reads = [*reads, f"w{i}"]
    builder.add_op(
        f"op{i}",
        "MatMul" if is_matrix else "Add",
        "matrix" if is_matrix else "vector",
        flops=float(rng.uniform(1e7, 1e8)) if is_matrix else 5e4,
        dtype="bfloat16",
        reads=[(name, None) for name in reads],
        writes=[(f"t{i}", 50_000, "bfloat16")],
    )
    return f"t{i}"
