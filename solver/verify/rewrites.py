"""Rechecks rewrites by definition: from the graph as sent, each op that is replaced, and what replaces it.

Which elements a constant reaches is read from where factors lie in tensors. What the rewritten graph must be
is derived here from the graph as sent; nothing may differ from it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from go_opt.env.rewrites import names as made_names
from go_opt.model.dtypes import IS_FLOATING
from go_opt.model.graph import ACTIVATION, DATA_MOVEMENT, WEIGHT, Graph, Rewrite
from go_opt.model.rule import Access, Dimension, Rule, factors_in, places

_SCALES: Final = {
    "Mul": (0, 1),
    "Div": (0,),
    "BatchNormalization": (0,),
}  # at which place the result is scaled
_SHIFTS: Final = {"Add": (0, 1), "Sub": (0, 1), "BatchNormalization": (0,)}
_WEIGHTED: Final = {"Add", "Mul"}
_FUNCTIONS: Final = {"Abs", "Erf", "Exp", "Neg", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh"}
_PRODUCTS: Final = {"Conv", "Gemm", "MatMul"}
_BATCHED: Final = {"Gemm", "MatMul"}


class _Tensor(NamedTuple):
    elements: int
    dtype: int
    kind: int
    is_output: bool = False


class _Op(NamedTuple):
    """An op in words that do not depend on the numbers of a graph."""

    op_type: str
    op_class: int
    flops: float
    dtype: int
    on_chips: tuple[tuple[str, float, bool], ...]  # by kind: measured seconds, or -1; whether excluded
    reads: tuple[tuple[str, int], ...]  # sorted: tensor, elements touched
    writes: tuple[str, ...]
    rule: Rule | None = None
    operands: tuple[str, ...] = ()
    results: tuple[str, ...] = ()


class _WrongError(Exception):
    """What does not hold of a rewrite."""


def broken_rewrites(sent: Graph, rewritten: Graph, rewrites: Sequence[Rewrite]) -> Iterator[str]:
    """Yields the errors of ``rewritten``, which must be ``sent`` with ``rewrites``, one after another."""
    check = _Check(sent)
    for one in rewrites:
        try:
            check.apply(one)
        except _WrongError as error:
            yield f"rewrite {one.rule!r} of op {one.ops[0]!r}: {error}."
            return
    yield from check.differences(rewritten)


class _Check:
    def __init__(self, sent: Graph) -> None:
        self._sent = sent
        self._tensors, self._ops = _tensors(sent), _ops(sent)
        self._readers: dict[str, list[str]] = defaultdict(list)
        for name, op in self._ops.items():
            self._note(name, op)
        self._touched = {sent.tensor_names[k] for state in sent.states for k in (state.read, state.next)}
        self._touched |= {name for name, tensor in self._tensors.items() if tensor.elements == 0}

    def _note(self, name: str, op: _Op) -> None:
        for tensor, _ in op.reads:
            self._readers[tensor].append(name)

    def apply(self, rewrite: Rewrite) -> None:
        """What the ops of a rewrite become."""
        if len({*rewrite.ops}) < len(rewrite.ops) or not self._ops.keys() >= {*rewrite.ops}:
            raise _WrongError("an op is not there, or named twice")
        ops = [self._ops[name] for name in rewrite.ops]
        for name, op in zip(rewrite.ops, ops, strict=True):
            tensors = {*op.writes, *(tensor for tensor, _ in op.reads)}
            is_measured = any(seconds >= 0.0 for _, seconds, _ in op.on_chips)
            if op.rule is None or len(op.writes) != 1 or is_measured or tensors & self._touched:
                raise _WrongError(f"op {name!r} must stay as it is")
        if rewrite.rule == "fold":
            self._fold(rewrite.ops, ops)
        elif rewrite.rule == "merge":
            self._merge(rewrite.ops, ops)
        elif rewrite.rule == "batch":
            self._batch(rewrite.ops, ops)
        else:
            raise _WrongError("there is no such rule")

    def _fold(self, names: Sequence[str], ops: Sequence[_Op]) -> None:
        product, weights = ops[0], self._weights_of(names[0], ops[0])
        column = self._column(product)
        scaled = shifted = False
        for before, op, name in zip(ops[:-1], ops[1:], names[1:], strict=True):
            place = self._follows(before, op, name)
            is_scale, is_shift = (place in of.get(op.op_type, ()) for of in (_SCALES, _SHIFTS))
            constants = [i for i in range(len(op.operands)) if i != place]
            if not (is_scale or is_shift) or not constants:
                raise _WrongError(f"op {name!r} is no scale or shift")
            self._check_same_view(product, op, name)
            for i in constants:
                self._check_constant(op, i, column, name)
            scaled, shifted = scaled or is_scale, shifted or is_shift
        if shifted and product.op_type == "MatMul":
            raise _WrongError("a MatMul has no bias")
        operands, rule, flops = list(product.operands), _rule(product), product.flops
        if scaled:
            operands[1] = made_names.folded_weight(names[0])
            self._add(operands[1], self._tensors[weights[0]])
        if shifted or len(weights) > 1:
            operands[2:] = [made_names.folded_bias(names[0])]
            self._add(operands[2], self._tensors[weights[0]]._replace(elements=column.size))
        if shifted and len(weights) == 1:
            flops += self._tensors[product.writes[0]].elements
            rule = rule._replace(operands=(*rule.operands, (_column_factors(product),)))
        made = self._with_operands(product, operands, rule, flops, ops[-1].writes[0])
        self._replace(names, {names[0]: made})

    def _merge(self, names: Sequence[str], ops: Sequence[_Op]) -> None:
        heads = [i for i, op in enumerate(ops) if op.op_type in _PRODUCTS]
        number, length = len(heads), len(ops) // max(len(heads), 1)
        if number < 2 or heads != list(range(0, len(ops), length)) or length * number != len(ops):
            raise _WrongError("its ops are not products, each with as many ops behind it")
        if len({ops[i].operands[0] for i in heads}) > 1:
            raise _WrongError("its products read different tensors")
        found = [self._place_in_chain(ops, names, i, length) for i in range(len(ops))]
        made: dict[str, _Op] = {}
        written = ops[0].operands[0]
        for step in range(length):
            alike = ops[step::length]
            joined = self._joined(alike, found[step::length], written, names[step])
            made[made_names.merged_name(names[step], number)] = joined
            written = joined.writes[0]
        made[made_names.split_name(names[0], number)] = self._parted(
            joined, ops[length - 1 :: length], ops[0]
        )
        self._replace(names, made)

    def _batch(self, names: Sequence[str], ops: Sequence[_Op]) -> None:
        heads = [i for i, op in enumerate(ops) if op.op_type in _BATCHED]
        number, length = len(heads), len(ops) // max(len(heads), 1)
        if number < 2 or heads != list(range(0, len(ops), length)) or length * number != len(ops):
            raise _WrongError("its ops are not products, each with as many ops behind it")
        read = [ops[i].operands[0] for i in heads]
        if len({*read}) < number:
            raise _WrongError("it has products of one tensor")
        self._check_apart([names[i] for i in heads])
        rows = [self._row_of(names[i], ops[i]) for i in heads]
        (axis, _), total = rows[0], sum(size for _, size in rows)
        if len({axis for axis, _ in rows}) > 1:
            raise _WrongError("its products have rows along different axes")
        source = made_names.joined_operand(names[0], number, 0)
        self._add_sum(source, read)
        self._tensors[source] = self._tensors[source]._replace(kind=ACTIVATION)
        reads = tuple(sorted((one, self._tensors[one].elements) for one in read))
        on_chips, dtype = ops[0].on_chips, ops[0].dtype
        made = {made_names.concat_name(names[0], number): _Op("Concat", DATA_MOVEMENT, 0.0, dtype, on_chips,
                                                             reads, (source,))}  # fmt: skip
        for step in range(length):
            alike, before = ops[step::length], ops[step - 1 :: length] if step else ()
            for i, (op, last) in enumerate(zip(alike, before, strict=False)):
                self._check_in_batch(ops[i * length], last, op, names[i * length + step], axis)
            name = made_names.merged_name(names[step], number)
            made[name] = self._stacked(alike, before, source, axis, total)
            source = made[name].writes[0]
        tails = [op.writes[0] for op in ops[length - 1 :: length]]
        made[made_names.split_name(names[0], number)] = self._split(made[name], tails)
        self._replace(names, made)

    def _check_in_batch(self, product: _Op, before: _Op, op: _Op, name: str, axis: int) -> None:
        """An op is a function of each element of what ``before`` writes, and of a constant for all rows."""
        place = self._follows(before, op, name)
        self._check_same_view(product, op, name)
        rest, rule = [i for i in range(len(op.operands)) if i != place], _rule(op)
        if op.op_type not in (_WEIGHTED if rest else _FUNCTIONS) or len(rest) > 1:
            raise _WrongError(f"op {name!r} cannot be batched")
        for i in rest:
            if not self._is_constant(op.operands[i]) or {*rule.results[0][axis]} & factors_in(
                rule.operands[i]
            ):
                raise _WrongError(f"op {name!r} reads something else than a constant for all rows")

    def _stacked(
        self, alike: Sequence[_Op], before: Sequence[_Op], source: str, axis: int, total: int
    ) -> _Op:
        """Ops that differ in their rows alone, as one that reads ``source``."""
        places = (
            {op.operands.index(last.writes[0]) for op, last in zip(alike, before, strict=True)}
            if before
            else {0}
        )
        if len(places) > 1:
            raise _WrongError("its ops read the result before at different places")
        (place,) = places
        kinds = {
            (*op[:2], *op[3:5], op.operands[:place], op.operands[place + 1 :],
             _rule(op).with_length(place, axis, total),
             *(self._tensors[k].dtype for k in (op.operands[place], *op.writes)))
            for op in alike
        }  # fmt: skip
        if len(kinds) > 1:
            raise _WrongError("its ops differ in more than their rows")
        first, number = alike[0], len(alike)
        operands = [source if i == place else one for i, one in enumerate(first.operands)]
        result = made_names.merged_name(first.writes[0], number)
        self._add_sum(result, [op.writes[0] for op in alike])
        rule = _rule(first).with_length(place, axis, total)
        return self._with_operands(first, operands, rule, sum(op.flops for op in alike), result)

    def _row_of(self, name: str, op: _Op) -> tuple[int, int]:
        """The axis of the rows of a product, in its activation as in its result, and their number.

        The last axes are those of the inner elements and of the columns. Of others, one without a factor may
        be another in the result, unless there are no others.
        """
        if len(op.operands) < 2 or not all(map(self._is_constant, op.operands[1:])):
            raise _WrongError(f"op {name!r} is no product of a weight")
        rule, tensor = _rule(op), self._tensors[op.operands[0]]
        read, written = rule.operands[0], rule.results[0]
        if tensor.kind == WEIGHT or dict(op.reads)[op.operands[0]] != tensor.elements:
            raise _WrongError(f"op {name!r} is no product of a whole activation")
        of_weights = {piece for access in rule.operands[1:] for one in access for piece in one}
        inner = {piece for one in rule.operands[1] for piece in one} - factors_in(rule.results[0])
        if not read[-1] or {*read[-1]} != inner or not written[-1] or not {*written[-1]} <= of_weights:
            raise _WrongError(f"op {name!r} does not end with inner elements and columns")
        if len(read) == 2 == len(written) and read[0] == written[0] == ():
            return 0, 1
        for axis, (one, other) in enumerate(zip(read[:-1], written[:-1], strict=False)):
            if len(read) != len(written) or read[:-1] != written[:-1]:
                break
            if one == other and len(one) == 1 and not {*one} & of_weights:
                return axis, rule.size(one[0])
        raise _WrongError(f"op {name!r} has no rows")

    def _check_apart(self, names: Sequence[str]) -> None:
        """No op needs the result of another: of all that each needs, none is among them."""
        producer = {tensor: name for name, op in self._ops.items() for tensor in op.writes}
        left, needed = list(names), set[str]()
        while left:
            for tensor, _ in self._ops[left.pop()].reads:
                before = producer.get(tensor)
                if before is not None and before not in needed:
                    needed.add(before)
                    left.append(before)
        if not needed.isdisjoint(names):
            raise _WrongError("one of its products needs the result of another")

    def _place_in_chain(
        self, ops: Sequence[_Op], names: Sequence[str], i: int, length: int
    ) -> tuple[int, int]:
        """Which operand is the tensor that all products read, or what the op before writes; and the factor of
        the columns."""
        op, product = ops[i], ops[i - i % length]
        if i % length == 0:
            self._weights_of(names[i], op)
            if len(_column_factors(op)) != 1:
                raise _WrongError(f"op {names[i]!r} has groups")
            return 0, _column_factors(op)[0]
        place, column = self._follows(ops[i - 1], op, names[i]), self._column(product)
        self._check_same_view(product, op, names[i])
        rest = [one for one in range(len(op.operands)) if one != place]
        is_weighted = op.op_type in _WEIGHTED and len(rest) == 1
        if is_weighted:
            self._check_constant(op, rest[0], column, names[i])
        here = _factors_at(op, column)
        if len(here) != 1 or not (
            (is_weighted and factors_in(_rule(op).operands[rest[0]]))
            or (op.op_type in _FUNCTIONS and not rest)
        ):
            raise _WrongError(f"op {names[i]!r} cannot be merged")
        return place, here[0]

    def _joined(self, alike: Sequence[_Op], found: Sequence[tuple[int, int]], source: str, name: str) -> _Op:
        """Ops that differ in the number of their columns alone, as one that reads ``source``."""
        first, number = alike[0], len(alike)
        place, factor = found[0]
        kinds = {
            (
                *op[:2],
                *op[3:5],
                *(self._tensors[k].dtype for k in op.operands),
                _rule(op).with_size(factor, 2),
            )
            for op in alike
        }
        if len({*found}) > 1 or len(kinds) > 1:
            raise _WrongError("its ops differ in more than their columns")
        operands = [made_names.joined_operand(name, number, i) for i in range(len(first.operands))]
        for i, constant in enumerate(operands):
            if i != place:
                self._add_sum(constant, [op.operands[i] for op in alike])
        operands[place] = source
        writes = made_names.merged_name(first.writes[0], number)
        self._add_sum(writes, [op.writes[0] for op in alike])
        rule = _rule(first).with_size(factor, sum(_rule(op).factors[factor].size for op in alike))
        return self._with_operands(first, operands, rule, sum(op.flops for op in alike), writes)

    def _parted(self, last: _Op, tails: Sequence[_Op], product: _Op) -> _Op:
        """What splits the columns of ``last`` into the results of ``tails``."""
        writes = tuple(op.writes[0] for op in tails)
        rule, axis = (
            _rule(last),
            next(
                axis
                for axis, one in enumerate(_rule(product).results[0])
                if {*_column_factors(product)} & {*one}
            ),
        )
        shapes = [_rule(op).shape(_rule(op).results[0]) for op in tails]
        whole = rule.shape(rule.results[0])
        along = [shape[axis] for shape in shapes]
        others = {(*shape[:axis], *shape[axis + 1 :]) for shape in (*shapes, whole)}
        if sum(along) != whole[axis] or len(others) > 1:
            raise _WrongError("the results do not make up what is split")
        return self._split(last, writes)

    def _split(self, last: _Op, writes: Sequence[str]) -> _Op:
        reads = ((last.writes[0], self._tensors[last.writes[0]].elements),)
        return _Op("Split", DATA_MOVEMENT, 0.0, last.dtype, last.on_chips, reads, tuple(writes))

    def _with_operands(self, op: _Op, operands: Sequence[str], rule: Rule, flops: float, writes: str) -> _Op:
        touched = dict(op.reads)
        reads = sorted((one, touched.get(one, self._tensors[one].elements)) for one in operands)
        made = op._replace(flops=flops, reads=tuple(reads), writes=(writes,), results=(writes,))
        return made._replace(rule=rule, operands=tuple(operands))

    def _weights_of(self, name: str, op: _Op) -> tuple[str, ...]:
        """The weight, which no other op reads, and the bias of a product of an activation."""
        weights = op.operands[1:]
        is_product = (
            op.op_type in _PRODUCTS and 1 <= len(weights) <= 2 and len({*op.operands}) == len(weights) + 1
        )
        if (
            not is_product
            or not all(map(self._is_constant, weights))
            or self._tensors[op.operands[0]].kind == WEIGHT
        ):
            raise _WrongError(f"op {name!r} is no product of a weight of its own")
        if len(self._readers[weights[0]]) > 1:
            raise _WrongError(f"the weight of op {name!r} has other readers")
        rule, columns = _rule(op), _column_factors(op)
        flat = [piece for one in rule.operands[1] for piece in one]
        if not columns or not {*columns} <= {*flat}:
            raise _WrongError(f"op {name!r} has no columns")
        if len(weights) > 1 and tuple(piece for one in rule.operands[2] for piece in one) != columns:
            raise _WrongError(f"op {name!r} has a bias that is not one of columns")
        return weights

    def _column(self, product: _Op) -> _Extent:
        """Where the columns of a product lie in its result."""
        found = _extent(_rule(product), _rule(product).results[0], _column_factors(product))
        if found is None:
            raise _WrongError("the columns of its product do not lie side by side")
        return found

    def _follows(self, before: _Op, op: _Op, name: str) -> int:
        """Which operand of ``op`` is what ``before`` writes, which nothing else reads."""
        tensor = before.writes[0]
        if (
            self._readers[tensor] != [name]
            or self._tensors[tensor].is_output
            or op.operands.count(tensor) != 1
        ):
            raise _WrongError(f"op {name!r} does not alone read what the op before it writes")
        if self._tensors[tensor].dtype != self._tensors[op.writes[0]].dtype:
            raise _WrongError(f"op {name!r} writes another type")
        return op.operands.index(tensor)

    def _check_same_view(self, product: _Op, op: _Op, name: str) -> None:
        """An op goes over its operand as over its result, in the shape of the product's result."""
        rule, place = _rule(op), [i for i, one in enumerate(op.operands) if self._tensors[one].kind != WEIGHT]
        shape = _rule(product).shape(_rule(product).results[0])
        if (
            len(place) != 1
            or rule.operands[place[0]] != rule.results[0]
            or rule.shape(rule.results[0]) != shape
        ):
            raise _WrongError(f"op {name!r} does not go over the elements of the product")

    def _check_constant(self, op: _Op, place: int, column: _Extent, name: str) -> None:
        """A constant has one element, or one for each column in their order."""
        rule = _rule(op)
        flat = tuple(piece for one in rule.operands[place] for piece in one)
        is_along = not flat or _extent(rule, rule.results[0], flat) == column
        if not self._is_constant(op.operands[place]) or not is_along:
            raise _WrongError(f"op {name!r} reads something else than a constant of columns")

    def _is_constant(self, name: str) -> bool:
        return self._tensors[name].kind == WEIGHT and bool(IS_FLOATING[self._tensors[name].dtype])

    def _add(self, name: str, tensor: _Tensor) -> None:
        if name in self._tensors:
            raise _WrongError(f"tensor {name!r} is there already")
        self._tensors[name] = tensor

    def _add_sum(self, name: str, of: Sequence[str]) -> None:
        elements = sum(self._tensors[one].elements for one in of)
        self._add(name, self._tensors[of[0]]._replace(elements=elements, is_output=False))

    def _replace(self, names: Sequence[str], made: Mapping[str, _Op]) -> None:
        for name in names:
            for tensor, _ in self._ops.pop(name).reads:
                self._readers[tensor].remove(name)
        for name, op in made.items():
            self._note(name, op)
        if taken := self._ops.keys() & made.keys():
            raise _WrongError(f"op {min(taken)!r} is there already")
        self._ops |= made

    def differences(self, rewritten: Graph) -> Iterator[str]:
        """Where the rewritten graph is not what it must be."""
        ops, tensors = _ops(rewritten), _tensors(rewritten)
        for name in sorted(self._ops.keys() ^ ops.keys()):
            yield f"op {name!r} is {'missing' if name in self._ops else 'not of a rewrite'}."
        for name in self._ops.keys() & ops.keys():
            want, found = self._ops[name], ops[name]
            if want.op_type in ("Concat", "Split") and want.rule is None:  # its rule follows from its shapes
                found = found._replace(rule=None, operands=(), results=())
            if abs(want.flops - found.flops) > 1e-9 * want.flops or want._replace(flops=found.flops) != found:
                yield f"op {name!r} is not what the rewrites make of it."
        used = {tensor for op in self._ops.values() for tensor in (*op.writes, *(one for one, _ in op.reads))}
        used |= {name for name in self._touched if self._tensors[name].elements}
        wanted = {name: self._tensors[name] for name in used}
        for name in sorted(wanted.keys() ^ tensors.keys()):
            yield f"tensor {name!r} is {'missing' if name in wanted else 'not of a rewrite'}."
        for name in sorted(wanted.keys() & tensors.keys()):
            if wanted[name] != tensors[name]:
                yield f"tensor {name!r} is not what the rewrites make of it."
        if Counter(_states(self._sent)) != Counter(_states(rewritten)):
            yield "the states are not as they were."
        if rewritten.fingerprint != self._sent.fingerprint or rewritten.bindings != self._sent.bindings:
            yield "the rewritten graph is not of the graph as sent."


class _Extent(NamedTuple):
    """Where factors that lie side by side are in a tensor."""

    blocks: int  # before them
    size: int
    behind: int  # elements


def _extent(rule: Rule, access: Access, factors: Dimension) -> _Extent | None:
    """Where some factors lie, in this order; None if they do not lie side by side."""
    found = [one for one in places(rule, access) if one.piece in factors]
    if tuple(one.piece for one in found) != factors or not found:
        return None
    if any(a.blocks * a.size != b.blocks for a, b in pairwise(found)):
        return None
    size = found[-1].blocks * found[-1].size // found[0].blocks
    return _Extent(found[0].blocks, size, found[-1].behind)


def _factors_at(op: _Op, extent: _Extent) -> list[int]:
    rule = _rule(op)
    return [one.piece for one in places(rule, rule.results[0])
            if (one.blocks, one.size, one.behind) == extent and isinstance(one.piece, int)]  # fmt: skip


def _column_factors(product: _Op) -> tuple[int, ...]:
    """The factors that the weight shares with the result, in its order; they must be one axis."""
    rule = _rule(product)
    shared = factors_in(rule.operands[1]) & factors_in(rule.results[0])
    axes = [one for one in rule.results[0] if shared & {*one}]
    if len(axes) != 1 or {*axes[0]} != shared:
        raise _WrongError("the columns of its product are no axis of the result")
    return tuple(piece for piece in axes[0] if isinstance(piece, int))


def _rule(op: _Op) -> Rule:
    if op.rule is None:
        raise _WrongError("an op has no rule")
    return op.rule


def _states(graph: Graph) -> Iterator[tuple]:
    names = graph.tensor_names
    return ((names[one.read], names[one.next], *one[2:]) for one in graph.states)


def _tensors(graph: Graph) -> dict[str, _Tensor]:
    columns = (graph.tensor_elements, graph.tensor_dtype, graph.tensor_kind, graph.tensor_is_output)
    rows = zip(graph.tensor_names, *(one.tolist() for one in columns), strict=True)
    return {name: _Tensor(*rest) for name, *rest in rows}


def _ops(graph: Graph) -> dict[str, _Op]:
    names, found = graph.tensor_names, {}
    for op, name in enumerate(graph.op_names):
        row = graph.rule_of(op)
        seconds = {kind: -1.0 if np.isnan(s[op]) else float(s[op]) for kind, s in graph.measured_s.items()}
        excluded = {kind: bool(one[op]) for kind, one in graph.excluded.items()}
        chips = (
            (kind, seconds.get(kind, -1.0), excluded.get(kind, False))
            for kind in sorted({*seconds, *excluded})
        )
        found[name] = _Op(
            graph.op_types[op],
            int(graph.op_class[op]),
            float(graph.op_flops[op]),
            int(graph.op_dtype[op]),
            tuple(one for one in chips if one[1:] != (-1.0, False)),
            tuple(sorted((names[k], touched) for k, touched in graph.reads_of(op))),
            tuple(names[k] for k in graph.outputs_of(op)),
            None if row is None else row.rule,
            () if row is None else tuple(names[k] for k in row.operands),
            () if row is None else tuple(names[k] for k in row.results),
        )
    return found
