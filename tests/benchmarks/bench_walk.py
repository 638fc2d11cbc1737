"""The walk: its weights trained on the zoo's training split, beside the untrained walk, and its time.

Run: PYTHONPATH=. python tests/benchmarks/bench_walk.py [--seeds 5] [--samples 400000] [--out FILE]
     [--policy FILE ...] [--test]

Training is ``go_opt.pretrain`` with the lesson ``placement`` on the graphs of 100 to 440 ops for
``mcm-6x6``; the target is ``mcm-6x6:paper``. Two scores of the validation graphs, or with ``--test`` of the
test graphs: greedy interval / best interval of the first 1, 20 and 100 samples, each op a kernel, geometric
mean over the graphs up to 1,100 ops whose greedy plan fits; and the log of it on ``mcm-6x6`` with default
kernels, best of 16, mean over the graphs up to 1,200 ops (``agents/training/validation.py``). ``--out``
keeps the policy of the seed with the best score at 20 samples. ``--policy`` scores files, and trains
nothing. Target: 5 ms a sample at 17,669 ops, with FIX and evaluation.
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
from go_opt.agents.decoding.walk_case import WalkCase
from go_opt.agents.policy.network import Policy
from go_opt.agents.training.pretrain import POLICY_NAME, PretrainRequest, pretrain
from go_opt.agents.training.problems.cases import Case, case
from go_opt.agents.training.problems.environment import LocalEnvironment
from go_opt.agents.training.problems.lessons import PLACEMENT
from go_opt.agents.training.problems.sessions import Sessions
from go_opt.agents.training.validation import validate
from go_opt.bench.rivals import RIVALS, Limits, Problem, compete, pose
from go_opt.bench.rivals.walks import walk_case_of
from go_opt.env import zoo_entries
from go_opt.solver import fix_adjacent
from go_opt.solver.walk.walk import NUM_FEATURES, draw_walks
from go_opt.training_inputs import as_policy

TARGET = "mcm-6x6:paper"
SIZES = range(100, 441)
LONGEST, LONGEST_OWN = 1100, 1200
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
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=400_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--policy", type=Path, nargs="*", default=[])
    parser.add_argument("--test", action="store_true")
    options = parser.parse_args()
    time_of_a_sample()
    scored = graphs_of("test" if options.test else "validation")
    print(f"\n{len(scored.graphs)} graphs up to {LONGEST:,} ops, {len(scored.own)} for the own score\n")
    header(["weights", "processor s", *(f"@{n}" for n in SAMPLES), "valid", "repaired", "own score"])
    score("untrained", as_policy("none", 0), 0.0, scored)
    for path in options.policy:
        score(path.stem, as_policy(path, 0), 0.0, scored)
    if options.policy:
        return
    training = [go_opt.load(f"zoo:{name}") for name in names("train", SIZES)]
    best_at_20 = 0.0
    for seed in range(options.seeds):
        with TemporaryDirectory() as folder:
            began_s = time.process_time()
            policy = trained(training, options.samples, seed, folder)
            scores = score(f"seed {seed}", policy, time.process_time() - began_s, scored)
            if options.out is not None and scores[1] > best_at_20:
                best_at_20 = scores[1]
                shutil.copy(Path(folder) / POLICY_NAME, options.out)


def trained(graphs: list[go_opt.Graph], samples: int, seed: int, folder: str) -> Policy:
    """Of the graphs on the target as they are."""
    request = PretrainRequest(
        graphs, (), go_opt.target(TARGET), samples, seed, generated_share=0.0, plain_share=1.0
    )
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


def score(label: str, policy: Policy, trained_s: float, scored: Scored) -> np.ndarray:
    """Prints and returns the score for each of ``SAMPLES``."""
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
    scores = np.exp(np.mean(logs, axis=0))
    with Sessions(LocalEnvironment()) as sessions:
        own = validate(policy, scored.own, sessions.open(scored.own), (PLACEMENT,), 0).mean
    shares = [f"{np.mean(valid):.0%}", f"{np.mean(repaired):.0%}", f"{own:.3f}"]
    row([label, f"{trained_s:.0f}", *(f"{each:.3f}" for each in scores), *shares])
    return scores


def time_of_a_sample() -> None:
    """Processor time, each sample of a batch alone and with the others."""
    graph = posed(LARGE)
    walks, kernels = graph.case, graph.case.problem.num_kernels
    rng = np.random.default_rng(0)
    weights, head = np.zeros(NUM_FEATURES), np.zeros(kernels)
    given = walks.problem, weights, head, rng.random((PLACEMENT.samples, kernels))
    proposal = draw_walks(*given)[1][:, walks.problem.kernel_of]
    placement = fix_adjacent(walks.units, proposal).placement
    print(f"{LARGE}, {kernels} ops: processor ms of a sample, batches of {PLACEMENT.samples}\n")
    header(["walk", "FIX", "evaluation", "all"])
    parts = [
        best_s(run, clock=time.thread_time)[0] / PLACEMENT.samples * 1e3
        for run in (
            lambda: draw_walks(*given),
            lambda: fix_adjacent(walks.units, proposal),
            lambda: graph.interval_s(placement),
            lambda: graph.interval_s(walks.draw(weights, head, PLACEMENT.samples, rng).placement),
        )
    ]
    row([f"{ms:.2f}" for ms in parts])


if __name__ == "__main__":
    main()
