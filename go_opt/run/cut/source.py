"""The model that stages are cut from, with one node for each op and the sizes of the plan.

Local functions are inlined already. An If with a constant condition is replaced by its branch, as in the
importer and under the same names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx_ir as ir

from go_opt.errors import ModelError
from go_opt.frontends.onnx.inference.values import Value
from go_opt.frontends.onnx.lowered import LoweredModel
from go_opt.frontends.onnx.structure import body_prefix, name_nodes

_STANDARD = ("", "ai.onnx")


def model_of_file(lowered: LoweredModel) -> ir.Model:
    """The model with a node of the same name for each op; sizes are those of the file.

    Raises:
      ModelError: a part of the model cannot be copied; the message names it.
    """
    return _read(lowered, is_sized=False)


def model_of_plan(lowered: LoweredModel) -> ir.Model:
    """Like :func:`model_of_file`, with numbers for the sizes of main values and constants for Shape and Size.

    Raises:
      ModelError: as for :func:`model_of_file`; or a size is known only at run time.
    """
    if lowered.open_dims:
        raise ModelError(
            f"dimension {lowered.open_dims[0]!r} is of no input: a stage needs sizes that are known"
            " before it runs."
        )
    return _read(lowered, is_sized=True)


def bodies(node: ir.Node) -> list[ir.Graph]:
    """The graphs in the attributes of a node."""
    return [attr.as_graph() for attr in node.attributes.values() if attr.type == ir.AttributeType.GRAPH]


def _read(lowered: LoweredModel, *, is_sized: bool) -> ir.Model:
    sparse = next(iter(lowered.model.graph.sparse_initializer), None)
    if sparse is not None:
        raise ModelError(f"initializer {sparse.values.name!r} is sparse, which an export does not support.")
    name_nodes(lowered.model)
    try:
        model = ir.from_proto(lowered.model)
    except (ValueError, TypeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ModelError(f"model {lowered.file.name!r} cannot be copied: {reason}.") from error
    if lowered.file.folder is not None:
        ir.external_data.set_base_dir(model.graph, lowered.file.folder)
        _read_attributes(model)
    model.graph.sort()
    _Rewriting(lowered.program.values, is_sized).rewrite(model.graph, ("",), is_main=True)
    return model


def _read_attributes(model: ir.Model) -> None:
    """Read external tensors in node attributes; onnx-ir copies only those of initializers."""
    for node in model.graph.all_nodes():
        for name, attr in node.attributes.items():
            if attr.type == ir.AttributeType.TENSOR and isinstance(attr.value, ir.ExternalTensor):
                tensor = ir.tensor(attr.value.numpy().copy(), dtype=attr.value.dtype, name=attr.value.name)
                node.attributes[name] = ir.AttrTensor(name, tensor)


class _Rewriting:
    """Rewrites graphs in place with the values that the importer found.

    The importer gives the names of each graph a prefix; a graph also sees those of the graphs around it.
    """

    def __init__(self, values: Mapping[tuple[str, str], Value], is_sized: bool) -> None:
        self._values = values
        self._is_sized = is_sized

    def rewrite(self, graph: ir.Graph, prefixes: tuple[str, ...], *, is_main: bool) -> None:
        """Rewrite a graph; ``prefixes`` end with its own."""
        if is_main and self._is_sized:
            self._set_sizes(graph, prefixes[-1])
        names = _names_in(graph)
        for node in list(graph):
            self._rewrite_node(graph, node, prefixes, body_prefix(str(node.name), names), is_main)

    def _rewrite_node(
        self, graph: ir.Graph, node: ir.Node, prefixes: tuple[str, ...], body: str, is_main: bool
    ) -> None:
        """Rewrite a node; ``body`` stands before the names in its bodies."""
        op_type = node.op_type if node.domain in _STANDARD else ""
        branch = self._branch(node, prefixes) if op_type == "If" else None
        if branch is not None:
            self.rewrite(branch, (*prefixes, prefixes[-1] + body), is_main=is_main)
            _inline(graph, node, branch, body)
        elif self._is_sized:
            within = _bodies_with_prefix(node, prefixes[-1] + body)
            for prefix, inner in within:
                self.rewrite(inner, (*prefixes, prefix), is_main=False)
            if op_type in ("Shape", "Size"):
                self._make_constant(graph, node, prefixes)
            elif op_type == "If":
                self._check_branches(node, prefixes, within)

    def _branch(self, node: ir.Node, prefixes: tuple[str, ...]) -> ir.Graph | None:
        """The branch that a constant condition chooses."""
        condition = self._lookup(node.inputs[0], prefixes)
        known = None if condition is None else condition.read()
        if known is None or known.size != 1:
            return None
        return node.attributes["then_branch" if known.reshape(()) else "else_branch"].as_graph()

    def _lookup(self, value: ir.Value | None, prefixes: tuple[str, ...]) -> Value | None:
        name = "" if value is None else value.name or ""
        known = (self._values.get((prefix, name)) for prefix in reversed(prefixes))
        return next((found for found in known if found is not None), None)

    def _set_sizes(self, graph: ir.Graph, prefix: str) -> None:
        for value in (*graph.inputs, *(output for node in graph for output in node.outputs)):
            known = self._values.get((prefix, value.name or ""))
            if known is not None:
                value.type = ir.TensorType(ir.DataType(known.elem_type))
                value.shape = ir.Shape(known.shape)
                value.meta.update(tensor=known.tensor, steps=known.steps)

    def _make_constant(self, graph: ir.Graph, node: ir.Node, prefixes: tuple[str, ...]) -> None:
        known = self._lookup(node.outputs[0], prefixes)
        array = None if known is None else known.read()
        if array is not None:
            constant = ir.node("Constant", [], {"value": ir.tensor(array)}, name=node.name)
            _take_place(graph, node, [constant], constant.outputs)

    def _check_branches(
        self, node: ir.Node, prefixes: tuple[str, ...], branches: list[tuple[str, ir.Graph]]
    ) -> None:
        """Reject branches that yield tensors of different sizes."""
        results = [
            [self._lookup(output, (*prefixes, prefix)) for output in body.outputs]
            for prefix, body in branches
        ]
        for output, one, other in zip(node.outputs, *results, strict=True):
            if one is not None and other is not None and one.shape != other.shape:
                raise ModelError(
                    f"op {node.name!r} (If): its branches yield {output.name!r} with sizes {list(one.shape)} "
                    f"and {list(other.shape)}, and a stage needs one."
                )


def _names_in(graph: ir.Graph) -> list[str]:
    """As :meth:`go_opt.frontends.onnx.structure.GraphReads.names_in`, of the same graph in onnx-ir."""
    values = (*graph.inputs, *graph.initializers.values(), *(out for node in graph for out in node.outputs))
    return sorted({str(one.name) for one in (*graph, *values) if one.name})


def _bodies_with_prefix(node: ir.Node, prefix: str) -> list[tuple[str, ir.Graph]]:
    if node.op_type == "If":
        branches = ("else_branch", "then_branch")
        return [(f"{prefix}{i}/", node.attributes[name].as_graph()) for i, name in enumerate(branches)]
    return [(prefix, body) for body in bodies(node)]


def _inline(graph: ir.Graph, node: ir.Node, branch: ir.Graph, prefix: str) -> None:
    """Put the nodes of a branch in place of an If, with a prefix to their names."""
    output = body_prefix("output", _names_in(branch))
    nodes, initializers, results = list(branch), list(branch.initializers.values()), list(branch.outputs)
    for initializer in initializers:
        tensor = initializer.const_value
        if isinstance(tensor, ir.TensorProtoTensor):  # shares its name with the message, which others read
            initializer.const_value = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name)
    for value in [*initializers, *(output for inner in nodes for output in inner.outputs)]:
        if value.name:
            value.name = f"{prefix}{value.name}"
    for inner in nodes:
        inner.name = f"{prefix}{inner.name}"
    branch.outputs.clear()
    branch.initializers.clear()
    branch.remove(nodes)
    for initializer in initializers:
        graph.register_initializer(initializer)
    copies = [ir.node("Identity", [value], name=f"{prefix}{output}{i}") for i, value in enumerate(results)]
    _take_place(graph, node, [*nodes, *copies], [copy.outputs[0] for copy in copies])


def _take_place(graph: ir.Graph, old: ir.Node, new: list[ir.Node], results: Sequence[ir.Value]) -> None:
    for value, result in zip(old.outputs, results, strict=True):
        stand_for(value, result)
    graph.insert_before(old, new)
    graph.remove(old, safe=True)


def stand_for(value: ir.Value, result: ir.Value) -> None:
    """Make ``result`` what is read instead of ``value``, under its name."""
    result.name, result.type, result.shape = value.name, value.type, value.shape
    result.meta.update(value.meta)
    value.replace_all_uses_with(result, replace_graph_outputs=True)


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
