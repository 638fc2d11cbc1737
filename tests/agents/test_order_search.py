"""The genetic search over orders and kernels."""

from __future__ import annotations

import numpy as np

from go_opt.result import Request
from go_opt.search.methods.guesses import EVOLVED
from go_opt.search.optimizer import optimize_request
from go_opt.solver.orders.genetic import POPULATION, decoded, first_genomes
from go_opt.solver.orders.instance import instance
from tests.strategies import random_graph, small_mcm, toy_graph


def test_first_genomes_are_known_orders_and_kernels_by_default_or_joined() -> None:
    case = instance(toy_graph(), small_mcm(2))
    genomes = first_genomes(case, seed=0)
    assert genomes.shape == (POPULATION, 2 * case.graph.num_ops)
    kernels, order = decoded(case, genomes[0])
    assert order.tolist() == case.order.tolist()
    assert kernels.tolist() == case.fusion_group.tolist()
    joined, _ = decoded(case, genomes[2])
    assert len(set(joined.tolist())) <= len(set(kernels.tolist()))
    for keys in genomes:
        _, order = decoded(case, keys)
        assert sorted(order.tolist()) == case.order.tolist()


def test_it_takes_turns_and_repeats_itself() -> None:
    graph = random_graph(np.random.default_rng(3), 30)
    request = Request(policy=None, max_evaluations=150, simulate=False, rewrite=False)
    one, two = (optimize_request(graph, small_mcm(4), request) for _ in range(2))
    tried = [(step.method, step.objective_s) for step in one.history]
    assert tried == [(step.method, step.objective_s) for step in two.history]
    assert any(method.startswith(EVOLVED) for method, _ in tried)
