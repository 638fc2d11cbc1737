"""Time of the adjacent core, 1,000 to 50,000 ops; and a stress test.

Run: PYTHONPATH=. python tests/benchmarks/bench_solver.py [--stress 100000]

Asserts that placements keep the rules. Prints milliseconds on one core, for 36 chips. Targets:
adjacent SAMPLE 2 ms at 10,000 ops and 10 ms at 50,000; full-rule verifier 0.1 ms at 10,000.
The stress tests draw from random DAGs of 2 to 2,000 ops and all shipped graphs, policies from
uniform to one-hot to adversarial, under the adjacent rule, and 2 to 200 ops and all shipped
graphs under the full one with 20 backtracks a draw (five minutes): no failure, none invalid.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import numpy as np
from chains import branchy_graph
from measuring import best_s

from go_opt.env import load_target, load_zoo
from go_opt.solver.problem.problem import placement_problem
from go_opt.solver.propagation.adjacent import DRAWN, place_adjacent
from go_opt.solver.propagation.modes import sample as full_rule_sample
from go_opt.solver.verify.rule_check import broken_rules
from tests.solver.adjacent_oracle import obeys
from tests.solver.test_adjacent import POLICIES, policy
from tests.strategies import random_graph, small_mcm
from tests.zoo import zoo_sample

SIZES = (1_000, 10_000, 50_000)
BATCH = 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stress", type=int, default=100_000, help="samples of the stress test")
    stress_samples = parser.parse_args().stress
    core()
    check()
    stress(stress_samples)
    stress_full_rule(stress_samples)


def core() -> None:
    target = load_target("mcm-6x6")
    print(f"{'core':>17} {'ops':>6} {'SAMPLE ms':>10} {'in batch':>9} {'FIX ms':>8} {'chips':>6}")
    for num_ops in SIZES:
        problem = placement_problem(branchy_graph(num_ops), target)
        rng = np.random.default_rng(0)
        rows = rng.normal(size=(num_ops, target.num_chips))
        proposals = rng.integers(0, target.num_chips, (BATCH, num_ops), dtype=np.int32)
        sample_one, sample_batch = (
            partial(place_adjacent, problem, log_probs=rows, num_samples=count) for count in (1, BATCH)
        )
        fix = partial(place_adjacent, problem, proposals=proposals)
        drawn = sample_batch()
        assert obeys(problem, drawn.placement).all()
        assert obeys(problem, fix().placement).all()
        one_s, batch_s, fix_s = (best_s(run)[0] for run in (sample_one, sample_batch, fix))
        print(
            f"{'':>17} {num_ops:6d} {one_s * 1e3:10.2f} {batch_s / BATCH * 1e3:9.2f} "
            f"{fix_s / BATCH * 1e3:8.2f} {drawn.placement.max(axis=1).mean() + 1:6.1f}"
        )


def check() -> None:
    """The compiled full-rule verifier, on placements that obey, so that nothing ends early."""
    print(f"{'full-rule check':>17} {'ops':>6} {'ms':>10}")
    for num_ops in SIZES:
        problem = placement_problem(branchy_graph(num_ops), load_target("mcm-6x6"))
        rows = np.zeros((num_ops, problem.num_chips))
        placements = place_adjacent(problem, log_probs=rows, num_samples=BATCH).placement
        assert not broken_rules(problem, placements).any()
        seconds, _ = best_s(partial(broken_rules, problem, placements))
        print(f"{'':>17} {num_ops:6d} {seconds / BATCH * 1e3:10.4f}")


def stress(num_samples: int) -> None:
    rng = np.random.default_rng(0)
    graphs = [(load_zoo(name), load_target("mcm-6x6")) for name in zoo_sample()]
    drawn = invalid = failed = 0
    start_s = time.perf_counter()
    while drawn < num_samples:
        graph, target = graphs.pop() if graphs else random_instance(rng)
        problem = placement_problem(graph, target)
        for name in POLICIES:
            rows = policy(rng, name, problem.num_units, problem.num_chips)
            proposals = np.tile(rows.argmax(axis=1).astype(np.int32), (10, 1))
            samples = place_adjacent(problem, log_probs=rows, seed=drawn, num_samples=10)
            fixes = place_adjacent(problem, proposals=proposals, seed=drawn)
            for placement, status in ((samples.placement, samples.ending), (fixes.placement, fixes.ending)):
                failed += int((status != DRAWN).sum())
                invalid += int((~obeys(problem, placement)).sum())
                drawn += len(placement)
    seconds = time.perf_counter() - start_s
    print(f"\nstress: {drawn} placements in {seconds:.1f} s, {failed} failed, {invalid} invalid")
    assert failed == invalid == 0


def stress_full_rule(num_samples: int) -> None:
    """SAMPLE under the full rule on the shipped graphs and random DAGs; every placement is checked."""
    rng = np.random.default_rng(1)
    graphs = [(load_zoo(name), load_target("mcm-6x6"), 4) for name in zoo_sample()]
    drawn = invalid = by_core = 0
    start_s = time.perf_counter()
    while drawn < num_samples:
        graph, target, count = graphs.pop() if graphs else (*random_instance(rng, most_ops=200), 400)
        problem = placement_problem(graph, target)
        rows = policy(rng, POLICIES[drawn % len(POLICIES)], problem.num_units, problem.num_chips)
        found = full_rule_sample(problem, rows, seed=drawn, num_samples=count, max_backtracks=20)
        invalid += int((broken_rules(problem, found.placement) != 0).sum())
        by_core += int(found.fell_back.sum())
        drawn += count
    seconds = time.perf_counter() - start_s
    print(f"full rule: {drawn} samples in {seconds:.1f} s, {by_core} by the core, {invalid} invalid")
    assert invalid == 0


def random_instance(rng: np.random.Generator, most_ops: int = 2000):
    num_ops = int(2 * (most_ops / 2) ** rng.random())
    return random_graph(rng, num_ops), small_mcm(int(rng.integers(1, 70)))


if __name__ == "__main__":
    main()
