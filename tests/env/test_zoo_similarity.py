"""No graph of one split is nearly one of another, and the measure that says so.

Why the limit is 0.92: one block at two depths is 0.97 to 0.99 alike (rnnlm, wavenet), a graph
with three times the FLOPs and everything twice over 0.96 and more. What only shares its block
is 0.89 alike at most (the LSTM cells of gnmt and rnnlm; the encoder block of bert and vit),
what does not seldom above 0.75. Siblings that differ more than by depth are kept apart by
their family, not by this measure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from go_opt.env.zoo import load_zoo, zoo_entries
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import NO_PRODUCER, Graph
from tests.zoo import zoo_sample
from tests.zoo_recipes.similarity import NEAR_DUPLICATE, cost_profile, similarity

# Op type, class and FLOPs; without FLOPs an op costs the 1000 elements it writes.
BLOCK = [
    ("MatMul", "matrix", 4e6),
    ("Relu", "vector", 1e3),
    ("MatMul", "matrix", 8e6),
    ("Add", "vector", 1e3),
]
MOVING = [
    ("Transpose", "data_movement", 0.0),
    ("Softmax", "vector", 5e3),
    ("Gather", "data_movement", 0.0),
]


def chain(ops: Sequence[tuple[str, str, float]], *, factor: float = 1.0, times: int = 1) -> Graph:
    """The ops in a row, over and over, all FLOPs times a factor."""
    builder = GraphBuilder("chain")
    builder.add_tensor("t0", 1000, "float32", "input")
    for i, (op_type, op_class, flops) in enumerate(list(ops) * times):
        builder.add_op(
            f"op{i}",
            op_type,
            op_class,
            flops=flops * factor,
            dtype="float32",
            reads=[(f"t{i}", None)],
            writes=[(f"t{i + 1}", 1000, "float32")],
        )
    builder.mark_output(f"t{len(ops) * times}")
    return builder.build()


def likeness(first: Graph, second: Graph) -> float:
    return similarity(cost_profile(first), cost_profile(second))


def test_a_graph_is_like_itself() -> None:
    assert likeness(chain(BLOCK + MOVING), chain(BLOCK + MOVING)) == pytest.approx(1, abs=1e-5)


def test_depth_does_not_matter() -> None:
    assert likeness(chain(BLOCK + MOVING, times=12), chain(BLOCK + MOVING, times=24)) > 0.999


@pytest.mark.parametrize("factor", [0.1, 0.5, 3.0, 16.0, 50.0])
def test_a_common_factor_does_not_matter(factor: float) -> None:
    assert likeness(chain(BLOCK + MOVING, factor=factor), chain(BLOCK + MOVING)) > 0.93


def test_each_op_class_has_its_factor() -> None:
    wider = [(op_type, c, flops * (4 if c == "matrix" else 2)) for op_type, c, flops in BLOCK]
    assert likeness(chain(wider), chain(BLOCK)) > 0.999


def test_costs_in_another_proportion_differ() -> None:
    skewed = [("MatMul", "matrix", 1e6), *BLOCK[1:]]
    assert likeness(chain(skewed), chain(BLOCK)) == pytest.approx(0.75, abs=0.01)


def test_other_op_types_differ() -> None:
    assert likeness(chain(BLOCK), chain(MOVING)) == 0
    assert likeness(chain(BLOCK), chain(BLOCK + MOVING)) == pytest.approx(4 / 7, abs=1e-5)


def test_likeness_has_no_direction() -> None:
    first, second = load_zoo("resnet50"), load_zoo("densenet121")
    assert likeness(first, second) == pytest.approx(likeness(second, first), abs=1e-5)


@pytest.mark.parametrize("name", zoo_sample())
def test_a_planted_duplicate_is_found(name: str) -> None:
    """Three times the FLOPs, and everything twice over."""
    graph = load_zoo(name)
    assert likeness(graph, twice_with_flops(graph, 3.0)) > NEAR_DUPLICATE


def twice_with_flops(graph: Graph, factor: float) -> Graph:
    """Two of the graph side by side, their FLOPs times ``factor``."""
    producer, ptr = graph.tensor_producer, graph.reader_ptr
    producer_of_copy = np.where(producer == NO_PRODUCER, NO_PRODUCER, producer + graph.num_ops)
    return replace(
        graph,
        op_names=tuple(f"{name}/{i}" for i in range(2) for name in graph.op_names),
        op_types=graph.op_types * 2,
        op_class=np.tile(graph.op_class, 2),
        op_flops=np.tile(graph.op_flops, 2) * factor,
        op_dtype=np.tile(graph.op_dtype, 2),
        tensor_names=tuple(f"{name}/{i}" for i in range(2) for name in graph.tensor_names),
        tensor_elements=np.tile(graph.tensor_elements, 2),
        tensor_dtype=np.tile(graph.tensor_dtype, 2),
        tensor_kind=np.tile(graph.tensor_kind, 2),
        tensor_producer=np.concatenate([producer, producer_of_copy]),
        tensor_is_output=np.tile(graph.tensor_is_output, 2),
        reader_ptr=np.concatenate([ptr, ptr[1:] + ptr[-1]]),
        reader_op=np.concatenate([graph.reader_op, graph.reader_op + graph.num_ops]),
        reader_elements=np.tile(graph.reader_elements, 2),
    )


def test_no_near_duplicates_across_splits() -> None:
    entries = zoo_entries()
    profiles = {entry.name: cost_profile(load_zoo(entry.name)) for entry in entries}
    found = [
        (similarity(profiles[a.name], profiles[b.name]), f"{a.name} ({a.split})", f"{b.name} ({b.split})")
        for a, b in combinations(entries, 2)
        if a.split != b.split
    ]
    value, first, second = max(found)
    assert value < NEAR_DUPLICATE, f"{first} and {second} are alike to {value:.3f}"
