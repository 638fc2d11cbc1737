"""What placements along a ring cost, from the definitions and without arrays; every one enumerated."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from go_opt.env import CostTables
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import ACTIVATION, INPUT, NO_PRODUCER, Graph
from go_opt.solver.problem.forwarding_mode import ForwardingMode


def monotone_placements(graph: Graph, num_chips: int) -> Iterator[tuple[int, ...]]:
    """Every placement with ``f(u) <= f(v)`` for every edge."""
    before: list[list[int]] = [[] for _ in range(graph.num_ops)]
    for source, reader in zip(graph.edge_src, graph.edge_dst, strict=True):
        before[reader].append(int(source))

    def extend(chips: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(chips) == graph.num_ops:
            yield chips
            return
        first = max((chips[u] for u in before[len(chips)]), default=0)
        for chip in range(first, num_chips):
            yield from extend((*chips, chip))

    return extend(())


def interval_s(
    graph: Graph,
    tables: CostTables,
    chips: tuple[int, ...],
    forwarding: ForwardingMode,
    sizes: tuple[int, ...] | None = None,
) -> float:
    """The interval of one kernel per op on alike chips, memory left out; infinite where it is forbidden.

    With ``sizes``, ``chips`` are replicated stages of so many chips each.
    """
    return _interval_s(_costs(graph, tables), chips, forwarding, sizes or (1,) * tables.num_chips)


@dataclass(frozen=True)
class _Tensor:
    """Of an activation ``producer`` is the op that makes it, else None."""

    size: float
    producer: int | None
    readers: list[int]
    is_input: bool
    is_output: bool


@dataclass(frozen=True)
class _Costs:
    """What placements share, as plain numbers: thousands of placements are costed by it."""

    op_s: list[float]
    tensors: list[_Tensor]
    host_in_s_per_byte: float
    host_out_s_per_byte: float
    link_s_per_byte: float
    sram_s_per_byte: float
    overhead_s: float
    overlap: bool


def _costs(graph: Graph, tables: CostTables) -> _Costs:
    tensors = []
    for k in range(graph.num_tensors):
        producer = int(tables.tensor_producer[k])
        is_made = tables.tensor_kind[k] == ACTIVATION and producer != NO_PRODUCER
        tensors.append(
            _Tensor(
                size=float(tables.tensor_bytes[k]),
                producer=producer if is_made else None,
                readers=tables.reader_op[tables.reader_ptr[k] : tables.reader_ptr[k + 1]].tolist(),
                is_input=bool(tables.tensor_kind[k] == INPUT),
                is_output=bool(tables.tensor_is_output[k]),
            )
        )
    return _Costs(
        op_s=tables.kernel_floor_s()[0].tolist(),
        tensors=tensors,
        host_in_s_per_byte=float(tables.host_in_s_per_byte),
        host_out_s_per_byte=float(tables.host_out_s_per_byte),
        link_s_per_byte=max(tables.link_s_per_byte.tolist(), default=0.0),  # all alike; none with one chip
        sram_s_per_byte=float(tables.sram_s_per_byte[0]),
        overhead_s=float(tables.kernel_overhead_s[0]),
        overlap=bool(tables.overlap),
    )


def _interval_s(
    costs: _Costs, chips: tuple[int, ...], forwarding: ForwardingMode, sizes: tuple[int, ...]
) -> float:
    num_chips = len(sizes)
    compute_s, link_s = [0.0] * num_chips, [0.0] * num_chips
    host_in_s, host_out_s = [0.0] * num_chips, [0.0] * num_chips
    for op, seconds in enumerate(costs.op_s):
        compute_s[chips[op]] += seconds
    inputs_s = outputs_s = 0.0
    for tensor in costs.tensors:
        size, readers = tensor.size, {chips[op] for op in tensor.readers}
        if tensor.is_input:
            inputs_s += size * costs.host_in_s_per_byte
            for chip in readers:
                host_in_s[chip] += size * costs.host_in_s_per_byte
        if tensor.producer is None:
            continue
        home = chips[tensor.producer]
        if tensor.is_output:
            outputs_s += size * costs.host_out_s_per_byte
            host_out_s[home] += size * costs.host_out_s_per_byte
        last = max(readers, default=home)
        for link in range(home, last):
            link_s[link] += size * costs.link_s_per_byte
        for chip in range(home + 1, last):
            if forwarding == "adjacent":
                return np.inf
            if forwarding == "relayed":
                compute_s[chip] += 2.0 * size * costs.sram_s_per_byte + costs.overhead_s
    if costs.overlap:
        share_s = [seconds / size for seconds, size in zip(compute_s, sizes, strict=True)]
        return max(*share_s, *link_s, inputs_s, outputs_s)
    before_s = [0.0, *link_s[:-1]]
    busiest_s = 0.0
    for chip, size in enumerate(sizes):
        work_s = compute_s[chip] + host_in_s[chip] + host_out_s[chip]
        for place in range(1, size + 1):
            passed_s = (2 * size - 2 * place + 1) * before_s[chip] + (2 * place - 1) * link_s[chip]
            busiest_s = max(busiest_s, (work_s + passed_s) / size)
    return busiest_s


def least_interval_s(graph: Graph, tables: CostTables, forwarding: ForwardingMode) -> float:
    """The optimum, by enumeration."""
    costs, sizes = _costs(graph, tables), (1,) * tables.num_chips
    return min(
        _interval_s(costs, chips, forwarding, sizes) for chips in monotone_placements(graph, tables.num_chips)
    )


def stagings(graph: Graph, num_chips: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Every stage of every op that uses all stages up to the last, with all sizes of them."""
    for stages in monotone_placements(graph, num_chips):
        if set(stages) == set(range(max(stages) + 1)):
            for sizes in itertools.product(range(1, num_chips + 1), repeat=max(stages) + 1):
                if sum(sizes) <= num_chips:
                    yield stages, sizes


def tiny_graph(rng: np.random.Generator, num_ops: int, num_weights: int = 0) -> Graph:
    """Few distinct costs and many ops that read the same: equal chains, ties and branches."""
    b = GraphBuilder("tiny")
    weights = [f"w{i}" for i in range(num_weights)]
    for name in weights:
        b.add_tensor(name, int(rng.choice([500, 1000, 2500])), "bfloat16", "weight")
    inputs = [f"x{i}" for i in range(int(rng.integers(1, 3)))]
    for name in inputs:
        b.add_tensor(name, int(rng.choice([0, 50, 200])), "bfloat16", "input")
    earlier: list[str] = []
    reads: list[list[str]] = []
    few = bool(rng.integers(2))
    for op in range(num_ops):
        if reads and rng.random() < 0.35:
            read = list(reads[int(rng.integers(len(reads)))])
        else:
            pool = earlier[-4:] if rng.random() < 0.7 else earlier
            count = min(len(pool), int(rng.integers(0, 3)))
            read = sorted(rng.choice(pool, count, replace=False).tolist()) if count else []
        if rng.random() < 0.15:
            read.append(inputs[int(rng.integers(len(inputs)))])
        if weights and rng.random() < 0.7:
            read.append(weights[int(rng.integers(num_weights))])
        reads.append(sorted(set(read)))
        flops = float(rng.choice([500, 1000] if few else [0, 500, 1000, 2500]))
        size = int(rng.choice([100] if few else [0, 50, 100, 400]))
        writes = [(f"t{op}", size, "bfloat16")]
        if rng.random() < 0.1:
            writes.append((f"s{op}", 60, "bfloat16"))
        b.add_op(
            f"op{op}", "Relu", "vector", flops=flops, dtype="bfloat16",
            reads=[(name, None) for name in reads[-1]], writes=writes,
        )  # fmt: skip
        earlier += [name for name, _, _ in writes]
    for name in earlier:
        if rng.random() < 0.15:
            b.mark_output(name)
    return b.build()
