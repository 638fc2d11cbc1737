"""Training steps on several chips, from a graph or a JAX function to a verified and simulated plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

import go_opt
from go_opt.env import Target, cost_tables, evaluate_plan, load_target, loop_roles
from go_opt.env.copies.splits import planned_graph, split_graph
from go_opt.errors import InvalidInputError, ModelError
from go_opt.model.graph import Graph
from go_opt.model.plan import CollectiveOp
from go_opt.model.start import Start
from go_opt.result import OptimizeResult, Request
from go_opt.search.bounds import lower_bound
from go_opt.search.methods.given import plan_as_it_stands
from go_opt.search.replicas.ways import replicated_way, start_of_replicas
from tests import onnx_steps
from tests.env.test_training_splits import step
from tests.torch_programs import FOLDER


def searched(graph: Graph, target: Target, evaluations: int = 12, **options: object) -> OptimizeResult:
    result = go_opt.optimize(
        graph, target, objective="step", max_evaluations=evaluations, simulate=False, **options
    )
    assert go_opt.verify(graph, target, result.plan) == []
    assert go_opt.evaluate(graph, target, result.plan).makespan_s == pytest.approx(result.objective_s)
    assert result.lower_bound_s <= result.objective_s
    return result


def plain_s(graph: Graph, target: Target, parts: int) -> float:
    """The makespan of plain data parallelism."""
    way = replicated_way(graph, parts)
    start: Start = start_of_replicas(graph, way, loop_roles(graph, target.kernel_patterns))
    split = split_graph(graph, way)
    metrics = evaluate_plan(split, target, plan_as_it_stands(split, target, start))
    assert metrics.valid
    return metrics.makespan_s


def test_replicas_share_a_large_batch() -> None:
    graph, target = step(1 << 15, (512, 512, 512), momentum=True), load_target("h100-sxm-4")
    result = searched(graph, target)
    assert result.plan.chips_used == 4
    assert {one.parts for one in result.plan.splits} == {4}
    planned = planned_graph(graph, result.plan)
    assert result.plan.host_states == ()
    for state in planned.states:  # a copy of each state on each chip
        chips = {int(result.plan.placement[op]) for op in planned.readers_of(state.read)}
        assert len(chips) == 1
    assert result.objective_s <= min(plain_s(graph, target, parts) for parts in (2, 4))


def test_the_bound_counts_a_launch_for_each_product_of_a_path() -> None:
    """Eight layers forwards, seven backwards, and the gradient of the first weight, in whatever parts."""
    graph, target = step(64, (8,) * 9), load_target("h100-sxm-8")
    bound = lower_bound(graph, target, Request(objective="latency"), np.ones(graph.num_ops, np.bool_))
    launch_s = float(cost_tables(graph, target).kernel_overhead_s.min())
    assert 16 * launch_s < bound.seconds < plain_s(graph, target, 2)


def test_a_small_batch_is_not_shared() -> None:
    graph, target = step(16, (8, 8)), load_target("h100-sxm-4")
    result = searched(graph, target)
    assert result.plan.splits == ()
    assert result.objective_s <= plain_s(graph, target, 2)


def test_plans_begin_with_given_ones() -> None:
    graph, target = step(1 << 15, (512, 512), momentum=True), load_target("h100-sxm-2")
    first = searched(graph, target)
    assert first.plan.splits
    again = searched(
        graph, target, 1, start=Start.of_plan(first.plan, planned_graph(graph, first.plan).op_names)
    )
    assert again.objective_s <= first.objective_s * (1 + 1e-9)


def test_a_jax_step_with_optax() -> None:
    import jax
    import jax.numpy as jnp
    import optax

    def loss(weights: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(x @ weights[0])
        return jnp.mean((hidden @ weights[1] - y) ** 2)

    optimizer = optax.adam(1e-3)

    def train(weights: list[jax.Array], kept: optax.OptState, x: jax.Array, y: jax.Array) -> tuple:
        value, gradients = jax.value_and_grad(loss)(weights, x, y)
        updates, kept = optimizer.update(gradients, kept)
        return optax.apply_updates(weights, updates), kept, value

    weights = [np.zeros((256, 512), np.float32), np.zeros((512, 128), np.float32)]
    batch = np.zeros((1 << 15, 256), np.float32), np.zeros((1 << 15, 128), np.float32)
    graph = go_opt.from_jax(
        train, weights, optimizer.init(weights), *batch, state={0: (0, "model"), 1: (1, "model")}
    )
    target = load_target("h100-sxm-4")
    result = searched(graph, target)
    assert result.objective_s <= plain_s(graph, target, 4)
    assert len(result.plan.splits) == graph.num_ops
    simulated = go_opt.evaluate(graph, target, result.plan, fidelity="simulated")
    assert simulated.makespan_s == pytest.approx(result.objective_s, rel=0.05)
    step = go_opt.jax_step(
        graph,
        train,
        weights,
        optimizer.init(weights),
        *batch,
        plan=result.plan,
        state={0: (0, "model"), 1: (1, "model")},
    )
    assert step.devices == 4
    assert step.arguments[-2:] == ((("data",),), (("data",),))


def test_only_training_steps_have_this_objective() -> None:
    graph = replace(step(), states=())
    with pytest.raises(InvalidInputError, match="'step' has no state of scope 'model', so it is no training"):
        go_opt.optimize(graph, "h100-sxm-2", objective="step", max_evaluations=1)


def test_a_plan_file_may_say_again_what_the_model_says_its_states_are() -> None:
    graph = go_opt.load("zoo:mlp_train_b4096")
    states = dict(graph.bindings.states)
    assert go_opt.load("zoo:mlp_train_b4096", states=states).fingerprint == graph.fingerprint
    name = next(iter(states))
    with pytest.raises(ModelError, match="says itself what its states are"):
        go_opt.load("zoo:mlp_train_b4096", states={name: "another"})


@pytest.mark.parametrize(
    ("proto", "collectives"),
    [
        (onnx_steps.mlp(64, 16, 32, 8), {"AllReduce", "ReduceScatter", "AllGather"}),
        (onnx_steps.conv_net(16, 6, 4, 8), {"AllReduce", "ReduceScatter", "AllGather"}),
        (onnx_steps.transformer(8, 6, 16, 2, 12), {"AllReduce", "ReduceScatter", "AllGather"}),
        ("joint_mlp", {"AllReduce", "ReduceScatter", "AllGather"}),
        ("joint_transformer", {"AllReduce", "ReduceScatter", "AllGather"}),
    ],
    ids=["mlp", "conv_net", "transformer", "torch_mlp", "torch_transformer"],
)
def test_steps_from_files(proto: onnx.ModelProto | str, collectives: set[str]) -> None:
    """ONNX training graphs and torch programs with their gradients: all along the batch is divided."""
    graph = go_opt.load(FOLDER / f"{proto}.pt2") if isinstance(proto, str) else go_opt.from_onnx(proto)
    target = load_target("h100-sxm-2")
    way = replicated_way(graph, 2, shares_updates=True)
    split = split_graph(graph, way)
    used = {op_type for op_type in split.op_types if CollectiveOp.of(op_type)}
    assert used == collectives  # no activation is gathered, but the new weights
    assert split.op_types.count("AllGather") == 2
    assert plain_s(graph, target, 2) > 0
    plan = plan_as_it_stands(
        split, target, start_of_replicas(graph, way, loop_roles(graph, target.kernel_patterns))
    )
    assert go_opt.verify(graph, target, replace(plan, splits=way)) == []


def test_layers_are_shared_where_weights_are_large() -> None:
    """Weights of 67 MB and 256 rows: summing gradients takes longer than exchanging activations."""
    graph, target = step(256, (4096, 4096, 4096), momentum=True), load_target("h100-sxm-4")
    result = searched(graph, target, 20)
    found = {one.method: one.objective_s for one in result.history}
    mixed = "2 replicas, each on 2 chips"
    assert (
        result.objective_s <= found[mixed] < min(found["4 replicas"], found["4 replicas that share updates"])
    )
    levels = {one.level for one in result.plan.splits}
    assert levels in ({0}, {0, 1})
    assert result.plan.chips_used == 4


def test_updates_are_shared_where_that_is_faster() -> None:
    """Weights of 268 MB, of which each chip updates a quarter, with a quarter of the moments."""
    graph, target = step(1 << 12, (8192, 8192, 8192), momentum=True), load_target("h100-sxm-4")
    result = searched(graph, target)
    found = {
        method: min(one.objective_s for one in result.history if one.method == method)
        for method in ("4 replicas", "4 replicas that share updates")
    }
    assert result.objective_s <= found["4 replicas that share updates"] < found["4 replicas"]
