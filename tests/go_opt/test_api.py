"""The Python doors keep their names and keywords, and every importer leads to a verified plan."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

import go_opt
from go_opt import errors
from go_opt.env import target_text
from go_opt.model.codecs.plan_json import save_plan

# Design section 9: positional arguments, then keywords.
DOORS: dict[str, tuple[list[str], set[str]]] = {
    "load": (["path"], {"dims", "values", "trips", "precision"}),
    "target": (["name_or_path"], set()),
    "optimize": (
        ["graph", "target"],
        {"objective", "budget_s", "max_evaluations", "seed", "constraints", "policy", "fidelity"},
    ),
    "evaluate": (["graph", "target", "plan"], {"fidelity", "seed", "constraints"}),
    "timeline": (["graph", "target", "plan"], {"fidelity", "inferences"}),
    "verify": (["graph", "target", "plan", "constraints"], set()),
    "explain": (["graph", "target", "plan", "op"], {"objective", "constraints", "costs"}),
    "export": (["model", "plan", "directory"], {"formats", "target", "costs", "force"}),
    "load_constraints": (["path"], set()),
    "with_measured_costs": (["graph", "costs", "target"], set()),
    "from_onnx": (["path_or_model"], {"dims", "values", "trips", "precision"}),
    "from_networkx": (["g"], set()),
    "to_networkx": (["graph"], set()),
    "from_jax": (["fn"], set()),
}
RESULT = {"plan", "metrics", "status", "lower_bound_s", "gap", "method", "history"}
METRICS = {
    *("interval_s", "throughput_per_s", "latency_s", "bottleneck"),
    *("compute_s", "link_s", "stream_bytes", "peak_bytes", "valid", "reason"),
}


@pytest.mark.parametrize("name", DOORS)
def test_a_door_keeps_its_keywords(name: str) -> None:
    positional, keywords = DOORS[name]
    assert name in go_opt.__all__
    parameters = inspect.signature(getattr(go_opt, name)).parameters.values()
    by_place = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert by_place == positional
    assert {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} >= keywords


def test_every_door_opens() -> None:
    assert all(getattr(go_opt, name) is not None for name in go_opt.__all__)
    assert set(go_opt.__all__) <= set(dir(go_opt))
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        go_opt.optimise  # noqa: B018


def check_end_to_end(graph: go_opt.Graph | nx.DiGraph, target: Any = "mcm-6x6") -> go_opt.OptimizeResult:
    result = go_opt.optimize(graph, target, max_evaluations=10)
    as_graph = graph if isinstance(graph, go_opt.Graph) else go_opt.from_networkx(graph)
    assert isinstance(result, go_opt.OptimizeResult)
    assert all(hasattr(result, name) for name in RESULT)
    assert go_opt.verify(as_graph, target, result.plan) == []
    metrics = go_opt.evaluate(as_graph, target, result.plan)
    assert isinstance(metrics, go_opt.Metrics)
    assert all(hasattr(metrics, name) for name in METRICS)
    assert metrics.interval_s == result.metrics.interval_s
    assert metrics.valid
    assert result.lower_bound_s <= metrics.interval_s * (1 + 1e-9)
    assert len(metrics.compute_s) == go_opt.target(target).num_chips
    return result


def test_the_zoo() -> None:
    check_end_to_end(go_opt.load("zoo:mobilenet_v2"))


def test_a_target_is_a_name_a_path_or_an_object(tmp_path: Path) -> None:
    graph = go_opt.load("zoo:mobilenet_v2")
    path = tmp_path / "mine.toml"
    path.write_text(target_text("mcm-2x2"), "utf-8")
    plans = [
        go_opt.optimize(graph, target, max_evaluations=3).plan.placement
        for target in ("mcm-2x2", path, str(path), go_opt.target(path))
    ]
    assert all(np.array_equal(plan, plans[0]) for plan in plans)


def test_a_networkx_graph() -> None:
    g = nx.DiGraph()
    for i in range(20):
        g.add_node(i, op_type="MatMul", flops=1e8, outputs=1000, weight_elements=10_000)
    g.add_edges_from((i, i + 1) for i in range(19))
    result = check_end_to_end(g)
    assert result.plan.chips_used > 1
    check_end_to_end(go_opt.to_networkx(go_opt.load("zoo:mobilenet_v2")), "gpu-2")


def test_a_jax_function() -> None:
    def network(params: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in params:
            x = x + jax.nn.gelu(x @ w)
        return jnp.mean(x, axis=-1)

    weights = [jax.ShapeDtypeStruct((512, 512), jnp.float32)] * 6
    graph = go_opt.from_jax(network, weights, jax.ShapeDtypeStruct((256, 512), jnp.float32))
    assert graph.name == "network"
    assert graph.op_flops.sum() == pytest.approx(6 * 2 * 256 * 512 * 512, rel=0.05)
    check_end_to_end(graph)


ERRORS: dict[str, tuple[type[Exception], int]] = {
    "GoOptError": (Exception, 2),
    "InvalidInputError": (ValueError, 2),
    "GraphError": (ValueError, 2),
    "ModelError": (ValueError, 2),
    "TargetError": (ValueError, 2),
    "PlanError": (ValueError, 2),
    "InfeasibleError": (ValueError, 5),  # none was found; 3 where it is proven that there is none
    "ServiceError": (ConnectionError, 4),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_also_the_natural_builtin(name: str) -> None:
    builtin, exit_code = ERRORS[name]
    error = getattr(errors, name)("one sentence.")
    assert isinstance(error, errors.GoOptError)
    assert isinstance(error, builtin)
    assert error.exit_code == exit_code
    assert str(pickle.loads(pickle.dumps(error))) == "one sentence."


def test_an_infeasible_error_says_whether_it_is_proven() -> None:
    error = errors.InfeasibleError("no plan.", is_proven=True, conflict=("pin 'a' to chip 1",))
    again = pickle.loads(pickle.dumps(error))
    assert (again.is_proven, again.conflict, again.exit_code) == (True, ("pin 'a' to chip 1",), 3)


def test_reprs_are_one_line(tmp_path: Path) -> None:
    result = go_opt.optimize("zoo:mobilenet_v2", "gpu-2", objective="latency", budget_s="100ms", policy=None)
    told = [go_opt.load("zoo:mobilenet_v2"), go_opt.target("gpu-2"), result, result.plan, result.metrics]
    for thing, words in zip(told, ("250 ops", "2 chips", "makespan", "kernels", "interval"), strict=True):
        assert words in repr(thing)
        assert words in str(thing)
        assert "\n" not in repr(thing)
        assert len(repr(thing)) < 250


def test_doors_take_files_as_the_command_line_does(tmp_path: Path) -> None:
    result = go_opt.optimize("zoo:mobilenet_v2", "gpu-2", precision="as-is", max_evaluations=1, policy=None)
    path = tmp_path / "plan.json"
    save_plan(result.plan, path)
    assert go_opt.evaluate("zoo:mobilenet_v2", None, path).interval_s == result.metrics.interval_s
    assert go_opt.verify("zoo:mobilenet_v2", None, path) == []
    assert go_opt.explain("zoo:mobilenet_v2", None, path).metrics.interval_s == result.metrics.interval_s
    with pytest.raises(errors.InvalidInputError, match="budget_s must be a duration"):
        go_opt.optimize("zoo:mobilenet_v2", budget_s="soon")
    with pytest.raises(errors.InvalidInputError, match="precision is of a model"):
        go_opt.optimize(go_opt.load("zoo:mobilenet_v2"), precision="as-is")


def test_what_raises_what(tmp_path: Path) -> None:
    graph = go_opt.load("zoo:mobilenet_v2")
    plan = go_opt.optimize(graph, max_evaluations=1).plan
    with pytest.raises(errors.ModelError, match=r"no\.onnx"):
        go_opt.load(tmp_path / "no.onnx")
    with pytest.raises(errors.ModelError, match="'batch'"):
        go_opt.load("zoo:mobilenet_v2", dims={"batch": 2})
    with pytest.raises(errors.InvalidInputError, match="precision"):
        go_opt.load("zoo:mobilenet_v2", precision="exact")  # type: ignore[arg-type]
    with pytest.raises(errors.TargetError, match="mcm-9x9"):
        go_opt.target("mcm-9x9")
    with pytest.raises(errors.GraphError, match="'a' -> 'b' -> 'a'"):
        go_opt.optimize(nx.DiGraph([("a", "b"), ("b", "a")]))
    with pytest.raises(errors.GraphError, match=r"DiGraph, not 7"):
        go_opt.optimize(7)  # type: ignore[arg-type]
    with pytest.raises(errors.PlanError, match="another graph"):
        go_opt.evaluate(go_opt.load("zoo:resnet50"), "mcm-6x6", plan)
    with pytest.raises(errors.PlanError, match="another target"):
        go_opt.verify(graph, "gpu-2", plan)
    with pytest.raises(errors.InvalidInputError, match="policy"):
        go_opt.optimize(graph, policy="mine")
    with pytest.raises(errors.InvalidInputError, match="constraints"):
        go_opt.optimize(graph, constraints=["pin"])
    with pytest.raises(errors.InvalidInputError, match="fidelity must be one of"):
        go_opt.evaluate(graph, "mcm-6x6", plan, fidelity="exact")  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidInputError, match="seed must be between"):
        go_opt.evaluate(graph, "mcm-6x6", plan, fidelity="simulated", seed=-1)
    with pytest.raises(errors.InvalidInputError, match="objective"):
        go_opt.optimize(graph, objective="fast")  # type: ignore[arg-type]
