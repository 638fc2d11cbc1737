"""Ops' shares of their kernels, and cuts through kernels that they lead to."""

from __future__ import annotations

import numpy as np
import pytest

from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.result import Request
from go_opt.search.optimizer import optimize_request
from go_opt.solver.certify.problem.op_shares import loose_refinement_problem, op_share_s
from go_opt.solver.certify.refinement import Refinement
from go_opt.solver.orders.instance import instance
from tests.solver.brute_force import evaluate_placements
from tests.strategies import examples, random_graph, small_mcm, toy_graph


@pytest.fixture(scope="module")
def one_kernel() -> Graph:
    """A matrix op of 8 us and two relus of 4 us: one kernel of 17 us, its overhead included.

    On two chips the matrix op takes 9 us and both relus, as one kernel, 9 us. As three kernels
    the relus take 10 us. 200 bytes cross a cut, 2 us.
    """
    b = GraphBuilder("one kernel")
    b.add_tensor("x", 100, "bfloat16", "input")
    for name, op_type, op_class, flops, read, write in (
        ("dense", "MatMul", "matrix", 8000, "x", "h"),
        ("relu", "Relu", "vector", 400, "h", "a"),
        ("again", "Relu", "vector", 400, "a", "y"),
    ):
        b.add_op(
            name, op_type, op_class, flops=flops, dtype="bfloat16",
            reads=[(read, None)], writes=[(write, 100, "bfloat16")],
        )  # fmt: skip
    b.mark_output("y")
    return b.build()


def test_shares_by_hand() -> None:
    """``toy_graph``: kernels embed 3.4, dense + relu 14, mix + add 8, logits 14 us.

    dense alone takes 9 us, relu alone 6 of the 14: 8.5 and 5.5. mix alone takes 5 us, add alone
    6 of the 8: 3.5 and 4.5.
    """
    case = instance(toy_graph(), small_mcm(2))
    seconds = op_share_s(case.tables, case.order, case.fusion_group) * 1e6
    assert seconds == pytest.approx([3.4, 8.5, 5.5, 3.5, 4.5, 14.0])


def test_shares_add_up_to_their_kernels() -> None:
    for seed in range(examples(50)):
        graph = random_graph(np.random.default_rng([seed, 23]), 12)
        case = instance(graph, small_mcm(3))
        shares = op_share_s(case.tables, case.order, case.fusion_group)
        assert (shares >= 0).all()
        on_one_chip = np.zeros((1, graph.num_ops), np.int32)
        whole = evaluate_placements(case.tables, on_one_chip, case.order, case.fusion_group)
        assert shares.sum() == pytest.approx(float(whole.compute_s[0, 0]), rel=1e-9)


def test_refinement_cuts_between_any_two_ops(one_kernel: Graph) -> None:
    """Shares: 8.5 us, (13 + 12) / 2 - 8.5 = 4 us and 17 - 12.5 = 4.5 us."""
    case = instance(one_kernel, small_mcm(2))
    problem = loose_refinement_problem(
        one_kernel, case.tables, case.order, case.fusion_group, passing="adjacent"
    )
    assert problem.unit_s * 1e6 == pytest.approx([8.5, 4.0, 4.5])
    refinement = Refinement(problem)
    refinement.run(100)
    assert refinement.placement is not None
    assert refinement.placement.tolist() == [0, 1, 1]


@pytest.mark.parametrize("relays", [False, True])
def test_the_portfolio_cuts_kernels(one_kernel: Graph, relays: bool) -> None:
    request = Request(max_evaluations=30, relays=relays, replication=False)
    result = optimize_request(one_kernel, small_mcm(2), request)
    assert result.metrics.interval_s == pytest.approx(9e-6)
