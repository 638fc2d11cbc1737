"""Plans a second through the simulator, by graph and kind of plan, and its growth with the graph.

Run: PYTHONPATH=. python tests/benchmarks/bench_simulator.py

Asserts that every interval is that of a long run in which no steady state is looked for, and
that with every effect off it is that of the plain model. Prints Markdown tables, one core: plans
per second on graphs near 1,000 ops (target: 200), and nanoseconds an op and inference from 300
to 53,000 ops (level = linear). Seconds are of CPU, the best of some repeats.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from itertools import islice

import numpy as np
from fidelity_plans import Case, PlanArrays, case_of, good_plans, random_plans
from measuring import best_s, header

from go_opt.env import evaluate_batch, load_target, load_zoo
from go_opt.env.kernels.numbering import number_kernels
from go_opt.env.simulator.assembly import assemble
from go_opt.env.simulator.engine import run, step_s
from go_opt.env.simulator.simulate import NEVER, VALID, SimulatedBatch, setting_of, simulate_batch
from go_opt.env.target.kinds import EFFECTS
from go_opt.solver import slice_order

NEAR_1000 = (
    "resnet152", "swin_b", "tree_lstm", "densenet201", "transformer_xl_2", "rt_detr_r50", "pythia_410m",
    "inception_resnet_v2", "nasnet_mobile", "unet",
)  # fmt: skip
GROWING = ("bert_base", "inception_resnet_v2", "rnnlm_2x2048", "rnnlm_4x2048", "rnnlm_8x2048", "gnmt_8")
NUM_PLANS = 8
LONG_RUN, LONG_PLANS = 600, 3
REPEATS = 3


def main() -> None:
    header(["graph", "ops", "kind", "plans that run", "chips", "inferences", "plans/s, median", "slowest"])
    rates = []
    for name in NEAR_1000:
        case = case_of(load_zoo(name), load_target("mcm-6x6"))
        for kind, plans in (("good", good(case)), ("random", random_plans(case, 3 * NUM_PLANS, 0))):
            rates += measured(name, case, kind, plans)
    print(f"\nmedian {np.median(rates):.0f} plans/s; at least 200: {np.mean(np.array(rates) >= 200):.0%}\n")
    header(["graph", "ops", "inferences", "ms a plan", "ns an op and inference"])
    for name in GROWING:
        grown(name)


def good(case: Case) -> PlanArrays:
    return good_plans(case, 3 * NUM_PLANS, 0)


def measured(name: str, case: Case, kind: str, plans: PlanArrays) -> list[float]:
    """One line: how fast the plans that run are, each alone."""
    running = [plan for plan in singles(plans) if simulate(case, plan).outcome[0] == VALID]
    rates, inferences = [], []
    for plan in islice(running, NUM_PLANS):
        seconds, batch = best_s(partial(simulate, case, plan), REPEATS, time.thread_time)
        rates.append(1 / seconds)
        inferences.append(int(batch.rounds[0]))
        assert_equals_model(case, plan)
    for plan in running[:LONG_PLANS]:
        assert_equals_long_run(case, plan)
    chips = np.median([plan.placement.max() + 1 for plan in running]) if running else 0
    share = f"{len(running)} of {len(plans.order)}"
    speed = f"{np.median(rates):.0f} | {min(rates):.0f}" if rates else "- | -"
    print(
        f"| {name} | {case.graph.num_ops} | {kind} | {share} | {chips:.0f} | "
        f"{np.median(inferences) if inferences else 0:.0f} | {speed} |",
        flush=True,
    )
    return rates


def grown(name: str) -> None:
    case = case_of(load_zoo(name), load_target("mcm-6x6"))
    sliced = slice_order(case.tables, case.default, case.fusion_group, forwarding=case.forwarding)
    assert sliced is not None
    # Without `memory`, so that every graph's slice runs.
    plan = PlanArrays(sliced.placement[None], case.default[None], case.fusion_group[None])
    run = partial(simulate, case, plan, without=("memory",))
    seconds, batch = best_s(run, REPEATS, time.thread_time)
    assert batch.outcome[0] == VALID
    assert_equals_model(case, plan)
    inferences = int(batch.rounds[0])
    per_op_ns = seconds / inferences / case.graph.num_ops * 1e9
    print(
        f"| {name} | {case.graph.num_ops} | {inferences} | {seconds * 1e3:.1f} | {per_op_ns:.0f} |",
        flush=True,
    )


def singles(plans: PlanArrays) -> list[PlanArrays]:
    """Batches of one, in an order that takes every kind of plan early."""
    rows = np.random.default_rng(0).permutation(len(plans.order))
    return [PlanArrays(*(array[row : row + 1] for array in plans)) for row in rows]


def simulate(case: Case, plan: PlanArrays, without: Sequence[str] = ()) -> SimulatedBatch:
    return simulate_batch(case.graph, case.target, *plan, without=without)


def assert_equals_model(case: Case, plan: PlanArrays) -> None:
    plain, _ = setting_of(case.graph, case.target, tuple(sorted(EFFECTS)))
    ideal = simulate(case, plan, without=EFFECTS)
    np.testing.assert_allclose(ideal.interval_s, evaluate_batch(plain, *plan).interval_s, rtol=1e-6)


def assert_equals_long_run(case: Case, plan: PlanArrays) -> None:
    batch = simulate(case, plan)
    tables, setting = setting_of(case.graph, case.target, ())
    kernel_of = number_kernels(plan.order[0], plan.fusion_group[0])
    alone = np.ones(tables.num_chips, np.int32)
    package = assemble(tables, setting, kernel_of, plan.placement[0], alone, LONG_RUN, 0).package
    run(package, LONG_RUN, NEVER)
    # Once no more are admitted the package runs empty: the last window does not count.
    last, period = LONG_RUN - 1 - int(package.shared["window"][0]), max(1, int(batch.period[0]))
    long_s = step_s(package, last, last // 2 // period * period, True)
    # Where nothing repeats, both are means over many inferences.
    tolerance = 1e-9 if batch.period[0] else 1e-2
    np.testing.assert_allclose(batch.interval_s[0], long_s, rtol=tolerance)


if __name__ == "__main__":
    main()
