"""Rechecks splits by rows: the rows of each tensor of a split graph, and the rows that a part needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from go_opt.model.axes import row_shapes, row_windows
from go_opt.model.graph import Graph
from go_opt.model.plan import Split


class NamedOp(NamedTuple):
    """An op in words that do not depend on the numbers of a graph."""

    kind: tuple[str, int, int]  # type, class, dtype
    flops: float
    reads: Counter[tuple[str, int, bool]]  # tensor, elements touched, whether a weight
    writes: tuple[tuple[str, int, int], ...]  # tensor, elements, dtype


def part_name(name: str, part: int, parts: int) -> str:
    """The name of a part, from 0, of an op or tensor; on purpose not taken from the code that splits."""
    return f"{name}/part {part + 1} of {parts}"


_Span = tuple[str, int, int]  # tensor of the whole graph, first row, row behind the last


class RowSpans:
    """The rows of the tensors of a split graph, derived from the reads and writes of its ops.

    ``moves`` are the ops that are neither parts nor in the whole graph. ``wrong_moves`` are those that
    do not write one range of rows of a tensor.
    """

    def __init__(
        self,
        whole: Graph,
        before: Mapping[str, NamedOp],
        after: Mapping[str, NamedOp],
        splits: Sequence[Split],
    ) -> None:
        self._whole = whole
        self._shapes = {whole.tensor_names[k]: shape for k, shape in row_shapes(whole).items()}
        self._spans: dict[str, _Span] = {}
        parts: set[str] = set()
        for one in (one for one in splits if one.op in before):
            names = [part_name(one.op, i, one.parts) for i in range(one.parts)]
            parts.update(names)
            if one.kind == "rows":
                self._take_parts(before[one.op], [after[name] for name in names if name in after])
        self.moves = [name for name in after if name not in before and name not in parts]
        self.wrong_moves = [name for name in self.moves if not self._is_move(after[name])]

    def wrong_reads(self, name: str, op: NamedOp, parts: Sequence[NamedOp]) -> Iterator[str]:
        """Each part reads the rows that its own rows need, and whole what has no rows of the op."""
        windows = row_windows(self._whole).get(self._whole.op_index[name], {})
        for part in parts:
            _, start, stop = self._spans[part.writes[0][0]]
            needed = Counter[tuple[_Span, int, bool]]()
            for tensor, elements, is_weight in op.reads.elements():
                window = windows.get(self._whole.tensor_index[tensor])
                if window is not None:
                    first = start * window.stride - window.before
                    last = first + (stop - 1 - start) * window.stride + window.size
                    span = tensor, max(0, first), min(self._rows(tensor), last)
                    needed[span, (span[2] - span[1]) * self._row_elements(tensor), is_weight] += 1
                else:
                    needed[self._span_of(tensor), elements, is_weight] += 1
            found = Counter(
                (self._span_of(tensor, is_weight), elements, is_weight)
                for tensor, elements, is_weight in part.reads.elements()
            )
            if found != needed:
                yield "a part does not read the rows that it needs"

    def _span_of(self, tensor: str, is_weight: bool = False) -> _Span:
        whole, _, rows = tensor.rpartition("/rows ")
        if is_weight and tensor not in self._whole.tensor_index and whole:
            start, stop = (int(number) for number in rows.split(" to "))
            return whole, start, stop
        return self._spans.get(tensor, (tensor, 0, self._rows(tensor)))

    def _rows(self, tensor: str) -> int:
        shape = self._shapes.get(tensor, ())
        return shape[-2] if len(shape) > 1 else 0

    def _row_elements(self, tensor: str) -> int:
        return int(self._whole.tensor_elements[self._whole.tensor_index[tensor]]) // max(
            1, self._rows(tensor)
        )

    def _take_parts(self, op: NamedOp, parts: Sequence[NamedOp]) -> None:
        tensor, stop = op.writes[0][0], 0
        for part in parts:
            start, (name, elements, _) = stop, part.writes[0]
            stop += elements // self._row_elements(tensor)
            self._spans[name] = tensor, start, stop

    def _is_move(self, op: NamedOp) -> bool:
        """Whether an op writes one range of rows of a tensor; ops stand in a topological order."""
        spans = sorted(self._span_of(tensor) for tensor, _, _ in op.reads.elements())
        name, elements, _ = op.writes[0]
        whole, _, rows = name.rpartition("/rows ")
        if not spans or op.flops or any(one[0] != whole for one in spans):
            return False
        start, stop = (int(number) for number in rows.split(" to "))
        self._spans[name] = whole, start, stop
        touched = sum(size for _, size, _ in op.reads.elements())
        if op.kind[0] == "Slice":
            holds = spans[0][1] <= start < stop <= spans[0][2] and len(spans) == 1
        else:
            ends = [one[2] for one in spans[:-1]]
            is_joined = ends == [one[1] for one in spans[1:]]
            holds = op.kind[0] == "Concat" and is_joined and (spans[0][1], spans[-1][2]) == (start, stop)
        return holds and touched == elements == (stop - start) * self._row_elements(whole)
