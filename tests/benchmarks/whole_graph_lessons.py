"""Configurations of graphs, and their segments, as arrays for whole_graph_network.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from go_opt.env import cost_tables, evaluate_plan
from go_opt.env.cost.shapes import product_shapes
from go_opt.model.graph import MATRIX, WEIGHT, Graph
from go_opt.model.plan import Plan
from tests.benchmarks.calibrate_machines import SHEET

TYPES = 32  # that types of ops are hashed to
KINDS = 3  # of edges: within a kernel, within a chip, between chips
LEAST = 1e-6  # share of an interval
LEAST_S = 1e-9


@dataclass(frozen=True, eq=False)
class Lesson:
    """Configurations of a graph. Axes: N ops, E edges, C configurations, D chips, F and G features."""

    ops: NDArray  # [N, F]
    edges: NDArray  # [E, 2]
    configs: NDArray  # [N, C, G]
    kinds: NDArray  # [E, C]
    chip: NDArray  # [N, C] first of the stage
    share: NDArray  # [N, C] of the seconds of that chip
    chips: NDArray  # [C, D, 4]
    loads: NDArray  # [C, 2 D + 2] logarithms of shares of chips, links and host in the analytical interval
    base_s: NDArray  # [C] analytical interval
    label: NDArray  # [C] logarithm of the measured interval over it


def lesson_of(graph: Graph, plans: Sequence[Plan], measured_s: NDArray) -> Lesson:
    columns = [_config(graph, plan) for plan in plans]
    by_op = [np.stack([one[i] for one in columns], axis=1) for i in range(4)]
    *by_chip, base_s = (np.stack([one[i] for one in columns]) for i in range(4, 7))
    edges, label = np.stack([graph.edge_src, graph.edge_dst], axis=1), np.log(measured_s / base_s)
    arrays = (_ops(graph), edges, *by_op, *by_chip)
    kept = [each.astype(np.int32 if each.dtype.kind == "i" else np.float32) for each in arrays]
    return Lesson(*kept, base_s, label)


def _ops(graph: Graph) -> NDArray:
    """[N, F] logarithms of seconds by the data sheet, bytes, weights and shapes; class; type, hashed."""
    tables = cost_tables(graph, SHEET)
    weight = tables.read_bytes * (tables.tensor_kind[tables.reader_tensor] == WEIGHT)
    sizes = [tables.op_bytes(), np.bincount(tables.reader_op, weight, graph.num_ops), *product_shapes(graph)]
    numbers = [np.log(tables.op_s[0] + LEAST_S) + 14, *(np.log1p(size) / 4 for size in sizes)]
    types = np.array([crc32(name.encode()) % TYPES for name in graph.op_types])
    classes = (graph.op_class == MATRIX)[:, None]
    return np.concatenate([np.stack(numbers, axis=1), classes, np.eye(TYPES)[types]], axis=1)


def _config(graph: Graph, plan: Plan) -> tuple[NDArray, ...]:
    """What :class:`Lesson` has of a configuration."""
    metrics = evaluate_plan(graph, SHEET, replace(plan, target_fingerprint=SHEET.fingerprint))
    chip_s, link_s, chip = metrics.compute_s, metrics.link_s, plan.placement
    base_s = metrics.interval_s if np.isfinite(metrics.interval_s) else max(chip_s.max(), link_s.max())
    floor_s = cost_tables(graph, SHEET).kernel_floor_s()[0] / plan.replication
    share = floor_s / np.bincount(chip, floor_s)[chip]
    in_kernel = np.bincount(plan.fusion_group)[plan.fusion_group]
    chip_load, op_load = (np.log(np.maximum(each / base_s, LEAST)) for each in (chip_s[chip], floor_s))
    features = np.stack([np.log(in_kernel), np.log(plan.replication), chip_load / 4, op_load / 4], axis=1)
    source, to = graph.edge_src, graph.edge_dst
    kinds = np.where(plan.fusion_group[source] == plan.fusion_group[to], 0, 1 + (chip[source] != chip[to]))
    loads = np.log(np.maximum(np.concatenate([chip_s, link_s]) / base_s, LEAST))
    replication = np.zeros(len(chip_s))
    replication[chip] = np.log(plan.replication)
    on_chip = [metrics.stream_bytes / 1e7, metrics.peak_bytes / 1e7, replication, loads[: len(chip_s)] / 4]
    return features, kinds, chip, share, np.stack(on_chip, axis=1), loads, np.array(base_s)


Piece = tuple[NDArray, ...]  # ops [M, F], edges [E, 2]; of configurations [M, B, G], [E, B], [M, B], [M, B]


@dataclass(frozen=True, eq=False)
class Cut:
    """A graph cut into segments of ``size`` ops that follow each other in its topological order."""

    lesson: Lesson
    size: int

    def __len__(self) -> int:
        return -(-len(self.lesson.ops) // self.size)

    def inside(self, segment: int) -> NDArray:
        return np.flatnonzero((self.lesson.edges // self.size == segment).all(axis=1))

    def most_edges(self) -> int:
        return max(len(self.inside(segment)) for segment in range(len(self)))

    def piece(self, segment: int, chosen: NDArray, num_edges: int) -> Piece:
        """A segment of the ``chosen`` configurations, padded to ``size`` ops and ``num_edges``."""
        one, inside, begin = self.lesson, self.inside(segment), segment * self.size
        ops = slice(begin, begin + self.size)
        ends = _padded(one.edges[inside] - begin, num_edges, self.size)
        of_ops = [_padded(each[ops][:, chosen], self.size) for each in (one.configs, one.chip, one.share)]
        kinds = _padded(one.kinds[inside][:, chosen], num_edges)
        return _padded(one.ops[ops], self.size), ends, of_ops[0], kinds, *of_ops[1:]


def _padded(rows: NDArray, length: int, filler: int = 0) -> NDArray:
    widths = [(0, length - len(rows)), *((0, 0) for _ in rows.shape[1:])]
    return np.pad(rows, widths, constant_values=filler)
