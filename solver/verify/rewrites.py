"""Rechecks rewrites by definition: from the graph as sent, each op that is replaced, and what replaces it.

Which elements a constant reaches is read from where factors lie in tensors. What the rewritten graph must be
is derived here from the graph as sent; nothing may differ from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from go_opt.env.rewrites import names as made_names
from go_opt.model.graph import ACTIVATION, DATA_MOVEMENT, WEIGHT, Graph, Rewrite
from go_opt.model.rule import factors_in, places
from go_opt.solver.verify.rewrite_moves import MovesState
from go_opt.solver.verify.rewrite_state import Extent, Op, WrongRewriteError, extent_of, known_rule

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


class _Check(MovesState):
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
        rules = {made_names.FOLD: self._fold, made_names.MERGE: self._merge, made_names.BATCH: self._batch,
                 made_names.TRANSPOSE: self.transpose, made_names.BIAS: self._bias}  # fmt: skip
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

    def _merge(self, names: Sequence[str], ops: Sequence[Op]) -> None:
        heads = [i for i, op in enumerate(ops) if op.op_type in _PRODUCTS]
        number, length = len(heads), len(ops) // max(len(heads), 1)
        if number < 2 or heads != list(range(0, len(ops), length)) or length * number != len(ops):
            raise WrongRewriteError("its ops are not products, each with as many ops behind it")
        if len({ops[i].operands[0] for i in heads}) > 1:
            raise WrongRewriteError("its products read different tensors")
        found = [self._place_in_chain(ops, names, i, length) for i in range(len(ops))]
        made: dict[str, Op] = {}
        written = ops[0].operands[0]
        for step in range(length):
            alike = ops[step::length]
            joined = self._joined(alike, found[step::length], written, names[step])
            made[made_names.merged_name(names[step], number)] = joined
            written = joined.writes[0]
        made[made_names.split_name(names[0], number)] = self._parted(
            joined, ops[length - 1 :: length], ops[0]
        )
        self.replace(names, made)

    def _batch(self, names: Sequence[str], ops: Sequence[Op]) -> None:
        heads = [i for i, op in enumerate(ops) if op.op_type in _BATCHED]
        number, length = len(heads), len(ops) // max(len(heads), 1)
        if number < 2 or heads != list(range(0, len(ops), length)) or length * number != len(ops):
            raise WrongRewriteError("its ops are not products, each with as many ops behind it")
        read = [ops[i].operands[0] for i in heads]
        if len({*read}) < number:
            raise WrongRewriteError("it has products of one tensor")
        self._check_apart([names[i] for i in heads])
        rows = [self._row_of(names[i], ops[i]) for i in heads]
        (axis, _), total = rows[0], sum(size for _, size in rows)
        if len({axis for axis, _ in rows}) > 1:
            raise WrongRewriteError("its products have rows along different axes")
        source = made_names.joined_operand(names[0], number, 0)
        self.add_sum(source, read)
        self.tensors[source] = self.tensors[source]._replace(kind=ACTIVATION)
        reads = tuple(sorted((one, self.tensors[one].elements) for one in read))
        on_chips, dtype = ops[0].on_chips, ops[0].dtype
        made = {made_names.concat_name(names[0], number): Op("Concat", DATA_MOVEMENT, 0.0, dtype, on_chips,
                                                             reads, (source,))}  # fmt: skip
        for step in range(length):
            alike, before = ops[step::length], ops[step - 1 :: length] if step else ()
            for i, (op, last) in enumerate(zip(alike, before, strict=False)):
                self._check_in_batch(ops[i * length], last, op, names[i * length + step], axis)
            name = made_names.merged_name(names[step], number)
            made[name] = self._stacked(alike, before, source, axis, total)
            source = made[name].writes[0]
        tails = [op.writes[0] for op in ops[length - 1 :: length]]
        made[made_names.split_name(names[0], number)] = self.split(made[name], tails)
        self.replace(names, made)

    def _check_in_batch(self, product: Op, before: Op, op: Op, name: str, axis: int) -> None:
        """An op is a function of each element of what ``before`` writes, and of a constant for all rows."""
        place = self.follows(before, op, name)
        self._check_same_view(product, op, name)
        rest, rule = [i for i in range(len(op.operands)) if i != place], known_rule(op)
        if op.op_type not in (_WEIGHTED if rest else _FUNCTIONS) or len(rest) > 1:
            raise WrongRewriteError(f"op {name!r} cannot be batched")
        for i in rest:
            if not self.is_constant(op.operands[i]) or {*rule.results[0][axis]} & factors_in(
                rule.operands[i]
            ):
                raise WrongRewriteError(f"op {name!r} reads something else than a constant for all rows")

    def _stacked(self, alike: Sequence[Op], before: Sequence[Op], source: str, axis: int, total: int) -> Op:
        """Ops that differ in their rows alone, as one that reads ``source``."""
        places = (
            {op.operands.index(last.writes[0]) for op, last in zip(alike, before, strict=True)}
            if before
            else {0}
        )
        if len(places) > 1:
            raise WrongRewriteError("its ops read the result before at different places")
        (place,) = places
        kinds = {
            (*op[:2], *op[3:5], op.operands[:place], op.operands[place + 1 :],
             known_rule(op).with_length(place, axis, total),
             *(self.tensors[k].dtype for k in (op.operands[place], *op.writes)))
            for op in alike
        }  # fmt: skip
        if len(kinds) > 1:
            raise WrongRewriteError("its ops differ in more than their rows")
        first, number = alike[0], len(alike)
        operands = [source if i == place else one for i, one in enumerate(first.operands)]
        result = made_names.merged_name(first.writes[0], number)
        self.add_sum(result, [op.writes[0] for op in alike])
        rule = known_rule(first).with_length(place, axis, total)
        return self.with_operands(first, operands, rule, sum(op.flops for op in alike), result)

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

    def _place_in_chain(
        self, ops: Sequence[Op], names: Sequence[str], i: int, length: int
    ) -> tuple[int, int]:
        """Which operand is the tensor that all products read, or what the op before writes; and the factor of
        the columns."""
        op, product = ops[i], ops[i - i % length]
        if i % length == 0:
            self._weights_of(names[i], op)
            if len(_column_factors(op)) != 1:
                raise WrongRewriteError(f"op {names[i]!r} has groups")
            return 0, _column_factors(op)[0]
        place, column = self.follows(ops[i - 1], op, names[i]), self._column(product)
        self._check_same_view(product, op, names[i])
        rest = [one for one in range(len(op.operands)) if one != place]
        is_weighted = op.op_type in _WEIGHTED and len(rest) == 1
        if is_weighted:
            self._check_constant(op, rest[0], column, names[i])
        here = _factors_at(op, column)
        if len(here) != 1 or not (
            (is_weighted and factors_in(known_rule(op).operands[rest[0]]))
            or (op.op_type in _FUNCTIONS and not rest)
        ):
            raise WrongRewriteError(f"op {names[i]!r} cannot be merged")
        return place, here[0]

    def _joined(self, alike: Sequence[Op], found: Sequence[tuple[int, int]], source: str, name: str) -> Op:
        """Ops that differ in the number of their columns alone, as one that reads ``source``."""
        first, number = alike[0], len(alike)
        place, factor = found[0]
        kinds = {
            (
                *op[:2],
                *op[3:5],
                *(self.tensors[k].dtype for k in op.operands),
                known_rule(op).with_size(factor, 2),
            )
            for op in alike
        }
        if len({*found}) > 1 or len(kinds) > 1:
            raise WrongRewriteError("its ops differ in more than their columns")
        operands = [made_names.joined_operand(name, number, i) for i in range(len(first.operands))]
        for i, constant in enumerate(operands):
            if i != place:
                self.add_sum(constant, [op.operands[i] for op in alike])
        operands[place] = source
        writes = made_names.merged_name(first.writes[0], number)
        self.add_sum(writes, [op.writes[0] for op in alike])
        rule = known_rule(first).with_size(factor, sum(known_rule(op).factors[factor].size for op in alike))
        return self.with_operands(first, operands, rule, sum(op.flops for op in alike), writes)

    def _parted(self, last: Op, tails: Sequence[Op], product: Op) -> Op:
        """What splits the columns of ``last`` into the results of ``tails``."""
        writes = tuple(op.writes[0] for op in tails)
        rule, axis = (
            known_rule(last),
            next(
                axis
                for axis, one in enumerate(known_rule(product).results[0])
                if {*_column_factors(product)} & {*one}
            ),
        )
        shapes = [known_rule(op).shape(known_rule(op).results[0]) for op in tails]
        whole = rule.shape(rule.results[0])
        along = [shape[axis] for shape in shapes]
        others = {(*shape[:axis], *shape[axis + 1 :]) for shape in (*shapes, whole)}
        if sum(along) != whole[axis] or len(others) > 1:
            raise WrongRewriteError("the results do not make up what is split")
        return self.split(last, writes)

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
