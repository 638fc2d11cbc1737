"""Writes measured plans as a data set, in the file form of TpuGraphs' layout collection.

Phothilimthana et al., TpuGraphs: A Performance Prediction Dataset on Large Tensor Computational Graphs, 2023.
Unlike there, runtimes are float64 seconds, and names of the columns stand beside the numbers.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from go_opt.calibration.samples import Sample
from go_opt.common.files import write_bytes_atomically
from go_opt.common.outputs import DATASET_MARK
from go_opt.env import Target, cost_tables
from go_opt.env.cost.shapes import product_shapes
from go_opt.model.graph import WEIGHT, Graph
from go_opt.model.plan import Plan


def write_dataset(path: Path, graph: Graph, target: Target, samples: Sequence[Sample]) -> None:
    """Write the file atomically. Axes: ``N`` ops, ``M`` edges, ``C`` samples, ``D`` chips."""
    opcode_names, opcode = np.unique(np.array(graph.op_types), return_inverse=True)
    nodes = _node_features(graph, target)
    configs = [_config_features(graph, sample.plan) for sample in samples]
    chip_s = [sample.seconds_of_chips(target.num_chips) for sample in samples]
    arrays: dict[str, Any] = {
        "node_feat": _columns(nodes),  # [N, 9]
        "node_opcode": opcode.astype(np.int32),  # [N] index into opcode_names
        "edge_index": np.stack([graph.edge_dst, graph.edge_src], axis=1),  # [M, 2] an op, one that it reads
        "node_config_ids": np.arange(graph.num_ops, dtype=np.int32),
        "node_config_feat": np.stack([_columns(config) for config in configs]),  # [C, N, 7]
        "config_runtime": np.array([one.interval_s for one in samples]),  # [C] infinite: does not run
        "config_chip_s": np.stack(chip_s),  # [C, D] of an inference; NaN: not measured
        "node_splits": np.zeros((1, 1), np.int32),  # one computation, which starts at op 0
        "node_names": np.array(graph.op_names),
        "opcode_names": opcode_names,
        "node_feat_names": np.array(list(nodes)),
        "node_config_feat_names": np.array(list(configs[0])),
    }
    np.savez_compressed(file := io.BytesIO(), **arrays)
    with ZipFile(file, "a") as archive:
        archive.comment = DATASET_MARK
    write_bytes_atomically(path, file.getvalue())


def _columns(features: Mapping[str, NDArray]) -> NDArray[np.float32]:
    return np.stack(list(features.values()), axis=1).astype(np.float32)


def _node_features(graph: Graph, target: Target) -> dict[str, NDArray]:
    """The product that an op lowers to, its work and its bytes; those read are without weights."""
    tables = cost_tables(graph, target)
    is_weight = tables.tensor_kind[tables.reader_tensor] == WEIGHT
    made = tables.tensor_producer >= 0
    names = ("batch", "rows", "inner", "columns", "flops")
    features: dict[str, NDArray] = dict(zip(names, (*product_shapes(graph), graph.op_flops), strict=True))
    for name, which in (("read_bytes", ~is_weight), ("weight_bytes", is_weight)):
        features[name] = np.bincount(tables.reader_op, tables.read_bytes * which, graph.num_ops)
    written = np.bincount(tables.tensor_producer[made], tables.tensor_bytes[made], graph.num_ops)
    return features | {"written_bytes": written, "op_class": graph.op_class}


def _config_features(graph: Graph, plan: Plan) -> dict[str, NDArray]:
    """Of each op; relays: chips that forward what it writes."""
    relays = np.zeros(graph.num_ops)
    for relay in plan.relays:
        relays[graph.tensor_producer[graph.tensor_index[relay.tensor]]] += len(relay.chips)
    return {
        "placement": plan.placement,
        "order": np.argsort(plan.order),
        "fusion_group": plan.fusion_group,
        "replication": plan.replication,
        "relays": relays,
        "forwards_weights": np.isin(plan.placement, plan.forwards),
    }
