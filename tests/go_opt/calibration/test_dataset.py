"""The data set that measured plans make: by hand, and read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from go_opt.calibration.samples import Sample, write_dataset
from go_opt.model.plan import Relay
from tests.strategies import examples, make_plan, random_graph, random_plan, small_mcm, toy_graph


def test_by_hand(tmp_path: Path) -> None:
    """The figures of toy_graph: bytes as costed there, products from flops = 2 b m k n."""
    graph, target, path = toy_graph(), small_mcm(), tmp_path / "data.npz"
    plain = make_plan(graph, target, [0, 0, 0, 1, 1, 1])
    other = make_plan(graph, target, [0] * 6, order=[0, 1, 2, 3, 4, 5], fusion_group=[0, 1, 1, 2, 2, 3])
    other = replace(other, relays=(Relay("x", (1, 2)),), forwards=(0,))
    samples = [Sample(plain, 5e-5, np.array([3e-5, 2e-5])), Sample(other, np.inf)]
    write_dataset(path, graph, target, samples)
    with np.load(path, allow_pickle=False) as data:
        names, opcodes = data["node_feat_names"].tolist(), data["opcode_names"][data["node_opcode"]]
        features = dict(zip(names, data["node_feat"].T.tolist(), strict=True))
        assert tuple(opcodes) == graph.op_types
        assert features["flops"] == [0, 8000, 500, 2000, 500, 10000]
        assert features["read_bytes"] == [400, 1000, 1000, 1000, 2000, 1000]
        assert features["weight_bytes"] == [1000, 2000, 0, 2000, 0, 10000]
        assert features["written_bytes"] == [1000, 1000, 1000, 1000, 1000, 2000]
        assert features["op_class"] == [2, 0, 1, 0, 1, 0]
        # dense: 8 multiply-adds for each of 500 outputs, so 125 columns of 1000 weights, and 4 rows.
        dense = [features[name][1] for name in ("batch", "rows", "inner", "columns")]
        assert dense == [1, 4, 8, 125]
        reads = [(1, 0), (4, 0), (2, 1), (3, 2), (4, 3), (5, 4)]  # an op, and one that it reads
        assert sorted(map(tuple, data["edge_index"].tolist())) == sorted(reads)
        assert data["node_config_ids"].tolist() == [0, 1, 2, 3, 4, 5]
        configs = dict(zip(data["node_config_feat_names"], data["node_config_feat"].T, strict=True))
        assert configs["placement"].T.tolist() == [[0, 0, 0, 1, 1, 1], [0] * 6]
        assert configs["fusion_group"].T.tolist() == [[0, 1, 2, 3, 4, 5], [0, 1, 1, 2, 2, 3]]
        assert configs["relays"].T.tolist() == [[0] * 6, [2, 0, 0, 0, 0, 0]]
        assert configs["forwards_weights"].T.tolist() == [[0] * 6, [1] * 6]
        assert configs["replication"].min() == 1
        assert data["config_runtime"].tolist() == [5e-5, np.inf]
        np.testing.assert_array_equal(data["config_chip_s"], [[3e-5, 2e-5], [np.nan, np.nan]])


def test_plans_read_back(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    for seed in range(examples(20)):
        rng = np.random.default_rng(seed)
        graph, target = random_graph(rng, 12), small_mcm(4)
        plans = [random_plan(rng, graph, target) for _ in range(3)]
        write_dataset(path, graph, target, [Sample(plan, 1.0) for plan in plans])
        with np.load(path, allow_pickle=False) as data:
            configs = data["node_config_feat"].astype(np.int32)
        for plan, (placement, order, group, replication, *_) in zip(
            plans, configs.swapaxes(1, 2), strict=True
        ):
            np.testing.assert_array_equal(placement, plan.placement)
            np.testing.assert_array_equal(np.argsort(order), plan.order)
            np.testing.assert_array_equal(group, plan.fusion_group)
            np.testing.assert_array_equal(replication, plan.replication)
