"""Time to a proof by interval-state refinement, kernels fixed (one per op), over the zoo.

Run: python tests/benchmarks/bench_certificates.py [GRAPH ...] [--seconds 10] [--most-ops 2000]
     [--settings TEXT ...] [--joint | --tight | --replicated]

By default the train and validation graphs of up to ``--most-ops`` ops. Each is proven with
relays, under the adjacent rule and without any rule, overlapped and summed, at the links' own
rate and 8 times faster. Seconds are of one thread's processor time from the problem on,
compilation left out; memory is left out of the problem. Prints a row for every case not proven
within a tenth of a second and, for each setting, how many were proven within 0.1, 1, 10 and 60 s
and the graphs left with a gap above 5 %; ``--settings`` takes those alone whose names hold all
the texts; with ``--joint`` the bound with fusion open against the greedy kernels. With
``--replicated`` a row for every graph: the bound with fusion and replicated stages open, and the
best plan of refinement alone, its stages fused one by one and evaluated as it stands. With
``--tight`` a row for every graph: the bounds without memory and with it, fusion open, and the best
slicing of the default order.

Targets: within 0.1 s on 80 % of the graphs, within 10 s on 95 %.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

import go_opt
from go_opt.env import (
    CostTables,
    cost_tables,
    greedy_fusion,
    load_target,
    load_zoo,
    loop_roles,
    zoo_entries,
)
from go_opt.model.graph import Graph
from go_opt.solver.certify.build import refinement_problem
from go_opt.solver.certify.joint_floors import joint_refinement_problem
from go_opt.solver.certify.problem import RefinementProblem
from go_opt.solver.certify.refinement import Refinement
from go_opt.solver.problem.forwarding_mode import FORWARDING_CODE, ForwardingMode
from go_opt.solver.slicing.slice import slice_order_streamed

MARKS_S = (0.1, 1.0, 10.0, 60.0)  # those beyond ``--seconds`` tell what was reached in the end
CLOSE = 0.05
STEP = 20


@dataclass(frozen=True)
class Proof:
    """How far a proof was after each of ``MARKS_S``, and in the end."""

    seconds: float
    is_optimal: bool
    gaps: tuple[float, ...]
    expansions: int


def prove(problem: RefinementProblem, most_s: float) -> Proof:
    start_s = time.thread_time()
    refinement = Refinement(problem)
    gaps: list[float] = []
    elapsed_s = 0.0
    while not refinement.is_optimal and elapsed_s < most_s:
        refinement.run(STEP)
        elapsed_s = time.thread_time() - start_s
        while len(gaps) < len(MARKS_S) and elapsed_s >= MARKS_S[len(gaps)]:
            gaps.append(gap(refinement))
    elapsed_s = time.thread_time() - start_s
    gaps += [gap(refinement)] * (len(MARKS_S) - len(gaps))
    return Proof(elapsed_s, refinement.is_optimal, tuple(gaps), refinement.expansions)


def gap(refinement: Refinement) -> float:
    return 0.0 if refinement.is_optimal else refinement.upper_s / refinement.lower_bound_s - 1.0


def cases(graph: Graph, *, joint: bool) -> Iterator[tuple[str, RefinementProblem]]:
    for overlap in (True, False):
        tables = cost_tables(graph, replace(load_target("mcm-6x6"), overlap=overlap))
        for times in (1, 8):
            faster = tables._replace(link_s_per_byte=tables.link_s_per_byte / times)
            setting = f"{'overlapped' if overlap else 'summed'} x{times}"
            if joint:
                yield f"joint {setting}", joint_refinement_problem(graph, faster, loop_roles(graph))
                continue
            forwarding: ForwardingMode
            for forwarding in FORWARDING_CODE:
                yield f"{forwarding} {setting}", refinement_problem(graph, faster, forwarding=forwarding)


def fused_upper_s(graph: Graph, tables: CostTables, most_s: float) -> float:
    """The best placement of the greedy kernels that refinement finds."""
    group = greedy_fusion(loop_roles(graph), np.arange(graph.num_ops, dtype=np.int32))
    refinement = Refinement(refinement_problem(graph, tables, group, forwarding="free"))
    start_s = time.thread_time()
    while not refinement.run(STEP) and time.thread_time() - start_s < most_s:
        pass
    return refinement.upper_s


def replicated(names: list[str], seconds: float) -> None:
    gaps = []
    for name in names:
        graph = load_zoo(name)
        tables = cost_tables(graph, load_target("mcm-6x6"))
        refinement = Refinement(joint_refinement_problem(graph, tables, loop_roles(graph), replicates=True))
        trivial_s = refinement.lower_bound_s
        start_s = time.thread_time()
        while not refinement.run(STEP) and time.thread_time() - start_s < seconds:
            pass
        found = go_opt.optimize(graph, load_target("mcm-6x6"), budget_s=seconds, policy=None, simulate=False)
        upper_s = found.metrics.interval_s
        gaps.append(upper_s / refinement.lower_bound_s - 1.0)
        print(
            f"{name:24} trivial {trivial_s * 1e6:10.2f} us, bound {refinement.lower_bound_s * 1e6:10.2f}, "
            f"plan {upper_s * 1e6:10.2f}, gap {100 * gaps[-1]:7.2f} %",
            flush=True,
        )
    for most in (0.01, 0.05, 0.1):
        print(
            f"gap <= {100 * most:.0f} %: {100 * np.mean(np.array(gaps) <= most):.1f} % of {len(gaps)} graphs"
        )


def tight(names: list[str], most_s: float) -> None:
    """What memory adds to the bound of the joint problem."""
    target = load_target("mcm-6x6")
    print(f"{'graph':24} {'ops':>6} {'without':>10} {'memory':>10} {'sliced':>10} us {'s':>6}")
    for name in names:
        graph = load_zoo(name)
        tables, roles = cost_tables(graph, target), loop_roles(graph)
        default = np.arange(graph.num_ops, dtype=np.int32)
        group = greedy_fusion(roles, default)
        sliced = slice_order_streamed(tables, default, group, forwarding="relayed")
        bounds_us, seconds = [], 0.0
        for with_memory in (False, True):
            problem = joint_refinement_problem(graph, tables, roles, tight=with_memory)
            refinement = Refinement(problem)
            if sliced is not None:
                refinement.consider(sliced.placement)
            start_s = time.thread_time()
            while not refinement.run(STEP) and time.thread_time() - start_s < most_s:
                pass
            seconds = time.thread_time() - start_s
            bounds_us.append(1e6 * refinement.lower_bound_s)
        sliced_us = math.inf if sliced is None else 1e6 * sliced.interval_s
        mark = "optimal" if refinement.is_optimal else ""
        print(
            f"{name:24} {graph.num_ops:6d} {bounds_us[0]:10.1f} {bounds_us[1]:10.1f} {sliced_us:10.1f} "
            f"{seconds:9.2f} {mark}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("graphs", nargs="*", help="names in the zoo; by default train and validation")
    parser.add_argument("--seconds", type=float, default=10.0, help="of processor time for each proof")
    parser.add_argument("--most-ops", type=int, default=2000)
    parser.add_argument("--joint", action="store_true", help="fusion open, against the greedy kernels")
    parser.add_argument("--settings", nargs="+", default=[], metavar="TEXT")
    parser.add_argument("--tight", action="store_true", help="fusion open, with memory and without")
    parser.add_argument("--replicated", action="store_true", help="fusion and replicated stages open")
    options = parser.parse_args()
    names = options.graphs or [
        entry.name for entry in zoo_entries() if entry.split != "test" and entry.ops <= options.most_ops
    ]
    if options.replicated:
        replicated(names, options.seconds)
        return
    if options.tight:
        tight(names, options.seconds)
        return
    for _, problem in cases(load_zoo("squeezenet"), joint=options.joint):
        prove(problem, 0.1)  # compiles
    proofs: dict[str, list[Proof]] = defaultdict(list)
    wide: dict[str, list[str]] = defaultdict(list)
    for name in names:
        graph = load_zoo(name)
        for setting, problem in cases(graph, joint=options.joint):
            if not all(text in setting for text in options.settings):
                continue
            proof = prove(problem, options.seconds)
            proofs[setting].append(proof)
            if proof.gaps[-1] > CLOSE:
                wide[setting].append(f"{name} {100 * proof.gaps[-1]:.0f} %")
            if proof.seconds > MARKS_S[0] or not proof.is_optimal:
                marks = " ".join(f"{100 * value:8.2f}" for value in proof.gaps)
                print(
                    f"{name:24} {setting:24} {proof.seconds:7.2f} s {proof.expansions:7d} splits "
                    f"gap % at {MARKS_S} s: {marks} {'proven' if proof.is_optimal else 'open'}",
                    flush=True,
                )
        if options.joint:
            tables = cost_tables(graph, load_target("mcm-6x6"))
            refinement = Refinement(joint_refinement_problem(graph, tables, loop_roles(graph)))
            refinement.run(2000)
            upper_s = fused_upper_s(graph, tables, options.seconds)
            gap_percent = 100.0 * (upper_s / refinement.lower_bound_s - 1.0)
            print(f"{name:24} joint gap of the greedy kernels {gap_percent:.2f} %", flush=True)
    print(f"\n{'setting':>24} {'graphs':>7}" + "".join(f" {mark:>6} s" for mark in MARKS_S) + "  gap <= 5 %")
    for setting, found in proofs.items():
        within = [sum(p.is_optimal and p.seconds <= mark for p in found) for mark in MARKS_S]
        close = sum(proof.gaps[-1] <= CLOSE for proof in found)
        shares = "".join(f" {100 * count / len(found):6.1f} %" for count in within)
        print(f"{setting:>24} {len(found):7d}{shares} {100 * close / len(found):9.1f} %")
    for setting, rows in wide.items():
        print(f"{setting}, above 5 % in the end: {', '.join(rows)}")


if __name__ == "__main__":
    main()
