"""Graphs as networkx graphs, with the attributes that :mod:`go_opt.frontends.networkx_frontend` reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from go_opt.model.codecs.bindings import bindings_to_dict
from go_opt.model.codecs.graph_json import excluded_of, measured_of, state_fields, unknown_rows
from go_opt.model.codecs.rules import rule_row
from go_opt.model.dtypes import DTYPES
from go_opt.model.graph import OP_CLASSES, WEIGHT, Graph

if TYPE_CHECKING:
    import networkx as nx


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
