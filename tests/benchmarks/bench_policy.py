"""What training is worth: policies trained as ``go-opt pretrain`` does, beside the untrained one.

Run: PYTHONPATH=. python tests/benchmarks/bench_policy.py [--lesson placement|order] [--seeds 3]
     [--samples 60000] [--out FILE] [--policy FILE ...] [--test]

Training is on the zoo's training split for ``mcm-6x6`` up to 512 ops, and on generated graphs, with varied
packages. Scores are over the validation graphs, or with ``--test`` the test graphs. Own score: the log of
greedy interval / interval on ``mcm-6x6`` with default kernels, best of 16 samples of the lesson, mean over
the graphs up to 1,200 ops (``agents/training/validation.py``). For placements also greedy interval / best
interval of the first 1, 20 and 100 samples on ``mcm-6x6:paper``, each op a kernel: the geometric mean over
the graphs up to 1,100 ops whose greedy plan fits; and the time of a sample at 17,669 ops (target 5 ms).
``--out`` keeps the policy with the best sum of the own score and the log of the score at 20 samples.
``--policy`` scores files, and trains nothing.
"""

from __future__ import annotations

import argparse
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from measuring import best_s, header, row

import go_opt
from go_opt.agents.decoding.decode import WalkCase
from go_opt.agents.policy.network import Policy
from go_opt.agents.training.problems.cases import LEAST_OPS, Case, case
from go_opt.agents.training.problems.environment import LocalEnvironment, Sessions
from go_opt.agents.training.problems.rollout import LESSONS, PLACEMENT, Lesson, Settings
from go_opt.agents.training.requests import POLICY_NAME, PretrainRequest, pretrain
from go_opt.agents.training.run import validate
from go_opt.bench.rivals import RIVALS, Limits, Problem, compete, pose
from go_opt.bench.rivals.searches import walk_case_of
from go_opt.env import zoo_entries
from go_opt.solver import place_adjacent
from go_opt.solver.walk.walk import NUM_FEATURES, draw_walks
from go_opt.training import as_policy, zoo_graphs

TARGET = "mcm-6x6:paper"
LONGEST, LONGEST_OWN, MOST_OPS = 1100, 1200, 512
SAMPLES = (1, 20, 100)
DRAWS = 5  # runs of each graph
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


@dataclass(frozen=True)
class Scored:
    """The graphs that policies are scored on."""

    graphs: list[Posed]
    own: list[Case]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lesson", choices=LESSONS, default="placement")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--policy", type=Path, nargs="*", default=[])
    parser.add_argument("--test", action="store_true")
    options = parser.parse_args()
    if options.lesson == "placement":
        time_of_a_sample()
    scored, lesson = graphs_of("test" if options.test else "validation"), LESSONS[options.lesson]
    print(f"\n{len(scored.graphs)} graphs up to {LONGEST:,} ops, {len(scored.own)} for the own score\n")
    header(["policy", "processor s", *(f"@{n}" for n in SAMPLES), "valid", "repaired", "own score"])
    score("untrained", as_policy("none", 0), 0.0, scored, lesson)
    for path in options.policy:
        score(path.stem, as_policy(path, 0), 0.0, scored, lesson)
    if options.policy:
        return
    best = -np.inf
    for seed in range(options.seeds):
        with TemporaryDirectory() as folder:
            began_s = time.process_time()
            policy = trained(lesson, options.samples, seed, folder)
            both = score(f"seed {seed}", policy, time.process_time() - began_s, scored, lesson)
            if options.out is not None and both > best:
                best = both
                shutil.copy(Path(folder) / POLICY_NAME, options.out)


def trained(lesson: Lesson, samples: int, seed: int, folder: str) -> Policy:
    """The last policy of a training; validation does not choose among its steps."""
    target = go_opt.target("mcm-6x6")
    graphs = [graph for graph in zoo_graphs("train", target, MOST_OPS) if graph.num_ops >= LEAST_OPS]
    request = PretrainRequest(graphs, (), target, samples, seed, Settings(lessons=(lesson,)))
    return pretrain(request, folder, LocalEnvironment()).policy


def graphs_of(split: str) -> Scored:
    posed_ = [posed(name) for name in names(split, range(LONGEST + 1))]
    target = go_opt.target("mcm-6x6")
    own = [case(go_opt.load(f"zoo:{name}"), target) for name in names(split, range(LONGEST_OWN + 1))]
    return Scored([each for each in posed_ if np.isfinite(each.greedy_s)], own)


def names(split: str, sizes: range) -> list[str]:
    entries = [e for e in zoo_entries() if e.split == split and e.target == "mcm-6x6" and e.ops in sizes]
    return [entry.name for entry in sorted(entries, key=lambda entry: (entry.ops, entry.name))]


def posed(name: str) -> Posed:
    problem = pose(go_opt.load(f"zoo:{name}"), go_opt.target(TARGET), relays=False, decide="placement")
    greedy = compete(RIVALS["greedy"], problem, Limits(evaluations=1), 0)
    return Posed(problem, walk_case_of(problem), greedy.interval_s)


def score(label: str, policy: Policy, trained_s: float, scored: Scored, lesson: Lesson) -> float:
    """Prints the scores, and returns the own score, plus the log of that at 20 samples."""
    with Sessions(LocalEnvironment()) as sessions:
        own = validate(policy, scored.own, sessions.open(scored.own), (lesson,), 0).mean
    of_walk = [""] * 5
    if lesson is PLACEMENT:
        logs, valid, repaired = [], [], []
        for graph in scored.graphs:
            for seed in range(DRAWS):
                rng = np.random.default_rng(seed)
                no_head = np.zeros(graph.problem.graph.num_ops)
                drawn = graph.case.draw(policy.walk_weights, no_head, max(SAMPLES), rng)
                interval_s = graph.interval_s(drawn.placement)
                logs.append([np.log(graph.greedy_s / interval_s[:n].min()) for n in SAMPLES])
                valid.append(np.isfinite(interval_s).mean())
                repaired.append(drawn.is_repaired.mean())
        means = np.mean(logs, axis=0)
        shares = f"{np.mean(valid):.0%}", f"{np.mean(repaired):.0%}"
        of_walk = [*(f"{each:.3f}" for each in np.exp(means)), *shares]
    row([label, f"{trained_s:.0f}", *of_walk, f"{own:.3f}"])
    return own if lesson is not PLACEMENT else own + float(means[1])


def time_of_a_sample() -> None:
    """Processor time, each sample of a batch alone and with the others."""
    graph = posed(LARGE)
    walks, kernels = graph.case, graph.case.problem.num_kernels
    rng = np.random.default_rng(0)
    weights, head = np.zeros(NUM_FEATURES), np.zeros(kernels)
    given = walks.problem, weights, head, rng.random((PLACEMENT.samples, kernels))
    proposal = draw_walks(*given)[1][:, walks.problem.kernel_of]
    placement = place_adjacent(walks.units, proposals=proposal).placement
    print(f"{LARGE}, {kernels} ops: processor ms of a sample, batches of {PLACEMENT.samples}\n")
    header(["walk", "FIX", "evaluation", "all"])
    parts = [
        best_s(run, clock=time.thread_time)[0] / PLACEMENT.samples * 1e3
        for run in (
            lambda: draw_walks(*given),
            lambda: place_adjacent(walks.units, proposals=proposal),
            lambda: graph.interval_s(placement),
            lambda: graph.interval_s(walks.draw(weights, head, PLACEMENT.samples, rng).placement),
        )
    ]
    row([f"{ms:.2f}" for ms in parts])


if __name__ == "__main__":
    main()
