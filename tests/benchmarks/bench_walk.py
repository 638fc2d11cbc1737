"""The walk: its weights trained on the zoo's training split and scored on validation, and its time.

Run: PYTHONPATH=. python tests/benchmarks/bench_walk.py [--seeds 3] [--out agents/data/walk.safetensors]

Training graphs are those of 100 to 440 ops for ``mcm-6x6``; the target is ``mcm-6x6:paper`` without
relays, each op is a kernel. Scores are over the validation graphs up to 1,100 ops whose greedy plan fits:
the geometric mean of greedy interval / best interval of the first 1, 20 and 100 samples. ``--out`` writes
the weights of the best seed at 20 samples. Target: 5 ms a sample at 17,669 ops, with FIX and evaluation.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from measuring import best_s, header, row

import go_opt
from go_opt.agents.walk.case import WalkCase
from go_opt.agents.walk.learning import BATCH
from go_opt.agents.walk.training import VISITS, TrainingGraph, train_walk
from go_opt.agents.walk.walk_file import save_walk
from go_opt.bench.rivals import RIVALS, Limits, Problem, compete, pose
from go_opt.bench.rivals.walks import walk_case
from go_opt.env import zoo_entries
from go_opt.solver import fix_adjacent
from go_opt.solver.walk.walk import NUM_FEATURES, draw_walks

TARGET = "mcm-6x6:paper"
SIZES = range(100, 441)
LONGEST_VALIDATION = 1100
SAMPLES = (1, 20, 100)
DRAWS = 5  # runs of each validation graph
LARGE = "gnmt_4"


@dataclass(frozen=True)
class Posed:
    """A graph of the zoo as walks see it."""

    problem: Problem
    case: WalkCase
    greedy_s: float

    def interval_s(self, placement: np.ndarray) -> np.ndarray:
        """[S] of placements [S, U]."""
        of_ops = np.ascontiguousarray(placement[:, self.case.units.unit_of_op])
        order, kernels = (
            np.ascontiguousarray(np.broadcast_to(each, of_ops.shape))
            for each in (self.problem.order, self.problem.kernels)
        )
        return self.problem.interval_s(of_ops, order, kernels)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    time_of_a_sample()
    training = [posed(name) for name in names("train", SIZES)]
    validation = [posed(name) for name in names("validation", range(LONGEST_VALIDATION))]
    fitting = [each for each in validation if np.isfinite(each.greedy_s)]
    print(f"\n{len(training)} graphs, {VISITS} visits of {BATCH} samples; {len(fitting)} validation graphs\n")
    header(["weights", "processor s", *(f"@{n}" for n in SAMPLES), "valid", "repaired"])
    scored("untrained", np.zeros(NUM_FEATURES), 0.0, fitting)
    graphs = [TrainingGraph(each.case, each.interval_s) for each in training]
    best = None
    for seed in range(options.seeds):
        began_s = time.process_time()
        weights = train_walk(graphs, seed=seed)
        scores = scored(f"seed {seed}", weights, time.process_time() - began_s, fitting)
        if best is None or scores[1] > best[1][1]:
            best = seed, scores, weights
    if options.out is not None and best is not None:
        seed, scores, weights = best
        card = {
            "target": TARGET,
            "graphs": [each.problem.graph.name for each in training],
            "visits": VISITS,
            "seed": seed,
            "validation": "geometric mean of greedy interval / best interval, by number of samples",
            "validation_scores": {str(n): round(score, 4) for n, score in zip(SAMPLES, scores, strict=True)},
        }
        save_walk(options.out, weights, card)
        print(f"\n{options.out}: seed {seed}, {weights.round(3).tolist()}")


def names(split: str, sizes: range) -> list[str]:
    entries = [e for e in zoo_entries() if e.split == split and e.target == "mcm-6x6" and e.ops in sizes]
    return [entry.name for entry in sorted(entries, key=lambda entry: (entry.ops, entry.name))]


def posed(name: str) -> Posed:
    problem = pose(go_opt.load(f"zoo:{name}"), go_opt.target(TARGET), relays=False, decide="placement")
    greedy = compete(RIVALS["greedy"], problem, Limits(evaluations=1), 0)
    return Posed(problem, walk_case(problem), greedy.interval_s)


def scored(label: str, weights: np.ndarray, trained_s: float, graphs: list[Posed]) -> np.ndarray:
    """Prints and returns the score for each of ``SAMPLES``."""
    logs, valid, repaired = [], [], []
    for graph in graphs:
        for seed in range(DRAWS):
            drawn = graph.case.draw(weights, max(SAMPLES), np.random.default_rng(seed))
            interval_s = graph.interval_s(drawn.placement)
            logs.append([np.log(graph.greedy_s / interval_s[:n].min()) for n in SAMPLES])
            valid.append(np.isfinite(interval_s).mean())
            repaired.append(drawn.is_repaired.mean())
    scores = np.exp(np.mean(logs, axis=0))
    shares = [f"{np.mean(valid):.0%}", f"{np.mean(repaired):.0%}"]
    row([label, f"{trained_s:.1f}", *(f"{score:.3f}" for score in scores), *shares])
    return scores


def time_of_a_sample() -> None:
    """Processor time, each sample of a batch alone and with the others."""
    graph = posed(LARGE)
    case, kernels = graph.case, graph.case.problem.num_kernels
    rng = np.random.default_rng(0)
    given = case.problem, np.zeros(NUM_FEATURES), np.zeros(kernels), rng.random((BATCH, kernels))
    proposal = draw_walks(*given)[1][:, case.problem.kernel_of]
    placement = fix_adjacent(case.units, proposal).placement
    print(f"{LARGE}, {kernels} ops: processor ms of a sample, batches of {BATCH}\n")
    header(["walk", "FIX", "evaluation", "all"])
    parts = [
        best_s(run, clock=time.thread_time)[0] / BATCH * 1e3
        for run in (
            lambda: draw_walks(*given),
            lambda: fix_adjacent(case.units, proposal),
            lambda: graph.interval_s(placement),
            lambda: graph.interval_s(case.draw(given[1], BATCH, rng).placement),
        )
    ]
    row([f"{ms:.2f}" for ms in parts])


if __name__ == "__main__":
    main()
