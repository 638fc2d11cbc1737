"""networkx graphs: importer, exporter and the node-link JSON form; graphs as arguments and as JSON files.

All attributes are optional; defaults are in brackets.

- Graph: ``name`` ("graph"), ``precision`` ("native", or "as-is"), ``dims`` (dimension -> size),
  ``tensor_order`` (tensor names), ``unknown_ops`` (rows of ``name``, ``op_type`` and ``flops``),
  ``states`` (rows of ``read``, an input or weight; ``next``, its value in the next step; ``scope``).
- Node: ``op_type``, an ONNX name if there is one ("Unknown"); ``op_class``, "matrix", "vector" or
  "data_movement" (by ``op_type``); ``flops`` (0); ``dtype`` of the op, its outputs and weights ("float32");
  ``measured_s``, chip kind -> seconds; ``excluded_kinds``; ``rule``, its sharding rule, as
  :mod:`go_opt.model.codecs.rules` writes it (none: the op is never split).
- Outputs of a node: ``outputs``, tensor -> elements, or the elements of one tensor (one tensor of 0);
  ``output_dtypes``, tensor -> dtype; ``graph_outputs``, those the host reads (all of a sink, else none).
- ``weight_elements``, size of one weight ``<node>.weight``; ``weights``, ``inputs``, tensor -> ``{elements,
  dtype, touched}``. Edge: ``tensors`` of the source (all), ``touched``, tensor -> elements read (all).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from go_opt.common.files import read_json
from go_opt.errors import GraphError, ModelError
from go_opt.model.builder import GraphBuilder
from go_opt.model.codecs.bindings import bindings_from, bindings_to_dict
from go_opt.model.codecs.fields import Fields, as_integer, shown
from go_opt.model.codecs.graph_columns import with_tensor_order
from go_opt.model.codecs.graph_json import (
    add_states,
    excluded_of,
    graph_from_dict,
    measured_of,
    read_precision,
    state_fields,
    unknown_of,
    unknown_rows,
)
from go_opt.model.codecs.rules import rule_row, with_rules
from go_opt.model.dtypes import DTYPES
from go_opt.model.graph import INPUT, OP_CLASSES, TENSOR_KINDS, WEIGHT, Graph, Precision, UnknownOp
from go_opt.model.op_costs import class_of_type, is_known_type

if TYPE_CHECKING:
    import networkx as nx

# Node attribute that lists the tensors of each kind no op produces.
_SOURCE_ATTRIBUTES = {"weights": TENSOR_KINDS[WEIGHT], "inputs": TENSOR_KINDS[INPUT]}


def from_networkx(g: nx.DiGraph, *, name: str | None = None, precision: Precision | None = None) -> Graph:
    """A graph from a networkx DiGraph whose nodes are ops and whose edges carry tensors.

    A node needs no attribute; those missing take the documented defaults. ``name``
    and ``precision`` override the attributes of the graph.

    Raises:
      GraphError: one sentence that names the op at fault.
    """
    _check_kind(g)
    fields = Fields("the graph", g.graph)
    nodes = _nodes(g)
    builder = GraphBuilder(
        name if name is not None else fields.text("name", "graph"),
        precision=precision if precision is not None else read_precision(fields),
        bindings=bindings_from(fields.values, "the graph", GraphError),
    )
    _add_sources(builder, nodes)
    for key, node in nodes.items():
        _add_node(
            builder,
            node,
            [_edge(nodes[source], node, data) for source, _, data in g.in_edges(key, data=True)],
        )
        for tensor in _graph_outputs(node, is_sink=g.out_degree(key) == 0):
            builder.mark_output(tensor)
    add_states(builder, fields)
    graph = with_tensor_order(builder.build(), fields.texts("tensor_order", []))
    unknown = (*unknown_of(fields), *_unknown(nodes.values()))
    graph = with_rules(graph, {node.name: node.fields for node in nodes.values()})
    return replace(graph, unknown_ops=unknown, unpaired_states=tuple(fields.texts("unpaired_states", [])))


def from_node_link(data: Any) -> Graph:
    """A graph from networkx's node-link JSON (``nodes`` and ``links`` or ``edges``)."""
    import networkx as nx

    if not isinstance(data, Mapping):
        raise GraphError(f"a node-link graph must be a JSON object, not {shown(data)}.")
    fields = Fields("the node-link graph", data)
    if fields.flag("multigraph", False) or not fields.flag("directed", True):
        raise GraphError("the node-link graph must be directed and no multigraph.", field="directed")
    g = nx.DiGraph()
    g.graph.update(fields.table("graph", {}).values)
    for i, row in enumerate(fields.objects("nodes")):
        key = _end(row, "id", f"node number {i}")
        if key in g:
            raise GraphError(f"op {key!r} is defined twice.")
        g.add_node(key)
        g.nodes[key].update(row)
    for i, row in enumerate(fields.objects("edges" if "edges" in data else "links")):
        where = f"edge number {i}"
        ends = _end(row, "source", where), _end(row, "target", where)
        for end in ends:
            if end not in g:
                raise GraphError(f"{where} names op {end!r}, which is not a node.")
        if g.has_edge(*ends):
            raise GraphError(f"the edge from op {ends[0]!r} to op {ends[1]!r} is defined twice.")
        g.add_edge(*ends)
        g.edges[ends].update(row)
    return from_networkx(g)


@dataclass(frozen=True)
class _Source:
    """A weight or input that a node reads."""

    name: str
    kind: str
    elements: int
    dtype: str
    touched: int | None  # None: all of it


@dataclass(frozen=True)
class _Node:
    name: str
    fields: Fields
    dtype: str
    outputs: Mapping[str, int]  # tensor -> elements
    output_dtypes: Mapping[str, str]
    sources: tuple[_Source, ...]


def _check_kind(g: Any) -> None:
    import networkx as nx

    if not isinstance(g, nx.Graph):
        raise GraphError(f"from_networkx needs an nx.DiGraph, not {shown(g)}.")
    if not g.is_directed() or g.is_multigraph():
        raise GraphError(
            f"from_networkx needs an nx.DiGraph with one edge per pair of ops, not {type(g).__name__}."
        )
    if not g:
        raise GraphError("the networkx graph has no nodes.")


def _nodes(g: nx.DiGraph) -> dict[Any, _Node]:
    nodes: dict[Any, _Node] = {}
    names: set[str] = set()
    for key, attributes in g.nodes(data=True):
        node = _node(str(key), attributes)
        if node.name in names:
            raise GraphError(f"op {node.name!r} is defined twice: two nodes have this name as text.")
        names.add(node.name)
        nodes[key] = node
    return nodes


def _node(name: str, attributes: Mapping[str, Any]) -> _Node:
    fields = Fields(f"op {name!r}", attributes)
    Fields("a node", {"name": name}).text("name")
    dtype = fields.dtype("dtype", "float32")
    outputs = _outputs(fields, name)
    dtypes = fields.table("output_dtypes", {})
    return _Node(
        name,
        fields,
        dtype,
        outputs,
        {tensor: dtypes.dtype(tensor, dtype) for tensor in outputs},
        tuple(_sources(fields, name, dtype)),
    )


def _outputs(fields: Fields, name: str) -> Mapping[str, int]:
    outputs = fields.values.get("outputs", 0)
    if isinstance(outputs, Mapping):
        return fields.integers("outputs")
    return {name: as_integer(outputs, f"{fields.where}: 'outputs'")}


def _sources(fields: Fields, name: str, dtype: str) -> Iterator[_Source]:
    if "weight_elements" in fields.values:
        elements = fields.integer("weight_elements")
        yield _Source(f"{name}.weight", TENSOR_KINDS[WEIGHT], elements, dtype, None)
    for attribute, kind in _SOURCE_ATTRIBUTES.items():
        table = fields.table(attribute, {})
        for tensor in table.values:
            row = table.table(tensor)
            touched = row.integer("touched") if "touched" in row.values else None
            yield _Source(tensor, kind, row.integer("elements"), row.dtype("dtype", dtype), touched)


def _add_sources(builder: GraphBuilder, nodes: Mapping[Any, _Node]) -> None:
    """Adds each weight and input once; nodes that share one must agree on what it is."""
    known: dict[str, tuple[_Source, str]] = {}
    for node in nodes.values():
        for source in node.sources:
            first, first_op = known.setdefault(source.name, (source, node.name))
            if first is source:
                builder.add_tensor(source.name, source.elements, source.dtype, source.kind)
            elif (first.kind, first.elements, first.dtype) != (source.kind, source.elements, source.dtype):
                raise GraphError(
                    f"ops {first_op!r} and {node.name!r} disagree on what tensor {source.name!r} is."
                )


def _add_node(builder: GraphBuilder, node: _Node, edges: list[dict[str, int | None]]) -> None:
    op_type = _op_type(node)
    reads = [(source.name, source.touched) for source in node.sources]
    builder.add_op(
        node.name,
        op_type,
        node.fields.text("op_class", class_of_type(op_type)),
        flops=node.fields.number("flops", 0.0),
        dtype=node.dtype,
        reads=[*reads, *(read for edge in edges for read in edge.items())],
        writes=[(tensor, elements, node.output_dtypes[tensor]) for tensor, elements in node.outputs.items()],
        measured_s=node.fields.numbers("measured_s", {}),
        excluded_kinds=node.fields.texts("excluded_kinds", []),
    )


def _unknown(nodes: Iterable[_Node]) -> Iterator[UnknownOp]:
    """The ops without a cost whose types no rule has: they cost no FLOPs."""
    for node in nodes:
        op_type, given = _op_type(node), {"flops", "measured_s"} & node.fields.values.keys()
        if not given and not is_known_type(op_type):
            yield UnknownOp(node.name, op_type, 0.0)


def _op_type(node: _Node) -> str:
    return node.fields.text("op_type", "Unknown")


def _edge(source: _Node, reader: _Node, attributes: Mapping[str, Any]) -> dict[str, int | None]:
    """The tensors an edge carries, with the elements its reader touches."""
    fields = Fields(f"the edge from op {source.name!r} to op {reader.name!r}", attributes)
    tensors = fields.texts("tensors", list(source.outputs))
    touched = fields.integers("touched", {})
    if not tensors:
        raise GraphError(f"{fields.where} carries no tensor.", field="tensors")
    for tensor in [*tensors, *touched]:
        if tensor not in source.outputs:
            raise GraphError(
                f"{fields.where} carries tensor {tensor!r}, which {source.name!r} does not produce."
            )
    return {tensor: touched.get(tensor) for tensor in tensors}


def _graph_outputs(node: _Node, *, is_sink: bool) -> list[str]:
    """The tensors the host reads: those the node says, else all of a sink."""
    if "graph_outputs" not in node.fields.values:
        return list(node.outputs) if is_sink else []
    tensors = node.fields.texts("graph_outputs")
    for tensor in tensors:
        if tensor not in node.outputs:
            raise GraphError(
                f"{node.fields.where}: 'graph_outputs' names {tensor!r}, which it does not produce."
            )
    return tensors


def _end(row: Mapping[Any, Any], key: str, where: str) -> str:
    """The name of a node in a node-link row; numbers count as names."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise GraphError(f"{where}: {key!r} must be a string or a number, not {shown(value)}.", field=key)
    return str(value)


def to_networkx(graph: Graph) -> nx.DiGraph:
    """A DiGraph that :func:`go_opt.from_networkx` turns back into the same graph, fingerprint included.

    Nodes are op names in op order with ``op_type``, ``op_class``, ``flops``, ``dtype``
    and ``outputs`` (tensor -> elements); an edge carries ``tensors``. All values are
    JSON types.
    """
    import networkx as nx

    g = nx.DiGraph(
        name=graph.name,
        precision=graph.precision,
        **bindings_to_dict(graph.bindings),
        tensor_order=list(graph.tensor_names),
        unknown_ops=unknown_rows(graph),
        **state_fields(graph),
    )
    g.add_nodes_from((graph.op_names[op], _node_attributes(graph, op)) for op in range(graph.num_ops))
    for read, tensor in enumerate(graph.reader_tensor):
        producer, reader = graph.tensor_producer[tensor], graph.op_names[graph.reader_op[read]]
        name, touched = graph.tensor_names[tensor], int(graph.reader_elements[read])
        if producer >= 0:
            source = graph.op_names[producer]
            if not g.has_edge(source, reader):
                g.add_edge(source, reader, tensors=[], touched={})
            g.edges[source, reader]["tensors"].append(name)
            g.edges[source, reader]["touched"][name] = touched
        else:
            attribute = "weights" if graph.tensor_kind[tensor] == WEIGHT else "inputs"
            g.nodes[reader].setdefault(attribute, {})[name] = {
                "elements": int(graph.tensor_elements[tensor]),
                "dtype": DTYPES[graph.tensor_dtype[tensor]],
                "touched": touched,
            }
    return g


def _node_attributes(graph: Graph, op: int) -> dict[str, Any]:
    ptr, tensors = graph.op_outputs
    produced = tensors[ptr[op] : ptr[op + 1]]
    names = [graph.tensor_names[k] for k in produced]
    attributes: dict[str, Any] = {
        "op_type": graph.op_types[op],
        "op_class": OP_CLASSES[graph.op_class[op]],
        "flops": float(graph.op_flops[op]),
        "dtype": DTYPES[graph.op_dtype[op]],
        "outputs": {name: int(graph.tensor_elements[k]) for name, k in zip(names, produced, strict=True)},
        "output_dtypes": {
            name: DTYPES[graph.tensor_dtype[k]] for name, k in zip(names, produced, strict=True)
        },
        "graph_outputs": [name for name, k in zip(names, produced, strict=True) if graph.tensor_is_output[k]],
    }
    optional = {"measured_s": measured_of(graph, op), "excluded_kinds": excluded_of(graph, op)}
    return attributes | {key: value for key, value in optional.items() if value} | rule_row(graph, op)


def as_graph(graph: Graph | nx.DiGraph) -> Graph:
    """``graph`` itself, or its import; networkx loads only where it is needed."""
    if isinstance(graph, Graph):
        return graph

    return from_networkx(graph)


def load_graph_json(path: str | Path, precision: Precision) -> Graph:
    """The graph in a ``.json`` file.

    Raises:
      ModelError, GraphError: the file is missing or malformed.
    """
    data = read_json(path, "graph file", ModelError)
    if isinstance(data, Mapping) and "nodes" in data and "format" not in data:
        graph = from_node_link(dict(data))
    else:
        graph = graph_from_dict(data)
    return replace(graph, precision=precision)
