"""The published inputs: their loads are our intervals, and their optima are reached and proven."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import go_opt
from go_opt.errors import InvalidInputError, ModelError
from go_opt.model.plan import Plan
from go_opt.solver import ChipLimit, Colocate
from go_opt.solver.exact.device_placement import DevicePlacement, load_device_placement
from go_opt.solver.exact.star_plans import StarPlan, star_plan
from go_opt.solver.problem.op_constraints import op_constraints

DATA = Path(__file__).parent.parent / "data" / "neurips20"
BERT_LAYERS = DATA / "bert24_layer_inference.json"
RESNET_LAYERS = DATA / "resnet50_layer_inference.json"
BERT_OPS = DATA / "bert_l-3_operator_inference.json"
OPTIMA_MS = {BERT_LAYERS: 17.790, RESNET_LAYERS: 33.775, BERT_OPS: 27.919}
# The experts' splits: the last node of each accelerator, and the published load.
EXPERTS = [
    (BERT_LAYERS, (8, 12, 16, 20, 24, 32), 20.084),
    (RESNET_LAYERS, (5, 37, 79, 121, 163, 177), 43.918),
]

TINY: dict[str, Any] = {
    "maxSizePerFPGA": 10,
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "nodes": [
        {"id": 7, "supportedOnFpga": 1, "cpuLatency": 20, "fpgaLatency": 2, "isBackwardNode": 0, "size": 4},
        {
            "id": 3, "name": "mid", "supportedOnFpga": False, "cpuLatency": 5, "fpgaLatency": 1,
            "isBackwardNode": False, "colorClass": 1,
        },
        {"id": 9, "supportedOnFpga": 1, "cpuLatency": 30, "fpgaLatency": 3, "isBackwardNode": 0, "size": 8},
    ],
    "edges": [
        {"sourceId": 7, "destId": 3, "cost": 1.5},
        {"sourceId": 7, "destId": 9, "cost": 1.5},
        {"sourceId": 3, "destId": 9, "cost": 0.25},
    ],
}  # fmt: skip


def plan_of(problem: DevicePlacement, placement: Any) -> Plan:
    graph, target, _ = problem
    ops = np.arange(graph.num_ops, dtype=np.int32)
    return Plan.create(
        graph,
        target.source,
        target.fingerprint,
        placement=np.asarray(placement, np.int32),
        order=ops,
        fusion_group=ops,
        provenance="by hand",
    )


def interval_ms(problem: DevicePlacement, placement: Any) -> float:
    graph, target, _ = problem
    return go_opt.evaluate(graph, target, plan_of(problem, placement)).interval_s * 1e3


def best(problem: DevicePlacement) -> StarPlan:
    graph, target, constraints = problem
    found = star_plan(op_constraints(graph, target, constraints), np.arange(graph.num_ops, dtype=np.int32))
    assert found is not None
    return found


def loads_ms(data: dict[str, Any], device: dict[int, int]) -> np.ndarray:
    """The load of each device, word by word: accelerators, then CPUs, which pay for no transfers."""
    accelerators = data["maxFPGAs"]
    load = np.zeros(accelerators + data["maxCPUs"])
    for node in data["nodes"]:
        at = device[node["id"]]
        load[at] += node["fpgaLatency"] if at < accelerators else node["cpuLatency"]
    cost = {edge["sourceId"]: edge["cost"] for edge in data["edges"]}
    for source, sent in cost.items():
        readers = {device[edge["destId"]] for edge in data["edges"] if edge["sourceId"] == source}
        readers -= {device[source]}
        for at in [*readers, *([device[source]] if readers else [])]:
            load[at] += sent if at < accelerators else 0.0
    return load


@pytest.mark.parametrize("path", OPTIMA_MS, ids=lambda path: path.stem)
def test_the_published_optimum_is_reached_and_proven(path: Path) -> None:
    problem = load_device_placement(path)
    found = best(problem)
    assert found.objective_s == found.lower_bound_s
    assert interval_ms(problem, found.placement) == pytest.approx(OPTIMA_MS[path], abs=5e-4)
    assert found.objective_s * 1e3 == pytest.approx(interval_ms(problem, found.placement), rel=1e-9)
    graph, target, constraints = problem
    assert go_opt.verify(graph, target, plan_of(problem, found.placement)) == []
    for constraint in constraints:
        if isinstance(constraint, Colocate):
            assert len({found.placement[graph.op_index[name]] for name in constraint.ops}) == 1


@pytest.mark.parametrize(("path", "last", "published_ms"), EXPERTS)
def test_the_experts_splits_cost_what_is_published(
    path: Path, last: tuple[int, ...], published_ms: float
) -> None:
    problem = load_device_placement(path)
    ids = [int(name.removeprefix("node")) for name in problem.graph.op_names]
    placement = np.searchsorted(last, ids)
    assert interval_ms(problem, placement) == pytest.approx(published_ms, abs=5e-4)


@pytest.mark.parametrize("path", OPTIMA_MS, ids=lambda path: path.stem)
def test_any_placement_costs_its_largest_load(path: Path) -> None:
    problem, data = load_device_placement(path), json.loads(path.read_text())
    rng = np.random.default_rng(0)
    ids = {node.get("name", f"node{node['id']}"): node["id"] for node in data["nodes"]}
    for _ in range(20):
        placement = rng.integers(0, problem.target.num_chips, problem.graph.num_ops)
        device = {ids[name]: chip for name, chip in zip(problem.graph.op_names, placement, strict=True)}
        loads = loads_ms(data, device)
        metrics = go_opt.evaluate(problem.graph, problem.target, plan_of(problem, placement))
        assert metrics.interval_s * 1e3 == pytest.approx(loads.max(), rel=1e-9)
        assert metrics.bottleneck == f"chip {loads.argmax()} compute and transfers"


def test_a_tiny_file(tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    problem = load_device_placement(path)
    graph, target, constraints = problem
    assert graph.op_names == ("node7", "mid", "node9")
    assert [kind.name for kind in target.kinds] == ["accelerator", "cpu"]
    assert list(graph.excluded["accelerator"]) == [False, True, False]
    assert constraints == tuple(ChipLimit(chip, at_most_bytes=10) for chip in (0, 1))
    # node7 2 + 1.5 out; mid on the CPU 5; node9 1.5 + 0.25 in + 3.
    assert interval_ms(problem, [0, 2, 1]) == pytest.approx(5.0)
    assert best(problem).objective_s == pytest.approx(5e-3)
    # 12 bytes do not fit one accelerator; with 12 it is a circle, 0 -> 2 -> 0.
    (violation,) = go_opt.verify(graph, target, plan_of(problem, [0, 2, 0]))
    assert violation.constraint == "acyclic"
    assert "'chip 0' -> 'chip 2' -> 'chip 0'" in violation.message


def changed(**fields: Any) -> dict[str, Any]:
    return TINY | fields


def first_node(**fields: Any) -> dict[str, Any]:
    return changed(nodes=[TINY["nodes"][0] | fields, *TINY["nodes"][1:]])


def first_edge(**fields: Any) -> dict[str, Any]:
    return changed(edges=[TINY["edges"][0] | fields, *TINY["edges"][1:]])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "must hold a JSON object"),
        ({}, "lacks the field"),
        (first_node(isBackwardNode=1), "node 'node7' is a backward node"),
        (first_node(supportedOnFpga="yes"), "'supportedOnFpga' must be true, false, 0 or 1, not 'yes'"),
        (first_node(cpuLatency=-1), "'cpuLatency' must be finite and not negative"),
        (first_node(id=9), "two nodes have the same id"),
        (first_edge(cost=2), "node 'node7' has edges of several costs"),
        (first_edge(destId=4), "edge number 0: there is no node 4"),
        (first_edge(sourceId=9), "the graph has a cycle"),
        (changed(maxFPGAs=0, maxCPUs=0), "kinds"),
        (changed(maxFPGAs=1000), "a host_star has at most 256"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, data: Any, message: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InvalidInputError, match=message):
        load_device_placement(path)


def test_a_missing_file() -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        load_device_placement("nowhere.json")
