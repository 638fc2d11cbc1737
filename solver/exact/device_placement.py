"""Inputs of "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020).

Accelerators and CPUs, each node with a time on either; every output goes by the CPUs'
memory. An accelerator's load is its nodes' times, what it takes (each output of another
device it reads, once) and what it sends (each output another device reads, once); a
CPU's load is its nodes' times. The largest load is minimised. Nodes of a colour class
share a device, an accelerator holds nodes of at most ``maxSizePerFPGA`` bytes, and splits
are contiguous: the devices can be put in an order in which none reads from a later one.

Here: a graph whose ops have measured seconds, a ``host_star`` without overlap, whose CPU does
not pay for transfers and whose dataflow is acyclic, and constraints. Times of the files
are milliseconds. A transfer of so many milliseconds is a tensor of as many gigabytes: links
carry a terabyte a second, so sizes are whole bytes up to a picosecond.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from go_opt.common.files import read_json
from go_opt.env import Target, parse_target
from go_opt.errors import ModelError
from go_opt.model.builder import GraphBuilder
from go_opt.model.codecs.fields import Fields, shown
from go_opt.model.graph import Graph
from go_opt.solver.problem.user_constraints import ChipLimit, Colocate, UserConstraint

ACCELERATOR: Final = "accelerator"
CPU: Final = "cpu"
MS: Final = 1e-3
LINK_BYTES_PER_S: Final = 1e12
_TARGET: Final = """
name = "{name}"
native_dtype = "float32"
overlap = false
constraints = {{acyclic = true, no_skip = "off", triangle = "off"}}
topology = {{kind = "host_star", rate_bytes_per_s = 1e12, latency_s = 0.0}}
host = {{in_bytes_per_s = 1e12, out_bytes_per_s = 1e12}}
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


class DevicePlacement(NamedTuple):
    """One input: what to place, on what, and under which constraints."""

    graph: Graph
    target: Target
    constraints: tuple[UserConstraint, ...]


def load_device_placement(path: str | Path) -> DevicePlacement:
    """The problem in a file of the published form, inference only.

    Chips are the accelerators, then the CPUs.

    Raises:
      ModelError, GraphError: the file is missing or malformed, or holds backward nodes.
    """
    data = read_json(path, "device placement file", ModelError)
    if not isinstance(data, Mapping):
        raise ModelError(f"device placement file {str(path)!r} must hold a JSON object, not {shown(data)}.")
    fields = Fields("the file", data)
    nodes = [Fields(f"node number {i}", node) for i, node in enumerate(fields.objects("nodes"))]
    accelerators, cpus = fields.integer("maxFPGAs"), fields.integer("maxCPUs")
    graph = _graph(Path(str(path)).stem, nodes, fields.objects("edges"))
    most_bytes = fields.number("maxSizePerFPGA")
    limits = [ChipLimit(chip, at_most_bytes=most_bytes) for chip in range(accelerators)]
    return DevicePlacement(graph, _target(accelerators, cpus), (*_colour_classes(nodes), *limits))


def _graph(name: str, nodes: list[Fields], edges: list[Mapping[Any, Any]]) -> Graph:
    names = {node.integer("id"): _name(node) for node in nodes}
    if len(names) < len(nodes):
        raise ModelError("two nodes have the same id.", field="nodes")
    sent_ms, reads = _transfers([Fields(f"edge number {i}", edge) for i, edge in enumerate(edges)], names)
    builder = GraphBuilder(name)
    for node in nodes:
        if _flag(node, "isBackwardNode"):
            raise ModelError(f"node {_name(node)!r} is a backward node: only inference is read.")
        key, op = node.integer("id"), _name(node)
        read: list[tuple[str, int | None]] = [(_output(names[source]), None) for source in reads[key]]
        size = int(-(-node.number("size", 0.0) // 1))
        if size:
            builder.add_tensor(f"{op}/memory", size, "int8", "weight")
            read.append((f"{op}/memory", None))
        written = (
            [(_output(op), round(sent_ms[key] * MS * LINK_BYTES_PER_S), "int8")] if key in sent_ms else []
        )
        on_accelerator = _flag(node, "supportedOnFpga")
        builder.add_op(
            op,
            "Measured",
            "vector",
            flops=0,
            dtype="int8",
            reads=read,
            writes=written,
            measured_s={CPU: node.number("cpuLatency") * MS, ACCELERATOR: node.number("fpgaLatency") * MS},
            excluded_kinds=() if on_accelerator else (ACCELERATOR,),
        )
    return builder.build()


def _transfers(
    edges: list[Fields], names: Mapping[int, str]
) -> tuple[dict[int, float], dict[int, list[int]]]:
    """Milliseconds to send each node's output, and the nodes that each node reads."""
    sent_ms: dict[int, float] = {}
    reads: dict[int, list[int]] = {key: [] for key in names}
    for edge in edges:
        source, reader, cost = edge.integer("sourceId"), edge.integer("destId"), edge.number("cost")
        for key in (source, reader):
            if key not in names:
                raise ModelError(f"{edge.where}: there is no node {key}.", field="edges")
        if abs(sent_ms.setdefault(source, cost) - cost) > 1e-6:
            raise ModelError(
                f"{edge.where}: node {names[source]!r} has edges of several costs.", field="cost"
            )
        reads[reader].append(source)
    return sent_ms, reads


def _colour_classes(nodes: list[Fields]) -> list[Colocate]:
    classes: dict[int, list[str]] = {}
    for node in nodes:
        if "colorClass" in node.values:
            classes.setdefault(node.integer("colorClass"), []).append(_name(node))
    return [Colocate(names) for names in classes.values() if len(names) > 1]


def _target(accelerators: int, cpus: int) -> Target:
    name = f"{accelerators} accelerators and {cpus} CPUs"
    counts = ((ACCELERATOR, accelerators, "true"), (CPU, cpus, "false"))
    kinds = [_KIND.format(name=kind, count=count, pays=pays) for kind, count, pays in counts if count]
    return parse_target(_TARGET.format(name=name) + "".join(kinds), name)


def _name(node: Fields) -> str:
    return node.text("name", f"node{node.integer('id')}")


def _output(op: str) -> str:
    return f"{op}/output"


def _flag(node: Fields, key: str) -> bool:
    value = node.values.get(key)
    if value not in (0, 1):
        raise ModelError(f"{node.where}: {key!r} must be true, false, 0 or 1, not {shown(value)}.", field=key)
    return bool(value)
