"""What the policy costs: proposals a second, peak memory, a finetuning run.

Run: PYTHONPATH=. python tests/benchmarks/bench_policy_cost.py --out LINES [OPS ...]

Stacks of branching blocks on ``mcm-6x6``, the default network, one thread, a process for each
line. A proposal is a share of one pass of the network and a decoding of its own: *order*, own
order and kernels, placed by the exact slicer; *placement*, one of the slicings drawn by the
policy's logits along one order; *joint*, both its own. Seconds to compile are what a first use
takes, a cache on disk aside. Targets: 10,000 ops in 4 GB, 200 samples on 1,000 ops finetuned
within 300 s. Asserts that every proposal is verified.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import jax
from chains import branchy_graph
from policy_methods import checked, plan_of
from policy_runs import NO_POLICY, Part, Row, print_table, rows_of, run_arguments, spread

import go_opt
from go_opt.agents.networks import PolicyConfig, initial_parameters
from go_opt.agents.policy.network import Policy, trainable
from go_opt.agents.policy.policy_file import load_policy
from go_opt.agents.training.finetune import FinetuneRequest, finetune
from go_opt.agents.training.problems.cases import case
from go_opt.agents.training.problems.environment import LocalEnvironment, open_session
from go_opt.agents.training.problems.lessons import JOINT, ORDER_AND_FUSION, PLACEMENT
from go_opt.agents.training.problems.rollout import play
from go_opt.env import Target
from go_opt.model.graph import Graph
from go_opt.solver.orders.instance import instance

T = TypeVar("T")

SIZES = ("500", "2000", "10000", "50000")
LESSONS = {"order": ORDER_AND_FUSION, "placement": PLACEMENT, "joint": JOINT}
FINETUNING = "finetuning"
FINETUNED_OPS, FINETUNED_SAMPLES = "1000", 200
PASSES = 3


def main() -> None:
    parser = run_arguments(__doc__)
    parser.add_argument("sizes", nargs="*", default=SIZES, help="ops")
    parser.add_argument("--proposals", type=int, default=16, help="to a pass of the network")
    parser.add_argument("--policy", nargs="+", default=[NO_POLICY], help="a file for each seed")
    options = parser.parse_args()
    setting = f"{options.proposals} proposals"
    parts = [
        Part(size, lesson, seed, setting, options.policy[seed % len(options.policy)])
        for size in options.sizes
        for lesson in LESSONS
        for seed in range(options.seeds)
    ]
    if options.sizes == SIZES or FINETUNED_OPS in options.sizes:
        setting = f"{FINETUNED_SAMPLES} samples"
        parts += [
            Part(FINETUNED_OPS, FINETUNING, seed, setting, options.policy[seed % len(options.policy)])
            for seed in range(options.seeds)
        ]
    report(rows_of(parts, partial(work, options.proposals), options, fresh=True), options)


def work(proposals: int, part: Part) -> Row:
    jax.config.update("jax_enable_compilation_cache", False)
    policy = Policy(PolicyConfig(), initial_parameters(PolicyConfig(), part.seed))
    if part.policy != NO_POLICY:
        policy = trainable(load_policy(part.policy))
    graph, target = branchy_graph(int(part.graph)), go_opt.target("mcm-6x6")
    timed = finetuning if part.method == FINETUNING else partial(proposing, part.method, proposals)
    return timed(policy, graph, target, part.seed) | {"peak_gb": peak_gb()}


def proposing(lesson: str, proposals: int, policy: Policy, graph: Graph, target: Target, seed: int) -> Row:
    """Seconds of one pass, and of drawing, decoding and evaluating so many plans."""
    few = replace(LESSONS[lesson], samples=proposals, best_of=1)
    described_s, known = seconds(lambda: case(graph, target))
    first_s, outputs = seconds(lambda: policy(known.features))
    pass_s = min(seconds(lambda: policy(known.features))[0] for _ in range(PASSES))
    with open_session(LocalEnvironment(), graph, target) as session:
        warm_up = replace(few, samples=1)
        play(known, outputs, warm_up, session, seed)  # compiles the solver's kernels
        decode_s, episodes = seconds(lambda: play(known, outputs, few, session, seed))
    decoded = episodes.decoded
    for plan in zip(decoded.placement, decoded.order, decoded.fusion_group, strict=True):
        assert go_opt.verify(graph, target, plan_of(known.instance, *plan)) == []
    return {
        "described_s": described_s,
        "compile_s": first_s - pass_s,
        "pass_s": pass_s,
        "decode_s": decode_s / proposals,
        "per_s": proposals / (pass_s + decode_s),
    }


def finetuning(policy: Policy, graph: Graph, target: Target, seed: int) -> Row:
    """Seconds of a finetuning run with its default lessons, compiling included."""
    request = FinetuneRequest(graph, target, policy, FINETUNED_SAMPLES, seed)
    with TemporaryDirectory() as folder:
        run_s, trained = seconds(lambda: finetune(request, folder, LocalEnvironment()))
    best, on_target = trained.best_plan, instance(graph, target)
    assert best is not None
    metrics = checked(on_target, plan_of(on_target, best.placement, best.order, best.fusion_group))
    assert math.isclose(metrics.interval_s, best.interval_s, rel_tol=1e-9)
    return {"run_s": run_s, "samples": trained.samples}


def seconds(run: Callable[[], T]) -> tuple[float, T]:
    began_s = time.perf_counter()
    result = run()
    return time.perf_counter() - began_s, result


def peak_gb() -> float:
    """Of this process alone; getrusage counts what the parent held when it forked."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text("utf-8").splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024 / 1e9


def report(rows: dict[Part, Row], options: argparse.Namespace) -> None:
    def cell(found: list[Row], name: str, form: str, factor: float = 1.0) -> str:
        return spread([row[name] * factor for row in found], form)

    proposed: dict[tuple[str, str], list[Row]] = {}
    tuned = []
    for part, row in rows.items():
        if part.method == FINETUNING:
            tuned.append(row)
        else:
            proposed.setdefault((part.graph, part.method), []).append(row)
    print_table(
        f"Proposals, {options.proposals} to a pass, one thread",
        ["ops", "lesson", "features s", "compile s", "pass ms", "decode ms each", "proposals/s", "peak GB"],
        (
            [
                size,
                lesson,
                cell(found, "described_s", ".2f"),
                cell(found, "compile_s", ".1f"),
                cell(found, "pass_s", ".0f", 1e3),
                cell(found, "decode_s", ".1f", 1e3),
                cell(found, "per_s", ".1f"),
                cell(found, "peak_gb", ".2f"),
            ]
            for (size, lesson), found in proposed.items()
        ),
    )
    if tuned:
        print_table(
            f"Finetuning on {FINETUNED_OPS} ops, one thread, compiling included",
            ["samples", "seconds", "peak GB"],
            [[cell(tuned, "samples", ".0f"), cell(tuned, "run_s", ".0f"), cell(tuned, "peak_gb", ".2f")]],
        )


if __name__ == "__main__":
    main()
