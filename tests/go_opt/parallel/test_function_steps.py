"""Training steps that are JAX functions: the shardings of their plans, run on host devices."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

import go_opt
from go_opt.env import load_target, loop_roles
from go_opt.env.copies.splits import split_graph
from go_opt.errors import InvalidInputError, PlanError
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.parallel.execution.function_step import JaxStep, jax_step
from go_opt.parallel.execution.running import FunctionRun, StepDiffersError
from go_opt.search.methods.given import plan_as_it_stands
from go_opt.search.replicas.layers import LayerWays
from go_opt.search.replicas.ways import (
    batch_factors,
    replicas_of_layers,
    replicated_way,
    start_of_replicas,
    updates_of,
)
from tests.zoo_recipes.models.training import (
    character_loss,
    character_model,
    mlp,
    mlp_loss,
    residual_loss,
    residual_net,
    training_step,
)

STATES = {0: (0, "model"), 1: (1, "model")}
DATA = (("data",),)  # the spec of what is divided along its first dimension
Case = tuple[Callable[..., Any], tuple[Any, ...]]


@cache
def case(name: str) -> Case:
    """A step with Adam, and arguments drawn at random."""
    draw = np.random.default_rng(5)
    if name == "mlp":
        loss, net, inputs = mlp_loss, mlp((16, 32, 24, 8)), (draw.normal(size=(32, 16)), (32,))
        labels = draw.integers(0, 8, 32)
    elif name == "conv net":
        loss, net, inputs = residual_loss, residual_net(1), (draw.normal(size=(8, 8, 8, 3)), (8,))
        labels = draw.integers(0, 10, 8)
    else:
        loss, net = partial(character_loss, heads=2), character_model(2, 16, 6, 12)
        inputs, labels = (draw.integers(0, 12, (8, 6)).astype(np.int32), ()), draw.integers(0, 12, (8, 6))
    net = jax.tree.map(lambda one: draw.normal(0, 0.3, one.shape).astype(np.float32), net)
    x = inputs[0].astype(np.float32) if inputs[0].dtype == np.float64 else inputs[0]
    optimizer = optax.adam(1e-2)
    return training_step(loss, optimizer), (net, optimizer.init(net), x, labels.astype(np.int32))


@cache
def graph_of(name: str) -> Graph:
    fn, args = case(name)
    return go_opt.from_jax(fn, *args, state=STATES)


def planned(name: str, devices: int, *, shared: bool) -> Plan:
    graph, target = graph_of(name), load_target(f"h100-sxm-{devices}")
    way = replicated_way(graph, devices, shares_updates=shared)
    start = start_of_replicas(graph, way, loop_roles(graph, target.kernel_patterns))
    return replace(plan_as_it_stands(split_graph(graph, way), target, start), splits=way)


@cache
def stepped(name: str, devices: int, *, shared: bool) -> JaxStep:
    fn, args = case(name)
    return jax_step(graph_of(name), fn, *args, plan=planned(name, devices, shared=shared), state=STATES)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("name", ["mlp", "conv net", "transformer"])
def test_shardings(name: str, devices: int, shared: bool) -> None:
    """The batch is divided, weights are not, moments are if updates are shared; each state stays as it is."""
    step = stepped(name, devices, shared=shared)
    weights, kept = (len(jax.tree.leaves(step.args[:i])) for i in (1, 2))
    assert step.arguments[kept:] == (DATA, DATA)
    assert set(step.arguments[:weights]) == {()}
    assert any(step.arguments[weights:kept]) == shared
    assert step.results == (*step.arguments[:kept], ())
    assert step.states == {i: i for i in range(kept)}
    for leaf, spec in zip(jax.tree.leaves(step.args), step.arguments, strict=True):
        assert ("data",) not in spec or leaf.shape[spec.index(("data",))] % devices == 0


@pytest.mark.parametrize(
    ("name", "devices", "shared"),
    [("mlp", 2, False), ("mlp", 4, True), ("conv net", 4, True), ("transformer", 2, True)],
)
def test_three_steps_are_equal(name: str, devices: int, shared: bool) -> None:
    result = stepped(name, devices, shared=shared).run()
    assert result.results[2][0] < result.results[1][0] < result.results[0][0]
    assert np.allclose(result.results, result.whole_results, rtol=1e-9)
    assert result.difference < 1e-8
    assert result.state_elements == result.planned_state_elements
    assert result.flop_share == pytest.approx(result.planned_flop_share, rel=0.1)


def shared_layers(name: str, replicas: int) -> JaxStep:
    """The layers on two chips, in so many replicas."""
    fn, args = case(name)
    graph = go_opt.from_jax(fn, *args, state=STATES)
    along = batch_factors(graph, 1)
    target = load_target(f"h100-sxm-{2 * replicas}")
    found = LayerWays(graph, target, along, updates_of(graph, along)).best(2, replicas)
    assert found is not None
    way = replicas_of_layers(graph, found.way, replicas) if replicas > 1 else found.way
    start = start_of_replicas(graph, way, loop_roles(graph, target.kernel_patterns))
    plan = replace(plan_as_it_stands(split_graph(graph, way), target, start), splits=way)
    return jax_step(graph, fn, *args, plan=plan, state=STATES)


@pytest.mark.parametrize(("name", "replicas"), [("mlp", 2), ("transformer", 2), ("mlp", 1)])
def test_chips_that_share_layers(name: str, replicas: int, tmp_path: Path) -> None:
    """Weights are divided along one axis, the batch along the other; the file of an export says so."""
    step = shared_layers(name, replicas)
    axes = {"data": 2, "tensor": 2} if replicas == 2 else {"tensor": 2}
    assert step.axes == axes
    weights, kept = (len(jax.tree.leaves(step.args[:i])) for i in (1, 2))
    assert ("tensor",) in {axes for spec in step.arguments[:weights] for axes in spec}
    assert "data" not in {axis for spec in step.arguments[:kept] for axes in spec for axis in axes}
    if replicas == 2:
        assert step.arguments[kept:] == (DATA, DATA)
    found = runpy.run_path(str(step.export(tmp_path / "out")))
    assert found["AXES"] == axes
    specs = [
        tuple(on.spec) for on in jax.tree.leaves(found["in_shardings"](step.args, [jax.devices()[0]] * 4))
    ]
    assert [[one or () for one in spec] for spec in specs] == [
        [axes[0] if axes else () for axes in spec] for spec in step.arguments
    ]
    if name == "transformer" or replicas == 2:
        result = step.run()
        assert result.difference < 1e-8
        assert result.state_elements == result.planned_state_elements


def mutant(what: str, step: JaxStep) -> JaxStep:
    kept = len(jax.tree.leaves(step.args[:2]))
    if what == "moments":
        return replace(step, arguments=((),) * kept + step.arguments[kept:], results=((),) * (kept + 1))
    batch = {"whole": ((), ()), "features": (((), ("data",)), ())}[what]
    return replace(step, arguments=step.arguments[:kept] + batch)


@pytest.mark.parametrize(
    ("what", "shared", "reason"),
    [
        ("moments", True, "a device keeps 4,609 elements of states, and 2,305 by the plan."),
        ("whole", True, "a device computes 1.000 of the step's FLOPs, and 0.314 by the plan."),
        ("features", False, "of the step's FLOPs, and 0.314 by the plan."),
    ],
)
def test_other_shardings_are_found(what: str, shared: bool, reason: str) -> None:
    """All shardings give the same results, so a run also counts what a device keeps and computes."""
    with pytest.raises(StepDiffersError, match=re.escape(reason)) as found:
        mutant(what, stepped("mlp", 4, shared=shared)).run()
    assert found.value.result.to_dict()["is_equal"] is False


def test_a_difference_is_named_first() -> None:
    fine = FunctionRun("m", "t", 2, ((1.0,),), ((1.0,),), 0.0, "result[2]", 1e-5, 0.5, 0.5, 3, 3)
    assert fine.problem == ""
    differs = replace(fine, difference=2e-5, state_elements=4)
    assert differs.problem.startswith("result[2] differs from that of the step on one device by 2.0e-05 of")
    assert differs.problem in "\n".join(differs.lines())
    assert replace(fine, difference=float("nan")).problem


def test_shardings_of_jax() -> None:
    """A mesh of one device cannot have two; of as many as JAX has, trees are those of the function."""
    step = stepped("mlp", 2, shared=False)
    with pytest.raises(InvalidInputError, match="the plan is for 999 devices, and JAX has"):
        replace(step, axes={"data": 999}).shardings()
    arguments, results = replace(step, axes={"data": 1}).shardings()
    fn = jax.jit(step.fn, in_shardings=arguments, out_shardings=results)
    assert np.isfinite(fn(*step.args)[2])
    assert arguments[2].spec == jax.sharding.PartitionSpec("data")


def test_what_is_no_plan_of_replicas_is_refused() -> None:
    fn, args = case("mlp")
    graph, target = graph_of("mlp"), load_target("h100-sxm-2")
    placed = go_opt.optimize(graph, target, objective="latency", max_evaluations=1, splits=False).plan
    with pytest.raises(PlanError, match="not for JAX shardings, as its chips are no replicas"):
        jax_step(graph, fn, *args, plan=placed, state=STATES)
    plan = planned("mlp", 2, shared=False)
    other = (*args[:2], args[2][:16], args[3][:16])
    with pytest.raises(InvalidInputError, match="graph 'step' is of arguments of other sizes"):
        jax_step(graph, fn, *other, plan=plan, state=STATES)
    with pytest.raises(PlanError, match="another graph"):
        jax_step(go_opt.from_jax(fn, *other, state=STATES), fn, *other, plan=plan, state=STATES)
    with pytest.raises(InvalidInputError, match="by positions"):
        jax_step(graph, fn, *args, plan=plan, state={"a": "b"})
    shapes = jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype), args)
    with pytest.raises(InvalidInputError, match="needs arrays"):
        jax_step(graph, fn, *shapes, plan=plan, state=STATES).run()
