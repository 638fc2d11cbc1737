"""The inputs of "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020).

Accelerators and CPUs, each node with a time on either; every output goes by the CPUs'
memory. An accelerator's load is its nodes' times, what it takes (each output of another
device it reads, once) and what it sends (each output another device reads, once); a
CPU's load is its nodes' times. The largest load is minimised. Nodes of a colour class
share a device, an accelerator holds nodes of at most ``maxSizePerFPGA`` bytes, and splits
are contiguous: the devices can be put in an order in which none reads from a later one.

:func:`as_ours` makes of an input a graph whose ops have measured seconds, a ``host_star`` without
overlap, whose CPU does not pay for transfers and whose dataflow is acyclic, and constraints. Times of
the files are milliseconds. A transfer of so many milliseconds is a tensor of as many gigabytes: links
carry a terabyte a second, so sizes are whole bytes up to a picosecond.

:func:`optimum` is the published dynamic program over down-sets (sets that hold with a node all
that it reads): a device holds the difference of two. Only inference is read.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import networkx as nx

from go_opt.env import Target, parse_target
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.solver import ChipLimit, Colocate
from go_opt.solver.problem.user_constraints import UserConstraint

ACCELERATOR: Final = "accelerator"
CPU: Final = "cpu"
_BYTES_PER_MS: Final = 1e9
_TARGET: Final = """
name = "published"
native_dtype = "float32"
overlap = false
constraints = {acyclic = true, no_skip = "off", triangle = "off"}
topology = {kind = "host_star", rate_bytes_per_s = 1e12, latency_s = 0.0}
host = {in_bytes_per_s = 1e12, out_bytes_per_s = 1e12}
"""
# Memory has no bound but a limit of weights: activations count for nothing in these inputs.
_KIND: Final = """
[[kinds]]
name = "{name}"
count = {count}
pays_transfers = {pays}
sram_bytes = 1_000_000_000_000_000_000
sram_bytes_per_s = 1e12
kernel_overhead_s = 0.0
matrix_flops_per_s = {{default = 1e12}}
vector_flops_per_s = {{default = 1e12}}
"""


class Input(NamedTuple):
    """One input, as published; nodes are numbered as in the file."""

    name: str
    nodes: list[dict[str, Any]]
    sent_ms: dict[int, float]  # by node with readers: to send its output
    readers: dict[int, set[int]]  # by node
    classes: list[list[int]]  # nodes that must share a device
    accelerators: int
    cpus: int
    most_bytes: float  # that an accelerator may hold

    @property
    def names(self) -> list[str]:
        return [node.get("name", f"node{node['id']}") for node in self.nodes]


def load_input(path: Path) -> Input:
    """The problem in a file of the published form."""
    data = json.loads(path.read_text("utf-8"))
    number = {node["id"]: i for i, node in enumerate(data["nodes"])}
    assert not any(node["isBackwardNode"] for node in data["nodes"])
    sent_ms: dict[int, float] = {}
    readers: dict[int, set[int]] = {i: set() for i in number.values()}
    for edge in data["edges"]:
        source = number[edge["sourceId"]]
        assert abs(sent_ms.setdefault(source, edge["cost"]) - edge["cost"]) < 1e-6
        readers[source].add(number[edge["destId"]])
    classes: dict[int, list[int]] = {}
    for i, node in enumerate(data["nodes"]):
        if "colorClass" in node:
            classes.setdefault(node["colorClass"], []).append(i)
    return Input(
        path.stem, data["nodes"], sent_ms, readers, [nodes for nodes in classes.values() if len(nodes) > 1],
        data["maxFPGAs"], data["maxCPUs"], data["maxSizePerFPGA"],
    )  # fmt: skip


def as_ours(given: Input) -> tuple[Graph, Target, tuple[UserConstraint, ...]]:
    """Graph, target and constraints; chips are the accelerators, then the CPUs."""
    builder = GraphBuilder(given.name)
    names = given.names
    for i, (name, node) in enumerate(zip(names, given.nodes, strict=True)):
        reads: list[tuple[str, int | None]] = [
            (f"{names[source]}/output", None) for source, readers in given.readers.items() if i in readers
        ]
        if size := math.ceil(node.get("size", 0)):
            builder.add_tensor(f"{name}/memory", size, "int8", "weight")
            reads.append((f"{name}/memory", None))
        writes = []
        if i in given.sent_ms:
            writes = [(f"{name}/output", round(given.sent_ms[i] * _BYTES_PER_MS), "int8")]
        builder.add_op(
            name, "Measured", "vector", flops=0, dtype="int8", reads=reads, writes=writes,
            measured_s={CPU: node["cpuLatency"] * 1e-3, ACCELERATOR: node["fpgaLatency"] * 1e-3},
            excluded_kinds=() if node["supportedOnFpga"] else (ACCELERATOR,),
        )  # fmt: skip
    counts = ((ACCELERATOR, given.accelerators, "true"), (CPU, given.cpus, "false"))
    kinds = [_KIND.format(name=kind, count=count, pays=pays) for kind, count, pays in counts if count]
    limits = [ChipLimit(chip, at_most_bytes=given.most_bytes) for chip in range(given.accelerators)]
    colocated = [Colocate([names[i] for i in nodes]) for nodes in given.classes]
    return builder.build(), parse_target(_TARGET + "".join(kinds), "published"), (*colocated, *limits)


class Optimum(NamedTuple):
    """The least largest load over all contiguous splits, and one that has it."""

    load_ms: float
    device: dict[str, int]  # by node
    down_sets: int


def optimum(given: Input) -> Optimum:
    """By the program over all down-sets, below what it finds along one topological order."""
    units = _Units(given)
    along = _cheapest(units, units.prefixes(), math.inf)
    down_sets = units.down_sets()
    best = _cheapest(units, down_sets, along[0]) if along else _cheapest(units, down_sets, math.inf)
    load_ms, split = best or along or (math.inf, [])
    next_of_kind = {True: itertools.count(), False: itertools.count(given.accelerators)}
    device: dict[str, int] = {}
    for units_of_device, is_accelerator in split:
        at = next(next_of_kind[is_accelerator])
        for unit in _members(units_of_device):
            for node in units.nodes[unit]:
                device[given.names[node]] = at
    return Optimum(load_ms, device, len(down_sets))


Covers = dict[int, list[int]]  # units that may be added to a down-set, by size; bit u stands for unit u
Split = list[tuple[int, bool]]  # units of a device, whether it is an accelerator


class _Units:
    """Nodes that must share a device, and what lies between them, are one unit."""

    def __init__(self, given: Input) -> None:
        self.counts = {True: given.accelerators, False: given.cpus}
        self.most_bytes = given.most_bytes
        edges = nx.DiGraph()
        edges.add_nodes_from(range(len(given.nodes)))
        edges.add_edges_from((i, reader) for i, readers in given.readers.items() for reader in readers)
        for nodes in given.classes:
            nx.add_cycle(edges, nodes)  # contiguous: what is on a way from one to another joins them
        acyclic = nx.condensation(edges)
        order = list(nx.lexicographical_topological_sort(acyclic))
        number = {component: unit for unit, component in enumerate(order)}
        unit_of = {node: number[acyclic.graph["mapping"][node]] for node in edges}
        self.nodes = [sorted(acyclic.nodes[component]["members"]) for component in order]
        of_units = [[given.nodes[i] for i in nodes] for nodes in self.nodes]
        self.cpu_ms = [sum(node["cpuLatency"] for node in nodes) for nodes in of_units]
        self.accelerator_ms = [
            sum(node["fpgaLatency"] if node["supportedOnFpga"] else math.inf for node in nodes)
            for nodes in of_units
        ]
        self.size_bytes = [sum(node.get("size", 0) for node in nodes) for nodes in of_units]
        self.reads: list[list[tuple[int, int, float]]] = [[] for _ in order]  # maker's bit, readers, ms
        self.sends_ms = [0.0] * len(order)
        self.needs = [0] * len(order)  # the units that each reads from
        for i, readers in given.readers.items():
            home = unit_of[i]
            others = {unit_of[reader] for reader in readers} - {home}
            mask = sum(1 << unit for unit in others)
            self.sends_ms[home] += given.sent_ms[i] if others else 0.0
            for unit in others:
                self.needs[unit] |= 1 << home
                self.reads[unit].append((1 << home, mask, given.sent_ms[i]))

    def prefixes(self) -> Covers:
        """Of the topological order."""
        return {(1 << unit) - 1: [unit] for unit in range(len(self.nodes))} | {(1 << len(self.nodes)) - 1: []}

    def down_sets(self) -> Covers:
        covers: Covers = {}
        reached = {0: None}  # in order of size
        while reached:
            layer, reached = reached, {}
            for here in layer:
                covers[here] = [
                    unit
                    for unit, needs in enumerate(self.needs)
                    if not here >> unit & 1 and needs & ~here == 0
                ]
                reached |= {here | 1 << unit: None for unit in covers[here]}
        return covers


class _Load(NamedTuple):
    """Of a device, in ms; what it computes, takes and stores grows with its units."""

    accelerator_ms: float = 0.0
    cpu_ms: float = 0.0
    taken_ms: float = 0.0
    sent_ms: float = 0.0
    size_bytes: float = 0.0

    def with_unit(self, units: _Units, start: int, here: int, unit: int) -> _Load:
        """Of a device with the units between two down-sets, and one more."""
        grown, taken_ms, sent_ms = here | 1 << unit, self.taken_ms, self.sent_ms + units.sends_ms[unit]
        for home, readers, ms in units.reads[unit]:
            if home & ~start:
                sent_ms -= ms if readers & ~grown == 0 else 0.0
            elif readers & here & ~start == 0:
                taken_ms += ms
        return _Load(
            self.accelerator_ms + units.accelerator_ms[unit],
            self.cpu_ms + units.cpu_ms[unit],
            taken_ms,
            sent_ms,
            self.size_bytes + units.size_bytes[unit],
        )


def _cheapest(units: _Units, covers: Covers, below_ms: float) -> tuple[float, Split] | None:
    """The cheapest chain of down-sets below ``below_ms``: its load and its devices in order."""
    # By down-set, then by accelerators and CPUs used: the load so far, and where it came from.
    least: dict[int, dict[tuple[int, int], tuple[float, int, bool]]] = {here: {} for here in covers}
    least[0][0, 0] = (0.0, 0, True)
    for start in covers:
        if not least[start]:
            continue
        for grown, load in _devices_from(units, covers, start, below_ms):
            for is_accelerator, load_ms in (
                (True, load.accelerator_ms + load.taken_ms + load.sent_ms),
                (False, load.cpu_ms),
            ):
                if load_ms >= below_ms or (is_accelerator and load.size_bytes > units.most_bytes):
                    continue
                for (accelerators, cpus), (so_far_ms, _, _) in least[start].items():
                    used = (accelerators + is_accelerator, cpus + (not is_accelerator))
                    if used[0] > units.counts[True] or used[1] > units.counts[False]:
                        continue
                    reached_ms = max(so_far_ms, load_ms)
                    if reached_ms < least[grown].get(used, (math.inf,))[0]:
                        least[grown][used] = (reached_ms, start, is_accelerator)
    here = (1 << len(units.nodes)) - 1
    if not least[here]:
        return None
    used = min(least[here], key=lambda used: least[here][used][0])
    objective_ms, split = least[here][used][0], []
    while here:
        _, before, is_accelerator = least[here][used]
        split.append((here & ~before, is_accelerator))
        here, used = before, (used[0] - is_accelerator, used[1] - (not is_accelerator))
    return objective_ms, split[::-1]


def _devices_from(units: _Units, covers: Covers, start: int, below_ms: float) -> Iterator[tuple[int, _Load]]:
    """The down-sets that one device behind ``start`` may end at, and its load."""
    stack, seen = [(start, _Load())], {start}
    while stack:
        here, load = stack.pop()
        for unit in covers[here]:
            grown = here | 1 << unit
            if grown in seen:
                continue
            seen.add(grown)
            more = load.with_unit(units, start, here, unit)
            is_within = more.accelerator_ms + more.taken_ms < below_ms and more.size_bytes <= units.most_bytes
            if is_within or more.cpu_ms < below_ms:
                yield grown, more
                stack.append((grown, more))


def _members(mask: int) -> list[int]:
    return [unit for unit in range(mask.bit_length()) if mask >> unit & 1]
