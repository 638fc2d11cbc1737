"""Rewrites as nodes of a model: weights are scaled and joined, and their nodes replaced."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from string import ascii_letters
from typing import Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from go_opt.env.rewrites import draft, joining
from go_opt.env.rewrites import folding as products
from go_opt.env.rewrites import names as made_names
from go_opt.env.rewrites.applying import apply
from go_opt.errors import ModelError
from go_opt.model.graph import Graph, Rewrite
from go_opt.model.rule import Access, Rule
from go_opt.run.cut.source import stand_for
from go_opt.run.cut.values import constant, sizes_of, values_of

_EINSUM: Final = 12  # operator sets
_SPLIT_READS_SIZES: Final = 13
_EPSILON: Final = 1e-5  # of a BatchNormalization that does not say
_Floats = NDArray[np.float64]


def rewrite_nodes(nodes: ir.Graph, graph: Graph, rewrites: Sequence[Rewrite]) -> None:
    """Replace the ops that ``rewrites`` name, in place, under the names of the rewritten graph.

    Args:
      graph: the graph as sent.

    Raises:
      ModelError: an op cannot be rewritten; the message names it.
      PlanError: a rule does not hold for the graph.
    """
    if rewrites:
        _Maker(nodes, graph).make(rewrites)


class _Maker:
    """Makes the nodes of one model."""

    def __init__(self, nodes: ir.Graph, graph: Graph) -> None:
        self._nodes, self._draft = nodes, draft.Draft(graph)
        self._node = {str(node.name): node for node in nodes}

    def make(self, rewrites: Sequence[Rewrite]) -> None:
        """Make all nodes; weights that nothing reads any more go."""
        for one in rewrites:
            ops = [self._draft.ops[name] for name in one.ops if name in self._draft.ops]
            columns = products.columns_of(self._draft, ops[0]) if ops else None
            rows = joining.rows_of(self._draft, ops[0]) if ops else None
            apply(self._draft, one)  # refuses what the rule does not hold for
            if one.rule == made_names.BATCH:
                assert rows is not None
                self._batch(joining.chains_of(ops), rows)
                continue
            if one.rule == made_names.TRANSPOSE:
                self._transpose(ops)
                continue
            if one.rule == made_names.BIAS:
                self._add_bias(*ops)
                continue
            assert columns is not None
            if one.rule == made_names.FOLD:
                self._fold(ops, columns)
            else:
                self._merge(joining.chains_of(ops), columns)
        self._nodes.sort()
        outputs = set(self._nodes.outputs)
        for name, value in list(self._nodes.initializers.items()):
            if not value.uses() and value not in outputs and value not in self._nodes.inputs:
                self._nodes.initializers.pop(name)

    def _fold(self, ops: Sequence[draft.DraftOp], columns: products.Columns) -> None:
        product = ops[0]
        node, made = self._node[product.name], self._draft.ops[product.name]
        rule, has_bias = product.known_rule, len(product.operands) > products.BIAS
        count = rule.shape(rule.results[0])[columns.axis]
        scale, shift = np.ones(count), self._bias(node) if has_bias else np.zeros(count)
        for before, op in pairwise(ops):
            factor, term = self._affine(op, before.writes[0], count)
            scale, shift = scale * factor, shift * factor + term
        arrays: dict[int, _Floats] = {}
        if made.operands[products.WEIGHT] != product.operands[products.WEIGHT]:
            arrays[products.WEIGHT] = _with_scaled_columns(
                self._numbers(node, products.WEIGHT), product, columns, scale
            )
        if len(made.operands) > products.BIAS:
            arrays[products.BIAS] = shift
        inputs = [self._made_input(node, made, place, arrays) for place in range(len(made.operands))]
        new = _like(node, product.name, inputs, sets_bias=products.BIAS in arrays)
        self._nodes.insert_before(node, [new])
        stand_for(self._node[ops[-1].name].outputs[0], new.outputs[0])
        self._replace(ops, {product.name: new})

    def _made_input(
        self, node: ir.Node, made: draft.DraftOp, place: int, arrays: Mapping[int, _Floats]
    ) -> ir.Value | None:
        if place not in arrays:
            return node.inputs[place]
        weight = node.inputs[products.WEIGHT]
        dtype = None if weight is None else weight.dtype
        return self._constant(made.operands[place], arrays[place], dtype)

    def _bias(self, node: ir.Node) -> _Floats:
        """The bias of a product, as it is added."""
        return _number_of(node, "beta", 1.0) * self._numbers(node, products.BIAS).reshape(-1)

    def _affine(self, op: draft.DraftOp, tensor: str, count: int) -> tuple[_Floats, _Floats]:
        """By what an op multiplies each column, and what it then adds."""
        node, place = self._node[op.name], op.operands.index(tensor)
        one, zero = np.ones(count), np.zeros(count)
        given = [self._numbers(node, i).reshape(-1) * one for i in range(len(op.operands)) if i != place]
        if op.op_type == "BatchNormalization":
            gamma, beta, mean, variance = given
            factor = gamma / np.sqrt(variance + _number_of(node, "epsilon", _EPSILON))
            return factor, beta - mean * factor
        if op.op_type == "Mul":
            return given[0], zero
        if op.op_type == "Div":
            return 1.0 / given[0], zero
        if op.op_type == "Add":
            return one, given[0]
        return (one, -given[0]) if place == 0 else (-one, given[0])

    def _merge(self, chains: Sequence[Sequence[draft.DraftOp]], columns: products.Columns) -> None:
        source = self._node[chains[0][0].name].inputs[0]
        new: dict[str, ir.Node] = {}
        before: draft.DraftOp | None = None
        for alike in zip(*chains, strict=True):
            joined = self._joined(alike, source, before, columns)
            new[str(joined.name)] = joined
            source, before = joined.outputs[0], alike[0]
        self._split([chain[-1] for chain in chains], chains[0][0].name, columns.axis, source, new)
        self._replace([op for chain in chains for op in chain], new)

    def _split(
        self,
        tails: Sequence[draft.DraftOp],
        head: str,
        axis: int,
        source: ir.Value | None,
        new: dict[str, ir.Node],
    ) -> None:
        """Add to ``new`` what splits ``source`` into the results of ``tails``, and put all in their place."""
        last = [self._node[op.name] for op in tails]
        sizes = [sizes_of(node.outputs[0])[axis] for node in last]
        name = made_names.split_name(head, len(tails))
        inputs: list[ir.Value | None] = [source]
        attributes: dict[str, int | list[int]] = {"axis": axis}
        if self._nodes.opset_imports[""] >= _SPLIT_READS_SIZES:
            inputs.append(self._constant(f"{name}/sizes", np.array(sizes), ir.DataType.INT64))
        else:
            attributes |= {"split": sizes}
        split = new[name] = ir.node("Split", inputs, attributes, name=name, num_outputs=len(tails))
        self._nodes.insert_before(last[0], list(new.values()))
        for node, result in zip(last, split.outputs, strict=True):
            stand_for(node.outputs[0], result)

    def _batch(self, chains: Sequence[Sequence[draft.DraftOp]], rows: joining.Joint) -> None:
        number, head = len(chains), chains[0][0].name
        heads = [self._node[chain[0].name] for chain in chains]
        if len({(_number_of(one, "alpha", 1.0), _number_of(one, "beta", 1.0)) for one in heads}) > 1:
            raise ModelError(f"op {head!r} cannot be batched: its alpha or beta is not that of the others.")
        sources = [node.inputs[products.ACTIVATION] for node in heads]
        name, joined = made_names.concat_name(head, number), "Concat"
        new = {name: ir.node(joined, sources, {"axis": rows.axis}, name=name)}
        source, read = new[name].outputs[0], chains[0][0].operands[products.ACTIVATION]
        whole = made_names.joined_operand(head, number, products.ACTIVATION)
        _name_sum(source, whole, sources, rows.axis)
        for alike in zip(*chains, strict=True):
            nodes, place = [self._node[op.name] for op in alike], alike[0].operands.index(read)
            inputs = [source if i == place else one for i, one in enumerate(nodes[0].inputs)]
            name, read = made_names.merged_name(alike[0].name, number), alike[0].writes[0]
            new[name] = _like(nodes[0], name, inputs, sets_bias=False)
            results, source = [node.outputs[0] for node in nodes], new[name].outputs[0]
            _name_sum(source, made_names.merged_name(str(results[0].name), number), results, rows.axis)
        self._split([chain[-1] for chain in chains], head, rows.axis, source, new)
        self._replace([op for chain in chains for op in chain], new)

    def _transpose(self, ops: Sequence[draft.DraftOp]) -> None:
        product, *turns = ops
        if self._nodes.opset_imports[""] < _EINSUM:
            problem = f"before operator set {_EINSUM} there is no Einsum, which reads them"
            raise ModelError(f"op {product.name!r} cannot take over Transposes: {problem}.")
        node = self._node[product.name]
        sources = {turn.writes[0]: self._node[turn.name].inputs[0] for turn in turns}
        read = zip(product.operands, (value for value in node.inputs if value is not None), strict=True)
        rule = self._draft.ops[product.name].known_rule
        missing = [1] * _missing_units(rule)  # views of the first operand have them
        inputs = [
            self._seen(
                node,
                sources.get(tensor, value),
                [*(missing if place == 0 else ()), *rule.shape(access)],
                place,
            )
            for place, ((tensor, value), access) in enumerate(zip(read, rule.operands, strict=True))
        ]
        new = ir.node("Einsum", inputs, {"equation": equation_of(rule)}, name=product.name)
        self._nodes.insert_before(node, [new])
        behind = (turn.name for turn in turns if turn.operands[0] == product.writes[0])
        stand_for(self._node[next(behind, product.name)].outputs[0], new.outputs[0])
        self._replace(ops, {product.name: new})

    def _add_bias(self, product: draft.DraftOp, op: draft.DraftOp) -> None:
        node, result = self._node[product.name], self._node[op.name].outputs[0]
        rule, sizes = self._draft.ops[product.name].known_rule, sizes_of(result)
        inner, columns = rule.shape(rule.operands[products.WEIGHT])
        rows = self._seen(node, node.inputs[0], [math.prod(sizes[:-1]), inner], 0)
        array = self._numbers(self._node[op.name], 1 - op.operands.index(product.writes[0]))
        bias = self._constant(f"{product.name}/bias", array.reshape(-1), result.dtype)
        bias.meta["tensor"] = self._draft.ops[product.name].operands[products.BIAS]
        new = ir.node("Gemm", [rows, node.inputs[1], bias], name=product.name)
        self._nodes.insert_before(node, [new])
        stand_for(result, written := new.outputs[0])
        if len(sizes) > 2:
            written.shape, readers = ir.Shape([math.prod(sizes[:-1]), columns]), list(written.uses())
            written.meta.pop("steps", None)
            view = self._seen(self._node[op.name], written, sizes, products.BIAS)
            for reader, place in readers:
                reader.replace_input_with(place, view)
        self._replace([product, op], {product.name: new})

    def _seen(self, node: ir.Node, value: ir.Value | None, sizes: Sequence[int], place: int) -> ir.Value:
        """What a node reads at a place, in another shape."""
        assert value is not None, "an operand of a rule is there"
        if sizes_of(value) == list(sizes):
            return value
        name = f"{node.name}/seen {place}"
        shape = self._constant(f"{name}/shape", np.array(sizes), ir.DataType.INT64)
        view = ir.node("Reshape", [value, shape], name=name)
        view.outputs[0].name, view.outputs[0].type, view.outputs[0].shape = name, value.type, ir.Shape(sizes)
        self._nodes.insert_before(node, [view])
        return view.outputs[0]

    def _joined(
        self,
        alike: Sequence[draft.DraftOp],
        source: ir.Value | None,
        before: draft.DraftOp | None,
        columns: products.Columns,
    ) -> ir.Node:
        """One node for several that differ in their columns; it reads ``source``.

        Args:
          before: the op before the first of ``alike``; None for products.
        """
        nodes, first = [self._node[op.name] for op in alike], alike[0]
        place = 0 if before is None else first.operands.index(before.writes[0])
        made = made_names.merged_name(first.name, len(alike))
        inputs: list[ir.Value | None] = []
        for i in range(len(first.operands)):
            if i == place:
                inputs.append(source)
                continue
            arrays = [self._numbers(node, i) for node in nodes]
            if before is None:
                attribute = "alpha" if i == products.WEIGHT else "beta"
                arrays = [
                    one * _number_of(node, attribute, 1.0) for one, node in zip(arrays, nodes, strict=True)
                ]
            along = _axis_of(first, i, columns, is_product=before is None)
            value = nodes[0].inputs[i]
            dtype = None if value is None else value.dtype
            inputs.append(
                self._constant(
                    made_names.joined_operand(first.name, len(alike), i), np.concatenate(arrays, along), dtype
                )
            )
        new = _like(nodes[0], made, inputs, sets_bias=before is None, sets_weight=before is None)
        results = [node.outputs[0] for node in nodes]
        name = made_names.merged_name(str(results[0].name), len(alike))
        _name_sum(new.outputs[0], name, results, columns.axis)
        return new

    def _numbers(self, node: ir.Node, place: int) -> _Floats:
        """The values of a constant that a node reads."""
        given = [value for value in node.inputs if value is not None]
        if place >= len(given):
            raise ModelError(f"op {node.name!r} cannot be rewritten: it has no input {place}.")
        return np.asarray(values_of(given[place])).astype(np.float64)

    def _constant(self, name: str, array: NDArray, dtype: ir.DataType | None) -> ir.Value:
        cast = array if dtype is None else array.astype(dtype.numpy())
        return constant(self._nodes, name, cast, dtype)

    def _replace(self, ops: Sequence[draft.DraftOp], new: Mapping[str, ir.Node]) -> None:
        """Remove the nodes of ops, with views and constants that only they read."""
        left = [self._node.pop(op.name) for op in reversed(ops)]
        outputs = set(self._nodes.outputs)
        while left:
            node = left.pop(0)
            if node.graph is None or any(one.uses() or one in outputs for one in node.outputs):
                continue
            sources = [value.producer() for value in node.inputs if value is not None]
            self._nodes.remove(node, safe=True)
            left += [one for one in sources if one is not None and one.graph is self._nodes]
        self._node |= new


def _name_sum(value: ir.Value, name: str, of: Sequence[ir.Value | None], axis: int) -> None:
    """Say what a value is that joins others along an axis."""
    known = [one for one in of if one is not None]
    sizes = sizes_of(known[0])
    sizes[axis] = sum(sizes_of(one)[axis] for one in known)
    value.name, value.type, value.shape = name, known[0].type, ir.Shape(sizes)


def _with_scaled_columns(
    weight: _Floats, product: draft.DraftOp, columns: products.Columns, scale: _Floats
) -> _Floats:
    rule = product.known_rule
    pieces = [piece for one in rule.operands[products.WEIGHT] for piece in one]
    sizes = [rule.size(piece) for piece in pieces]
    order = sorted(range(len(columns.factors)), key=lambda i: pieces.index(columns.factors[i]))
    factors = scale.reshape([rule.size(one) for one in columns.factors]).transpose(order)
    along = [size if piece in columns.factors else 1 for piece, size in zip(pieces, sizes, strict=True)]
    scaled: _Floats = weight.reshape(sizes) * factors.reshape(along)
    return scaled.reshape(weight.shape)


def equation_of(rule: Rule) -> str:
    """A contraction as an Einsum says it.

    Dimensions of one element of the result are those of operands; what is missing stands before the first.
    """
    letters, units = (iter(ascii_letters[len(rule.factors) :]) for _ in range(2))
    more = "".join(islice(letters, _missing_units(rule)))
    terms = [_labels(access, letters) for access in rule.operands]
    return f"{more}{','.join(terms)}->{_labels(rule.results[0], units)}"


def _missing_units(rule: Rule) -> int:
    """Dimensions of one element that the result has more than the operands."""
    return max(0, rule.results[0].count(()) - sum(access.count(()) for access in rule.operands))


def _labels(access: Access, units: Iterator[str]) -> str:
    factors = [[piece for piece in one if isinstance(piece, int)] for one in access]
    return "".join(ascii_letters[one[0]] if one else next(units) for one in factors)


def _axis_of(op: draft.DraftOp, place: int, columns: products.Columns, *, is_product: bool) -> int:
    """The axis of an operand that runs over the columns of a product, or of an op behind it."""
    rule = op.known_rule
    factors = columns.factors if is_product else rule.results[0][columns.axis]
    return next(axis for axis, one in enumerate(rule.operands[place]) if {*one} & {*factors})


def _like(
    node: ir.Node, name: str, inputs: Sequence[ir.Value | None], *, sets_bias: bool, sets_weight: bool = False
) -> ir.Node:
    """A node of the same type and attributes; those that multiply what is set are left out."""
    made = ir.node(node.op_type, inputs, overload=node.overload, domain=node.domain, name=name)
    left_out = set[str]()
    if node.op_type == "Gemm":
        left_out = {name for name, is_set in (("alpha", sets_weight), ("beta", sets_bias)) if is_set}
    made.attributes.update({key: one for key, one in node.attributes.items() if key not in left_out})
    return made


def _number_of(node: ir.Node, attribute: str, otherwise: float) -> float:
    return node.attributes[attribute].as_float() if attribute in node.attributes else otherwise
