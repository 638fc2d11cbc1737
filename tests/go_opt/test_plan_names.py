"""A plan in names, worked by hand: six ops, two stages of which one is replicated, five kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from go_opt.model.codecs.plan_json import names_to_dict
from go_opt.model.graph import NodeWithoutOp
from go_opt.model.plan import Plan
from tests.strategies import toy_graph


def test_stages_and_kernels_in_execution_order() -> None:
    graph = replace(toy_graph(), nodes_without_op=(NodeWithoutOp("shape", "folded", None),))
    assert graph.op_names == ("embed", "dense", "relu", "mix", "add", "logits")
    plan = Plan.create(
        graph,
        "mine",
        "cd",
        placement=np.array([0, 0, 0, 1, 1, 1]),
        order=np.array([0, 1, 3, 2, 4, 5]),
        fusion_group=np.array([0, 1, 2, 3, 4, 4]),
        replication=np.array([1, 1, 1, 3, 3, 3]),
        provenance="by hand",
    )
    assert names_to_dict(graph, plan) == {
        "op_names": ["embed", "dense", "relu", "mix", "add", "logits"],
        "stages": [
            {"chips": [0], "ops": ["embed", "dense", "relu"]},
            {"chips": [1, 2, 3], "ops": ["mix", "add", "logits"]},
        ],
        "kernels": [["embed"], ["dense"], ["mix"], ["relu"], ["add", "logits"]],
        "nodes_without_op": [{"name": "shape", "became": "folded", "op": None}],
        "unknown_ops": [],
    }
