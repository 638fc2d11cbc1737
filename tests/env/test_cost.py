"""The cost tables: types and widths, rates, and the cost of an op as a kernel of its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.env import cost_tables
from go_opt.model.builder import GraphBuilder
from tests.env.numpy_twin import Twin
from tests.strategies import (
    chip_kind,
    examples,
    kind_names,
    random_graph,
    random_plan,
    random_target,
    seeds,
    small_mcm,
    toy_graph,
)

US = 1e-6


def in_us(seconds: object) -> object:
    return pytest.approx(np.array(seconds) * US, rel=1e-9)


def test_native_precision_costs_floating_types_in_the_native_one() -> None:
    graph = toy_graph()
    tables = cost_tables(graph, small_mcm())
    sizes = dict(zip(graph.tensor_names, tables.tensor_bytes.tolist(), strict=True))
    # float32 in bfloat16, 2 bytes; ids stays int32.
    assert (sizes["ids"], sizes["table"], sizes["x"]) == (400, 10_000, 1000)
    assert tables.op_s[0] == in_us([0, 8, 5, 2, 5, 10])


def test_as_is_keeps_the_types_of_the_model() -> None:
    graph = toy_graph(precision="as-is")
    tables = cost_tables(graph, small_mcm())
    sizes = dict(zip(graph.tensor_names, tables.tensor_bytes.tolist(), strict=True))
    assert (sizes["ids"], sizes["table"], sizes["x"]) == (400, 20_000, 2000)
    # Matrix ops in float32, which is not listed: half of bfloat16's rate. Vector: the default.
    assert tables.op_s[0] == in_us([0, 16, 5, 4, 5, 20])


def test_widths_round_up_to_bytes() -> None:
    b = GraphBuilder("widths", precision="as-is")
    widths = {"int4": 2, "uint4": 2, "bool": 3, "int8": 3, "bf16": 6, "float64": 24, "complex128": 48}
    for dtype in widths:
        b.add_tensor(dtype, 3, dtype, "weight")
    b.add_op("op", "X", "vector", flops=0, dtype="int8", reads=[(name, None) for name in widths], writes=[])
    tables = cost_tables(b.build(), small_mcm())
    assert tables.tensor_bytes.tolist() == list(widths.values())


def test_integer_ops_run_at_their_own_rate() -> None:
    b = GraphBuilder("int8")
    b.add_op("op", "MatMulInteger", "matrix", flops=8000, dtype="int8", reads=[], writes=[])
    assert cost_tables(b.build(), small_mcm()).op_s[0] == in_us([4])


def test_op_as_a_kernel_of_its_own() -> None:
    tables = cost_tables(toy_graph(), small_mcm())
    assert tables.op_bytes().tolist() == [2400, 4000, 2000, 4000, 3000, 13_000]
    assert tables.kernel_floor_s()[0] == in_us([3.4, 9, 6, 5, 6, 14])


def test_result_nobody_reads_is_not_written() -> None:
    b = GraphBuilder("unread")
    for name in ("kept", "dropped"):
        b.add_op(name, "X", "vector", flops=0, dtype="bf16", reads=[], writes=[(name, 500, "bf16")])
    b.mark_output("kept")
    assert cost_tables(b.build(), small_mcm()).op_bytes().tolist() == [1000, 0]


def test_kinds() -> None:
    b = GraphBuilder("kinds")
    more = {"measured_s": {"b": 7 * US}, "excluded_kinds": ["a", "elsewhere"]}
    b.add_op("op", "MatMul", "matrix", flops=8000, dtype="bf16", reads=[], writes=[], **more)
    fast = chip_kind("c", matrix_flops_per_s={"bf16": 4e9})
    tables = cost_tables(b.build(), small_mcm(kinds=[chip_kind("a"), chip_kind("b"), fast]))
    assert tables.kernel_floor_s()[:, 0] == in_us([9, 7, 3])
    assert tables.can_run[:, 0].tolist() == [False, True, True]


@settings(max_examples=examples(100))
@given(seed=seeds, num_ops=st.integers(1, 25))
def test_kernel_floor_agrees_with_the_twin(seed: int, num_ops: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng)
    graph = random_graph(rng, num_ops, kinds=kind_names(target))
    plan = random_plan(rng, graph, target, fusion="none")
    floor_s = cost_tables(graph, target).kernel_floor_s()[target.chip_kind[plan.placement], range(num_ops)]
    twin = Twin(graph, target, plan)
    expected = [twin.kernels[twin.kernel_of[op]].seconds for op in range(num_ops)]
    assert floor_s == pytest.approx(expected, rel=1e-9, abs=0)
