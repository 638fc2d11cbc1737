"""What each chip brings in from outside, against an integer program that may also spill activations.

Run: PYTHONPATH=. python tests/benchmarks/bench_chip_memory.py [--budget SECONDS] [--limit SECONDS] [NAME ...]

Every chip whose weights stream in the plan found for a graph is solved again: which weights stay, and
between which of its uses an activation leaves and comes back, so that the fewest bytes move (the memory
part of COSMA, Zhang et al. 2023, with the plan's order; activations have no addresses, which can only
help the program). HiGHS solves it within the limit. *least*: its proven bound. Asserts that the program
without spills moves no more than the plan does, and prints a line for each chip.
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

import go_opt
from go_opt.common.arrays import BoolArray, FloatArray
from go_opt.env.copies.relays import PlanTables, plan_tables
from go_opt.env.kernels.numbering import number_kernels
from go_opt.env.model.memory import Fit, Holdings, fit_chips, holdings

COLUMNS = ("graph", "chip", "kernels", "plan, MB", "seconds", "no spills, MB", "least", "spills, MB", "least")
TARGET = go_opt.target("mcm-6x6")
MOST_KERNELS = 1500


class Program(NamedTuple):
    """Choose columns X of least ``moved_bytes``, so that enough leaves memory at every kernel."""

    moved_bytes: FloatArray  # [X] weights that stream, gaps of activations, activations that leave
    is_spill: BoolArray  # [X]
    freed_bytes: csr_array  # [kernels, X]
    needed_bytes: FloatArray  # [kernels]
    leaves: csr_array  # [gaps, X] a gap, less its activation, is at most 0
    is_integer: BoolArray  # [X]; weights that are read as a whole may stream in part


def gaps_of(placed: PlanTables, held: Holdings, kernel_of: np.ndarray, a: int) -> list[tuple[int, int]]:
    """Kernels between which activation ``a`` of the holdings is not used."""
    tables, k = placed.tables, held.activation[a]
    readers = tables.reader_op[tables.reader_ptr[k] : tables.reader_ptr[k + 1]]
    uses = sorted({int(held.born[a]), *kernel_of[readers].tolist()})
    return list(itertools.pairwise(uses))


def program_of(
    placed: PlanTables, held: Holdings, fit: Fit, kernel_of: np.ndarray, kernels: np.ndarray, chip: int
) -> Program:
    tables = placed.tables
    weights = np.arange(held.weight_ptr[chip], held.weight_ptr[chip + 1])
    stored = tables.stored_bytes[held.weight[weights]].astype(float)
    demand = np.full(len(kernels), held.border_bytes[chip] + stored.sum() + tables.stream_buffer_bytes[chip])
    columns: list[tuple[float, bool]] = [(float(b), False) for b in held.weight_touched[weights]]
    is_read_in_part = held.weight_touched[weights] < tables.tensor_bytes[held.weight[weights]]
    freed = [np.full(len(kernels), size) for size in stored]
    leaves: list[tuple[int, int]] = []
    for a in range(held.activation_ptr[chip], held.activation_ptr[chip + 1]):
        size = float(held.size_bytes[a])
        demand[(kernels >= held.born[a]) & (kernels <= held.dead[a])] += size
        away = [(kernels > begin) & (kernels < end) for begin, end in gaps_of(placed, held, kernel_of, a)]
        away = [gap for gap in away if gap.any()]
        if not away or size == 0:
            continue
        owner = len(columns)
        columns.append((size, True))
        freed.append(np.zeros(len(kernels)))
        for gap in away:
            leaves.append((len(columns), owner))
            columns.append((size, True))
            freed.append(gap * size)
    rows = np.repeat(np.arange(len(leaves)), 2)
    values = np.tile([1.0, -1.0], len(leaves))
    return Program(
        np.array([moved for moved, _ in columns]),
        np.array([is_spill for _, is_spill in columns]),
        csr_array(np.stack(freed, axis=1)),
        demand - tables.sram_bytes[chip],
        csr_array((values, (rows, np.array(leaves, dtype=int).ravel())), shape=(len(leaves), len(columns))),
        np.concatenate([is_read_in_part, np.ones(len(columns) - len(weights), np.bool_)]),
    )


def least_moved(program: Program, limit_s: float, *, spills: bool) -> tuple[float, float, float]:
    """Bytes moved, their proven bound, seconds."""
    start_s = time.perf_counter()
    scale = 1e-6
    constraints = [LinearConstraint(program.freed_bytes * scale, program.needed_bytes * scale, np.inf)]
    if program.leaves.shape[0]:
        constraints.append(LinearConstraint(program.leaves, -np.inf, 0.0))
    most = np.where(program.is_spill & (not spills), 0.0, 1.0)
    found = milp(
        program.moved_bytes * scale,
        integrality=program.is_integer,
        bounds=Bounds(0.0, most),
        constraints=constraints,
        options={"time_limit": limit_s, "mip_rel_gap": 1e-4},
    )
    reached = np.inf if found.fun is None else found.fun / scale
    bound = 0.0 if found.mip_dual_bound is None else found.mip_dual_bound / scale
    return reached, bound, time.perf_counter() - start_s


def rows(name: str, budget_s: float, limit_s: float) -> None:
    """Print a line for each chip of the graph's plan that streams."""
    graph = go_opt.load(f"zoo:{name}")
    plan = go_opt.optimize(graph, TARGET, budget_s=budget_s, policy=None, splits=False).plan
    placed = plan_tables(graph, TARGET, plan)
    kernel_of = number_kernels(placed.order, placed.fusion_group)
    kernel_chip = np.empty(int(kernel_of.max()) + 1, dtype=np.int32)
    kernel_chip[kernel_of] = placed.placement
    held = holdings(placed.tables, kernel_of, kernel_chip)
    start_s = time.perf_counter()
    fit = fit_chips(placed.tables, held)
    ours_s = time.perf_counter() - start_s
    for chip in np.flatnonzero(fit.stream_bytes).tolist():
        kernels = np.flatnonzero(kernel_chip == chip)
        ours = float(fit.stream_bytes[chip])
        if len(kernels) > MOST_KERNELS:
            print(f"| {name} | {chip} | {len(kernels)} | {ours / 1e6:.3f} | too large |", flush=True)
            continue
        program = program_of(placed, held, fit, kernel_of, kernels, chip)
        stay, stay_bound, _ = least_moved(program, limit_s, spills=False)
        spill, spill_bound, seconds = least_moved(program, limit_s, spills=True)
        assert stay <= ours * (1 + 1e-4) + 1
        cells = (name, str(chip), str(len(kernels)), f"{ours / 1e6:.3f}", f"{ours_s:.4f} / {seconds:.1f}")
        known = (stay, stay_bound, spill, spill_bound)
        print("| " + " | ".join([*cells, *(f"{b / 1e6:.3f}" for b in known)]) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--budget", type=float, default=10.0)
    parser.add_argument("--limit", type=float, default=60.0)
    options = parser.parse_args()
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for name in options.names:
        rows(name, options.budget, options.limit)


if __name__ == "__main__":
    main()
