"""The nodes of an ONNX graph in an order in which each can be walked, and the names of its ops."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

import onnx
from onnx import inliner

from go_opt.common.topological import topological_order
from go_opt.errors import GraphError, ModelError

NamedNode = tuple[str, onnx.NodeProto]
_MAX_INLINED_NODES: Final = 1_000_000
# A file may repeat its layers, but a kilobyte may not become a minute of work.
_INLINED_NODES: Final = 5_000
_INLINED_BY_NODE: Final = 100
_MAX_CALLS: Final = 100  # of local functions by each other


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its local functions replaced by their bodies."""
    if not model.functions:
        return model
    _check_size(model)
    try:
        return inliner.inline_local_functions(model)
    except Exception as error:
        # The extension raises types of its own, derived from Exception alone.
        raise ModelError(f"the model's local functions cannot be inlined: {error}") from error


def _check_size(model: onnx.ModelProto) -> None:
    """Reject functions that are recursive or too large when inlined: 40 may make 2**40 ops."""
    bodies = {(function.domain, function.name): function.node for function in model.functions}
    sizes: dict[tuple[str, str], int] = {}
    under_way: set[tuple[str, str]] = set()

    def size(nodes: Iterable[onnx.NodeProto]) -> int:
        total = 0
        for node in nodes:
            name = (node.domain, node.op_type)
            inner = (graph.node for attribute in node.attribute for graph in (attribute.g, *attribute.graphs))
            total += 1 + (size_of(name) if name in bodies else 0) + sum(map(size, inner))
        return total

    def size_of(name: tuple[str, str]) -> int:
        if name in under_way or len(under_way) > _MAX_CALLS:
            raise ModelError(f"local function {name[1]!r} calls itself, or is called {_MAX_CALLS} deep.")
        if name not in sizes:
            under_way.add(name)
            sizes[name] = size(bodies[name])
            under_way.remove(name)
        return sizes[name]

    written = len(model.graph.node) + sum(len(function.node) for function in model.functions)
    most = min(_MAX_INLINED_NODES, _INLINED_NODES + _INLINED_BY_NODE * written)
    if size(model.graph.node) > most:
        raise ModelError(f"the model's local functions make more than {most} nodes of {written}.")


def called_functions(model: onnx.ModelProto) -> list[str]:
    """Names of the nodes that :func:`inlined` replaces by the bodies of the model's functions."""
    functions = {(function.domain, function.name) for function in model.functions}
    return [name for name, node in _named(model.graph.node) if (node.domain, node.op_type) in functions]


def ordered_nodes(
    graph: onnx.GraphProto, outer: Collection[str], reads_of: Callable[[onnx.NodeProto], list[str]]
) -> list[NamedNode]:
    """Nodes with unique names in a topological order that keeps the file's wherever it is valid.

    Args:
      outer: names of enclosing graphs that this one may read.
      reads_of: :meth:`GraphReads.of_node`.
    """
    nodes = _named(graph.node)
    given = _given(graph)
    producer = _producers(nodes, given)
    reads = [reads_of(node) for _, node in nodes]
    for (name, _), names in zip(nodes, reads, strict=True):
        for read in names:
            if read not in producer and read not in given and read not in outer:
                raise GraphError(f"op {name!r} reads tensor {read!r}, which nothing defines.")
    successors: list[list[int]] = [[] for _ in nodes]
    for i, names in enumerate(reads):
        for source in {producer[read] for read in names if read in producer}:
            successors[source].append(i)
    return [nodes[i] for i in topological_order(successors, [name for name, _ in nodes])]


class GraphReads:
    """What nodes and bodies read, and names of graphs; each is walked once, however deep it lies.

    Args:
      checkpoint: called for each node.
    """

    def __init__(self, checkpoint: Callable[[], None]) -> None:
        self._checkpoint = checkpoint
        # By id, because messages have no hash; kept with the graph, so that no other has its id.
        self._free: dict[int, tuple[onnx.GraphProto, list[str]]] = {}
        self._names: dict[int, tuple[onnx.GraphProto, list[str]]] = {}

    def of_node(self, node: onnx.NodeProto) -> list[str]:
        """The names that a node reads: its inputs, and the outer names that its bodies read."""
        self._checkpoint()
        captured = [name for body in subgraphs(node) for name in self._of_body(body)]
        return [*filter(None, node.input), *captured]

    def names_in(self, graph: onnx.GraphProto) -> list[str]:
        """The names of a graph's nodes and tensors, without those of its bodies; sorted."""
        if id(graph) not in self._names:
            written = (output for node in graph.node for output in node.output if output)
            names = {*(name for name, _ in _named(graph.node)), *written, *_given(graph)}
            self._names[id(graph)] = graph, sorted(names)
        return self._names[id(graph)][1]

    def _of_body(self, graph: onnx.GraphProto) -> list[str]:
        if id(graph) not in self._free:
            defined = set(_given(graph)).union(*(node.output for node in graph.node))
            read = {name for node in graph.node for name in self.of_node(node)}
            free = sorted((read | {output.name for output in graph.output}) - defined)
            self._free[id(graph)] = graph, free
        return self._free[id(graph)][1]


def inputs_behind(name: str, graphs: Sequence[onnx.GraphProto]) -> list[str]:
    """The inputs of the first graph on which a tensor of the last, innermost graph depends."""
    producer = {output: node for graph in graphs for node in graph.node for output in node.output}
    found = {name}
    waiting = [name]
    while waiting:
        node = producer.get(waiting.pop())
        new = set(node.input) - found if node is not None else set()
        found |= new
        waiting += new
    weights = {tensor.name for tensor in graphs[0].initializer}
    return [info.name for info in graphs[0].input if info.name in found - weights]


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The bodies of a control-flow node."""
    return [attribute.g for attribute in node.attribute if attribute.HasField("g")]


def body_prefix(name: str, names: Sequence[str]) -> str:
    """What stands before all names in the bodies of a node; none of the node's own graph begins with it.

    Args:
      names: of the node's graph, sorted.
    """

    def begins_one(prefix: str) -> bool:
        return any(name.startswith(prefix) for name in names[bisect_left(names, prefix) :][:1])

    path, i = name, 0
    while (i and path in names) or begins_one(f"{path}/"):
        i += 1
        path = f"{name}_{i}"
    return f"{path}/"


def name_nodes(model: onnx.ModelProto) -> None:
    """Give each unnamed node the name of its op, also in bodies."""
    graphs = [model.graph]
    while graphs:
        for name, node in _named(graphs.pop().node):
            node.name = name
            graphs += subgraphs(node)


def _named(nodes: Iterable[onnx.NodeProto]) -> list[NamedNode]:
    """The nodes under unique names: an unnamed one has that of its op, and a second of a name a suffix."""
    own = {node.name for node in nodes}
    seen: set[str] = set()
    repeats: Counter[str] = Counter()
    named = []
    for node in nodes:
        name = base = node.name or f"{node.op_type}_{next(filter(None, node.output), '')}"
        while name in seen or (name in own and name != node.name):
            repeats[base] += 1
            name = f"{base}_{repeats[base]}"
        seen.add(name)
        named.append((name, node))
    return named


def _given(graph: onnx.GraphProto) -> set[str]:
    return {
        *(info.name for info in graph.input),
        *(tensor.name for tensor in graph.initializer),
        *(tensor.values.name for tensor in graph.sparse_initializer),
    }


def _producers(nodes: Sequence[NamedNode], given: Collection[str]) -> dict[str, int]:
    producer: dict[str, int] = {}
    for i, (name, node) in enumerate(nodes):
        for output in filter(None, node.output):
            if output in producer or output in given:
                raise GraphError(f"op {name!r} defines tensor {output!r}, which is defined already.")
            producer[output] = i
    return producer
