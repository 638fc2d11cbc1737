"""Graphs, targets and plans to test with: one worked by hand, and any number of random ones.

    graph, target = toy_graph(), small_mcm(2)      # every figure can be worked out by hand
    rng = np.random.default_rng(seed)              # `seed`: @given(seed=seeds)
    graph = random_graph(rng, num_ops=12)
    target = random_target(rng, topology="ring")
    plan = random_plan(rng, graph, target)  # monotone=True: only edges forward

With two kinds of chips, make the target first: ``random_graph(rng, 12, kinds=kind_names(target))``.

The random ones draw every corner of the model on purpose: several sources and sinks,
tensors with many readers, weights of which readers touch different parts, empty
tensors, memory too small, two kinds of chips. Arguments narrow them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import numba
import numpy as np
from hypothesis import strategies as st

from go_opt.common.arrays import IntArray
from go_opt.env import Target, is_one_loop, loop_roles, parse_target
from go_opt.model.builder import GraphBuilder
from go_opt.model.codecs.graph_json import graph_from_dict, graph_to_dict
from go_opt.model.graph import Graph
from go_opt.model.op_costs import OpSignature
from go_opt.model.plan import Candidate, Plan
from go_opt.model.rules.table import rule_of

Fusion = Literal["any", "legal", "none"]

TOPOLOGIES: Final = ("ring", "chain", "mesh2d", "all_to_all", "host_star", "listed")
JIT_IS_ON: Final = not numba.config.DISABLE_JIT

seeds = st.integers(0, 2**32 - 1)


def examples(count: int) -> int:
    """Random cases of a test: a tenth where the kernels run interpreted."""
    return count if JIT_IS_ON else max(1, count // 10)


# --------------------------------------------------------------------------- by hand


def toy_graph(**changes: Any) -> Graph:
    """Six ops with a residual, a tied weight and an embedding; figures on ``small_mcm()``.

    Floating tensors are costed in bfloat16, 2 bytes an element.

        op     reads (bytes touched)        writes    flops   compute  bytes moved    kernel
        embed  ids 400, table 1000          x 1000        0         0  2400 = 2.4 us   3.4 us
        dense  x 1000, w1 2000              h 1000     8000      8 us  4000 = 4.0 us   9.0 us
        relu   h 1000                       a 1000      500      5 us  2000 = 2.0 us   6.0 us
        mix    a 1000, w2 2000              s 1000     2000      2 us  4000 = 4.0 us   5.0 us
        add    s 1000, x 1000               y 1000      500      5 us  3000 = 3.0 us   6.0 us
        logits y 1000, table 10000          out 2000  10000     10 us 13000 = 13 us   14.0 us

    All kernels: 43.4 us. ``ids`` is the input (int32, 400 bytes = 2 us over the host's
    link), ``out`` the output (2000 bytes = 10 us); an activation of 1000 bytes takes
    10 us over a link, and 1 us of latency. Weights: table 10000, w1 2000, w2 2000 bytes.
    ``changes`` are arguments of :class:`GraphBuilder` (``precision="as-is"``).
    """
    b = GraphBuilder("toy", **changes)
    b.add_tensor("ids", 100, "int32", "input")
    b.add_tensor("table", 5000, "float32", "weight")
    b.add_tensor("w1", 1000, "float32", "weight")
    b.add_tensor("w2", 1000, "float32", "weight")
    for name, op_type, op_class, flops, reads, write, elements in (
        ("embed", "Gather", "data_movement", 0, [("table", 500), ("ids", None)], "x", 500),
        ("dense", "MatMul", "matrix", 8000, [("x", None), ("w1", None)], "h", 500),
        ("relu", "Relu", "vector", 500, [("h", None)], "a", 500),
        ("mix", "MatMul", "matrix", 2000, [("a", None), ("w2", None)], "s", 500),
        ("add", "Add", "vector", 500, [("s", None), ("x", None)], "y", 500),
        ("logits", "MatMul", "matrix", 10000, [("y", None), ("table", None)], "out", 1000),
    ):
        writes = [(write, elements, "float32")]
        b.add_op(name, op_type, op_class, flops=flops, dtype="float32", reads=reads, writes=writes)
    for name, (rows, inner, columns), operands in (
        ("dense", (4, 8, 125), ("x", "w1")), ("mix", (1, 2, 500), ("a", "w2")),
        ("logits", (1, 5, 1000), ("y", "table")),
    ):  # fmt: skip
        shapes = (rows, inner), (inner, columns)
        rule = rule_of(OpSignature("MatMul", shapes, ((rows, columns),), {}))
        assert rule is not None
        b.set_rule(name, rule, operands)
    b.mark_output("out")
    return b.build()


def small_mcm(num_chips: int = 2, **changes: Any) -> Target:
    """A package of round numbers; ``changes`` are arguments of :func:`target_toml`."""
    return parse_target(target_toml(num_chips=num_chips, **changes), "small-mcm")


def chip_kind(name: str = "chip", count: int = 1, **changes: Any) -> dict[str, Any]:
    """One entry of ``kinds``: 1 us per 1000 matrix flops, per 100 vector flops, per 1000 bytes."""
    return {
        "name": name,
        "count": count,
        "sram_bytes": 100_000,
        "sram_bytes_per_s": 1e9,
        "kernel_overhead_s": 1e-6,
        "pays_transfers": True,
        "matrix_flops_per_s": {"bfloat16": 1e9, "int8": 2e9},
        "vector_flops_per_s": {"default": 1e8},
    } | changes


def simulated_package(**changes: Any) -> dict[str, Any]:
    """The ``simulator`` table of a package: double buffers, nothing else."""
    return {
        "buffers": 2,
        "packet_bytes": 1,
        "packet_header_bytes": 0,
        "host_multicast": True,
        "weight_prefetch": True,
        "noise": 0.0,
    } | changes


def simulated_kind(**changes: Any) -> dict[str, Any]:
    """The ``simulator`` table of a kind of chip: nothing that costs."""
    return {
        "tile": [1, 1, 1],
        "tiles_at_once": 1,
        "fill_s": 0.0,
        "vector_lanes": 1,
        "dma_engines": 100,
        "dma_setup_s": 0.0,
        "alignment_bytes": 1,
        "stream_buffer_bytes": 0,
    } | changes


def target_toml(
    *,
    num_chips: int = 2,
    topology: str = "ring",
    columns: int = 2,
    links: Sequence[tuple[int, int, float, float]] = (),
    link_bytes_per_s: float = 1e8,
    link_latency_s: float = 1e-6,
    host_in_bytes_per_s: float = 2e8,
    host_out_bytes_per_s: float = 2e8,
    overlap: bool = True,
    acyclic: bool | None = None,
    no_skip: str | None = None,
    triangle: str | None = None,
    kinds: Sequence[dict[str, Any]] = (),
    simulator: dict[str, Any] | None = None,
    **kind_changes: Any,
) -> str:
    """The TOML text of a target.

    ``kind_changes`` are fields of the one kind (``sram_bytes=2000``); or give ``kinds``,
    made by :func:`chip_kind`. Without arguments that say otherwise, rings and chains are
    constrained as ``mcm-6x6`` is, the others not at all.
    """
    on_ring = topology in ("ring", "chain")
    rules = {
        "acyclic": on_ring if acyclic is None else acyclic,
        "no_skip": no_skip or ("prefix" if on_ring else "off"),
        "triangle": triangle or ("longest_path" if on_ring else "off"),
    }
    shape: dict[str, Any] = {"kind": topology}
    if topology == "listed":
        names = ("source", "destination", "rate_bytes_per_s", "latency_s")
        shape["links"] = [dict(zip(names, link, strict=True)) for link in links]
    else:
        shape |= {"rate_bytes_per_s": link_bytes_per_s, "latency_s": link_latency_s}
    if topology == "mesh2d":
        shape["columns"] = columns
    host = {"in_bytes_per_s": host_in_bytes_per_s, "out_bytes_per_s": host_out_bytes_per_s}
    fields = {
        "name": "small-mcm",
        "native_dtype": "bfloat16",
        "overlap": overlap,
        "constraints": rules,
        "topology": shape,
        "host": host,
        "kinds": list(kinds) or [chip_kind(count=num_chips, **kind_changes)],
    }
    if simulator is not None:
        fields["simulator"] = simulator
    return "".join(f"{key} = {_toml(value)}\n" for key, value in fields.items())


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, bool | str):
        return str(value).lower() if isinstance(value, bool) else f'"{value}"'
    return repr(float(value)) if isinstance(value, float) else str(int(value))


def make_plan(
    graph: Graph,
    target: Target,
    placement: Sequence[int],
    *,
    order: Sequence[int] | None = None,
    fusion_group: Sequence[int] | None = None,
) -> Plan:
    """A plan by hand; ops in the order of storage, one kernel each, where nothing else is said."""
    ops = np.arange(graph.num_ops, dtype=np.int32)
    return Candidate(
        "by hand",
        np.array(placement, np.int32),
        ops if order is None else np.array(order, np.int32),
        ops if fusion_group is None else np.array(fusion_group, np.int32),
    ).plan(graph, target)


# --------------------------------------------------------------------------- random

_DTYPES = ("float32", "bfloat16", "int8", "int64", "int4", "bool")
_OPS = (
    ("MatMul", "matrix"),
    ("Conv", "matrix"),
    ("Relu", "vector"),
    ("Add", "vector"),
    ("Mul", "vector"),
    ("Softmax", "vector"),
    ("ReduceSum", "vector"),
    ("CumSum", "vector"),
    ("Transpose", "data_movement"),
    ("Gather", "data_movement"),
)


def random_graph(
    rng: np.random.Generator,
    num_ops: int,
    *,
    kinds: Sequence[str] = (),
    precision: Literal["native", "as-is"] | None = None,
    max_elements: int = 5000,
) -> Graph:
    """A branchy graph of ``num_ops`` ops.

    Args:
      kinds: chip kinds of the target it is for (``kind_names(target)``): some ops then
        have measured seconds on some of them, and some may not run on the last.
      precision: drawn where it is not given.
    """
    b = GraphBuilder("random", precision=precision or ("native", "as-is")[int(rng.integers(2))])
    # A few sizes, so that neighbours often have the same loop and may be fused.
    sizes = [int(n) for n in rng.integers(1, max_elements, 3)]
    sizes += [0] if rng.random() < 0.2 else []
    max_flops = {"matrix": 20_000, "vector": 2000, "data_movement": 0}
    near = int(rng.choice([2, 5, num_ops + 1]))  # how far back an op reads

    measured_share = float(rng.choice([0.1, 0.9])) if kinds else 0.0

    def draw_size() -> int:
        return sizes[int(rng.integers(len(sizes)))]

    def draw_dtype() -> str:
        return _DTYPES[_draw(rng, _DTYPE_SHARES)]

    weights = [f"w{i}" for i in range(int(rng.integers(0, num_ops + 1)))]
    inputs = [f"in{i}" for i in range(int(rng.integers(0, 3)))]
    for name in weights:
        b.add_tensor(name, draw_size() * int(rng.integers(1, 4)), draw_dtype(), "weight")
    for name in inputs:
        b.add_tensor(name, draw_size(), draw_dtype(), "input")
    produced: list[str] = []
    for i in range(num_ops):
        recent = produced[-near:]
        reads = [_pick(rng, recent) for _ in range(_draw(rng, _READS_SHARES)) if recent]
        reads += [_pick(rng, weights) for _ in range(int(rng.integers(0, 3))) if weights]
        reads += [_pick(rng, inputs)] if inputs and rng.random() < 0.2 else []
        op_type, op_class = _OPS[int(rng.integers(len(_OPS)))]
        num_writes = _draw(rng, _WRITES_SHARES)
        writes = [(f"t{i}.{j}", draw_size(), draw_dtype()) for j in range(num_writes)]
        measured = {kind: float(rng.uniform(0, 1e-5)) for kind in kinds if rng.random() < measured_share}
        b.add_op(
            f"op{i}",
            op_type,
            op_class,
            flops=int(rng.integers(0, max_flops[op_class] + 1)),
            dtype=draw_dtype(),
            reads=[(name, None if rng.random() < 0.7 else draw_size()) for name in reads],
            writes=writes,
            measured_s=measured,
            excluded_kinds=kinds[-1:] if len(kinds) > 1 and rng.random() < 0.1 else (),
        )
        for name, _, _ in writes:
            produced.append(name)
            if rng.random() < 0.1:
                produced.append(name)  # as if it had a view, which is read as it is
            if rng.random() < 0.15:
                b.mark_output(name)
    return b.build()


def with_random_states(
    rng: np.random.Generator, graph: Graph, *, scopes: Sequence[str] = (*["sequence"] * 4, "model")
) -> Graph:
    """The graph with some inputs and weights as states, whose next values ops write or which never change.

    Writers often are of a type that writes in place.
    """
    data = graph_to_dict(graph)
    produced = [row for row in data["tensors"] if row["producer"] is not None]
    ops = {row["name"]: row for row in data["ops"]}
    data["states"] = []
    for row in data["tensors"]:
        following = [one["name"] for one in produced if one["dtype"] == row["dtype"]]
        if row["producer"] is not None or rng.random() < 0.5:
            continue
        next_name = _pick(rng, [row["name"], *following])
        row["kind"] = "state"
        scope = _pick(rng, scopes)
        data["states"].append({"read": row["name"], "next": next_name, "scope": scope})
        writer = next((ops[one["producer"]] for one in produced if one["name"] == next_name), None)
        if writer is not None and rng.random() < 0.5:
            writer["op_type"], writer["op_class"] = "Concat", "data_movement"
            if row["name"] not in {read["tensor"] for read in writer["reads"]}:
                writer["reads"].append({"tensor": row["name"], "elements": row["elements"]})
    return graph_from_dict(data)


def random_target(
    rng: np.random.Generator,
    *,
    num_chips: int | None = None,
    topology: str | None = None,
    overlap: bool | None = None,
    sram_bytes: int | None = None,
    num_kinds: int | None = None,
    **fields: Any,
) -> Target:
    """A target around the rates of ``small_mcm``, each bottleneck possible.

    Args:
      sram_bytes: of each chip; drawn from a few kernels' worth to plenty where not given.
      fields: further arguments of :func:`target_toml` (``acyclic=True``).
    """
    topology = topology or _pick(rng, TOPOLOGIES)
    num_chips = num_chips or (70 if rng.random() < 0.05 else int(rng.integers(1, 8)))
    if topology == "listed":
        num_chips = max(num_chips, 2)
    num_kinds = min(num_chips, num_kinds or int(rng.integers(1, 3)))
    counts = [num_chips - num_chips // 2, num_chips // 2] if num_kinds == 2 else [num_chips]

    def around(rate: float) -> float:
        return float(rate * 10 ** rng.uniform(-1, 1))

    def draw_kind(name: str, count: int) -> dict[str, Any]:
        return chip_kind(
            name,
            count,
            sram_bytes=sram_bytes or int(10 ** rng.uniform(3.5, 6)),
            sram_bytes_per_s=around(1e9),
            kernel_overhead_s=float(rng.choice([0.0, 1e-6])),
            pays_transfers=bool(rng.random() < 0.6),
            matrix_flops_per_s={"bfloat16": around(1e9), "int8": around(2e9)},
            vector_flops_per_s={"default": around(1e8)} if rng.random() < 0.5 else {"float32": around(1e8)},
            dependency_overhead_s=float(rng.choice([0.0, 2e-6])),
        )

    drawn: dict[str, Any] = {
        "num_chips": num_chips,
        "topology": topology,
        "columns": int(rng.integers(1, num_chips + 1)),
        "links": _random_links(rng, num_chips) if topology == "listed" else (),
        "link_bytes_per_s": around(1e8),
        "link_latency_s": float(rng.choice([0.0, 1e-6])),
        "host_in_bytes_per_s": around(5e8),
        "host_out_bytes_per_s": around(5e8),
        "overlap": bool(rng.random() < 0.7) if overlap is None else overlap,
        "kinds": [draw_kind(name, count) for name, count in zip("ab", counts, strict=False)],
    }
    return parse_target(target_toml(**drawn | fields), "random")


def random_simulated_target(rng: np.random.Generator, *, rates_differ: bool = True, **fields: Any) -> Target:
    """A random target with simulator tables, each chip and each link with rates of its own.

    Events of one moment come in an order that no rule states; where all rates differ there
    are hardly any but those with the same cause.

    Args:
      rates_differ: between links too, as no target file says of a ring.
      fields: as for :func:`random_target` and :func:`target_toml`.
    """
    topology = fields.pop("topology", None) or _pick(rng, TOPOLOGIES)
    num_chips = fields.pop("num_chips", None) or int(rng.integers(2, 8))
    num_chips = max(num_chips, 2) if topology == "listed" else num_chips
    sram_bytes = fields.pop("sram_bytes", None) or int(10 ** rng.uniform(4.5, 6))

    def some(chance: float, value: float) -> float:
        return float(value * rng.uniform(0.5, 1.5)) if rng.random() < chance else 0.0

    def draw_kind(number: int) -> dict[str, Any]:
        tables = simulated_kind(
            tile=[int(rng.choice([1, 16])), int(rng.choice([1, 32])), int(rng.choice([1, 20]))],
            tiles_at_once=int(rng.choice([1, 3])),
            fill_s=some(0.5, 1e-6),
            vector_lanes=int(rng.choice([1, 64])),
            dma_engines=int(rng.choice([1, 2, 100])),
            dma_setup_s=some(0.5, 1e-6),
            alignment_bytes=int(rng.choice([1, 64, 256])),
            stream_buffer_bytes=int(rng.choice([0, 1000])),
        )
        if number == 0:
            tables["op_factors"] = [{"op_type": "MatMul", "factor": 0.5}, {"op_type": "Relu", "factor": 2.0}]
        return chip_kind(
            f"chip{number}",
            sram_bytes=sram_bytes,
            sram_bytes_per_s=float(1e9 * rng.uniform(0.1, 10)),
            kernel_overhead_s=float(1e-6 * rng.uniform(0.5, 1.5)),
            matrix_flops_per_s={"bfloat16": float(1e9 * rng.uniform(0.1, 10))},
            vector_flops_per_s={"default": float(1e8 * rng.uniform(0.1, 10))},
            simulator=tables,
            dependency_overhead_s=some(0.5, 1e-6),
        )

    packets = int(rng.choice([1, 100, 1000]))
    drawn: dict[str, Any] = {
        "kinds": [draw_kind(number) for number in range(num_chips)],
        "simulator": simulated_package(
            buffers=int(rng.integers(1, 4)),
            packet_bytes=packets,
            packet_header_bytes=int(rng.choice([0, packets // 10])),
            host_multicast=bool(rng.random() < 0.5),
            weight_prefetch=bool(rng.random() < 0.5),
        ),
        "link_latency_s": 1e-6 * float(rng.uniform(0.1, 3)),
        "overlap": True,
    }
    target = random_target(rng, num_chips=num_chips, topology=topology, **drawn | fields)
    if not rates_differ:
        return target
    rates = target.topology.rate_bytes_per_s * rng.uniform(0.5, 1.5, target.topology.num_links)
    return replace(target, topology=replace(target.topology, rate_bytes_per_s=rates))


def random_plan(
    rng: np.random.Generator,
    graph: Graph,
    target: Target,
    *,
    monotone: bool = False,
    fusion: Fusion = "any",
) -> Plan:
    """Any placement that has routes, any topological order, and kernels along it.

    Args:
      monotone: no edge leads to a lower chip (``f(u) <= f(v)``); always so on a chain.
      fusion: ``any`` contiguous ops of a chip as a kernel, none of them measured;
        ``legal`` ones only (:func:`is_one_loop`); or one kernel per op.
    """
    order = random_order(rng, graph)
    placement = _random_placement(rng, graph, target, order, monotone or target.topology.kind == "chain")
    return Candidate("random", placement, order, _random_fusion(rng, graph, placement, order, fusion)).plan(
        graph, target
    )


def random_order(rng: np.random.Generator, graph: Graph) -> IntArray:
    """[N] a topological order that often goes deep before it goes wide."""
    waits_for = np.bincount(graph.edge_dst, minlength=graph.num_ops)
    ready = [op for op in range(graph.num_ops) if waits_for[op] == 0]
    order = []
    while ready:
        op = ready.pop(-1 if rng.random() < 0.5 else int(rng.integers(len(ready))))
        order.append(op)
        for reader in graph.edge_dst[graph.edge_src == op]:
            waits_for[reader] -= 1
            if waits_for[reader] == 0:
                ready.append(int(reader))
    return np.array(order, dtype=np.int32)


def kind_names(target: Target) -> tuple[str, ...]:
    """Names of the chip kinds, for ``random_graph(kinds=...)``."""
    return tuple(kind.name for kind in target.kinds)


def _draw(rng: np.random.Generator, up_to: Sequence[float]) -> int:
    """A number below ``len(up_to)``, whose last is 1: what ``rng.choice`` draws, in a tenth of its time."""
    return bisect_right(up_to, rng.random())


def _up_to(*shares: float) -> list[float]:
    total = np.cumsum(shares)
    return list((total / total[-1]).tolist())


_DTYPE_SHARES: Final = _up_to(0.5, 0.2, 0.1, 0.1, 0.05, 0.05)
_READS_SHARES: Final = _up_to(0.1, 0.5, 0.3, 0.1)
_WRITES_SHARES: Final = _up_to(0.05, 0.8, 0.15)


def _pick(rng: np.random.Generator, items: Sequence[Any]) -> Any:
    return items[int(rng.integers(len(items)))]


def _random_links(rng: np.random.Generator, num_chips: int) -> list[tuple[int, int, float, float]]:
    """A ring through the chips in any order, so that all routes exist, and some more links."""
    ring = rng.permutation(num_chips)
    ends = list(zip(ring, np.roll(ring, -1), strict=True))
    ends += [tuple(rng.choice(num_chips, 2, replace=False)) for _ in range(int(rng.integers(0, num_chips)))]
    return [
        (int(a), int(b), float(1e8 * 10 ** rng.uniform(-1, 1)), float(rng.choice([0.0, 1e-6])))
        for a, b in ends
    ]


def _random_placement(
    rng: np.random.Generator, graph: Graph, target: Target, order: IntArray, monotone: bool
) -> IntArray:
    """[N] chips that may run their ops; runs of the order stay together, so that kernels form."""
    names, chip_kinds = kind_names(target), target.chip_kind
    allowed = []
    for op in range(graph.num_ops):
        excluded = [name in graph.excluded and bool(graph.excluded[name][op]) for name in names]
        allowed.append(np.flatnonzero(~np.array(excluded)[chip_kinds]))
    first, last = np.zeros(graph.num_ops, np.int64), np.full(graph.num_ops, target.num_chips - 1)
    if monotone:  # the last chip from which all that follows can still be placed
        for op in order[::-1]:
            readers = graph.edge_dst[graph.edge_src == op]
            last[op] = min([last[op], *last[readers]])
            last[op] = max(allowed[op][allowed[op] <= last[op]], default=-1)
            assert last[op] >= 0, "no monotone placement: exclude the last kind only"
    placement = np.zeros(graph.num_ops, np.int32)
    stay, chip = rng.choice([0.3, 0.8]), 0
    for op in order:
        if monotone:
            first[op] = max(placement[graph.edge_src[graph.edge_dst == op]], default=0)
        choices = allowed[op][(allowed[op] >= first[op]) & (allowed[op] <= last[op])]
        chip = chip if chip in choices and rng.random() < stay else int(rng.choice(choices))
        placement[op] = chip
    return placement


def _random_fusion(
    rng: np.random.Generator,
    graph: Graph,
    placement: IntArray,
    order: IntArray,
    fusion: Fusion,
) -> IntArray:
    roles = loop_roles(graph)
    measured = np.zeros(graph.num_ops, np.bool_)
    for seconds in graph.measured_s.values():
        measured |= ~np.isnan(seconds)

    def may_be_kernel(ops: IntArray) -> bool:
        if fusion == "legal":
            return is_one_loop(roles, ops)
        return fusion == "any" and not measured[ops].any()

    group = np.zeros(graph.num_ops, np.int32)
    start, join = 0, rng.choice([0.2, 0.9])
    for place in range(1, graph.num_ops):
        op, before = order[place], order[place - 1]
        together = placement[op] == placement[before] and may_be_kernel(order[start : place + 1])
        start = start if together and rng.random() < join else place
        group[op] = start
    return group
