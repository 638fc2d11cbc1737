"""Text tables: the graphs of the zoo, and one of them in detail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table

from go_opt.common.arrays import BoolArray
from go_opt.common.units import format_bytes
from go_opt.env import Target, depth
from go_opt.env.zoo import SPLITS, Family, ZooEntry
from go_opt.model.dtypes import size_bytes
from go_opt.model.graph import ACTIVATION, INPUT, WEIGHT, Graph
from go_opt.model_summary import OpTypeStats, op_type_stats
from go_opt.report.parts.model_lines import op_types_table
from go_opt.report.parts.screen import print_lines, print_table
from go_opt.report.parts.wording import some, table_of
from go_opt.solver import most_chips_adjacent, placement_problem

LEFT_OUT: Final = ("source", "edges", "target", "family", "GFLOP", "states")  # dropped on a narrow screen
_TEXT: Final = ("name", "family", "split", "target", "source", "kind", "op type")


def zoo_table(entries: Sequence[ZooEntry]) -> Table:
    """The graphs of the zoo, one row each."""
    columns = ("name", "family", "split", "target", "ops", "edges", "GFLOP", "weights", "states", "source")
    rows = (
        (
            *(entry.name, entry.family, entry.split, entry.target, entry.ops, entry.edges),
            f"{entry.flops / 1e9:.2f}",
            format_bytes(entry.weight_bytes),
            some(format_bytes, entry.state_bytes),
            entry.source,
        )
        for entry in entries
    )
    return table_of(columns, rows, text=_TEXT)


def zoo_counts(entries: Sequence[ZooEntry], shipped_bytes: int) -> Iterator[str]:
    """One line per target with its graphs by split, the default target first, and the total."""
    counts = Counter((entry.target, entry.split) for entry in entries)
    for target in sorted({entry.target for entry in entries}, key=lambda name: (name != "mcm-6x6", name)):
        by_split = [counts[target, split] for split in SPLITS]
        splits = ", ".join(f"{count} {split}" for count, split in zip(by_split, SPLITS, strict=True))
        yield f"{target}: {sum(by_split)} graphs ({splits})"
    yield f"in all: {len(entries)} graphs in {format_bytes(shipped_bytes)} of files"


def print_zoo_graph(console: Console, entry: ZooEntry, family: Family, stats: GraphStats) -> None:
    """Print one graph: its source, shape, tensors, and ops by type."""
    lines = [
        f"{entry.name}: {entry.source}",
        f"family      {family.name}, in {entry.split}: {family.reason}",
        f"size        {entry.ops} ops, {entry.edges} edges, {entry.flops / 1e9:.2f} GFLOP, "
        f"{format_bytes(entry.weight_bytes)} of weights"
        + (f", {format_bytes(entry.state_bytes)} of states" if entry.state_bytes else ""),
        f"shape       {stats.depth} ops deep, at most {stats.width} at one depth",
        f"target      {entry.target}, of which a placement can use {stats.most_chips} chips at most",
        f"fingerprint {entry.fingerprint}",
    ]
    print_lines(console, lines)
    console.print()
    print_table(console, _tensors_table(stats))
    console.print()
    print_table(console, op_types_table(stats.op_types, entry.flops))


def _tensors_table(stats: GraphStats) -> Table:
    kinds = ("inputs", "outputs", "activations", "weights")
    of_kind = ((kind, getattr(stats, kind)) for kind in kinds)
    rows = (
        (kind, of.count, *map(format_bytes, (of.total_bytes, of.median_bytes, of.largest_bytes)))
        for kind, of in of_kind
    )
    return table_of(("kind", "tensors", "in all", "median", "largest"), rows, text=_TEXT)


@dataclass(frozen=True)
class TensorStats:
    """All tensors of one kind, with sizes in the model's own types."""

    count: int
    total_bytes: int
    median_bytes: int
    largest_bytes: int


@dataclass(frozen=True)
class GraphStats:
    """A graph's distribution of work and bytes, and the most chips it can use on a target."""

    depth: int  # ops on the longest path
    width: int  # most ops at one depth, a lower bound on the largest antichain
    most_chips: int  # the most chips that a placement on the target can use
    op_types: tuple[OpTypeStats, ...]  # most FLOPs first, then most ops
    inputs: TensorStats
    outputs: TensorStats
    activations: TensorStats  # including the outputs
    weights: TensorStats


def graph_stats(graph: Graph, target: Target) -> GraphStats:
    """The statistics of ``graph``; ``most_chips`` refers to ``target``."""
    ops_at_depth = np.bincount(depth(graph).astype(np.int64))
    return GraphStats(
        depth=len(ops_at_depth),
        width=int(ops_at_depth.max()),
        most_chips=_most_chips(graph, target),
        op_types=op_type_stats(graph),
        inputs=_tensors(graph, graph.tensor_kind == INPUT),
        outputs=_tensors(graph, graph.tensor_is_output),
        activations=_tensors(graph, graph.tensor_kind == ACTIVATION),
        weights=_tensors(graph, graph.tensor_kind == WEIGHT),
    )


def _most_chips(graph: Graph, target: Target) -> int:
    """Exact under the adjacent rule; without a triangle rule every op may have its own chip."""
    if target.constraints.triangle == "off":
        return min(graph.num_ops, target.num_chips)
    return most_chips_adjacent(placement_problem(graph, target))


def _tensors(graph: Graph, chosen: BoolArray) -> TensorStats:
    sizes = size_bytes(graph.tensor_elements[chosen], graph.tensor_dtype[chosen])
    if len(sizes) == 0:
        return TensorStats(0, 0, 0, 0)
    return TensorStats(len(sizes), int(sizes.sum()), int(np.median(sizes)), int(sizes.max()))
