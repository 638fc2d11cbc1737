"""Order search with keys tied by repeated structure, against the same without and the published rival.

Run: PYTHONPATH=. python tests/benchmarks/bench_repeats.py [--layers 12 24 48 96] [--evaluations 1000]

A stack of identical layers of four branches, stored in turn, so that a cut inside a layer crosses
all of them: three chips for two layers, so that cuts must fall inside. Branch after branch
what crosses is small; the order that has it so is one in thousands, the same in every layer.

Asserts that plans pass the verifier and that on average tied keys reach as much as untied ones
and the rival. Prints, as means over seeds, what each search reaches at equal evaluations, in parts
of the default order's interval (less is better); evaluations until the level that untied keys reach at
the last, and how many times faster tied ones are there; and milliseconds a layer of finding the
blocks, and of trying one order.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from go_opt.env import list_schedule
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.model.repeats import find_repeats
from go_opt.solver import verify
from go_opt.solver.orders.cheapest import Slicer
from go_opt.solver.orders.genetic import genetic_search, order_keys
from go_opt.solver.orders.instance import Instance, instance
from go_opt.solver.orders.order_search import genetic_orders
from go_opt.solver.orders.tied_keys import tied_keys
from tests.strategies import small_mcm

BRANCHES, DEPTH = 4, 6
CHIPS_PER_LAYER = 1.5
SEEDS = range(3)
ROUGHLY = 1.005  # tied keys have half of the evaluations to themselves


class Reached(NamedTuple):
    """The least interval after each evaluation, and when."""

    interval_s: list[float]
    elapsed_s: list[float]

    def first_at(self, level_s: float) -> int:
        """The evaluation that reached the level; as many as there were where none did."""
        reached = (i for i, s in enumerate(self.interval_s) if s <= level_s * (1.0 + 1e-9))
        return next(reached, len(self.interval_s))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", nargs="+", type=int, default=[12, 24, 48, 96])
    parser.add_argument("--evaluations", type=int, default=1000)
    asked = parser.parse_args()
    print(
        f"{'layers':>6} {'ops':>6} {'rival':>7} {'untied':>7} {'tied':>7} "
        f"{'level untied':>13} {'level tied':>11} {'times faster':>13} "
        f"{'find ms/layer':>14} {'order ms/layer':>15}"
    )
    for layers in asked.layers:
        _report(layers, asked.evaluations)


def _report(layers: int, evaluations: int) -> None:
    graph = layered_graph(layers)
    target = small_mcm(round(layers * CHIPS_PER_LAYER), topology="ring", link_bytes_per_s=5e6)
    of_graph = instance(graph, target)
    slicer, group = Slicer(of_graph, "adjacent"), of_graph.fusion_group
    default = slicer(of_graph.order, group)
    assert default is not None
    find_repeats.cache_clear()
    start_s = time.perf_counter()
    assert tied_keys(graph, group) is not None
    find_s = time.perf_counter() - start_s
    rows = []
    for seed in SEEDS:
        rival_s = _rival(of_graph, slicer, evaluations, seed)
        untied, tied = (_searched(of_graph, slicer, evaluations, seed, ties=ties) for ties in (False, True))
        level_s = untied.interval_s[-1]
        reached = [interval_s / default.interval_s for interval_s in (rival_s, level_s, tied.interval_s[-1])]
        at = [evolution.first_at(level_s) for evolution in (untied, tied)]
        faster = untied.elapsed_s[min(at[0], evaluations - 1)] / tied.elapsed_s[min(at[1], evaluations - 1)]
        rows.append([*reached, *at, faster, tied.elapsed_s[-1] / evaluations])
    rival, untied_share, tied_share, at_untied, at_tied, faster, order_s = np.mean(rows, axis=0)
    assert tied_share <= untied_share * ROUGHLY
    assert tied_share <= rival
    print(
        f"{layers:6d} {graph.num_ops:6d} {rival:7.3f} {untied_share:7.3f} {tied_share:7.3f} "
        f"{at_untied:13.0f} {at_tied:11.0f} {faster:13.1f} "
        f"{find_s * 1e3 / layers:14.3f} {order_s * 1e3 / layers:15.4f}",
        flush=True,
    )


def _rival(of_graph: Instance, slicer: Slicer, evaluations: int, seed: int) -> float:
    """Random keys as published, from the default order."""
    group = of_graph.fusion_group

    def cost_s(keys: np.ndarray) -> float:
        found = slicer(list_schedule(of_graph.graph, group, keys), group)
        return math.inf if found is None else found.interval_s

    first = order_keys(of_graph.order, group)
    return genetic_search(cost_s, len(first), evaluations=evaluations, seed=seed, first=first)[0]


def _searched(of_graph: Instance, slicer: Slicer, evaluations: int, seed: int, *, ties: bool) -> Reached:
    best_s, reached = math.inf, Reached([], [])
    start_s = time.perf_counter()
    plans: Iterator = genetic_orders(slicer, of_graph.fusion_group, seed=seed, ties=ties)
    for found in islice(plans, evaluations):
        if found is not None and found.interval_s < best_s:
            best_s = found.interval_s
            plan = Plan.create(
                of_graph.graph, of_graph.target.source, of_graph.target.fingerprint,
                placement=found.placement, order=found.order, fusion_group=found.fusion_group,
                provenance="benchmark",
            )  # fmt: skip
            assert verify(of_graph.graph, of_graph.target, plan) == []
        reached.interval_s.append(best_s)
        reached.elapsed_s.append(time.perf_counter() - start_s)
    return reached


def layered_graph(layers: int) -> Graph:
    """Identical layers of branches that widen and narrow, stored in turn and each time in another order.

    Nothing that an order is usually sorted by tells the branches apart.
    """
    b = GraphBuilder(f"{layers} layers")
    b.add_tensor("x", 100, "int8", "input")
    rng = np.random.default_rng(0)
    stored = [rng.permutation(BRANCHES) for _ in range(DEPTH)]
    flops = rng.integers(10_000, 50_000, (DEPTH, BRANCHES))
    tail = "x"
    for layer in range(layers):
        ends = []
        for step in range(DEPTH):
            for branch in stored[step]:
                name = f"{layer}.{branch}.{step}"
                is_last = step == DEPTH - 1
                b.add_op(
                    name, "MatMul", "matrix", flops=int(flops[step, branch]), dtype="int8",
                    reads=[(tail if step == 0 else f"{layer}.{branch}.{step - 1}", None)],
                    writes=[(name, 20 if is_last else 1_000, "int8")],
                )  # fmt: skip
                ends += [name] if is_last else []
        b.add_op(
            f"join {layer}", "Concat", "data_movement", flops=0, dtype="int8",
            reads=[(end, None) for end in ends], writes=[(f"t{layer}", 100, "int8")],
        )  # fmt: skip
        tail = f"t{layer}"
    b.mark_output(tail)
    return b.build()


if __name__ == "__main__":
    main()
