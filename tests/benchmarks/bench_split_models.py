"""Models with split ops in ONNX Runtime: whether the parts give what the whole model gives.

Run: PYTHONPATH=. python tests/benchmarks/bench_split_models.py [--parts N] [MODEL ...]

Of each light model of the `onnx` package, with random weights: every product that can be split is split into
N parts; the model is exported with them, imported again, and run beside the whole model. Asserts that the
imported graph is the plan's and that outputs are equal up to 1e-5 of their scale. Then the optimizer's own
plan, where it splits ops by itself. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

import go_opt
from go_opt.env.copies.splits import columns_of, split_graph
from go_opt.errors import ModelError
from go_opt.frontends import from_onnx
from go_opt.model.plan import Plan, Split
from go_opt.run.export.exporting import export
from go_opt.run.pipeline.check import MOST_DIFFERENCE, difference, whole_outputs
from go_opt.run.pipeline.inputs import random_inputs
from tests.exports import LIGHT, run_stages
from tests.go_opt.run.test_random_stages import with_random_weights

TARGET = "mcm-6x6"
COLUMNS = (
    "model",
    "ops",
    "split",
    "stages",
    "difference",
    "own plan: split",
    "interval",
    "greedy",
    "difference",
)


def compared(path: Path, plan: Plan, folder: Path) -> tuple[int, float]:
    """Stages of the export, and the largest relative difference of their outputs."""
    manifest = export(path, plan, folder, force=True)
    inputs = random_inputs(path, manifest, np.random.default_rng(0))
    (expected,) = whole_outputs(path, manifest, [inputs])
    given = run_stages(folder, manifest, inputs)
    worst = max(difference(one, expected[row.name]) for one, row in zip(given, manifest.outputs, strict=True))
    assert worst <= MOST_DIFFERENCE, (path, worst)
    return len(manifest.stages), worst


def all_split(path: Path, parts: int) -> Plan:
    """Every product in parts, on chips one after the other."""
    graph = from_onnx(path)
    columns = {op: columns_of(graph, op) for op in range(graph.num_ops)}
    splits = tuple(
        Split(graph.op_names[op], "columns", min(parts, found.number))
        for op, found in columns.items()
        if found
    )
    while True:  # without the grouped convolutions, which an export refuses by name
        try:
            return plan_of(path, splits)
        except ModelError as error:
            splits = tuple(split for split in splits if repr(split.op) not in str(error))


def plan_of(path: Path, splits: tuple[Split, ...]) -> Plan:
    graph = split_graph(from_onnx(path), splits)
    ops = np.arange(graph.num_ops, dtype=np.int32)
    plan = Plan.create(
        graph, "gpu-8", go_opt.target("gpu-8").fingerprint, placement=ops * 8 // graph.num_ops, order=ops,
        fusion_group=ops, replication=np.ones_like(ops), provenance="bench",
    )  # fmt: skip
    plan = replace(plan, splits=splits)
    with tempfile.TemporaryDirectory() as folder:
        export(path, plan, Path(folder) / "out", formats=["annotated"])
        assert from_onnx(Path(folder) / "out" / "annotated.onnx").fingerprint == plan.graph_fingerprint
    return plan


def row(name: str, parts: int, budget_s: float) -> str:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent)
        path = with_random_weights(name, folder)
        plan = all_split(path, parts)
        stages, worst = compared(path, plan, folder / "all")
        own = go_opt.optimize(path, TARGET, budget_s=budget_s, policy=None)
        own_worst = compared(path, own.plan, folder / "own")[1]
    num_ops = from_onnx(LIGHT / f"{name}.onnx").num_ops
    cells = (
        name, f"{num_ops}", f"{len(plan.splits)}", f"{stages}", f"{worst:.1e}",
        f"{len(own.plan.splits)}", f"{own.metrics.interval_s * 1e6:,.1f} us",
        f"{own.reference_s * 1e6:,.1f} us", f"{own_worst:.1e}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", default=sorted(path.stem for path in LIGHT.glob("*.onnx")))
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--budget", type=float, default=3.0)
    given = parser.parse_args()
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for name in given.models:
        print(row(name, given.parts, given.budget), flush=True)


if __name__ == "__main__":
    main()
