"""Rivals of go-opt calibrate that have a policy: screening by it, and finetuning it on the machine.

A policy of GO proposes plans as it does in a search: orders and kernels, which the slicer places, and
placements. Screening measures those that the analytical model likes best. Finetuning samples in whole steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from go_opt.agents.decoding.proposals import Advice, advice, policy_plans
from go_opt.model.codecs.plan_json import names_to_dict, save_plan
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate, Plan
from go_opt.result import Request
from go_opt.search.methods.events import Event, Proposal
from go_opt.search.methods.slices import widest_slices
from go_opt.search.state import Search
from go_opt.solver.orders.instance import instance
from go_opt.training import SEARCHED_NAME, as_policy, finetune
from tests.benchmarks.calibrate_machines import SHEET

if TYPE_CHECKING:
    from tests.benchmarks.bench_calibrate import Case, Row

LEAST_FINETUNED: Final = 20  # samples of a step
DRAWS: Final = 20  # for each plan measured, at most: some do not fit, or are drawn again
REQUEST: Final = Request(splits=False, simulate=False)


def proposed(graph: Graph, advised: Advice, seed: int, count: int) -> list[Plan]:
    """The ``count`` best of twice as many plans of a policy, by the analytical model."""
    found: dict[bytes, tuple[float, int, Plan]] = {}
    plans = policy_plans(advised, instance(graph, SHEET), seed)
    for plan in islice(plans, DRAWS * count):
        search = Search(graph, SHEET, REQUEST)  # of its own: slicers only look for better plans
        for event in _events(search, plan):
            search.take(event)
        if search.best is not None:
            best = search.best.plan
            key = best.placement.tobytes() + best.fusion_group.tobytes() + best.order.tobytes()
            found[key] = (search.best.metrics.interval_s, len(found), best)
        if len(found) == 2 * count:
            break
    return [plan for _, _, plan in sorted(found.values(), key=lambda row: row[:2])[:count]]


def _events(search: Search, plan: Candidate) -> Iterator[Event]:
    if not len(plan.placement):
        yield from widest_slices(search, plan.method, plan.order, plan.fusion_group)
    else:
        rows = plan.placement, plan.order, plan.fusion_group
        yield Proposal(plan.method, *rows)


def screening(policy: str | None) -> Callable[[Case], Row]:
    def method(case: Case) -> Row:
        """The fastest of the policy's plans; of none that fits, the first plan's interval."""
        advised = advice(as_policy(policy, case.seed), case.graph, SHEET)
        plans = proposed(case.graph, advised, case.seed, case.count + 1)
        seconds = [case.interval_s(plan) for plan in plans or [case.first]]
        return {"interval_s": min(seconds), "samples": len(plans)}

    return method


def finetuned(case: Case) -> Row:
    """The fastest plan of a finetuning on the machine, or the first plan; the greedy one is measured too."""
    with TemporaryDirectory() as folder:
        save_plan(case.first, Path(folder) / SEARCHED_NAME, names_to_dict(case.graph, case.first))
        on: dict[str, Any] = {"target": SHEET, "environment": case.machine}
        done = finetune(case.graph, folder, samples=case.count, seed=case.seed, **on)
    return {"interval_s": done.best_interval_s, "samples": done.samples + 2}


def with_a_policy(count: int) -> dict[str, Callable[[Case], Row]]:
    """The rivals that ``count`` samples are enough for."""
    rivals = {
        "screening, untrained policy": screening(None),
        "screening, trained policy": screening("default"),
    }
    return rivals | ({"finetuned policy": finetuned} if count >= LEAST_FINETUNED else {})
