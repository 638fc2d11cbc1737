"""Profiles of ONNX Runtime as measured costs: fusions undone, rows of no op listed, costs remembered."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import go_opt
from go_opt.costs.measured_costs import CostsWarning, read_costs, with_measured_costs
from go_opt.env import evaluate_plan, greedy_fusion, loop_roles
from go_opt.errors import InvalidInputError
from go_opt.solver.verify.verifier import verify
from tests.go_opt.run.test_random_stages import with_random_weights
from tests.strategies import chip_kind, make_plan, small_mcm, toy_graph

TARGET = small_mcm(kinds=[chip_kind("big")])


def event(name: str, start: float, micros: float, op_type: str = "", elements: int = 500) -> dict:
    args = {"op_name": op_type, "output_type_shape": [{"float": [1, elements]}]}
    return {
        "cat": "Node", "name": f"{name}_kernel_time", "ts": start, "dur": micros, "tid": 1, "args": args
    }  # fmt: skip


def run_of(start: float, factor: float = 1.0) -> list[dict]:
    """One inference: relu ran in the node of dense, add in that of mix."""
    rows = [
        ("embed", 2.0, "Gather", 500),
        ("ReorderInput", 1.0, "ReorderInput", 500),
        ("fused dense", 8.5, "FusedGemm", 500),
        ("mix_nchwc", 5.0, "MatMul", 500),
        ("logits", 10.5, "Gemm", 1000),
    ]
    events = [{"cat": "Session", "name": "model_run", "ts": start, "dur": 60.0 * factor}]
    for name, micros, op_type, elements in rows:
        events.append(event(name, start, micros * factor, op_type, elements))
        start += micros * factor + 1
    return events


def written(tmp_path: Path, data: object) -> Path:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(data), "utf-8")
    return path


def test_a_row_is_divided_over_the_ops_it_ran(tmp_path: Path) -> None:
    # The first inference is slow and does not count; two that follow do.
    read = read_costs(toy_graph(), written(tmp_path, [*run_of(0, 9.0), *run_of(1000), *run_of(2000)]), TARGET)
    expected = [2e-6, 8e-6, 0.5e-6, 4e-6, 1e-6, 10.5e-6]  # by FLOPs: 8000:500, 2000:500
    np.testing.assert_allclose(read.graph.measured_s["big"], expected)
    # The default kernels hold the ops of a row, and take what it says.
    plan = make_plan(
        read.graph,
        TARGET,
        [0] * 6,
        fusion_group=greedy_fusion(loop_roles(read.graph), np.arange(6, dtype=np.int32)),
    )
    assert plan.fusion_group.tolist() == [0, 1, 1, 2, 2, 3]
    assert verify(read.graph, TARGET, plan) == []
    assert evaluate_plan(read.graph, TARGET, plan).compute_s == pytest.approx([26e-6])
    assert read.coverage.measured_ops == 6
    assert [row.name for row in read.coverage.unmapped] == ["ReorderInput"]
    assert read.coverage.mapped_share == pytest.approx(26 / 27)
    assert read.coverage.lines() == [
        "costs: 6 of 6 ops have measured seconds, 96.3% of the measured seconds are theirs",
        "costs: 1 rows are of no op: 'ReorderInput' 1 us",
    ]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({}, "it must be a list of events"),
        ([], "no event has a name that ends with _kernel_time"),
        ([event("embed", 0, -1.0)], "dur of event 'embed_kernel_time' is no time"),
        ([event("other", 0, 1.0, "Loop")], "no row is of an op of graph 'toy'"),
    ],
)
def test_what_is_no_profile_of_the_model(tmp_path: Path, data: object, sentence: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        with_measured_costs(toy_graph(), written(tmp_path, data), TARGET)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_profile_is_of_one_kind_of_chip(tmp_path: Path) -> None:
    two = small_mcm(kinds=[chip_kind("big"), chip_kind("small")])
    with pytest.raises(InvalidInputError, match="a profile is of one kind of chip"):
        with_measured_costs(toy_graph(), written(tmp_path, run_of(0)), two)


def test_rows_of_a_table_that_are_of_no_op_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "costs.csv"
    path.write_text("op,kind,seconds\nmix,*,3e-6\nmx,*,1e-6\n", "utf-8")
    with pytest.warns(CostsWarning, match="1 rows are of no op: 'mx' 1 us .line 3; did you mean 'mix'"):
        graph = with_measured_costs(toy_graph(), path, TARGET)
    assert graph.fingerprint == with_measured_costs(toy_graph(), {"mix": {"big": 3e-6}}, TARGET).fingerprint


def test_a_profile_that_the_runtime_wrote(tmp_path: Path) -> None:
    path = with_random_weights("light_squeezenet", tmp_path)
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.log_severity_level = True, 3
    options.profile_file_prefix = str(tmp_path / "profile")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    for _ in range(3):
        session.run(None, {one.name: np.ones(one.shape, np.float32) for one in session.get_inputs()})
    graph = go_opt.load(str(path))
    read = read_costs(graph, session.end_profiling(), TARGET)
    seconds = read.graph.measured_s["big"]
    assert not np.isnan(seconds).any()
    assert all("Reorder" in row.name for row in read.coverage.unmapped)
    assert seconds.sum() == pytest.approx(read.coverage.total_s * read.coverage.mapped_share)
    convolutions = np.array([op_type == "Conv" for op_type in graph.op_types])
    assert (seconds[convolutions] > 0).all()
