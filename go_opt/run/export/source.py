"""The model that stages are cut from: one node for each op, and sizes as the plan has them.

Local functions are in place already. An If whose condition is constant gives way to its branch, as in the
importer, under the same names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from go_opt.frontends.onnx.lowered import LoweredModel
from go_opt.frontends.onnx.structure import with_names
from go_opt.frontends.onnx.values import Value

_STANDARD = ("", "ai.onnx")


def inlined_model(lowered: LoweredModel) -> ir.Model:
    """The model with a node of its name for each op; sizes are as the file has them."""
    return _read(lowered, is_sized=False)


def sized_model(lowered: LoweredModel) -> ir.Model:
    """The same with every size a number: those of main values are set, Shape and Size are constants."""
    return _read(lowered, is_sized=True)


def bodies(node: ir.Node) -> list[ir.Graph]:
    """The graphs in the attributes of a node."""
    return [attr.as_graph() for attr in node.attributes.values() if attr.type == ir.AttributeType.GRAPH]


def _read(lowered: LoweredModel, *, is_sized: bool) -> ir.Model:
    model = ir.from_proto(with_names(lowered.model))
    if lowered.file.folder is not None:
        ir.external_data.set_base_dir(model.graph, lowered.file.folder)
    model.graph.sort()
    _Rewriting(lowered.program.values, is_sized).rewrite(model.graph, "", is_main=True)
    return model


class _Rewriting:
    """Rewrites graphs in place, by what the importer knows of their values."""

    def __init__(self, values: Mapping[tuple[str, str], Value], is_sized: bool) -> None:
        self._values = values
        self._is_sized = is_sized

    def rewrite(self, graph: ir.Graph, prefix: str, *, is_main: bool) -> None:
        """Rewrite a graph whose names the importer has put ``prefix`` before."""
        if is_main and self._is_sized:
            self._set_sizes(graph, prefix)
        for node in list(graph):
            self._rewrite_node(graph, node, prefix, is_main)

    def _rewrite_node(self, graph: ir.Graph, node: ir.Node, prefix: str, is_main: bool) -> None:
        is_standard = node.domain in _STANDARD
        branch = self._branch(node, prefix) if is_standard and node.op_type == "If" else None
        if branch is not None:
            self.rewrite(branch, f"{prefix}{node.name}/", is_main=is_main)
            _inline(graph, node, branch)
        elif self._is_sized:
            known = self._values.get((prefix, node.outputs[0].name or "")) if node.outputs else None
            if is_standard and node.op_type in ("Shape", "Size") and known is not None:
                _make_constant(graph, node, known)
            for inner, body in _bodies_with_prefix(node, prefix):
                self.rewrite(body, inner, is_main=False)

    def _branch(self, node: ir.Node, prefix: str) -> ir.Graph | None:
        """The branch that a constant condition chooses."""
        condition = node.inputs[0]
        value = None if condition is None else self._lookup(condition, prefix)
        known = None if value is None else value.read()
        if known is None or known.size != 1:
            return None
        return node.attributes["then_branch" if known.reshape(()) else "else_branch"].as_graph()

    def _lookup(self, value: ir.Value, prefix: str) -> Value | None:
        """What is known of a value that a graph may have from one around it."""
        name = value.name or ""
        while (prefix, name) not in self._values and prefix:
            prefix = prefix[: prefix.rstrip("/").rfind("/") + 1]
        return self._values.get((prefix, name))

    def _set_sizes(self, graph: ir.Graph, prefix: str) -> None:
        for value in (*graph.inputs, *(output for node in graph for output in node.outputs)):
            known = self._values.get((prefix, value.name or ""))
            if known is not None:
                value.type = ir.TensorType(ir.DataType(known.elem_type))
                value.shape = ir.Shape(known.shape)


def _bodies_with_prefix(node: ir.Node, prefix: str) -> Iterator[tuple[str, ir.Graph]]:
    if node.op_type == "If":
        for i, name in enumerate(("else_branch", "then_branch")):
            yield f"{prefix}{node.name}/{i}/", node.attributes[name].as_graph()
    else:
        for body in bodies(node):
            yield f"{prefix}{node.name}/", body


def _make_constant(graph: ir.Graph, node: ir.Node, known: Value) -> None:
    array = known.read()
    if array is None:
        return
    constant = ir.node("Constant", [], {"value": ir.tensor(array)}, name=node.name)
    _take_place(graph, node, [constant], constant.outputs)


def _inline(graph: ir.Graph, node: ir.Node, branch: ir.Graph) -> None:
    """Put the nodes of a branch in place of an If."""
    nodes = list(branch)
    for value in [*branch.initializers.values(), *(output for inner in nodes for output in inner.outputs)]:
        if value.name:
            value.name = f"{node.name}/{value.name}"
    for inner in nodes:
        inner.name = f"{node.name}/{inner.name}"
    initializers = list(branch.initializers.values())
    results = list(branch.outputs)
    branch.outputs.clear()
    branch.remove(nodes)
    branch.initializers.clear()
    for initializer in initializers:
        graph.register_initializer(initializer)
    copies = [
        ir.node("Identity", [result], name=f"{node.name}/output {i}") for i, result in enumerate(results)
    ]
    _take_place(graph, node, [*nodes, *copies], [copy.outputs[0] for copy in copies])


def _take_place(graph: ir.Graph, old: ir.Node, new: list[ir.Node], results: list[ir.Value]) -> None:
    for value, result in zip(old.outputs, results, strict=True):
        result.name, result.type, result.shape = value.name, value.type, value.shape
        value.replace_all_uses_with(result, replace_graph_outputs=True)
    graph.insert_before(old, new)
    graph.remove(old, safe=True)
