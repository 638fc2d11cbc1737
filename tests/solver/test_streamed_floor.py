"""What an order streams at least, against slicings that are charged for it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.env import cost_tables
from go_opt.model.builder import GraphBuilder
from go_opt.solver.problem.sequence import kernel_sequence
from go_opt.solver.slicing.segments.memory import segment_memory
from go_opt.solver.slicing.segments.problem import slice_problem
from go_opt.solver.slicing.streamed.floor import StreamedFloor
from go_opt.solver.slicing.streamed.slice import CLOSE, least_streamed_s
from go_opt.solver.slicing.streamed.weight_streams import weight_reads
from tests.solver.test_streamed_slicing import Stagings
from tests.strategies import examples, seeds, small_mcm


@pytest.mark.parametrize("replicates", [False, True])
@settings(max_examples=examples(60), deadline=None)
@given(seed=seeds)
def test_no_slicing_streams_less_and_windows_hold_the_best(replicates: bool, seed: int) -> None:
    all_of = Stagings(seed, max_ops=7 if replicates else 9, replicates=replicates)
    case, tables = all_of.case, all_of.case.tables
    if not tables.overlap or not np.isfinite(all_of.best_s):
        return
    sequence = kernel_sequence(tables, case.order, case.group, adjacent=all_of.passing == "adjacent")
    problem = slice_problem(tables, sequence, **all_of.rules)
    memory = segment_memory(tables, sequence, with_stream_buffer=False)
    reads, chips = weight_reads(tables, sequence), min(tables.num_chips, sequence.num_kernels)
    if replicates:
        chips = tables.num_chips
    input_s = sequence.input_bytes * tables.host_in_s_per_byte
    for num_cells in (1, 3, 100):
        floor = StreamedFloor(problem, reads, memory, chips, chips if replicates else 1, num_cells)
        least_s = input_s + floor.least_bytes(all_of.best_s) * tables.host_in_s_per_byte
        assert least_s <= all_of.best_s * (1.0 + 1e-8)
        most_bytes = (all_of.best_s - input_s) / tables.host_in_s_per_byte * (1.0 + 1e-8)
        windows = floor.windows(problem, all_of.best_s, most_bytes)
        assert windows.is_of_use[[0, -1]].all()
        assert windows.first_start[-1] < sequence.num_kernels


def test_cells_tell_what_shared_and_lone_weights_stream() -> None:
    """Four ops of 1 us on two chips of 100 bytes.

    The first and the third read one weight of 60, the others 60 each. Three and one, 60 bytes stream
    on the first chip; two and two, on the first and, where "a" and "c" meet, on the second.
    """
    b = GraphBuilder("shared weights")
    for weight in "abc":
        b.add_tensor(weight, 60, "int8", "weight")
    for i, weight in enumerate("abac"):
        reads = [(weight, None), *([(f"t{i - 1}", None)] if i else [])]
        b.add_op(
            f"op {i}", "MatMul", "matrix", flops=0, dtype="int8", reads=reads,
            writes=[(f"t{i}", 1, "int8")], measured_s={"chip": 1e-6},
        )  # fmt: skip
    target = small_mcm(2, sram_bytes=100)
    tables, order = cost_tables(b.build(), target), np.arange(4, dtype=np.int32)
    sequence = kernel_sequence(tables, order, order, adjacent=True)
    problem = slice_problem(tables, sequence)
    memory, reads = (
        segment_memory(tables, sequence, with_stream_buffer=False),
        weight_reads(tables, sequence),
    )
    floor = StreamedFloor(problem, reads, memory, 2, 1, 100)
    assert floor.least_bytes(4e-6) == 60
    assert floor.least_bytes(2e-6) == 120
    assert floor.least_bytes(1e-6) == np.inf
    windows = floor.windows(problem, 4e-6, 60)
    assert windows.is_of_use.tolist() == [True, False, False, True, True]
    # In one cell, whatever is cut is left out.
    assert StreamedFloor(problem, reads, memory, 2, 1, 1).least_bytes(4e-6) == 0
    # At 20 bytes/us three and one take 3 us, two and two 6, one chip alone 6.
    slow = cost_tables(b.build(), small_mcm(2, sram_bytes=100, host_in_bytes_per_s=2e7))
    assert least_streamed_s(slow, order, order, passing="adjacent") == pytest.approx(3e-6, rel=CLOSE)


@pytest.mark.parametrize("replicates", [False, True])
@settings(max_examples=examples(60), deadline=None)
@given(seed=seeds)
def test_no_slicing_takes_less_than_the_least(replicates: bool, seed: int) -> None:
    all_of = Stagings(seed, max_ops=7 if replicates else 9, replicates=replicates)
    case = all_of.case
    least_s = least_streamed_s(
        case.tables, case.order, case.group, passing=all_of.passing, replicates=replicates, **all_of.rules
    )
    assert least_s <= all_of.best_s * (1.0 + 1e-8)
