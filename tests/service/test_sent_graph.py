"""Plans between the order of a graph and the one in which its caller sent the ops."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt import api, training
from go_opt.env import load_target
from go_opt.model.codecs.plan_json import plan_to_dict
from go_opt.model.codecs.wire import graph_to_proto
from go_opt.model.graph import NodeWithoutOp
from go_opt.model.plan import Plan
from go_opt.proto import training_pb2
from go_opt.service.jobs.train import train_job
from go_opt.service.messages.convert import result_from_proto, result_to_proto
from go_opt.service.messages.graphs import SentGraph
from tests.shuffled import by_name, shuffled
from tests.strategies import examples, random_graph, random_plan, random_target, seeds, toy_graph


@settings(max_examples=examples(50))
@given(seed=seeds)
def test_a_plan_comes_back_as_it_went(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph, target = random_graph(rng, num_ops=int(rng.integers(1, 30))), random_target(rng)
    order = rng.permutation(graph.num_ops)
    sent = SentGraph.from_proto(shuffled(graph_to_proto(graph), order.tolist()))
    plan = replace(
        random_plan(rng, sent.graph, target),
        provenance=("here", "there"),
        op_provenance=rng.integers(0, 2, graph.num_ops).astype(np.int32),
    )
    message = sent.plan_to_proto(plan)
    assert list(message.op_names) == [graph.op_names[i] for i in order]
    assert by_name(message) == by_name(SentGraph(sent.graph).plan_to_proto(plan))
    assert plan_to_dict(sent.plan_from_proto(message, target.fingerprint)) == plan_to_dict(plan)


def test_ops_sent_backwards() -> None:
    graph = toy_graph()
    sent = SentGraph.from_proto(shuffled(graph_to_proto(graph), [5, 4, 3, 2, 1, 0]))
    assert sent.op_names == graph.op_names[::-1]
    ops = np.arange(6, dtype=np.int32)
    # Op i on chip i, in the order of the graph.
    plan = Plan.create(
        graph,
        "mine",
        "cd",
        placement=ops,
        order=ops,
        fusion_group=np.array([0, 0, 1, 1, 1, 2]),
        provenance="x",
    )
    message = sent.plan_to_proto(plan)
    assert list(message.placement) == [5, 4, 3, 2, 1, 0]
    assert list(message.order) == [5, 4, 3, 2, 1, 0]
    assert list(message.fusion_group) == [2, 1, 1, 1, 0, 0]


def test_an_answer_says_what_became_of_the_nodes_of_a_model() -> None:
    nodes = (NodeWithoutOp("shape", "folded", None), NodeWithoutOp("flat", "view", "dense"))
    graph = replace(toy_graph(), nodes_without_op=nodes)
    result = api.optimize(graph, "mcm-2x2", max_evaluations=1, seed=5, policy=None)
    message = result_to_proto(result, SentGraph(graph))
    rows = [
        (row.name, row.became, row.op if row.HasField("op") else None) for row in message.nodes_without_op
    ]
    assert rows == list(nodes)
    again = result_from_proto(message)
    assert (again.seed, again.version) == (5, version("go-opt"))


def test_the_best_plan_of_a_finetuning_follows_the_order_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, ops = load_target("mcm-2x2"), np.arange(6, dtype=np.int32)

    def finetune(graph: training.Graph, folder: Path, **options: Any) -> training.TrainingResult:
        plan = Plan.create(graph, "mine", "cd", placement=ops, order=ops, fusion_group=ops, provenance="x")
        return training.TrainingResult(
            folder, options["policy"], folder, 1, 1, 1, None, plan=plan, best_interval_s=1.0
        )

    monkeypatch.setattr(training, "finetune", finetune)
    request = training_pb2.FinetuneRequest(
        graph=shuffled(graph_to_proto(toy_graph()), [5, 4, 3, 2, 1, 0]), target={"name": target.name}
    )
    trained = train_job(
        training_pb2.JOB_KIND_FINETUNE,
        request.SerializeToString(),
        start_file=None,
        folder=tmp_path,
        on_progress=lambda progress: None,
        should_stop=lambda: False,
    )
    assert list(trained.result.best_plan.op_names) == list(toy_graph().op_names[::-1])
    assert list(trained.result.best_plan.placement) == [5, 4, 3, 2, 1, 0]
