"""GO's table: the makespan of its 14 workloads, by hand, by rivals and by the portfolio.

Run: PYTHONPATH=. python tests/benchmarks/bench_go_table.py --out FILE.jsonl [--budget 10s] [--seeds 0,1,2]
     [--rows GRAPH,...] [--methods NAME,...] [--targets gpu-{}] [--again]
     PYTHONPATH=. python tests/benchmarks/bench_go_table.py --out FILE.jsonl --table

Workloads and the paper's seconds: tests/benchmarks/go_table_rows.py. Every method has the budget and
the environment's makespan; a second of the budget is two of processor time, as on two cores with
nothing else to do. Compiling is on nobody's time. ``hdp x10`` has ten times the budget, and writes the
line of ``hdp`` as well. What draws nothing runs once, the rest with each seed. Every plan passes the verifier
and is simulated. Every result is a line of the file; what stands there is not run again, but with
``--again`` (the portfolio with a new search, say). Medians over the seeds, their range where it is not
a point. A row is lost where the portfolio is more than 0.1 % behind.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import go_opt
from go_opt.agents.policy.network import enable_compilation_cache, save_policy
from go_opt.common.units import parse_duration_s
from go_opt.env import Target
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.training import as_policy
from tests.benchmarks import go_table_rivals as rivals
from tests.benchmarks import hdp
from tests.benchmarks.bench_leave_one_out import processor_clock
from tests.benchmarks.go_table_kernels import FUSIONS, Best, Kernels, kernels_of
from tests.benchmarks.go_table_report import PORTFOLIO, print_tables
from tests.benchmarks.go_table_rows import ROWS, Row, human_placements

LONGER: Final = 10  # times the budget that HDP is given as well
REHEARSED: Final = 20  # evaluations of a search before the clock starts, so that all is compiled

Line = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A workload on its devices."""

    row: Row
    graph: Graph
    target: Target

    @cached_property
    def fusions(self) -> list[Kernels]:
        return [kernels_of(self.graph, self.target, fusion) for fusion in FUSIONS]

    def line(self, plan: Plan, makespan_s: float) -> Line:
        """What there is to say of a verified plan that is said to take so long."""
        assert go_opt.verify(self.graph, self.target, plan) == []
        metrics = go_opt.evaluate(self.graph, self.target, plan)
        assert metrics.valid
        assert math.isclose(metrics.makespan_s, makespan_s, rel_tol=1e-9)
        simulated = go_opt.evaluate(self.graph, self.target, plan, fidelity="simulated")
        return {"makespan_s": makespan_s, "simulated_s": simulated.makespan_s}


Run = Callable[[Case, int, float], Iterator[tuple[str, Line]]]  # lines by method, of a seed and a budget


def of_rival(name: str, search_of: Callable[[Case], rivals.Search]) -> Run:
    def run(case: Case, seed: int, budget_s: float) -> Iterator[tuple[str, Line]]:
        search = search_of(case)
        search(case.fusions, Best(), seed, lambda: 0.0)  # compiles
        best, started_s = Best(), processor_clock()
        search(case.fusions, best, seed, lambda: started_s + budget_s - processor_clock())
        yield name, _of_best(case, best, processor_clock() - started_s)

    return run


def of_hdp(*names: str) -> Run:
    """HDP with the budget, and with ten times the budget where that has a name as well.

    Its kernels are those that one device alone runs sooner.
    """

    def run(case: Case, seed: int, budget_s: float) -> Iterator[tuple[str, Line]]:
        kernels = min(case.fusions, key=lambda one: float(one.seconds.sum()))
        hdp.compiled_steps(kernels, seed, hdp.Settings())
        best, started_s = Best(), processor_clock()
        ends_s = [budget_s * LONGER**i for i in range(len(names))]
        reached: list[Best] = []

        def left_s() -> float:
            spent_s = processor_clock() - started_s
            if spent_s >= ends_s[len(reached)]:
                reached.append(replace(best))
            return ends_s[-1] - spent_s

        hdp.train(kernels, best, seed, left_s)
        for name, at_end, end_s in zip(names, reached, ends_s, strict=True):
            yield name, _of_best(case, at_end, end_s)

    return run


def _of_best(case: Case, best: Best, spent_s: float) -> Line:
    assert best.plan is not None
    of_plan = case.line(best.plan, best.makespan_s)
    return of_plan | {"by": best.plan.provenance[0], "evaluations": best.evaluations, "processor_s": spent_s}


def of_portfolio(name: str, policy: str | None) -> Run:
    """The product's search; the policy is a name, None, or an untrained one of the seed."""

    def run(case: Case, seed: int, budget_s: float) -> Iterator[tuple[str, Line]]:
        with tempfile.TemporaryDirectory() as folder:
            given = policy
            if policy == "untrained":
                given = str(Path(folder) / "untrained.safetensors")
                save_policy(given, as_policy(None, seed), {})
            asked: dict[str, Any] = {"objective": "latency", "policy": given, "seed": seed}
            go_opt.optimize(case.graph, case.target, max_evaluations=REHEARSED, **asked)
            with patch("time.monotonic", processor_clock):
                started_s = processor_clock()
                result = go_opt.optimize(case.graph, case.target, budget_s=budget_s, **asked)
                spent_s = processor_clock() - started_s
        yield name, case.line(result.plan, result.metrics.makespan_s) | {
            "by": result.method, "evaluations": result.evaluations, "processor_s": spent_s,
            "bound_s": result.lower_bound_s, "status": result.status,
        }  # fmt: skip

    return run


def _human(case: Case) -> rivals.Search:
    return rivals.by_hand(list(human_placements(case.row, case.graph)))


METHODS: Final[dict[str, Run]] = {
    "one device": of_rival("one device", lambda case: rivals.one_device),
    "human": of_rival("human", _human),
    "metis": of_rival("metis", lambda case: rivals.metis),
    "heft": of_rival("heft", lambda case: rivals.heft),
    "peft": of_rival("peft", lambda case: rivals.peft),
    "critical path": of_rival("critical path", lambda case: rivals.critical_path),
    "join-all": of_rival("join-all", lambda case: rivals.join_all),
    PORTFOLIO: of_portfolio(PORTFOLIO, None),
    "portfolio + policy": of_portfolio("portfolio + policy", "default"),
    "portfolio + untrained": of_portfolio("portfolio + untrained", "untrained"),
    "hdp": of_hdp("hdp"),
    "hdp x10": of_hdp("hdp", "hdp x10"),
}
DRAWING: Final = ("metis", "hdp", "hdp x10", PORTFOLIO, "portfolio + policy", "portfolio + untrained")


def run_all(options: argparse.Namespace) -> None:
    seeds = [int(seed) for seed in options.seeds.split(",")]
    budget_s = parse_duration_s(options.budget, "--budget")
    methods, rows = chosen(options.methods, METHODS), chosen(options.rows, [row.graph for row in ROWS])
    known = set() if options.again else {_key(line) for line in lines_of(options.out)}
    for seed in seeds:
        for row in (row for row in ROWS if row.graph in rows):
            target = options.targets.format(row.devices)
            missing = [
                method
                for method in methods
                if not (method == "hdp" and "hdp x10" in methods)
                and (seed == seeds[0] or method in DRAWING)
                and (row.graph, target, method, seed, budget_s) not in known
            ]
            if missing:
                case = Case(row, go_opt.load(f"zoo:{row.graph}"), go_opt.target(target))
                for method in missing:
                    _run(case, method, seed, budget_s, target, options.out)


def _run(case: Case, method: str, seed: int, budget_s: float, target: str, out: Path) -> None:
    """Append the lines of one run."""
    began_s = time.perf_counter()
    for name, found in METHODS[method](case, seed, budget_s):
        line = {"graph": case.row.graph, "target": target, "method": name, "seed": seed, "budget_s": budget_s}
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line | found | {"wall_s": time.perf_counter() - began_s}) + "\n")
        print(
            f"{case.row.graph}, {name}, {seed}: {found['makespan_s'] * 1e6:.1f} us, {found['by']}", flush=True
        )


def chosen(names: str, known: Any) -> list[str]:
    """All names, or those asked for."""
    asked = names.split(",") if names else list(known)
    unknown = set(asked) - set(known)
    assert not unknown, f"{sorted(unknown)} are none of {list(known)}"
    return asked


def lines_of(path: Path) -> list[Line]:
    """What the file has, the last line of each run."""
    text = path.read_text("utf-8") if path.exists() else ""
    lines = [json.loads(line) for line in text.splitlines()]
    return list({_key(line): line for line in lines}.values())


def _key(line: Line) -> tuple[Any, ...]:
    return tuple(line[field] for field in ("graph", "target", "method", "seed", "budget_s"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", default="10s")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rows", default="", help="graphs of the zoo; default: all 14")
    parser.add_argument("--methods", default="", help=f"of {', '.join(METHODS)}")
    parser.add_argument("--targets", default="gpu-{}", help="with the number of devices in place of {}")
    parser.add_argument("--again", action="store_true", help="run what the file has already once more")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if not options.table:
        enable_compilation_cache()
        run_all(options)
    budget_s = parse_duration_s(options.budget, "--budget")
    targets = {options.targets.format(row.devices) for row in ROWS}
    lines = lines_of(options.out)
    print_tables([one for one in lines if one["budget_s"] == budget_s and one["target"] in targets])


if __name__ == "__main__":
    main()
