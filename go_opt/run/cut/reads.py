"""The tensors that each op reads from other ops, skipping nodes that are not ops."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import onnx_ir as ir


class Reads:
    """The nodes of a model with one node for each op.

    Views and constants are not ops, and are copied to each of their readers. So every tensor that crosses
    stages is an op's output or an input of the model. These are the *bases* of a value.
    """

    def __init__(self, graph: ir.Graph, op_names: Collection[str]) -> None:
        self.graph = graph
        self.op_node = {node.name: node for node in graph if node.name in op_names}
        self._ops = set(self.op_node.values())
        self.written = {output.name: output for node in self._ops for output in node.outputs}
        self._place = {node: i for i, node in enumerate(graph)}
        self._read = {node: _values_read(graph, node) for node in graph}
        self._bases: dict[ir.Value, tuple[ir.Value, ...]] = {}
        for node in graph:
            through = self.bases_of(self._read[node]) if node not in self._ops else ()
            for output in node.outputs:
                self._bases[output] = (output,) if node in self._ops else through

    def of_op(self, name: str) -> tuple[ir.Value, ...]:
        """The outputs of other ops and inputs of the model that an op reads."""
        return self.bases_of(self._read[self.op_node[name]])

    def of_node(self, node: ir.Node) -> tuple[ir.Value, ...]:
        """The values that a node or one of its bodies reads."""
        return self._read[node]

    def bases_of(self, values: Iterable[ir.Value]) -> tuple[ir.Value, ...]:
        """The bases of some values, without duplicates."""
        bases: dict[ir.Value, None] = {}
        for value in values:
            if value in self._bases:
                bases |= dict.fromkeys(self._bases[value])
            elif not value.is_initializer():
                bases[value] = None
        return tuple(bases)

    def closure(
        self, ops: Iterable[str], results: Iterable[ir.Value]
    ) -> tuple[list[ir.Node], list[ir.Value], list[ir.Value]]:
        """Ops, with the views and constants that they and some results need.

        Args:
          ops: names in execution order.

        Returns:
          nodes in execution order; initializers; the bases that other stages compute.
        """
        wanted = {self.op_node[name]: i for i, name in enumerate(ops)}
        first_reader: dict[ir.Value, int] = dict.fromkeys(results, len(wanted))
        nodes: dict[ir.Node, int] = {}
        for node in reversed(self.graph):
            places = [first_reader[output] for output in node.outputs if output in first_reader]
            if node in wanted:
                nodes[node] = wanted[node]
            elif places and node not in self._ops:
                nodes[node] = min(places)
            else:
                continue
            for value in self._read[node]:
                first_reader[value] = min(first_reader.get(value, len(wanted)), nodes[node])
        made = {output for node in nodes for output in node.outputs}
        taken = [value for value in first_reader if value not in made]
        return (
            sorted(nodes, key=lambda node: (nodes[node], node in wanted, self._place[node])),
            [value for value in taken if value.is_initializer()],
            [value for value in taken if not value.is_initializer()],
        )


def _values_read(graph: ir.Graph, node: ir.Node) -> tuple[ir.Value, ...]:
    """The values of ``graph`` that a node or one of its bodies reads."""
    values = dict.fromkeys(value for value in node.inputs if value is not None)
    for attr in node.attributes.values():
        if attr.type == ir.AttributeType.GRAPH:
            values |= dict.fromkeys(value for value in _captured(attr.as_graph()) if value.graph is graph)
    return tuple(values)


def _captured(body: ir.Graph) -> list[ir.Value]:
    inner = [value for node in body.all_nodes() for value in node.inputs if value is not None]
    results = [output for graph in (body, *body.subgraphs()) for output in graph.outputs]
    return [*inner, *results]
