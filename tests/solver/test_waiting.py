"""What slicing takes the waits for streamed weights for, against a walk by hand and the simulator."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from go_opt.env import cost_tables
from go_opt.env.simulator.simulate import simulate_plan
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import WEIGHT, Graph
from go_opt.solver.problem.sequence import KernelSequence, kernel_sequence
from go_opt.solver.slicing.slice import slice_order_forwarded
from go_opt.solver.slicing.streamed import HOST_SHARE, waits_for_weights
from tests.solver.brute_force import segments_of
from tests.solver.test_forwarded_slicing import Forwardings, keeps_back_whole_weights
from tests.solver.test_slicing import Case
from tests.strategies import examples, make_plan, seeds, simulated_package, small_mcm


def walked(case: Case, sequence: KernelSequence, s_per_byte: float) -> tuple[list[float], list[float]]:
    """Seconds of waiting, and bytes, before each cut: one weight after the other, kernel by kernel."""
    tables = case.tables
    reads: dict[int, list[tuple[int, int]]] = {}
    for r, k in enumerate(tables.reader_tensor.tolist()):
        if tables.tensor_kind[k] == WEIGHT and tables.tensor_bytes[k] > 0:
            kernel = int(sequence.kernel_of[tables.reader_op[r]])
            reads.setdefault(k, []).append((kernel, int(tables.read_bytes[r])))
    touched = {k: max(size for _, size in of) for k, of in reads.items()}
    by_use = sorted(reads, key=lambda k: (touched[k] / tables.tensor_bytes[k], -tables.tensor_bytes[k], k))
    left = sum(int(tables.stored_bytes[k]) for k in reads)
    streamed = [0.0] * sequence.num_kernels
    for k in by_use:
        if left <= tables.sram_bytes[0] - tables.stream_buffer_bytes[0]:
            break
        left -= int(tables.stored_bytes[k])
        streamed[min(kernel for kernel, _ in reads[k])] += touched[k]
    waits_s, num_bytes, hidden_s = [0.0], [0.0], np.inf
    for kernel, size in enumerate(streamed):
        wait_s = max(0.0, size * s_per_byte - hidden_s) if size else 0.0
        hidden_s = 0.0 if size else hidden_s
        hidden_s += float(sequence.kernel_s[tables.chip_kind[0], kernel])
        waits_s.append(waits_s[-1] + wait_s)
        num_bytes.append(num_bytes[-1] + size)
    return waits_s, num_bytes


@settings(max_examples=examples(100), deadline=None)
@given(seed=seeds)
def test_waits_are_those_of_a_walk(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = Case(seed, sram_bytes=int(10 ** rng.uniform(3, 5)), host_in_bytes_per_s=10 ** rng.uniform(7, 9))
    sequence, hop = (
        kernel_sequence(case.tables, case.order, case.group, adjacent=False),
        10 ** rng.uniform(-9, -7),
    )
    cut = np.arange(sequence.num_kernels + 1)
    waits_of_host_s, waits_of_link_s, waited_bytes = waits_for_weights(case.tables, sequence, cut, hop)
    of_host_s, num_bytes = walked(case, sequence, case.tables.host_in_s_per_byte / HOST_SHARE)
    np.testing.assert_allclose(waits_of_host_s, of_host_s, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(waits_of_link_s, walked(case, sequence, hop)[0], rtol=1e-9, atol=1e-15)
    np.testing.assert_array_equal(waited_bytes, num_bytes)


def products(kernel_s: list[float], weight_bytes: list[int]) -> Graph:
    """One behind the other, each with a weight."""
    b = GraphBuilder("products")
    b.add_tensor("t0", 8, "int8", "input")
    for i, (seconds, size) in enumerate(zip(kernel_s, weight_bytes, strict=True)):
        b.add_tensor(f"w{i}", size, "int8", "weight")
        b.add_op(
            f"op{i}", "MatMul", "matrix", flops=0, dtype="int8", reads=[(f"t{i}", None), (f"w{i}", None)],
            writes=[(f"t{i + 1}", 8, "int8")], measured_s={"chip": seconds},
        )  # fmt: skip
    b.mark_output(f"t{len(kernel_s)}")
    return b.build()


@settings(max_examples=examples(50), deadline=None)
@given(seed=seeds)
def test_one_chip_alone_waits_no_longer_than_estimated(seed: int) -> None:
    """The weights of the first kernel come while the last one runs, which the estimate leaves out."""
    rng = np.random.default_rng(seed)
    num_ops = int(rng.integers(2, 8))
    kernel_s = (10 ** rng.uniform(-5, -3, num_ops)).tolist()
    weight_bytes = [20_000, *rng.integers(1_000, 20_000, num_ops - 1).tolist()]
    graph = products(kernel_s, weight_bytes)
    ahead = simulated_package(weight_prefetch=False)
    target = small_mcm(1, sram_bytes=900, host_in_bytes_per_s=2e7, simulator=ahead)
    tables, order = cost_tables(graph, target), np.arange(num_ops, dtype=np.int32)
    sequence = kernel_sequence(tables, order, order, adjacent=False)
    cut = np.array([0, num_ops])
    _, waits_s, streamed_bytes = waits_for_weights(tables, sequence, cut, tables.host_in_s_per_byte)
    assert streamed_bytes[-1] == sum(weight_bytes)
    first_s = max(0.0, 20_000 * tables.host_in_s_per_byte - kernel_s[-1])
    metrics = simulate_plan(graph, target, make_plan(graph, target, [0] * num_ops))
    assert metrics.valid, metrics.reason
    estimated_s = sum(kernel_s) + waits_s[-1] + first_s
    input_s = 8 * tables.host_in_s_per_byte  # the host's link carries inputs too
    assert metrics.interval_s <= estimated_s + 2 * num_ops * input_s
    # Weights may come while their own kernel runs, too.
    assert estimated_s <= 2.0 * metrics.interval_s


@settings(max_examples=examples(60), deadline=None)
@given(seed=seeds)
def test_slicings_that_count_waits_cost_no_more_than_they_say(seed: int) -> None:
    all_of = Forwardings(seed, max_ops=6, replicates=True)
    case = all_of.case
    if not np.isfinite(all_of.best_s) or all_of.best_s == 0.0 or case.target.num_chips == 1:
        return
    asked = {"forwarding": all_of.forwarding, "at_most_s": 3.0 * all_of.best_s, **all_of.rules}
    got = slice_order_forwarded(case.tables, case.order, case.group, waits=True, **asked)
    if got is not None and not keeps_back_whole_weights(all_of):
        _, sizes = segments_of(got)
        stage = np.searchsorted(np.cumsum(sizes), got.placement, side="right")
        first = np.cumsum(sizes) - sizes
        forwarding = {int(s) for s in np.flatnonzero(np.isin(first, got.forwards))}
        assert all_of.forwarding_s(stage, sizes, forwarding) <= got.expected_s * (1 + 1e-9)
