"""The ops that replace an op split by rows: slices of the rows that parts read, parts, and their join."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Final, NamedTuple

from go_opt.env.copies.part_names import part_name, rows_name
from go_opt.env.copies.rows import Rows, row_stops, rows_needed
from go_opt.errors import PlanError
from go_opt.model.axes import row_shapes
from go_opt.model.dtypes import DTYPES
from go_opt.model.graph import WEIGHT, Graph
from go_opt.model.plan import Split

JOIN: Final = "Concat"
TAKE: Final = "Slice"

Row = dict[str, Any]  # arguments of GraphBuilder.add_op


class Span(NamedTuple):
    """Rows of a tensor of the graph."""

    tensor: str
    start: int
    stop: int


class RowParts:
    """Replaces ops split by rows; ``spans`` has the tensors that are some rows of another tensor.

    Of a weight that has rows, such as a mask, each part has a slice of its own.

    Args:
      splits: the split and rows of each op of ``graph`` that is split by rows.
      make: returns a :data:`Row` of an op with another name, FLOPs, reads and writes.

    Raises:
      PlanError: an op has too few rows, or its parts are not joined although an op needs it whole.
    """

    def __init__(
        self, graph: Graph, splits: Mapping[int, tuple[Split, Rows]], make: Callable[..., Row]
    ) -> None:
        self._graph, self._splits, self._make = graph, splits, make
        self._stops = row_stops(graph, splits)
        self.spans: dict[str, Span] = {}
        self.slices: dict[str, tuple[int, int]] = {}  # of weights: tensor of the graph, elements
        for op, (split, _) in splits.items():
            if not self._stops[op]:
                raise PlanError(
                    f"splits: op {split.op!r} has too few rows for {split.parts} parts.", field="splits"
                )

    def of(self, op: int) -> Iterator[Row]:
        """Yields the ops that replace ``op``."""
        graph, (split, rows) = self._graph, self._splits[op]
        name, elements, dtype = self._tensor(rows.output)
        whole = [(graph.tensor_names[k], None) for k, _ in graph.reads_of(op) if k not in rows.windows]
        parts = []
        for part, (start, stop) in enumerate(self._spans(op)):
            reads = list(whole)
            for k, window in rows.windows.items():
                taken = yield from self._taken(k, *rows_needed(window, start, stop, self._number(k)))
                reads.append((taken, None))
            written = part_name(name, part, split.parts)
            self.spans[written] = Span(name, start, stop)
            flops = float(graph.op_flops[op]) * (stop - start) / rows.number
            writes = [(written, elements // rows.number * (stop - start), dtype)]
            parts.append(self._make(op, part_name(split.op, part, split.parts), flops, reads, writes))
        yield from parts
        if self._is_read_whole(rows.output, split):
            joined = [(row["writes"][0][0], None) for row in parts]
            join = self._make(op, split.op, 0.0, joined, [(name, elements, dtype)])
            yield join | {"op_type": JOIN, "op_class": "data_movement"}

    def _is_read_whole(self, k: int, split: Split) -> bool:
        """Whether tensor ``k`` is a joined output, unread, or read by an op that takes no rows of it."""
        graph = self._graph
        readers = graph.readers_of(k)
        takers = [op for op in readers if op in self._splits and k in self._splits[op][1].windows]
        is_whole_output = bool(graph.tensor_is_output[k]) and split.joined
        return is_whole_output or len(takers) < max(split.joined, len(readers))

    def _spans(self, op: int) -> Iterator[tuple[int, int]]:
        stops = self._stops[op]
        return zip([0, *stops[:-1]], stops, strict=True)

    def _number(self, k: int) -> int:
        return row_shapes(self._graph)[k][-2]

    def _tensor(self, k: int) -> tuple[str, int, str]:
        graph = self._graph
        return graph.tensor_names[k], int(graph.tensor_elements[k]), DTYPES[graph.tensor_dtype[k]]

    def _taken(self, k: int, start: int, stop: int) -> Generator[Row, None, str]:
        """Yields the ops that gather some rows of tensor ``k`` in one tensor; returns its name."""
        producer, name = int(self._graph.tensor_producer[k]), self._graph.tensor_names[k]
        if self._graph.tensor_kind[k] == WEIGHT:
            part = rows_name(name, start, stop)
            self.slices[part] = k, self._tensor(k)[1] // self._number(k) * (stop - start)
            self.spans[part] = Span(name, start, stop)
            return part
        held = [(name, (0, self._number(k)))]
        if producer in self._splits:
            spans = list(self._spans(producer))
            held = [(part_name(name, part, len(spans)), span) for part, span in enumerate(spans)]
        pieces = []
        for source, span in held:
            wanted = max(start, span[0]), min(stop, span[1])
            if wanted == span:
                pieces.append(source)
            elif wanted[0] < wanted[1]:
                pieces.append((yield from self._move(TAKE, k, wanted, [source])))
        if len(pieces) == 1:
            return pieces[0]
        return (yield from self._move(JOIN, k, (start, stop), pieces))

    def _move(
        self, op_type: str, k: int, span: tuple[int, int], sources: list[str]
    ) -> Generator[Row, None, str]:
        whole, elements, dtype = self._tensor(k)
        name = rows_name(whole, *span)
        if name not in self.spans:
            self.spans[name] = Span(whole, *span)
            size = elements // self._number(k) * (span[1] - span[0])
            touched = size if op_type == TAKE else None
            yield {
                "name": name, "op_type": op_type, "op_class": "data_movement", "flops": 0.0, "dtype": dtype,
                "reads": [(source, touched) for source in sources], "writes": [(name, size, dtype)],
            }  # fmt: skip
        return name
