"""Split ops as nodes: what the parts give is what the op gives, and the importer sees the split graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings

from go_opt import from_onnx
from go_opt.env import load_target
from go_opt.env.copies.columns import columns_of
from go_opt.env.copies.splits import split_graph
from go_opt.errors import ModelError
from go_opt.model.plan import Plan, Split
from go_opt.run.export.exporting import export
from go_opt.run.pipeline.running import run_plan
from tests.exports import check_stages, info, model, node, saved, weight
from tests.go_opt.run.test_random_stages import Drawing, with_random_weights
from tests.strategies import examples, seeds


def split_plan(path: Path, *splits: Split, chips: int = 4, seed: int = 0) -> Plan:
    """Each op and part is a kernel of its own, on a chip of the first few."""
    graph, target = split_graph(from_onnx(path), splits), load_target("gpu-8")
    each = np.arange(graph.num_ops)
    plan = Plan.create(
        graph,
        "gpu-8",
        target.fingerprint,
        placement=np.random.default_rng(seed).integers(0, chips, graph.num_ops),
        order=each,
        fusion_group=each,
        replication=np.ones(graph.num_ops, dtype=np.int32),
        provenance="test",
    )
    return replace(plan, splits=splits)


def check_parts(path: Path, split: Split, folder: Path) -> None:
    """The parts of an op, whose output is the model's, give what it gives, and are what is imported."""
    plan = split_plan(path, split)
    manifest = check_stages(path, plan, folder)
    assert len(manifest.outputs) == (1 if split.joined else split.parts)
    assert from_onnx(folder / "annotated.onnx").fingerprint == plan.graph_fingerprint


X, Y = info("x", (4, 8)), info("y", (4, 12))
IMAGE = info("x", (1, 3, 6, 6))
CASES = {
    "MatMul": model([node("MatMul", "x w", "y", "op")], [X], [Y], [weight("w", 8, 12)]),
    "MatMul by a weight on the left": model(
        [node("MatMul", "w x", "y", "op")], [X], [info("y", (12, 8))], [weight("w", 12, 4)]
    ),
    "MatMul of a batch of weights": model(
        [node("MatMul", "x w", "y", "op")], [X], [info("y", (3, 4, 12))], [weight("w", 3, 8, 12)]
    ),
    "MatMul by a folded weight": model(
        [node("Transpose", "w", "t", "t", perm=[1, 0]), node("MatMul", "x t", "y", "op")],
        [X], [Y], [weight("w", 12, 8)],
    ),
    "Gemm": model(
        [node("Gemm", "x w b", "y", "op", alpha=0.5)], [X], [Y], [weight("w", 8, 12), weight("b", 12)]
    ),
    "Gemm, weight transposed, one bias": model(
        [node("Gemm", "x w b", "y", "op", transB=1)], [X], [Y], [weight("w", 12, 8), weight("b", 1)]
    ),
    "Gemm by a weight on the left": model(
        [node("Gemm", "w x", "y", "op", transA=1)], [X], [info("y", (12, 8))], [weight("w", 4, 12)]
    ),
    "Conv": model(
        [node("Conv", "x w b", "y", "op", pads=[1, 1, 1, 1])],
        [IMAGE], [info("y", (1, 12, 6, 6))], [weight("w", 12, 3, 3, 3), weight("b", 12)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("parts", [2, 3, 6])
@pytest.mark.parametrize("case", CASES)
def test_parts_give_what_the_op_gives(case: str, parts: int, joined: bool, tmp_path: Path) -> None:
    check_parts(saved(CASES[case], tmp_path), Split("op", "columns", parts, joined), tmp_path / "out")


def test_a_stage_has_the_slices_of_its_parts_alone(tmp_path: Path) -> None:
    path = saved(CASES["MatMul by a folded weight"], tmp_path)
    plan = split_plan(path, Split("op", "columns", 3), chips=1)
    spread = replace(plan, placement=np.array([0, 1, 2, 2], dtype=np.int32))
    manifest = export(path, spread, tmp_path / "out")
    assert [stage.weight_bytes for stage in manifest.stages] == [4 * 8 * 4] * 3


def test_parts_run_in_processes_and_are_compared(tmp_path: Path) -> None:
    path = saved(CASES["Gemm"], tmp_path)
    plan = split_plan(path, Split("op", "columns", 3, joined=False), chips=3, seed=1)
    assert run_plan(path, plan, inferences=3).difference < 1e-5


def test_what_cannot_be_told_apart_is_refused(tmp_path: Path) -> None:
    grouped = model(
        [node("Conv", "x w", "y", "op", group=3)],
        [IMAGE], [info("y", (1, 12, 6, 6))], [weight("w", 12, 1, 1, 1)],
    )  # fmt: skip
    path = saved(grouped, tmp_path)
    with pytest.raises(ModelError, match="its channels are in groups"):
        export(path, split_plan(path, Split("op", "columns", 2)), tmp_path / "out")
    path = saved(CASES["MatMul of a batch of weights"], tmp_path)
    with pytest.raises(ModelError, match="cannot be split into 5: it has 12 columns"):
        export(path, split_plan(path, Split("op", "columns", 5)), tmp_path / "out")
    both = model(
        [
            node("MatMul", "x w", "h", "op"),
            node("Transpose", "w", "t", "t"),
            node("MatMul", "h t", "y", "again"),
        ],
        [X], [info("y", (4, 8))], [weight("w", 8, 8)],
    )  # fmt: skip
    path = saved(both, tmp_path)
    splits = Split("op", "columns", 2), Split("again", "columns", 2)
    if len({name for name in from_onnx(path).tensor_names if name in ("w", "t")}) == 1:
        with pytest.raises(ModelError, match="along two axes"):
            export(path, split_plan(path, *splits), tmp_path / "out")
    else:
        check_stages(path, split_plan(path, *splits), tmp_path / "out")


@given(seed=seeds)
@settings(max_examples=examples(25), deadline=None)
def test_random_models(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(seed)
    folder = tmp_path_factory.mktemp("random")
    path = saved(Drawing(rng).model(int(rng.integers(3, 15))), folder)
    graph = from_onnx(path)
    splits = []
    for op in range(graph.num_ops):
        columns = columns_of(graph, op)
        if columns is not None:
            splits.append(Split(graph.op_names[op], "columns", int(rng.integers(2, 4))))
    assume(splits)
    try:
        check_stages(path, split_plan(path, *splits, seed=seed), folder / "out")
    except ModelError as error:  # of one weight the columns and the rows
        assume("along two axes" not in str(error))
        raise


@pytest.mark.parametrize("name", ["light_squeezenet", "light_shufflenet"])
def test_real_models(name: str, tmp_path: Path) -> None:
    path = with_random_weights(name, tmp_path)
    graph = from_onnx(path)
    found = [(columns.number, op) for op in range(graph.num_ops) if (columns := columns_of(graph, op))]
    _, op = max(found)
    plan = split_plan(path, Split(graph.op_names[op], "columns", 4))
    check_stages(path, plan, tmp_path / "out")


@pytest.mark.parametrize("kind", ["columns", "rows"])
def test_parts_of_which_an_output_is_a_view_are_refused(kind: str, tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "c", "op", pads=[1, 1, 1, 1]), node("Identity", "c", "y", "view")]
    path = saved(model(nodes, [IMAGE], [info("y", (1, 4, 6, 6))], [weight("w", 4, 3, 3, 3)]), tmp_path)
    with pytest.raises(ModelError, match="op 'op' cannot stay in parts: output 'y' of the model is a view"):
        export(path, split_plan(path, Split("op", kind, 2, joined=False)), tmp_path / "out")
    check_stages(path, split_plan(path, Split("op", kind, 2)), tmp_path / "joined")
