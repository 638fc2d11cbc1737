"""Problems of training: graphs on targets, and how pretraining draws them.

The graphs of a step depend only on the seed and the step's number, so that a resumed run sees
the same graphs, and processes can draw a step's graphs apart. All have similar sizes, so that they
share a bucket.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from go_opt.agents.decoding.exploration import KeySpace, key_space
from go_opt.agents.generator import generate_graph
from go_opt.agents.inputs.features import GraphFeatures, graph_features
from go_opt.agents.inputs.padding import Bucket, rows_to_ops, smallest_bucket
from go_opt.env import Target, evaluate_batch
from go_opt.env.target.topology import build_topology
from go_opt.errors import InvalidInputError
from go_opt.model.graph import Graph
from go_opt.solver import greedy_slicing
from go_opt.solver.orders.cheapest import cheapest_slicing
from go_opt.solver.orders.instance import OrderProblem, instance


@dataclass(frozen=True, eq=False)
class Case:
    """One graph on one target."""

    instance: OrderProblem
    reference_s: float  # interval of the greedy plan by the model; see :func:`reference_interval_s`

    @property
    def bucket(self) -> Bucket:
        """The smallest that holds the graph."""
        return smallest_bucket(self.instance.graph)

    @cached_property
    def features(self) -> GraphFeatures:
        """For the network."""
        return graph_features(self.instance.graph, self.instance.target)

    @cached_property
    def key_space(self) -> KeySpace:
        """In which keys are drawn."""
        return key_space(rows_to_ops(self.features, self.features.exploration))


def case(graph: Graph, target: Target) -> Case:
    """Cost and measure ``graph`` on ``target``."""
    on_target = instance(graph, target)
    return Case(on_target, reference_interval_s(on_target))


def reference_interval_s(on_target: OrderProblem) -> float:
    """The reference of rewards: the greedy plan's interval, if it fits in memory.

    Otherwise the interval of the default order's slicing, or one second. The constant does not
    affect training, because rewards are compared within a graph only.
    """
    order, group = on_target.order, on_target.fusion_group
    greedy = greedy_slicing(on_target.tables, order, group, adjacent=on_target.is_adjacent)
    terms = evaluate_batch(on_target.tables, greedy.placement[None], order[None], group[None])
    if terms.fits[0]:
        return float(terms.interval_s[0])
    sliced_s = cheapest_slicing(on_target, order, group).expected_s
    return sliced_s if math.isfinite(sliced_s) else 1.0


LEAST_OPS: Final = 50
LEAST_BUCKET_OPS: Final = 128  # shared by smaller graphs: each bucket costs seconds of compilation
MOST_CHIPS: Final = 64


@dataclass(frozen=True, eq=False)
class Curriculum:
    """Distributions of graphs and targets."""

    graphs: tuple[Graph, ...]
    target: Target
    generated_share: float = 0.4  # chance of a generated graph; 1 if no given graph has the size
    plain_share: float = 0.6  # chance of the target as given; otherwise chips and rates vary
    most_ops: int = 2048  # of any graph, generated or not

    def __post_init__(self) -> None:
        if not self.graphs and self.generated_share < 1.0:
            raise InvalidInputError("no graphs are given, and not all are generated.", field="graphs")

    def draw(self, seed: int, step: int, number: int) -> tuple[list[Case], Bucket]:
        """``number`` cases of one step, and the bucket that holds them all."""
        cases = [self.draw_one(seed, step, place) for place in range(number)]
        return cases, common_bucket(cases)

    def draw_one(self, seed: int, step: int, place: int) -> Case:
        """The case at a place of a step."""
        sizes = self._sizes(np.random.default_rng((seed, step)))
        rng = np.random.default_rng((seed, step, place))
        return case(self._draw_graph(rng, sizes), self._draw_target(rng))

    def _sizes(self, rng: np.random.Generator) -> range:
        """Those of a graph drawn freely."""
        if self.graphs and rng.random() >= self.generated_share:
            num_ops = self.graphs[int(rng.integers(len(self.graphs)))].num_ops
        else:
            num_ops = int(np.exp(rng.uniform(np.log(LEAST_OPS), np.log(self.most_ops))))
        return same_size(num_ops, self.most_ops)

    def _draw_graph(self, rng: np.random.Generator, sizes: range) -> Graph:
        """A graph whose number of ops is in ``sizes``."""
        known = [graph for graph in self.graphs if graph.num_ops in sizes]
        if known and rng.random() >= self.generated_share:
            return known[int(rng.integers(len(known)))]
        num_ops = int(np.exp(rng.uniform(np.log(sizes.start), np.log(sizes.stop - 1))))
        return generate_graph(int(rng.integers(2**31)), num_ops=num_ops)

    def _draw_target(self, rng: np.random.Generator) -> Target:
        if rng.random() < self.plain_share:
            return self.target
        chips = int(np.exp2(rng.uniform(2.0, np.log2(MOST_CHIPS))))
        link, compute, sram = np.exp2(rng.uniform((-1.5, -1.0, -0.5), (2.5, 1.0, 1.0))).tolist()
        return varied_target(self.target, Variation(chips, link, compute, sram))


def common_bucket(cases: Sequence[Case]) -> Bucket:
    """A bucket that holds all ``cases``."""
    ops, edges = (max(sizes) for sizes in zip(*(case.bucket for case in cases), strict=True))
    ops = max(ops, LEAST_BUCKET_OPS)
    # A lower limit on edges avoids compiling for buckets that hardly differ.
    return Bucket(ops, max(edges, 2 * ops))


def same_size(num_ops: int, most_ops: int) -> range:
    """Numbers of ops that share the bucket of ``num_ops``."""
    size = LEAST_BUCKET_OPS
    while size < num_ops:
        size *= 2
    least = LEAST_OPS if size == LEAST_BUCKET_OPS else size // 2 + 1
    return range(least, max(min(size, most_ops), num_ops) + 1)


@dataclass(frozen=True)
class Variation:
    """Factors on rates and memory, and the number of chips of a ring or chain of one kind."""

    chips: int
    link_rate: float
    compute_rate: float
    sram: float


def varied_target(target: Target, variation: Variation) -> Target:
    """``target`` varied.

    Other topologies than rings and chains keep their chips, and so do mixed kinds and single chips.
    """
    links = target.topology
    kinds = tuple(
        replace(
            kind,
            sram_bytes=max(1, int(kind.sram_bytes * variation.sram)),
            matrix_flops_per_s=_scaled(kind.matrix_flops_per_s, variation.compute_rate),
            vector_flops_per_s=_scaled(kind.vector_flops_per_s, variation.compute_rate),
            flops_per_s_by_op_type={
                name: _scaled(rates, variation.compute_rate)
                for name, rates in kind.flops_per_s_by_op_type.items()
            },
        )
        for kind in target.kinds
    )
    if links.is_ring and links.num_links and len(kinds) == 1:
        kinds = (replace(kinds[0], count=variation.chips),)
        rate, latency_s = float(links.rate_bytes_per_s.mean()), float(links.latency_s.mean())
        topology = build_topology(links.kind, variation.chips, rate * variation.link_rate, latency_s)
    else:
        topology = replace(links, rate_bytes_per_s=links.rate_bytes_per_s * variation.link_rate)
    digest = hashlib.sha256(f"{target.fingerprint} {variation}".encode()).hexdigest()
    return replace(target, kinds=kinds, topology=topology, fingerprint=digest)


def _scaled(rates: Mapping[str, float], factor: float) -> dict[str, float]:
    return {name: rate * factor for name, rate in rates.items()}
