"""Rechecks splits by columns, heads and the inner dimension: which slices the parts read, write and add."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from go_opt.model.axes import kept_heads, row_shapes
from go_opt.model.graph import DATA_MOVEMENT, INPUT, VECTOR, WEIGHT, Graph
from go_opt.model.op_costs import is_elementwise
from go_opt.model.plan import Split
from go_opt.model.rule import factors_in, multiplicands
from go_opt.solver.verify.row_spans import NamedOp, part_name


class _Held(NamedTuple):
    """A tensor of the whole graph that is in parts and not joined."""

    columns: int
    sizes: list[int]  # columns of each part


class ColumnSpans:
    """What parts must read by definition; ops of the whole graph are gone through in order.

    ``moves`` are the ops that slice an activation or add partial results as they must.
    """

    def __init__(
        self,
        whole: Graph,
        before: Mapping[str, NamedOp],
        after: Mapping[str, NamedOp],
        splits: Sequence[Split],
    ) -> None:
        self._whole, self._after = whole, after
        self._shapes = {whole.tensor_names[k]: shape for k, shape in row_shapes(whole).items()}
        self.moves: set[str] = set()
        self._wrong: dict[str, list[str]] = {}
        self._held: dict[str, _Held] = {}
        by_op = {one.op: one for one in splits}
        checks = {"columns": self._wrong_columns, "heads": self._wrong_heads, "inner": self._wrong_inner}
        for name, op in before.items():
            if name in by_op and by_op[name].kind in checks:
                one = by_op[name]
                names = [part_name(name, i, one.parts) for i in range(one.parts)]
                parts = [after[part] for part in names if part in after]
                check = checks[one.kind]
                self._wrong[name] = list(check(one, op, parts)) if len(parts) == one.parts else []

    def wrong(self, name: str) -> list[str]:
        """What is wrong with the parts of an op."""
        return self._wrong[name]

    def _wrong_columns(self, one: Split, op: NamedOp, parts: Sequence[NamedOp]) -> Iterator[str]:
        tensor, elements, _ = op.writes[0]
        passed = {name: self._held[name].columns for name, _, _ in op.reads if name in self._held}
        if passed and is_elementwise(op.kind[0]):
            columns = next(iter(passed.values()))
            if len(set(passed.values())) > 1 or elements % columns:
                yield "the parts do not read the same columns"
                return
        elif op.kind[0] in ("Conv", "Gemm", "MatMul") and not passed:
            columns = self._columns(one.op)
        else:
            yield "its columns cannot be divided"
            return
        rows = elements // max(1, columns)
        sizes = [part.writes[0][1] // max(1, rows) for part in parts]
        if min(sizes) < 1 or sum(sizes) != columns or any(part.flops <= 0 for part in parts if op.flops):
            yield "the parts do not write its columns"
            return
        if not one.joined:
            if not passed and self._readers(tensor) and not self._lie_last(tensor, columns):
                yield "its columns do not lie along the last dimensions of what it writes"
            self._held[tensor] = _Held(columns, sizes)
        for i, (part, size) in enumerate(zip(parts, sizes, strict=True)):
            needed = self._passed_reads if passed else _sliced_reads
            if part.reads != needed(one, op, i, size, columns):
                yield "a part does not read the columns that it needs"
            if abs(part.flops * columns - op.flops * size) > 1e-9 * op.flops * columns:
                yield "a part does not have the flops of its columns"

    def _passed_reads(
        self, one: Split, op: NamedOp, i: int, size: int, columns: int
    ) -> Counter[tuple[str, int, bool]]:
        """What part ``i`` of an element-wise op reads, of which an operand is in parts."""
        needed = Counter[tuple[str, int, bool]]()
        for name, elements, is_weight in op.reads.elements():
            if name in self._held and len(self._held[name].sizes) == one.parts:
                of_part = elements // columns * self._held[name].sizes[i]
                needed[part_name(name, i, one.parts), of_part, False] += elements == op.writes[0][1]
            elif is_weight and elements > 1 and self._ends(name, columns):
                needed[part_name(name, i, one.parts), elements // columns * size, True] += 1
            else:
                needed[name, elements, is_weight] += elements == 1
        return needed

    def _wrong_heads(self, one: Split, op: NamedOp, parts: Sequence[NamedOp]) -> Iterator[str]:
        """Part ``i`` reads and writes some of the heads, two or more, and whole what has none."""
        tensor, elements, _ = op.writes[0]
        heads = kept_heads(self._whole).get(self._whole.op_index[one.op])
        behind = (
            {} if heads is None else {self._whole.tensor_names[k]: each for k, each in heads.behind.items()}
        )
        if heads is None or not any(name in self._held for name in behind):
            yield "its heads are not known, or it reads none in parts"
            return
        run = elements // heads.number
        sizes = [part.writes[0][1] // run for part in parts]
        if (
            min(sizes) < 2
            or sum(sizes) != heads.number
            or any(part.writes[0][1] != run * size for part, size in zip(parts, sizes, strict=True))
        ):
            yield "the parts do not write its heads"
            return
        for name, _, is_weight in op.reads:
            columns = [size * behind.get(name, 0) for size in sizes]
            if name in behind and not is_weight and self._held.get(name) != (sum(columns), columns):
                yield "its heads are not the columns of what it reads"
                return
        if not one.joined:
            each = behind[tensor]
            self._held[tensor] = _Held(heads.number * each, [size * each for size in sizes])
        for i, (part, size) in enumerate(zip(parts, sizes, strict=True)):
            reads = Counter(
                (part_name(name, i, one.parts), touched // heads.number * size, is_weight)
                if name in behind
                else (name, touched, is_weight)
                for name, touched, is_weight in op.reads.elements()
            )
            is_share = abs(part.flops * heads.number - op.flops * size) <= 1e-9 * op.flops * heads.number
            if part.reads != reads or not is_share:
                yield "a part does not read the heads that it needs, or has not their flops"

    def _wrong_inner(self, one: Split, op: NamedOp, parts: Sequence[NamedOp]) -> Iterator[str]:
        """Part ``i`` multiplies slices of both operands, and its result is added to those before it."""
        written, elements, dtype = op.writes[0]
        terms = self._terms(one.op)
        weights = [(size, name) for name, size, is_weight in op.reads if is_weight]
        read = [(name, size) for name, size, is_weight in op.reads if not is_weight]
        if op.kind[0] not in ("Gemm", "MatMul") or len(read) != 1 or not weights or terms < one.parts:
            yield "its sums cannot be divided"
            return
        (activation, size), weight = read[0], max(weights)[1]
        rows, sum_flops = size // terms, 2.0 * elements * terms
        if rows * terms != size or max(weights)[0] * rows != elements * terms:
            yield "its operands are no rows and columns of as many terms"
            return
        held = self._held.get(activation)
        if held and not (held.columns == terms and self._lie_last(activation, terms)):
            yield "its terms are not the columns of what it reads"
            return
        name_of = "part" if held else "inner"
        slices = [f"{activation}/{name_of} {i + 1} of {one.parts}" for i in range(one.parts)]
        sizes = held.sizes if held else [self._sliced(activation, name) // rows for name in slices]
        if min(sizes) < 1 or sum(sizes) != terms or len(sizes) != one.parts:
            yield "the parts do not divide its sums"
            return
        for i, (part, count) in enumerate(zip(parts, sizes, strict=True)):
            reads = Counter({(slices[i], rows * count, False): 1})
            reads[f"{weight}/inner {i + 1} of {one.parts}", elements // rows * count, True] += 1
            reads.update({(name, number, True): int(i == 0) for number, name in weights if name != weight})
            flops = 2.0 * elements * count + (op.flops - sum_flops if i == 0 else 0.0)
            result = part_name(written, i, one.parts), elements, dtype
            if (part.reads, part.flops, part.writes) != (reads, flops, (result,)):
                yield "a part does not multiply slices of its operands"
        before = part_name(written, 0, one.parts)
        for i in range(1, one.parts):
            is_last = i == one.parts - 1
            ending = "" if is_last else f"/sum {i + 1} of {one.parts}"
            name, total = one.op + ending, written + ending
            added = (before, elements, False), (part_name(written, i, one.parts), elements, False)
            sums = NamedOp(
                ("Add", VECTOR, op.kind[2]), float(elements), Counter(added), ((total, elements, dtype),)
            )
            if self._after.get(name) != sums:
                yield "its partial results are not added"
            self.moves |= set() if is_last else {name}
            before = total

    def _columns(self, name: str) -> int:
        """The columns of a product: what its rule says that its weight adds to the result."""
        row = self._whole.rule_of(self._whole.op_index[name])
        if row is None:
            return 0
        rule, kinds = row.rule, self._whole.tensor_kind
        read = [rule.operands[i] for i in multiplicands(rule) if kinds[row.operands[i]] == WEIGHT]
        of_weight = factors_in(read[0]) if read else set()
        return rule.points(of_weight & factors_in(rule.results[0]))

    def _terms(self, name: str) -> int:
        """The terms of the sums of a product."""
        row = self._whole.rule_of(self._whole.op_index[name])
        factors = () if row is None else row.rule.factors
        return math.prod(factor.size for factor in factors if factor.kind == "reduction")

    def _sliced(self, tensor: str, name: str) -> int:
        """Elements of a slice of an activation; 0 if no op takes it of the activation."""
        op, k = self._after.get(name), self._whole.tensor_index[tensor]
        if op is None or len(op.writes) != 1 or self._whole.tensor_kind[k] == INPUT:
            return 0
        elements, dtype = op.writes[0][1], int(self._whole.tensor_dtype[k])
        reads = Counter({(tensor, elements, False): 1})
        if op != NamedOp(("Slice", DATA_MOVEMENT, dtype), 0.0, reads, ((name, elements, dtype),)):
            return 0
        self.moves.add(name)
        return elements

    def _lie_last(self, tensor: str, columns: int) -> bool:
        """Whether columns lie along the last dimensions, by the number of elements if there is one row."""
        rows = int(self._whole.tensor_elements[self._whole.tensor_index[tensor]]) // columns
        return rows == 1 or (self._ends(tensor, columns) and rows % columns != 0)

    def _ends(self, tensor: str, columns: int) -> bool:
        shape = self._shapes.get(tensor, ())
        return any(math.prod(shape[i:]) == columns for i in range(len(shape)))

    def _readers(self, tensor: str) -> int:
        k = self._whole.tensor_index[tensor]
        return int(self._whole.reader_ptr[k + 1] - self._whole.reader_ptr[k])


def _sliced_reads(one: Split, op: NamedOp, i: int, size: int, columns: int) -> Counter[tuple[str, int, bool]]:
    """What part ``i`` of a product reads: the whole activation, and columns of the weight and the bias."""
    most = max(elements for _, elements, is_weight in op.reads if is_weight)
    return Counter(
        (part_name(name, i, one.parts), elements // columns * size, True)
        if is_weight and elements in (most, columns)
        else (name, elements, is_weight)
        for name, elements, is_weight in op.reads.elements()
    )
