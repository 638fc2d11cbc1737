"""Walks an exported program and records the cost of each node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from go_opt.errors import ModelError
from go_opt.frontends.recording.recorder import Recorder, Result, Value, joined
from go_opt.frontends.torch import aten
from go_opt.frontends.torch.aten import Operand
from go_opt.frontends.torch.program import Node, Sizes, dtype_of, parsed, tensor_names
from go_opt.frontends.torch.rules import in_terms_of_table
from go_opt.model.dtypes import IS_FLOATING, costs_the_same, dtype_code
from go_opt.model.graph import Precision
from go_opt.model.op_costs import OpCost, is_elementwise
from go_opt.model.rules.views import trailing, viewed_steps

# Only run an inner program, without gradients or in another type.
_WRAPPERS: Final = (
    "hints_wrapper", "invoke_subgraph", "wrap_activation_checkpoint", "wrap_with_autocast",
    "wrap_with_set_grad_enabled",
)  # fmt: skip


@dataclass
class _Names:
    """The tensors of one program by name."""

    tensors: Mapping[str, Mapping[str, Any]]  # name -> type and sizes
    used: frozenset[str]
    values: dict[str, Value] = field(default_factory=dict)
    root: dict[str, str] = field(default_factory=dict)  # name -> tensor whose memory it shares, or itself
    windows: set[str] = field(default_factory=set)  # names that share part of their root, or reorder it

    def bind(self, name: str, value: Value) -> None:
        self.values[name] = value
        self.root[name] = name


class Walker:
    """Turns nodes into recorded ops; constants are folded, views and wrappers add no op."""

    def __init__(self, recorder: Recorder, sizes: Sizes, precision: Precision) -> None:
        self._recorder = recorder
        self._sizes = sizes
        self._precision = precision

    def run(
        self, graph: Mapping[str, Any], arguments: Mapping[str, Value]
    ) -> tuple[list[Value], dict[str, Value]]:
        """Walk a program whose tensors are given by name.

        Returns the values of its outputs, and of the arguments after ops that write to them.
        """
        read = [
            argument for node in graph["nodes"] for argument in (entry["arg"] for entry in node["inputs"])
        ]
        used = frozenset(tensor_names([*read, *graph["outputs"]]))
        names = _Names(graph["tensor_values"], used)
        for name, value in arguments.items():
            names.bind(name, value)
        for row in graph["nodes"]:
            node = parsed(row)
            if node.outputs:
                self._node(node, names)
        outputs = [names.values[name] for name in tensor_names(graph["outputs"])]
        return outputs, {name: names.values[name] for name in arguments}

    def result(self, names: Mapping[str, Mapping[str, Any]], tensor: str) -> Result:
        """Shape and type of a tensor."""
        meta = names[tensor]
        shape = tuple(self._sizes.size(size, f"tensor {tensor!r}") for size in meta["sizes"])
        return shape, dtype_of(meta, tensor)

    def _node(self, node: Node, names: _Names) -> None:
        name, writes = aten.operator(node.target)
        if name == "cat":  # a cache begins as an empty tensor
            parts = [entry for entry in node.tensors if names.values[entry[1]].elements]
            node = replace(node, tensors=tuple(parts) or node.tensors[:1])
        inputs = [names.values[tensor] for _, tensor in node.tensors]
        if name.startswith("higher_order."):
            values, after = self._wrapped(node, inputs)
            for output, value in zip(node.outputs, values, strict=True):
                names.bind(output, value)
            for (_, tensor), before, value in zip(node.tensors, inputs, after, strict=True):
                if value is not before:
                    self._write(tensor, value, names, joined(node.module, name))
            return
        if node.graphs or name in aten.REFUSED:
            raise ModelError(f"op {joined(node.module, name)!r}: from_torch cannot cost {node.target!r}.")
        outputs = [tensor for tensor in node.outputs if tensor in names.used] or [node.outputs[0]]
        results = [self.result(names.tensors, tensor) for tensor in outputs]
        values = self._values(node, name, inputs, results)
        for output, value in zip(outputs, values, strict=True):
            names.bind(output, value)
        writes = writes and bool(node.tensors)
        is_same = name == "to" and inputs[0].dtype == results[0][1] and not node.attributes.get("copy")
        is_view = self._is_view(node, name, inputs, results) and (is_same or name not in aten.COPIES)
        if writes or name in aten.WINDOWS or is_view:
            source = node.tensors[0][1]
            names.root.update(dict.fromkeys(outputs, names.root[source]))
            if (name in aten.WINDOWS and not writes) or source in names.windows:
                names.windows.update(outputs)
        if writes:
            self._write(node.tensors[0][1], values[0], names, joined(node.module, name))

    def _wrapped(self, node: Node, inputs: Sequence[Value]) -> tuple[list[Value], Iterable[Value]]:
        kind = node.target.rpartition(".")[2]
        if kind not in _WRAPPERS or len(node.graphs) != 1:
            raise ModelError(f"op {joined(node.module, kind)!r}: from_torch cannot cost {node.target!r}.")
        program = node.graphs[0]
        values, after = self.run(program, dict(zip(tensor_names(program["inputs"]), inputs, strict=True)))
        return values, after.values()

    def _values(
        self, node: Node, name: str, inputs: Sequence[Value], results: Sequence[Result]
    ) -> list[Value]:
        if name in aten.LITERALS or (name == "fill" and len(inputs) < 2):
            return [Value(shape, dtype, "literal", None) for shape, dtype in results]
        if name in ("copy", "fill"):
            return [inputs[1].viewed(results[0], name, trailing(inputs[1].shape, results[0][0]))]
        if self._is_view(node, name, inputs, results):
            how = f"{name} {results[0][0]}"
            return [inputs[0].viewed(results[0], how, trailing(inputs[0].shape, results[0][0]))]
        if all(value.is_constant for value in inputs) and name not in aten.RANDOM:
            return self._fold(node, name, inputs, results)
        return self._op(node, name, inputs, results)

    def _is_view(self, node: Node, name: str, inputs: Sequence[Value], results: Sequence[Result]) -> bool:
        """Whether the result is its first operand in another shape or type."""
        if not inputs or len(results) != 1:
            return False
        source, shape = inputs[0], results[0][0]
        if name in aten.CASTS:
            return costs_the_same(source.dtype, results[0][1], self._precision)
        if name in aten.DROPOUTS:
            return not node.attributes.get("train", False)
        if name in aten.TRANSPOSES:
            order = aten.permutation(name, node.attributes, len(source.shape))
            moved = [axis for axis in order if source.shape[axis] != 1]
            return moved == sorted(moved)
        is_whole = name in ("slice", "narrow", "cat", "split", "chunk") and shape == source.shape
        return name in aten.VIEWS or (is_whole and len(inputs) == 1)

    def _fold(self, node: Node, name: str, inputs: Sequence[Value], results: Sequence[Result]) -> list[Value]:
        """Fold a node that depends on no input: a compiler computes it once, as a literal or a weight."""
        how = f"{name} {dict(node.attributes)}"
        if name in aten.TRANSPOSES:
            order = aten.permutation(name, node.attributes, len(inputs[0].shape))
            return [inputs[0].viewed(results[0], how, [order.index(axis) for axis in range(len(order))])]
        is_elementwise_op = is_elementwise(aten.onnx_type(name, node.attributes, [results[0][0]]))
        if inputs and is_elementwise_op and all(value.tensor is None for value in inputs):
            return [Value(shape, dtype, "literal", None) for shape, dtype in results]
        key = (name, how, tuple((value.tensor, value.view, value.shape) for value in inputs))
        is_known = bool(inputs) and all(value.tensor is not None for value in inputs)
        return self._recorder.folded(f"{node.module}/{name}", key if is_known else None, results)

    def _op(self, node: Node, name: str, inputs: Sequence[Value], results: Sequence[Result]) -> list[Value]:
        operands = [
            Operand(argument, value.shape) for (argument, _), value in zip(node.tensors, inputs, strict=True)
        ]
        shapes = [shape for shape, _ in results]
        op_type, cost = aten.operator_cost(name, node.attributes, operands, shapes)
        present = [None if i is None else inputs[i] for i in aten.operands_in_order(name, operands)]
        known = in_terms_of_table(name, op_type, node.attributes, present, shapes)
        dtype, base = _computed_dtype(inputs, results), joined(node.module, name)
        return self._recorder.kernel(base, op_type, cost, dtype, inputs, results, known)

    def updated(self, weight: Value, gradient: Value) -> Value:
        """A weight less its gradient, for the update that a graph of losses and gradients does not have."""
        inputs, results = [weight, gradient], [(weight.shape, weight.dtype)]
        cost, name = OpCost("vector", float(weight.elements), ()), f"{weight.tensor}.update"
        return self._recorder.kernel(
            name, "Sub", cost, weight.dtype, inputs, results, ("Sub", {}, inputs, [weight.shape])
        )[0]

    def _write(self, target: str, value: Value, names: _Names, op_name: str) -> None:
        """Rebind all names of a tensor after an in-place op."""
        root = names.root[target]
        if target in names.windows:
            names.values[target] = value
            part, whole = value, names.values[root]
            result: Result = (whole.shape, whole.dtype)
            if whole.is_constant and part.is_constant:
                value = self._recorder.folded(op_name, None, [result])[0]
            else:
                cost, read = OpCost("data_movement", 0.0, ()), [whole, part]
                value = self._recorder.kernel(op_name, "ScatterND", cost, whole.dtype, read, [result])[0]
        for name, source in names.root.items():
            if source == root and name not in names.windows:
                shape, dtype = names.values[name].shape, names.values[name].dtype
                steps = viewed_steps(value.shape, value.steps, shape)
                names.values[name] = replace(value, shape=shape, dtype=dtype, steps=steps)


def _computed_dtype(inputs: Sequence[Value], results: Sequence[Result]) -> str:
    """The first floating type of the results, else of the operands, else that of the result."""
    types = [*(dtype for _, dtype in results), *(value.dtype for value in inputs)]
    return next((dtype for dtype in types if IS_FLOATING[dtype_code(dtype)]), results[0][1])
