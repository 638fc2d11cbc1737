"""networkx graphs: importer, exporter and the node-link JSON form; graphs as arguments and as JSON files.

All attributes are optional; defaults are in brackets.

- Graph: ``name`` ("graph"), ``precision`` ("native", or "as-is"), ``dims`` (dimension -> size),
  ``tensor_order`` (tensor names), ``unknown_ops`` (rows of ``name``, ``op_type`` and ``flops``),
  ``states`` (rows of ``read``, an input or weight; ``next``, its value in the next step; ``scope``).
- Node: ``op_type``, an ONNX name if there is one ("Unknown"); ``op_class``, "matrix", "vector" or
  "data_movement" (by ``op_type``); ``flops`` (0); ``dtype`` of the op, its outputs and weights ("float32");
  ``measured_s``, chip kind -> seconds; ``excluded_kinds``; ``rule``, its sharding rule, as
  :mod:`go_opt.model.codecs.graph_json` writes it (none: the op is never split).
- Outputs of a node: ``outputs``, tensor -> elements, or the elements of one tensor (one tensor of 0);
  ``output_dtypes``, tensor -> dtype; ``graph_outputs``, those the host reads (all of a sink, else none).
- ``weight_elements``, size of one weight ``<node>.weight``; ``weights``, ``inputs``, tensor -> ``{elements,
  dtype, touched}``. Edge: ``tensors`` of the source (all), ``touched``, tensor -> elements read (all).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from go_opt.common.files import read_json
from go_opt.errors import GraphError, ModelError
from go_opt.model.codecs.fields import Fields, as_integer, shown
from go_opt.model.codecs.graph_json import FORMAT, graph_from_dict, graph_to_dict
from go_opt.model.graph import ACTIVATION, INPUT, TENSOR_KINDS, WEIGHT, Graph, Precision
from go_opt.model.op_costs import class_of_type, is_known_type

if TYPE_CHECKING:
    import networkx as nx

# Node attribute that lists the tensors of each kind no op produces.
_SOURCE_ATTRIBUTES: Final = {"weights": TENSOR_KINDS[WEIGHT], "inputs": TENSOR_KINDS[INPUT]}
# What a graph, and an op, have as in the JSON form.
_OF_GRAPH: Final = ("precision", "dims", "values", "trips", "bound_states", "states", "unpaired_states")
_OF_OP: Final = ("measured_s", "excluded_kinds", "rule")

_Row = dict[str, Any]  # of the JSON form


def from_networkx(g: nx.DiGraph, *, name: str | None = None, precision: Precision | None = None) -> Graph:
    """A graph from a networkx DiGraph whose nodes are ops and whose edges carry tensors.

    A node needs no attribute; those missing take the documented defaults. ``name``
    and ``precision`` override the attributes of the graph.

    Raises:
      GraphError: one sentence that names the op at fault.
    """
    import networkx as nx

    if not isinstance(g, nx.Graph):
        raise GraphError(f"from_networkx needs an nx.DiGraph, not {shown(g)}.")
    if not g.is_directed() or g.is_multigraph():
        raise GraphError(
            f"from_networkx needs an nx.DiGraph with one edge per pair of ops, not {type(g).__name__}."
        )
    said = {"name": name, "precision": precision}
    attributes = g.graph | {key: value for key, value in said.items() if value is not None}
    return _graph(attributes, g.nodes(data=True), g.edges(data=True))


def from_node_link(data: Any) -> Graph:
    """A graph from networkx's node-link JSON (``nodes`` and ``links`` or ``edges``)."""
    if not isinstance(data, Mapping):
        raise GraphError(f"a node-link graph must be a JSON object, not {shown(data)}.")
    fields = Fields("the node-link graph", data)
    if fields.flag("multigraph", False) or not fields.flag("directed", True):
        raise GraphError("the node-link graph must be directed and no multigraph.", field="directed")
    attributes = fields.table("graph", {}).values
    nodes = [(_end(row, "id", f"node number {i}"), row) for i, row in enumerate(fields.objects("nodes"))]
    names, edges = Counter(name for name, _ in nodes), dict[tuple[str, str], Mapping[Any, Any]]()
    for name, number in names.items():
        if number > 1:
            raise GraphError(f"op {name!r} is defined twice.")
    for i, row in enumerate(fields.objects("edges" if "edges" in data else "links")):
        where = f"edge number {i}"
        ends = _end(row, "source", where), _end(row, "target", where)
        for end in ends:
            if end not in names:
                raise GraphError(f"{where} names op {end!r}, which is not a node.")
        if ends in edges:
            raise GraphError(f"the edge from op {ends[0]!r} to op {ends[1]!r} is defined twice.")
        edges[ends] = row
    return _graph(attributes, nodes, [(*ends, row) for ends, row in edges.items()])


class _Node(NamedTuple):
    """A node in the rows of the JSON form."""

    op: _Row
    outputs: dict[str, _Row]  # by name of a tensor
    sources: list[_Row]  # weights and inputs that it reads


def _graph(
    attributes: Mapping[str, Any],
    given: Iterable[tuple[Any, Mapping[Any, Any]]],
    edges: Iterable[tuple[Any, Any, Mapping[Any, Any]]],
) -> Graph:
    """The graph, by way of its JSON form.

    Args:
      given: key and attributes of each node.
      edges: keys of source and reader, and attributes.
    """
    fields, nodes, names = Fields("the graph", attributes), dict[Any, _Node](), set[str]()
    written = set[str]()
    rows = list(given)
    if not rows:
        raise GraphError("the networkx graph has no nodes.")
    links = list(edges)
    read_ones = {source for source, _, _ in links}
    for key, row in rows:
        if str(key) in names:
            raise GraphError(f"op {str(key)!r} is defined twice: two nodes have this name as text.")
        names.add(str(key))
        nodes[key] = _node(str(key), row, is_sink=key not in read_ones)
    tensors = _sources(nodes.values())
    for row in (row for node in nodes.values() for row in node.outputs.values()):
        if row["name"] in written:
            raise GraphError(f"tensor {row['name']!r} is defined twice.")
        written.add(row["name"])
        tensors.append(row)
    for source, reader, row in links:
        nodes[reader].op["reads"] += _carried(nodes[source], nodes[reader], row)
    rank = {tensor: i for i, tensor in enumerate(fields.texts("tensor_order", []))}
    # The ops without a cost whose types no rule has: they cost no FLOPs.
    unknown = [
        {"name": node.op["name"], "op_type": node.op["op_type"], "flops": 0.0}
        for (_, row), node in zip(rows, nodes.values(), strict=True)
        if not {"flops", "measured_s"} & row.keys() and not is_known_type(node.op["op_type"])
    ]
    return graph_from_dict(
        {key: attributes[key] for key in _OF_GRAPH if key in attributes}
        | {
            "format": FORMAT,
            "name": fields.text("name", "graph"),
            "ops": [node.op for node in nodes.values()],
            "tensors": sorted(tensors, key=lambda row: rank.get(row["name"], len(rank))),
            "unknown_ops": [*fields.objects("unknown_ops", []), *unknown],
        }
    )


def _node(name: str, attributes: Mapping[Any, Any], *, is_sink: bool) -> _Node:
    fields = Fields(f"op {name!r}", attributes)
    Fields("a node", {"name": name}).text("name")
    op_type, dtype = fields.text("op_type", "Unknown"), fields.dtype("dtype", "float32")
    outputs = _outputs(fields, name, dtype)
    # The host reads those that the node says, else all of a sink.
    for tensor in fields.texts("graph_outputs", list(outputs) if is_sink else []):
        if tensor not in outputs:
            raise GraphError(f"{fields.where}: 'graph_outputs' names {tensor!r}, which it does not produce.")
        outputs[tensor]["is_output"] = True
    sources = list[_Row]()
    if "weight_elements" in attributes:
        row = {"name": f"{name}.weight", "elements": fields.integer("weight_elements"), "dtype": dtype}
        sources.append({**row, "kind": TENSOR_KINDS[WEIGHT]})
    reads = [{"tensor": row["name"]} for row in sources]
    for attribute, kind in _SOURCE_ATTRIBUTES.items():
        table = fields.table(attribute, {})
        for tensor in table.values:
            given = table.table(tensor)
            elements, kept = given.integer("elements"), given.dtype("dtype", dtype)
            sources.append({"name": tensor, "elements": elements, "dtype": kept, "kind": kind})
            touched = {"elements": given.integer("touched")} if "touched" in given.values else {}
            reads.append({"tensor": tensor, **touched})
    op = {
        "name": name,
        "op_type": op_type,
        "op_class": fields.text("op_class", class_of_type(op_type)),
        "flops": fields.number("flops", 0.0),
        "dtype": dtype,
        "reads": reads,
        **{key: attributes[key] for key in _OF_OP if key in attributes},
    }
    return _Node(op, outputs, sources)


def _outputs(fields: Fields, name: str, dtype: str) -> dict[str, _Row]:
    given = fields.values.get("outputs", 0)
    if isinstance(given, Mapping):
        sizes = fields.integers("outputs")
    else:
        sizes = {name: as_integer(given, f"{fields.where}: 'outputs'")}
    dtypes = fields.table("output_dtypes", {})
    made = {"kind": TENSOR_KINDS[ACTIVATION], "producer": name}
    return {
        tensor: {"name": tensor, "elements": elements, "dtype": dtypes.dtype(tensor, dtype), **made}
        for tensor, elements in sizes.items()
    }


def _sources(nodes: Iterable[_Node]) -> list[_Row]:
    """Each weight and input once; nodes that share one must agree on what it is."""
    known: dict[str, tuple[_Row, str]] = {}
    for node in nodes:
        for row in node.sources:
            first, first_op = known.setdefault(row["name"], (row, node.op["name"]))
            if first != row:
                raise GraphError(
                    f"ops {first_op!r} and {node.op['name']!r} disagree on what tensor {row['name']!r} is."
                )
    return [row for row, _ in known.values()]


def _carried(source: _Node, reader: _Node, attributes: Mapping[Any, Any]) -> list[_Row]:
    """The tensors an edge carries, with the elements its reader touches."""
    name = source.op["name"]
    fields = Fields(f"the edge from op {name!r} to op {reader.op['name']!r}", attributes)
    tensors = fields.texts("tensors", list(source.outputs))
    touched = fields.integers("touched", {})
    if not tensors:
        raise GraphError(f"{fields.where} carries no tensor.", field="tensors")
    for tensor in [*tensors, *touched]:
        if tensor not in source.outputs:
            raise GraphError(f"{fields.where} carries tensor {tensor!r}, which {name!r} does not produce.")
    return [
        {"tensor": tensor, **({"elements": touched[tensor]} if tensor in touched else {})}
        for tensor in dict.fromkeys(tensors)
    ]


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

    data = graph_to_dict(graph)
    tensors = {row["name"]: row for row in data["tensors"]}
    kept = {key: data[key] for key in ("name", "unknown_ops", *_OF_GRAPH) if key in data}
    g = nx.DiGraph(**kept, tensor_order=list(tensors))
    for op in data["ops"]:
        attributes = {key: op[key] for key in op if key not in ("name", "reads") and op[key] not in ({}, [])}
        g.add_node(op["name"], **attributes, outputs={}, output_dtypes={}, graph_outputs=[])
    for name, row in tensors.items():
        if row["producer"] is not None:
            node = g.nodes[row["producer"]]
            node["outputs"][name], node["output_dtypes"][name] = row["elements"], row["dtype"]
            node["graph_outputs"] += [name] if row["is_output"] else []
    for op in data["ops"]:
        for read in op["reads"]:
            row, reader = tensors[read["tensor"]], op["name"]
            if row["producer"] is not None:
                if not g.has_edge(row["producer"], reader):
                    g.add_edge(row["producer"], reader, tensors=[], touched={})
                edge = g.edges[row["producer"], reader]
                edge["tensors"].append(row["name"])
                edge["touched"][row["name"]] = read["elements"]
            else:
                attribute = "weights" if row["kind"] == TENSOR_KINDS[WEIGHT] else "inputs"
                source = {"elements": row["elements"], "dtype": row["dtype"], "touched": read["elements"]}
                g.nodes[reader].setdefault(attribute, {})[row["name"]] = source
    return g


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
