"""Measured plans: the file from which a calibration can resume, and the data set of them."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import FloatArray
from go_opt.common.files import read_json, write_atomically, write_bytes_atomically
from go_opt.common.outputs import DATASET_MARK, SAMPLES
from go_opt.env import Target, cost_tables
from go_opt.env.cost.shapes import product_shapes
from go_opt.errors import InvalidInputError, PlanError
from go_opt.model.codecs.plan_json import plan_from_dict, plan_to_dict
from go_opt.model.graph import WEIGHT, Graph
from go_opt.model.plan import Plan

FORMAT: Final = SAMPLES.json_format


@dataclass(frozen=True, eq=False)
class Sample:
    """A plan and its measurements."""

    plan: Plan
    interval_s: float  # infinite: the plan does not run
    chip_s: FloatArray | None = None  # [D] seconds of each chip for an inference, if measured

    @property
    def key(self) -> bytes:
        """A key that identifies the plan."""
        plan = self.plan
        return b"".join(
            a.tobytes() for a in (plan.placement, plan.order, plan.fusion_group, plan.replication)
        )

    def seconds_of_chips(self, num_chips: int) -> FloatArray:
        """[D] seconds of each chip; NaN if they were not measured."""
        return np.full(num_chips, np.nan) if self.chip_s is None else self.chip_s


def by_plan(samples: Sequence[Sample]) -> list[list[Sample]]:
    """The samples of each plan, in the order in which plans were first measured."""
    plans: dict[bytes, list[Sample]] = {}
    for sample in samples:
        plans.setdefault(sample.key, []).append(sample)
    return list(plans.values())


def noise(samples: Sequence[Sample]) -> float | None:
    """Standard deviation of the logarithm of a plan's interval; None if no plan was measured twice."""
    logs = [np.log(times / times[0]) for _, times in _intervals(samples)]
    free = sum(len(each) - 1 for each in logs)
    return float(np.sqrt(sum(len(each) * each.var() for each in logs) / free)) if free else None


def fastest(samples: Sequence[Sample]) -> Sample:
    """The plan whose mean interval is least at the upper end of its standard error.

    So a single measurement that was fast by chance does not win over several that were not.
    """
    spread = noise(samples) or 0.0
    means = [
        (replace(one, interval_s=times[0] * float(np.exp(np.log(times / times[0]).mean()))), len(times))
        for one, times in _intervals(samples)
    ]
    ends = [mean.interval_s * np.exp(spread / np.sqrt(count)) for mean, count in means]
    return means[int(np.argmin(ends))][0] if means else samples[0]


def _intervals(samples: Sequence[Sample]) -> list[tuple[Sample, FloatArray]]:
    """Each plan that runs, with its measured intervals."""
    plans = [(same[0], np.array([one.interval_s for one in same])) for same in by_plan(samples)]
    return [(one, intervals) for one, intervals in plans if np.isfinite(intervals).all()]


def read_samples(path: Path, machine: str, graph: Graph, target: Target) -> list[Sample]:
    """The samples of a file; empty if there is no file.

    Raises:
      InvalidInputError: the file is no file of samples, or is for another machine, graph or target.
    """
    if not path.exists():
        return []
    data = read_json(path, "samples")
    try:
        if data["format"] != FORMAT:
            raise ValueError
        samples = [
            Sample(
                plan_from_dict(row["plan"]),
                np.inf if row["interval_s"] is None else float(row["interval_s"]),
                None if row["chip_s"] is None else np.array(row["chip_s"], np.float64),
            )
            for row in data["samples"]
        ]
        if data["machine"] != machine:
            raise PlanError("they are from another machine.")
        for sample in samples:
            sample.plan.check_belongs_to(graph, target.fingerprint)
    except PlanError as error:
        problem = f"cannot be resumed: {error}"
    except (ValueError, KeyError, TypeError):
        problem = "are no samples of a calibration."
    else:
        return samples
    raise InvalidInputError(
        f"samples {str(path)!r} {problem} Delete the file, or give another -o.", field="out"
    )


def write_samples(path: Path, machine: str, samples: Sequence[Sample]) -> None:
    """Write the file atomically."""
    rows = [
        {
            "plan": plan_to_dict(sample.plan),
            "interval_s": sample.interval_s if np.isfinite(sample.interval_s) else None,
            "chip_s": None if sample.chip_s is None else sample.chip_s.tolist(),
        }
        for sample in samples
    ]
    write_atomically(path, json.dumps({"format": FORMAT, "machine": machine, "samples": rows}))


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
