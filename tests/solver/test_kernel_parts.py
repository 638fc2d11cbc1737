"""Parts and chains against all legal kernels of tiny graphs, and by hand."""

from __future__ import annotations

import numpy as np

from go_opt.env import loop_roles
from go_opt.env.kernels.fusion import ALONE
from go_opt.solver.certify.joint_floors import kernel_parts
from tests.solver.branches import two_branches
from tests.solver.brute_force import all_fusions, all_orders
from tests.strategies import examples, random_graph


def test_no_legal_kernel_holds_two_parts_or_two_of_a_chain() -> None:
    shared = 0
    for seed in range(examples(60)):
        rng = np.random.default_rng([seed, 41])
        graph = random_graph(rng, int(rng.integers(2, 7)), max_elements=int(rng.choice([2, 3, 5000])))
        parts = kernel_parts(loop_roles(graph))
        for order in all_orders(graph):
            for group in all_fusions(graph, order):
                for kernel in np.unique(group):
                    ops = np.flatnonzero(group == kernel)
                    shared += len(ops) > 1
                    assert len(np.unique(parts.part[ops])) == 1, seed
                    assert parts.is_on_chain[ops].sum() <= 1, seed
    assert shared > examples(60)


def test_layers_are_parts_and_chains_run_through_them() -> None:
    """Two branches of Relu, Transpose, Relu, read from one input; their ends are added up.

    Relu b0 may wait for the first, or go with the second of branch a: all Relus are one part, in which
    the Transpose keeps the two of a branch apart, and the addition from the first ones.
    """
    b = two_branches()
    b.add_op(
        "softmax", "Softmax", "vector", flops=100, dtype="float32",
        reads=[("a.2", None), ("b.2", None)], writes=[("y", 500, "float32")],
    )  # fmt: skip
    b.add_op(
        "behind", "Relu", "vector", flops=100, dtype="float32",
        reads=[("y", None)], writes=[("z", 500, "float32")],
    )  # fmt: skip
    b.mark_output("z")
    graph = b.build()
    roles = loop_roles(graph)
    parts = kernel_parts(roles)
    names = np.array(graph.op_names)
    relus = [names.tolist().index(name) for name in ("a0", "a2", "b0", "b2", "softmax")]
    assert len(np.unique(parts.part[relus])) == 1
    # A reduction ends its kernel, so what reads it is a part of its own.
    others = np.setdiff1d(np.arange(graph.num_ops), relus)
    assert len(np.unique(parts.part[others])) == 3
    assert set(names[others][roles.role[others] == ALONE]) == {"a1", "b1"}
    on_chain = {name for name in names[relus] if parts.is_on_chain[names.tolist().index(name)]}
    assert len(on_chain) == 2
    assert len({"a0", "b0"} & on_chain) == 1
