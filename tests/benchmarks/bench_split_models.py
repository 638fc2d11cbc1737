"""Models with split ops in ONNX Runtime: whether the parts give what the whole model gives.

Run: PYTHONPATH=. python tests/benchmarks/bench_split_models.py [--parts N] [MODEL ...]

Of each light model of the `onnx` package, with random weights, of two small exports of PyTorch, and of a
small encoder: every op with weights is split into N parts along its largest weight; every op that can be is
split by rows, in runs; every product that can be is split along its sums, in blocks where there are some; a
third of the ops along factors drawn at random, two of some; the optimizer's own plan, and its plan with a
limit of five sixths of that latency. Each is exported, imported again, and run
beside the whole model. Asserts that the imported graph is the plan's and that outputs are equal up to 1e-5 of
their scale. Prints a Markdown table: ops split, and the difference of the outputs.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

import go_opt
from go_opt import from_onnx
from go_opt.env.copies.divisions import divisible_factors, sum_factor, weight_factor
from go_opt.env.copies.splits import split_graph
from go_opt.errors import InfeasibleError, ModelError, PlanError
from go_opt.model.plan import Plan, Split
from go_opt.run.export.exporting import export
from go_opt.run.pipeline.check import MOST_DIFFERENCE, difference, random_inputs, whole_outputs
from go_opt.search.splits.block_ways import blocks_of, is_open, splits_of_blocks
from go_opt.search.splits.rows import rows_by_op, split_along, steps_of
from tests.exports import LIGHT, run_stages, saved
from tests.go_opt.run.test_random_stages import with_random_weights
from tests.transformers import encoder

TARGET = "mcm-6x6"
COLUMNS = ("model", "ops", "weights", "rows", "sums", "any", "own plan", "with a limit")
EXPORTS = Path("tests/data/torch")
MODELS = (*sorted(path.stem for path in LIGHT.glob("*.onnx")), "cnn", "decoder", "encoder")
TOKENS = 16
LATENCY_SHARE = 1.2


def exported(name: str, folder: Path) -> Path:
    """An export of PyTorch, of which the repository holds no weights; its sequence is of 16 tokens."""
    proto = onnx.load(EXPORTS / f"{name}.onnx")
    rng = np.random.default_rng(1)
    for tensor in proto.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and not tensor.raw_data:
            values = rng.normal(0, 1 / np.sqrt(np.prod(tensor.dims[1:])), tuple(tensor.dims))
            tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float32), tensor.name))
    for value in (*proto.graph.input, *proto.graph.value_info, *proto.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = TOKENS
    return saved(proto, folder, name)


def compared(path: Path, plan: Plan, folder: Path) -> float:
    """The largest relative difference of outputs of the export and of the whole model."""
    manifest = export(path, plan, folder, force=True)
    inputs = random_inputs(path, manifest, np.random.default_rng(0))
    (expected,) = whole_outputs(path, manifest, [inputs], 1)
    given = run_stages(folder, manifest, inputs)
    worst = max(difference(one, expected[row.name]) for one, row in zip(given, manifest.outputs, strict=True))
    assert worst <= MOST_DIFFERENCE, (path, worst)
    return worst


def all_split(path: Path, parts: int) -> Plan:
    """Every product in parts by columns, on chips one after the other."""
    graph = from_onnx(path)
    factors = {op: weight_factor(graph, op) for op in range(graph.num_ops)}
    found = ((op, factor) for op, factor in factors.items() if factor is not None)
    splits = (split_along(graph, op, factor, min(parts, steps_of(graph, op, factor))) for op, factor in found)
    return allowed(path, tuple(splits))


def sums_split(path: Path, parts: int) -> Plan:
    """Every block in parts, and all other products along their sums."""
    graph = from_onnx(path)
    blocks = tuple(
        splits_of_blocks(graph, [block for block in blocks_of(graph) if is_open(graph, block, parts)], parts)
    )
    names = {split.op for split in blocks}
    sums = {op: sum_factor(graph, op) for op in range(graph.num_ops) if graph.op_names[op] not in names}
    rest = [split_along(graph, op, factor, parts) for op, factor in sums.items() if factor is not None]
    return allowed(path, (*blocks, *rest))


def allowed(path: Path, splits: tuple[Split, ...]) -> Plan:
    """Without what is refused by name, such as too many parts."""
    while True:
        try:
            return plan_of(path, splits)
        except (ModelError, PlanError) as error:
            splits = tuple(split for split in splits if repr(split.op) not in str(error))


def in_rows(path: Path, parts: int) -> Plan:
    """Every op that can be, in runs that end here and there."""
    graph = from_onnx(path)
    rng, rows = np.random.default_rng(0), rows_by_op(graph)
    found = ((op, factor) for op, factor in rows.items() if steps_of(graph, op, factor) >= 2 * parts)
    splits = [split_along(graph, *one, parts, joined=bool(rng.random() < 1 / 8)) for one in found]
    return allowed(path, tuple(splits))


def in_any(path: Path, parts: int) -> Plan:
    """A third of the ops along one or two factors, some not joined."""
    graph, rng, splits = from_onnx(path), np.random.default_rng(0), list[Split]()
    for op in range(graph.num_ops):
        factors = [one for one in divisible_factors(graph)[op] if steps_of(graph, op, one) >= 2 * parts]
        if factors and rng.random() < 1 / 3:
            some = rng.choice(factors, min(len(factors), int(rng.integers(1, 3))), replace=False).tolist()
            splits += [split_along(graph, op, factor, parts) for factor in some]
    return allowed(path, tuple(splits))


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
        if name == "encoder":
            path = saved(encoder(2, TOKENS, 64, 4), folder)
        else:
            path = (with_random_weights if name.startswith("light_") else exported)(name, folder)
        own = go_opt.optimize(path, TARGET, budget_s=budget_s, policy=None)
        plans = [make(path, parts) for make in (all_split, in_rows, sums_split, in_any)] + [own.plan]
        with suppress(InfeasibleError):
            limit_s = own.metrics.latency_s / LATENCY_SHARE
            limited = go_opt.optimize(path, TARGET, budget_s=budget_s, policy=None, max_latency_s=limit_s)
            plans.append(limited.plan)
        cells = []
        for i, plan in enumerate(plans):
            try:
                cells.append(f"{len(plan.splits)}: {compared(path, plan, folder / str(i)):.1e}")
            except ModelError:  # such as a Gemm of an old operator set along its sums
                cells.append(f"{len(plan.splits)}: refused")
        cells += ["no plan"] * (len(COLUMNS) - 2 - len(cells))
        return f"| {' | '.join([name, f'{from_onnx(path).num_ops}', *cells])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--budget", type=float, default=3.0)
    given = parser.parse_args()
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for name in given.models:
        print(row(name, given.parts, given.budget), flush=True)


if __name__ == "__main__":
    main()
