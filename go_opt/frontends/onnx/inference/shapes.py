"""What is known of one node's outputs: types, by the values its inputs have, and values of constants.

Types are inferred by onnx, values are computed by its reference implementation.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, shape_inference
from onnx.reference.ops import load_op

from go_opt.errors import ModelError
from go_opt.frontends.onnx.inference import contrib
from go_opt.frontends.onnx.inference.dims import PartialShape
from go_opt.frontends.onnx.inference.file import MAX_VALUE_ELEMENTS
from go_opt.frontends.onnx.inference.values import Shape, Value, make_value
from go_opt.model.op_costs import OpSignature, op_cost

# Arguments that decide a shape (axes, sizes, pads, scales) are short lists, never matrices.
_MAX_ARGUMENT_ELEMENTS: Final = 4096
_MAX_FLOAT_ARGUMENT_ELEMENTS: Final = 8

PartialType = tuple[int, PartialShape | None]  # element type (0: unknown), shape


class ShapeInference:
    """onnx's inference, for nodes whose input shapes are all numbers."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.versions = {_domain(entry.domain): entry.version for entry in model.opset_import} or {"": 1}
        self._ir_version = model.ir_version
        self._opset_imports = [helper.make_opsetid(name, version) for name, version in self.versions.items()]
        # Per instance: the answer depends on the opsets of the model.
        self.schema = functools.cache(self._schema)
        self._type = functools.cache(helper.make_tensor_type_proto)

    def _schema(self, domain: str, op_type: str) -> Any:
        """The definition of an op in the model's opset; None where onnx has none."""
        try:
            return onnx.defs.get_schema(op_type, self.versions.get(domain, 1), domain)
        except onnx.defs.SchemaError:
            return None

    def outputs(
        self, name: str, node: onnx.NodeProto, inputs: Sequence[Value | None]
    ) -> dict[str, PartialType]:
        """The known type and shape of each output; empty for ops that no rule defines."""
        schema = self.schema(_domain(node.domain), node.op_type)
        if schema is None:
            return self._added_outputs(name, node, inputs)
        present = [(read, value) for read, value in zip(node.input, inputs, strict=True) if value is not None]
        types = {read: self._type(value.elem_type, value.shape) for read, value in present}
        data = _arguments(present)
        try:
            inferred = shape_inference.infer_node_outputs(
                schema,
                node,
                types,
                data,
                opset_imports=self._opset_imports,
                ir_version=self._ir_version,
            )
            if any(not _has_shape(inferred.get(output)) for output in node.output if output):
                inferred |= self._through_function_body(schema, node, types, data)
        except Exception as error:
            # The extension raises types of its own, per version of onnx, derived from Exception alone.
            text = (str(error).strip() or type(error).__name__).splitlines()[0]
            reason = text.split("] ", 1)[-1].rstrip(".")
            raise ModelError(f"op {name!r} ({node.op_type}): {reason}.") from error
        return {output: _partial(name, node, kind) for output, kind in inferred.items()}

    def _added_outputs(
        self, name: str, node: onnx.NodeProto, inputs: Sequence[Value | None]
    ) -> dict[str, PartialType]:
        """The outputs of an op that ONNX Runtime adds; empty if no rule has it."""
        attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        like = contrib.LIKE.get(node.op_type)
        if like is None:
            kinds = contrib.own_outputs(node.op_type, inputs, attributes)
            # onnx has no schema of SimplifiedLayerNormalization, which ONNX Runtime puts in the main domain.
            return dict(zip(node.output, kinds or (), strict=False))
        operands = [inputs[position] if position < len(inputs) else None for position in like.inputs]
        typed = inputs[like.of_type] if like.of_type and like.of_type < len(inputs) else operands[0]
        if typed is None or any(value is None for value in operands):
            return {}
        is_last = contrib.is_channels_last(node.domain, node.op_type, attributes)
        shapes = [value.shape for value in operands if value is not None]
        shapes[0] = (shapes[0][0], shapes[0][-1], *shapes[0][1:-1]) if is_last else shapes[0]
        kept = {attribute: attributes[attribute] for attribute in like.attributes if attribute in attributes}
        names = [str(i) for i in range(len(shapes))]
        plain = helper.make_node(like.op_type, names, ["y"], name=name, **kept)
        sources = [
            make_value(one, TensorProto.FLOAT, shape) for one, shape in zip(names, shapes, strict=True)
        ]
        _, shape = self.outputs(name, plain, sources).get("y", (0, None))
        if shape is not None and is_last:
            shape = (shape[0], *shape[2:], shape[1])
        return {node.output[0]: (typed.elem_type, shape)}

    def _through_function_body(
        self, schema: Any, node: onnx.NodeProto, types: Mapping[str, Any], data: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Ops that onnx defines by a function only get their shape from a whole model's inference."""
        if not (schema.has_function or schema.has_context_dependent_function):
            return {}
        inputs = [helper.make_value_info(read, kind) for read, kind in types.items()]
        outputs = [onnx.ValueInfoProto(name=output) for output in node.output if output]
        graph = helper.make_graph([node], "node", inputs, outputs, initializer=list(data.values()))
        model = helper.make_model(graph, opset_imports=self._opset_imports, ir_version=self._ir_version)
        inferred = shape_inference.infer_shapes(model, data_prop=True)
        return {info.name: info.type for info in inferred.graph.output if _has_shape(info.type)}


def merged(inferred: PartialType, stated: PartialType) -> PartialType:
    """The inferred type, completed by the type that the file states."""
    elem_type = inferred[0] or stated[0]
    if inferred[1] is None or stated[1] is None or len(inferred[1]) != len(stated[1]):
        return elem_type, stated[1] if inferred[1] is None else inferred[1]
    return elem_type, tuple(
        other if size is None else size for size, other in zip(inferred[1], stated[1], strict=True)
    )


def complete(kind: PartialType | None) -> tuple[int, Shape] | None:
    """The type, if all of it is known."""
    if kind is None or not kind[0] or kind[1] is None:
        return None
    sizes = tuple(size for size in kind[1] if size is not None)
    return (kind[0], sizes) if len(sizes) == len(kind[1]) else None


def is_argument(value: Value) -> bool:
    """True for constants that may decide a shape."""
    is_integer = value.dtype.startswith(("int", "uint"))
    limit = _MAX_ARGUMENT_ELEMENTS if is_integer else _MAX_FLOAT_ARGUMENT_ELEMENTS
    return value.is_constant and len(value.shape) <= 1 and value.elements <= limit


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _arguments(present: Iterable[tuple[str, Value]]) -> dict[str, onnx.TensorProto]:
    data = {}
    for read, value in present:
        array = value.read() if is_argument(value) else None
        if array is not None:
            data[read] = numpy_helper.from_array(array, read)
    return data


def _has_shape(kind: Any) -> bool:
    return kind is not None and kind.tensor_type.HasField("shape")


def _partial(name: str, node: onnx.NodeProto, kind: Any) -> PartialType:
    if kind.WhichOneof("value") not in ("tensor_type", "sparse_tensor_type", None):
        raise ModelError(f"op {name!r} ({node.op_type}): sequences, maps and optionals are not supported.")
    if not _has_shape(kind):
        return kind.tensor_type.elem_type, None
    dims = kind.tensor_type.shape.dim
    return kind.tensor_type.elem_type, tuple(
        dim.dim_value if dim.HasField("dim_value") else None for dim in dims
    )


Values = tuple[NDArray | None, ...]


# Their outputs depend on values, and are no larger than their inputs.
_SELECTIONS: Final = frozenset({"Compress", "NonZero", "Unique"})
# Arithmetic on shapes takes next to nothing; implementations may need memory in proportion to this.
_MAX_FLOPS: Final = 1e7


def lazy_outputs(
    node: onnx.NodeProto,
    inputs: Sequence[Value | None],
    inferred: Mapping[str, PartialType],
    opset: int,
) -> Callable[[], Values | None]:
    """The values of a node's outputs, computed lazily and once; None if they are many or dear.

    Args:
      inferred: types of the outputs.
    """

    @functools.cache
    def compute() -> Values | None:
        if not _is_cheap(node, inputs, inferred):
            return None
        arrays = [None if value is None else value.read() for value in inputs]
        if any(value is not None and array is None for value, array in zip(inputs, arrays, strict=True)):
            return None
        return evaluate(node, arrays, opset)

    return compute


def _is_cheap(
    node: onnx.NodeProto, inputs: Sequence[Value | None], inferred: Mapping[str, PartialType]
) -> bool:
    """Whether the outputs have few elements, and take little to compute."""
    if node.op_type in _SELECTIONS:
        return True
    kinds = [complete(inferred.get(output)) for output in node.output if output]
    shapes = [kind[1] for kind in kinds if kind is not None]
    if len(shapes) < len(kinds) or any(math.prod(shape) > MAX_VALUE_ELEMENTS for shape in shapes):
        return False
    read = tuple(None if value is None else value.shape for value in inputs)
    signature = OpSignature(node.op_type, read, tuple(shapes), plain_attributes(node))
    return op_cost(signature).flops <= _MAX_FLOPS


def evaluate(node: onnx.NodeProto, arrays: Sequence[NDArray | None], opset: int) -> Values | None:
    """Run one node; None if onnx has no implementation, or the node does not accept its inputs."""
    run_params: dict[str, Any] = {
        "log": lambda *_: None,
        "opsets": {"": opset},
        "verbose": 0,
        "new_ops": {},
        "existing_functions": {},
    }
    try:
        with np.errstate(all="ignore"):
            operator = load_op("", node.op_type, opset)(node, run_params)
            results = operator.run(*arrays)
    except Exception:
        # The reference implementations raise whatever NumPy does on unsuited arrays;
        # a value that cannot be had is reported where it is needed.
        return None
    arrays_out = map(np.asarray, results)
    return tuple(array if array.size <= MAX_VALUE_ELEMENTS else None for array in arrays_out)


def plain_attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Numbers, lists and strings; tensors and graphs are left out."""
    plain = {}
    for attribute in node.attribute:
        if attribute.type in (attribute.INT, attribute.FLOAT, attribute.STRING):
            plain[attribute.name] = helper.get_attribute_value(attribute)
        elif attribute.type in (attribute.INTS, attribute.FLOATS, attribute.STRINGS):
            plain[attribute.name] = list(helper.get_attribute_value(attribute))
    return {
        name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        for name, value in plain.items()
    }


def constant_attribute(attributes: Mapping[str, Any]) -> NDArray | None:
    """The value of a Constant node that holds no tensor (``value_int``, ``value_floats``, …)."""
    for name, value in attributes.items():
        if name in ("value_int", "value_ints"):
            return np.asarray(value, dtype=np.int64)
        if name in ("value_float", "value_floats"):
            return np.asarray(value, dtype=np.float32)
        if name in ("value_string", "value_strings"):
            return np.asarray(value, dtype=object)
    return None


def pick(compute: Callable[[], Sequence[NDArray | None] | None], position: int) -> NDArray | None:
    """One of the values that :func:`lazy_outputs` computes."""
    results = compute()
    return None if results is None or position >= len(results) else results[position]


def type_of(array: NDArray | None) -> tuple[int, Shape] | None:
    """Element type and shape of a known value."""
    return None if array is None else (helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
