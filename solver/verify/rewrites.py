"""Rechecks rewrites by definition: from the graph as sent, each op that is replaced, and what replaces it.

Which elements a constant reaches is read from where factors lie in tensors, and so are the loops of a product
that takes over a Transpose. Ops and tensors are in words that do not depend on the numbers of a graph. What
the rewritten graph must be is derived here from the graph as sent; nothing may differ from it.
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
from go_opt.model.rule import NO_FACTOR, Access, Dimension, Rule, factors_in, places

_SCALES: Final = {
    "Mul": (0, 1),
    "Div": (0,),
    "BatchNormalization": (0,),
    "Sub": (1,),
}  # at which place the result is scaled
_SHIFTS: Final = {"Add": (0, 1), "Sub": (0, 1), "BatchNormalization": (0,)}
_WEIGHTED: Final = {"Add", "Mul"}
_FUNCTIONS: Final = {"Abs", "Erf", "Exp", "Neg", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh"}
_PRODUCTS: Final = {"Conv", "Gemm", "MatMul"}
_BATCHED: Final = {"Gemm", "MatMul"}
_CONTRACTIONS: Final = {"Einsum", "MatMul"}
NO_AXIS: Final = -1  # products are joined by columns, not along an axis of rows


class Tensor(NamedTuple):
    elements: int
    dtype: int
    kind: int
    is_output: bool = False


class Op(NamedTuple):
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


class WrongRewriteError(Exception):
    """What does not hold of a rewrite."""


def broken_rewrites(sent: Graph, rewritten: Graph, rewrites: Sequence[Rewrite]) -> Iterator[str]:
    """Yields the errors of ``rewritten``, which must be ``sent`` with ``rewrites``, one after another."""
    check = _Check(sent)
    for one in rewrites:
        try:
            check.apply(one)
        except WrongRewriteError as error:
            yield f"rewrite {one.rule!r} of op {one.ops[0]!r}: {error}."
            return
    yield from check.differences(rewritten)


class _Check:
    """The graph as sent, and what becomes of it."""

    def __init__(self, sent: Graph) -> None:
        self.sent = sent
        self.tensors, self.ops = tensors_of(sent), ops_of(sent)
        self.readers: dict[str, list[str]] = defaultdict(list)
        for name, op in self.ops.items():
            self.note(name, op)
        self.touched = {sent.tensor_names[k] for state in sent.states for k in (state.read, state.next)}
        self.touched |= {name for name, tensor in self.tensors.items() if tensor.elements == 0}

    def apply(self, rewrite: Rewrite) -> None:
        """What the ops of a rewrite become."""
        if len({*rewrite.ops}) < len(rewrite.ops) or not self.ops.keys() >= {*rewrite.ops}:
            raise WrongRewriteError("an op is not there, or named twice")
        ops = [self.ops[name] for name in rewrite.ops]
        for name, op in zip(rewrite.ops, ops, strict=True):
            tensors = {*op.writes, *(tensor for tensor, _ in op.reads)}
            is_measured = any(seconds >= 0.0 for _, seconds, _ in op.on_chips)
            if op.rule is None or len(op.writes) != 1 or is_measured or tensors & self.touched:
                raise WrongRewriteError(f"op {name!r} must stay as it is")
        if rewrite.rule in (made_names.MERGE, made_names.BATCH):
            self._join(rewrite.ops, ops, by_rows=rewrite.rule == made_names.BATCH)
            return
        rules = {
            made_names.FOLD: self._fold,
            made_names.TRANSPOSE: self._transpose,
            made_names.BIAS: self._bias,
        }
        if rewrite.rule not in rules:
            raise WrongRewriteError("there is no such rule")
        rules[rewrite.rule](rewrite.ops, ops)

    def _fold(self, names: Sequence[str], ops: Sequence[Op]) -> None:
        product, weights = ops[0], self._weights_of(names[0], ops[0])
        column = self._column(product)
        scaled = shifted = False
        for before, op, name in zip(ops[:-1], ops[1:], names[1:], strict=True):
            place = self.follows(before, op, name)
            is_scale, is_shift = (place in of.get(op.op_type, ()) for of in (_SCALES, _SHIFTS))
            constants = [i for i in range(len(op.operands)) if i != place]
            if not (is_scale or is_shift) or not constants:
                raise WrongRewriteError(f"op {name!r} is no scale or shift")
            self._check_same_view(product, op, name)
            for i in constants:
                self._check_constant(op, i, column, name)
            scaled, shifted = scaled or is_scale, shifted or is_shift
        if shifted and product.op_type == "MatMul":
            raise WrongRewriteError("a MatMul has no bias")
        operands, rule, flops = list(product.operands), known_rule(product), product.flops
        if scaled:
            operands[1] = made_names.folded_weight(names[0])
            self.add(operands[1], self.tensors[weights[0]])
        if shifted or len(weights) > 1:
            operands[2:] = [made_names.folded_bias(names[0])]
            self.add(operands[2], self.tensors[weights[0]]._replace(elements=column.size))
        if shifted and len(weights) == 1:
            flops += self.tensors[product.writes[0]].elements
            rule = rule._replace(operands=(*rule.operands, (_column_factors(product),)))
        made = self.with_operands(product, operands, rule, flops, ops[-1].writes[0])
        self.replace(names, {names[0]: made})

    def _bias(self, names: Sequence[str], ops: Sequence[Op]) -> None:
        if [op.op_type for op in ops] != ["MatMul", "Add"] or len(ops[0].operands) != 2:
            raise WrongRewriteError("its ops are no MatMul of two tensors and an Add")
        (product, op), rule = ops, known_rule(ops[0])
        self._weights_of(names[0], product)
        constant, columns = 1 - self.follows(product, op, names[1]), _column_factors(product)
        self._check_same_view(product, op, names[1])
        self._check_constant(op, constant, self._column(product), names[1])
        # Rows, inner elements and columns lie in this order, as a Gemm has them.
        read, weight, written = (
            tuple(piece for one in access for piece in one) for access in (*rule.operands, *rule.results)
        )
        rows, inner = written[: -len(columns)], weight[: -len(columns)]
        if (weight, written, read) != ((*inner, *columns), (*rows, *columns), (*rows, *inner)):
            raise WrongRewriteError("its MatMul has no rows and columns like those of a Gemm")
        if len(rule.results[0]) > 2 and self.tensors[op.writes[0]].is_output:
            raise WrongRewriteError("its result is an output of more axes than two")
        operands, rule = (
            [*product.operands, op.operands[constant]],
            rule._replace(operands=(*rule.operands, (columns,))),
        )
        if self.tensors[operands[2]].elements != self._column(product).size:
            raise WrongRewriteError("its constant is not one of columns")
        flops = product.flops + self.tensors[op.writes[0]].elements
        made = self.with_operands(product, operands, rule, flops, op.writes[0])
        self.replace(names, {names[0]: made._replace(op_type="Gemm")})

    def _transpose(self, names: Sequence[str], ops: Sequence[Op]) -> None:
        """A product, then Transposes that write what it alone reads, or alone read what it writes."""
        product = ops[0]
        types = {self.tensors[one].dtype for one in (*product.operands, *product.writes)}
        is_product = product.op_type in _CONTRACTIONS and len(product.operands) == 2 and len(types) == 1
        if not is_product or not IS_FLOATING[types.pop()] or len(ops) < 2:
            raise WrongRewriteError("its first op is no product of two tensors, or the only one")
        for name, turn in zip(names[1:], ops[1:], strict=True):
            if turn.op_type != "Transpose" or turn.on_chips != product.on_chips:
                raise WrongRewriteError(f"op {name!r} is no Transpose for the same chips")
            rule, by, operands = known_rule(product), known_rule(turn), list(product.operands)
            result = product.writes[0]
            if turn.operands[0] == result:
                self.follows(product, turn, name)
                written = _through(by, by.operands[0], by.results[0], rule, rule.results[0])
                rule, result = rule._replace(results=(written,)), turn.writes[0]
            else:
                place = self.follows(turn, product, names[0])
                if dict(product.reads)[operands[place]] != self.tensors[operands[place]].elements:
                    raise WrongRewriteError(f"not all is read of what op {name!r} writes")
                read = _through(by, by.results[0], by.operands[0], rule, rule.operands[place])
                operands[place] = turn.operands[0]
                rule = rule._replace(
                    operands=tuple(read if i == place else one for i, one in enumerate(rule.operands))
                )
            product = self.with_operands(product, operands, rule, product.flops, result)
        _check_strides(known_rule(product))
        self.replace(names, {names[0]: product})

    def _join(self, names: Sequence[str], ops: Sequence[Op], *, by_rows: bool) -> None:
        """Products with as many ops behind each: of one tensor by columns, or of the same weights by rows."""
        heads = [i for i, op in enumerate(ops) if op.op_type in (_BATCHED if by_rows else _PRODUCTS)]
        number, length = len(heads), len(ops) // max(len(heads), 1)
        if number < 2 or heads != list(range(0, len(ops), length)) or length * number != len(ops):
            raise WrongRewriteError("its ops are not products, each with as many ops behind it")
        read, axis, made = [ops[i].operands[0] for i in heads], NO_AXIS, dict[str, Op]()
        if len({*read}) != (number if by_rows else 1):
            raise WrongRewriteError("its products do not read one tensor, or as rows one each")
        source = read[0]
        if by_rows:
            self._check_apart([names[i] for i in heads])
            rows = [self._row_of(names[i], ops[i]) for i in heads]
            axis = rows[0][0]
            if len({axis for axis, _ in rows}) > 1:
                raise WrongRewriteError("its products have rows along different axes")
            source = made_names.joined_operand(names[0], number, 0)
            self.add_sum(source, read)
            self.tensors[source] = self.tensors[source]._replace(kind=ACTIVATION)
            reads = tuple(sorted((one, self.tensors[one].elements) for one in read))
            on_chips, dtype = ops[0].on_chips, ops[0].dtype
            made[made_names.concat_name(names[0], number)] = Op("Concat", DATA_MOVEMENT, 0.0, dtype, on_chips,
                                                                reads, (source,))  # fmt: skip
        for step in range(length):
            along = [i + step for i in heads]
            found = {self._place_in_chain(ops, names, i, length, axis) for i in along}
            if len(found) > 1:
                raise WrongRewriteError("its ops read the result before, or have columns, elsewhere")
            ((place, factor),) = found
            rules = [known_rule(ops[i]) for i in along]
            if by_rows:
                total = sum(size for _, size in rows)
                rules = [rule.with_length(place, axis, total) for rule in rules]
            else:
                total = sum(rule.factors[factor].size for rule in rules)
                rules = [rule.with_size(factor, total) for rule in rules]
            name = None if by_rows else names[step]
            joined = self._joined([ops[i] for i in along], rules, place, source, name)
            made[made_names.merged_name(names[step], number)] = joined
            source = joined.writes[0]
        tails = ops[length - 1 :: length]
        if not by_rows:
            self._check_parts(joined, tails, ops[0])
        made[made_names.split_name(names[0], number)] = self.split(joined, [op.writes[0] for op in tails])
        self.replace(names, made)

    def _place_in_chain(
        self, ops: Sequence[Op], names: Sequence[str], i: int, length: int, axis: int
    ) -> tuple[int, int]:
        """Which operand is what the op before writes, or all products read; and the factor of the columns.

        An op behind a product is a function of each element, and of a constant of columns, or for all rows.
        """
        op, product, name, rule = ops[i], ops[i - i % length], names[i], known_rule(ops[i])
        if i % length == 0:
            if axis != NO_AXIS:
                return 0, NO_FACTOR
            self._weights_of(name, op)
            if len(_column_factors(op)) != 1:
                raise WrongRewriteError(f"op {name!r} has groups")
            return 0, _column_factors(op)[0]
        place = self.follows(ops[i - 1], op, name)
        self._check_same_view(product, op, name)
        rest = [one for one in range(len(op.operands)) if one != place]
        if op.op_type not in (_WEIGHTED if rest else _FUNCTIONS) or len(rest) > 1:
            raise WrongRewriteError(f"op {name!r} cannot be joined")
        of_rest = {piece for one in rest for piece in factors_in(rule.operands[one])}
        if axis != NO_AXIS:
            is_constant = all(self.is_constant(op.operands[one]) for one in rest)
            if not is_constant or {*rule.results[0][axis]} & of_rest:
                raise WrongRewriteError(f"op {name!r} reads something else than a constant for all rows")
            return place, NO_FACTOR
        column = self._column(product)
        for one in rest:
            self._check_constant(op, one, column, name)
        here = _factors_at(op, column)
        if len(here) != 1 or (rest and not of_rest):
            raise WrongRewriteError(f"op {name!r} cannot be merged")
        return place, here[0]

    def _joined(
        self, alike: Sequence[Op], rules: Sequence[Rule], place: int, source: str, name: str | None
    ) -> Op:
        """Ops that differ in one size alone, with ``rules`` of the whole size, as one that reads ``source``.

        Args:
          name: of the op whose joined constants it reads; None: all read the same.
        """
        first, number = alike[0], len(alike)
        kinds = {
            (*op[:2], *op[3:5], rule, *(self.tensors[k].dtype for k in (*op.operands, *op.writes)),
             () if name else (*op.operands[:place], *op.operands[place + 1 :]))
            for op, rule in zip(alike, rules, strict=True)
        }  # fmt: skip
        if len(kinds) > 1:
            raise WrongRewriteError("its ops differ in more than their columns or rows")
        operands = list(first.operands)
        operands[place] = source
        for i in range(len(operands)):
            if name and i != place:
                operands[i] = made_names.joined_operand(name, number, i)
                self.add_sum(operands[i], [op.operands[i] for op in alike])
        result = made_names.merged_name(first.writes[0], number)
        self.add_sum(result, [op.writes[0] for op in alike])
        return self.with_operands(first, operands, rules[0], sum(op.flops for op in alike), result)

    def _check_parts(self, last: Op, tails: Sequence[Op], product: Op) -> None:
        """The columns of ``last`` are the results of ``tails``, side by side."""
        columns, of_product = {*_column_factors(product)}, known_rule(product).results[0]
        axis = next(axis for axis, one in enumerate(of_product) if columns & {*one})
        whole, *shapes = (known_rule(op).shape(known_rule(op).results[0]) for op in (last, *tails))
        others = {(*shape[:axis], *shape[axis + 1 :]) for shape in (*shapes, whole)}
        if sum(shape[axis] for shape in shapes) != whole[axis] or len(others) > 1:
            raise WrongRewriteError("the results do not make up what is split")

    def _row_of(self, name: str, op: Op) -> tuple[int, int]:
        """The axis of the rows of a product, in its activation as in its result, and their number.

        The last axes are those of the inner elements and of the columns. Of others, one without a factor may
        be another in the result, unless there are no others.
        """
        if len(op.operands) < 2 or not all(map(self.is_constant, op.operands[1:])):
            raise WrongRewriteError(f"op {name!r} is no product of a weight")
        rule, tensor = known_rule(op), self.tensors[op.operands[0]]
        read, written = rule.operands[0], rule.results[0]
        if tensor.kind == WEIGHT or dict(op.reads)[op.operands[0]] != tensor.elements:
            raise WrongRewriteError(f"op {name!r} is no product of a whole activation")
        of_weights = {piece for access in rule.operands[1:] for one in access for piece in one}
        inner = {piece for one in rule.operands[1] for piece in one} - factors_in(rule.results[0])
        if not read[-1] or {*read[-1]} != inner or not written[-1] or not {*written[-1]} <= of_weights:
            raise WrongRewriteError(f"op {name!r} does not end with inner elements and columns")
        if len(read) == 2 == len(written) and read[0] == written[0] == ():
            return 0, 1
        for axis, (one, other) in enumerate(zip(read[:-1], written[:-1], strict=False)):
            if len(read) != len(written) or read[:-1] != written[:-1]:
                break
            if one == other and len(one) == 1 and not {*one} & of_weights:
                return axis, rule.size(one[0])
        raise WrongRewriteError(f"op {name!r} has no rows")

    def _check_apart(self, names: Sequence[str]) -> None:
        """No op needs the result of another: of all that each needs, none is among them."""
        producer = {tensor: name for name, op in self.ops.items() for tensor in op.writes}
        left, needed = list(names), set[str]()
        while left:
            for tensor, _ in self.ops[left.pop()].reads:
                before = producer.get(tensor)
                if before is not None and before not in needed:
                    needed.add(before)
                    left.append(before)
        if not needed.isdisjoint(names):
            raise WrongRewriteError("one of its products needs the result of another")

    def _weights_of(self, name: str, op: Op) -> tuple[str, ...]:
        """The weight, which no other op reads, and the bias of a product of an activation."""
        weights = op.operands[1:]
        is_product = (
            op.op_type in _PRODUCTS and 1 <= len(weights) <= 2 and len({*op.operands}) == len(weights) + 1
        )
        if (
            not is_product
            or not all(map(self.is_constant, weights))
            or self.tensors[op.operands[0]].kind == WEIGHT
        ):
            raise WrongRewriteError(f"op {name!r} is no product of a weight of its own")
        if len(self.readers[weights[0]]) > 1:
            raise WrongRewriteError(f"the weight of op {name!r} has other readers")
        rule, columns = known_rule(op), _column_factors(op)
        flat = [piece for one in rule.operands[1] for piece in one]
        if not columns or not {*columns} <= {*flat}:
            raise WrongRewriteError(f"op {name!r} has no columns")
        if len(weights) > 1 and tuple(piece for one in rule.operands[2] for piece in one) != columns:
            raise WrongRewriteError(f"op {name!r} has a bias that is not one of columns")
        return weights

    def _column(self, product: Op) -> Extent:
        """Where the columns of a product lie in its result."""
        found = extent_of(known_rule(product), known_rule(product).results[0], _column_factors(product))
        if found is None:
            raise WrongRewriteError("the columns of its product do not lie side by side")
        return found

    def _check_same_view(self, product: Op, op: Op, name: str) -> None:
        """An op goes over its operand as over its result, in the shape of the product's result."""
        rule, place = (
            known_rule(op),
            [i for i, one in enumerate(op.operands) if self.tensors[one].kind != WEIGHT],
        )
        shape = known_rule(product).shape(known_rule(product).results[0])
        if (
            len(place) != 1
            or rule.operands[place[0]] != rule.results[0]
            or rule.shape(rule.results[0]) != shape
        ):
            raise WrongRewriteError(f"op {name!r} does not go over the elements of the product")

    def _check_constant(self, op: Op, place: int, column: Extent, name: str) -> None:
        """A constant has one element, or one for each column in their order."""
        rule = known_rule(op)
        flat = tuple(piece for one in rule.operands[place] for piece in one)
        is_along = not flat or extent_of(rule, rule.results[0], flat) == column
        if not self.is_constant(op.operands[place]) or not is_along:
            raise WrongRewriteError(f"op {name!r} reads something else than a constant of columns")

    def note(self, name: str, op: Op) -> None:
        for tensor, _ in op.reads:
            self.readers[tensor].append(name)

    def split(self, last: Op, writes: Sequence[str]) -> Op:
        reads = ((last.writes[0], self.tensors[last.writes[0]].elements),)
        return Op("Split", DATA_MOVEMENT, 0.0, last.dtype, last.on_chips, reads, tuple(writes))

    def with_operands(self, op: Op, operands: Sequence[str], rule: Rule, flops: float, writes: str) -> Op:
        touched = dict(op.reads)
        reads = sorted((one, touched.get(one, self.tensors[one].elements)) for one in {*operands})
        made = op._replace(flops=flops, reads=tuple(reads), writes=(writes,), results=(writes,))
        return made._replace(rule=rule, operands=tuple(operands))

    def follows(self, before: Op, op: Op, name: str) -> int:
        """Which operand of ``op`` is what ``before`` writes, which nothing else reads."""
        tensor = before.writes[0]
        if self.readers[tensor] != [name] or self.tensors[tensor].is_output or op.operands.count(tensor) != 1:
            raise WrongRewriteError(f"op {name!r} does not alone read what the op before it writes")
        if self.tensors[tensor].dtype != self.tensors[op.writes[0]].dtype:
            raise WrongRewriteError(f"op {name!r} writes another type")
        return op.operands.index(tensor)

    def is_constant(self, name: str) -> bool:
        return self.tensors[name].kind == WEIGHT and bool(IS_FLOATING[self.tensors[name].dtype])

    def add(self, name: str, tensor: Tensor) -> None:
        if name in self.tensors:
            raise WrongRewriteError(f"tensor {name!r} is there already")
        self.tensors[name] = tensor

    def add_sum(self, name: str, of: Sequence[str]) -> None:
        elements = sum(self.tensors[one].elements for one in of)
        self.add(name, self.tensors[of[0]]._replace(elements=elements, is_output=False))

    def replace(self, names: Sequence[str], made: Mapping[str, Op]) -> None:
        for name in names:
            for tensor, _ in self.ops.pop(name).reads:
                self.readers[tensor].remove(name)
        for name, op in made.items():
            self.note(name, op)
        if taken := self.ops.keys() & made.keys():
            raise WrongRewriteError(f"op {min(taken)!r} is there already")
        self.ops |= made

    def differences(self, rewritten: Graph) -> Iterator[str]:
        """Where the rewritten graph is not what it must be."""
        ops, tensors = ops_of(rewritten), tensors_of(rewritten)
        for name in sorted(self.ops.keys() ^ ops.keys()):
            yield f"op {name!r} is {'missing' if name in self.ops else 'not of a rewrite'}."
        for name in self.ops.keys() & ops.keys():
            want, found = self.ops[name], ops[name]
            if want.op_type in ("Concat", "Split") and want.rule is None:  # its rule follows from its shapes
                found = found._replace(rule=None, operands=(), results=())
            if abs(want.flops - found.flops) > 1e-9 * want.flops or want._replace(flops=found.flops) != found:
                yield f"op {name!r} is not what the rewrites make of it."
        used = {tensor for op in self.ops.values() for tensor in (*op.writes, *(one for one, _ in op.reads))}
        used |= {name for name in self.touched if self.tensors[name].elements}
        wanted = {name: self.tensors[name] for name in used}
        for name in sorted(wanted.keys() ^ tensors.keys()):
            yield f"tensor {name!r} is {'missing' if name in wanted else 'not of a rewrite'}."
        for name in sorted(wanted.keys() & tensors.keys()):
            if wanted[name] != tensors[name]:
                yield f"tensor {name!r} is not what the rewrites make of it."
        if Counter(_states(self.sent)) != Counter(_states(rewritten)):
            yield "the states are not as they were."
        if rewritten.fingerprint != self.sent.fingerprint or rewritten.bindings != self.sent.bindings:
            yield "the rewritten graph is not of the graph as sent."


class Extent(NamedTuple):
    """Where factors that lie side by side are in a tensor."""

    blocks: int  # before them
    size: int
    behind: int  # elements


def extent_of(rule: Rule, access: Access, factors: Dimension) -> Extent | None:
    """Where some factors lie, in this order; None if they do not lie side by side."""
    found = [one for one in places(rule, access) if one.piece in factors]
    if tuple(one.piece for one in found) != factors or not found:
        return None
    if any(a.blocks * a.size != b.blocks for a, b in pairwise(found)):
        return None
    size = found[-1].blocks * found[-1].size // found[0].blocks
    return Extent(found[0].blocks, size, found[-1].behind)


def known_rule(op: Op) -> Rule:
    if op.rule is None:
        raise WrongRewriteError("an op has no rule")
    return op.rule


def _states(graph: Graph) -> Iterator[tuple]:
    names = graph.tensor_names
    return ((names[one.read], names[one.next], *one[2:]) for one in graph.states)


def tensors_of(graph: Graph) -> dict[str, Tensor]:
    columns = (graph.tensor_elements, graph.tensor_dtype, graph.tensor_kind, graph.tensor_is_output)
    rows = zip(graph.tensor_names, *(one.tolist() for one in columns), strict=True)
    return {name: Tensor(*rest) for name, *rest in rows}


def ops_of(graph: Graph) -> dict[str, Op]:
    names, found = graph.tensor_names, {}
    for op, name in enumerate(graph.op_names):
        row = graph.rule_of(op)
        seconds = {kind: -1.0 if np.isnan(s[op]) else float(s[op]) for kind, s in graph.measured_s.items()}
        excluded = {kind: bool(one[op]) for kind, one in graph.excluded.items()}
        chips = (
            (kind, seconds.get(kind, -1.0), excluded.get(kind, False))
            for kind in sorted({*seconds, *excluded})
        )
        found[name] = Op(
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


def _through(by: Rule, near: Access, far: Access, rule: Rule, access: Access) -> Access:
    """An access to a tensor, seen from the other side of a Transpose, of which ``near`` is the tensor."""
    sizes, seen_by = ([size for size in shape if size > 1] for shape in (by.shape(near), rule.shape(access)))
    if sizes != seen_by:
        raise WrongRewriteError("a Transpose sees its tensor in another shape than the product")
    of = {one[1:]: one.piece for one in places(rule, access)}
    turned = {one.piece: of.get(one[1:]) for one in places(by, near)}
    seen = tuple(tuple(turned.get(piece) for piece in one) for one in far)
    if None in [piece for one in seen for piece in one] or len(of) != len(turned):
        raise WrongRewriteError("a Transpose divides an axis of the product")
    return tuple(tuple(piece for piece in one if piece is not None) for one in seen)


def _check_strides(rule: Rule) -> None:
    """A product is a batch of products of matrices with strides, of which one is 1."""
    accesses = (*rule.operands, *rule.results)
    a, b, c = map(factors_in, accesses)
    for access in accesses:
        if any(one.behind == 1 and one.piece in a & b & c for one in places(rule, access)):
            raise WrongRewriteError("its batch lies innermost")
    for i, j, shared in ((0, 1, a & b - c), (0, 2, a & c - b), (1, 2, b & c - a)):
        lies = [[one for one in places(rule, accesses[k]) if one.piece in shared] for k in (i, j)]
        is_one = all(x.behind == y.size * y.behind for of in lies for x, y in pairwise(of))
        if not is_one or len({tuple(one.piece for one in of) for of in lies}) > 1:
            raise WrongRewriteError("its rows, columns or inner elements do not lie side by side")


def _factors_at(op: Op, extent: Extent) -> list[int]:
    rule = known_rule(op)
    return [one.piece for one in places(rule, rule.results[0])
            if (one.blocks, one.size, one.behind) == extent and isinstance(one.piece, int)]  # fmt: skip


def _column_factors(product: Op) -> tuple[int, ...]:
    """The factors that the weight shares with the result, in its order; they must be one axis."""
    rule = known_rule(product)
    shared = factors_in(rule.operands[1]) & factors_in(rule.results[0])
    axes = [one for one in rule.results[0] if shared & {*one}]
    if len(axes) != 1 or {*axes[0]} != shared:
        raise WrongRewriteError("the columns of its product are no axis of the result")
    return tuple(piece for piece in axes[0] if isinstance(piece, int))
