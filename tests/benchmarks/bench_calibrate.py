"""What learning a machine's figures is worth: go-opt calibrate and rivals on simulated machines.

A machine is mcm-6x6 with tiles, lanes, fill, DMA, packets, buffers, prefetch and allocator drawn by its
number; those with an odd number also have an efficiency for each type of op and shape that no method has a
form for. Plans are made for mcm-6x6 as it ships. Every method has the same number of measurements and one
more, of the plan that it ends with; its answer is the fastest of its own.

    python tests/benchmarks/bench_calibrate.py --out calibrate.jsonl        # goes on where it stopped
    python tests/benchmarks/bench_calibrate.py --out calibrate.jsonl --report
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import go_opt
from go_opt.agents.training.problems.environment import Evaluations, LocalEnvironment
from go_opt.calibration.calibrating import Calibration, Learned
from go_opt.env import Target, load_target
from go_opt.env.cost import cost_tables, tables
from go_opt.env.cost.shapes import product_shapes, shaped_op_seconds
from go_opt.env.simulator import simulate_plan
from go_opt.env.target.simulator_parameters import KindParameters, SimulatorParameters
from go_opt.errors import InfeasibleError
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan

GRAPHS = ("vit_b16", "wavenet_2x18", "inception_v3", "densenet121", "unet_segmentation", "depth_anything_s")
MACHINES, EVALUATIONS = 5, 20
SHEET = load_target("mcm-6x6")
OpSeconds = Callable[[Graph, NDArray], NDArray]  # of a graph, given what the target says [Q, N]


@contextmanager
def op_seconds(of: OpSeconds) -> Iterator[None]:
    """Ops take the seconds ``of`` says, where a graph is costed that was not costed before."""
    tables.shaped_op_seconds = lambda graph, op_s, kinds: of(graph, shaped_op_seconds(graph, op_s, kinds))
    try:
        yield
    finally:
        tables.shaped_op_seconds = shaped_op_seconds


@dataclass(frozen=True, eq=False)
class Machine:
    """A simulated machine, as an environment; ``target`` has its parameters."""

    number: int
    target: Target

    def op_s(self, graph: Graph, shaped_s: NDArray) -> NDArray:
        """[1, N] seconds of compute that ops take here."""
        if self.number % 2 == 0:
            return shaped_s
        rng = np.random.default_rng([7, self.number])
        shapes = np.log2(np.array(product_shapes(graph)))
        waves = rng.normal(size=(3, 4)) @ shapes / 2 + rng.uniform(0, 6, 3)[:, None]
        types = {
            name: np.random.default_rng([self.number, *name.encode()]).normal() for name in {*graph.op_types}
        }
        of_type = np.array([types[name] for name in graph.op_types])
        return shaped_s * np.exp(0.15 * np.sin(waves).sum(axis=0) + 0.2 * of_type)

    def open(self, graph: Graph, target: Target) -> _Session:
        return _Session(self, replace(graph))

    def interval_s(self, graph: Graph, plan: Plan) -> float:
        """Seconds of an inference; infinite where the plan does not run."""
        with op_seconds(self.op_s):
            plan = replace(plan, target_fingerprint=self.target.fingerprint)
            return simulate_plan(replace(graph), self.target, plan).interval_s


@dataclass(frozen=True)
class _Session:
    machine: Machine
    graph: Graph

    def evaluate_plans(self, plans: Sequence[Plan]) -> Evaluations:
        with op_seconds(self.machine.op_s):
            session = LocalEnvironment("simulated").open(self.graph, self.machine.target)
            return session.evaluate_plans(plans)

    def evaluate(self, *plans: NDArray) -> Evaluations:
        raise NotImplementedError

    def close(self) -> None:
        pass


def drawn(number: int) -> Machine:
    rng = np.random.default_rng([2026, number])
    kind = KindParameters(
        tile_rows=int(2 ** rng.integers(2, 8)),
        tile_inner=int(2 ** rng.integers(3, 8)),
        tile_columns=int(2 ** rng.integers(3, 8)),
        tiles_at_once=int(2 ** rng.integers(0, 4)),
        fill_s=float(10 ** rng.uniform(-7.5, -6.3)),
        vector_lanes=int(2 ** rng.integers(4, 11)),
        dma_engines=int(rng.integers(1, 9)),
        dma_setup_s=float(10 ** rng.uniform(-7.5, -6)),
        alignment_bytes=int(2 ** rng.integers(6, 17)),
        stream_buffer_bytes=int(2 ** rng.integers(18, 22)),
    )
    package = SimulatorParameters(
        kinds=(kind,),
        buffers=int(rng.integers(2, 4)),
        packet_bytes=int(rng.choice([64, 128, 240, 496])),
        packet_header_bytes=int(rng.choice([8, 16, 32])),
        host_multicast=bool(rng.integers(2)),
        weight_prefetch=bool(rng.integers(2)),
        fit_by_size=False,
    )
    kinds = (replace(SHEET.kinds[0], simulator=kind),)
    name = f"machine {number}"
    return Machine(number, replace(SHEET, kinds=kinds, simulator=package, fingerprint=name, source=name))


def planned(
    graph: Graph, on: Target, of: OpSeconds | None = None, seed: int = 0, most: int = EVALUATIONS
) -> Plan:
    options: dict[str, Any] = {"policy": None, "simulate": False, "splits": False, "seed": seed}
    with op_seconds(of or (lambda graph, shaped_s: shaped_s)):
        try:
            return go_opt.optimize(replace(graph), on, max_evaluations=most, **options).plan
        except InfeasibleError:
            return go_opt.optimize(replace(graph), SHEET, max_evaluations=most, **options).plan


@dataclass(eq=False)
class Case:
    """A graph on a machine, with so many measurements."""

    graph: Graph
    machine: Machine
    count: int
    seed: int
    folder: Path  # of samples, which grow from count to count

    @cached_property
    def first(self) -> Plan:
        return planned(self.graph, SHEET)

    @cached_property
    def calibration(self) -> tuple[Calibration, Learned]:
        path = self.folder / f"{self.machine.number}-{self.graph.name}-{self.seed}.json"
        if self.count == 1:
            path.unlink(missing_ok=True)
        options: dict[str, Any] = {"machine": self.machine.target, "seed": self.seed}
        options["machine_name"] = str(self.machine.number)
        calibration = Calibration(self.graph, SHEET, self.machine, path, **options)
        *_, learned = calibration.run(self.count)
        return calibration, learned

    def op_error(self, op_s: NDArray) -> float:
        """Of seconds [N] of ops, relative to all seconds of the graph."""
        with op_seconds(self.machine.op_s):
            true_s = cost_tables(replace(self.graph), self.machine.target).op_s[0]
        return float(np.abs(op_s - true_s).sum() / true_s.sum())

    def interval_s(self, plan: Plan) -> float:
        return self.machine.interval_s(self.graph, plan)


def analytical(case: Case) -> tuple[float, float | None]:
    return case.interval_s(case.first), case.op_error(cost_tables(case.graph, SHEET).op_s[0])


def perfect(case: Case) -> tuple[float, float | None]:
    return case.interval_s(planned(case.graph, case.machine.target, case.machine.op_s)), 0.0


def calibrated(case: Case) -> tuple[float, float | None]:
    """The plan for the target that was found, whatever was measured before."""
    _, learned = case.calibration
    return case.interval_s(planned(case.graph, learned.target)), case.op_error(
        cost_tables(case.graph, learned.target).op_s[0]
    )


def best_measured(case: Case) -> tuple[float, float | None]:
    calibration, _ = case.calibration
    return min(calibration.best.interval_s, calibrated(case)[0]), None


def annealed(case: Case) -> tuple[float, float | None]:
    """Simulated annealing of placements from the first plan, each measured."""
    rng = np.random.default_rng(case.seed)
    plan = case.first
    best_s = now_s = case.interval_s(plan)
    left = case.count
    for _ in range(20 * case.count):
        chips = np.unique(plan.placement)
        if not left or len(chips) < 2:
            break
        at = int(rng.integers(len(chips) - 1))
        in_order = plan.placement[plan.order]
        if rng.integers(2):
            place, to = np.flatnonzero(in_order == chips[at])[-1], chips[at + 1]
        else:
            place, to = np.flatnonzero(in_order == chips[at + 1])[0], chips[at]
        group = plan.fusion_group == plan.fusion_group[plan.order[place]]
        size = plan.replication[plan.placement == to][0]
        moved = replace(
            plan,
            placement=np.where(group, to, plan.placement).astype(np.int32),
            replication=np.where(group, size, plan.replication).astype(np.int32),
        )
        if go_opt.verify(case.graph, SHEET, moved):
            continue
        left -= 1
        seconds = case.interval_s(moved)
        best_s = min(best_s, seconds)
        if seconds <= now_s * (1 + 0.05 * rng.exponential() * left / case.count):
            plan, now_s = moved, seconds
    return best_s, None


def screened(case: Case) -> tuple[float, float | None]:
    """The fastest of the plans that the analytical model likes best."""
    rng, found = np.random.default_rng(case.seed), {}
    for i in range(2 * (case.count + 1)):
        factor = np.exp(0.3 * rng.standard_normal(case.graph.num_ops) * (i > 0))
        by_name = dict(zip(case.graph.op_names, factor, strict=True))

        def disturbed(graph: Graph, shaped_s: NDArray, by_name: dict[str, float] = by_name) -> NDArray:
            return shaped_s * np.array([by_name.get(name, 1.0) for name in graph.op_names])

        plan = planned(case.graph, SHEET, disturbed, i, 6 if i else EVALUATIONS)
        plan = replace(plan, target_fingerprint=SHEET.fingerprint)
        key = plan.placement.tobytes() + plan.fusion_group.tobytes() + plan.order.tobytes()
        found[key] = (go_opt.evaluate(case.graph, SHEET, plan).interval_s, i, plan)
    best = sorted(found.values(), key=lambda row: row[:2])[: case.count + 1]
    return min(case.interval_s(plan) for _, _, plan in best), None


METHODS: dict[str, Callable[[Case], tuple[float, float | None]]] = {
    "analytical": analytical,
    "annealing": annealed,
    "screening": screened,
    "calibrate, its target": calibrated,
    "calibrate, best measured": best_measured,
    "perfect": perfect,
}


def with_learned(methods: dict[str, Any]) -> dict[str, Any]:
    """And rivals that learn seconds of ops from the samples of calibrate, with its links and memory."""
    from tests.benchmarks.calibrate_rivals import learned_tables

    def of(table: Callable[..., NDArray]) -> Callable[[Case], tuple[float, float | None]]:
        def method(case: Case) -> tuple[float, float | None]:
            calibration, learned = case.calibration
            op_s = table(case.graph, calibration.samples)
            by_name = dict(zip(case.graph.op_names, op_s, strict=True))

            def seconds(graph: Graph, shaped_s: NDArray) -> NDArray:
                pairs = zip(graph.op_names, shaped_s[0], strict=True)
                return np.array([[by_name.get(name, shaped) for name, shaped in pairs]])

            return case.interval_s(planned(case.graph, learned.package, seconds)), case.op_error(op_s)

        return method

    return methods | {name: of(table) for name, table in learned_tables(SHEET, drawn, planned).items()}


def report(rows: Sequence[dict[str, Any]]) -> None:
    by_case: dict[tuple, dict[str, dict]] = {}
    for row in rows:
        case = (row["machine"], row["graph"], row["count"], row["seed"])
        by_case.setdefault(case, {})[row["method"]] = row
    for is_odd in (None, 0, 1):
        for count in sorted({case[2] for case in by_case}):
            chosen = {
                case: methods
                for case, methods in by_case.items()
                if case[2] == count
                and is_odd in (None, case[0] % 2)
                and {"analytical", "perfect"} <= {*methods}
            }
            kind = {None: "all", 0: "even", 1: "odd"}[is_odd]
            print(f"\n{kind} machines, {count} samples, {len(chosen)} cases")
            for name in dict.fromkeys(row["method"] for row in rows):
                these = {case: methods for case, methods in chosen.items() if name in methods}
                if these:
                    _line(name, these)


def _line(name: str, cases: dict[tuple, dict[str, dict]]) -> None:
    """Gain over the analytical plan, which is measured as well; an interval over graphs (bootstrap)."""
    logs, most, by_graph = [], 0.0, {}
    for case, methods in cases.items():
        base = methods["analytical"]["interval_s"]
        gain = np.log(base / min(base, methods[name]["interval_s"]))
        most += max(0.0, np.log(base / methods["perfect"]["interval_s"]))
        logs.append(gain)
        by_graph.setdefault(case[1], []).append(gain)
    means = np.array([np.mean(values) for values in by_graph.values()])
    draws = means[np.random.default_rng(0).integers(len(means), size=(2000, len(means)))].mean(axis=1)
    low, high = np.exp(np.quantile(draws, [0.025, 0.975]))
    errors = [methods[name]["op_error"] for methods in cases.values()]
    error = f"{np.mean(errors):7.1%}" if errors[0] is not None else ""
    worst = min(m["analytical"]["interval_s"] / m[name]["interval_s"] for m in cases.values())
    print(
        f"{name:26s} {np.exp(np.mean(logs)):6.3f}x [{low:.3f}, {high:.3f}] of {len(logs)}, without the first "
        f"plan at worst {worst:.3f}x, share of perfect {np.sum(logs) / most:6.1%}, op error {error}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--learned", action="store_true", help="also rivals that are trained")
    parser.add_argument("--methods", nargs="+", help="only these")
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS))
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 20])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=np.inf, help="stop after so many")
    options = parser.parse_args()
    text = options.out.read_text() if options.out.exists() else ""
    rows = [json.loads(line) for line in text.splitlines()]
    if options.report:
        report(rows)
        return
    done = {(row["machine"], row["graph"], row["count"], row["seed"], row["method"]) for row in rows}
    methods, end_s = with_learned(METHODS) if options.learned else METHODS, time.monotonic() + options.seconds
    methods = {name: run for name, run in methods.items() if name in (options.methods or methods)}
    folder = options.out.with_suffix(".samples")
    folder.mkdir(exist_ok=True)
    for seed in options.seeds:
        for name in options.graphs:
            for number in range(MACHINES):
                for count in options.counts:
                    case = Case(go_opt.load(f"zoo:{name}"), drawn(number), count, seed, folder)
                    for method, run in methods.items():
                        key = {
                            "machine": number,
                            "graph": name,
                            "count": count,
                            "seed": seed,
                            "method": method,
                        }
                        if tuple(key.values()) in done:
                            continue
                        if time.monotonic() > end_s:
                            return
                        begun_s = time.process_time()
                        interval_s, op_error = run(case)
                        key |= {"interval_s": interval_s, "op_error": op_error}
                        key |= {"processor_s": round(time.process_time() - begun_s, 2)}
                        with options.out.open("a") as file:
                            file.write(json.dumps(key) + "\n")


if __name__ == "__main__":
    main()
