"""Decode steps and streaming nets with their states on the chips, for numbers of sequences in flight.

Run: PYTHONPATH=. python tests/benchmarks/bench_state.py [--evaluations N] [--targets T ...] [GRAPH ...]

For each graph and target: the plan without states (the host sends and reads them), with 1, 4, 16 and the
best number of sequences, and two rivals with their best numbers of stages and of sequences: stages of equal
numbers of states, as vLLM's equal numbers of layers are, and of equal weights, as accelerate has them.
Asserts that plans are valid, and that intervals are neither below the bound nor below latency / sequences.
Prints a Markdown table; times in us.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

import go_opt
from go_opt.common.arrays import FloatArray, IntArray
from go_opt.env import Target, cost_tables, evaluate_plan, greedy_fusion, loop_roles
from go_opt.env.copies.splits import planned_graph
from go_opt.env.kernels.numbering import number_kernels
from go_opt.errors import InfeasibleError
from go_opt.model.graph import WEIGHT, Graph, with_sequences
from go_opt.model.plan import Candidate
from go_opt.model.states import with_host_states, without_states
from go_opt.solver import needed_relays, relays_of_arrays
from go_opt.solver.problem.op_constraints import op_constraints
from go_opt.solver.problem.segment_rules import may_be_cut
from go_opt.solver.verify.verifier import verify

GRAPHS: Final = (
    "gpt2_step", "whisper_base_step", "mamba_130m_step", "rnnt_step", "smollm2_360m_step",
    "mixtral_8x30m_step_b8",
)  # fmt: skip
TARGETS: Final = ("mcm-6x6", "h100-sxm-8", "wormhole-8x4")
NUMBERS: Final = (1, 4, 16, None)
COLUMNS: Final = ("sequences", "on host", "interval", "latency", "bound", "gap", "simulated", "chips")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="*", default=GRAPHS)
    parser.add_argument("--targets", nargs="*", default=TARGETS)
    parser.add_argument("--evaluations", type=int, default=200)
    given = parser.parse_args()
    print("| graph | target | plan | " + " | ".join(COLUMNS) + " |")
    print("|---|---|---|" + "---:|" * len(COLUMNS))
    for name in given.graphs:
        for target_name in given.targets:
            graph, target = go_opt.load(f"zoo:{name}"), go_opt.target(target_name)
            plain = without_states(graph, lambda state: True)
            _show(name, target_name, "no state", _searched(plain, target, None, given.evaluations)[0])
            found = None
            for number in NUMBERS:
                row, found = _searched(graph, target, number, given.evaluations)
                _show(name, target_name, "go-opt" if number else "go-opt, best", row)
            for rival, weigh in RIVALS.items():
                _show(name, target_name, rival, _best_even(graph, target, weigh, found))


def _show(graph: str, target: str, plan: str, cells: list[str]) -> None:
    print(f"| {graph} | {target} | {plan} | " + " | ".join(cells) + " |", flush=True)


def _searched(
    graph: Graph, target: Target, number: int | None, evaluations: int
) -> tuple[list[str], go_opt.Plan | None]:
    try:
        result = go_opt.optimize(graph, target, sequences=number, max_evaluations=evaluations)
    except InfeasibleError:
        return [str(number), *["none"] * (len(COLUMNS) - 1)], None
    metrics, plan = result.metrics, result.plan
    assert go_opt.verify(graph, target, plan) == []
    assert result.lower_bound_s <= metrics.interval_s * (1 + 1e-9)
    if graph.states:
        assert metrics.interval_s >= metrics.latency_s / plan.sequences * (1 - 1e-6)
    simulated_s = result.simulated_interval_s or math.nan
    cells = [
        str(plan.sequences), f"{len(plan.host_states)} of {len(graph.states)}", _us(metrics.interval_s),
        _us(metrics.latency_s), _us(result.lower_bound_s), f"{result.gap:.1%}", _us(simulated_s),
        str(plan.chips_used),
    ]  # fmt: skip
    return cells, plan


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.4g}"


# --------------------------------------------------------------------------- rivals


def _states_by_op(graph: Graph) -> FloatArray:
    """[N] states whose writer an op is: equal shares of them are equal numbers of layers."""
    weight = np.full(graph.num_ops, 1e-9)
    for state in graph.states:
        weight[graph.readers_of(state.read)[0]] += 1.0
    return weight


def _weights_by_op(graph: Graph) -> FloatArray:
    """[N] elements of the weights that an op reads first."""
    weight = np.full(graph.num_ops, 1e-9)
    for k in np.flatnonzero(graph.tensor_kind == WEIGHT):
        weight[graph.readers_of(int(k))[0]] += float(graph.tensor_elements[k])
    return weight


RIVALS: Final[dict[str, Callable[[Graph], FloatArray]]] = {
    "equal layers": _states_by_op,
    "equal weights": _weights_by_op,
}


def _even_stages(
    graph: Graph, target: Target, weight: FloatArray
) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
    """Placement, order and kernels for each number of stages, cut where states allow."""
    roles = loop_roles(graph, target.kernel_patterns)
    requested = op_constraints(graph, target, ())
    stored = np.arange(graph.num_ops, dtype=np.int32)
    group = greedy_fusion(roles, stored)
    order = requested.contiguous(stored, group)
    kernel_of = number_kernels(order, group)
    num_kernels = int(kernel_of.max()) + 1
    done = np.cumsum(np.bincount(kernel_of, weights=weight, minlength=num_kernels))
    cuts = np.flatnonzero(may_be_cut(kernel_of, num_kernels, requested.colocated))
    before = np.concatenate([[0.0], done])[cuts]
    for stages in range(1, target.num_chips + 1):
        wanted = done[-1] * np.arange(1, stages) / stages
        chosen = np.unique(cuts[np.clip(np.searchsorted(before, wanted), 1, len(cuts) - 2)])
        placement = np.searchsorted(chosen, kernel_of, side="right").astype(np.int32)
        yield placement, order, group


def _best_even(
    graph: Graph, target: Target, weigh: Callable[[Graph], FloatArray], found: go_opt.Plan | None
) -> list[str]:
    """The best of the rival's plans: of whole ops with all states on the chips, or all on the host, and with
    the parts and states on the host of our plan, which it does not find.
    """
    everything = with_host_states(graph, tuple(graph.tensor_names[state.read] for state in graph.states))
    graphs = [graph, everything, *([] if found is None else [planned_graph(graph, found)])]
    return min((_even(one, target, weigh) for one in graphs), key=lambda row: row[0])[1]


def _even(graph: Graph, target: Target, weigh: Callable[[Graph], FloatArray]) -> tuple[float, list[str]]:
    best: tuple[float, list[str]] = math.inf, ["", *["none"] * (len(COLUMNS) - 1)]
    graph = with_sequences(graph, 1)
    tables = cost_tables(graph, target)
    for placement, order, group in _even_stages(graph, target, weigh(graph)):
        plan = Candidate("even", placement, order, group).plan(graph, target)
        if target.constraints.triangle != "off":
            relays = needed_relays(tables, placement, target.constraints.triangle)
            plan = replace(plan, relays=relays_of_arrays(graph, *relays))
        alone = evaluate_plan(graph, target, plan)
        number = max(math.ceil(alone.latency_s / max(alone.compute_s.max(), alone.link_s.max())), 1)
        while number:  # as many as are needed, or as fit
            on_graph, plan = with_sequences(graph, number), replace(plan, sequences=number)
            metrics = evaluate_plan(on_graph, target, plan)
            if metrics.valid and metrics.interval_s < best[0] and verify(on_graph, target, plan) == []:
                cells = [
                    str(number), str(len(graph.host_states)), _us(metrics.interval_s),
                    _us(metrics.latency_s), "", "", "", str(plan.chips_used),
                ]  # fmt: skip
                best = metrics.interval_s, cells
            number //= 2
    return best


if __name__ == "__main__":
    main()
